//! What framed mode knows of each connection: its window, what waits for credits or room, what is
//! under way.
//!
//! ```text
//!   message, completed ─► awake: [conn, …] ─► turn: writable? credits alone? ─► awake still, or at rest
//!   push, marked with whose it is ─► completed, with the mark
//! ```
//! A connection is awake for as long as a turn could have to do something for it: it received since
//! the last turn (receives are posted again behind the turn), credits are to be told and could not
//! be, or its peer is short of them. So a turn never looks at connections that are at rest, and a
//! peer is never stopped by one: it has credits, or messages under way that will wake the connection.
//!
//! **When credits go alone.** Rule 3 of [`flow`](crate::flow) wants them told once enough are owed.
//! Here they are told then only if the peer has less than half of our receives left to use (what is
//! under way counted as used later), so that in an exchange of messages they always find one that
//! carries them. The proof there that nothing stands still holds: it looks at a side that has at most
//! one receive left with nothing under way, and that is less than half of four or more.
//!
//! **Who speaks first.** On iWARP it must be the side that connected: what the other sends may arrive
//! together with its answer to the connection request, and is taken for a part of that (SoftiWARP
//! then ends the connection, or never looks at it). So the other side's sends are refused until it has
//! heard a word, and the side that connected says one, credits alone, if its service is silent.
//!
//! What completes is told apart by the mark that the worker keeps with each operation. Tokens are the
//! service's alone, and may all be the same.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::large::{Large, Options};
use super::{Frame, Incoming, Refused, RegionId, RegionOffer, RequestId, SendError};
use crate::flow::Window;
use crate::memory::Buffer;
use crate::types::Nanos;
use crate::wire::{Features, Finish, Header, HeaderError, Hello, HelloError, Kind, POSTED_MIN};
use crate::worker::{ConnId, Io, Peer, PostError, Rejected, Role, Standing, Token, Violation};

/// Places of the send queue that a frame or READ or WRITE of the service needs: its own, and the one
/// that is kept for credits.
const ROOM_FOR_SERVICE: u32 = 2;

/// Whose an operation is, and how its buffer goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Use {
    /// A frame of ours: credits, offers. The service hears nothing of it.
    Internal,
    /// A frame of the service's.
    Frame,
    /// A WRITE of the service's.
    Write,
    /// A READ of the service's.
    Read,
    /// A CAS or FAA of the service's.
    Atomic,
    /// The offer of a large message.
    LargeOffer,
    /// A READ of a large message.
    LargeRead,
}

impl Use {
    /// The mark that the worker gives back.
    #[inline]
    pub(super) fn mark(self) -> u8 {
        self as u8
    }

    /// What a mark says.
    #[inline]
    pub(super) fn marked(mark: u8) -> Option<Self> {
        const ALL: [Use; 7] = [
            Use::Internal,
            Use::Frame,
            Use::Write,
            Use::Read,
            Use::Atomic,
            Use::LargeOffer,
            Use::LargeRead,
        ];
        ALL.get(usize::from(mark)).copied()
    }

    /// Frames are the service's where it has a call for them.
    #[inline]
    fn of(kind: Kind) -> Self {
        match kind {
            Kind::Message | Kind::Request | Kind::Reply => Self::Frame,
            Kind::Credits | Kind::Offer | Kind::Withdraw | Kind::Finish => Self::Internal,
            Kind::Large => Self::LargeOffer,
        }
    }
}

/// A header but for the count of receives, which is put in last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label {
    pub(super) kind: Kind,
    pub(super) request_id: u64,
}

impl Label {
    /// Of a kind that has no use for an id.
    #[inline]
    pub(super) fn of(kind: Kind) -> Self {
        Self {
            kind,
            request_id: 0,
        }
    }
}

/// What a message turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    Credits,
    Message,
    Request(RequestId),
    Reply(RequestId),
    Offer(RegionOffer),
    Withdraw(RegionId),
    Large(Incoming),
    Finish(Finish),
}

/// Why a connection cannot be framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unfit {
    #[error("it is in raw mode; use Offer::framed() for connect and listen_with")]
    Raw,
    #[error("its send queue has one place, and framed mode needs two; raise [queues] send_depth")]
    SendDepth,
    #[error(transparent)]
    Hello(#[from] HelloError),
}

