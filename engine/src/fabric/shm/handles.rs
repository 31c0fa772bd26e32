//! What callers of the shared-memory fabric hold.
//!
//! ```text
//!  ShmCq, QPs on it     ─► Arc<LaneLink> ◄─ ShmLane
//!  ShmQpControl, ShmQp  ─► Arc<QpHandle> ─► the lane forgets the QP when the last half is gone
//!  ShmId                ─► the door forgets the end, and its peer hears of it
//! ```
//! Whatever is dropped, in whatever order, by a panic too, is destroyed as if by its call. Imports link,
//! door. Imported by lane and mod.

use super::door::{Door, Offer};
use super::link::{LaneLink, Step};
use crate::types::QpNum;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The door of a fabric, which its ids share with it. Control's alone, so nobody waits for the lock.
#[derive(Clone, Debug)]
pub(super) struct SharedDoor(Arc<Mutex<Door>>);

impl SharedDoor {
    pub(super) fn new(door: Door) -> Self {
        Self(Arc::new(Mutex::new(door)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Door> {
        // A caller that panics elsewhere still destroys.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Control's half of a lane.
#[derive(Debug)]
pub struct ShmCq {
    pub(super) link: Arc<LaneLink>,
    /// The lane has receives to share.
    pub(super) shares: bool,
}

/// A QP, shared by its two halves.
#[derive(Debug)]
pub(super) struct QpHandle {
    pub(super) index: usize,
    pub(super) number: QpNum,
    pub(super) link: Arc<LaneLink>,
}

impl QpHandle {
    pub(super) fn tell(&self, step: Step) {
        self.link.tell(self.index, self.number, step);
    }
}

impl Drop for QpHandle {
    fn drop(&mut self) {
        self.tell(Step::Gone);
    }
}

/// Control's half of a QP.
#[derive(Debug)]
pub struct ShmQpControl {
    pub(super) handle: Arc<QpHandle>,
    /// Of the id that it was made for.
    pub(super) key: u64,
    /// What the peer is to be told, until it is.
    pub(super) offer: Option<Offer>,
}

/// The posting half of a QP.
#[derive(Debug)]
pub struct ShmQp(pub(super) Arc<QpHandle>);

impl ShmQp {
    #[inline]
    pub(super) fn index(&self) -> usize {
        self.0.index
    }
}

/// An id of the connection manager.
#[derive(Debug)]
pub struct ShmId {
    pub(super) door: SharedDoor,
    pub(super) key: u64,
}

impl Drop for ShmId {
    fn drop(&mut self) {
        self.door.lock().destroy(self.key);
    }
}
