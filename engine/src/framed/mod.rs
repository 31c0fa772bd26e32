//! Framed mode: a [`worker::Service`] that speaks the wire format, and calls
//! a service of requests, replies and messages.
//!
//! ```text
//!            worker::Service                               framed::Service
//!  Worker ─── message ────► parse the header ─────────────► request, reply, message
//!                           credits ─► Window               offered, withdrawn, large
//!         ─── completed ──► whose was it? ────────────────► completed
//!         ─── turn ───────► service, then those awake: ───► writable
//!                           credits alone, where due
//!  Io ◄── one frame ─────── FramedIo: room, credits, header ◄── request, reply, message, offer
//! ```
//! A frame leaves only while the peer has a receive for it ([`flow`](crate::flow)), so a slow peer is
//! waited for here, and never met as RNR on the wire. Credits ride on every frame; they go alone
//! only where the peer could run out and nothing else goes its way. Nothing of it is heard by the
//! service.
//!
//! The side that connected speaks first, since iWARP wants it so: until its first word is here, which
//! framed mode sees to, the other side's sends are refused with `WouldBlock`.
//!
//! Both sides must agree on framed mode in the handshake: take
//! [`Offer::framed`](crate::control::Offer::framed) for `connect` and `listen_with`.
//!
//! ```no_run
//! use spinwire::framed::{Framed, FramedIo, Payload, RequestId, Service};
//! use spinwire::worker::{ConnId, Token};
//!
//! /// Answers each request with what was asked.
//! struct Echo;
//!
//! impl Service for Echo {
//!     fn request(&mut self, io: &mut FramedIo<'_>, conn: ConnId, id: RequestId, question: Payload) {
//!         // In the buffer that it came in. A real service keeps what is refused until `writable`.
//!         if let Err(refused) = io.reply(conn, id, question.into_frame(), Token::default()) {
//!             eprintln!("{conn}: {}", refused.reason);
//!         }
//!     }
//! }
//! # fn start(plan: spinwire::config::Plan) -> Result<(), Box<dyn std::error::Error>> {
//! let engine = spinwire::Engine::start(&plan, |_| Framed::new(Echo))?;
//! engine.listen_with(&"rdma://0.0.0.0:7471".parse()?, spinwire::control::Offer::framed())?;
//! # Ok(())
//! # }
//! ```
//!
//! What a connection needs here: a send queue of at least two, one place of which is kept for
//! credits; and one slot of the pool beside its receives and the service's buffers, kept for the
//! same use.
//!
//! Imports worker, flow, wire, memory. Imported by programs. A turn allocates nothing: memory is taken
//! when a connection comes up.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod conn;
mod conns;
mod frame;
mod io;
mod large;
mod service;
#[cfg(all(test, not(loom)))]
mod tests;

pub use crate::wire::{LargeId, RegionId, RegionOffer};
pub use frame::{Frame, Payload};
pub use io::{FramedIo, OfferRefused, Refused, SendError};
pub use large::{
    AcceptError, Chunk, Incoming, LargeOutcome, LargeReceived, LargeRefused, LargeSendError,
    LargeSent, ReceiveOutcome, SinkRefused,
};
pub use service::{Completed, Operation, RequestId, Service};

use crate::memory::{self, Postable};
use crate::worker::{self, CloseReason, ConnId, Io, Message, Outcome, Peer, Turn, Violation};
use conn::{Arrival, Conn, Use};
use conns::Conns;
use std::num::NonZeroU32;
use std::time::Duration;

/// A framed service as the worker takes it.
#[derive(Debug)]
pub struct Framed<S> {
    service: S,
    conns: Conns,
}

impl<S: Service> Framed<S> {
    /// Wraps a service.
    pub fn new(service: S) -> Self {
        Self {
            service,
            conns: Conns::default(),
        }
    }

    /// The same; a large message that its peer does not finish within `deadline` ends the connection.
    /// [`LARGE_DEADLINE_DEFAULT`](crate::limits::LARGE_DEADLINE_DEFAULT) if nothing is said.
    #[must_use]
    pub fn large_deadline(mut self, deadline: Duration) -> Self {
        self.conns.options().deadline = deadline;
        self
    }

