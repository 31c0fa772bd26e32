//! What a handler can do about large messages.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::super::conn::Label;
use super::super::{FramedIo, SendError};
use super::pump::token_of;
use crate::limits::LARGE_BYTES_MAX;
use crate::memory::{MemorySpan, Postable};
use crate::types::Access;
use crate::wire::{Kind, LargeError, LargeId, LargeOffer};
use crate::worker::{ConnId, Token};

/// Why a large message was not sent. One variant for each decision that a caller can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LargeSendError {
    /// As many as may be are unfinished, the peer has no receive for the offer, or the send queue is
    /// full: try again when [`writable`](super::super::Service::writable) says so.
    #[error("as many large messages as may be are under way, or the peer is not ready to receive")]
    WouldBlock,
    /// The connection is closing or gone, or its device is.
    #[error("the connection is closed")]
    NotConnected,
    /// The pool has no buffer for the offer: try again when some came back.
    #[error("every slot of the pool is in use")]
    NoBuffer,
    /// The span has no bytes.
    #[error("a large message needs a byte at least; send an empty frame instead")]
    Empty,
    /// The span is longer than [`LARGE_BYTES_MAX`].
    #[error("a large message has at most {LARGE_BYTES_MAX} B; send it in several")]
    TooLong,
    /// The memory was exposed without [`Access::REMOTE_READ`].
    #[error("the memory does not allow READs of peers: expose it with REMOTE_READ")]
    NotReadable,
    /// The peer's release of spinwire does not know large messages.
    #[error("the peer does not know large messages: run a later release of spinwire there")]
    Unsupported,
}

/// The large message was not sent; here is its memory back.
#[derive(Debug)]
pub struct LargeRefused {
    /// The message.
    pub span: MemorySpan,
    /// Why.
    pub reason: LargeSendError,
}

/// Why a large message was not accepted. It still waits for the service's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcceptError {
    /// No message of this id waits to be accepted.
    #[error("no large message of this id waits to be accepted")]
    NoSuchMessage,
    /// The connection is closing or gone.
    #[error("the connection is closed")]
    NotConnected,
    /// The handshake left no READ to this side.
    #[error(
        "the handshake settled on no READs: raise initiator_depth here or responder_resources there"
    )]
    NoReads,
    /// The memory has fewer bytes than the message.
    #[error("the memory is shorter than the message")]
    SinkTooShort,
    /// The memory was exposed without LOCAL_WRITE; on iWARP it needs REMOTE_WRITE.
    #[error("the memory is not registered for what a READ writes to it")]
    SinkNotWritable,
}

/// The memory was not taken for a large message; here it is back.
#[derive(Debug)]
pub struct SinkRefused {
    /// What it was to be read into.
    pub span: MemorySpan,
    /// Why.
    pub reason: AcceptError,
}

