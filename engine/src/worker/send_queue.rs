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
//! READs and atomics (fetches) beyond the depth that the handshake granted wait in their place, and
//! what comes after them waits too: operations of a connection are posted in the order in which they
//! were asked for. On a loose device ([`QpGrant::loose`](crate::fabric::QpGrant)) only fetches are
//! posted behind a fetch, and long operations are all signalled. Long fetches are on every device: each
//! that is done lets the next one go, while the others keep the link busy.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::Token;
use super::sinks::Sink;
use super::wr_id::{span, with_sequence};
use crate::fabric::{MoreSges, QpGrant, SendOp, SendWr, Sge};
use crate::limits::{POST_CHAIN_MAX, SIGNALLED_FROM_BYTES};
use crate::memory::{Payload, Place};
use crate::types::{Abilities, Lkey};

/// An operation that the queue owns, and its owner's again when it gives it out.
pub(crate) struct Entry {
    pub(crate) token: Token,
    pub(crate) payload: Payload,
    /// A word of the layer that posted it.
    pub(crate) mark: u8,
}

/// What goes with an operation that is not just a SEND or WRITE of one piece.
#[derive(Debug)]
pub(crate) struct Special {
    pub(crate) op: SendOp,
    /// Where a READ's bytes are until they are copied to the payload.
    pub(crate) sink: Option<Sink>,
}

