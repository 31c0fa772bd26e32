//! From a completion to the handler that it is for.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::connection::{Connection, Phase};
use super::send_queue::{Entry, Special};
use super::wr_id::{index_of, key_of, sequence_of};
use super::{CloseReason, Completed, Io, Message, Outcome, Service, Worker};
use crate::fabric::{Fabric, Lane, Note, SendOp, WcOpcode, WcStatus, WorkCompletion};
use crate::memory::Buffer;

/// What completions brought in.
#[derive(Clone, Copy, Default)]
pub(super) struct Received {
    pub(super) messages: u32,
    pub(super) bytes: u64,
}

impl Received {
    #[inline]
    fn count(&mut self, bytes: u32) {
        self.messages += 1;
        self.bytes += u64::from(bytes);
    }
}

/// The message that a receive brought. A WRITE with immediate left the buffer as it was, and tells
/// how much it wrote elsewhere. `None`: the NIC says that it wrote past the buffer, so nothing in it can be
/// trusted.
fn message_of<W: WorkCompletion>(
    c: &mut Connection,
    mut buffer: Buffer,
    wc: &W,
) -> Option<Message> {
    let note = match wc.note() {
        Note::Invalidated(rkey) => c.windows.invalidated(rkey),
        note => note,
    };
    let written = (wc.opcode() == WcOpcode::RecvWriteImm).then(|| wc.byte_len());
    let len = if written.is_some() { 0 } else { wc.byte_len() };
    buffer.set_len(len).ok()?;
    Some(Message::new(buffer, note, written))
}

impl<F: Fabric, S: Service> Worker<F, S> {
    /// Finds what a completion is of. One of an old life is of nothing: its buffers went back when its
    /// QP was destroyed.
    #[inline(always)]
    pub(super) fn complete(&mut self, wc: &<F::Lane as Lane>::Wc, received: &mut Received) {
        let word = wc.wr_id();
        let (index, key) = (index_of(word), key_of(word));
        let Some(c) = self.core.table.place(index) else {
            return;
        };
        let is_recv = key == c.recv_key;
        if !is_recv && key != c.send_key {
            return self.complete_shared(wc, received);
        }
        if !wc.is_success() || !c.phase.is_up() {
            return self.complete_late(index, is_recv, wc, received);
        }
        if is_recv {
            self.received(index, sequence_of(word), wc, received);
        } else {
            self.sent(index, sequence_of(word), Outcome::Done);
        }
    }

    /// A completion that failed, or came when the connection was ending.
    #[cold]
    fn complete_late(
        &mut self,
        index: u16,
        is_recv: bool,
        wc: &<F::Lane as Lane>::Wc,
        received: &mut Received,
    ) {
        let (sequence, status) = (sequence_of(wc.wr_id()), wc.status());
        match (is_recv, wc.is_success()) {
            (true, true) => self.received(index, sequence, wc, received),
            (false, true) => self.sent(index, sequence, Outcome::Done),
            (true, false) => drop(self.core.table.at(index).recvs.take(sequence)),
            (false, false) => self.sent(index, sequence, Outcome::Unknown(status)),
        }
        if !wc.is_success() {
            self.failed(index, status);
        }
        self.check_drained(index);
    }

    #[inline(always)]
    fn received(
        &mut self,
        index: u16,
        slot: u32,
        wc: &<F::Lane as Lane>::Wc,
        received: &mut Received,
    ) {
        let c = self.core.table.at(index);
        let Some(buffer) = c.recvs.take(slot) else {
            return;
        };
        if c.recvs.vacant() >= c.recvs.batch() {
            self.repost_due = true;
            self.repost_first |= c.recvs.vacant() >= c.recvs.half();
        }
        if !c.hungry {
            c.hungry = true;
            self.hungry.push(index);
        }
        self.deliver(index, buffer, wc, received);
    }

    /// Gives what a receive brought to the service, which knows the connection in all but rare cases.
    #[inline(always)]
    pub(super) fn deliver(
        &mut self,
        index: u16,
        mut buffer: Buffer,
        wc: &<F::Lane as Lane>::Wc,
        received: &mut Received,
    ) {
        let c = self.core.table.at(index);
        let len = wc.byte_len();
        // In nearly all cases a message is made of what registers hold.
        if wc.note() != Note::None || !c.announced || buffer.set_len(len).is_err() {
            return self.deliver_rare(index, buffer, wc, received);
        }
        received.count(len);
        let conn = c.id;
        let io = &mut Io::new(&mut self.core);
        self.service
            .message(io, conn, Message::new(buffer, Note::None, None));
    }

