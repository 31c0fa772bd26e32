//! A completion queue, with the receives that its QPs share.
//!
//! ```text
//!  push ─► completions ─► take ─► what it retires, for the lane to give back
//!    └─ armed: the first push signals the lane's own event
//! ```
//! `taken` counts the places that are promised: no work request is taken that could not complete. All
//! memory is taken when the queue is made. Imported by the files of the datapath.

use super::link::LaneLink;
use crate::fabric::RecvWr;
use crate::fabric::plain::PlainWc;
use std::collections::VecDeque;
use std::sync::Arc;

/// Whose room a completion gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retires {
    /// All sends up to this one.
    Sends { qp: usize, sequence: u64 },
    /// One receive of the QP.
    Receive { qp: usize },
    /// One receive of the shared queue.
    Shared,
    /// Nothing but its own place: the QP is gone.
    Nothing,
}

/// A completion in a CQ.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completed {
    pub(super) wc: PlainWc,
    pub(super) retires: Retires,
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

    #[inline]
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
