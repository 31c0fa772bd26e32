//! Latencies: a histogram of fixed memory, and exact moments beside it.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Longest time that is told apart: a minute.
const NANOS_MAX: u64 = 60_000_000_000;

/// Round trips, in nanoseconds.
#[derive(Debug)]
pub(crate) struct RoundTrips {
    histogram: Histogram<u64>,
    min: u64,
    max: u64,
    sum: u128,
    sum_squares: u128,
    count: u64,
}

/// Half round trips in nanoseconds: one way, where both ways are alike.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct OneWay {
    pub(crate) min: u64,
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
    pub(crate) mean: f64,
    pub(crate) stddev: f64,
}

impl RoundTrips {
    pub(crate) fn new() -> Self {
        // The bounds are constants that the histogram takes.
        let histogram = Histogram::new_with_bounds(1, NANOS_MAX, 3)
            .unwrap_or_else(|e| unreachable!("constant bounds: {e}"));
        Self {
            histogram,
            min: u64::MAX,
            max: 0,
            sum: 0,
            sum_squares: 0,
            count: 0,
        }
    }

    /// Never allocates.
    #[inline]
    pub(crate) fn record(&mut self, nanos: u64) {
        self.histogram.saturating_record(nanos.max(1));
        self.min = self.min.min(nanos);
        self.max = self.max.max(nanos);
        let value = u128::from(nanos);
        self.sum = self.sum.saturating_add(value);
        self.sum_squares = self.sum_squares.saturating_add(value * value);
        self.count += 1;
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// `None` when nothing was recorded.
    pub(crate) fn one_way(&self) -> Option<OneWay> {
        if self.count == 0 {
            return None;
        }
        let at = |q: f64| {
            self.histogram
                .value_at_quantile(q)
                .clamp(self.min, self.max)
                / 2
        };
        #[allow(
            clippy::cast_precision_loss,
            reason = "for people, who read fewer digits"
        )]
        let (n, sum, squares) = (self.count as f64, self.sum as f64, self.sum_squares as f64);
        let mean = sum / n;
        let variance = (squares / n - mean * mean).max(0.0);
        Some(OneWay {
            min: self.min / 2,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: self.max / 2,
            mean: mean / 2.0,
            stddev: variance.sqrt() / 2.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_exact_and_quantiles_within_a_thousandth() {
        let mut trips = RoundTrips::new();
        for n in 1..=1000u64 {
            trips.record(n * 200);
        }
        let one = trips.one_way().expect("recorded");
        assert_eq!((one.min, one.max, trips.count()), (100, 100_000, 1000));
        assert!((one.mean - 50_050.0).abs() < 1e-6);
        // Of 100·(1…1000): 100·sqrt((1000²-1)/12).
        assert!((one.stddev - 28_867.499).abs() < 0.01, "{}", one.stddev);
        for (got, want) in [
            (one.p50, 50_000),
            (one.p90, 90_000),
            (one.p99, 99_000),
            (one.p999, 99_900),
        ] {
            assert!(got.abs_diff(want) <= want / 1000 + 1, "{got} for {want}");
        }
    }

    #[test]
    fn extremes_neither_panic_nor_vanish() {
        let mut trips = RoundTrips::new();
        assert_eq!(trips.one_way(), None);
        trips.record(0);
        trips.record(u64::MAX / 4);
        let one = trips.one_way().expect("recorded");
        assert_eq!((one.min, one.max), (0, u64::MAX / 8));
    }

    #[test]
    fn the_maximum_is_the_maximum() {
        let mut trips = RoundTrips::new();
        (0..999).for_each(|_| trips.record(1000));
        trips.record(123_456_789);
        let one = trips.one_way().expect("recorded");
        assert_eq!((one.max, one.p50), (61_728_394, 500));
        assert!(one.p999 < one.max);
    }
}
