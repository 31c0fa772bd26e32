//! The worker's half of a lane: it posts, polls and sleeps, and plays the NIC of all its QPs.
//!
//! ```text
//!  post_send ─► execute at once, or keep          poll ─► adopt what control told, if it did
//!  post_recv ─► enqueue                                ─► of the hot QPs and a share of the others (roster)
//!  arm ─► publish, say so to the peers, look again        those that are due: what came, acks, what waits
//!                                                         ─► completions, into the caller's array
//! ```
//! A turn in which nothing changed takes no lock, makes no system call and allocates nothing. What looks
//! at registered memory is inside the lane's turnstile. Imported by mod.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]
#![allow(unsafe_code, reason = "watches words of the inlets of its QPs")]

use super::cq::{Cq, Sink};
use super::handles::ShmQp;
use super::inbox::Due;
use super::link::{Change, Grave, LaneLink, Step};
use super::qp::{Ground, Phase, QpState};
use super::registry::Registry;
use super::roster::Roster;
use super::switchboard::Switchboard;
use crate::fabric::plain::{PlainWc, refuse_binds};
use crate::fabric::soft::Retires;
use crate::fabric::{Lane, MoreSges, PostFailure, RecvWr, SendOp, SendWr, WcStatus};
use crate::sys::bell::Rung;
use crate::sys::clock::Clock;
use crate::sys::epoll::Events;
use crate::sys::turnstile::Turnstile;
use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The worker's half of a lane.
pub struct ShmLane {
    link: Arc<LaneLink>,
    turnstile: Turnstile,
    ground: Ground,
    qps: Vec<Option<Box<QpState>>>,
    /// Those that are here. A QP that goes leaves it before its inlet does.
    roster: Roster,
    /// Inlets say that this lane sleeps.
    asleep: bool,
    /// Emptied by each use.
    changes: Vec<Change>,
    events: Events,
}

impl fmt::Debug for ShmLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmLane")
            .field("qps", &self.roster.len())
            .field("waiting", &self.ground.cq.waiting())
            .finish_non_exhaustive()
    }
}

impl ShmLane {
    pub(super) fn new(
        link: Arc<LaneLink>,
        registry: Arc<Registry>,
        control: Arc<Switchboard>,
        (cq_depth, shared_depth): (u32, u32),
    ) -> Self {
        let turnstile = Turnstile::new();
        registry.admit(&turnstile);
        Self {
            turnstile,
            ground: Ground {
                cq: Cq::new(cq_depth, shared_depth, Arc::clone(&link)),
                registry,
                control,
                clock: Clock::calibrated(),
            },
            link,
            qps: Vec::new(),
            roster: Roster::default(),
            asleep: false,
            changes: Vec::new(),
            events: Events::new(),
        }
    }

    /// Does what control has told.
    #[cold]
    #[inline(never)]
    fn adopt(&mut self) {
        let mut changes = std::mem::take(&mut self.changes);
        self.link.take_changes(&mut changes);
        for Change {
            index,
            number,
            step,
        } in changes.drain(..)
        {
            if let Step::New(qp) = step {
                if self.qps.len() <= index {
                    self.qps.resize_with(index + 1, || None);
                }
                self.qps[index] = Some(qp);
                self.roster.add(index);
                continue;
            }
            let Some(qp) = self.qps.get_mut(index).and_then(Option::as_mut) else {
                continue;
            };
            if qp.number != number {
                continue;
            }
            match step {
                Step::New(_) => {}
                Step::Accepted => {
                    if qp.phase == Phase::Init {
                        qp.phase = Phase::Early;
                    }
                }
                Step::Ready(peer) => {
                    qp.peer = Some(peer);
                    // It may wait for what was published before.
                    qp.wake = true;
                    if qp.phase != Phase::Error {
                        qp.phase = Phase::Ready;
                    }
                    qp.ring();
                    self.look_after(index);
                }
                Step::Error => qp.fail(&mut self.ground),
                Step::Region(rkey, region) => {
                    let gone = qp.peer.as_mut().and_then(|peer| peer.answer(rkey, region));
                    if let Some(gone) = gone {
                        self.link.bury(Grave::Region(gone), None);
                        self.ground.control.buried();
                    }
                    self.look_after(index);
                }
                Step::Lost => {
                    qp.settle(&mut self.ground, &mut Sink::none());
                    let asks = qp.peer.as_ref().is_some_and(|peer| peer.is_asked());
                    if asks && qp.sends.is_outstanding() {
                        qp.fail_send(&mut self.ground, WcStatus::RetryExceeded);
                    }
                }
                Step::Gone => self.forget(index),
            }
        }
        self.changes = changes;
    }

    fn forget(&mut self, index: usize) {
        let Some(mut qp) = self.qps.get_mut(index).and_then(Option::take) else {
            return;
        };
        qp.end();
        if qp.filling.take().is_some() && qp.shared {
            // Its receive was the lane's, whose room it takes for ever otherwise.
            self.ground.cq.retire_shared();
        }
        self.ground.cq.orphan(index, qp.in_cq());
        self.roster.remove(index);
        self.link.bury(Grave::Qp(qp), Some(index));
        self.ground.control.buried();
    }

