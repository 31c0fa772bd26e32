//! A send queue: what is posted, what of it is executed, and what has completed.
//!
//! ```text
//!  retired ── polled ── done ── waits for acks ── executed ── waits to be ── next
//!  room is given back   ▲ completes in order       ▲ part of it may be sent
//! ```
//! What is executed at its post leaves a short note here; only what must wait is kept in full, its inline
//! payload too. All memory is taken when the queue is made. Imported by qp and send.

use crate::fabric::{MoreSges, SendOp, SendWr, WcOpcode};
use crate::types::Lkey;

/// What the completion of a send needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub(super) wr_id: u64,
    pub(super) len: u32,
    /// Cells that the peer must have taken until it is done; none if `None`.
    pub(super) cell: Option<u32>,
    pub(super) opcode: WcOpcode,
    pub(super) signalled: bool,
}

impl Order {
    const BLANK: Self = Self {
        wr_id: 0,
        len: 0,
        cell: None,
        opcode: WcOpcode::Send,
        signalled: false,
    };
}

/// A send that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) wr: SendWr,
    pub(super) more: MoreSges,
}

const IDLE: SendWr = SendWr {
    wr_id: 0,
    addr: 0,
    len: 0,
    lkey: Lkey(0),
    op: SendOp::Send,
    signalled: false,
    inline: false,
    more: 0,
};

/// The send queue of a QP.
#[derive(Debug)]
pub(super) struct SendQueue {
    orders: Box<[Order]>,
    waiting: Box<[Waiting]>,
    inline: Box<[u8]>,
    inline_bytes: u32,
    depth: u64,
    mask: u64,
    /// Sequence numbers: of the oldest that takes room, that has not completed, that is not executed,
    /// and of the next post.
    retired: u64,
    done: u64,
    executed: u64,
    next: u64,
    /// Bytes sent of the oldest that is not executed.
    pub(super) part: u32,
}

impl SendQueue {
    pub(super) fn new(depth: u32, inline_bytes: u32) -> Self {
        let places = depth.max(1).next_power_of_two();
        let waiting = Waiting {
            wr: IDLE,
            more: MoreSges::default(),
        };
        Self {
            orders: vec![Order::BLANK; places as usize].into_boxed_slice(),
            waiting: vec![waiting; places as usize].into_boxed_slice(),
            inline: vec![0; places as usize * inline_bytes as usize].into_boxed_slice(),
            inline_bytes,
            depth: u64::from(depth),
            mask: u64::from(places - 1),
            retired: 0,
            done: 0,
            executed: 0,
            next: 0,
            part: 0,
        }
    }

    #[inline]
    fn at(&self, sequence: u64) -> usize {
        // Masked, it is below the number of places, a u32.
        usize::try_from(sequence & self.mask).unwrap_or(0)
    }

