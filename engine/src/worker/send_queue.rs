//! The operations of one connection: a ring that owns each buffer from the post to its completion.
//!
//! ```text
//!      head            posted            tail
//!       ▼ with the NIC   ▼ waits for the doorbell ▼ free
//!  ─────[################|========================]─────
//! ```
//! Invariant: the last work request of every chain that was posted is signalled, so a completion
//! (a flush, if need be) always comes for the tail, and counting alone tells when the queue is
//! drained. No marker is needed.
//!
//! READs beyond the depth that the handshake granted wait in their place, and what comes after them
//! waits too: operations of a connection are posted in the order in which they were asked for. On a
//! loose device ([`QpGrant::loose`](crate::fabric::QpGrant)) only READs are posted behind a READ, and
//! long operations are all signalled.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::Token;
use super::wr_id::{span, with_sequence};
use crate::fabric::{SendOp, SendWr};
use crate::limits::{POST_CHAIN_MAX, SIGNALLED_FROM_BYTES};
use crate::memory::Buffer;
use crate::types::Lkey;

struct Entry {
    token: Token,
    buffer: Buffer,
}

/// In-flight table and pending chain of one send queue.
pub(crate) struct SendQueue {
    wrs: Box<[SendWr]>,
    entries: Box<[Option<Entry>]>,
    depth: u32,
    head: u32,
    posted: u32,
    tail: u32,
    /// Sends behind `posted` that `take_unposted` has given out.
    given_up: u32,
    /// READs among all entries; most queues never see one.
    reads: u32,
    /// READs that the NIC has.
    reads_posted: u32,
    /// READs that it may have.
    read_depth: u32,
    loose: bool,
    base: u64,
    lkey: Lkey,
    inline_bytes: u32,
}

impl SendQueue {
    /// All memory of a queue of `depth`; the connection comes with [`SendQueue::open`].
    pub(crate) fn new(depth: u32) -> Self {
        let slots = depth.next_power_of_two().max(1) as usize;
        let blank = SendWr {
            wr_id: 0,
            addr: 0,
            len: 0,
            lkey: Lkey(0),
            op: SendOp::Send,
            signalled: false,
            inline: false,
            more: 0,
        };
        Self {
            wrs: vec![blank; slots].into_boxed_slice(),
            entries: (0..slots).map(|_| None).collect(),
            depth,
            head: 0,
            posted: 0,
            tail: 0,
            given_up: 0,
            reads: 0,
            reads_posted: 0,
            read_depth: 0,
            loose: false,
            base: 0,
            lkey: Lkey(0),
            inline_bytes: 0,
        }
    }

    /// Takes up the work of a new connection. The queue is empty before.
    pub(crate) fn open(&mut self, base: u64, lkey: Lkey, inline_bytes: u32, loose: bool) {
        debug_assert!(self.is_empty());
        (self.head, self.posted, self.tail) = (0, 0, 0);
        (self.reads, self.reads_posted, self.read_depth) = (0, 0, 0);
        (self.base, self.lkey, self.inline_bytes) = (base, lkey, inline_bytes);
        self.loose = loose;
    }

    /// READs that may be with the NIC at once, as the handshake settled; 0 allows none.
    pub(crate) fn allow_reads(&mut self, depth: u8) {
        self.read_depth = depth.into();
    }

    pub(crate) fn read_depth(&self) -> u32 {
        self.read_depth
    }

    #[inline]
    fn slot(&self, number: u32) -> usize {
        number as usize & (self.wrs.len() - 1)
    }

    /// Sends that may be pushed now.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.depth - self.tail.wrapping_sub(self.head)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Sends that the NIC has.
    pub(crate) fn outstanding(&self) -> u32 {
        self.posted.wrapping_sub(self.head)
    }

    /// Something waits for a doorbell.
    #[inline]
    pub(crate) fn has_unposted(&self) -> bool {
        self.posted != self.tail
    }

