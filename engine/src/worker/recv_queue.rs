//! The receives of one connection: which buffer stands in which slot of the receive queue.
//!
//! A message leaves its slot vacant; vacant slots are filled from the pool and posted in batches.
//! Messages that come before the service knows the connection wait in `early`, in order.
//!
//! Where the lane has a shared queue there are no slots here, only the place's share of that queue:
//! ```text
//!  posted_total − messages  =  share − debt        debt: used by this place, not posted again yet
//! ```
//! The debt outlives a connection: whoever has the place next starts with that much less. So the sum
//! of what all peers may send is never more than what is posted.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::Message;
use super::wr_id::{sequence_of, with_sequence};
use crate::fabric::RecvWr;
use crate::limits::{POST_CHAIN_MAX, RECV_REPOST_BATCH, SHARED_EARLY_MAX};
use crate::memory::{Buffer, Exhausted, Pool};
use crate::types::Lkey;
use std::collections::VecDeque;

/// In-flight table of one receive queue.
pub(crate) struct RecvQueue {
    slots: Box<[Option<Buffer>]>,
    /// Numbers of the vacant slots stand in `vacant[..vacancies]`.
    vacant: Box<[u16]>,
    vacancies: u32,
    early: VecDeque<Message>,
    depth: u32,
    /// Half of the depth, at least 1.
    half: u32,
    /// Vacancies that are worth a post.
    batch: u32,
    /// Receives ever posted, modulo 2^32: what the peer is told as credits.
    posted_total: u32,
    /// Receives of the lane's shared queue that this place has used and that are not posted again.
    debt: u32,
    base: u64,
    lkey: Lkey,
    lane: u8,
}

/// A chain of receives, made once and filled again and again.
pub(crate) struct RecvChain {
    wrs: [RecvWr; POST_CHAIN_MAX],
    len: usize,
}

impl RecvChain {
    pub(crate) fn new() -> Self {
        let blank = RecvWr {
            wr_id: 0,
            addr: 0,
            len: 0,
            lkey: Lkey(0),
        };
        Self {
            wrs: [blank; POST_CHAIN_MAX],
            len: 0,
        }
    }

    pub(crate) fn as_slice(&self) -> &[RecvWr] {
        &self.wrs[..self.len]
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds a receive; the chain has room.
    pub(crate) fn push(&mut self, wr: RecvWr) {
        self.wrs[self.len] = wr;
        self.len += 1;
    }
}

impl RecvQueue {
    /// All memory of a queue of `depth`; the connection comes with [`RecvQueue::open`].
    pub(crate) fn new(depth: u32) -> Self {
        Self::with_slots(depth, depth, depth)
    }

    /// A place's share of a shared queue, and room for messages that come early.
    pub(crate) fn shared(share: u32) -> Self {
        Self::with_slots(0, share, share.max(SHARED_EARLY_MAX))
    }

    fn with_slots(slots: u32, depth: u32, early: u32) -> Self {
        let half = (depth / 2).max(1);
        Self {
            slots: (0..slots).map(|_| None).collect(),
            vacant: vec![0; slots as usize].into_boxed_slice(),
            vacancies: slots,
            early: VecDeque::with_capacity(early as usize),
            depth,
            half,
            batch: RECV_REPOST_BATCH.min(half),
            posted_total: 0,
            debt: 0,
            base: 0,
            lkey: Lkey(0),
            lane: 0,
        }
    }

    /// Takes up the work of a new connection. Every slot is vacant before.
    pub(crate) fn open(&mut self, base: u64, lane: u8, lkey: Lkey) {
        debug_assert!(self.slots.iter().all(Option::is_none));
        // Low slots are popped first.
        for (place, slot) in self.vacant.iter_mut().rev().zip(0..) {
            *place = slot;
        }
        self.vacancies = self.slot_count();
        self.early.clear();
        (self.base, self.lane, self.lkey) = (base, lane, lkey);
        self.posted_total = 0;
        if self.is_shared() {
            // A connection that finds nothing of its share is refused, so what a debt is above the share
            // is paid before the next one opens.
            self.posted_total = self.depth.saturating_sub(self.debt);
        }
    }