    /// Bytes of an inline payload.
    pub(super) fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    /// There is room for one more.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.next - self.retired < self.depth
    }

    /// So many more have room.
    #[inline]
    pub(super) fn room(&self) -> u64 {
        self.depth - (self.next - self.retired)
    }

    /// Nothing that was posted before waits to be executed.
    #[inline]
    pub(super) fn is_free(&self) -> bool {
        self.executed == self.next
    }

    /// Something is posted that has not completed.
    #[inline]
    pub(super) fn is_outstanding(&self) -> bool {
        self.done != self.next
    }

    /// Sequence of the oldest that has not completed.
    #[inline]
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// The oldest that has not completed is executed.
    #[inline]
    pub(super) fn is_executed(&self) -> bool {
        self.done < self.executed
    }

    /// Places in the queue that are taken.
    pub(super) fn taken(&self) -> u64 {
        self.next - self.retired
    }

    /// Puts a note of a send on the queue.
    #[inline]
    pub(super) fn push(&mut self, wr: &SendWr, len: u32) {
        let at = self.at(self.next);
        self.orders[at] = Order {
            wr_id: wr.wr_id,
            len,
            cell: None,
            opcode: wr.op.completes_as(),
            signalled: wr.signalled,
        };
        self.next += 1;
    }

    /// Puts a SEND on a free queue that is executed already, to be said by [`all_sent`](Self::all_sent)
    /// after the last: it completes when so many cells are taken.
    #[inline(always)]
    pub(super) fn push_sent(&mut self, wr: &SendWr, cell: u32) {
        let at = self.at(self.next);
        self.orders[at] = Order {
            wr_id: wr.wr_id,
            len: wr.len,
            cell: Some(cell),
            opcode: WcOpcode::Send,
            signalled: wr.signalled,
        };
        self.next += 1;
    }

    /// All that was pushed is executed.
    #[inline(always)]
    pub(super) fn all_sent(&mut self) {
        self.executed = self.next;
    }

    /// Completes what is executed in its order, as long as `is_done` with its cell, up to and with the
    /// first that wants a word, which is given with its sequence number.
    #[inline(always)]
    pub(super) fn complete(&mut self, is_done: impl Fn(u32) -> bool) -> Option<(&Order, u64)> {
        let mut sequence = self.done;
        while sequence < self.executed {
            let order = &self.orders[self.at(sequence)];
            if order.cell.is_some_and(|cell| !is_done(cell)) {
                break;
            }
            if order.signalled {
                self.done = sequence + 1;
                return Some((order, sequence));
            }
            sequence += 1;
        }
        self.done = sequence;
        None
    }

    /// Keeps the send that was pushed last, for it must wait. Gives the place of its inline payload.
    pub(super) fn keep(&mut self, wr: &SendWr, more: Option<&MoreSges>) -> &mut [u8] {
        let at = self.at(self.next.wrapping_sub(1));
        self.waiting[at] = Waiting {
            wr: *wr,
            more: more.copied().unwrap_or_default(),
        };
        self.place(at)
    }

    fn place(&mut self, at: usize) -> &mut [u8] {
        let bytes = self.inline_bytes as usize;
        &mut self.inline[at * bytes..][..bytes]
    }

    /// The oldest that is not executed, and its inline payload.
    pub(super) fn oldest(&mut self) -> Option<(Waiting, &mut [u8])> {
        (self.executed < self.next).then_some(())?;
        let at = self.at(self.executed);
        Some((self.waiting[at], self.place(at)))
    }

    /// The oldest that was not executed now is: it completes when so many cells are taken.
    #[inline]
    pub(super) fn execute(&mut self, cell: Option<u32>) {
        let at = self.at(self.executed);
        self.orders[at].cell = cell;
        self.executed += 1;
        self.part = 0;
    }

    /// The oldest that has not completed.
    #[inline]
    pub(super) fn first(&self) -> Option<&Order> {
        (self.done < self.next).then(|| &self.orders[self.at(self.done)])
    }

    /// Takes the oldest that has not completed.
    #[inline]
    pub(super) fn finish(&mut self) -> Option<Order> {
        let order = *self.first()?;
        self.done += 1;
        if self.executed < self.done {
            self.executed = self.done;
            self.part = 0;
        }
        Some(order)
    }

    /// Sends up to this one were polled; gives how many.
    #[inline]
    pub(super) fn retire(&mut self, sequence: u64) -> u64 {
        let count = (sequence + 1).saturating_sub(self.retired);
        self.retired += count;
        count
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sends_are_executed_done_and_retired_in_order() {
        let mut queue = SendQueue::new(3, 8);
        for n in 0..3 {
            assert!(queue.has_room());
            let wr = SendWr { wr_id: n, ..IDLE };
            queue.push(&wr, 5);
            let _ = queue.keep(&wr, None);
        }
        assert!(!queue.has_room() && !queue.is_free());
        assert_eq!(
            queue.oldest().map(|(w, place)| (w.wr.wr_id, place.len())),
            Some((0, 8))
        );
        queue.execute(Some(7));
        assert_eq!(queue.oldest().map(|(w, _)| w.wr.wr_id), Some(1));
        assert_eq!(queue.first().and_then(|order| order.cell), Some(7));
        assert_eq!(queue.finish().map(|order| order.wr_id), Some(0));
        // One that failed was never executed.
        assert_eq!(queue.finish().map(|order| order.wr_id), Some(1));
        assert_eq!(queue.oldest().map(|(w, _)| w.wr.wr_id), Some(2));
        assert_eq!(queue.retire(1), 2);
        assert_eq!(queue.taken(), 1);
        assert!(queue.has_room() && queue.is_outstanding());
        assert!(queue.finish().is_some() && queue.finish().is_none());
        assert!(!queue.is_outstanding() && queue.is_free());
    }
}
