//! The receives of one QP, in the order in which messages take them.
//!
//! ```text
//!  push_back ─► [ … │ head … tail │ … ] ─► front ─► pop_front        a power of two of places, taken once
//! ```
//! Imports the datapath's types. Imported by qp and receive.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use crate::fabric::RecvWr;
use crate::types::Lkey;

const IDLE: RecvWr = RecvWr {
    wr_id: 0,
    addr: 0,
    len: 0,
    lkey: Lkey(0),
};

/// Receives that no message has taken. The QP counts them, and puts no more there than its depth.
#[derive(Debug)]
pub(super) struct Receives {
    places: Box<[RecvWr]>,
    mask: u32,
    /// Positions; they wrap.
    head: u32,
    tail: u32,
}

impl Receives {
    pub(super) fn new(depth: u32) -> Self {
        let places = depth.max(1).next_power_of_two();
        Self {
            places: vec![IDLE; places as usize].into_boxed_slice(),
            mask: places - 1,
            head: 0,
            tail: 0,
        }
    }

    #[inline]
    pub(super) fn push_back(&mut self, wr: &RecvWr) {
        debug_assert!(self.tail.wrapping_sub(self.head) <= self.mask);
        self.places[(self.tail & self.mask) as usize] = *wr;
        self.tail = self.tail.wrapping_add(1);
    }

    /// The next to be taken.
    #[inline(always)]
    pub(super) fn front(&self) -> Option<&RecvWr> {
        if self.head == self.tail {
            return None;
        }
        self.places.get((self.head & self.mask) as usize)
    }

    /// The front was taken.
    #[inline(always)]
    pub(super) fn advance(&mut self) {
        debug_assert_ne!(self.head, self.tail);
        self.head = self.head.wrapping_add(1);
    }

    pub(super) fn pop_front(&mut self) -> Option<RecvWr> {
        let wr = *self.front()?;
        self.advance();
        Some(wr)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out_over_the_edge() {
        let mut receives = Receives::new(3);
        assert!(receives.front().is_none() && receives.pop_front().is_none());
        // Positions wrap as places do.
        (receives.head, receives.tail) = (u32::MAX - 2, u32::MAX - 2);
        for n in 0..20 {
            for wr_id in [n, n + 100, n + 200] {
                receives.push_back(&RecvWr { wr_id, ..IDLE });
            }
            for wr_id in [n, n + 100, n + 200] {
                assert_eq!(receives.front().map(|wr| wr.wr_id), Some(wr_id));
                assert_eq!(receives.pop_front().map(|wr| wr.wr_id), Some(wr_id));
            }
            assert!(receives.front().is_none());
        }
    }
}
