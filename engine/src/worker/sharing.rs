//! What a worker does with receives that the connections of a lane share: serve what they brought, and
//! refill the queue.
//!
//! ```text
//!  completion ─ slot ─► SharedRecvs ─ QP number ─► place ─► handler       a debt of the place
//!  low-water mark, or a place that is deep in debt ─► refill ─► debts paid, oldest first
//! ```
//! A peer that keeps to its share finds a receive whatever others do. One that does not takes those of
//! others: framed mode does not let it, raw mode cannot know.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::completion::Received;
use super::turn::Repost;
use super::wr_id::{index_of, shared_slot};
use super::{CloseReason, Service, Worker};
use crate::fabric::{Fabric, Lane, WorkCompletion};
use crate::limits::POLL_BATCH_MAX;

impl<F: Fabric, S: Service> Worker<F, S> {
    /// A completion whose word names no connection: a shared receive, or nothing of ours.
    #[inline(never)]
    pub(super) fn complete_shared(&mut self, wc: &<F::Lane as Lane>::Wc, received: &mut Received) {
        let word = wc.wr_id();
        let Some(slot) = shared_slot(word) else {
            return;
        };
        let lane = usize::from(self.core.table.at(index_of(word)).lane);
        let Some(shared) = &mut self.lanes[lane].shared else {
            return;
        };
        let place = shared.place(wc.qp_num());
        let Some(buffer) = shared.take(slot, place) else {
            return;
        };
        let Some(index) = place else {
            // Of a QP that is gone: nobody's message, and a receive that others count on.
            shared.ask();
            self.repost_due = true;
            return;
        };
        let c = self.core.table.at(index);
        if c.recvs.borrow_shared() {
            shared.ask();
        }
        self.repost_due |= shared.is_low();
        self.repost_first |= shared.is_half_empty();
        if !wc.is_success() {
            drop(buffer);
            return self.failed(index, wc.status());
        }
        self.deliver(index, buffer, wc, received);
    }

    /// Posts what is vacant of a lane's shared queue, for as long as the pool has slots.
    ///
    /// # Errors
    /// The provider refused, with its errno. Every connection of the lane is being closed: none can count on
    /// receives any more.
    pub(super) fn refill(&mut self, lane: usize, repost: Repost) -> Result<(), i32> {
        let state = &mut self.lanes[lane];
        let (Some(half), Some(shared)) = (&mut state.lane, &mut state.shared) else {
            return Ok(());
        };
        let due = match repost {
            Repost::BelowHalf => shared.is_half_empty(),
            Repost::Batches => shared.is_low(),
            Repost::All => true,
        };
        while due && shared.vacant() > 0 && self.core.pool.free() > 0 {
            let chain = &mut *self.recv_chain;
            shared.fill(&self.core.pool, chain);
            let outcome = half.post_shared_recv(chain.as_slice());
            let posted = outcome.map_or_else(|f| f.posted, |()| chain.as_slice().len());
            let counters = &self.core.counters;
            counters.recv_doorbells.add(1);
            counters.recvs_posted.add(posted as u64);
            for place in shared.settle(chain, posted) {
                self.core.table.at(place).recvs.repay_shared();
            }
            if let Err(failure) = outcome {
                self.close_lane(lane, CloseReason::PostRefused(failure.errno));
                return Err(failure.errno);
            }
        }
        if due && shared.vacant() > 0 {
            // A dry pool: tried again every turn, as buffers may come back in any.
            self.core.counters.pool_exhausted.add(1);
            shared.ask();
        }
        self.repost_due |= shared.is_low();
        Ok(())
    }

    /// Fills every shared queue, while the whole pool is free.
    pub(super) fn fill_shared(&mut self) {
        for lane in 0..self.lanes.len() {
            // What is refused here is tried again for the first connection.
            let _ = self.refill(lane, Repost::All);
        }
    }

    /// Whether the lane's shared queue can keep what connections are promised of it.
    pub(super) fn is_shared_ready(&mut self, lane: u8) -> bool {
        let lane = usize::from(lane);
        if self.refill(lane, Repost::All).is_err() {
            return false;
        }
        let shared = self.lanes[lane].shared.as_ref();
        shared.is_none_or(|shared| shared.missing() == 0)
    }

    #[cold]
    fn close_lane(&mut self, lane: usize, reason: CloseReason) {
        for index in (0..=u16::MAX).take(self.core.table.len()) {
            let c = self.core.table.at(index);
            if usize::from(c.lane) == lane && c.phase.is_up() {
                c.blame(reason);
                self.ask_close(index);
            }
        }
    }

    /// Serves all that is in the CQ of a lane with shared receives. Ends: a CQ has bounds.
    #[cold]
    #[inline(never)]
    pub(super) fn poll_out_shared(&mut self, lane: u8) {
        let lane = usize::from(lane);
        let state = &self.lanes[lane];
        let Some(polls) = state.shared.as_ref().map(|s| s.polls_max()) else {
            return;
        };
        // What was polled before now says nothing of what came since.
        if state.polled > 0 {
            self.serve_completions(lane);
        }
        for _ in 0..polls {
            let n = self.lanes[lane].poll();
            if n > 0 {
                self.serve_completions(lane);
            }
            if n < POLL_BATCH_MAX {
                break;
            }
        }
    }
}
