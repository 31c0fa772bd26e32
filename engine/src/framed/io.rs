//! What a handler can do in framed mode. The only way to post there.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::conn::{Label, Use};
use super::conns::Conns;
use super::{Frame, RegionId, RegionOffer, RequestId};
use crate::memory::{Buffer, Exhausted, ExposedMemory, Postable};
use crate::types::{CoreId, Nanos, RemoteRegion};
use crate::wire::Kind;
use crate::worker::{CloseReason, ConnId, Io, PostError, Rejected, Token, Violation};

/// Why a frame was not taken. One variant for each decision that a caller can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The peer has no receive for it, or has not spoken first, or the send queue is full: try again
    /// when [`writable`](super::Service::writable) says so.
    #[error("the peer is not ready to receive, or the send queue is full")]
    WouldBlock,
    /// The connection is closing or gone.
    #[error("the connection is closed")]
    NotConnected,
    /// The peer takes no frame so long, or the device sends none.
    #[error("the frame is longer than the peer takes")]
    TooLong,
}

/// The frame was not sent; here it is back.
#[derive(Debug)]
pub struct Refused {
    /// The frame, its payload as it was.
    pub frame: Frame,
    /// Why.
    pub reason: SendError,
}

/// Why an offer, or its withdrawal, was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfferRefused {
    /// As [`SendError::WouldBlock`].
    #[error("the peer is not ready to receive, or the send queue is full")]
    WouldBlock,
    /// The connection is closing or gone, or its device is.
    #[error("the connection is closed")]
    NotConnected,
    /// The pool has no buffer for it: try again when some came back.
    #[error("every slot of the pool is in use")]
    NoBuffer,
    /// The memory gives peers no right: expose it for remote access.
    #[error("the memory was exposed without a right for peers")]
    NoRight,
}

/// A handler's hands.
#[derive(Debug)]
pub struct FramedIo<'a> {
    pub(super) io: Io<'a>,
    pub(super) conns: &'a mut Conns,
}

impl<'a> FramedIo<'a> {
    #[inline]
    pub(super) fn new(io: Io<'a>, conns: &'a mut Conns) -> Self {
        Self { io, conns }
    }

    /// An empty frame in a buffer from the worker's pool.
    ///
    /// # Errors
    /// Every slot is in use; the counter `pool_exhausted` says how often.
    #[inline]
    pub fn frame(&mut self) -> Result<Frame, Exhausted> {
        self.io.alloc().map(Frame::new)
    }

    /// A plain buffer from the worker's pool, for [`read`](Self::read) and [`write`](Self::write).
    ///
    /// # Errors
    /// Every slot is in use; the counter `pool_exhausted` says how often.
    #[inline]
    pub fn alloc(&mut self) -> Result<Buffer, Exhausted> {
        self.io.alloc()
    }

    /// Asks the peer. Its answer comes to [`reply`](super::Service::reply) with the same `id`; the
    /// frame comes back in `completed`, with `token`.
    ///
    /// # Errors
    /// Nothing was sent; the frame comes back here.
    #[inline]
    pub fn request(
        &mut self,
        conn: ConnId,
        question: Frame,
        id: RequestId,
        token: Token,
    ) -> Result<(), Refused> {
        self.send(conn, question, Kind::Request, id.0, token)
    }

    /// Answers the peer's request of this `id`. The frame comes back in `completed`, with `token`.
    ///
    /// # Errors
    /// Nothing was sent; the frame comes back here.
    #[inline]
    pub fn reply(
        &mut self,
        conn: ConnId,
        id: RequestId,
        answer: Frame,
        token: Token,
    ) -> Result<(), Refused> {
        self.send(conn, answer, Kind::Reply, id.0, token)
    }

    /// Sends what asks for no answer. The frame comes back in `completed`, with `token`.
    ///
    /// # Errors
    /// Nothing was sent; the frame comes back here.
    #[inline]
    pub fn message(&mut self, conn: ConnId, message: Frame, token: Token) -> Result<(), Refused> {
        self.send(conn, message, Kind::Message, 0, token)
    }

    #[inline]
    fn send(
        &mut self,
        conn: ConnId,
        frame: Frame,
        kind: Kind,
        request_id: u64,
        token: Token,
    ) -> Result<(), Refused> {
        let label = Label { kind, request_id };
        self.conns.push(&mut self.io, conn, frame, label, token)
    }

    /// Offers the peer memory, for READs and WRITEs of its own as the memory's access says. `id` names
    /// the offer from here on, `kind` tells the peer's service what it is. The connection must allow
    /// the access too: [`Offer::access`](crate::control::Offer::access).
    ///
    /// # Errors
    /// The peer did not hear of it.
    pub fn offer(
        &mut self,
        conn: ConnId,
        memory: &ExposedMemory,
        id: RegionId,
        kind: u16,
    ) -> Result<(), OfferRefused> {
        let region = self.io.exposed(conn, memory);
        let region = region.ok_or(OfferRefused::NotConnected)?;
        let (addr, len, rkey) = (region.addr(), region.len(), region.rkey());
        let offer = RegionOffer::new(id, addr, len, rkey, region.access(), kind);
        let offer = offer.map_err(|_| OfferRefused::NoRight)?;
        self.control(conn, Kind::Offer, &offer.encode())
    }