impl FramedIo<'_> {
    /// Sends the bytes of `span` as one message of up to [`LARGE_BYTES_MAX`], which the peer READs from
    /// there. The memory must be exposed with [`Access::REMOTE_READ`], and the connection must allow that
    /// too: [`Offer::access`](crate::control::Offer::access). Its bytes are not to change before the span
    /// comes back in [`large_sent`](super::super::Service::large_sent), with `token`. `tag` is for the
    /// peer's service.
    ///
    /// A peer that does not finish the message within the
    /// [deadline](super::super::Framed::large_deadline) is disconnected, since it could still read.
    ///
    /// # Errors
    /// Nothing was sent; the span comes back here.
    pub fn send_large(
        &mut self,
        conn: ConnId,
        span: MemorySpan,
        tag: u64,
        token: Token,
    ) -> Result<(), LargeRefused> {
        match self.offer_large(conn, &span, tag) {
            Ok(()) => {
                let deadline = self.io.now() + self.conns.options.deadline;
                self.conns.keep_large(conn, token, span, deadline);
                Ok(())
            }
            Err(reason) => Err(LargeRefused { span, reason }),
        }
    }

    fn offer_large(
        &mut self,
        conn: ConnId,
        span: &MemorySpan,
        tag: u64,
    ) -> Result<(), LargeSendError> {
        if !span.memory().access().contains(Access::REMOTE_READ) {
            return Err(LargeSendError::NotReadable);
        }
        let region = self.io.exposed(conn, span.memory());
        let region = region.ok_or(LargeSendError::NotConnected)?;
        let large = self.conns.large(conn);
        let large = large.ok_or(LargeSendError::NotConnected)?;
        if !large.spoken {
            return Err(LargeSendError::Unsupported);
        }
        let Some(id) = large.outgoing.next_id() else {
            large.waits = true;
            self.io.count_would_block();
            return Err(LargeSendError::WouldBlock);
        };
        let addr = region.addr() + span.offset() as u64;
        let offer = LargeOffer::new(id, tag, addr, span.len_bytes(), region.rkey());
        let offer = offer.map_err(|error| match error {
            LargeError::TooLong(_) => LargeSendError::TooLong,
            LargeError::Region { .. }
            | LargeError::Length { .. }
            | LargeError::Reserved(_)
            | LargeError::Status(_) => LargeSendError::Empty,
        })?;
        let mut frame = self.frame().map_err(|_| LargeSendError::NoBuffer)?;
        let copied = frame.copy_from(&offer.encode());
        debug_assert!(copied.is_ok(), "control frames fit the least slot");
        let (label, token) = (Label::of(Kind::Large), token_of(id));
        let pushed = self.conns.push(&mut self.io, conn, frame, label, token);
        pushed.map_err(|refused| match refused.reason {
            SendError::WouldBlock => LargeSendError::WouldBlock,
            // Every hello promises room for an offer.
            SendError::NotConnected | SendError::TooLong => LargeSendError::NotConnected,
        })
    }

    /// Has a large message read into `into`, from its first byte on; the span comes back in
    /// [`large_done`](super::super::Service::large_done). It may be longer than the message. READs must
    /// be allowed to write there: see [`ExposedMemory::is_locally_writable`]; on iWARP the memory needs
    /// [`Access::REMOTE_WRITE`].
    ///
    /// [`ExposedMemory::is_locally_writable`]: crate::memory::ExposedMemory::is_locally_writable
    ///
    /// # Errors
    /// The message still waits; the span comes back here.
    pub fn accept_large(
        &mut self,
        conn: ConnId,
        id: LargeId,
        into: MemorySpan,
    ) -> Result<(), SinkRefused> {
        match self.may_accept(conn, id, Some(&into)) {
            Ok(()) => {
                self.conns.accept_large(conn, id, Some(into));
                Ok(())
            }
            Err(reason) => Err(SinkRefused { span: into, reason }),
        }
    }

    /// Has a large message read piece by piece into buffers of the pool, which come to
    /// [`large_chunk`](super::super::Service::large_chunk) in order. At most
    /// [`LARGE_READS_MAX`](crate::limits::LARGE_READS_MAX) are under way;
    /// [`pause_large`](Self::pause_large) stops them.
    ///
    /// # Errors
    /// The message still waits.
    pub fn accept_large_in_chunks(&mut self, conn: ConnId, id: LargeId) -> Result<(), AcceptError> {
        self.may_accept(conn, id, None)?;
        self.conns.accept_large(conn, id, None);
        Ok(())
    }

    fn may_accept(
        &mut self,
        conn: ConnId,
        id: LargeId,
        into: Option<&MemorySpan>,
    ) -> Result<(), AcceptError> {
        let abilities = self.io.abilities(conn);
        let abilities = abilities.ok_or(AcceptError::NotConnected)?;
        let large = self.conns.large(conn).ok_or(AcceptError::NotConnected)?;
        let len = large.incoming.offered(id)?;
        if self.io.read_depth(conn) == 0 {
            return Err(AcceptError::NoReads);
        }
        if let Some(into) = into {
            if into.len_bytes() < len {
                return Err(AcceptError::SinkTooShort);
            }
            let open = !abilities.read_sink_is_exposed || into.is_exposed();
            if !into.is_writable() || !open {
                return Err(AcceptError::SinkNotWritable);
            }
        }
        Ok(())
    }

    /// Tells the peer that this side does not want a large message, or, if it was accepted, the rest of
    /// it: `large_done` follows then, when no READ is under way any more. Does nothing if there is none
    /// of this id, or its end is on its way.
    pub fn refuse_large(&mut self, conn: ConnId, id: LargeId) {
        self.conns.touch_large(conn, |incoming| incoming.refuse(id));
    }

    /// Stops READs of a large message, for a service that can take no more now. Those that are under
    /// way still come: no more than [`LARGE_READS_MAX`](crate::limits::LARGE_READS_MAX). The messages
    /// accepted after it go on. The sender's deadline runs on too.
    pub fn pause_large(&mut self, conn: ConnId, id: LargeId) {
        self.conns
            .touch_large(conn, |incoming| incoming.pause(id, true));
    }

    /// Takes the READs of a paused message up again.
    pub fn resume_large(&mut self, conn: ConnId, id: LargeId) {
        self.conns
            .touch_large(conn, |incoming| incoming.pause(id, false));
    }
}
