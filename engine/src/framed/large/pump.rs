//! What a turn does for the large messages of a connection: ends that are told, READs that are posted.
//!
//! ```text
//!   attend ─► Finish frames, while there is credit and room
//!          ─► READs: the device's largest at most, LARGE_READS_MAX under way, one place left to others
//! ```
//! Imports conns and large's tables. Imported by framed.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::super::conn::{Label, Use};
use super::super::conns::Conns;
use super::super::{Frame, LargeId};
use crate::memory::Payload;
use crate::wire::{Finish, Kind};
use crate::worker::{ConnId, Io, Rejected, Token};

/// An id as a token of ours.
pub(crate) fn token_of(id: LargeId) -> Token {
    Token(id.0.into())
}

/// The id in a token of ours.
pub(crate) fn id_of(token: Token) -> LargeId {
    LargeId(u32::try_from(token.0).unwrap_or(u32::MAX))
}

impl Conns {
    /// Posts what is due and can go; says whether anything was.
    pub(crate) fn pump(&mut self, io: &mut Io<'_>, conn: ConnId) -> bool {
        let finished = self.pump_finishes(io, conn);
        let read = self.pump_reads(io, conn);
        self.set_large_due(conn, finished.stuck || read.stuck);
        finished.worked || read.worked
    }

    fn pump_finishes(&mut self, io: &mut Io<'_>, conn: ConnId) -> Pumped {
        let mut pumped = Pumped::default();
        while let Some(finish) = self.large(conn).and_then(|l| l.incoming.finish_owed()) {
            if !self.finish(io, conn, finish) {
                pumped.stuck = true;
                break;
            }
            pumped.worked = true;
        }
        pumped
    }

    /// Tells the peer that a message is over, if that can go now.
    fn finish(&mut self, io: &mut Io<'_>, conn: ConnId, finish: Finish) -> bool {
        if !self.may_send_frame(io, conn) {
            return false;
        }
        let Ok(buffer) = io.alloc() else {
            return false;
        };
        let mut frame = Frame::new(buffer);
        let copied = frame.copy_from(&finish.encode());
        debug_assert!(copied.is_ok(), "control frames fit the least slot");
        let label = Label::of(Kind::Finish);
        let pushed = self.push(io, conn, frame, label, Token::default()).is_ok();
        if pushed && let Some(large) = self.large(conn) {
            large.incoming.finished(finish.id);
        }
        pushed
    }

    fn pump_reads(&mut self, io: &mut Io<'_>, conn: ConnId) -> Pumped {
        let mut pumped = Pumped::default();
        let depth = io.read_depth(conn);
        let region_bytes = io.message_bytes_max(conn).min(self.options.read_bytes_max);
        let chunk_bytes = region_bytes.min(io.buffer_bytes());
        while let Some((large, has_room)) = self.large_and_room(io, conn) {
            let Some(read) = large.incoming.next_read(depth, region_bytes, chunk_bytes) else {
                break;
            };
            // A completion brings room, but not always one that wakes us; so do buffers.
            pumped.stuck = true;
            if !has_room {
                break;
            }
            let (offer, len, offset) = (*read.offer, read.len, read.offset);
            let sink = match read.into {
                Some(span) => Payload::from(span),
                None => {
                    let Ok(mut buffer) = io.alloc() else { break };
                    let fits = buffer.set_len(len);
                    debug_assert!(fits.is_ok(), "a chunk is no longer than a buffer");
                    Payload::from(buffer)
                }
            };
            let token = token_of(offer.id());
            let mut marked = io.marked(Use::LargeRead.mark());
            match marked.read(conn, sink, offer.region(), offset.into(), token) {
                Ok(()) => large.incoming.posted(offer.id(), len),
                // An arena that is full has places again; all else was asked on acceptance.
                Err(Rejected { .. }) => break,
            }
            (pumped.worked, pumped.stuck) = (true, false);
        }
        pumped
    }
}

#[derive(Clone, Copy, Default)]
struct Pumped {
    worked: bool,
    /// Something is left that could not go, and no completion of its own will wake the connection.
    stuck: bool,
}
