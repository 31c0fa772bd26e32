//! One connection in framed mode: its window, what waits for credits or room, whose an operation is.
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
//!
//! Imports flow, wire, worker, large. Imported by conns and large.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::large::Large;
use super::{Incoming, RegionId, RegionOffer, RequestId};
use crate::flow::Window;
use crate::memory::Buffer;
use crate::wire::{Features, Finish, Header, HeaderError, Hello, HelloError, Kind, POSTED_MIN};
use crate::worker::{ConnId, Io, Peer, Role, Standing, Violation};

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
    pub(super) fn of(kind: Kind) -> Self {
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
    pub(super) id: ConnId,
    pub(super) window: Window,
    /// Messages received, modulo 2^32.
    received: u32,
    /// Half of our receives: while the peer has as many, credits can wait for a message to carry them.
    half: u32,
    /// With fewer than this the peer may be short of them.
    low: u32,
    /// The longest frame that the peer takes, header included.
    pub(super) frame_bytes_max: u32,
    /// Kept for credits: a pool that is dry cannot keep the peer from hearing of receives.
    pub(super) spare: Option<Buffer>,
    /// A frame was refused since the last `writable`.
    pub(super) frame_waits: bool,
    /// A READ or WRITE was: it needs room, but no credits.
    one_sided_waits: bool,
    /// On the list of those awake.
    pub(super) awake: bool,
    /// It received since the last turn.
    fresh: bool,
    /// Its peer did what is not allowed; nothing more is heard of it.
    pub(super) condemned: bool,
    /// This side may send. Whoever was connected to first waits for a word of the other side.
    pub(super) may_speak: bool,
    /// This side connected and has sent nothing yet: the other waits for its word.
    pub(super) word_owed: bool,
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
    pub(super) fn is_to_be_told(&self) -> bool {
        self.word_owed || (self.window.credits_due() && self.peer_has() < self.half)
    }

    /// Whether a turn could still have to do something for it.
    #[inline]
    pub(super) fn stays_awake(&mut self) -> bool {
        let fresh = std::mem::take(&mut self.fresh);
        fresh || self.large_due || self.is_to_be_told() || self.peer_has() < self.low
    }

    /// Whether the service was refused something since the last `writable`.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.frame_waits || self.one_sided_waits
    }

    /// The service waits for room alone, or for what has just come.
    #[inline]
    pub(super) fn owe_writable(&mut self) {
        self.one_sided_waits = true;
    }

    /// Takes in a message.
    #[inline]
    pub(super) fn hear(&mut self, frame: &[u8]) -> Result<Arrival, Violation> {
        self.fresh = true;
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