    /// Takes a buffer and what to do with it. There is room: the caller asked.
    #[inline]
    pub(crate) fn push(&mut self, buffer: Buffer, op: SendOp, token: Token) {
        debug_assert!(self.room() > 0);
        let is_read = op.is_fetch();
        self.reads += u32::from(is_read);
        let slot = self.slot(self.tail);
        let len = buffer.len_bytes();
        self.wrs[slot] = SendWr {
            wr_id: with_sequence(self.base, self.tail),
            addr: buffer.addr(),
            len,
            lkey: self.lkey,
            op,
            signalled: self.loose && len >= SIGNALLED_FROM_BYTES,
            inline: len <= self.inline_bytes && !is_read,
            more: 0,
        };
        // The place is empty, so there is nothing to drop: said so that nothing is compiled for it.
        let before = self.entries[slot].replace(Entry { token, buffer });
        debug_assert!(before.is_none());
        std::mem::forget(before);
        self.tail = self.tail.wrapping_add(1);
    }

    /// The next chain to post, its last work request signalled; empty when nothing waits, or a READ
    /// for those before it.
    #[inline]
    pub(crate) fn chain(&mut self) -> &[SendWr] {
        let start = self.slot(self.posted);
        let waiting = self.tail.wrapping_sub(self.posted) as usize;
        let mut n = waiting.min(POST_CHAIN_MAX).min(self.wrs.len() - start);
        if self.reads > 0 {
            n = self.before_wait_for_read(start, n);
        }
        let chain = &mut self.wrs[start..start + n];
        if let Some(last) = chain.last_mut() {
            last.signalled = true;
        }
        chain
    }

    /// How many of the next `n` may be posted before one has to wait for a READ: a READ too many, or on
    /// a loose device anything else.
    fn before_wait_for_read(&self, start: usize, n: usize) -> usize {
        let mut reads = self.reads_posted;
        for (i, wr) in self.wrs[start..start + n].iter().enumerate() {
            if wr.op.is_fetch() {
                if reads >= self.read_depth {
                    return i;
                }
                reads += 1;
            } else if self.loose && reads > 0 {
                return i;
            }
        }
        n
    }

    /// The NIC has taken this many of the last chain.
    #[inline]
    pub(crate) fn mark_posted(&mut self, n: usize) {
        if self.reads > 0 {
            let start = self.slot(self.posted);
            let posted = self.wrs[start..start + n].iter();
            let reads = posted.filter(|wr| wr.op.is_fetch()).count();
            self.reads_posted += u32::try_from(reads).unwrap_or(0);
        }
        self.posted = self.posted.wrapping_add(u32::try_from(n).unwrap_or(0));
        debug_assert!(self.tail.wrapping_sub(self.posted) <= self.depth);
    }

    /// How many sends the completion of `sequence` retires. `None`: it names none that is
    /// outstanding, so it is not ours.
    #[inline]
    pub(crate) fn retires(&self, sequence: u32) -> Option<u32> {
        span(self.head, sequence).filter(|n| *n <= self.outstanding())
    }

    /// Takes out the oldest send that was posted.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(Token, Buffer)> {
        if self.head == self.posted {
            return None;
        }
        let slot = self.slot(self.head);
        if self.wrs[slot].op.is_fetch() {
            self.reads -= 1;
            self.reads_posted -= 1;
        }
        self.head = self.head.wrapping_add(1);
        let entry = self.entries[slot].take();
        debug_assert!(entry.is_some());
        entry.map(|e| (e.token, e.buffer))
    }

    /// Takes out the sends that wait for a doorbell, oldest first. To be called until it gives
    /// `None`; nothing may be pushed meanwhile.
    pub(crate) fn take_unposted(&mut self) -> Option<(Token, Buffer)> {
        let number = self.posted.wrapping_add(self.given_up);
        if number == self.tail {
            self.tail = self.posted;
            self.given_up = 0;
            return None;
        }
        self.given_up += 1;
        let slot = self.slot(number);
        self.reads -= u32::from(self.wrs[slot].op.is_fetch());
        self.entries[slot].take().map(|e| (e.token, e.buffer))
    }
}

#[cfg(test)]
#[path = "send_queue_tests.rs"]
mod tests;
