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
//! posted behind a fetch, and long operations are all signalled.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::Token;
use super::sinks::Sink;
use super::wr_id::{span, with_sequence};
use crate::fabric::{MoreSges, QpGrant, SendOp, SendWr, Sge};
use crate::limits::{POST_CHAIN_MAX, SIGNALLED_FROM_BYTES};
use crate::memory::Payload;
use crate::types::{Abilities, Lkey, Rkey};

/// An operation that the queue gave out: its owner's again.
pub(crate) struct Entry {
    pub(crate) token: Token,
    pub(crate) payload: Payload,
    /// Where a READ's bytes are until they are copied to the payload.
    pub(crate) sink: Option<Sink>,
    /// What its completion means.
    pub(crate) sense: Sense,
    /// A word of the layer that posted it.
    pub(crate) mark: u8,
}

/// What the completion of an operation means beyond its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sense {
    /// Nothing.
    Plain,
    /// The payload has what an atomic found.
    Atomic,
    /// A window's key is out of use.
    Revoked(Rkey),
}

impl Sense {
    #[inline]
    pub(crate) fn of(op: SendOp) -> Self {
        match op {
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => Self::Atomic,
            SendOp::LocalInvalidate(rkey) => Self::Revoked(rkey),
            _ => Self::Plain,
        }
    }
}

/// An operation to push. Its first piece stands here, the others in `more`.
pub(crate) struct Operation {
    pub(crate) entry: Entry,
    pub(crate) op: SendOp,
    pub(crate) first: Sge,
    /// Bytes of all pieces.
    pub(crate) len: u32,
}

/// Operations to post behind one doorbell.
pub(crate) struct Chain<'a> {
    pub(crate) wrs: &'a [SendWr],
    /// Pieces behind the first of each; empty where none has any.
    pub(crate) more: &'a [MoreSges],
    first: &'a Option<Entry>,
}

impl Chain<'_> {
    /// What the first operation carries.
    pub(crate) fn first_payload(&self) -> Option<&Payload> {
        self.first.as_ref().map(|e| &e.payload)
    }
}