    /// The next polls look after a QP.
    fn look_after(&mut self, index: usize) {
        self.roster.touch(index);
        self.roster.expect(index, Due::NOW);
    }

    /// Looks after the QP at a place of the roster; true if something has happened.
    #[inline(always)]
    fn attend(&mut self, position: usize, sink: &mut Sink<'_>) -> bool {
        let index = self.roster.at(position);
        let Some(qp) = self.qps.get_mut(index).and_then(Option::as_mut) else {
            return false;
        };
        let happened = qp.attend(&mut self.ground, sink);
        // SAFETY: `due` requires that the QP lives as long as the roster looks: `forget` takes it off
        // the roster first.
        let due = unsafe { qp.due() };
        self.roster.expect(index, due);
        happened
    }

    /// Looks after the QPs that are due among the hot ones and the others whose turn it is, none of which
    /// is before `first`.
    #[inline(always)]
    fn progress(&mut self, first: usize, others: Range<usize>, sink: &mut Sink<'_>) {
        self.turnstile.enter();
        for position in first..self.roster.hot().end {
            if self.roster.is_due(position) {
                self.attend(position, sink);
            }
        }
        if !others.is_empty() {
            self.progress_of_others(first, others, sink);
        }
        self.turnstile.leave();
    }

    #[inline(never)]
    fn progress_of_others(&mut self, first: usize, others: Range<usize>, sink: &mut Sink<'_>) {
        let mut from = others.start.max(first);
        while let Some(position) = self.roster.first_due(from..others.end) {
            let index = self.roster.at(position);
            if self.attend(position, sink) {
                self.roster.touch(index);
            }
            from = position + 1;
        }
    }

    /// A poll that finds something, at `first` or behind it.
    #[inline(never)]
    fn poll_due(&mut self, into: &mut [PlainWc], first: usize, others: Range<usize>) -> usize {
        if into.is_empty() {
            return 0;
        }
        let mut sink = Sink::new(into);
        self.progress(first, others, &mut sink);
        let filled = sink.filled();
        if self.ground.cq.waiting() > 0 {
            return filled + self.take(&mut into[filled..]);
        }
        filled
    }

    /// A poll of more QPs than are hot.
    #[inline(never)]
    fn poll_many(&mut self, into: &mut [PlainWc]) -> usize {
        let hot = self.roster.first_due(self.roster.hot());
        let others = self.roster.others();
        match hot.or_else(|| self.roster.first_due(others.clone())) {
            Some(first) => self.poll_due(into, first, others),
            None => 0,
        }
    }

    /// A poll when there is more to do than to look for cells.
    #[cold]
    #[inline(never)]
    fn poll_all(&mut self, into: &mut [PlainWc]) -> usize {
        if self.link.has_changes() {
            self.adopt();
        }
        if self.ground.cq.waiting() < into.len() {
            let others = self.roster.others();
            self.progress(0, others, &mut Sink::none());
        }
        if self.asleep {
            self.stay_awake();
        }
        self.take(into)
    }

    /// Takes completions that wait.
    fn take(&mut self, into: &mut [PlainWc]) -> usize {
        for (n, slot) in into.iter_mut().enumerate() {
            let Some(done) = self.ground.cq.take() else {
                return n;
            };
            *slot = done.wc;
            self.retire(done.retires);
        }
        into.len()
    }

    /// Gives back the room of a completion that is polled.
    #[inline]
    fn retire(&mut self, what: Retires) {
        match what {
            Retires::Sends { qp, sequence } => {
                if let Some(Some(qp)) = self.qps.get_mut(qp) {
                    self.ground.cq.give_back(qp.sends.retire(sequence));
                }
            }
            Retires::Receive { qp } => {
                self.ground.cq.give_back(1);
                if let Some(Some(qp)) = self.qps.get_mut(qp) {
                    qp.retire_receive();
                }
            }
            Retires::Shared => self.ground.cq.retire_shared(),
            Retires::Nothing => self.ground.cq.give_back(1),
        }
    }

    /// The lane was armed. It is woken by itself where it has more to do than one turn does, or counts
    /// retries, which are soon over. Once it is awake no peer needs to ring.
    #[cold]
    fn stay_awake(&mut self) {
        let mut qps = self.qps.iter().flatten();
        if qps.any(|qp| qp.more || qp.backlog || qp.rnr.is_some()) {
            self.link.wake();
        }
        if self.link.is_armed() {
            return;
        }
        self.asleep = false;
        for qp in self.qps.iter_mut().flatten() {
            qp.inlet.disarm();
        }
    }
}

impl Drop for ShmLane {
    fn drop(&mut self) {
        // Nobody answers their peers any more.
        for qp in self.qps.iter_mut().flatten() {
            qp.end();
        }
    }
}

