//! The turn: one pass over everything a worker has to do, bounded, without allocation, lock or
//! system call.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::completion::Received;
use super::{CloseReason, Io, LaneState, Service, Turn, Worker};
use crate::fabric::{Fabric, Lane, PostFailure, SendOp, SendWr};
use crate::limits::IDLE_TURNS_BEFORE_TOP_UP;
use crate::memory::{Payload, Registration};
use crate::types::Nanos;

/// Which connections get their receives posted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repost {
    /// Those that have fewer than half of them left.
    BelowHalf,
    /// Those that miss a batch.
    Batches,
    /// All that miss any.
    All,
}

impl<F: Fabric, S: Service> Worker<F, S> {
    /// One pass: at most [`POLL_BATCH_MAX`](crate::limits::POLL_BATCH_MAX) completions a lane and
    /// [`MAILBOX_BATCH_MAX`](crate::limits::MAILBOX_BATCH_MAX) commands, then back to the caller.
    #[inline]
    pub fn turn(&mut self, now: Nanos) -> Turn {
        self.core.now = now;
        let found = match &mut *self.lanes {
            [only] => (only.poll() > 0).then_some(0),
            _ => self.poll_lanes(),
        };
        if let Some(lane) = found {
            return self.busy_turn(lane);
        }
        let own = self.service.turn(&mut Io::new(&mut self.core));
        if own == Turn::Busy || self.has_chores() {
            return self.end_turn(own);
        }
        self.idle()
    }

    /// Polls them all; gives the first that has something.
    #[inline(never)]
    fn poll_lanes(&mut self) -> Option<usize> {
        let found = self.lanes.iter_mut().map(LaneState::poll).enumerate();
        found.fold(None, |first, (lane, n)| first.or((n > 0).then_some(lane)))
    }

    /// Serves `lane`, which has something, and those behind it that do. Out of line, as all that few turns
    /// need: its registers are no matter of the others.
    #[inline(never)]
    fn busy_turn(&mut self, mut lane: usize) -> Turn {
        loop {
            self.serve_completions(lane);
            let mut behind = self.lanes.iter().skip(lane + 1);
            match behind.position(|lane| lane.polled > 0) {
                Some(further) => lane += 1 + further,
                None => break,
            }
        }
        // What it says is no news: the turn is busy.
        let _ = self.service.turn(&mut Io::new(&mut self.core));
        if self.has_chores() {
            self.do_chores();
        }
        self.busy()
    }

    #[inline(never)]
    fn end_turn(&mut self, own: Turn) -> Turn {
        let work = self.do_chores();
        if own == Turn::Busy || work > 0 {
            self.busy()
        } else {
            self.idle()
        }
    }

    #[inline]
    fn busy(&mut self) -> Turn {
        self.idle_turns = 0;
        self.core.counters.turns_busy.add(1);
        Turn::Busy
    }

    #[inline]
    fn idle(&mut self) -> Turn {
        self.core.counters.turns_idle.add(1);
        self.idle_turns = self.idle_turns.wrapping_add(1);
        if self.idle_turns.is_multiple_of(IDLE_TURNS_BEFORE_TOP_UP) {
            self.post_receives(Repost::All);
        }
        Turn::Idle
    }

    /// Most turns find nothing of all this.
    #[inline]
    fn has_chores(&self) -> bool {
        !self.core.dirty.is_empty()
            || self.repost_due
            || self.mailbox.commands.has_news()
            || !self.core.timed.is_empty()
            || !self.outbox.is_empty()
    }

    #[inline(never)]
    fn do_chores(&mut self) -> usize {
        self.ring_doorbells();
        let work = self.serve_commands() + self.check_deadlines();
        self.send_events();
        if self.repost_due {
            self.post_receives(Repost::Batches);
        }
        work
    }

    /// Polls every lane until one has something, at most `times` each; true when one has. What was
    /// polled waits for the next turn. An idle worker spends its time here rather than in turns.
    #[inline]
    pub(super) fn peek(&mut self, times: u32) -> bool {
        (0..times).any(|_| self.lanes.iter_mut().any(|lane| lane.poll() > 0))
    }

    /// Serves what was polled.
    #[inline(always)]
    pub(super) fn serve_completions(&mut self, lane: usize) {
        let state = &mut self.lanes[lane];
        let n = std::mem::take(&mut state.polled);
        // Out of the worker's hands meanwhile, so that each can be borrowed beside it.
        let Some(wcs) = state.wcs.take() else {
            return;
        };
        let mut received = Received::default();
        for wc in wcs.get(..n).unwrap_or_default() {
            self.complete(wc, &mut received);
        }
        // An answer lets the peer send again, so where half of the receives are gone they are posted
        // first; else answers leave at once. Whatever is counted can wait.
        if self.repost_first {
            self.post_receives(Repost::BelowHalf);
        }
        self.ring_doorbells();
        let none = self.lanes[lane].wcs.replace(wcs);
        // Said so that nothing is compiled to drop it.
        std::mem::forget(none);
        let counters = &self.core.counters;
        counters.completions.add(n as u64);
        if received.messages > 0 {
            counters.messages_received.add(received.messages.into());
            counters.recv_bytes.add(received.bytes);
        }
    }

    /// Posts what handlers have queued: one chain, one doorbell for each connection.
    #[inline(always)]
    pub(super) fn ring_doorbells(&mut self) {
        for i in 0..self.core.dirty.len() {
            let index = self.core.dirty[i];
            self.post_sends(index);
        }
        self.core.dirty.clear();
    }

