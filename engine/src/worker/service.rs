//! What an embedder writes: a [`Service`], called on the worker's core, run to completion.
//!
//! ```text
//!  connected ─► message* / completed* ─► disconnected          turn, every turn
//! ```
//! `connected` comes first and once, `disconnected` last and once; every token given to a send comes
//! back in exactly one `completed` between them.

use super::Io;
use crate::fabric::{Note, PrivateData, WcStatus};
use crate::flow::Lie;
use crate::limits::LARGE_IN_FLIGHT_MAX;
use crate::memory::{Buffer, Payload};
use crate::types::Membership;
use crate::wire::{HeaderError, Hello, Kind, LargeError, LargeId, OfferError};
use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;

/// Names one connection for its whole life; never used again for another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
// One word in memory; see `ConnId::word`.
#[repr(C, align(8))]
pub struct ConnId {
    pub(crate) worker: u16,
    pub(crate) index: u16,
    pub(crate) generation: u32,
}

impl ConnId {
    /// All of it in one comparison, for the datapath.
    #[inline]
    pub(super) fn word(self) -> u64 {
        u64::from(self.worker) | u64::from(self.index) << 16 | u64::from(self.generation) << 32
    }
}

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}c{}g{}", self.worker, self.index, self.generation)
    }
}

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The caller's word for an operation; comes back with its outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The peer's NIC acknowledged it; on iWARP only its TCP was handed it.
    Done,
    /// The NIC never had it: safe to send again.
    NeverPosted,
    /// It may have reached the peer, or not.
    Unknown(WcStatus),
}

/// An operation is over: its payload is the caller's again.
#[derive(Debug)]
#[must_use = "dropping it gives the buffer back to the pool"]
pub struct Completed {
    /// The caller's word for it.
    pub token: Token,
    /// How it ended.
    pub outcome: Outcome,
    /// What was posted; the 8 bytes that an atomic found.
    pub payload: Payload,
    /// The payload has what an atomic found.
    pub(super) atomic: bool,
    /// A word of the layer that posted it.
    pub(crate) mark: u8,
}

impl Completed {
    /// What an atomic that is done found in the peer's memory, in this host's byte order.
    #[must_use]
    pub fn old_value(&self) -> Option<u64> {
        let Payload::Buffer(found) = &self.payload else {
            return None;
        };
        let done = self.atomic && self.outcome == Outcome::Done;
        let bytes: [u8; 8] = found.get(..8)?.try_into().ok()?;
        done.then(|| u64::from_ne_bytes(bytes))
    }
}

/// A message, in the buffer that the NIC wrote it to. Dropping it gives the buffer back for the next
/// receive; keeping or forwarding it costs no copy.
#[derive(Debug)]
pub struct Message {
    buffer: Buffer,
    note: Note,
    written: Option<u32>,
}

impl Message {
    #[inline]
    pub(super) fn new(buffer: Buffer, note: Note, written: Option<u32>) -> Self {
        Self {
            buffer,
            note,
            written,
        }
    }

    /// What came beside the bytes.
    #[inline]
    #[must_use]
    pub fn note(&self) -> Note {
        self.note
    }

    /// The peer wrote so many bytes to memory that it was offered (WRITE with immediate), and this
    /// message tells of it; the message itself has none.
    #[inline]
    #[must_use]
    pub fn written(&self) -> Option<u32> {
        self.written
    }

    /// The buffer, to keep or to send on. Its length is the message's.
    #[inline]
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

impl Deref for Message {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

/// Who asked for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This side connected.
    Active,
    /// This side accepted.
    Passive,
}

/// A connection as the handshake left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Who asked.
    pub role: Role,
    /// The peer's address, where the fabric has one.
    pub address: Option<SocketAddr>,
    /// The peer's private data; IB pads it with zeros.
    pub private_data: PrivateData,
    /// READs and atomics that this side may have outstanding.
    pub initiator_depth: u8,
    /// READs and atomics that the peer may have outstanding here.
    pub responder_resources: u8,
    /// The word given to `connect`, or by whoever accepted.
    pub tag: u64,
    /// The connection's place in a group, on the side that opened one: see
    /// [`Group`](super::Group).
    pub membership: Option<Membership>,
    /// What a framed peer says of itself; `None` in raw mode.
    pub hello: Option<Hello>,
}