/// In-flight table and pending chain of one send queue.
pub(crate) struct SendQueue {
    wrs: Box<[SendWr]>,
    /// Pieces behind the first of each; taken when a connection may gather.
    more: Box<[MoreSges]>,
    entries: Box<[Option<Entry>]>,
    depth: u32,
    head: u32,
    posted: u32,
    tail: u32,
    /// Sends behind `posted` that `take_unposted` has given out.
    given_up: u32,
    /// Fetches among all entries; most queues never see one.
    fetches: u32,
    /// Fetches that the NIC has.
    fetches_posted: u32,
    /// Fetches that it may have.
    fetch_depth: u32,
    /// Binds among all entries that are not posted: each is posted alone.
    binds: u32,
    /// An entry has more than one piece, or had since the queue was empty.
    gathers: bool,
    loose: bool,
    base: u64,
    lkey: Lkey,
    inline_bytes: u32,
    abilities: Abilities,
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
            depth,
            head: 0,
            posted: 0,
            tail: 0,
            given_up: 0,
            fetches: 0,
            fetches_posted: 0,
            fetch_depth: 0,
            binds: 0,
            gathers: false,
            loose: false,
            base: 0,
            lkey: Lkey(0),
            inline_bytes: 0,
            abilities: Abilities::LEAST,
        }
    }

    /// Takes up the work of a new connection. The queue is empty before.
    pub(crate) fn open(&mut self, base: u64, lkey: Lkey, grant: &QpGrant) {
        debug_assert!(self.is_empty());
        (self.head, self.posted, self.tail) = (0, 0, 0);
        (self.fetches, self.fetches_posted, self.fetch_depth) = (0, 0, 0);
        (self.base, self.lkey, self.inline_bytes) = (base, lkey, grant.inline_bytes);
        (self.loose, self.gathers, self.binds) = (grant.loose, false, 0);
        self.abilities = grant.abilities;
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

    /// Key of the worker's pool on the connection's device.
    #[inline]
    pub(crate) fn lkey(&self) -> Lkey {
        self.lkey
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

    /// Takes an operation. There is room: the caller asked. `more` are the pieces behind the first.
    #[inline]
    pub(crate) fn push(&mut self, operation: Operation, more: &[Sge]) {
        debug_assert!(self.room() > 0);
        let Operation {
            entry,
            op,
            first,
            len,
        } = operation;
        let fetches = op.is_fetch();
        self.fetches += u32::from(fetches);
        self.binds += u32::from(matches!(op, SendOp::Bind { .. }));
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
        if !more.is_empty() {
            self.gathers = true;
            self.more[slot][..more.len()].copy_from_slice(more);
            #[allow(clippy::cast_possible_truncation, reason = "fewer than SGE_MAX")]
            let n = more.len() as u8;
            self.wrs[slot].more = n;
        }
        // The place is empty, so there is nothing to drop: said so that nothing is compiled for it.
        let before = self.entries[slot].replace(entry);
        debug_assert!(before.is_none());
        std::mem::forget(before);
        self.tail = self.tail.wrapping_add(1);
    }

    /// The next chain to post and its further pieces, its last work request signalled; empty when
    /// nothing waits, or a fetch for those before it.
    #[inline]
    pub(crate) fn chain(&mut self) -> Chain<'_> {
        let start = self.slot(self.posted);
        let waiting = self.tail.wrapping_sub(self.posted) as usize;
        let mut n = waiting.min(POST_CHAIN_MAX).min(self.wrs.len() - start);
        if self.fetches > 0 {
            n = self.before_wait(start, n);
        }
        if self.binds > 0 {
            n = self.before_bind(start, n);
        }
        let chain = &mut self.wrs[start..start + n];
        if let Some(last) = chain.last_mut() {
            last.signalled = true;
        }
        let more = if self.gathers {
            &self.more[start..start + n]
        } else {
            &[]
        };
        Chain {
            wrs: chain,
            more,
            first: &self.entries[start],
        }
    }

    /// How many of the next `n` may be posted before one has to wait for a fetch: a fetch too many, or
    /// on a loose device anything else.
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

    /// The NIC has taken this many of the last chain.
    #[inline]
    pub(crate) fn mark_posted(&mut self, n: usize) {
        if self.binds > 0 && n > 0 {
            // A bind is a chain of its own.
            let first = self.wrs[self.slot(self.posted)].op;
            self.binds -= u32::from(matches!(first, SendOp::Bind { .. }));
        }
        if self.fetches > 0 {
            let start = self.slot(self.posted);
            let posted = self.wrs[start..start + n].iter();
            let fetches = posted.filter(|wr| wr.op.is_fetch()).count();
            self.fetches_posted += u32::try_from(fetches).unwrap_or(0);
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

    /// Takes out the oldest operation that was posted.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Entry> {
        if self.head == self.posted {
            return None;
        }
        let slot = self.slot(self.head);
        if self.fetches > 0 && self.wrs[slot].op.is_fetch() {
            self.fetches -= 1;
            self.fetches_posted -= 1;
        }
        self.head = self.head.wrapping_add(1);
        let entry = self.entries[slot].take();
        debug_assert!(entry.is_some());
        entry
    }

    /// Takes out the operations that wait for a doorbell, oldest first. To be called until it gives
    /// `None`; nothing may be pushed meanwhile.
    pub(crate) fn take_unposted(&mut self) -> Option<Entry> {
        let number = self.posted.wrapping_add(self.given_up);
        if number == self.tail {
            self.tail = self.posted;
            self.given_up = 0;
            return None;
        }
        self.given_up += 1;
        let slot = self.slot(number);
        self.fetches -= u32::from(self.wrs[slot].op.is_fetch());
        self.binds -= u32::from(matches!(self.wrs[slot].op, SendOp::Bind { .. }));
        self.entries[slot].take()
    }
}

#[cfg(test)]
#[path = "send_queue_tests.rs"]
mod tests;
