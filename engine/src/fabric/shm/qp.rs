//! A queue pair as its lane has it: where it is, what is posted, and both directions of its connection.
//!
//! ```text
//!  post ─► sends ─► run (send.rs) ─► outlet ═► the peer's inbox      done ◄─ acks ◄─┐
//!          receives ◄─ receive (receive.rs) ◄─ inlet ◄═ our inbox ────────────────────┘
//!  New ─► Init ─Accepted─► Early ─Ready─► Ready ─Error, or what goes wrong─► Error ─► flushed
//! ```
//! It is made by control, travels to the lane once, and is the lane's alone from then on. A work request
//! takes a place in its queue and in the CQ from the post until a completion that retires it is polled,
//! as with the queues of a NIC. Imports cq, inbox, peer, piece. Imported by send, receive, lane, link.

#![allow(unsafe_code, reason = "hands out the word that its inlet waits for")]

use super::cq::{Cq, Sink};
use super::inbox::{Due, Inlet};
use super::orders::SendQueue;
use super::peer::Peer;
use super::receives::Receives;
use super::registry::Registry;
use super::switchboard::Switchboard;
use crate::fabric::plain::PlainWc;
use crate::fabric::soft::{Completed, Retires};
use crate::fabric::{Note, RecvWr, WcOpcode, WcStatus};
use crate::sys::bell::Bell;
use crate::sys::clock::Clock;
use crate::types::{Access, Nanos, QpNum};
use std::num::NonZeroU8;
use std::sync::Arc;

/// Why an inlet takes nothing more, as the sender is told.
pub(super) mod refusal {
    use super::{NonZeroU8, WcStatus};

    /// The QP is in error, or gone.
    pub(in super::super) const NO_ANSWER: NonZeroU8 = NonZeroU8::MIN;
    /// The message is longer than its receive.
    pub(in super::super) const REQUEST: NonZeroU8 = NonZeroU8::MIN.saturating_add(1);
    /// The receive's memory is none.
    pub(in super::super) const OPERATION: NonZeroU8 = NonZeroU8::MIN.saturating_add(2);
    /// There was no receive within the RNR retries.
    pub(in super::super) const NOT_READY: NonZeroU8 = NonZeroU8::MIN.saturating_add(3);

    /// How the message ends that was refused so.
    pub(in super::super) fn status(code: NonZeroU8) -> WcStatus {
        match code {
            NO_ANSWER => WcStatus::RetryExceeded,
            REQUEST => WcStatus::RemoteInvalidRequest,
            OPERATION => WcStatus::RemoteOperation,
            NOT_READY => WcStatus::RnrRetryExceeded,
            _ => WcStatus::BadResponse,
        }
    }
}

/// Where a QP is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Takes receives.
    Init,
    /// Takes sends too, which wait for the peer.
    Early,
    /// Sends and receives.
    Ready,
    /// Flushes.
    Error,
}

/// A receive that a message is being put into.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filling {
    pub(super) wr: RecvWr,
    pub(super) filled: u32,
}

/// What a QP of a lane works with.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) cq: Cq,
    pub(super) registry: Arc<Registry>,
    pub(super) control: Arc<Switchboard>,
    pub(super) clock: Clock,
}

/// What to make a QP of.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) number: QpNum,
    pub(super) index: usize,
    /// Of its id, by which control asks the peer.
    pub(super) key: u64,
    /// What the peer may do by it.
    pub(super) access: Access,
    pub(super) send_depth: u32,
    /// 0 if it takes the lane's.
    pub(super) recv_depth: u32,
    pub(super) shared: bool,
    pub(super) inline_bytes: u32,
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct QpState {
    pub(super) number: QpNum,
    pub(super) index: usize,
    pub(super) key: u64,
    pub(super) access: Access,
    pub(super) phase: Phase,
    pub(super) sends: SendQueue,
    pub(super) receives: Receives,
    recv_depth: u32,
    receives_taken: u32,
    pub(super) shared: bool,
    pub(super) filling: Option<Filling>,
    pub(super) inlet: Inlet,
    pub(super) bell: Option<Bell>,
    pub(super) peer: Option<Box<Peer>>,
    /// The inlet has refused: what it said first counts.
    refused: bool,
    /// The head message waits for a receive, and the peer was told so.
    pub(super) starved: bool,
    /// Since when it waits, where the peer's retries end.
    pub(super) rnr: Option<Nanos>,
    /// They have ended: nothing of the peer's is taken any more.
    pub(super) deaf: bool,
    /// The peer must be woken if it sleeps.
    pub(super) wake: bool,
    /// There is more to send than a turn does.
    pub(super) more: bool,
    /// There may be more to take than a turn does.
    pub(super) backlog: bool,
    /// Turns that had messages, and did not look at what the peer publishes.
    pub(super) unseen: u8,
}

