//! A completion queue, with the receives that its QPs share.
//!
//! ```text
//!  push ─► completions ─► take_completion (queues.rs)        armed: the first push rings the bell
//! ```
//! `taken` counts the places that are promised: no work request is taken that could not complete.
//! Imported by queues, lane and mod.

use crate::fabric::RecvWr;
use crate::fabric::soft::Completed;
use crate::sys::eventfd::EventFd;
use std::collections::VecDeque;
use std::sync::Arc;

/// A completion queue, and the receives that its QPs share.
pub(super) struct CqState {
    pub(super) completions: VecDeque<Completed>,
    pub(super) depth: u64,
    /// Places that are promised to work requests.
    pub(super) taken: u64,
    pub(super) shared: VecDeque<RecvWr>,
    pub(super) shared_depth: u32,
    pub(super) shared_taken: u32,
    pub(super) armed: bool,
    bell: Option<Arc<EventFd>>,
}

impl CqState {
    pub(super) fn new(depth: u32, shared_depth: u32, bell: Option<Arc<EventFd>>) -> Self {
        Self {
            completions: VecDeque::with_capacity(depth as usize),
            depth: u64::from(depth),
            taken: 0,
            shared: VecDeque::with_capacity(shared_depth as usize),
            shared_depth,
            shared_taken: 0,
            armed: false,
            bell,
        }
    }

    pub(super) fn has_shared(&self) -> bool {
        self.shared_depth > 0
    }

    pub(super) fn push(&mut self, completed: Completed) {
        debug_assert!((self.completions.len() as u64) < self.depth);
        self.completions.push_back(completed);
        if self.armed {
            self.armed = false;
            if let Some(bell) = &self.bell {
                // An eventfd of ours cannot fail.
                let _ = bell.signal();
            }
        }
    }
}