    /// Slots of this connection's own.
    fn slot_count(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    /// The receives are the lane's, not this connection's.
    #[inline]
    fn is_shared(&self) -> bool {
        self.slots.is_empty()
    }

    /// A message used a receive of the shared queue. True when the place has used up so much of its share
    /// that the queue should be refilled for it.
    #[inline]
    pub(crate) fn borrow_shared(&mut self) -> bool {
        debug_assert!(self.is_shared());
        self.debt += 1;
        self.debt >= self.batch
    }

    /// One of the receives that this place has used is posted again.
    #[inline]
    pub(crate) fn repay_shared(&mut self) {
        self.debt -= 1;
        self.posted_total = self.posted_total.wrapping_add(1);
    }

    /// Slots in all; of a shared queue the share.
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// Slots that have no buffer.
    #[inline]
    pub(crate) fn vacant(&self) -> u32 {
        self.vacancies
    }

    /// Half of the slots: with so many vacant, a peer that keeps the other half under way could find
    /// none.
    #[inline]
    pub(crate) fn half(&self) -> u32 {
        self.half
    }

    /// Vacant slots that are worth a post.
    #[inline]
    pub(crate) fn batch(&self) -> u32 {
        self.batch
    }

    /// Receives that the NIC has.
    pub(crate) fn outstanding(&self) -> u32 {
        self.slot_count() - self.vacancies
    }

    /// Receives posted since [`RecvQueue::open`], modulo 2^32.
    #[inline]
    pub(crate) fn posted_total(&self) -> u32 {
        self.posted_total
    }

    /// Fills vacant slots from the pool. The chain counts as posted: [`RecvQueue::take_back`] undoes
    /// what the NIC refused.
    pub(crate) fn fill(&mut self, pool: &Pool, chain: &mut RecvChain) -> Result<(), Exhausted> {
        chain.clear();
        while chain.len < POST_CHAIN_MAX {
            let Some(top) = self.vacancies.checked_sub(1) else {
                break;
            };
            let slot = self.vacant[top as usize];
            let buffer = pool.alloc()?;
            self.vacancies = top;
            chain.wrs[chain.len] = RecvWr {
                wr_id: with_sequence(self.base, u32::from(slot)),
                addr: buffer.addr(),
                len: buffer.capacity(),
                lkey: self.lkey,
            };
            chain.len += 1;
            self.slots[usize::from(slot)] = Some(buffer);
            self.posted_total = self.posted_total.wrapping_add(1);
        }
        Ok(())
    }

    /// Where the pool has grown, buffers in a chain that was just filled may have keys of their own.
    #[cold]
    #[inline(never)]
    pub(crate) fn rekey(&self, chain: &mut RecvChain) {
        for wr in &mut chain.wrs[..chain.len] {
            let slot = sequence_of(wr.wr_id) as usize;
            let buffer = self.slots.get(slot).and_then(Option::as_ref);
            if let Some(lkey) = buffer.and_then(|b| b.lkey(self.lane.into())) {
                wr.lkey = lkey;
            }
        }
    }

    /// The NIC refused the receives of `chain` from `posted` on.
    pub(crate) fn take_back(&mut self, chain: &RecvChain, posted: usize) {
        for wr in &chain.as_slice()[posted..] {
            drop(self.take(sequence_of(wr.wr_id)));
            self.posted_total = self.posted_total.wrapping_sub(1);
        }
    }

    /// The buffer of a slot whose receive completed. `None`: the slot is not outstanding, so the
    /// completion is not ours.
    #[inline]
    pub(crate) fn take(&mut self, slot: u32) -> Option<Buffer> {
        let buffer = self.slots.get_mut(slot as usize)?.take()?;
        #[allow(
            clippy::cast_possible_truncation,
            reason = "below the depth, which is asserted to fit"
        )]
        let number = slot as u16;
        self.vacant[self.vacancies as usize] = number;
        self.vacancies += 1;
        Some(buffer)
    }

    /// Keeps a message that came before the service knows the connection. False: there is no room, which
    /// only a peer with shared receives can bring about.
    pub(crate) fn keep_early(&mut self, message: Message) -> bool {
        let room = self.early.len() < self.early.capacity();
        debug_assert!(room || self.is_shared());
        if room {
            self.early.push_back(message);
        }
        room
    }

    /// Messages wait for `connected`. No receive of the connection's own is posted meanwhile, so they
    /// are never more than slots: a peer that is faster than control meets RNR.
    pub(crate) fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    pub(crate) fn next_early(&mut self) -> Option<Message> {
        self.early.pop_front()
    }

    /// The QP is destroyed: gives every buffer back to the pool.
    pub(crate) fn reclaim(&mut self) {
        for slot in 0..self.slot_count() {
            drop(self.take(slot));
        }
        self.early.clear();
    }
}

const _: () = assert!(crate::limits::QUEUE_DEPTH_MAX <= u16::MAX as u32);

#[cfg(test)]
#[path = "recv_queue_tests.rs"]
mod tests;
