//! The time stamp counter as nanoseconds.
//!
//! ```text
//!  calibrated():  mark ── 5 ms ── mark ── 5 ms ── mark ── 5 ms ── mark ── 5 ms ── mark      once
//!                 mark = the closest of 64 pairs (counter, CLOCK_MONOTONIC)
//!  now():         (rdtsc − first) · multiplier >> 32                                   each stamp
//! ```
//! Ours because clock crates fall back to a system call a stamp where the kernel does not vouch for
//! the counter, as in many guests. We check instead of asking: the marks must agree on the rate.
//! If they do not, or the CPU is no x86-64, stamps come from `CLOCK_MONOTONIC`, and
//! [`Clock::source`] says so. For intervals only: the rate is off by some parts in a million, and a
//! guest that moves to another host keeps the old one.
//! Imports types. Imported by worker, control and benches; nothing else reads time.

#![allow(
    unsafe_code,
    reason = "reads the time stamp counter, and the kernel's clock through libc"
)]

use crate::types::Nanos;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

const NANOS_PER_SECOND: u64 = 1_000_000_000;
/// Pairs per mark; the one with the least time between its two counter reads is kept.
const PAIRS_PER_MARK: usize = 64;
/// Marks after the first, and the time between them.
const MARKS: usize = 4;
const MARK_INTERVAL: Duration = Duration::from_millis(5);
/// Calibrations until the marks agree.
const ATTEMPTS: usize = 3;
/// Marks agree if each one's rate is within this share of the last one's: one part in so many.
const AGREEMENT: u64 = 1000;
/// Rates that a time stamp counter can have, in Hz.
const RATES: std::ops::RangeInclusive<u64> = 100_000_000..=20 * NANOS_PER_SECOND;

/// Turns the counter into [`Nanos`]. All clocks of a process are the same clock, so instants of
/// different threads can be compared, as far as the counters of their cores agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    source: Source,
    /// The counter at `Nanos(0)`.
    first: u64,
    /// Nanoseconds per tick, times 2³².
    multiplier: u64,
    ticks_per_second: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Tsc,
    Monotonic,
}

impl Clock {
    /// The clock of this process. The first call takes about 20 ms; later ones give the same clock.
    #[must_use]
    pub fn calibrated() -> Self {
        static CLOCK: OnceLock<Clock> = OnceLock::new();
        *CLOCK.get_or_init(|| {
            (0..ATTEMPTS)
                .find_map(|_| Self::calibrate())
                .unwrap_or_else(Self::monotonic)
        })
    }

    /// Nanoseconds since the first calibration. On one thread it never goes back; between cores whose
    /// counters differ it may, which is why [`Nanos::since`] saturates.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Nanos {
        let ticks = match self.source {
            Source::Tsc => counter(),
            Source::Monotonic => monotonic_ns(),
        };
        Nanos(self.nanos(ticks.saturating_sub(self.first)))
    }

    /// Where stamps come from: `"tsc"` or `"clock_gettime"`.
    #[must_use]
    pub fn source(&self) -> &'static str {
        match self.source {
            Source::Tsc => "tsc",
            Source::Monotonic => "clock_gettime",
        }
    }

    /// Ticks of the source in a second, as measured.
    #[must_use]
    pub fn ticks_per_second(&self) -> u64 {
        self.ticks_per_second
    }

    /// What one [`now`](Self::now) costs here, in nanoseconds: the median over many short runs.
    #[must_use]
    pub fn cost_ns(&self) -> f64 {
        const RUNS: usize = 101;
        const STAMPS: u32 = 64;
        let mut runs = [0; RUNS];
        for run in &mut runs {
            let start = self.now();
            for _ in 0..STAMPS {
                std::hint::black_box(self.now());
            }
            *run = self.now().since(start);
        }
        runs.sort_unstable();
        // One stamp more than the loop has lies between the two readings.
        let median = u32::try_from(runs[RUNS / 2]).unwrap_or(u32::MAX);
        f64::from(median) / f64::from(STAMPS + 1)
    }

    /// The product has at most 128 bits and, shifted, stays below 2⁶⁴ for 584 years of ticks.
    #[inline]
    fn nanos(&self, ticks: u64) -> u64 {
        let wide = (u128::from(ticks) * u128::from(self.multiplier)) >> 32;
        #[allow(
            clippy::cast_possible_truncation,
            reason = "584 years after the first calibration"
        )]
        let nanos = wide as u64;
        nanos
    }

    fn with_rate(source: Source, first: u64, ticks_per_second: u64) -> Self {
        Self {
            source,
            first,
            // At most 10 · 2³² for the slowest rate there is.
            multiplier: (NANOS_PER_SECOND << 32) / ticks_per_second,
            ticks_per_second,
        }
    }

    fn monotonic() -> Self {
        Self::with_rate(Source::Monotonic, monotonic_ns(), NANOS_PER_SECOND)
    }

    /// `None` if the counter is none, or its rate changes under our eyes.
    fn calibrate() -> Option<Self> {
        if !cfg!(target_arch = "x86_64") {
            return None;
        }
        let first = Mark::take();
        let rates = std::array::from_fn(|_| {
            thread::sleep(MARK_INTERVAL);
            Mark::take().rate_since(&first)
        });
        let rate = agreed(rates)?;
        Some(Self::with_rate(Source::Tsc, first.ticks, rate))
    }
}

