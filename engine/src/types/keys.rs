//! One newtype per number that must not be mixed up with another.

use crate::limits::CORE_ID_MAX;
use std::fmt;

/// A CPU core as the kernel numbers it. Holding one proves: below [`CORE_ID_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreId(u16);

impl CoreId {
    /// `None` at [`CORE_ID_MAX`] and above.
    #[must_use]
    pub fn new(number: usize) -> Option<Self> {
        (number < CORE_ID_MAX).then(|| u16::try_from(number).ok().map(Self))?
    }

    /// The kernel's number.
    #[must_use]
    pub fn number(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for CoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Local key of a memory region (IBTA 10.6.3): names it in a work request of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lkey(pub u32);

/// Remote key of a memory region (IBTA 10.6.3): lets a peer name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rkey(pub u32);

/// Number of a queue pair on its device; 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QpNum(pub u32);