impl QpState {
    pub(super) fn new(shape: &Shape, inlet: Inlet, bell: Option<Bell>) -> Self {
        Self {
            number: shape.number,
            index: shape.index,
            key: shape.key,
            access: shape.access,
            phase: Phase::Init,
            sends: SendQueue::new(shape.send_depth, shape.inline_bytes),
            receives: Receives::new(shape.recv_depth),
            recv_depth: shape.recv_depth,
            receives_taken: 0,
            shared: shape.shared,
            filling: None,
            inlet,
            bell,
            peer: None,
            refused: false,
            starved: false,
            rnr: None,
            deaf: false,
            wake: false,
            more: false,
            backlog: false,
            unseen: 0,
        }
    }

    /// Puts a receive on the queue; the errno where there is no room.
    #[inline]
    pub(super) fn enqueue_receive(&mut self, cq: &mut Cq, wr: &RecvWr) -> Result<(), i32> {
        if self.receives_taken >= self.recv_depth || !cq.promise() {
            return Err(libc::ENOMEM);
        }
        self.receives_taken += 1;
        self.receives.push_back(wr);
        Ok(())
    }

    /// The receive that the next message takes.
    #[inline]
    pub(super) fn take_receive(&mut self, cq: &mut Cq) -> Option<RecvWr> {
        if self.shared {
            cq.shared.pop_front()
        } else {
            self.receives.pop_front()
        }
    }

    /// Completes a receive that was taken, with what it brought or how it failed.
    #[inline(never)]
    pub(super) fn complete_receive(
        &mut self,
        cq: &mut Cq,
        wr_id: u64,
        outcome: Result<(WcOpcode, u32, Note), WcStatus>,
    ) {
        let wc = match outcome {
            Ok(what) => PlainWc::succeeded(wr_id, self.number, what),
            Err(status) => PlainWc::ended(wr_id, self.number, status),
        };
        let retires = if self.shared {
            Retires::Shared
        } else {
            Retires::Receive { qp: self.index }
        };
        cq.push(Completed { wc, retires });
    }

    /// Completes a receive that was taken and has succeeded.
    #[inline(always)]
    pub(super) fn received(
        &mut self,
        cq: &mut Cq,
        sink: &mut Sink<'_>,
        wr_id: u64,
        what: (WcOpcode, u32, Note),
    ) {
        if let Some(place) = cq.direct(sink) {
            *place = PlainWc::succeeded(wr_id, self.number, what);
            if self.shared {
                cq.retire_shared();
            } else {
                cq.give_back(1);
                self.retire_receive();
            }
            return;
        }
        self.complete_receive(cq, wr_id, Ok(what));
    }

    /// The oldest send failed so. (Those that succeed are completed by [`settle`](Self::settle).)
    fn spoil_send(&mut self, cq: &mut Cq, status: WcStatus) {
        let (qp, sequence) = (self.index, self.sends.done());
        if let Some(order) = self.sends.finish() {
            cq.push(Completed {
                wc: PlainWc::ended(order.wr_id, self.number, status),
                retires: Retires::Sends { qp, sequence },
            });
        }
    }

