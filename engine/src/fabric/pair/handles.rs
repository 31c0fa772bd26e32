//! What callers of the pair fabric hold: numbers of entries of the hub, taken out when dropped.
//!
//! ```text
//!  PairCq, PairLane, PairQp… ─► Arc<CqHandle> ─► entry in cqs
//!  PairQpControl, PairQp     ─► Arc<QpHandle> ─► entry in qps     gone with the last half
//!  PairId                                     ─► entry in ids
//! ```
//! Whatever is dropped, in whatever order, by a panic too, is destroyed as if by its call, and its peer
//! hears of it. Imports net. Imported by lane and mod.

use super::net::Hub;
use std::sync::Arc;

/// A CQ, shared by its two halves and the QPs on it.
#[derive(Debug)]
pub(super) struct CqHandle {
    pub(super) hub: Hub,
    pub(super) index: usize,
    pub(super) domain: u64,
}

impl Drop for CqHandle {
    fn drop(&mut self) {
        self.hub.lock().cqs.remove(self.index);
    }
}

/// Control's half of a lane.
#[derive(Debug)]
pub struct PairCq(pub(super) Arc<CqHandle>);

/// A QP, shared by its two halves.
#[derive(Debug)]
pub(super) struct QpHandle {
    pub(super) index: usize,
    /// Outlives the QP.
    pub(super) cq: Arc<CqHandle>,
}

impl Drop for QpHandle {
    fn drop(&mut self) {
        self.cq.hub.lock().destroy_qp(self.index);
    }
}

/// Control's half of a QP.
#[derive(Debug)]
pub struct PairQpControl(pub(super) Arc<QpHandle>);

/// The posting half of a QP.
#[derive(Debug)]
pub struct PairQp(pub(super) Arc<QpHandle>);

impl PairQp {
    pub(super) fn index(&self) -> usize {
        self.0.index
    }
}

/// An id of the connection manager.
#[derive(Debug)]
pub struct PairId {
    pub(super) hub: Hub,
    pub(super) key: u64,
}

impl Drop for PairId {
    fn drop(&mut self) {
        self.hub.lock().destroy_id(self.key);
    }
}
