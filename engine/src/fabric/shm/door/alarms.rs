//! What is to be looked at when: one point in time a key, and one timer for all.
//!
//! Imports sys. Imported by mod.

use crate::sys::timer::Timer;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Instant;

/// Points in time by key.
#[derive(Debug)]
pub(super) struct Alarms {
    timer: Timer,
    /// What the timer is set to.
    armed: Option<Instant>,
    by_time: BTreeSet<(Instant, u64)>,
    by_key: BTreeMap<u64, Instant>,
}

impl Alarms {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            timer: Timer::new()?,
            armed: None,
            by_time: BTreeSet::new(),
            by_key: BTreeMap::new(),
        })
    }

    /// Readable when something is due.
    pub(super) fn timer(&self) -> &Timer {
        &self.timer
    }

    /// Sets, moves or drops the alarm of a key.
    pub(super) fn set(&mut self, key: u64, at: Option<Instant>) {
        if let Some(old) = self.by_key.remove(&key) {
            self.by_time.remove(&(old, key));
        }
        if let Some(at) = at {
            self.by_key.insert(key, at);
            self.by_time.insert((at, key));
        }
    }

    /// Takes one that is due.
    pub(super) fn due(&mut self, now: Instant) -> Option<u64> {
        let (at, key) = *self.by_time.first()?;
        if at > now {
            return None;
        }
        self.set(key, None);
        Some(key)
    }

    /// Sets the timer to what comes first, if that is something else than before.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        let first = self.by_time.first().map(|(at, _)| *at);
        if first != self.armed {
            let now = Instant::now();
            self.timer
                .set(first.map(|at| at.saturating_duration_since(now)))?;
            self.armed = first;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn they_are_due_in_order_and_once() {
        let mut alarms = Alarms::new().unwrap();
        let now = Instant::now();
        let at = |ms| Some(now + Duration::from_millis(ms));
        alarms.set(1, at(30));
        alarms.set(2, at(10));
        alarms.set(3, at(10));
        alarms.set(4, at(5));
        alarms.set(4, None);
        alarms.set(1, at(20));
        assert_eq!(alarms.due(now), None);
        let later = now + Duration::from_millis(15);
        assert_eq!(alarms.due(later), Some(2));
        assert_eq!(alarms.due(later), Some(3));
        assert_eq!(alarms.due(later), None);
        assert_eq!(alarms.due(now + Duration::from_millis(20)), Some(1));
        assert_eq!(alarms.due(now + Duration::from_secs(9)), None);
        alarms.settle().unwrap();
    }
}
