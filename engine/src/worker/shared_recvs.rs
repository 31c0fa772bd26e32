//! The receives that all connections of a lane share: which buffer stands in which slot, and for whom a
//! used one is to be posted again.
//!
//! ```text
//!  slots     [ buffer | – | buffer | – | … ]      with the NIC, until a completion names the slot
//!  vacant    front ─ 1: used by place 4 ─ 3: used by place 0 ─ … ─► fill ─► Lane::post_shared_recv
//!  numbers   QP number ─► place
//! ```
//! Vacant slots are filled in the order in which they were used, so that nobody waits for others who use
//! more. A slot that the device never gives back (its QP died in the middle of a message) stays here
//! until the queue is gone. All memory is taken at the start. Imported by sharing.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::LaneCapacity;
use super::qp_index::QpIndex;
use super::recv_queue::RecvChain;
use super::wr_id::{shared_base, with_sequence};
use crate::fabric::RecvWr;
use crate::limits::{POLL_BATCH_MAX, POST_CHAIN_MAX, SHARED_RECV_REFILL};
use crate::memory::{Buffer, Pool};
use crate::types::{Lkey, QpNum};
use std::collections::VecDeque;

/// A slot without a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Vacancy {
    slot: u32,
    /// Place whose message used it; `None` before the first use, or if that QP was gone already.
    user: Option<u16>,
}

/// In-flight table of a shared receive queue.
pub(crate) struct SharedRecvs {
    slots: Box<[Option<Buffer>]>,
    vacant: VecDeque<Vacancy>,
    /// Vacancies at which the queue is refilled.
    refill: usize,
    numbers: QpIndex,
    /// Someone has used much of its share, or the pool was dry.
    asked: bool,
    polls_max: usize,
    base: u64,
    lkey: Lkey,
    lane: usize,
}

impl SharedRecvs {
    /// The table of a lane; `None` where connections have queues of their own.
    pub(crate) fn new(
        lane: u8,
        first_place: u16,
        lkey: Lkey,
        capacity: &LaneCapacity,
    ) -> Option<Self> {
        let depth = capacity.shared_recv_depth;
        debug_assert!(
            u64::from(capacity.recv_depth) * u64::from(capacity.connections) <= u64::from(depth)
                || depth == 0
        );
        let vacant = (0..depth).map(|slot| Vacancy { slot, user: None });
        (depth > 0).then(|| Self {
            slots: (0..depth).map(|_| None).collect(),
            vacant: vacant.collect(),
            refill: SHARED_RECV_REFILL.min(depth / 4).max(1) as usize,
            numbers: QpIndex::new(capacity.connections),
            asked: false,
            polls_max: (capacity.connections as usize * capacity.send_depth as usize
                + depth as usize)
                .div_ceil(POLL_BATCH_MAX)
                + 1,
            base: shared_base(first_place),
            lkey,
            lane: lane.into(),
        })
    }

    /// Completions of this QP are the connection's at this place.
    pub(crate) fn join(&mut self, qp: QpNum, place: u16) {
        self.numbers.insert(qp, place);
    }

    /// The QP is destroyed, and what it completed is polled out.
    pub(crate) fn part(&mut self, qp: QpNum) {
        self.numbers.remove(qp);
    }

    /// The place that a completion is for.
    #[inline]
    pub(crate) fn place(&self, qp: QpNum) -> Option<u16> {
        self.numbers.find(qp)
    }

    /// The buffer of a slot whose receive completed; the slot is vacant from here on. `None`: the slot is
    /// not outstanding, so the completion is not ours.
    #[inline]
    pub(crate) fn take(&mut self, slot: u32, user: Option<u16>) -> Option<Buffer> {
        let buffer = self.slots.get_mut(slot as usize)?.take()?;
        self.vacant.push_back(Vacancy { slot, user });
        Some(buffer)
    }

    /// Asks for a refill before the queue itself is low.
    #[inline]
    pub(crate) fn ask(&mut self) {
        self.asked = true;
    }

    /// Used up to its low-water mark, or someone asked.
    #[inline]
    pub(crate) fn is_low(&self) -> bool {
        self.vacant.len() >= self.refill || self.asked
    }

    /// Half of it is used: peers may be about to find none.
    #[inline]
    pub(crate) fn is_half_empty(&self) -> bool {
        self.vacant.len() >= self.slots.len().div_ceil(2)
    }

    /// Polls that empty the lane's CQ of all that it can hold.
    pub(crate) fn polls_max(&self) -> usize {
        self.polls_max
    }

    /// Slots without a buffer.
    pub(crate) fn vacant(&self) -> usize {
        self.vacant.len()
    }

    /// Slots without a buffer that are in no place's debt: shares were promised without them.
    pub(crate) fn missing(&self) -> usize {
        self.vacant.iter().filter(|v| v.user.is_none()).count()
    }

    /// Fills up to a chain of vacant slots from the pool, for [`SharedRecvs::settle`] to conclude.
    pub(crate) fn fill(&mut self, pool: &Pool, chain: &mut RecvChain) {
        self.asked = false;
        chain.clear();
        for vacancy in self.vacant.iter().take(POST_CHAIN_MAX) {
            let Ok(buffer) = pool.alloc() else { break };
            chain.push(RecvWr {
                wr_id: with_sequence(self.base, vacancy.slot),
                addr: buffer.addr(),
                len: buffer.capacity(),
                lkey: buffer.lkey(self.lane).unwrap_or(self.lkey),
            });
            self.slots[vacancy.slot as usize] = Some(buffer);
        }
    }

    /// The NIC took the first `posted` receives of the chain; gives the places that had used them. The
    /// buffers of the rest go back to the pool.
    pub(crate) fn settle(
        &mut self,
        chain: &RecvChain,
        posted: usize,
    ) -> impl Iterator<Item = u16> + '_ {
        for vacancy in self.vacant.range(posted..chain.as_slice().len()) {
            self.slots[vacancy.slot as usize] = None;
        }
        self.vacant.drain(..posted).filter_map(|v| v.user)
    }
}
