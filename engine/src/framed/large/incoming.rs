//! Large messages that the peer offered: what the service said to each, and how far each is read.
//!
//! ```text
//!   offered ─ accept ─► reading: │ done │ under way │ not yet asked for │ ─► ended ─► Finish owed ─► free
//!      └───── refuse ──────────────────────────────────────────────────────────────► Finish owed
//! ```
//! Decides which bytes the next READ asks for. Pure: no I/O. Imports memory, wire, worker's words.
//! Imported by large.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::{AcceptError, Incoming, LargeReceived, ReceiveOutcome};
use crate::limits::{LARGE_IN_FLIGHT_MAX, LARGE_READS_MAX};
use crate::memory::MemorySpan;
use crate::wire::{Finish, FinishStatus, LargeId, LargeOffer};
use crate::worker::Violation;

/// Where a message goes.
#[derive(Debug)]
enum Stage {
    /// The service has not said.
    Offered,
    /// To the service's memory.
    Region(MemorySpan),
    /// To buffers of the pool.
    Chunks,
    /// Nothing is read any more; the peer is to be told.
    Over(FinishStatus),
}

#[derive(Debug)]
struct Receiving {
    offer: LargeOffer,
    stage: Stage,
    /// Which was accepted first.
    turn: u64,
    /// Bytes that READs were posted for, and bytes that are here.
    asked: u32,
    done: u32,
    /// READs under way.
    reads: u32,
    paused: bool,
    /// The service wants no more of it.
    refused: bool,
}

impl Receiving {
    fn is_reading(&self) -> bool {
        matches!(self.stage, Stage::Region(_) | Stage::Chunks)
    }

    fn wants_read(&self) -> bool {
        let left = self.asked < self.offer.len_bytes();
        self.is_reading() && left && !self.paused && !self.refused
    }

    fn is_done(&self) -> bool {
        self.done == self.offer.len_bytes()
    }

    fn has_ended(&self) -> bool {
        self.is_reading() && self.reads == 0 && (self.is_done() || self.refused)
    }

    fn received(&mut self, over: FinishStatus, outcome: ReceiveOutcome) -> LargeReceived {
        let span = match std::mem::replace(&mut self.stage, Stage::Over(over)) {
            Stage::Region(span) => Some(span),
            Stage::Offered | Stage::Chunks | Stage::Over(_) => None,
        };
        LargeReceived {
            incoming: Incoming::from(&self.offer),
            outcome,
            span,
        }
    }
}

/// A READ to post.
#[derive(Debug)]
pub(super) struct NextRead<'a> {
    pub(super) offer: &'a LargeOffer,
    pub(super) offset: u32,
    pub(super) len: u32,
    /// The service's memory for it; `None` where it goes to a buffer of the pool.
    pub(super) into: Option<MemorySpan>,
}

/// A READ that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadDone {
    pub(crate) offset: u32,
    pub(crate) is_last: bool,
    /// The service still wants it.
    pub(crate) wanted: bool,
}

/// The table of one connection.
#[derive(Debug)]
pub(crate) struct Incomings {
    next: LargeId,
    accepted: u64,
    /// READs under way, of all messages.
    reads: u32,
    places: [Option<Receiving>; LARGE_IN_FLIGHT_MAX],
}

impl Default for Incomings {
    fn default() -> Self {
        Self {
            next: LargeId(0),
            accepted: 0,
            reads: 0,
            places: [const { None }; LARGE_IN_FLIGHT_MAX],
        }
    }
}

impl Incomings {
    fn all(&mut self) -> impl Iterator<Item = &mut Receiving> {
        self.places.iter_mut().flatten()
    }

    fn find(&mut self, id: LargeId) -> Option<&mut Receiving> {
        self.all().find(|r| r.offer.id() == id)
    }

    /// Takes in an offer of the peer's.
    pub(crate) fn hear(&mut self, offer: LargeOffer) -> Result<Incoming, Violation> {
        let (seen, must) = (offer.id(), self.next);
        if seen != must {
            return Err(Violation::LargeOrder { seen, must });
        }
        let place = self.places.iter_mut().find(|place| place.is_none());
        let place = place.ok_or(Violation::LargeTooMany)?;
        self.next = must.next();
        let incoming = Incoming::from(&offer);
        *place = Some(Receiving {
            offer,
            stage: Stage::Offered,
            turn: 0,
            asked: 0,
            done: 0,
            reads: 0,
            paused: false,
            refused: false,
        });
        Ok(incoming)
    }

    /// Bytes of a message that waits for the service's word.
    pub(super) fn offered(&mut self, id: LargeId) -> Result<u32, AcceptError> {
        let found = self.find(id).filter(|r| matches!(r.stage, Stage::Offered));
        let found = found.ok_or(AcceptError::NoSuchMessage)?;
        Ok(found.offer.len_bytes())
    }

