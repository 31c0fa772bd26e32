//! The connections in framed mode: who is awake, and how frames leave.
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
//! Imports conn, worker, large. Imported by framed and large.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::conn::{Arrival, Conn, Label, Use};
use super::large::{Large, Options};
use super::{Frame, Refused, SendError};
use crate::memory::Buffer;
use crate::types::Nanos;
use crate::wire::{Header, Kind};
use crate::worker::{ConnId, Io, PostError, Rejected, Standing, Token, Violation};

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
        wake(&mut self.awake, c);
        Some(c.hear(frame))
    }

    /// An operation completed, so the send queue has room.
    #[inline]
    pub(super) fn room_came(&mut self, conn: ConnId) {
        if let Some(c) = find(&mut self.places, conn)
            && c.waits()
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
        self.get(conn).is_some_and(Conn::stays_awake)
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
        if !has {
            c.owe_writable();
        }
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
