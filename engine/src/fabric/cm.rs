//! The connection manager as control sees it: endpoints, events, connection parameters.
//!
//! Event kinds are those of rdma_cm (`rdma_get_cm_event(3)`); other fabrics speak the same.

use crate::limits::PRIVATE_DATA_MAX;
use crate::types::QpNum;
use std::fmt;
use std::net::SocketAddr;

/// Identity of an id in events; unique among the ids that live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdKey(pub u64);

/// A place to listen at or connect to, resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// An address of an RDMA device.
    Rdma(SocketAddr),
    /// A name on this host.
    Shm(String),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rdma(addr) => write!(f, "rdma://{addr}"),
            Self::Shm(name) => write!(f, "shm://{name}"),
        }
    }
}

/// More private data than a request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} bytes of private data: at most {max} fit a connection request", max = PRIVATE_DATA_MAX)]
pub struct PrivateDataTooLong(pub usize);

/// Private data of a request, an answer or a rejection. Its length is what the transport says: IB
/// pads with zeros, so whoever needs the length puts it inside.
#[derive(Clone, Copy)]
pub struct PrivateData {
    len: u8,
    bytes: [u8; u8::MAX as usize],
}

impl PrivateData {
    /// No private data.
    pub const EMPTY: Self = Self {
        len: 0,
        bytes: [0; u8::MAX as usize],
    };

    /// Private data to send.
    ///
    /// # Errors
    /// More than [`PRIVATE_DATA_MAX`] bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, PrivateDataTooLong> {
        if bytes.len() > PRIVATE_DATA_MAX {
            return Err(PrivateDataTooLong(bytes.len()));
        }
        Ok(Self::received(bytes))
    }

    /// Private data to send, of a length that is known to fit.
    #[must_use]
    pub fn of<const N: usize>(bytes: &[u8; N]) -> Self {
        const { assert!(N <= PRIVATE_DATA_MAX) };
        Self::received(bytes)
    }

    /// Private data as it came; cut at 255 bytes, which no transport exceeds.
    #[must_use]
    pub fn received(bytes: &[u8]) -> Self {
        let mut data = Self::EMPTY;
        let len = bytes.len().min(data.bytes.len());
        data.bytes[..len].copy_from_slice(&bytes[..len]);
        data.len = u8::try_from(len).unwrap_or(u8::MAX);
        data
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateData({} B)", self.len)
    }
}

impl PartialEq for PrivateData {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}
impl Eq for PrivateData {}

/// What both sides tell each other in the handshake (`rdma_connect(3)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnParams {
    /// Bytes for the peer.
    pub private_data: PrivateData,
    /// READs and atomics that the peer may have outstanding here.
    pub responder_resources: u8,
    /// READs and atomics that this side will have outstanding.
    pub initiator_depth: u8,
    /// Retries of an unanswered packet: 0 to 7.
    pub retry_count: u8,
    /// Retries after RNR: 0 to 7, where 7 is for ever.
    pub rnr_retry_count: u8,
}

/// Events of rdma_cm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CmEventKind {
    /// The address is bound to a device.
    AddrResolved,
    /// The address could not be resolved.
    AddrError,
    /// The route is known.
    RouteResolved,
    /// There is no route.
    RouteError,
    /// A peer asks for a connection; the event brings its id.
    ConnectRequest,
    /// The peer accepted; the QP is ours to move.
    ConnectResponse,
    /// The handshake failed on this side.
    ConnectError,
    /// The peer does not answer.
    Unreachable,
    /// The peer refused; the status is its reason.
    Rejected,
    /// The connection is up.
    Established,
    /// The connection has ended.
    Disconnected,
    /// The device goes away.
    DeviceRemoval,
    /// Multicast.
    MulticastJoin,
    /// Multicast.
    MulticastError,
    /// The address moved to another device (bonding).
    AddrChange,
    /// A QP number may be used again.
    TimewaitExit,
    /// An event that this version does not know, by its number.
    Unknown(u32),
}

impl CmEventKind {
    /// Every kind, for tests that must cover them all.
    pub const ALL: [Self; 17] = [
        Self::AddrResolved,
        Self::AddrError,
        Self::RouteResolved,
        Self::RouteError,
        Self::ConnectRequest,
        Self::ConnectResponse,
        Self::ConnectError,
        Self::Unreachable,
        Self::Rejected,
        Self::Established,
        Self::Disconnected,
        Self::DeviceRemoval,
        Self::MulticastJoin,
        Self::MulticastError,
        Self::AddrChange,
        Self::TimewaitExit,
        Self::Unknown(u32::MAX),
    ];
}

/// One event, copied out of the channel and acknowledged there.
#[derive(Debug)]
pub struct CmEvent<I> {
    /// The id it is about; for a request, the listener.
    pub id: IdKey,
    /// What happened.
    pub kind: CmEventKind,
    /// 0, a negative errno, or a transport's reject reason.
    pub status: i32,
    /// The peer's private data.
    pub private_data: PrivateData,
    /// READs and atomics that the peer takes (`responder_resources`).
    pub responder_resources: u8,
    /// READs and atomics that the peer wants to have outstanding (`initiator_depth`).
    pub initiator_depth: u8,
    /// The id of a request: whoever takes the event owns it.
    pub request: Option<I>,
}

/// What an asynchronous event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncSubject {
    /// A queue pair.
    Qp(QpNum),
    /// A completion queue.
    Cq,
    /// A shared receive queue.
    Srq,
    /// A port.
    Port(u8),
    /// The whole device.
    Device,
}

/// An asynchronous event of a device (`ibv_get_async_event(3)`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Device that raised it.
    pub device: String,
    /// What it is about.
    pub subject: AsyncSubject,
    /// Its name, such as `communication established`.
    pub name: String,
    /// It means that data came before the handshake was done (COMM_EST).
    pub comm_est: bool,
    /// It means that the subject is lost.
    pub fatal: bool,
    /// The device is being taken out, which waits until it is given back.
    pub removed: bool,
}
