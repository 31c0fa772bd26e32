//! Large messages among what framed mode knows of each connection.
//!
//! ```text
//!   send, accept, refuse, a READ done ─► due, awake ─► attend: ends told, Finish, READs ─► due still, or not
//!   keep ─► deadline, the earliest of all ─► turn: is it over?
//! ```
//! Imports conns and large's tables. Imported by large and framed.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::super::conns::{Conns, wake};
use super::incoming::{Incomings, ReadDone};
use super::pump::id_of;
use super::{Large, LargeReceived, LargeSent, Options};
use crate::memory::MemorySpan;
use crate::types::Nanos;
use crate::wire::{Finish, LargeId};
use crate::worker::{ConnId, Io, Token};

impl Conns {
    pub(crate) fn large(&mut self, conn: ConnId) -> Option<&mut Large> {
        Some(&mut self.get(conn)?.large)
    }

    pub(crate) fn options(&mut self) -> &mut Options {
        &mut self.options
    }

    /// The large messages of a connection that can post, and whether there is room for a READ.
    pub(super) fn large_and_room(
        &mut self,
        io: &mut Io<'_>,
        conn: ConnId,
    ) -> Option<(&mut Large, bool)> {
        let (c, standing) = self.standing(io, conn)?;
        let has_room = c.has_room(standing);
        Some((&mut c.large, has_room))
    }

    /// Whether a frame would be taken. Nobody is owed `writable` for the question.
    pub(super) fn may_send_frame(&mut self, io: &mut Io<'_>, conn: ConnId) -> bool {
        let standing = self.standing(io, conn);
        standing.is_some_and(|(c, standing)| c.room(standing) > 0)
    }

    /// Keeps the memory of a message that was offered to the peer.
    pub(super) fn keep_large(
        &mut self,
        conn: ConnId,
        token: Token,
        span: MemorySpan,
        deadline: Nanos,
    ) {
        if let Some(large) = self.large(conn) {
            large.outgoing.keep(token, span, deadline);
            self.next_deadline = self.next_deadline.min(deadline);
        }
    }

    /// The service said something about what the peer offered. A turn looks at it.
    pub(super) fn touch_large(&mut self, conn: ConnId, touch: impl FnOnce(&mut Incomings) -> bool) {
        let (c, awake) = self.get_and_awake(conn);
        if let Some(c) = c
            && touch(&mut c.large.incoming)
        {
            c.large_due = true;
            wake(awake, c);
        }
    }

    pub(super) fn accept_large(&mut self, conn: ConnId, id: LargeId, into: Option<MemorySpan>) {
        self.touch_large(conn, |incoming| {
            incoming.accept(id, into);
            true
        });
    }

    /// A READ of a large message is done.
    pub(crate) fn read_done(&mut self, conn: ConnId, token: Token, len: u32) -> Option<ReadDone> {
        let mut done = None;
        self.touch_large(conn, |incoming| {
            done = incoming.read_done(id_of(token), len);
            done.is_some()
        });
        done
    }

    /// Takes out what the peer has finished. Who waits for a place may try again.
    pub(crate) fn take_sent(&mut self, conn: ConnId, finish: Finish) -> Option<LargeSent> {
        let (c, awake) = self.get_and_awake(conn);
        let c = c?;
        let sent = c.large.outgoing.finish(finish.id, finish.status.into())?;
        if std::mem::take(&mut c.large.waits) {
            c.owe_writable();
            wake(awake, c);
        }
        Some(sent)
    }

    /// The offer of a message came back from the send queue, unposted.
    #[cold]
    pub(crate) fn note_never_posted(&mut self, conn: ConnId, token: Token) {
        if let Some(large) = self.large(conn) {
            large.outgoing.note_never_posted(id_of(token));
        }
    }

    /// Whether the large messages of a connection want a look.
    #[inline]
    pub(crate) fn is_large_due(&mut self, conn: ConnId) -> bool {
        self.get(conn).is_some_and(|c| c.large_due)
    }

    pub(super) fn set_large_due(&mut self, conn: ConnId, due: bool) {
        if let Some(c) = self.get(conn) {
            c.large_due = due;
        }
    }

    /// A message that this side accepted and that is over.
    pub(crate) fn take_ended(&mut self, conn: ConnId) -> Option<LargeReceived> {
        self.large(conn)?.incoming.take_ended()
    }

    /// When a message is late, if none is finished before.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Nanos {
        self.next_deadline
    }

    /// A connection with a message that is late. It is to be condemned, and is not named again then. If
    /// there is none, the next deadline is known.
    #[cold]
    pub(crate) fn find_late(&mut self, now: Nanos) -> Option<(ConnId, LargeId)> {
        let mut next = Nanos::FAR;
        for c in self.all().filter(|c| !c.condemned) {
            if let Some(id) = c.large.outgoing.late(now) {
                return Some((c.id, id));
            }
            next = next.min(c.large.outgoing.next_deadline(now));
        }
        self.next_deadline = next;
        None
    }
}

impl Large {
    /// The connection is gone: what this side had sent.
    pub(crate) fn take_unfinished(&mut self) -> Option<LargeSent> {
        self.outgoing.take_oldest()
    }

    /// The connection is gone: what this side had accepted.
    pub(crate) fn take_lost(&mut self) -> Option<LargeReceived> {
        self.incoming.take_lost()
    }
}