    /// The same; a READ of a large message asks for `bytes` at most, and for no more than the device
    /// takes in one. [`LARGE_READ_BYTES_DEFAULT`](crate::limits::LARGE_READ_BYTES_DEFAULT) if nothing is
    /// said.
    #[must_use]
    pub fn large_read_bytes(mut self, bytes: NonZeroU32) -> Self {
        self.conns.options().read_bytes_max = bytes.get();
        self
    }

    /// The service, for a caller that owns the worker.
    pub fn service(&mut self) -> &mut S {
        &mut self.service
    }

    /// Gives a message to the handler that it is for.
    #[inline]
    fn dispatch(&mut self, io: &mut Io<'_>, conn: ConnId, arrival: Arrival, message: Message) {
        let io = &mut FramedIo::new(io.reborrow(), &mut self.conns);
        let payload = Payload::new(message.into_buffer());
        match arrival {
            Arrival::Request(id) => self.service.request(io, conn, id, payload),
            Arrival::Reply(id) => self.service.reply(io, conn, id, payload),
            Arrival::Message => self.service.message(io, conn, payload),
            Arrival::Credits => {}
            Arrival::Offer(offer) => {
                drop(payload);
                self.service.offered(io, conn, &offer);
            }
            Arrival::Withdraw(id) => {
                drop(payload);
                self.service.withdrawn(io, conn, id);
            }
            Arrival::Large(incoming) => {
                drop(payload);
                self.service.large(io, conn, incoming);
            }
            Arrival::Finish(finish) => {
                drop(payload);
                if let Some(sent) = io.conns.take_sent(conn, finish) {
                    self.service.large_sent(io, conn, sent);
                }
            }
        }
    }

    /// Does what a connection is awake for. Says whether anything was done, and whether the
    /// connection is to be looked at again.
    #[inline]
    fn attend(&mut self, io: &mut Io<'_>, conn: ConnId) -> (bool, bool) {
        let Some((c, standing)) = self.conns.standing(io, conn) else {
            // Closing or gone: nothing can be sent any more, and the service will hear of that.
            return (false, false);
        };
        let writable = c.take_writable(standing);
        if writable {
            // First, since what the service sends now carries the credits.
            let io = &mut FramedIo::new(io.reborrow(), &mut self.conns);
            self.service.writable(io, conn);
        }
        let large = self.conns.is_large_due(conn) && self.attend_large(io, conn);
        let told = self.conns.tell_alone(io, conn);
        (writable || large || told, self.conns.stays_awake(conn))
    }

    /// Tells the service of large messages that it has, then posts what the others need.
    fn attend_large(&mut self, io: &mut Io<'_>, conn: ConnId) -> bool {
        let mut ended = false;
        while let Some(received) = self.conns.take_ended(conn) {
            ended = true;
            let io = &mut FramedIo::new(io.reborrow(), &mut self.conns);
            self.service.large_done(io, conn, received);
        }
        self.conns.pump(io, conn) || ended
    }

    /// A READ of a large message is over. One that failed ends the connection, and the message then.
    fn large_read(&mut self, io: &mut Io<'_>, conn: ConnId, completed: worker::Completed) {
        if completed.outcome != Outcome::Done {
            return;
        }
        let (token, payload) = (completed.token, completed.payload);
        let Some(done) = self.conns.read_done(conn, token, payload.len_bytes()) else {
            debug_assert!(false, "a READ of a message that nobody has accepted");
            return;
        };
        if let (Some(buffer), true) = (payload.into_buffer(), done.wanted) {
            let chunk = Chunk::new(buffer, token, done);
            let io = &mut FramedIo::new(io.reborrow(), &mut self.conns);
            self.service.large_chunk(io, conn, chunk);
        }
    }

    /// Ends connections whose peers have not finished a large message in time.
    #[cold]
    fn end_late(&mut self, io: &mut Io<'_>) {
        while let Some((conn, id)) = self.conns.find_late(io.now()) {
            let late = Violation::LargeLate(id);
            FramedIo::new(io.reborrow(), &mut self.conns).condemn(conn, late);
        }
    }
}