    /// When it is to be looked after: as soon as a cell comes, or in the next poll where it has more to do
    /// than to wait for one.
    ///
    /// # Safety
    /// The QP lives as long as the answer is asked.
    #[inline]
    pub(super) unsafe fn due(&self) -> Due {
        if self.phase == Phase::Error {
            return Due::NEVER;
        }
        if self.sends.is_outstanding() || self.inlet.owes_ack() || self.backlog {
            return Due::NOW;
        }
        // SAFETY: `due` requires that the inlet lives: it is of the QP, which the caller promises.
        unsafe { self.inlet.due() }
    }

    /// Looks after it; true if something has happened.
    #[inline]
    pub(super) fn attend(&mut self, ground: &mut Ground, sink: &mut Sink<'_>) -> bool {
        if self.phase == Phase::Error {
            return false;
        }
        self.backlog = false;
        // What the last turn has taken, if no message has carried the word.
        self.publish();
        let came = self.inlet.has_come() && self.receive(ground, sink);
        let went = if self.sends.is_outstanding() {
            self.attend_sends(ground, sink, came)
        } else {
            self.more = false;
            false
        };
        self.ring();
        came || went
    }

    /// A receive of its own has been polled.
    #[inline]
    pub(super) fn retire_receive(&mut self) {
        self.receives_taken -= 1;
    }

    /// Places that it takes in its CQ.
    pub(super) fn in_cq(&self) -> u64 {
        self.sends.taken() + u64::from(self.receives_taken)
    }

    /// The oldest send ends so, and the QP with it.
    #[cold]
    #[inline(never)]
    pub(super) fn fail_send(&mut self, ground: &mut Ground, status: WcStatus) {
        self.spoil_send(&mut ground.cq, status);
        self.fail(ground);
    }

    /// The message at the head of the inlet is not taken, for that reason; the QP ends.
    #[cold]
    #[inline(never)]
    pub(super) fn refuse(&mut self, ground: &mut Ground, why: NonZeroU8) {
        self.close(why);
        self.fail(ground);
    }

    /// Nothing more is taken from the peer, which hears why once.
    pub(super) fn close(&mut self, why: NonZeroU8) {
        if !self.refused {
            self.refused = true;
            self.inlet.refuse(why);
            self.wake = true;
        }
    }

    /// The peer wrote what no honest one writes: the connection is over, and control hears of it.
    #[cold]
    #[inline(never)]
    pub(super) fn broken(&mut self, ground: &mut Ground) {
        if self.phase != Phase::Error {
            ground.control.raise_fatal(self.number, "QP fatal");
        }
        self.fail(ground);
    }

    /// To the error state: everything posted is flushed, sends first.
    #[cold]
    #[inline(never)]
    pub(super) fn fail(&mut self, ground: &mut Ground) {
        self.phase = Phase::Error;
        self.starved = false;
        (self.rnr, self.more, self.backlog) = (None, false, false);
        self.close(refusal::NO_ANSWER);
        self.flush(ground);
        self.ring();
    }

    /// Flushes what is on the queues of a QP in error.
    #[cold]
    #[inline(never)]
    pub(super) fn flush(&mut self, ground: &mut Ground) {
        while self.sends.is_outstanding() {
            self.spoil_send(&mut ground.cq, WcStatus::Flushed);
        }
        if let Some(filling) = self.filling.take() {
            self.complete_receive(&mut ground.cq, filling.wr.wr_id, Err(WcStatus::Flushed));
        }
        while let Some(wr) = self.receives.pop_front() {
            self.complete_receive(&mut ground.cq, wr.wr_id, Err(WcStatus::Flushed));
        }
    }

    /// The QP is destroyed, without a completion.
    pub(super) fn end(&mut self) {
        self.phase = Phase::Error;
        self.close(refusal::NO_ANSWER);
        self.ring();
    }

    /// Tells the peer what was consumed, if nothing has carried it.
    #[inline]
    pub(super) fn publish(&mut self) {
        if self.inlet.owes_ack() {
            self.inlet.publish();
            self.wake = true;
        }
    }

    /// Wakes the peer if there is something for it and it sleeps.
    #[inline]
    pub(super) fn ring(&mut self) {
        if self.wake
            && let Some(peer) = &self.peer
        {
            self.wake = false;
            peer.ring();
        }
    }
}
