//! The QPs of a lane in the order in which polls look at them, and the word that each of them waits for.
//!
//! ```text
//!  0 ─── HOT ──────────────────────────── len
//!  every poll │ one in SHARE of these, in turn
//!  Watch { word: of the cell that comes next, due: what it holds then, index }     4 instructions a look
//! ```
//! A QP that has more to do than to wait for a cell is due at once: its watch looks at a word that never
//! changes. One in error never is. So a poll reads one word a QP, and nothing of those that wait. Imports
//! inbox. Imported by lane.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::inbox::Due;
use std::ops::Range;

/// QPs that every poll looks after. Of the others it is one in [`SHARE`].
const HOT: usize = 16;
/// Polls in which all the others have had their turn.
const SHARE: usize = 16;
/// Looks that are written out one behind the other.
const UNROLLED: usize = 8;

#[derive(Debug)]
struct Watch {
    due: Due,
    index: u32,
}

/// The QPs that are here.
#[derive(Debug, Default)]
pub(super) struct Roster {
    watches: Vec<Watch>,
    /// Where each QP stands, by its index.
    positions: Vec<usize>,
    /// The hot one that gives way next.
    hand: usize,
    /// The next of the others.
    next: usize,
}

impl Roster {
    pub(super) fn len(&self) -> usize {
        self.watches.len()
    }

    /// A QP is here; the next poll looks after it.
    pub(super) fn add(&mut self, index: usize) {
        if self.positions.len() <= index {
            self.positions.resize(index + 1, 0);
        }
        self.positions[index] = self.watches.len();
        self.watches.push(Watch {
            due: Due::NOW,
            index: u32::try_from(index).unwrap_or(u32::MAX),
        });
        self.touch(index);
    }

    /// A QP is gone, and its memory may be.
    pub(super) fn remove(&mut self, index: usize) {
        self.watches.retain(|watch| watch.index as usize != index);
        for (position, watch) in self.watches.iter().enumerate() {
            self.positions[watch.index as usize] = position;
        }
        (self.hand, self.next) = (0, 0);
    }

    /// A QP is active: every poll looks after it.
    #[inline]
    pub(super) fn touch(&mut self, index: usize) {
        if self.positions[index] >= HOT {
            self.heat(index);
        }
    }

    #[inline(never)]
    fn heat(&mut self, index: usize) {
        let position = self.positions[index];
        self.watches.swap(position, self.hand);
        self.positions[self.watches[position].index as usize] = position;
        self.positions[index] = self.hand;
        self.hand = (self.hand + 1) % HOT;
    }

    /// When the QP is to be looked after.
    #[inline]
    pub(super) fn expect(&mut self, index: usize, due: Due) {
        let position = self.positions[index];
        self.watches[position].due = due;
    }

    /// The QP there.
    #[inline]
    pub(super) fn at(&self, position: usize) -> usize {
        self.watches[position].index as usize
    }

    /// Those that every poll looks at.
    #[inline]
    pub(super) fn hot(&self) -> Range<usize> {
        0..self.watches.len().min(HOT)
    }

    /// Those of the others whose turn it is.
    #[inline]
    pub(super) fn others(&mut self) -> Range<usize> {
        let len = self.watches.len();
        if len <= HOT {
            return 0..0;
        }
        let from = if self.next >= HOT && self.next < len {
            self.next
        } else {
            HOT
        };
        let share = (len - HOT).div_ceil(SHARE).next_multiple_of(UNROLLED);
        let to = len.min(from + share);
        self.next = to;
        from..to
    }

    /// All of them are hot.
    #[inline]
    pub(super) fn is_small(&self) -> bool {
        self.watches.len() <= HOT
    }

    /// The first of all that is due, where they are few.
    #[inline(always)]
    pub(super) fn first_of_few(&self) -> Option<usize> {
        self.watches.iter().position(|watch| watch.due.has_come())
    }

    /// The QP there is due.
    #[inline(always)]
    pub(super) fn is_due(&self, position: usize) -> bool {
        self.watches[position].due.has_come()
    }

    /// The first of some that is due.
    #[inline]
    pub(super) fn first_due(&self, among: Range<usize>) -> Option<usize> {
        let watches = self.watches.get(among.clone())?;
        let (whole, rest) = watches.as_chunks::<UNROLLED>();
        let mut position = among.start;
        for eight in whole {
            let [a, b, c, d, e, f, g, h] = eight;
            if a.due.has_come()
                || b.due.has_come()
                || c.due.has_come()
                || d.due.has_come()
                || e.due.has_come()
                || f.due.has_come()
                || g.due.has_come()
                || h.due.has_come()
            {
                let found = eight.iter().position(|watch| watch.due.has_come());
                return Some(position + found.unwrap_or(0));
            }
            position += UNROLLED;
        }
        let found = rest.iter().position(|watch| watch.due.has_come());
        found.map(|found| position + found)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_hot_are_seen_by_every_poll_and_the_others_in_turn() {
        let mut roster = Roster::default();
        for index in 0..100 {
            roster.add(index);
        }
        let hot: Vec<_> = roster.hot().map(|p| roster.at(p)).collect();
        assert!((84..100).all(|index| hot.contains(&index)), "{hot:?}");
        roster.touch(3);
        assert!(roster.hot().any(|p| roster.at(p) == 3));
        let mut seen = vec![0; 100];
        for _ in 0..SHARE {
            for position in roster.others() {
                seen[roster.at(position)] += 1;
            }
        }
        let hot: Vec<_> = roster.hot().map(|p| roster.at(p)).collect();
        for (index, times) in seen.iter().enumerate() {
            assert!(hot.contains(&index) != (*times > 0), "{index}: {times}");
        }
        for index in 0..95 {
            roster.remove(index);
        }
        assert_eq!((roster.len(), roster.others().len()), (5, 0));
        roster.expect(97, Due::NEVER);
        for n in 0..5 {
            assert!((roster.at(n) == 97) != (roster.first_due(n..n + 1) == Some(n)));
        }
    }

    #[test]
    fn the_first_that_is_due_is_found_wherever_it_stands() {
        let mut roster = Roster::default();
        for index in 0..21 {
            roster.add(index);
            roster.expect(index, Due::NEVER);
        }
        assert_eq!(roster.first_due(0..21), None);
        for position in (0..21).rev() {
            let index = roster.at(position);
            roster.expect(index, Due::NOW);
            assert_eq!(roster.first_due(0..21), Some(position));
            assert_eq!(roster.first_due(position + 1..21).is_some(), position < 20);
            assert_eq!(roster.first_due(0..position), None);
        }
    }
}