    #[inline(always)]
    fn post_sends(&mut self, index: u16) {
        let c = self.core.table.at(index);
        c.dirty = false;
        if !c.phase.is_up() {
            return;
        }
        let (Some(qp), Some(lane)) = (
            &mut self.qps[usize::from(index)],
            &mut self.lanes[usize::from(c.lane)].lane,
        ) else {
            return;
        };
        loop {
            let (chain, more) = c.sends.chain();
            let Some(first) = chain.first() else {
                return;
            };
            let outcome = if let SendOp::Bind { .. } = first.op {
                let wr = *first;
                post_bind(lane, qp, &wr, c.lane, c.sends.next_payload()).map(|()| (1, 0, 0))
            } else {
                lane.post_send(qp, chain, more).map(|()| tally(chain))
            };
            let counters = &self.core.counters;
            counters.doorbells.add(1);
            match outcome {
                Ok((n, bytes, inline)) => {
                    counters.sends_posted.add(n as u64);
                    counters.send_bytes.add(bytes);
                    counters.inline_sends.add(inline);
                    c.sends.mark_posted(n);
                    if !c.sends.has_unposted() {
                        return;
                    }
                }
                Err(failure) => {
                    counters.sends_posted.add(failure.posted as u64);
                    c.sends.mark_posted(failure.posted);
                    c.blame(CloseReason::PostRefused(failure.errno));
                    return self.ask_close(index);
                }
            }
        }
    }

    /// Reposts receives in batches; what is left of a batch when the worker has had nothing to do for
    /// a while, so that reposting stands in nobody's way.
    #[inline(never)]
    fn post_receives(&mut self, repost: Repost) {
        (self.repost_due, self.repost_first) = (false, false);
        let mut i = 0;
        while i < self.hungry.len() {
            let index = self.hungry[i];
            if self.feed(index, repost) {
                self.core.table.at(index).hungry = false;
                self.hungry.swap_remove(i);
            } else {
                // What a dry pool, or a connection that is not announced yet, leaves is due again.
                let recvs = &self.core.table.at(index).recvs;
                self.repost_due |= recvs.vacant() >= recvs.batch();
                i += 1;
            }
        }
        for lane in 0..self.lanes.len() {
            // A refusal has closed the connections that it concerns.
            let _ = self.refill(lane, repost);
        }
        self.watch_pool();
    }

    /// Posts the receives of one connection; true when there is no more to post.
    fn feed(&mut self, index: u16, repost: Repost) -> bool {
        let c = self.core.table.at(index);
        if !c.phase.is_up() {
            return true;
        }
        let least = match repost {
            Repost::BelowHalf => c.recvs.half(),
            Repost::Batches => c.recvs.batch(),
            Repost::All => 1,
        };
        if c.recvs.has_early() || c.recvs.vacant() < least {
            return false;
        }
        let outcome = self.post_vacant(index);
        if let Err(errno) = outcome {
            self.core
                .table
                .at(index)
                .blame(CloseReason::PostRefused(errno));
            self.ask_close(index);
            return true;
        }
        self.core.table.at(index).recvs.vacant() == 0
    }

    /// Fills and posts vacant receives for as long as the pool has slots.
    pub(super) fn post_vacant(&mut self, index: u16) -> Result<(), i32> {
        let c = self.core.table.at(index);
        let (Some(qp), Some(lane)) = (
            &mut self.qps[usize::from(index)],
            &mut self.lanes[usize::from(c.lane)].lane,
        ) else {
            return Ok(());
        };
        while c.recvs.vacant() > 0 && self.core.pool.free() > 0 {
            let chain = &mut *self.recv_chain;
            // A pool that runs dry is seen below: something stays vacant.
            let _ = c.recvs.fill(&self.core.pool, chain);
            if self.core.grown {
                c.recvs.rekey(chain);
            }
            let wrs = chain.as_slice();
            self.core.counters.recv_doorbells.add(1);
            if let Err(failure) = lane.post_recv(qp, wrs) {
                self.core.counters.recvs_posted.add(failure.posted as u64);
                c.recvs.take_back(chain, failure.posted);
                return Err(failure.errno);
            }
            self.core.counters.recvs_posted.add(wrs.len() as u64);
        }
        if c.recvs.vacant() > 0 {
            self.core.counters.pool_exhausted.add(1);
        }
        Ok(())
    }
}

/// Work requests of a chain, their bytes, and how many were inline.
#[inline]
fn tally(chain: &[SendWr]) -> (usize, u64, u64) {
    chain
        .iter()
        .fold((chain.len(), 0, 0), |(n, bytes, inline), wr| {
            (n, bytes + u64::from(wr.len), inline + u64::from(wr.inline))
        })
}

/// A bind is posted alone, beside the registration that it names.
#[cold]
fn post_bind<L: Lane>(
    lane: &mut L,
    qp: &mut L::Qp,
    wr: &SendWr,
    number: u8,
    payload: Option<&Payload>,
) -> Result<(), PostFailure> {
    let gone = PostFailure {
        posted: 0,
        errno: libc::ENODEV,
    };
    let Some(Payload::Memory(span)) = payload else {
        return Err(gone);
    };
    let post = |memory: &dyn Registration| lane.post_bind(qp, wr, memory);
    let posted = span.memory().with_registration(number.into(), post);
    posted.unwrap_or(Err(gone))
}