    /// The service takes a message that [`offered`](Self::offered) has named.
    pub(super) fn accept(&mut self, id: LargeId, into: Option<MemorySpan>) {
        let turn = self.accepted;
        self.accepted += 1;
        if let Some(r) = self.find(id) {
            r.turn = turn;
            r.stage = into.map_or(Stage::Chunks, Stage::Region);
        }
    }

    /// The service does not want a message, or the rest of it; false if there is none to refuse.
    pub(super) fn refuse(&mut self, id: LargeId) -> bool {
        let Some(r) = self.find(id) else {
            return false;
        };
        match r.stage {
            Stage::Offered => r.stage = Stage::Over(FinishStatus::Refused),
            Stage::Region(_) | Stage::Chunks => r.refused = true,
            Stage::Over(_) => return false,
        }
        true
    }

    /// No more READs for this message, or READs again; false if there is none to be read.
    pub(super) fn pause(&mut self, id: LargeId, paused: bool) -> bool {
        let found = self.find(id).filter(|r| r.is_reading() && !r.refused);
        found.is_some_and(|r| {
            r.paused = paused;
            true
        })
    }

    /// The next READ, if one may be posted: of `region_bytes` at most, or `chunk_bytes` into a buffer,
    /// with at most `depth` under way.
    pub(super) fn next_read(
        &mut self,
        depth: u32,
        region_bytes: u32,
        chunk_bytes: u32,
    ) -> Option<NextRead<'_>> {
        if self.reads >= depth.min(LARGE_READS_MAX) {
            return None;
        }
        let waiting = self.all().filter(|r| r.wants_read());
        let r = waiting.min_by_key(|r| r.turn)?;
        let (offset, left) = (r.asked, r.offer.len_bytes() - r.asked);
        let (len, into) = match &r.stage {
            Stage::Region(span) => {
                let len = left.min(region_bytes);
                let first = span.offset() + offset as usize;
                // The span is as long as the message, so the part is in the memory.
                (len, Some(span.memory().span(first, len)?))
            }
            Stage::Chunks | Stage::Offered | Stage::Over(_) => (left.min(chunk_bytes), None),
        };
        Some(NextRead {
            offer: &r.offer,
            offset,
            len,
            into,
        })
    }

    /// The READ that [`next_read`](Self::next_read) named was posted.
    pub(super) fn posted(&mut self, id: LargeId, len: u32) {
        if let Some(r) = self.find(id) {
            r.asked += len;
            r.reads += 1;
            self.reads += 1;
        }
    }

    /// A READ of this many bytes is done. They complete in the order in which they were posted.
    pub(crate) fn read_done(&mut self, id: LargeId, len: u32) -> Option<ReadDone> {
        let r = self.find(id).filter(|r| r.reads > 0)?;
        let offset = r.done;
        r.done += len;
        r.reads -= 1;
        let (is_last, wanted) = (r.is_done(), !r.refused);
        self.reads -= 1;
        Some(ReadDone {
            offset,
            is_last,
            wanted,
        })
    }

    /// A message that nothing is read of any more, to be told to the service: the first accepted first.
    pub(crate) fn take_ended(&mut self) -> Option<LargeReceived> {
        let ended = self.all().filter(|r| r.has_ended());
        let r = ended.min_by_key(|r| r.turn)?;
        Some(if r.refused {
            r.received(FinishStatus::Refused, ReceiveOutcome::Refused)
        } else {
            r.received(FinishStatus::Done, ReceiveOutcome::Done)
        })
    }

    /// A message whose end the peer is to be told.
    pub(super) fn finish_owed(&self) -> Option<Finish> {
        self.places.iter().flatten().find_map(|r| match r.stage {
            Stage::Over(status) => {
                let id = r.offer.id();
                Some(Finish { id, status })
            }
            Stage::Offered | Stage::Region(_) | Stage::Chunks => None,
        })
    }

    /// The peer will hear of the end: the place is free.
    pub(super) fn finished(&mut self, id: LargeId) {
        let is =
            |place: &&mut Option<Receiving>| place.as_ref().is_some_and(|r| r.offer.id() == id);
        if let Some(place) = self.places.iter_mut().find(is) {
            *place = None;
        }
    }

    /// The connection is gone: what was accepted and not told to be over, the first accepted first.
    pub(crate) fn take_lost(&mut self) -> Option<LargeReceived> {
        let open = self.all().filter(|r| r.is_reading());
        let r = open.min_by_key(|r| r.turn)?;
        Some(if r.is_done() && !r.refused {
            r.received(FinishStatus::Done, ReceiveOutcome::Done)
        } else {
            r.received(FinishStatus::Refused, ReceiveOutcome::Lost)
        })
    }
}

#[cfg(test)]
#[path = "incoming_tests.rs"]
mod tests;
