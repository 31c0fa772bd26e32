//! Connections by the number of their QP, for completions that name nothing else.
//!
//! ```text
//!  number ─ multiply, top bits ─► [ – | 17→3 | 42→0 | – | … ]   the next free entry where one is taken
//! ```
//! A completion of a shared receive tells by its QP number alone whose message it brings; that number is
//! valid on errors too. At most half of the entries are in use, so a look takes one or two. Made once,
//! never grown.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use crate::types::QpNum;

/// An open table. Numbers of QPs have 24 bits, so no number is [`FREE`].
pub(crate) struct QpIndex {
    entries: Box<[(u32, u16)]>,
    /// 32 less the bits of a place.
    shift: u32,
}

const FREE: u32 = u32::MAX;
/// The golden ratio of 2^32: numbers that differ little end up far apart.
const SPREAD: u32 = 0x9e37_79b1;

impl QpIndex {
    /// Memory for so many QPs.
    pub(crate) fn new(qps: u32) -> Self {
        let entries = (2 * qps.max(1)).next_power_of_two().max(2);
        Self {
            entries: vec![(FREE, 0); entries as usize].into_boxed_slice(),
            shift: 32 - entries.trailing_zeros(),
        }
    }

    #[inline]
    fn home(&self, number: u32) -> usize {
        (number.wrapping_mul(SPREAD) >> self.shift) as usize
    }

    #[inline]
    fn next(&self, place: usize) -> usize {
        (place + 1) & (self.entries.len() - 1)
    }

    /// The entry of a number, or the free one where it would go.
    #[inline]
    fn place(&self, number: u32) -> usize {
        let mut place = self.home(number);
        while self.entries[place].0 != number && self.entries[place].0 != FREE {
            place = self.next(place);
        }
        place
    }

    /// Index of the connection whose QP has this number.
    #[inline]
    pub(crate) fn find(&self, qp: QpNum) -> Option<u16> {
        let (number, index) = self.entries[self.place(qp.0)];
        (number != FREE).then_some(index)
    }

    /// Notes a QP. There is room: a worker has no more QPs than places.
    pub(crate) fn insert(&mut self, qp: QpNum, index: u16) {
        debug_assert!(qp.0 != FREE && self.find(qp).is_none());
        self.entries[self.place(qp.0)] = (qp.0, index);
    }

    /// Forgets a QP. Entries behind it that it had pushed away come nearer to their homes.
    pub(crate) fn remove(&mut self, qp: QpNum) {
        let mut hole = self.place(qp.0);
        let mut place = hole;
        loop {
            place = self.next(place);
            let (number, _) = self.entries[place];
            if number == FREE {
                break;
            }
            let mask = self.entries.len() - 1;
            let from_home = place.wrapping_sub(self.home(number)) & mask;
            if from_home >= place.wrapping_sub(hole) & mask {
                self.entries[hole] = self.entries[place];
                hole = place;
            }
        }
        self.entries[hole] = (FREE, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// Numbers are drawn from few, so that they collide, come back and leave holes.
        #[test]
        fn it_is_a_map(qps in 1..20u32, steps in prop::collection::vec((0..64u32, any::<u16>()), 0..300)) {
            let mut model: HashMap<u32, u16> = HashMap::new();
            let mut index = QpIndex::new(qps);
            for (number, value) in steps {
                let qp = QpNum(number.wrapping_mul(0x1_0001) & 0xff_ffff);
                if model.remove(&qp.0).is_some() {
                    index.remove(qp);
                } else if model.len() < qps as usize {
                    model.insert(qp.0, value);
                    index.insert(qp, value);
                } else {
                    // Removing what is not there changes nothing.
                    index.remove(qp);
                }
                for number in (0..64u32).map(|n| n.wrapping_mul(0x1_0001) & 0xff_ffff) {
                    prop_assert_eq!(index.find(QpNum(number)), model.get(&number).copied());
                }
            }
        }
    }
}
