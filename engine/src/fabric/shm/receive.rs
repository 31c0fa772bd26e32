//! Taking what the peer sends: fragments from our inbox into the receives that are posted.
//!
//! ```text
//!  peek ─► Message ─► a receive ─► its memory ─► copied once ─► consume ─► last one? completed
//!             │          └─ none: starved, the peer is told (RNR)   └─ too long, no memory: refused
//!             ├► Written ─► a receive, completed without a byte
//!             └► Fault ─► the error state: the peer found that it may not do what it wanted
//! ```
//! Imports qp, inbox, registry. Imported by lane.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]
#![allow(unsafe_code, reason = "plays the NIC: copies by address")]

use super::cq::Sink;
use super::inbox::{Head, What};
use super::qp::{Filling, Ground, QpState, refusal};
use super::send::fault;
use crate::fabric::plain::PlainWc;
use crate::fabric::soft::RNR_FOR_EVER;
use crate::fabric::{Note, WcOpcode, WcStatus};
use crate::limits::POLL_BATCH_MAX;
use crate::types::Access;

/// One RNR retry: code 12 of `min_rnr_timer` ([`crate::limits::MIN_RNR_TIMER`]).
const RNR_PERIOD_NS: u64 = 640_000;

/// How the head fared.
enum Taken {
    Yes,
    /// There is no receive for it.
    Waits,
    /// It was the last: the QP is in error.
    Ended,
}

impl QpState {
    /// Takes what has come, a batch at most; true if there was something.
    #[inline]
    pub(super) fn receive(&mut self, ground: &mut Ground, sink: &mut Sink<'_>) -> bool {
        self.backlog = false;
        if self.deaf {
            return false;
        }
        for n in 0..POLL_BATCH_MAX {
            if self.take_short(ground, sink) {
                continue;
            }
            if n > 0 && !self.inlet.has_come() {
                return true;
            }
            let head = match self.inlet.peek() {
                Ok(Some(head)) => head,
                Ok(None) => return n > 0,
                Err(_) => {
                    self.broken(ground);
                    return true;
                }
            };
            if !self.hear_ack(ground, sink, head.ack()) {
                self.broken(ground);
                return true;
            }
            let taken = match head.what() {
                What::Message(note) => self.take_fragment(ground, sink, head, note),
                What::Written { imm, len } => self.take_notice(ground, sink, head, imm, len),
                What::Fault(code) => {
                    self.consume(head);
                    if code == fault::ACCESS {
                        ground.control.raise_fatal(self.number, "QP access error");
                    }
                    self.fail(ground);
                    Taken::Ended
                }
            };
            match taken {
                Taken::Yes => {}
                Taken::Waits => return n > 0,
                Taken::Ended => return true,
            }
        }
        self.backlog = true;
        true
    }

    /// Takes a message that is whole in its cell, into a receive of the QP's own. False if that is not what
    /// has come, or something is wrong with it.
    #[inline(always)]
    fn take_short(&mut self, ground: &mut Ground, sink: &mut Sink<'_>) -> bool {
        let Some(short) = self.inlet.peek_short() else {
            return false;
        };
        // None where the lane's QPs share them.
        let Some(wr) = self.receives.front() else {
            return false;
        };
        let (wr_id, len) = (wr.wr_id, short.len());
        if len > wr.len {
            return false;
        }
        let Ok(place) = ground.registry.local(wr.lkey, wr.addr, len, true) else {
            return false;
        };
        if !self.hear_ack(ground, sink, short.ack()) {
            return false;
        }
        // SAFETY: `fill_from` requires
        // - as many bytes to read as the place has: it was made for `len`, or none, and the inlet has
        //   so many;
        // - that nobody uses a reference to the place: it is memory that was posted, which its owner
        //   keeps out of reach until it completes.
        unsafe { place.fill_from(short.payload()) };
        self.receives.advance();
        self.feed();
        // It may have told the peer right away, who may sleep over a full inbox.
        self.wake |= self.inlet.consume_short();
        let Some(place) = ground.cq.direct(sink) else {
            self.short_waits(ground, wr_id, len);
            return true;
        };
        let what = (WcOpcode::Recv, len, Note::None);
        *place = PlainWc::succeeded(wr_id, self.number, what);
        ground.cq.give_back(1);
        self.retire_receive();
        true
    }

    /// Takes the ack that a cell brings: what a message answers has completed before it. False if it is none.
    #[inline(always)]
    fn hear_ack(&mut self, ground: &mut Ground, sink: &mut Sink<'_>, ack: u32) -> bool {
        let Some(peer) = &mut self.peer else {
            return true;
        };
        if peer.outlet.note_ack(ack).is_err() {
            return false;
        }
        if self.sends.is_executed() {
            self.settle(ground, sink);
        }
        true
    }

