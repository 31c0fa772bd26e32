//! The median of a few figures, and how sure it is: the percentile bootstrap.
//!
//! ```text
//!  figures ─► resampled with replacement, RESAMPLES times ─► medians, sorted ─► the 2.5 % and 97.5 % ones
//! ```
//! The generator begins at SEED each time, so the same figures give the same interval.

use serde::Serialize;

/// Resamples of each interval.
pub(crate) const RESAMPLES: usize = 10_000;
/// Where the generator begins.
pub(crate) const SEED: u64 = 0x5eed_0000_0000_0001;

/// A median and the interval that holds it with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Estimate {
    pub(crate) median: f64,
    /// Both ends; `None` with fewer than three figures, which tell nothing of how they vary.
    pub(crate) interval: Option<(f64, f64)>,
}

/// `None` without a figure.
pub(crate) fn estimate(figures: &[f64]) -> Option<Estimate> {
    let median = median(&mut figures.to_vec())?;
    let interval = (figures.len() >= 3).then(|| interval(figures));
    Some(Estimate { median, interval })
}

/// `None` without a figure. Sorts them.
pub(crate) fn median(figures: &mut [f64]) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let upper = *figures.get(figures.len() / 2)?;
    let lower = figures[(figures.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

fn interval(figures: &[f64]) -> (f64, f64) {
    let mut random = SplitMix(SEED);
    let mut sample = figures.to_vec();
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| {
            for place in &mut sample {
                *place = figures[random.below(figures.len())];
            }
            median(&mut sample)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let cut = RESAMPLES / 40;
    (medians[cut], medians[RESAMPLES - 1 - cut])
}

/// `SplitMix64` (Steele, Lea and Flood, 2014).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, which is far below 2^64: the bias is nothing.
    fn below(&mut self, n: usize) -> usize {
        let scaled = (u128::from(self.next()) * n as u128) >> 64;
        usize::try_from(scaled).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn medians() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0]), Some(3.0));
        assert_eq!(median(&mut [9.0, 1.0, 4.0]), Some(4.0));
        assert_eq!(median(&mut [4.0, 9.0, 1.0, 2.0]), Some(3.0));
    }

    #[test]
    fn few_figures_have_no_interval() {
        assert_eq!(estimate(&[]), None);
        let of = |figures| estimate(figures).and_then(|e| e.interval);
        assert_eq!((of(&[1.0]), of(&[1.0, 2.0])), (None, None));
        assert_eq!(of(&[2.0; 3]), Some((2.0, 2.0)));
    }

    #[test]
    fn the_interval_is_that_of_the_exact_distribution() {
        // Of 1 … 5 a resampled median is at most k with P(Bin(5, k/5) >= 3): 0.058 for k = 1, so the
        // 2.5 % point is 1, and by symmetry the 97.5 % point is 5.
        let estimate = estimate(&[5.0, 3.0, 1.0, 4.0, 2.0]).expect("figures");
        assert_eq!(estimate.median, 3.0);
        assert_eq!(estimate.interval, Some((1.0, 5.0)));
        // Of 1 … 7: P(Bin(7, k/7) >= 4) is 0.010 for k = 1 and 0.108 for k = 2.
        let figures: Vec<f64> = (1..=7).map(f64::from).collect();
        let of_7 = super::estimate(&figures).expect("figures");
        assert_eq!(of_7.interval, Some((2.0, 6.0)));
    }

    #[test]
    fn the_generator_is_the_published_one() {
        let mut random = SplitMix(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    /// How often the interval of eleven figures around 1 holds 1, over seeded draws.
    #[test]
    fn it_covers_what_it_says() {
        let mut random = SplitMix(42);
        let mut draw =
            || f64::from(u32::try_from(random.below(1 << 20)).unwrap_or(0)) / f64::from(1 << 19);
        let trials = 60;
        let held = (0..trials)
            .filter(|_| {
                let figures: Vec<f64> = (0..11).map(|_| draw()).collect();
                let (low, high) = interval(&figures);
                low <= 1.0 && 1.0 <= high
            })
            .count();
        assert!(held * 100 >= trials * 85, "{held} of {trials}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]

        #[test]
        fn it_lies_among_the_figures_and_around_the_median(
            figures in prop::collection::vec(0.01f64..100.0, 3..12)
        ) {
            let estimate = estimate(&figures).expect("figures");
            let (low, high) = estimate.interval.expect("three at least");
            let least = figures.iter().copied().fold(f64::MAX, f64::min);
            let most = figures.iter().copied().fold(f64::MIN, f64::max);
            prop_assert!(least <= low && low <= estimate.median);
            prop_assert!(estimate.median <= high && high <= most);
        }

        #[test]
        fn order_and_scale_do_not_matter(
            mut figures in prop::collection::vec(0.01f64..100.0, 3..9),
        ) {
            let before = estimate(&figures);
            let again = estimate(&figures);
            prop_assert_eq!(before, again);
            figures.iter_mut().for_each(|f| *f *= 4.0);
            let scaled = estimate(&figures).expect("figures");
            let before = before.expect("figures");
            // A power of two scales without rounding.
            prop_assert_eq!(scaled.median, before.median * 4.0);
            prop_assert_eq!(
                scaled.interval,
                before.interval.map(|(low, high)| (low * 4.0, high * 4.0))
            );
        }
    }
}
