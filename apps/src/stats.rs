//! Times: a histogram of fixed memory, and exact moments beside it.
//!
//! ```text
//!  record ─► fresh, a list: a store while something is measured ─► summary: histogram, moments
//!               └─ full ─► histogram and moments at once             buckets: what a picture needs
//! ```

use hdrhistogram::Histogram;
use serde::Serialize;

/// Longest time that is told apart: a minute.
const NANOS_MAX: u64 = 60_000_000_000;

/// Times that are kept as they came. Where a device answers before the post returns, as Soft-RoCE
/// does, nothing is left to hide the cost of a histogram behind.
const FRESH_MAX: usize = 1 << 16;

/// Buckets of a picture for each doubling of the time: 2 to this power.
const BUCKET_BITS: u32 = 4;

/// Times of operations, in nanoseconds.
#[derive(Debug)]
pub(crate) struct Times {
    /// Not counted yet; never longer than its first capacity.
    fresh: Vec<u64>,
    histogram: Histogram<u64>,
    min: u64,
    max: u64,
    sum: u128,
    sum_squares: u128,
    count: u64,
}

/// What they are, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) min: u64,
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
    pub(crate) mean: f64,
    pub(crate) stddev: f64,
}

/// Times from one up to, and without, another a sixteenth or less above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Bucket {
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
    pub(crate) count: u64,
}

impl Bucket {
    /// The one that a time is in.
    fn of(nanos: u64, count: u64) -> Self {
        let low_bits = (u64::BITS - nanos.leading_zeros()).saturating_sub(BUCKET_BITS + 1);
        let from_ns = (nanos >> low_bits) << low_bits;
        Self {
            from_ns,
            to_ns: from_ns.saturating_add(1 << low_bits),
            count,
        }
    }
}

impl Times {
    pub(crate) fn new() -> Self {
        // The bounds are constants that the histogram takes.
        let histogram = Histogram::new_with_bounds(1, NANOS_MAX, 3)
            .unwrap_or_else(|e| unreachable!("constant bounds: {e}"));
        // Written once, so that no page of it is new later.
        let mut fresh = vec![1; FRESH_MAX];
        fresh.clear();
        Self {
            fresh,
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
        if self.fresh.len() < FRESH_MAX {
            self.fresh.push(nanos);
        } else {
            self.count_in(nanos);
        }
    }

    fn count_in(&mut self, nanos: u64) {
        self.histogram.saturating_record(nanos.max(1));
        self.min = self.min.min(nanos);
        self.max = self.max.max(nanos);
        let value = u128::from(nanos);
        self.sum = self.sum.saturating_add(value);
        self.sum_squares = self.sum_squares.saturating_add(value * value);
        self.count += 1;
    }

    #[inline]
    pub(crate) fn count(&self) -> u64 {
        self.count + self.fresh.len() as u64
    }

    /// Puts into the histogram what only lies in the list.
    fn settle(&mut self) {
        let mut fresh = std::mem::take(&mut self.fresh);
        fresh.drain(..).for_each(|nanos| self.count_in(nanos));
        self.fresh = fresh;
    }

    /// Of every `part`th of a time, as in [`summary`](Self::summary), the buckets with a time in them.
    pub(crate) fn buckets(&mut self, part: u32) -> Vec<Bucket> {
        self.settle();
        let mut buckets: Vec<Bucket> = Vec::new();
        for step in self.histogram.iter_recorded() {
            let nanos = step.value_iterated_to() / u64::from(part.max(1));
            let bucket = Bucket::of(nanos, step.count_at_value());
            match buckets.last_mut() {
                Some(last) if last.from_ns == bucket.from_ns => last.count += bucket.count,
                Some(_) | None => buckets.push(bucket),
            }
        }
        buckets
    }

    /// Of every `part`th of a time: 2 makes of a round trip one way, where both ways are alike. `None`
    /// when nothing was recorded.
    pub(crate) fn summary(&mut self, part: u32) -> Option<Summary> {
        self.settle();
        let (whole, share) = (u64::from(part.max(1)), f64::from(part.max(1)));
        if self.count == 0 {
            return None;
        }
        let at = |q: f64| {
            self.histogram
                .value_at_quantile(q)
                .clamp(self.min, self.max)
                / whole
        };
        #[allow(
            clippy::cast_precision_loss,
            reason = "for people, who read fewer digits"
        )]
        let (n, sum, squares) = (self.count as f64, self.sum as f64, self.sum_squares as f64);
        let mean = sum / n;
        let variance = (squares / n - mean * mean).max(0.0);
        Some(Summary {
            min: self.min / whole,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: self.max / whole,
            mean: mean / share,
            stddev: variance.sqrt() / share,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_exact_and_quantiles_within_a_thousandth() {
        let mut times = Times::new();
        for n in 1..=1000u64 {
            times.record(n * 200);
        }
        let one = times.summary(2).expect("recorded");
        assert_eq!((one.min, one.max, times.count()), (100, 100_000, 1000));
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
    fn buckets_count_everything_once_and_are_narrow() {
        let ends = |nanos| {
            let bucket = Bucket::of(nanos, 1);
            (bucket.from_ns, bucket.to_ns)
        };
        for nanos in [0, 1, 15, 16, 17, 31] {
            assert_eq!(ends(nanos), (nanos, nanos + 1));
        }
        let wide = [(32, 34), (32, 34), (34, 36), (992, 1024), (1024, 1088)];
        assert_eq!([32, 33, 34, 1000, 1024].map(ends), wide);
        assert_eq!(ends(u64::MAX), (31 << 59, u64::MAX));
        let mut times = Times::new();
        assert_eq!(times.buckets(2), []);
        (1..=5000u64).for_each(|nanos| times.record(nanos));
        let buckets = times.buckets(2);
        assert_eq!(buckets.iter().map(|b| b.count).sum::<u64>(), 5000);
        assert!(buckets.is_sorted_by(|a, b| a.from_ns < b.from_ns));
        assert!(buckets.len() < 150, "{}", buckets.len());
        // 2000 and 2001, halved; and what a histogram of three digits puts beside them.
        let of = buckets
            .iter()
            .find(|b| b.from_ns == Bucket::of(1000, 1).from_ns);
        let width = 32 * 2;
        assert!(of.is_some_and(|b| b.count.abs_diff(width) <= 4), "{of:?}");
    }

    #[test]
    fn more_than_are_kept_are_counted_too() {
        let mut times = Times::new();
        let n = FRESH_MAX as u64 + 1000;
        (1..=n).for_each(|nanos| times.record(nanos));
        assert_eq!(times.count(), n);
        let one = times.summary(1).expect("recorded");
        assert_eq!((one.min, one.max, times.count()), (1, n, n));
        assert!(one.p50.abs_diff(n / 2) <= n / 1000, "{}", one.p50);
    }

    #[test]
    fn extremes_neither_panic_nor_vanish() {
        let mut times = Times::new();
        assert_eq!(times.summary(2), None);
        times.record(0);
        times.record(u64::MAX / 4);
        let one = times.summary(2).expect("recorded");
        assert_eq!((one.min, one.max), (0, u64::MAX / 8));
    }

    #[test]
    fn the_maximum_is_the_maximum() {
        let mut times = Times::new();
        (0..999).for_each(|_| times.record(1000));
        times.record(123_456_789);
        let one = times.summary(2).expect("recorded");
        assert_eq!((one.max, one.p50), (61_728_394, 500));
        assert!(one.p999 < one.max);
    }
}