/// One connection.
#[derive(Debug)]
pub(super) struct Conn {
    id: ConnId,
    window: Window,
    /// Messages received, modulo 2^32.
    received: u32,
    /// Half of our receives: while the peer has as many, credits can wait for a message to carry them.
    half: u32,
    /// With fewer than this the peer may be short of them.
    low: u32,
    /// The longest frame that the peer takes, header included.
    frame_bytes_max: u32,
    /// Kept for credits: a pool that is dry cannot keep the peer from hearing of receives.
    spare: Option<Buffer>,
    /// A frame was refused since the last `writable`.
    frame_waits: bool,
    /// A READ or WRITE was: it needs room, but no credits.
    one_sided_waits: bool,
    /// On the list of those awake.
    awake: bool,
    /// It received since the last turn.
    fresh: bool,
    /// Its peer did what is not allowed; nothing more is heard of it.
    condemned: bool,
    /// This side may send. Whoever was connected to first waits for a word of the other side.
    may_speak: bool,
    /// This side connected and has sent nothing yet: the other waits for its word.
    word_owed: bool,
    pub(super) large: Box<Large>,
    /// A turn is to look at its large messages.
    pub(super) large_due: bool,
}

impl Conn {
    /// A connection that was just announced.
    #[cold]
    pub(super) fn new(io: &mut Io<'_>, id: ConnId, peer: &Peer) -> Result<Self, Unfit> {
        let hello = peer.hello.ok_or(Unfit::Raw)?;
        if io.room(id) < ROOM_FOR_SERVICE {
            return Err(Unfit::SendDepth);
        }
        // What was posted when our hello was written is not known here: more may be posted by now, if
        // the pool was dry then. The least that a hello can tell is safe to take for it: the peer is
        // told the rest with the first frame, or once it has sent something.
        let depth = io.recv_depth(id);
        let mine = Hello::new(depth, POSTED_MIN, io.buffer_bytes())?;
        let mut window = Window::new(&mine, &hello);
        window.posted(io.receives_posted(id));
        Ok(Self {
            id,
            window,
            received: 0,
            half: depth / 2,
            low: (depth / 4).max(2),
            frame_bytes_max: hello.message_bytes_max(),
            spare: io.alloc().ok(),
            frame_waits: false,
            one_sided_waits: false,
            awake: false,
            fresh: false,
            condemned: false,
            may_speak: peer.role == Role::Active,
            word_owed: peer.role == Role::Active,
            large: Box::new(Large::new(hello.features().common(Features::OURS))),
            large_due: false,
        })
    }

    /// Frames of the service's that would be taken.
    #[inline]
    pub(super) fn room(&self, standing: Standing) -> u32 {
        if !self.may_speak {
            return 0;
        }
        let queue = standing.room.saturating_sub(ROOM_FOR_SERVICE - 1);
        // The peer's last receive is kept, as the queue's last place is.
        queue.min(self.window.available().saturating_sub(1))
    }

    /// Whether `writable` is due. It counts as called.
    #[inline]
    pub(super) fn take_writable(&mut self, standing: Standing) -> bool {
        let waits = (self.frame_waits && self.window.may_send()) || self.one_sided_waits;
        let writable = waits && self.has_room(standing);
        if writable {
            (self.frame_waits, self.one_sided_waits) = (false, false);
        }
        writable
    }

    /// Whether an operation of the service's may be posted, as far as this side goes.
    #[inline]
    pub(super) fn has_room(&self, standing: Standing) -> bool {
        self.may_speak && standing.room >= ROOM_FOR_SERVICE
    }

    /// Messages that the peer may still send, those under way included, as far as it was told.
    #[inline]
    fn peer_has(&self) -> u32 {
        let has = self.window.told().wrapping_sub(self.received);
        // Before the first telling, less is taken for told than was.
        if has > u32::MAX / 2 { 0 } else { has }
    }

    /// Whether the peer is to be told of receives by a frame of its own.
    #[inline]
    fn is_to_be_told(&self) -> bool {
        self.word_owed || (self.window.credits_due() && self.peer_has() < self.half)
    }

    /// The service waited for something other than room or credits, which came.
    pub(super) fn owe_writable(&mut self) {
        self.one_sided_waits = true;
    }

    pub(super) fn id(&self) -> ConnId {
        self.id
    }

    pub(super) fn is_condemned(&self) -> bool {
        self.condemned
    }