impl<S: Service> worker::Service for Framed<S> {
    fn connected(&mut self, io: &mut Io<'_>, conn: ConnId, peer: &Peer) {
        match Conn::new(io, conn, peer) {
            Ok(new) => {
                self.conns.insert(new);
                let io = &mut FramedIo::new(io.reborrow(), &mut self.conns);
                self.service.connected(io, conn, peer);
            }
            Err(unfit) => {
                tracing::error!(%conn, "a framed service cannot take this connection: {unfit}");
                io.close(conn);
            }
        }
    }

    #[inline]
    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        let arrival = match self.conns.hear(conn, &message) {
            Some(Ok(arrival)) => arrival,
            Some(Err(violation)) => {
                return FramedIo::new(io.reborrow(), &mut self.conns).condemn(conn, violation);
            }
            // It was never taken, or is condemned.
            None => return,
        };
        if arrival == Arrival::Credits {
            self.conns.restock(conn, message.into_buffer());
        } else {
            self.dispatch(io, conn, arrival, message);
        }
        self.conns.restock_from_pool(io, conn);
    }

    #[inline]
    fn completed(&mut self, io: &mut Io<'_>, conn: ConnId, completed: worker::Completed) {
        self.conns.room_came(conn);
        if completed.mark == Use::LargeRead.mark() {
            return self.large_read(io, conn, completed);
        }
        let (token, outcome) = (completed.token, completed.outcome);
        let old = completed.old_value();
        let payload = completed.payload;
        let operation = match (Use::marked(completed.mark), payload) {
            (Some(Use::Frame), memory::Payload::Buffer(buffer)) => {
                Operation::Sent(Frame::again(buffer))
            }
            (Some(Use::Internal), memory::Payload::Buffer(buffer)) => {
                return self.conns.restock(conn, buffer);
            }
            (Some(Use::LargeOffer), memory::Payload::Buffer(buffer)) => {
                if outcome == Outcome::NeverPosted {
                    self.conns.note_never_posted(conn, token);
                }
                return self.conns.restock(conn, buffer);
            }
            (Some(Use::Write), payload) => Operation::Written(payload),
            (Some(Use::Read), payload) => Operation::Read(payload),
            (Some(Use::Atomic), _) => Operation::Atomic(old),
            (Some(Use::Frame | Use::Internal | Use::LargeOffer | Use::LargeRead) | None, _) => {
                debug_assert!(false, "a completion of what was never posted");
                return;
            }
        };
        let completed = Completed {
            token,
            outcome,
            operation,
        };
        let io = &mut FramedIo::new(io.reborrow(), &mut self.conns);
        self.service.completed(io, conn, completed);
    }

    fn disconnected(&mut self, io: &mut Io<'_>, conn: ConnId, reason: CloseReason) {
        if let Some(mut large) = self.conns.remove(conn) {
            let io = &mut FramedIo::new(io.reborrow(), &mut self.conns);
            while let Some(sent) = large.take_unfinished() {
                self.service.large_sent(io, conn, sent);
            }
            while let Some(received) = large.take_lost() {
                self.service.large_done(io, conn, received);
            }
            self.service.disconnected(io, conn, reason);
        }
    }

    #[inline]
    fn turn(&mut self, io: &mut Io<'_>) -> Turn {
        let mut turn = {
            let io = &mut FramedIo::new(io.reborrow(), &mut self.conns);
            self.service.turn(io)
        };
        if io.now() >= self.conns.next_deadline() {
            self.end_late(io);
        }
        let mut i = 0;
        while let Some(conn) = self.conns.awake(i) {
            let (worked, stays) = self.attend(io, conn);
            if worked {
                turn = Turn::Busy;
            }
            if stays {
                i += 1;
            } else {
                self.conns.put_to_rest(i);
            }
        }
        turn
    }
}

/// What a service that has no handler for a kind does with it.
#[cold]
fn unserved(io: &mut FramedIo<'_>, conn: ConnId, kind: crate::wire::Kind) {
    io.condemn(conn, Violation::Unserved(kind));
}
