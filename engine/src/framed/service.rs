//! What an embedder writes in framed mode: a [`Service`] of requests, replies and messages.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::{
    Chunk, Frame, FramedIo, Incoming, LargeReceived, LargeSent, Payload, RegionId, RegionOffer,
    unserved,
};
use crate::memory;
use crate::wire::Kind;
use crate::worker::{CloseReason, ConnId, Outcome, Peer, Token, Turn};

/// Pairs a reply with its request. Whoever asks chooses it; nobody else looks at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// What an operation was, with its buffer.
#[derive(Debug)]
pub enum Operation {
    /// A request, reply or message.
    Sent(Frame),
    /// A WRITE to the peer's memory.
    Written(memory::Payload),
    /// A READ of the peer's memory. The bytes are here if the outcome is done.
    Read(memory::Payload),
    /// A CAS or FAA on the peer's memory, with what was there if the outcome is done.
    Atomic(Option<u64>),
}

/// An operation of the service is over: its buffer is the service's again.
#[derive(Debug)]
#[must_use = "dropping it gives the buffer back to the pool"]
pub struct Completed {
    /// The service's word for it.
    pub token: Token,
    /// How it ended. Of a frame that is done, the peer's NIC has it; only a reply says that the
    /// peer's service had it.
    pub outcome: Outcome,
    /// What it was.
    pub operation: Operation,
}

/// An embedder's protocol on one worker. Handlers run on the worker's core and delay everything else
/// there, so they do not block.
///
/// `connected` comes first and once, `disconnected` last and once; every token given to a send comes
/// back in exactly one `completed` between them. Requests, replies and messages of one connection
/// come in the order in which they were sent.
///
/// A large message has calls of its own: one `large_sent` for each that was sent, one `large_done` for
/// each that was accepted, before `disconnected` too.
///
/// A peer that sends what the service has no handler for is disconnected, since it would wait for
/// ever: [`Violation::Unserved`](crate::worker::Violation::Unserved).
pub trait Service {
    /// A connection is up. The side that connected may send at once. The other is refused with
    /// `WouldBlock` until the first word of its peer is here, which framed mode sees to: iWARP wants
    /// it so.
    fn connected(&mut self, io: &mut FramedIo<'_>, conn: ConnId, peer: &Peer) {
        let _ = (io, conn, peer);
    }
    /// The peer asks, and waits for [`FramedIo::reply`] with this id, now or later.
    fn request(&mut self, io: &mut FramedIo<'_>, conn: ConnId, id: RequestId, question: Payload) {
        let _ = (id, question);
        unserved(io, conn, Kind::Request);
    }
    /// The peer answers. The id is what the peer says it is: look it up before trusting it.
    fn reply(&mut self, io: &mut FramedIo<'_>, conn: ConnId, id: RequestId, answer: Payload) {
        let _ = (id, answer);
        unserved(io, conn, Kind::Reply);
    }
    /// A message came that asks for no answer.
    fn message(&mut self, io: &mut FramedIo<'_>, conn: ConnId, message: Payload) {
        let _ = message;
        unserved(io, conn, Kind::Message);
    }
    /// An operation of this service is over.
    fn completed(&mut self, io: &mut FramedIo<'_>, conn: ConnId, completed: Completed) {
        let _ = (io, conn, completed);
    }
    /// What was refused with `WouldBlock` may be tried again. Called once for all that was refused
    /// since the last call: on the next refusal it is owed again.
    fn writable(&mut self, io: &mut FramedIo<'_>, conn: ConnId) {
        let _ = (io, conn);
    }
    /// The peer offers memory of its own for READs and WRITEs of this side. What has the id of an
    /// earlier offer replaces it.
    fn offered(&mut self, io: &mut FramedIo<'_>, conn: ConnId, offer: &RegionOffer) {
        let _ = (io, conn, offer);
    }
    /// The peer takes an offer back: to use its region from here on may end the connection.
    fn withdrawn(&mut self, io: &mut FramedIo<'_>, conn: ConnId, id: RegionId) {
        let _ = (io, conn, id);
    }
    /// The peer offers a message larger than a buffer. It waits, with all its bytes at the peer, until
    /// [`FramedIo::accept_large`], [`FramedIo::accept_large_in_chunks`] or [`FramedIo::refuse_large`]
    /// is called, now or later; the peer has a deadline. A service without this handler refuses.
    fn large(&mut self, io: &mut FramedIo<'_>, conn: ConnId, incoming: Incoming) {
        io.refuse_large(conn, incoming.id);
    }
    /// The next part of a message that was accepted in chunks.
    fn large_chunk(&mut self, io: &mut FramedIo<'_>, conn: ConnId, chunk: Chunk) {
        let _ = (io, conn, chunk);
    }
    /// A large message that this side accepted is over.
    fn large_done(&mut self, io: &mut FramedIo<'_>, conn: ConnId, received: LargeReceived) {
        let _ = (io, conn, received);
    }
    /// A large message that this side sent is over.
    fn large_sent(&mut self, io: &mut FramedIo<'_>, conn: ConnId, sent: LargeSent) {
        let _ = (io, conn, sent);
    }
    /// A connection ended; nothing names it afterwards.
    fn disconnected(&mut self, io: &mut FramedIo<'_>, conn: ConnId, reason: CloseReason) {
        let _ = (io, conn, reason);
    }
    /// Called every turn, to poll devices of the service's own.
    fn turn(&mut self, io: &mut FramedIo<'_>) -> Turn {
        let _ = io;
        Turn::Idle
    }
}