/// In-flight table and pending chain of one send queue.
pub(crate) struct SendQueue {
    wrs: Box<[SendWr]>,
    entries: Box<[Option<Entry>]>,
    depth: u32,
    head: u32,
    posted: u32,
    tail: u32,
    /// Entries that are special: fetches, binds, invalidates, gathers. Most queues never see one.
    specials: u32,
    loose: bool,
    base: u64,
    lkey: Lkey,
    inline_bytes: u32,
    abilities: Abilities,
    /// Pieces behind the first of each.
    more: Box<[MoreSges]>,
    sinks: Box<[Option<Sink>]>,
    /// Fetches that the NIC has.
    fetches_posted: u32,
    /// Fetches that it may have.
    fetch_depth: u32,
    /// Sends behind `posted` that `take_unposted` has given out.
    given_up: u32,
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
            more: vec![MoreSges::default(); slots].into_boxed_slice(),
            entries: (0..slots).map(|_| None).collect(),
            sinks: (0..slots).map(|_| None).collect(),
            depth,
            head: 0,
            posted: 0,
            tail: 0,
            specials: 0,
            loose: false,
            base: 0,
            lkey: Lkey(0),
            inline_bytes: 0,
            abilities: Abilities::LEAST,
            fetches_posted: 0,
            fetch_depth: 0,
            given_up: 0,
        }
    }

    /// Takes up the work of a new connection. The queue is empty before.
    pub(crate) fn open(&mut self, base: u64, lkey: Lkey, grant: &QpGrant) {
        debug_assert!(self.is_empty());
        (self.head, self.posted, self.tail) = (0, 0, 0);
        (self.specials, self.fetches_posted, self.fetch_depth) = (0, 0, 0);
        (self.base, self.lkey, self.inline_bytes) = (base, lkey, grant.inline_bytes);
        (self.loose, self.abilities) = (grant.loose, grant.abilities);
    }

    /// READs and atomics that may be with the NIC at once, as the handshake settled; 0 allows none.
    pub(crate) fn allow_fetches(&mut self, depth: u8) {
        self.fetch_depth = depth.into();
    }

    pub(crate) fn fetch_depth(&self) -> u32 {
        self.fetch_depth
    }

    #[inline]
    pub(crate) fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    /// A piece with its key: the pool's, where it has none of its own.
    #[inline]
    pub(crate) fn sge(&self, place: Place) -> Sge {
        Sge {
            addr: place.addr,
            len: place.len,
            lkey: place.lkey.unwrap_or(self.lkey),
        }
    }

    #[inline]
    fn slot(&self, number: u32) -> usize {
        number as usize & (self.wrs.len() - 1)
    }

    /// Sends that may be pushed now.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.depth - self.taken()
    }

    /// Entries that have not come back.
    #[inline]
    pub(crate) fn taken(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
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

    /// Takes a SEND or WRITE of one piece. There is room: the caller asked.
    #[inline(always)]
    pub(crate) fn push(&mut self, entry: Entry, op: SendOp, first: Sge) {
        debug_assert!(self.room() > 0 && !op.is_special());
        self.place(entry, op, first, first.len);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Takes any operation of `len` bytes in all. There is room: the caller asked. `more` are the
    /// pieces behind the first.
    pub(crate) fn push_special(
        &mut self,
        entry: Entry,
        special: Special,
        first: Sge,
        more: &[Sge],
        len: u32,
    ) {
        debug_assert!(self.room() > 0);
        let Special { op, sink } = special;
        let slot = self.place(entry, op, first, len);
        if op.is_special() || !more.is_empty() {
            self.specials += 1;
        }
        self.wrs[slot].signalled |= op.is_fetch() && len >= SIGNALLED_FROM_BYTES;
        self.sinks[slot] = sink;
        self.more[slot][..more.len()].copy_from_slice(more);
        self.wrs[slot].more = u8::try_from(more.len()).unwrap_or(0);
        self.tail = self.tail.wrapping_add(1);
    }

    #[inline(always)]
    fn place(&mut self, entry: Entry, op: SendOp, first: Sge, len: u32) -> usize {
        let slot = self.slot(self.tail);
        self.wrs[slot] = SendWr {
            wr_id: with_sequence(self.base, self.tail),
            addr: first.addr,
            len: first.len,
            lkey: first.lkey,
            op,
            signalled: self.loose && len >= SIGNALLED_FROM_BYTES,
            inline: len <= self.inline_bytes && op.may_be_inline(),
            more: 0,
        };
        // The place is empty, so there is nothing to drop: said so that nothing is compiled for it.
        let before = self.entries[slot].replace(entry);
        debug_assert!(before.is_none());
        std::mem::forget(before);
        slot
    }

    /// The next chain to post and its further pieces, its last work request signalled; empty when
    /// nothing waits, or a fetch for those before it. A bind is a chain of its own.
    #[inline]
    pub(crate) fn chain(&mut self) -> (&[SendWr], &[MoreSges]) {
        let start = self.slot(self.posted);
        let waiting = self.tail.wrapping_sub(self.posted) as usize;
        if waiting == 1 && self.specials == 0 {
            let lone = &mut self.wrs[start];
            lone.signalled = true;
            return (std::slice::from_ref(lone), &[]);
        }
        let mut n = waiting.min(POST_CHAIN_MAX).min(self.wrs.len() - start);
        let mut more = 0;
        if self.specials > 0 {
            n = self.before_bind(start, self.before_wait(start, n));
            more = n;
        }
        let chain = &mut self.wrs[start..start + n];
        if let Some(last) = chain.last_mut() {
            last.signalled = true;
        }
        (chain, &self.more[start..start + more])
    }

    /// How many of the next `n` may be posted before one has to wait for a fetch: a fetch too many, or
    /// on a loose device anything else.
    #[cold]
    fn before_wait(&self, start: usize, n: usize) -> usize {
        let mut fetches = self.fetches_posted;
        for (i, wr) in self.wrs[start..start + n].iter().enumerate() {
            if wr.op.is_fetch() {
                if fetches >= self.fetch_depth {
                    return i;
                }
                fetches += 1;
            } else if self.loose && fetches > 0 {
                return i;
            }
        }
        n
    }

    /// Up to the next bind; or that alone, if it is the first.
    fn before_bind(&self, start: usize, n: usize) -> usize {
        let mut next = self.wrs[start..start + n].iter();
        let at = next.position(|wr| matches!(wr.op, SendOp::Bind { .. }));
        at.map_or(n, |at| at.max(1))
    }

    /// What the first operation that waits for a doorbell carries.
    pub(crate) fn next_payload(&self) -> Option<&Payload> {
        let entry = self.entries[self.slot(self.posted)].as_ref();
        entry.map(|e| &e.payload)
    }

    /// The NIC has taken this many of the last chain.
    #[inline]
    pub(crate) fn mark_posted(&mut self, n: usize) {
        if self.specials > 0 {
            let start = self.slot(self.posted);
            let posted = self.wrs[start..start + n].iter();
            let fetches = posted.filter(|wr| wr.op.is_fetch()).count();
            self.fetches_posted += u32::try_from(fetches).unwrap_or(0);
        }
        #[allow(clippy::cast_possible_truncation, reason = "at most POST_CHAIN_MAX")]
        let n = n as u32;
        self.posted = self.posted.wrapping_add(n);
        debug_assert!(self.tail.wrapping_sub(self.posted) <= self.depth);
    }

    /// How many sends the completion of `sequence` retires. `None`: it names none that is
    /// outstanding, so it is not ours.
    #[inline]
    pub(crate) fn retires(&self, sequence: u32) -> Option<u32> {
        span(self.head, sequence).filter(|n| *n <= self.outstanding())
    }

    /// An entry is special: [`SendQueue::pop_special`] is to be used.
    #[inline]
    pub(crate) fn has_specials(&self) -> bool {
        self.specials > 0
    }

    /// Takes out the oldest operation that was posted, of a queue without special ones.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Entry> {
        debug_assert!(self.specials == 0);
        if self.head == self.posted {
            return None;
        }
        let slot = self.slot(self.head);
        self.head = self.head.wrapping_add(1);
        self.entries[slot].take()
    }

    /// Takes out the oldest operation that was posted, whatever it is.
    pub(crate) fn pop_special(&mut self) -> Option<(Entry, Special)> {
        if self.head == self.posted {
            return None;
        }
        let slot = self.slot(self.head);
        self.head = self.head.wrapping_add(1);
        self.fetches_posted -= u32::from(self.wrs[slot].op.is_fetch());
        self.take(slot)
    }

    /// Takes out the operations that wait for a doorbell, oldest first. To be called until it gives
    /// `None`; nothing may be pushed meanwhile.
    pub(crate) fn take_unposted(&mut self) -> Option<(Entry, Special)> {
        let number = self.posted.wrapping_add(self.given_up);
        if number == self.tail {
            self.tail = self.posted;
            self.given_up = 0;
            return None;
        }
        self.given_up += 1;
        self.take(self.slot(number))
    }

    fn take(&mut self, slot: usize) -> Option<(Entry, Special)> {
        let wr = &mut self.wrs[slot];
        let was_special = wr.op.is_special() || wr.more > 0;
        self.specials -= u32::from(was_special);
        let sink = self.sinks[slot].take();
        let entry = self.entries[slot].take();
        debug_assert!(entry.is_some());
        Some((entry?, Special { op: wr.op, sink }))
    }
}

#[cfg(test)]
#[path = "send_queue_tests.rs"]
mod tests;