    /// Takes in a message.
    #[inline]
    fn hear(&mut self, frame: &[u8]) -> Result<Arrival, Violation> {
        self.received = self.received.wrapping_add(1);
        let (header, payload) = Header::parse(frame)?;
        self.window.heard(header.posted)?;
        self.may_speak = true;
        let id = RequestId(header.request_id);
        Ok(match header.kind {
            Kind::Credits => Arrival::Credits,
            Kind::Message => Arrival::Message,
            Kind::Request => Arrival::Request(id),
            Kind::Reply => Arrival::Reply(id),
            Kind::Offer => Arrival::Offer(RegionOffer::parse(payload)?),
            Kind::Withdraw => {
                Arrival::Withdraw(RegionId::parse(payload).ok_or(HeaderError::Payload {
                    kind: Kind::Withdraw,
                    must: RegionId::BYTES,
                    seen: payload.len(),
                })?)
            }
            Kind::Large | Kind::Finish => self.large.hear(header.kind, payload)?,
        })
    }
}

/// The connection that `id` names, if it is still there.
#[inline]
fn find(places: &mut [Option<Conn>], id: ConnId) -> Option<&mut Conn> {
    let place = places.get_mut(usize::from(id.index))?;
    place.as_mut().filter(|c| c.id == id)
}

#[inline]
pub(super) fn wake(awake: &mut Vec<ConnId>, c: &mut Conn) {
    if !c.awake {
        c.awake = true;
        awake.push(c.id);
    }
}

/// Every connection of a worker, by index.
#[derive(Debug)]
pub(super) struct Conns {
    places: Vec<Option<Conn>>,
    awake: Vec<ConnId>,
    pub(super) options: Options,
    /// No large message is late before.
    pub(super) next_deadline: Nanos,
}

impl Default for Conns {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            awake: Vec::new(),
            options: Options::default(),
            next_deadline: Nanos::FAR,
        }
    }
}

impl Conns {
    /// Takes a connection, and all memory that it will need.
    #[cold]
    pub(super) fn insert(&mut self, conn: Conn) {
        let index = usize::from(conn.id.index);
        if self.places.len() <= index {
            self.places.resize_with(index + 1, || None);
        }
        // One entry each, and one of an earlier connection of the place until the next turn.
        let most = 2 * self.places.len();
        self.awake.reserve(most.saturating_sub(self.awake.len()));
        let c = self.places[index].insert(conn);
        if c.word_owed {
            wake(&mut self.awake, c);
        }
    }

