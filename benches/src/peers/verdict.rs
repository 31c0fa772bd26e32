//! The targets, and whether the figures meet them.

use super::bootstrap::{Estimate, estimate, median};
use super::runs::{AT_LEAST, AT_MOST, Case, Mode, Round, Runs};
use serde::Serialize;

/// Latency: what the upper end of the ratio's interval may be at most.
const LATENCY_RATIO_MAX: f64 = 1.05;
/// Rate and bandwidth: what the median of the ratio has to be at least.
const RATE_RATIO_MIN: f64 = 1.0;
/// The same where both tools are at their defaults.
const DEFAULTS_RATIO_MIN: f64 = 1.5;

/// What a ratio has to be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Target {
    UpperBoundAtMost(f64),
    MedianAtLeast(f64),
}

impl Target {
    fn of(case: &Case) -> Self {
        let least = match case.mode {
            Mode::Latency => {
                let most = case.number(AT_MOST).unwrap_or(LATENCY_RATIO_MAX);
                return Self::UpperBoundAtMost(most);
            }
            Mode::Rate if case.settings == "defaults" => DEFAULTS_RATIO_MIN,
            Mode::Rate | Mode::Bandwidth => RATE_RATIO_MIN,
        };
        Self::MedianAtLeast(case.number(AT_LEAST).unwrap_or(least))
    }

    fn judge(self, ratio: Option<Estimate>) -> Verdict {
        match (self, ratio) {
            (_, None) => Verdict::NoFigures,
            (Self::MedianAtLeast(least), Some(ratio)) if ratio.median >= least => Verdict::Met,
            (Self::MedianAtLeast(_), Some(_)) => Verdict::Missed,
            (Self::UpperBoundAtMost(most), Some(ratio)) => match ratio.interval {
                Some((_, upper)) if upper <= most => Verdict::Met,
                _ if ratio.median <= most => Verdict::NotShown,
                _ => Verdict::Missed,
            },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Met,
    Missed,
    /// The median is within the target, the interval is not, or there are too few rounds for one.
    NotShown,
    NoFigures,
}

impl Verdict {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "MISSED",
            Self::NotShown => "not shown",
            Self::NoFigures => "-",
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    #[serde(flatten)]
    pub(crate) runs: Runs,
    /// Medians over the rounds.
    pub(crate) spinwire: Option<f64>,
    pub(crate) peer_figure: Option<f64>,
    pub(crate) peer_figure_again: Option<f64>,
    pub(crate) ratio: Option<Estimate>,
    /// The peer by itself.
    pub(crate) noise: Option<Estimate>,
    pub(crate) target: Target,
    pub(crate) verdict: Verdict,
}

impl Line {
    pub(crate) fn new(runs: Runs) -> Self {
        let all = |of: &dyn Fn(&Round) -> Option<f64>| -> Vec<f64> {
            runs.rounds.iter().filter_map(of).collect()
        };
        let target = Target::of(&runs.case);
        let ratio = estimate(&all(&Round::ratio));
        Self {
            spinwire: median(&mut all(&|r| r.spinwire)),
            peer_figure: median(&mut all(&|r| r.peer)),
            peer_figure_again: median(&mut all(&|r| r.peer_again)),
            ratio,
            noise: estimate(&all(&Round::noise)),
            target,
            verdict: target.judge(ratio),
            runs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(mode: Mode, settings: &str, ratios: &[f64]) -> Line {
        let case = Case {
            device: "rxe0".into(),
            op: "send".into(),
            mode,
            settings: settings.into(),
        };
        let round = |ratio: &f64| Round {
            spinwire: Some(*ratio),
            peer: Some(1.0),
            peer_again: Some(1.0),
        };
        Line::new(Runs {
            case,
            peer: "perftest".into(),
            rounds: ratios.iter().map(round).collect(),
            messages: Vec::new(),
        })
    }

    #[test]
    fn latency_is_judged_by_the_upper_end() {
        let verdict = |ratios: &[f64]| line(Mode::Latency, "size=8", ratios).verdict;
        assert_eq!(verdict(&[1.05; 3]), Verdict::Met);
        assert_eq!(verdict(&[0.9, 1.0, 1.2]), Verdict::NotShown);
        assert_eq!(verdict(&[1.0]), Verdict::NotShown);
        assert_eq!(verdict(&[1.06; 3]), Verdict::Missed);
        assert_eq!(verdict(&[]), Verdict::NoFigures);
    }

    #[test]
    fn a_case_may_name_its_own_target() {
        let target = |mode, settings| line(mode, settings, &[]).target;
        let half = target(Mode::Latency, "size=8,atmost=1.5");
        assert_eq!(half, Target::UpperBoundAtMost(1.5));
        assert_eq!(target(Mode::Rate, "atleast=3"), Target::MedianAtLeast(3.0));
    }

    #[test]
    fn rates_are_judged_by_the_median() {
        let verdict = |mode, settings, ratio| line(mode, settings, &[0.5, ratio, 9.0]).verdict;
        assert_eq!(verdict(Mode::Rate, "size=64", 1.0), Verdict::Met);
        assert_eq!(verdict(Mode::Bandwidth, "size=64", 0.99), Verdict::Missed);
        assert_eq!(verdict(Mode::Rate, "defaults", 1.49), Verdict::Missed);
        assert_eq!(verdict(Mode::Rate, "defaults", 1.5), Verdict::Met);
    }
}
