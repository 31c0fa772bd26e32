//! A completion queue, with the receives that its QPs share.
//!
//! ```text
//!  push ─► completions ─► take ─► what it retires, for the lane to give back
//!    └─ armed: the first push signals the lane's own event
//!  poll ─► Sink: what completes while nothing waits goes to the caller at once, and is retired
//! ```
//! `taken` counts the places that are promised: no work request is taken that could not complete. All
//! memory is taken when the queue is made. Imported by the files of the datapath.

use super::link::LaneLink;
use crate::fabric::RecvWr;
use crate::fabric::plain::PlainWc;
use crate::fabric::soft::{Completed, Retires};
use std::collections::VecDeque;
use std::sync::Arc;

/// Where a poll wants its completions. Only what nothing waits before may go there.
#[derive(Debug)]
pub(super) struct Sink<'a> {
    into: &'a mut [PlainWc],
    filled: usize,
}

impl<'a> Sink<'a> {
    #[inline]
    pub(super) fn new(into: &'a mut [PlainWc]) -> Self {
        Self { into, filled: 0 }
    }

    /// Takes none: all completions wait in the CQ.
    #[inline]
    pub(super) fn none() -> Self {
        Self::new(&mut [])
    }

    #[inline]
    pub(super) fn filled(&self) -> usize {
        self.filled
    }

    /// The place of the next completion.
    #[inline(always)]
    pub(super) fn place(&mut self) -> Option<&mut PlainWc> {
        let place = self.into.get_mut(self.filled)?;
        self.filled += 1;
        Some(place)
    }
}

/// A completion queue, and the receives that its QPs share.
#[derive(Debug)]
pub(super) struct Cq {
    completions: VecDeque<Completed>,
    depth: u64,
    /// Places that are promised to work requests.
    taken: u64,
    pub(super) shared: VecDeque<RecvWr>,
    shared_depth: u32,
    shared_taken: u32,
    link: Arc<LaneLink>,
}

impl Cq {
    pub(super) fn new(depth: u32, shared_depth: u32, link: Arc<LaneLink>) -> Self {
        Self {
            completions: VecDeque::with_capacity(depth as usize),
            depth: u64::from(depth),
            taken: 0,
            shared: VecDeque::with_capacity(shared_depth as usize),
            shared_depth,
            shared_taken: 0,
            link,
        }
    }

    pub(super) fn has_shared(&self) -> bool {
        self.shared_depth > 0
    }

    /// Completions that wait for a poll.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.completions.len()
    }

    /// Places that can be promised.
    #[inline]
    pub(super) fn room(&self) -> u64 {
        self.depth - self.taken
    }

    /// Promises so many places of the [`room`](Self::room) that there is.
    #[inline]
    pub(super) fn promise_all(&mut self, places: u64) {
        debug_assert!(places <= self.room());
        self.taken += places;
    }

    /// The place of a completion that need not wait, whom the poll that is under way gives it to.
    #[inline(always)]
    pub(super) fn direct<'s>(&self, sink: &'s mut Sink<'_>) -> Option<&'s mut PlainWc> {
        if self.completions.is_empty() {
            sink.place()
        } else {
            None
        }
    }

    /// Promises a place; false where there is none.
    #[inline]
    pub(super) fn promise(&mut self) -> bool {
        let room = self.taken < self.depth;
        self.taken += u64::from(room);
        room
    }

    /// Puts a receive on the shared queue; false where there is no room.
    pub(super) fn share(&mut self, wr: &RecvWr) -> bool {
        let room = self.shared_taken < self.shared_depth && self.promise();
        if room {
            self.shared_taken += 1;
            self.shared.push_back(*wr);
        }
        room
    }

    #[inline(never)]
    pub(super) fn push(&mut self, completed: Completed) {
        debug_assert!((self.completions.len() as u64) < self.depth);
        self.completions.push_back(completed);
        if self.link.is_armed() {
            self.link.wake();
        }
    }

    /// The oldest completion; the caller retires what it says.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Completed> {
        self.completions.pop_front()
    }

    /// Places that a completion retired.
    #[inline]
    pub(super) fn give_back(&mut self, places: u64) {
        debug_assert!(places <= self.taken);
        self.taken -= places;
    }

    /// A shared receive that has completed.
    #[inline]
    pub(super) fn retire_shared(&mut self) {
        self.taken -= 1;
        self.shared_taken -= 1;
    }

    /// A QP is gone that holds so many places. Its completions stay, to be polled out by its number.
    pub(super) fn orphan(&mut self, qp: usize, places: u64) {
        self.taken -= places;
        for done in &mut self.completions {
            let its = match done.retires {
                Retires::Sends { qp: of, .. } | Retires::Receive { qp: of } => of == qp,
                Retires::Shared | Retires::Nothing => false,
            };
            if its {
                done.retires = Retires::Nothing;
                self.taken += 1;
            }
        }
    }
}