    /// Forgets a connection, and gives the large messages that it had; `None` if it was never taken.
    #[cold]
    pub(super) fn remove(&mut self, conn: ConnId) -> Option<Box<Large>> {
        let place = self.places.get_mut(usize::from(conn.index))?;
        Some(place.take_if(|c| c.id == conn)?.large)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Conn> {
        self.places.iter().flatten()
    }

    /// The connection, and the list to [`wake`] it on.
    pub(super) fn get_and_awake(&mut self, conn: ConnId) -> (Option<&mut Conn>, &mut Vec<ConnId>) {
        (find(&mut self.places, conn), &mut self.awake)
    }

    #[inline]
    pub(super) fn get(&mut self, conn: ConnId) -> Option<&mut Conn> {
        find(&mut self.places, conn)
    }

    /// The connection, and how it stands with the worker; `None` when nothing can be sent.
    #[inline]
    pub(super) fn standing(
        &mut self,
        io: &mut Io<'_>,
        conn: ConnId,
    ) -> Option<(&mut Conn, Standing)> {
        let standing = io.standing(conn)?;
        Some((self.get(conn)?, standing))
    }

    #[cold]
    pub(super) fn condemn(&mut self, conn: ConnId) {
        if let Some(c) = self.get(conn) {
            c.condemned = true;
        }
    }

    /// Takes in a message; `None` when nobody wants to hear of the connection.
    #[inline]
    pub(super) fn hear(
        &mut self,
        conn: ConnId,
        frame: &[u8],
    ) -> Option<Result<Arrival, Violation>> {
        let c = find(&mut self.places, conn).filter(|c| !c.condemned)?;
        c.fresh = true;
        wake(&mut self.awake, c);
        Some(c.hear(frame))
    }

    /// An operation completed, so the send queue has room.
    #[inline]
    pub(super) fn room_came(&mut self, conn: ConnId) {
        if let Some(c) = find(&mut self.places, conn)
            && (c.frame_waits || c.one_sided_waits)
        {
            wake(&mut self.awake, c);
        }
    }

    /// One of those awake.
    #[inline]
    pub(super) fn awake(&self, i: usize) -> Option<ConnId> {
        self.awake.get(i).copied()
    }

    /// Whether a turn could still have to do something for it.
    #[inline]
    pub(super) fn stays_awake(&mut self, conn: ConnId) -> bool {
        self.get(conn).is_some_and(|c| {
            let fresh = std::mem::take(&mut c.fresh);
            fresh || c.large_due || c.is_to_be_told() || c.peer_has() < c.low
        })
    }

    /// Takes one out of those awake; the last takes its place.
    #[inline]
    pub(super) fn put_to_rest(&mut self, i: usize) {
        let conn = self.awake.swap_remove(i);
        if let Some(c) = self.get(conn) {
            c.awake = false;
        }
    }

    /// Keeps a buffer that is not needed, if the connection has none for credits.
    #[inline]
    pub(super) fn restock(&mut self, conn: ConnId, buffer: Buffer) {
        if let Some(c) = self.get(conn)
            && c.spare.is_none()
        {
            c.spare = Some(buffer);
        }
    }

    /// The same with one from the pool, which was dry when the connection came up.
    #[inline]
    pub(super) fn restock_from_pool(&mut self, io: &mut Io<'_>, conn: ConnId) {
        if let Some(c) = self.get(conn)
            && c.spare.is_none()
        {
            c.spare = io.alloc().ok();
        }
    }

    /// Whether a READ or WRITE may be pushed. If not for want of room, `writable` is owed; a
    /// connection that is closed says so by itself.
    #[inline]
    pub(super) fn has_room(&mut self, io: &mut Io<'_>, conn: ConnId) -> bool {
        let Some((c, standing)) = self.standing(io, conn) else {
            return true;
        };
        let has = c.has_room(standing);
        c.one_sided_waits |= !has;
        has
    }

    /// Queues a frame with its header, or gives it back.
    #[inline]
    pub(super) fn push(
        &mut self,
        io: &mut Io<'_>,
        conn: ConnId,
        frame: Frame,
        label: Label,
        token: Token,
    ) -> Result<(), Refused> {
        let Some((c, standing)) = self.standing(io, conn) else {
            let reason = SendError::NotConnected;
            return Err(Refused { frame, reason });
        };
        if frame.frame_bytes() > c.frame_bytes_max {
            let reason = SendError::TooLong;
            return Err(Refused { frame, reason });
        }
        if !c.has_room(standing) || !c.window.may_send() {
            c.frame_waits = true;
            io.count_would_block();
            let reason = SendError::WouldBlock;
            return Err(Refused { frame, reason });
        }
        self.post(io, conn, standing, frame, label, token)
    }

    /// Sends credits alone, if they are due and can go.
    #[inline]
    pub(super) fn tell_alone(&mut self, io: &mut Io<'_>, conn: ConnId) -> bool {
        let Some((c, standing)) = self.standing(io, conn) else {
            return false;
        };
        c.window.posted(standing.receives_posted);
        let may = c.may_speak && c.window.may_send_credits() && standing.room > 0;
        if !may || !c.is_to_be_told() {
            return false;
        }
        let Some(buffer) = c.spare.take().or_else(|| io.alloc().ok()) else {
            return false;
        };
        let (frame, label) = (Frame::new(buffer), Label::of(Kind::Credits));
        let pushed = self.post(io, conn, standing, frame, label, Token::default());
        pushed.is_ok()
    }

    /// Puts the count of receives in, and posts. The window lets it go.
    #[inline]
    fn post(
        &mut self,
        io: &mut Io<'_>,
        conn: ConnId,
        standing: Standing,
        frame: Frame,
        label: Label,
        token: Token,
    ) -> Result<(), Refused> {
        let Some(c) = self.get(conn) else {
            let reason = SendError::NotConnected;
            return Err(Refused { frame, reason });
        };
        c.window.posted(standing.receives_posted);
        let told = c.window.told();
        let Label { kind, request_id } = label;
        let buffer = frame.with_header(&Header {
            kind,
            posted: c.window.tell(),
            request_id,
        });
        match io.marked(Use::of(kind).mark()).send(conn, buffer, token) {
            Ok(()) => {
                c.window.sent();
                c.word_owed = false;
                Ok(())
            }
            Err(Rejected { payload, reason }) => {
                c.window.untell(told);
                Err(Refused {
                    frame: Frame::again(payload),
                    reason: match reason {
                        PostError::TooLong => SendError::TooLong,
                        PostError::WouldBlock => SendError::WouldBlock,
                        // The others cannot be of a SEND.
                        PostError::NotConnected
                        | PostError::OutOfRegion
                        | PostError::NotAllowed
                        | PostError::NoReads
                        | PostError::Unsupported
                        | PostError::TooManyPieces
                        | PostError::Misaligned
                        | PostError::SinkNotWritable
                        | PostError::Exhausted
                        | PostError::NoWindow
                        | PostError::NotBindable
                        | PostError::NoSuchKey => SendError::NotConnected,
                    },
                })
            }
        }
    }
}
