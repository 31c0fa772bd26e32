//! How often what goes wrong, and the dice for it.
//!
//! Every lane, QP and connection manager has dice of its own, so that what threads do at the same time
//! does not change what each of them meets. Imported by the other files of this folder.

use std::ops::RangeInclusive;

/// Chances, in thousandths. The default is a fabric without faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// A completion is held back for some polls.
    pub delay: u16,
    /// A send waits for some polls before the device gets it, as after RNR, and all behind it. A
    /// device would not need the polls: arming the lane ends the wait, but nobody else can.
    pub wait: u16,
    /// A post is refused with ENOMEM; what stands before a random place of its chain is taken.
    pub refuse: u16,
    /// An operation is not executed and fails, and the QP with it.
    pub fail: u16,
    /// An operation is executed, but its answer is lost: it fails, and the QP with it.
    pub lose_answer: u16,
    /// From an operation on, nothing completes until the QP is set to error or destroyed.
    pub silence: u16,
    /// A step of the handshake ends in an error or in Unreachable.
    pub unreachable: u16,
    /// Established comes late, after data.
    pub late: u16,
    /// Polls that something waits for at most.
    pub polls_max: u16,
}

impl Profile {
    /// What may be late, but not lost: a fabric that is as good as any.
    #[must_use]
    pub const fn harmless() -> Self {
        Self {
            delay: 300,
            wait: 0,
            refuse: 0,
            fail: 0,
            lose_answer: 0,
            silence: 0,
            unreachable: 0,
            late: 500,
            polls_max: 8,
        }
    }

    /// All that RC may show.
    #[must_use]
    pub const fn all() -> Self {
        Self {
            wait: 100,
            refuse: 10,
            fail: 8,
            lose_answer: 8,
            silence: 4,
            unreachable: 60,
            ..Self::harmless()
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): any seed is as good as any other.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Dice for number `n` of what these are for.
    pub(super) fn child(&self, n: u64) -> Self {
        let mut child = Self(self.0 ^ n.wrapping_mul(0xd1b5_4a32_d192_ed03));
        Self(child.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True so many times in a thousand. A chance of none does not throw.
    pub(super) fn hit(&mut self, thousandths: u16) -> bool {
        thousandths > 0 && self.next() % 1000 < u64::from(thousandths)
    }

    /// One at least, and at most so many.
    pub(super) fn some_of(&mut self, most: u16) -> u64 {
        self.pick(1..=u64::from(most.max(1)))
    }

    pub(super) fn pick(&mut self, among: RangeInclusive<u64>) -> u64 {
        let (low, high) = among.into_inner();
        low + self.next() % (high - low + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dice_are_fair_enough_and_the_same_each_time() {
        let throw = |seed| {
            let mut dice = Dice::new(seed);
            (0..10_000).filter(|_| dice.hit(250)).count()
        };
        assert!((2300..2700).contains(&throw(1)), "{}", throw(1));
        assert_eq!(throw(7), throw(7));
        let mut dice = Dice::new(3).child(1);
        assert!((0..1000).all(|_| (4..=6).contains(&dice.pick(4..=6))));
        assert!(!dice.hit(0) && dice.hit(1000));
    }
}
