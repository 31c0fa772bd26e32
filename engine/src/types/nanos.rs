//! Time as the engine takes it: nanoseconds since a clock's own start.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds since the clock that made it was calibrated. Only differences mean anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Later than every instant a clock can give.
    pub const FAR: Self = Self(u64::MAX);

    /// Nanoseconds from `earlier` to here, 0 if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Nanos {
    type Output = Self;
    fn add(self, by: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl Sub for Nanos {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.since(earlier))
    }
}
