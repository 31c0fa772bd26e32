//! From a completion to the handler that it is for.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::connection::Phase;
use super::send_queue::{Entry, Sense};
use super::wr_id::{Kind, WrId};
use super::{CloseReason, Completed, Io, Message, Outcome, Service, Worker};
use crate::fabric::{Fabric, Lane, Note, WcOpcode, WcStatus, WorkCompletion};
use std::ops::AddAssign;

/// What completions brought in.
#[derive(Clone, Copy, Default)]
pub(super) struct Received {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

impl AddAssign for Received {
    fn add_assign(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

impl<F: Fabric, S: Service> Worker<F, S> {
    #[inline]
    pub(super) fn complete(&mut self, wc: &<F::Lane as Lane>::Wc) -> Received {
        let mut received = Received::default();
        let Some(id) = WrId::parse(wc.wr_id()) else {
            return received;
        };
        // A completion of an old life: its buffers went back when its QP was destroyed.
        if self
            .core
            .table
            .by_generation(id.index, id.generation)
            .is_none()
        {
            return received;
        }
        if wc.is_success() {
            match id.kind {
                Kind::Recv => received = self.received(id, wc),
                Kind::Send => self.sent(id, Outcome::Done),
            }
        } else {
            self.complete_failed(id, wc.status());
        }
        self.check_drained(id.index);
        received
    }

    #[cold]
    fn complete_failed(&mut self, id: WrId, status: WcStatus) {
        match id.kind {
            Kind::Recv => drop(self.core.table.at(id.index).recvs.take(id.sequence)),
            Kind::Send => self.sent(id, Outcome::Unknown(status)),
        }
        self.failed(id.index, status);
    }

    #[inline]
    fn received(&mut self, id: WrId, wc: &<F::Lane as Lane>::Wc) -> Received {
        let none = Received::default();
        let c = self.core.table.at(id.index);
        let Some(mut buffer) = c.recvs.take(id.sequence) else {
            return none;
        };
        let (len, mut note) = (wc.byte_len(), wc.note());
        if let Note::Invalidated(rkey) = note {
            note = c.windows.invalidated(rkey);
        }
        // A WRITE with immediate tells how much was written elsewhere.
        let written = (note != Note::None && wc.opcode() == WcOpcode::RecvWriteImm).then_some(len);
        if buffer
            .set_len(if written.is_some() { 0 } else { len })
            .is_err()
        {
            // The NIC says that it wrote past the buffer: nothing in it can be trusted.
            self.failed(id.index, WcStatus::LocalLength);
            return none;
        }
        self.repost_due |= c.recvs.vacant() >= c.recvs.batch();
        self.repost_first |= c.recvs.vacant() >= c.recvs.half();
        if !c.hungry && matches!(c.phase, Phase::Open | Phase::Closing(_)) {
            c.hungry = true;
            self.hungry.push(id.index);
        }
        if c.announced {
            self.deliver(id.index, Message::new(buffer, note, written));
        } else {
            c.recvs.keep_early(Message::new(buffer, note, written));
            self.announce(id.index);
        }
        Received {
            messages: 1,
            bytes: u64::from(len),
        }
    }

    #[inline]
    fn deliver(&mut self, index: u16, message: Message) {
        let conn = self.core.table.at(index).id;
        self.service
            .message(&mut Io::new(&mut self.core), conn, message);
    }

    /// Tells the service of a connection whose peer is known, then gives it what came early.
    #[cold]
    pub(super) fn announce(&mut self, index: u16) {
        let c = self.core.table.at(index);
        let (Some(peer), false, conn) = (c.peer, c.announced, c.id) else {
            return;
        };
        c.announced = true;
        c.sends.allow_fetches(peer.initiator_depth);
        self.service
            .connected(&mut Io::new(&mut self.core), conn, &peer);
        while let Some(message) = self.core.table.at(index).recvs.next_early() {
            self.deliver(index, message);
        }
    }

    /// A send completed, and with it all before it: errors complete in any case, so those that did
    /// not are done.
    #[inline]
    fn sent(&mut self, id: WrId, last: Outcome) {
        let c = self.core.table.at(id.index);
        let Some(n) = c.sends.retires(id.sequence) else {
            return;
        };
        for _ in 1..n {
            self.retire(id.index, Outcome::Done);
        }
        self.retire(id.index, last);
        let c = self.core.table.at(id.index);
        // A READ that is done may let the next one go.
        if c.sends.has_unposted() && !c.dirty {
            c.dirty = true;
            self.core.dirty.push(id.index);
        }
        if matches!(c.phase, Phase::Closing(_)) && c.sends.is_empty() {
            self.ask_close(id.index);
        }
    }

    /// Gives the oldest send that was posted back to the service.
    #[inline]
    pub(super) fn retire(&mut self, index: u16, outcome: Outcome) -> bool {
        let Some(entry) = self.core.table.at(index).sends.pop() else {
            return false;
        };
        self.give_back(index, entry, outcome);
        true
    }

    /// Tells the service how an operation ended.
    #[inline]
    pub(super) fn give_back(&mut self, index: u16, mut entry: Entry, outcome: Outcome) {
        let c = self.core.table.at(index);
        let (conn, lane) = (c.id, usize::from(c.lane));
        if let Some(sink) = entry.sink.take()
            && let Some(Some(sinks)) = self.core.sinks.get_mut(lane)
        {
            sinks.settle(
                sink,
                (outcome == Outcome::Done).then_some(&mut entry.payload),
            );
        }
        if let (Sense::Revoked(rkey), Outcome::Done) = (entry.sense, outcome) {
            self.core.table.at(index).windows.free(rkey);
        }
        let completed = Completed {
            token: entry.token,
            outcome,
            payload: entry.payload,
            sense: entry.sense,
            mark: entry.mark,
        };
        self.service
            .completed(&mut Io::new(&mut self.core), conn, completed);
    }

    /// An operation failed: the QP is in error or about to be.
    #[cold]
    fn failed(&mut self, index: u16, status: WcStatus) {
        self.core.counters.completions_failed.add(1);
        let c = self.core.table.at(index);
        if matches!(c.phase, Phase::Open | Phase::Closing(_)) {
            // A flush without an error before it: the peer ended the connection (iWARP flushes
            // before DISCONNECTED arrives).
            c.blame(match status {
                WcStatus::Flushed => CloseReason::Peer,
                other => CloseReason::Failed(other),
            });
            self.ask_close(index);
        }
    }
}
