//! What the two ends of a connection give each other through the door, and what the door tells.
//!
//! ```text
//!  glue ── Offer ─► door ═══ frame and descriptors ═══► door ── PeerEnd ─► glue     in both directions
//!  glue ── Grant ─► door ═══ frame and descriptor ════► door ── GrantedRegion ─► glue
//! ```
//! Imports types, sys and the geometry of an inbox. Imported by the other files of this folder and by
//! who drives the door.

use crate::fabric::shm::geometry::Geometry;
use crate::fabric::{CmEventKind, ConnParams, PrivateData};
use crate::sys::bell::Ringer;
use crate::sys::memfd::{Memfd, SharedMap};
use crate::types::{Access, QpNum, Rkey};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Our end of a connection, as its peer is to know it.
#[derive(Debug)]
pub(in crate::fabric::shm) struct Offer {
    /// Number of the QP.
    pub(in crate::fabric::shm) qp: QpNum,
    /// What the peer may do through this QP.
    pub(in crate::fabric::shm) access: Access,
    /// Size of the inbox.
    pub(in crate::fabric::shm) geometry: Geometry,
    /// What the peer writes its messages into; of [`Geometry::bytes`]. Sealed against further writers when
    /// the peer has mapped it, so it must not be sealed yet.
    pub(in crate::fabric::shm) inbox: Arc<Memfd>,
    /// The keys that are in use, for the peer to read. Sealed before it is sent.
    pub(in crate::fabric::shm) board: Arc<Memfd>,
    /// The peer's end of a bell of ours, where our lane sleeps.
    pub(in crate::fabric::shm) bell: Option<OwnedFd>,
}

/// The peer's end of a connection. Holding one proves: both maps are as [`SharedMap`] says and as long as
/// they must be, and numbers are in their ranges. What the memory holds proves nothing.
#[derive(Debug)]
pub(in crate::fabric::shm) struct PeerEnd {
    /// Number of the peer's QP, for reports.
    pub(in crate::fabric::shm) qp: QpNum,
    /// What we may do through the peer's QP.
    pub(in crate::fabric::shm) access: Access,
    /// Size of the peer's inbox.
    pub(in crate::fabric::shm) geometry: Geometry,
    /// The peer's inbox, writable. Where a `PeerEnd` comes out of the door, the peer has sealed it.
    pub(in crate::fabric::shm) inbox: SharedMap,
    /// The peer's board, read-only.
    pub(in crate::fabric::shm) board: SharedMap,
    /// To ring when the peer sleeps.
    pub(in crate::fabric::shm) bell: Option<Ringer>,
    /// Private data, depths and retries, as the peer asked for.
    pub(in crate::fabric::shm) params: ConnParams,
}

/// A region of ours that the peer may map.
#[derive(Debug)]
pub(in crate::fabric::shm) struct Grant {
    /// Its memory, which begins where the region does. Without a right to write it goes out by a
    /// descriptor that cannot write.
    pub(in crate::fabric::shm) memfd: Arc<Memfd>,
    /// Nobody is ever to write it, so it goes out sealed.
    pub(in crate::fabric::shm) seal: bool,
    /// Its address as the peer knows it.
    pub(in crate::fabric::shm) base: u64,
    /// Bytes of it.
    pub(in crate::fabric::shm) len: u64,
    /// What the peer may do.
    pub(in crate::fabric::shm) access: Access,
}

/// A region of the peer's, mapped. Holding one proves: `len` bytes from the map's begin are in the map,
/// which is writable if `access` is, and `base + len` does not wrap.
#[derive(Debug)]
pub(in crate::fabric::shm) struct GrantedRegion {
    /// The memory, from the region's first byte on.
    pub(in crate::fabric::shm) map: SharedMap,
    /// Its address as the peer knows it.
    pub(in crate::fabric::shm) base: u64,
    /// Bytes of it.
    pub(in crate::fabric::shm) len: u64,
    /// What we may do.
    pub(in crate::fabric::shm) access: Access,
}

/// What the door has to tell.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "an event is moved once, and most are of the large kind"
)]
pub(in crate::fabric::shm) enum DoorEvent {
    /// An event of the connection manager.
    Cm(CmNews),
    /// The passive end is as good as up: the seals of both inboxes stand. Established comes next.
    Ready {
        /// The passive end.
        key: u64,
        /// Its peer.
        peer: Box<PeerEnd>,
    },
    /// The peer has used an rkey for the first time, and waits for
    /// [`answer_region`](super::Door::answer_region).
    RegionAsked {
        /// The end that is asked.
        key: u64,
        /// The key of a region of ours, if it is one.
        rkey: Rkey,
    },
    /// The answer to [`ask_region`](super::Door::ask_region).
    RegionAnswer {
        /// The end that asked.
        key: u64,
        /// What it asked for.
        rkey: Rkey,
        /// `None` if the peer has no such region.
        grant: Option<GrantedRegion>,
    },
}

/// An event of the connection manager; see [`CmEvent`](crate::fabric::CmEvent).
#[derive(Debug)]
pub(in crate::fabric::shm) struct CmNews {
    /// Who it is about; for a request, the listener.
    pub(in crate::fabric::shm) key: u64,
    /// What happened.
    pub(in crate::fabric::shm) kind: CmEventKind,
    /// 0, a negative errno, or a reason to reject.
    pub(in crate::fabric::shm) status: i32,
    /// The peer's private data, without padding.
    pub(in crate::fabric::shm) private_data: PrivateData,
    /// As the peer said.
    pub(in crate::fabric::shm) responder_resources: u8,
    /// As the peer said.
    pub(in crate::fabric::shm) initiator_depth: u8,
    /// The end that a request made.
    pub(in crate::fabric::shm) request: Option<u64>,
    /// With `ConnectResponse`: the seals of both inboxes stand.
    pub(in crate::fabric::shm) peer: Option<Box<PeerEnd>>,
}

impl CmNews {
    /// An event that brings nothing.
    pub(super) fn new(key: u64, kind: CmEventKind, status: i32) -> Self {
        Self {
            key,
            kind,
            status,
            private_data: PrivateData::EMPTY,
            responder_resources: 0,
            initiator_depth: 0,
            request: None,
            peer: None,
        }
    }

    /// With what the peer asked for.
    pub(super) fn with_params(self, params: &ConnParams) -> Self {
        Self {
            private_data: params.private_data,
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            ..self
        }
    }
}

impl DoorEvent {
    /// The end that it names, so that it goes with that end.
    pub(super) fn key(&self) -> u64 {
        match self {
            Self::Cm(news) => news.key,
            Self::Ready { key, .. }
            | Self::RegionAsked { key, .. }
            | Self::RegionAnswer { key, .. } => *key,
        }
    }
}
