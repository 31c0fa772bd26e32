//! The worker's half of a lane: it posts, polls and sleeps, and plays the NIC of all its QPs.
//!
//! ```text
//!  post_send ─► execute at once, or keep          poll ─► adopt what control told, if it did
//!  post_recv ─► enqueue                                ─► hot QPs, and a share of the others: acks,
//!  arm ─► publish, say so to the peers, look again        what waits, what came ─► completions
//! ```
//! A turn in which nothing changed takes no lock, makes no system call and allocates nothing. What looks
//! at registered memory is inside the lane's turnstile. Imported by mod.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::cq::{Cq, Retires};
use super::handles::ShmQp;
use super::link::{Change, Grave, LaneLink, Step};
use super::qp::{Ground, Phase, QpState};
use super::registry::Registry;
use super::switchboard::Switchboard;
use crate::fabric::plain::{PlainWc, refuse_binds};
use crate::fabric::{Lane, MoreSges, PostFailure, RecvWr, SendWr, WcStatus};
use crate::sys::bell::Rung;
use crate::sys::clock::Clock;
use crate::sys::epoll::Events;
use crate::sys::turnstile::Turnstile;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// QPs that every poll looks after. Of the others it is one in [`SHARE`].
const HOT: usize = 16;
/// Polls in which all the others have had their turn.
const SHARE: usize = 16;

/// The worker's half of a lane.
pub struct ShmLane {
    link: Arc<LaneLink>,
    turnstile: Turnstile,
    ground: Ground,
    qps: Vec<Option<Box<QpState>>>,
    /// Places of QPs that are here.
    live: Vec<usize>,
    /// Of those that were active last, if there are more than fit.
    hot: Vec<usize>,
    hand: usize,
    /// The next of the others, in `live`.
    next: usize,
    /// Inlets say that this lane sleeps.
    asleep: bool,
    /// Emptied by each use.
    changes: Vec<Change>,
    events: Events,
}

impl fmt::Debug for ShmLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmLane")
            .field("qps", &self.live.len())
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
            live: Vec::new(),
            hot: Vec::with_capacity(HOT),
            hand: 0,
            next: 0,
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
                self.live.push(index);
                self.touch(index);
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
                    self.touch(index);
                }
                Step::Error => qp.fail(&mut self.ground),
                Step::Region(rkey, region) => {
                    let gone = qp.peer.as_mut().and_then(|peer| peer.answer(rkey, region));
                    if let Some(gone) = gone {
                        self.link.bury(Grave::Region(Box::new(gone)), None);
                        self.ground.control.buried();
                    }
                    self.touch(index);
                }
                Step::Lost => {
                    qp.settle(&mut self.ground);
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
        self.live.retain(|live| *live != index);
        self.hot.retain(|hot| *hot != index);
        self.hand = 0;
        self.next = 0;
        self.link.bury(Grave::Qp(qp), Some(index));
        self.ground.control.buried();
    }

    /// A QP is active: every poll looks after it.
    #[inline]
    fn touch(&mut self, index: usize) {
        if self.live.len() <= HOT || self.hot.contains(&index) {
            return;
        }
        if self.hot.len() < HOT {
            self.hot.push(index);
        } else {
            self.hot[self.hand] = index;
            self.hand = (self.hand + 1) % HOT;
        }
    }

    /// Looks after one QP; true if something has happened.
    #[inline]
    fn attend(&mut self, index: usize) -> bool {
        let Some(qp) = self.qps.get_mut(index).and_then(Option::as_mut) else {
            return false;
        };
        if qp.phase == Phase::Error {
            return false;
        }
        // What the last turn has taken, if no message has carried the word.
        qp.publish();
        let came = qp.receive(&mut self.ground);
        let went = qp.attend_sends(&mut self.ground);
        qp.ring();
        came || went
    }

    /// Looks after the hot QPs, and after a share of the others.
    #[inline]
    fn progress(&mut self) {
        self.turnstile.enter();
        if self.live.len() <= HOT {
            for n in 0..self.live.len() {
                self.attend(self.live[n]);
            }
        } else {
            self.progress_of_many();
        }
        self.turnstile.leave();
    }

    #[inline(never)]
    fn progress_of_many(&mut self) {
        for n in 0..self.hot.len() {
            self.attend(self.hot[n]);
        }
        for _ in 0..self.live.len().div_ceil(SHARE) {
            self.next = (self.next + 1) % self.live.len();
            let index = self.live[self.next];
            if !self.hot.contains(&index) && self.attend(index) {
                self.touch(index);
            }
        }
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

impl Lane for ShmLane {
    type Qp = ShmQp;
    type Wc = PlainWc;

    fn blank() -> PlainWc {
        PlainWc::BLANK
    }

    fn poll(&mut self, into: &mut [PlainWc]) -> usize {
        if self.link.has_changes() {
            self.adopt();
        }
        if self.ground.cq.waiting() < into.len() {
            self.progress();
        }
        if self.asleep {
            self.stay_awake();
        }
        for (n, slot) in into.iter_mut().enumerate() {
            let Some(done) = self.ground.cq.take() else {
                return n;
            };
            *slot = done.wc;
            self.retire(done.retires);
        }
        into.len()
    }

    fn post_send(
        &mut self,
        qp: &mut ShmQp,
        chain: &[SendWr],
        more: &[MoreSges],
    ) -> Result<(), PostFailure> {
        refuse_binds(chain)?;
        if self.link.has_changes() {
            self.adopt();
        }
        let index = qp.index();
        let Some(state) = self.qps.get_mut(index).and_then(Option::as_mut) else {
            return Err(refusal(0, libc::EINVAL));
        };
        let mut outcome = Ok(());
        self.turnstile.enter();
        for (posted, wr) in chain.iter().enumerate() {
            if let Err(errno) = state.post(&mut self.ground, wr, more.get(posted)) {
                outcome = Err(refusal(posted, errno));
                break;
            }
        }
        if state.phase == Phase::Error {
            state.flush(&mut self.ground);
        }
        self.turnstile.leave();
        state.ring();
        if self.asleep {
            self.stay_awake();
        }
        self.touch(index);
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
            state.receive(&mut self.ground);
            self.turnstile.leave();
            state.ring();
            self.touch(index);
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
        for n in 0..self.live.len() {
            self.attend(self.live[n]);
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
