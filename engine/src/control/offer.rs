//! What a side says and allows in the handshake, and how a listener decides about a request.

use crate::fabric::{Endpoint, PrivateData};
use crate::limits::RD_ATOMIC_DEFAULT;
use crate::types::{Access, Membership};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// What to say to the peer in the handshake, and what it may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Bytes for the peer's service: raw mode. Framed mode puts its own there, and ignores these.
    pub private_data: PrivateData,
    /// Comes back in [`crate::worker::Peer::tag`].
    pub tag: u64,
    /// The worker that gets the connection; `None` leaves it to control, which takes the one with
    /// the most free places on the device.
    pub worker: Option<u16>,
    /// Comes back in [`crate::worker::Peer::membership`];
    /// [`Engine::connect_group`](crate::Engine::connect_group) sets it, and the worker with it.
    pub membership: Option<Membership>,
    /// READs and atomics that the peer may have outstanding here.
    pub responder_resources: u8,
    /// READs and atomics that this side wants to have outstanding. The handshake settles on the lesser
    /// of this and the peer's `responder_resources`.
    pub initiator_depth: u8,
    /// What the peer may do to memory that it has keys of.
    pub access: Access,
    /// Memory windows of the connection's own, for [`Io::bind`](crate::worker::Io::bind); devices
    /// without windows give none.
    pub windows: u16,
    /// Framed mode: both sides tell versions, limits and receives posted, and refuse strangers.
    pub framed: bool,
}

impl Default for Offer {
    /// Raw mode without private data or remote access.
    fn default() -> Self {
        Self {
            private_data: PrivateData::EMPTY,
            tag: 0,
            worker: None,
            membership: None,
            responder_resources: RD_ATOMIC_DEFAULT,
            initiator_depth: RD_ATOMIC_DEFAULT,
            access: Access::NONE,
            windows: 0,
            framed: false,
        }
    }
}

impl Offer {
    /// Framed mode without remote access.
    #[must_use]
    pub fn framed() -> Self {
        Self {
            framed: true,
            ..Self::default()
        }
    }
}

/// A peer asks for a connection.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Where it came in.
    pub at: &'a Endpoint,
    /// Who asks, where the fabric knows.
    pub peer: Option<SocketAddr>,
    /// What it says; InfiniBand pads it with zeros.
    pub private_data: &'a PrivateData,
    /// READs and atomics that it wants to have outstanding here.
    pub responder_resources: u8,
    /// READs and atomics of this side's that it allows.
    pub initiator_depth: u8,
}

/// The answer to a [`Request`].
#[derive(Clone, Copy, Debug)]
pub enum Verdict {
    /// Take it, on these terms.
    Accept(Offer),
    /// Refuse it; the peer gets these bytes.
    Reject(PrivateData),
}

type Decide = Arc<dyn Fn(&Request<'_>) -> Verdict + Send + Sync>;

/// How a listener answers: all alike (`Welcome::from(offer)`), or each request on its own.
#[derive(Clone)]
pub struct Welcome(Decide);

impl Welcome {
    /// A listener that decides about each request, on the control core: `decide` must not block.
    pub fn each(decide: impl Fn(&Request<'_>) -> Verdict + Send + Sync + 'static) -> Self {
        Self(Arc::new(decide))
    }

    pub(super) fn decide(&self, request: &Request<'_>) -> Verdict {
        (self.0)(request)
    }
}

impl From<Offer> for Welcome {
    fn from(offer: Offer) -> Self {
        Self::each(move |_| Verdict::Accept(offer))
    }
}

impl fmt::Debug for Welcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Welcome(..)")
    }
}