/// What a peer did that framed mode does not allow: nothing that follows could be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A message is not framed as this version frames.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Its count of receives cannot be true.
    #[error(transparent)]
    Credits(#[from] Lie),
    /// It offered memory that nobody can use.
    #[error(transparent)]
    Offer(#[from] OfferError),
    /// It offered or ended a large message in a way that cannot be.
    #[error(transparent)]
    Large(#[from] LargeError),
    /// Its large message is not numbered as the one behind its last: the id was used before, or one was
    /// left out.
    #[error("large message {seen} where {must} is the next")]
    LargeOrder {
        /// The id that came.
        seen: LargeId,
        /// The id that was to come.
        must: LargeId,
    },
    /// It offered more large messages than may be unfinished.
    #[error("more than {LARGE_IN_FLIGHT_MAX} large messages that are not finished")]
    LargeTooMany,
    /// It finished a large message that this side has not sent, or that is finished.
    #[error("large message {0} was finished, and is not under way")]
    LargeUnknown(LargeId),
    /// It did not finish a large message in time, and could still READ the memory.
    #[error("large message {0} was not finished within the deadline")]
    LargeLate(LargeId),
    /// It sent what the service on this side has no handler for.
    #[error("the service on this side takes no {0:?}")]
    Unserved(Kind),
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// This side asked for it.
    Local,
    /// The peer disconnected, or its process ended.
    Peer,
    /// An operation failed.
    Failed(WcStatus),
    /// The provider refused a post, with its errno.
    PostRefused(i32),
    /// The connection manager gave up.
    Unreachable,
    /// The device went away.
    DeviceRemoved,
    /// An asynchronous event said that the QP or device is lost.
    DeviceError,
    /// The engine stops.
    Shutdown,
    /// The peer does not keep to framed mode.
    Protocol(Violation),
    /// With shared receives: the peer sent more, before this side knew that the connection is up, than is
    /// kept for it.
    EarlyFlood,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("closed by this side"),
            Self::Peer => f.write_str("the peer disconnected, or its process ended"),
            Self::Failed(status) => write!(f, "an operation failed: {status}; {}", status.advice()),
            Self::PostRefused(errno) => {
                let error = std::io::Error::from_raw_os_error(*errno);
                write!(f, "the provider refused a post: {error}")
            }
            Self::Unreachable => f.write_str("the peer became unreachable"),
            Self::DeviceRemoved => f.write_str("the device was removed"),
            Self::DeviceError => f.write_str("the device reported a fatal error of the queue pair"),
            Self::Shutdown => f.write_str("the engine stops"),
            Self::Protocol(violation) => {
                write!(f, "the peer does not keep to framed mode: {violation}")
            }
            Self::EarlyFlood => f.write_str(
                "the peer sent more before the handshake was done here than one connection may keep \
                 of the shared receives: raise [queues] shared_recv_depth, set receives = \"own\", or \
                 have the peer wait for a first message",
            ),
        }
    }
}

/// Whether a turn found something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It did; take the next one at once.
    Busy,
    /// It did not; the idle policy may apply.
    Idle,
}

/// An embedder's protocol on one worker. Handlers run on the worker's core and delay everything
/// else there, so they do not block.
pub trait Service {
    /// A connection is up.
    fn connected(&mut self, io: &mut Io<'_>, conn: ConnId, peer: &Peer) {
        let _ = (io, conn, peer);
    }
    /// A message came in.
    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message);
    /// An operation of this service is over.
    fn completed(&mut self, io: &mut Io<'_>, conn: ConnId, completed: Completed) {
        let _ = (io, conn, completed);
    }
    /// A connection ended; nothing names it afterwards.
    fn disconnected(&mut self, io: &mut Io<'_>, conn: ConnId, reason: CloseReason) {
        let _ = (io, conn, reason);
    }
    /// Called every turn, to poll devices of the service's own.
    fn turn(&mut self, io: &mut Io<'_>) -> Turn {
        let _ = io;
        Turn::Idle
    }
}