fn refusal(posted: usize, errno: i32) -> PostFailure {
    PostFailure { posted, errno }
}

/// Posts the work requests of a chain behind its first `done`.
#[inline(never)]
fn post_each(
    state: &mut QpState,
    ground: &mut Ground,
    chain: &[SendWr],
    more: &[MoreSges],
    done: usize,
) -> Result<(), PostFailure> {
    let mut outcome = Ok(());
    for (posted, wr) in chain.iter().enumerate().skip(done) {
        if let Err(errno) = state.post(ground, wr, more.get(posted)) {
            outcome = Err(refusal(posted, errno));
            break;
        }
    }
    if state.phase == Phase::Error {
        state.flush(ground);
    }
    outcome
}

impl Lane for ShmLane {
    type Qp = ShmQp;
    type Wc = PlainWc;

    fn blank() -> PlainWc {
        PlainWc::BLANK
    }

    #[inline]
    fn poll(&mut self, into: &mut [PlainWc]) -> usize {
        if self.link.has_changes() || self.asleep || self.ground.cq.waiting() > 0 {
            return self.poll_all(into);
        }
        if !self.roster.is_small() {
            return self.poll_many(into);
        }
        match self.roster.first_of_few() {
            Some(first) => self.poll_due(into, first, 0..0),
            None => 0,
        }
    }

    fn post_send(
        &mut self,
        qp: &mut ShmQp,
        chain: &[SendWr],
        more: &[MoreSges],
    ) -> Result<(), PostFailure> {
        let is_plain = |wr: &SendWr| matches!(wr.op, SendOp::Send) && wr.more == 0;
        let plain = chain.iter().all(is_plain);
        if !plain {
            refuse_binds(chain)?;
        }
        if self.link.has_changes() {
            self.adopt();
        }
        let index = qp.index();
        let Some(state) = self.qps.get_mut(index).and_then(Option::as_mut) else {
            return Err(refusal(0, libc::EINVAL));
        };
        let mut outcome = Ok(());
        self.turnstile.enter();
        let done = if plain {
            state.post_plain(&mut self.ground, chain)
        } else {
            0
        };
        if done < chain.len() {
            outcome = post_each(state, &mut self.ground, chain, more, done);
        }
        self.turnstile.leave();
        state.ring();
        // SAFETY: as in `attend`.
        let due = unsafe { state.due() };
        self.roster.touch(index);
        self.roster.expect(index, due);
        if self.asleep {
            self.stay_awake();
        }
        outcome
    }

    fn post_recv(&mut self, qp: &mut ShmQp, chain: &[RecvWr]) -> Result<(), PostFailure> {
        if self.link.has_changes() {
            self.adopt();
        }
        let index = qp.index();
        let state = self.qps.get_mut(index).and_then(Option::as_mut);
        let Some(state) = state.filter(|state| !state.shared) else {
            return Err(refusal(0, libc::EINVAL));
        };
        let mut outcome = Ok(());
        for (posted, wr) in chain.iter().enumerate() {
            if let Err(errno) = state.enqueue_receive(&mut self.ground.cq, wr) {
                outcome = Err(refusal(posted, errno));
                break;
            }
        }
        if state.phase == Phase::Error {
            state.flush(&mut self.ground);
        } else if state.starved {
            self.turnstile.enter();
            state.receive(&mut self.ground, &mut Sink::none());
            self.turnstile.leave();
            state.ring();
            self.look_after(index);
        }
        outcome
    }

    fn post_shared_recv(&mut self, chain: &[RecvWr]) -> Result<(), PostFailure> {
        if !self.ground.cq.has_shared() {
            return Err(refusal(0, libc::EOPNOTSUPP));
        }
        for (posted, wr) in chain.iter().enumerate() {
            if !self.ground.cq.share(wr) {
                return Err(refusal(posted, libc::ENOMEM));
            }
        }
        Ok(())
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.event_fd()
    }

    fn arm(&mut self) -> Result<(), i32> {
        if !self.link.has_events() {
            return Ok(());
        }
        if self.link.has_changes() {
            self.adopt();
        }
        self.link.arm();
        self.asleep = true;
        for qp in self.qps.iter_mut().flatten() {
            qp.publish();
            qp.inlet.arm();
        }
        // What came before the peers knew: it wakes the lane by completing.
        self.turnstile.enter();
        for position in 0..self.roster.len() {
            self.attend(position, &mut Sink::none());
        }
        self.turnstile.leave();
        if self.link.has_changes() {
            self.link.wake();
        }
        self.stay_awake();
        Ok(())
    }

    fn drain_events(&mut self) {
        let qps = &self.qps;
        self.link.drain(&mut self.events, |index, epoll| {
            let bell = qps.get(index).and_then(Option::as_ref);
            if let Some(bell) = bell.and_then(|qp| qp.bell.as_ref())
                && !matches!(bell.drain(), Ok(Rung::Yes | Rung::No))
            {
                // The peer is gone; what it leaves would ring for ever.
                let _ = epoll.remove(bell);
            }
        });
    }
}
