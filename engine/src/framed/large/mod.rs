//! Messages larger than a buffer: the receiver READs them from the sender's memory.
//!
//! ```text
//!   sender                                                   receiver
//!   send_large(span) ── Large: addr, len, rkey, id, tag ──►  large ─► accept_large(into a span)
//!     │ the span stays in `Outgoing`  ◄──── READs ────────              accept_large_in_chunks
//!     ▼                                                                 refuse_large
//!   large_sent(span) ◄─────── Finish: id, status ──────────  large_done
//! ```
//! **Memory.** The sender's span lies here until the receiver finishes the message, the connection has
//! ended, or the process has: it cannot be unregistered under the peer's READs. A message that is not
//! finished by its deadline ends the connection, since the peer may READ for as long as that lives; the
//! span comes back when the queue pair is gone. Nothing is allocated for a message: the tables come with
//! the connection, chunks are buffers of the pool, and a region is the service's.
//!
//! **Order.** `large` is called in order with the other messages. What was accepted is READ in the order
//! of acceptance, one message behind the other, and so it is done in that order; a message that is
//! paused is passed over. Frames sent after a READ was posted may have to wait for it (on iWARP they do).
//!
//! **A hostile peer** reaches what its NIC can reach anyway. Lengths, ids and counts are checked before
//! they are used; a READ that its memory does not allow fails and ends the connection; a message that it
//! never finishes ends it at the deadline.
//!
//! Imports worker, wire, memory and the rest of framed. Imported by framed.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod conns;
mod hands;
mod incoming;
mod outgoing;
mod pump;

pub use hands::{AcceptError, LargeRefused, LargeSendError, SinkRefused};

use super::conn::Arrival;
use crate::limits::{LARGE_DEADLINE_DEFAULT, LARGE_READ_BYTES_DEFAULT};
use crate::memory::{Buffer, MemorySpan};
use crate::wire::{Features, Finish, FinishStatus, HeaderError, Kind, LargeId, LargeOffer};
use crate::worker::{Token, Violation};
use incoming::{Incomings, ReadDone};
use outgoing::Outgoing;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

/// A large message that the peer offers. It waits until the service accepts or refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Its name on this connection.
    pub id: LargeId,
    /// Bytes; 1 to [`LARGE_BYTES_MAX`](crate::limits::LARGE_BYTES_MAX).
    pub len_bytes: u32,
    /// What the peer's service says of it.
    pub tag: u64,
}

impl From<&LargeOffer> for Incoming {
    fn from(offer: &LargeOffer) -> Self {
        Self {
            id: offer.id(),
            len_bytes: offer.len_bytes(),
            tag: offer.tag(),
        }
    }
}

/// A part of a large message that was accepted in chunks. It derefs to the bytes; dropping it gives the
/// buffer back to the pool, from which the next READs take theirs.
#[must_use = "dropping a chunk gives its slot back"]
pub struct Chunk {
    buffer: Buffer,
    /// Which message.
    pub id: LargeId,
    /// Where in the message the first byte is. Chunks come in order, without gaps.
    pub offset: u32,
    /// It ends the message.
    pub is_last: bool,
}

impl Chunk {
    pub(super) fn new(buffer: Buffer, token: Token, done: ReadDone) -> Self {
        Self {
            buffer,
            id: pump::id_of(token),
            offset: done.offset,
            is_last: done.is_last,
        }
    }

    /// The buffer, to keep or to send on. Its length is the chunk's.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

impl Deref for Chunk {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

/// Without the contents, which may be secret and long.
impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, len, offset) = (self.id, self.len(), self.offset);
        write!(f, "Chunk({len} B at {offset} of {id:?})")
    }
}

/// How a large message ended for the side that sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LargeOutcome {
    /// The peer says that it has read every byte. It is the peer's word, as a reply would be.
    Done,
    /// The peer's service does not want it, or not the rest of it.
    Refused,
    /// The connection ended before its offer was posted: the peer has read nothing.
    NeverPosted,
    /// The connection ended first: the peer may have read any part of it, or all.
    Unknown,
}

impl From<FinishStatus> for LargeOutcome {
    fn from(status: FinishStatus) -> Self {
        match status {
            FinishStatus::Done => Self::Done,
            FinishStatus::Refused => Self::Refused,
        }
    }
}

/// A large message of this side is over: its memory is the service's again. An honest peer reads no more
/// of it; a key of the memory stays valid for as long as the memory is exposed.
#[derive(Debug)]
pub struct LargeSent {
    /// The service's word for it.
    pub token: Token,
    /// How it ended.
    pub outcome: LargeOutcome,
    /// The message.
    pub span: MemorySpan,
}

/// How a large message ended for the side that accepted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveOutcome {
    /// Every byte is here.
    Done,
    /// This side refused the rest of it.
    Refused,
    /// The connection ended first: some of it is here, in no order.
    Lost,
}

/// A large message that this side accepted is over: no READ writes to its memory any more.
#[derive(Debug)]
pub struct LargeReceived {
    /// What it was.
    pub incoming: Incoming,
    /// How it ended.
    pub outcome: ReceiveOutcome,
    /// The memory that it was read into, as given to `accept_large`; `None` where it came in chunks.
    pub span: Option<MemorySpan>,
}

/// What a service has to say about large messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// A message is to be finished within this time.
    pub(super) deadline: Duration,
    /// A READ is no longer than this.
    pub(super) read_bytes_max: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            deadline: LARGE_DEADLINE_DEFAULT,
            read_bytes_max: LARGE_READ_BYTES_DEFAULT,
        }
    }
}

/// The large messages of one connection, both ways. Taken when it comes up.
#[derive(Debug)]
pub(super) struct Large {
    /// The peer knows of large messages.
    pub(super) spoken: bool,
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Incomings,
    /// One was refused because the table was full: `writable` is owed when one is finished.
    pub(super) waits: bool,
}

impl Large {
    /// For a peer of these features.
    pub(super) fn new(common: Features) -> Self {
        Self {
            spoken: common.contains(Features::LARGE),
            outgoing: Outgoing::default(),
            incoming: Incomings::default(),
            waits: false,
        }
    }

    /// Takes in an offer or an end.
    #[cold]
    pub(super) fn hear(&mut self, kind: Kind, payload: &[u8]) -> Result<Arrival, Violation> {
        if !self.spoken {
            return Err(HeaderError::Kind(kind.byte()).into());
        }
        if kind == Kind::Large {
            let offer = LargeOffer::parse(payload)?;
            return self.incoming.hear(offer).map(Arrival::Large);
        }
        let finish = Finish::parse(payload)?;
        if !self.outgoing.has(finish.id) {
            return Err(Violation::LargeUnknown(finish.id));
        }
        Ok(Arrival::Finish(finish))
    }
}