    /// Takes an offer back. The peer may still use the region until it has heard: a reply of its own
    /// can say so. To end its access at once, drop the memory.
    ///
    /// # Errors
    /// The peer did not hear of it.
    pub fn withdraw(&mut self, conn: ConnId, id: RegionId) -> Result<(), OfferRefused> {
        self.control(conn, Kind::Withdraw, &id.encode())
    }

    /// Sends a frame that the service hears no more of.
    fn control(&mut self, conn: ConnId, kind: Kind, payload: &[u8]) -> Result<(), OfferRefused> {
        let mut frame = self.frame().map_err(|_| OfferRefused::NoBuffer)?;
        let copied = frame.copy_from(payload);
        debug_assert!(copied.is_ok(), "control frames fit the least slot");
        let (label, token) = (Label::of(kind), Token::default());
        let pushed = self.conns.push(&mut self.io, conn, frame, label, token);
        pushed.map_err(|refused| match refused.reason {
            SendError::WouldBlock => OfferRefused::WouldBlock,
            // Every hello promises room for an offer.
            SendError::NotConnected | SendError::TooLong => OfferRefused::NotConnected,
        })
    }

    /// As [`Io::write`]. It needs no receive of the peer's, but leaves the send queue's last place.
    ///
    /// # Errors
    /// Nothing was written; the payload comes back here.
    #[inline]
    pub fn write<P: Postable>(
        &mut self,
        conn: ConnId,
        payload: P,
        region: &RemoteRegion,
        offset: u64,
        token: Token,
    ) -> Result<(), Rejected<P>> {
        match self.one_sided(conn, Use::Write) {
            Ok(mut io) => io.write(conn, payload, region, offset, token),
            Err(reason) => Err(Rejected { payload, reason }),
        }
    }

    /// As [`Io::read`]. It needs no receive of the peer's, but leaves the send queue's last place.
    ///
    /// # Errors
    /// Nothing was read; the payload comes back here.
    #[inline]
    pub fn read<P: Postable>(
        &mut self,
        conn: ConnId,
        payload: P,
        region: &RemoteRegion,
        offset: u64,
        token: Token,
    ) -> Result<(), Rejected<P>> {
        match self.one_sided(conn, Use::Read) {
            Ok(mut io) => io.read(conn, payload, region, offset, token),
            Err(reason) => Err(Rejected { payload, reason }),
        }
    }

    /// As [`Io::compare_swap`]; [`Operation::Atomic`](super::Operation) has what was there.
    ///
    /// # Errors
    /// Nothing was posted.
    pub fn compare_swap(
        &mut self,
        conn: ConnId,
        region: &RemoteRegion,
        offset: u64,
        expect: u64,
        swap: u64,
        token: Token,
    ) -> Result<(), PostError> {
        let mut io = self.one_sided(conn, Use::Atomic)?;
        io.compare_swap(conn, region, offset, expect, swap, token)
    }

    /// As [`Io::fetch_add`]; [`Operation::Atomic`](super::Operation) has what was there.
    ///
    /// # Errors
    /// Nothing was posted.
    pub fn fetch_add(
        &mut self,
        conn: ConnId,
        region: &RemoteRegion,
        offset: u64,
        add: u64,
        token: Token,
    ) -> Result<(), PostError> {
        let mut io = self.one_sided(conn, Use::Atomic)?;
        io.fetch_add(conn, region, offset, add, token)
    }

    /// Hands for an operation that needs no receive of the peer's.
    #[inline]
    fn one_sided(&mut self, conn: ConnId, whose: Use) -> Result<Io<'_>, PostError> {
        if !self.conns.has_room(&mut self.io, conn) {
            self.io.count_would_block();
            return Err(PostError::WouldBlock);
        }
        Ok(self.io.marked(whose.mark()))
    }

    /// Frames that would be taken now, as far as the peer and the send queue go; 0 when the
    /// connection is closed.
    #[must_use]
    pub fn room(&mut self, conn: ConnId) -> u32 {
        let standing = self.conns.standing(&mut self.io, conn);
        standing.map_or(0, |(c, standing)| c.room(standing))
    }

    /// Operations of the connection that have not come back, framed mode's own credits among them; 0
    /// when it is closed.
    #[inline]
    #[must_use]
    pub fn outstanding(&mut self, conn: ConnId) -> u32 {
        self.io.outstanding(conn)
    }

    /// As [`Io::message_bytes_max`].
    #[must_use]
    pub fn message_bytes_max(&mut self, conn: ConnId) -> u32 {
        self.io.message_bytes_max(conn)
    }

    /// Closes the connection once what was sent so far has completed, or the drain deadline is over.
    /// Large messages are not waited for. Does nothing if it is closing or gone.
    pub fn close(&mut self, conn: ConnId) {
        self.io.close(conn);
    }

    /// The peer did what framed mode does not allow. Nothing more is heard of it.
    #[cold]
    pub(super) fn condemn(&mut self, conn: ConnId, violation: Violation) {
        tracing::warn!(%conn, %violation, "the peer does not keep to framed mode: closing");
        self.conns.condemn(conn);
        self.io.close_for(conn, CloseReason::Protocol(violation));
    }

    /// When this turn began.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.io.now()
    }

    /// Bytes of a buffer of this worker's pool.
    #[must_use]
    pub fn buffer_bytes(&self) -> u32 {
        self.io.buffer_bytes()
    }

    /// Number of this worker.
    #[must_use]
    pub fn worker(&self) -> u16 {
        self.io.worker()
    }

    /// Core that this worker is pinned to.
    #[must_use]
    pub fn core(&self) -> Option<CoreId> {
        self.io.core()
    }
}