    #[cold]
    #[inline(never)]
    fn deliver_rare(
        &mut self,
        index: u16,
        buffer: Buffer,
        wc: &<F::Lane as Lane>::Wc,
        received: &mut Received,
    ) {
        let c = self.core.table.at(index);
        let Some(message) = message_of(c, buffer, wc) else {
            return self.failed(index, WcStatus::LocalLength);
        };
        received.count(wc.byte_len());
        if !c.announced {
            return self.came_early(index, message);
        }
        let conn = c.id;
        let io = &mut Io::new(&mut self.core);
        self.service.message(io, conn, message);
    }

    /// A message waits until the service knows the connection.
    #[cold]
    fn came_early(&mut self, index: u16, message: Message) {
        let c = self.core.table.at(index);
        if c.recvs.keep_early(message) {
            return self.announce(index);
        }
        c.blame(CloseReason::EarlyFlood);
        self.ask_close(index);
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
            let io = &mut Io::new(&mut self.core);
            self.service.message(io, conn, message);
        }
    }

    /// A send completed, and with it all before it: errors complete in any case, so those that did
    /// not are done.
    #[inline(always)]
    fn sent(&mut self, index: u16, sequence: u32, last: Outcome) {
        let c = self.core.table.at(index);
        let Some(n) = c.sends.retires(sequence) else {
            return;
        };
        for left in (0..n).rev() {
            self.retire(index, if left == 0 { last } else { Outcome::Done });
        }
        let c = self.core.table.at(index);
        // A READ that is done may let the next one go.
        if c.sends.has_unposted() {
            c.wants_doorbell(&mut self.core.dirty);
        }
        if matches!(c.phase, Phase::Closing(_)) && c.sends.is_empty() {
            self.ask_close(index);
        }
    }

    /// Gives the oldest send that was posted back to the service.
    #[inline(always)]
    pub(super) fn retire(&mut self, index: u16, outcome: Outcome) -> bool {
        let c = self.core.table.at(index);
        if c.sends.has_specials() {
            return self.retire_special(index, outcome);
        }
        let conn = c.id;
        let Some(entry) = c.sends.pop() else {
            return false;
        };
        let completed = Completed {
            token: entry.token,
            outcome,
            payload: entry.payload,
            atomic: false,
            mark: entry.mark,
        };
        let io = &mut Io::new(&mut self.core);
        self.service.completed(io, conn, completed);
        true
    }

    #[cold]
    fn retire_special(&mut self, index: u16, outcome: Outcome) -> bool {
        let popped = self.core.table.at(index).sends.pop_special();
        popped.is_some_and(|(entry, special)| {
            self.give_back(index, entry, special, outcome);
            true
        })
    }

    /// Tells the service how an operation ended.
    pub(super) fn give_back(
        &mut self,
        index: u16,
        mut entry: Entry,
        special: Special,
        outcome: Outcome,
    ) {
        let c = self.core.table.at(index);
        let (conn, lane, done) = (c.id, usize::from(c.lane), outcome == Outcome::Done);
        if let (SendOp::LocalInvalidate(rkey), true) = (special.op, done) {
            c.windows.free(rkey);
        }
        if let Some(sink) = special.sink
            && let Some(Some(sinks)) = self.core.sinks.get_mut(lane)
        {
            sinks.settle(sink, done.then_some(&mut entry.payload));
        }
        let completed = Completed {
            token: entry.token,
            outcome,
            payload: entry.payload,
            atomic: matches!(
                special.op,
                SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
            ),
            mark: entry.mark,
        };
        let io = &mut Io::new(&mut self.core);
        self.service.completed(io, conn, completed);
    }

    /// An operation failed: the QP is in error or about to be.
    #[cold]
    pub(super) fn failed(&mut self, index: u16, status: WcStatus) {
        self.core.counters.completions_failed.add(1);
        let c = self.core.table.at(index);
        if c.phase.is_up() {
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