/// The last of the rates, which spans the longest time, if the others agree with it.
fn agreed(rates: [Option<u64>; MARKS]) -> Option<u64> {
    let last = rates[MARKS - 1].filter(|rate| RATES.contains(rate))?;
    rates
        .iter()
        .all(|rate| rate.is_some_and(|rate| rate.abs_diff(last) <= last / AGREEMENT))
        .then_some(last)
}

/// The counter and the kernel's clock at almost the same instant.
struct Mark {
    ticks: u64,
    ns: u64,
}

impl Mark {
    fn take() -> Self {
        let pair = || {
            let before = counter();
            let ns = monotonic_ns();
            let after = counter();
            let width = after.saturating_sub(before);
            (width, before + width / 2, ns)
        };
        let (_, ticks, ns) = (0..PAIRS_PER_MARK)
            .map(|_| pair())
            .min()
            .unwrap_or_else(pair);
        Self { ticks, ns }
    }

    /// Ticks a second between two marks.
    fn rate_since(&self, earlier: &Self) -> Option<u64> {
        let ticks = u128::from(self.ticks.checked_sub(earlier.ticks)?);
        let ns = u128::from(self.ns.checked_sub(earlier.ns)?);
        u64::try_from((ticks * u128::from(NANOS_PER_SECOND)).checked_div(ns)?).ok()
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: `_rdtsc` requires an x86-64 CPU, which the cfg gives, and a process that has not
    // switched the instruction off with prctl(PR_SET_TSC), which nothing here does.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn counter() -> u64 {
    monotonic_ns()
}

/// `CLOCK_MONOTONIC` counts from boot and cannot be negative. Asked of libc, which asks the vDSO where
/// there is one: under valgrind, which counts instructions, there is none, and rustix reads what is not
/// there.
#[inline]
fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `clock_gettime` requires a place for a `timespec`: `now` is one. It cannot fail: the clock
    // is one that every kernel has.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.unsigned_abs() * NANOS_PER_SECOND + now.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn never_goes_back_on_one_thread() {
        for clock in [Clock::calibrated(), Clock::monotonic()] {
            let mut last = clock.now();
            for _ in 0..100_000 {
                let now = clock.now();
                assert!(now >= last);
                last = now;
            }
        }
    }

    #[test]
    fn runs_at_the_speed_of_the_system_clock() {
        for clock in [Clock::calibrated(), Clock::monotonic()] {
            // Each side brackets the other, so a preemption between the readings cannot fail this.
            let (outer, ours) = (Instant::now(), clock.now());
            let inner = Instant::now();
            thread::sleep(Duration::from_millis(50));
            let least = inner.elapsed();
            let ours = clock.now().since(ours);
            let most = outer.elapsed();
            assert!(u128::from(ours) >= least.as_nanos() * 9 / 10, "{clock:?}");
            assert!(u128::from(ours) <= most.as_nanos() * 11 / 10, "{clock:?}");
        }
    }

    #[test]
    fn all_clocks_of_a_process_are_one() {
        let (here, there) = (
            Clock::calibrated(),
            thread::spawn(Clock::calibrated).join().unwrap(),
        );
        assert_eq!(here.first, there.first);
        assert_eq!(here.multiplier, there.multiplier);
    }

    #[test]
    fn says_what_it_is() {
        let clock = Clock::calibrated();
        assert!(["tsc", "clock_gettime"].contains(&clock.source()));
        assert!(RATES.contains(&clock.ticks_per_second()));
        let cost = clock.cost_ns();
        assert!(cost > 0.0 && cost < 1e6, "{cost}");
        println!("{clock:?}, a stamp costs {cost:.1} ns");
    }

    #[test]
    fn a_century_does_not_overflow() {
        const CENTURY: u64 = 100 * 366 * 24 * 3600;
        for rate in [
            *RATES.start(),
            NANOS_PER_SECOND,
            2_899_999_997,
            5_000_000_000,
        ] {
            let clock = Clock::with_rate(Source::Tsc, 0, rate);
            let nanos = clock.nanos(rate * CENTURY);
            let exact = NANOS_PER_SECOND * CENTURY;
            assert!(nanos.abs_diff(exact) < exact / 1_000_000_000, "{rate}");
        }
    }

    #[test]
    fn marks_must_agree() {
        let good = 3 * NANOS_PER_SECOND;
        let near = good + good / AGREEMENT;
        assert_eq!(
            agreed([Some(near), Some(good), Some(good), Some(good)]),
            Some(good)
        );
        assert_eq!(
            agreed([Some(near + 1), Some(good), Some(good), Some(good)]),
            None
        );
        assert_eq!(agreed([Some(good), None, Some(good), Some(good)]), None);
        assert_eq!(agreed([Some(5); MARKS]), None);
    }
}
