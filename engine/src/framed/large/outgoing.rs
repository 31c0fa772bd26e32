//! Large messages that this side sent and that are not finished.
//!
//! ```text
//!   send_large ─► [ Sending; LARGE_IN_FLIGHT_MAX ] ─ Finish, or the connection's end ─► large_sent
//!                        └─ deadline over ─► the connection is to end
//! ```
//! The memory of each is owned here, so it stays registered while a peer may READ it. Pure: no I/O, no
//! clock. Imports memory, wire, worker's words. Imported by large.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::{LargeOutcome, LargeSent};
use crate::limits::LARGE_IN_FLIGHT_MAX;
use crate::memory::MemorySpan;
use crate::types::Nanos;
use crate::wire::LargeId;
use crate::worker::Token;

#[derive(Debug)]
struct Sending {
    id: LargeId,
    token: Token,
    span: MemorySpan,
    deadline: Nanos,
    /// Its offer was given back by the send queue, unposted.
    never_posted: bool,
}

impl Sending {
    fn end(self, outcome: LargeOutcome) -> LargeSent {
        LargeSent {
            token: self.token,
            outcome,
            span: self.span,
        }
    }
}

/// The table of one connection.
#[derive(Debug)]
pub(crate) struct Outgoing {
    next: LargeId,
    places: [Option<Sending>; LARGE_IN_FLIGHT_MAX],
}

impl Default for Outgoing {
    fn default() -> Self {
        Self {
            next: LargeId(0),
            places: [const { None }; LARGE_IN_FLIGHT_MAX],
        }
    }
}

impl Outgoing {
    /// The id for the next message; `None` while as many as may be are under way.
    pub(super) fn next_id(&self) -> Option<LargeId> {
        let free = self.places.iter().any(Option::is_none);
        free.then_some(self.next)
    }

    /// Keeps the message that has the id of [`next_id`](Self::next_id).
    pub(super) fn keep(&mut self, token: Token, span: MemorySpan, deadline: Nanos) {
        let Some(place) = self.places.iter_mut().find(|place| place.is_none()) else {
            debug_assert!(false, "no place: next_id was not asked");
            return;
        };
        *place = Some(Sending {
            id: self.next,
            token,
            span,
            deadline,
            never_posted: false,
        });
        self.next = self.next.next();
    }

    fn all(&self) -> impl Iterator<Item = &Sending> {
        self.places.iter().flatten()
    }

    /// Whether a message is under way.
    pub(crate) fn has(&self, id: LargeId) -> bool {
        self.all().any(|sending| sending.id == id)
    }

    /// Takes out a message that the peer has finished.
    pub(crate) fn finish(&mut self, id: LargeId, outcome: LargeOutcome) -> Option<LargeSent> {
        let is = |place: &&mut Option<Sending>| place.as_ref().is_some_and(|s| s.id == id);
        let place = self.places.iter_mut().find(is)?;
        Some(place.take()?.end(outcome))
    }

    /// The offer of a message came back unposted.
    pub(crate) fn note_never_posted(&mut self, id: LargeId) {
        let found = self.places.iter_mut().flatten().find(|s| s.id == id);
        if let Some(sending) = found {
            sending.never_posted = true;
        }
    }

    /// A message whose time is over.
    pub(crate) fn late(&self, now: Nanos) -> Option<LargeId> {
        self.all().find(|s| s.deadline <= now).map(|s| s.id)
    }

    /// When the next message is late that is not yet.
    pub(crate) fn next_deadline(&self, now: Nanos) -> Nanos {
        let deadlines = self.all().map(|s| s.deadline);
        let ahead = deadlines.filter(|deadline| *deadline > now);
        ahead.min().unwrap_or(Nanos::FAR)
    }

    /// The connection is gone: what was under way, oldest first.
    pub(crate) fn take_oldest(&mut self) -> Option<LargeSent> {
        let next = self.next.0;
        // The oldest id is the furthest behind the next one.
        let age = |place: &&mut Option<Sending>| {
            let id = place.as_ref().map_or(next, |s| s.id.0);
            next.wrapping_sub(id)
        };
        let sending = self.places.iter_mut().max_by_key(age)?.take()?;
        let outcome = if sending.never_posted {
            LargeOutcome::NeverPosted
        } else {
            LargeOutcome::Unknown
        };
        Some(sending.end(outcome))
    }
}