    /// A message is taken whose completion waits for another poll.
    #[inline(never)]
    fn short_waits(&mut self, ground: &mut Ground, wr_id: u64, len: u32) {
        let what = (WcOpcode::Recv, len, Note::None);
        self.complete_receive(&mut ground.cq, wr_id, Ok(what));
    }

    /// The head was taken.
    #[inline]
    fn consume(&mut self, head: Head) {
        // As in `take_short`.
        self.wake |= self.inlet.consume(head);
    }

    /// The message at the head waits for a receive. It is this end that counts the retries which it gave
    /// its peer, so that no message is taken which the peer was told of as not taken.
    #[cold]
    fn starve(&mut self, ground: &Ground) {
        if !self.starved {
            self.starved = true;
            self.inlet.waits(1);
            self.wake = true;
        }
        let given = self.peer.as_ref().map(|peer| peer.rnr_given);
        let Some(given) = given.filter(|given| *given < RNR_FOR_EVER) else {
            return;
        };
        let now = ground.clock.now();
        let since = *self.rnr.get_or_insert(now);
        if now.since(since) >= u64::from(given) * RNR_PERIOD_NS {
            self.close(refusal::NOT_READY);
            (self.deaf, self.rnr) = (true, None);
        }
    }

    /// The message at the head has its receive.
    #[inline]
    fn feed(&mut self) {
        if self.starved {
            (self.starved, self.rnr) = (false, None);
        }
    }

    /// A fragment.
    #[inline(always)]
    fn take_fragment(
        &mut self,
        ground: &mut Ground,
        sink: &mut Sink<'_>,
        head: Head,
        note: Note,
    ) -> Taken {
        let Filling { wr, filled } = match self.filling.take() {
            Some(filling) => filling,
            None => match self.take_receive(&mut ground.cq) {
                Some(wr) => Filling { wr, filled: 0 },
                None => {
                    self.starve(ground);
                    return Taken::Waits;
                }
            },
        };
        self.feed();
        let len = head.len();
        if len > wr.len - filled {
            self.spoil(ground, wr.wr_id, WcStatus::LocalLength, refusal::REQUEST);
            return Taken::Ended;
        }
        let addr = wr.addr.wrapping_add(u64::from(filled));
        let Ok(place) = ground.registry.local(wr.lkey, addr, len, true) else {
            let status = WcStatus::LocalProtection;
            self.spoil(ground, wr.wr_id, status, refusal::OPERATION);
            return Taken::Ended;
        };
        // SAFETY: `fill_from` requires
        // - `len` bytes to read: the head has them, as long as the inlet lives;
        // - that nobody uses a reference to the place: it is memory that was posted, which its owner
        //   keeps out of reach until it completes.
        unsafe { place.fill_from(head.payload()) };
        let filled = filled + len;
        if head.has_more() {
            self.consume(head);
            self.filling = Some(Filling { wr, filled });
            return Taken::Yes;
        }
        if let Note::Invalidated(rkey) = note
            && !ground.registry.invalidate(rkey)
        {
            // The message is not acknowledged (class J, IBTA 9.9.3.1).
            let status = WcStatus::RemoteInvalidRequest;
            self.spoil(ground, wr.wr_id, status, refusal::NO_ANSWER);
            return Taken::Ended;
        }
        self.consume(head);
        let what = (WcOpcode::Recv, filled, note);
        self.received(&mut ground.cq, sink, wr.wr_id, what);
        Taken::Yes
    }

    /// A WRITE with immediate, of a peer that the QP lets write.
    #[inline(never)]
    fn take_notice(
        &mut self,
        ground: &mut Ground,
        sink: &mut Sink<'_>,
        head: Head,
        imm: u32,
        len: u32,
    ) -> Taken {
        if !self.access.contains(Access::REMOTE_WRITE) {
            // An honest end holds its operations against what the handshake told.
            self.broken(ground);
            return Taken::Ended;
        }
        let Some(wr) = self.take_receive(&mut ground.cq) else {
            self.starve(ground);
            return Taken::Waits;
        };
        self.feed();
        self.consume(head);
        let what = (WcOpcode::RecvWriteImm, len, Note::Imm(imm));
        self.received(&mut ground.cq, sink, wr.wr_id, what);
        Taken::Yes
    }

    /// A message takes its receive and fails there: both ends are in error.
    #[cold]
    fn spoil(
        &mut self,
        ground: &mut Ground,
        wr_id: u64,
        there: WcStatus,
        why: std::num::NonZeroU8,
    ) {
        self.complete_receive(&mut ground.cq, wr_id, Err(there));
        self.refuse(ground, why);
    }
}
