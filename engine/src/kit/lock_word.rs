//! The word of a lock.
//!
//! ```text
//!  63..20 epoch │ 19..8 owner, 0 is free │ 7..0 beat
//! ```
//! The epoch grows with each acquisition and never goes back, so no two acquisitions leave the same
//! word. The beat goes on with each renewal. A word of zero is a lock that nobody ever had.

use std::fmt;
use std::num::NonZeroU16;

const OWNER_SHIFT: u32 = 8;
const OWNER_BITS: u32 = 12;
const EPOCH_SHIFT: u32 = OWNER_SHIFT + OWNER_BITS;

/// The largest number of an owner.
pub const OWNER_MAX: u16 = (1 << OWNER_BITS) - 1;
/// The last epoch. A lock that is taken a hundred thousand times a second comes there after five years,
/// and then is taken no more.
pub const EPOCH_MAX: u64 = (1 << (u64::BITS - EPOCH_SHIFT)) - 1;

/// Counts the acquisitions of a lock. What a newer one has touched, an older one may not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(u64);

impl Epoch {
    /// The epoch that a message carries; `None` for what no lock gives.
    #[must_use]
    pub fn parse(number: u64) -> Option<Self> {
        (number <= EPOCH_MAX).then_some(Self(number))
    }

    /// To be carried in a message.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    pub(super) fn next(self) -> Option<Self> {
        Self::parse(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}", self.0)
    }
}

/// Tells the contenders of one lock apart. Those who share a lock agree on who is which; two that are
/// the same do not endanger it, but nobody can tell who holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner(NonZeroU16);

impl Owner {
    /// 1 to [`OWNER_MAX`]; `None` otherwise.
    #[must_use]
    pub fn new(number: u16) -> Option<Self> {
        let number = NonZeroU16::new(number)?;
        (number.get() <= OWNER_MAX).then_some(Self(number))
    }

    /// Its number.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0.get()
    }
}

/// What stands in the lock's 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct LockWord(pub(super) u64);

impl LockWord {
    pub(super) fn free(epoch: Epoch) -> Self {
        Self(epoch.0 << EPOCH_SHIFT)
    }

    pub(super) fn held(epoch: Epoch, owner: Owner) -> Self {
        Self(epoch.0 << EPOCH_SHIFT | u64::from(owner.get()) << OWNER_SHIFT)
    }

    pub(super) fn epoch(self) -> Epoch {
        Epoch(self.0 >> EPOCH_SHIFT)
    }

    /// `None` when it is free.
    pub(super) fn owner(self) -> Option<Owner> {
        let bits = self.0 >> OWNER_SHIFT & u64::from(OWNER_MAX);
        Owner::new(u16::try_from(bits).ok()?)
    }

    /// The same acquisition, a beat later.
    pub(super) fn renewed(self) -> Self {
        let beat = self.0.wrapping_add(1) & 0xff;
        Self(self.0 & !0xff | beat)
    }
}

impl fmt::Debug for LockWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = self.owner().map_or(0, Owner::get);
        write!(f, "[{} owner {owner} beat {}]", self.epoch(), self.0 & 0xff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_to_their_bits() {
        for (epoch, owner) in [(0, 1), (7, OWNER_MAX), (EPOCH_MAX, OWNER_MAX)] {
            let (epoch, owner) = (Epoch(epoch), Owner::new(owner).expect("in range"));
            let mut word = LockWord::held(epoch, owner);
            for _ in 0..256 {
                assert_eq!((word.epoch(), word.owner()), (epoch, Some(owner)));
                assert_ne!(word.renewed(), word);
                word = word.renewed();
            }
            assert_eq!(word, LockWord::held(epoch, owner), "the beat wraps alone");
            let free = LockWord::free(epoch);
            assert_eq!((free.epoch(), free.owner()), (epoch, None));
        }
        assert_eq!(LockWord(0), LockWord::free(Epoch::default()));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert_eq!(Owner::new(0), None);
        assert_eq!(Owner::new(OWNER_MAX + 1), None);
        assert_eq!(Epoch::parse(EPOCH_MAX + 1), None);
        assert_eq!(Epoch(EPOCH_MAX).next(), None);
    }
}
