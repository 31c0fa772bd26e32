//! The runs as the guest wrote them, by case and round.
//!
//! ```text
//!  device ⇥ op ⇥ mode ⇥ settings ⇥ round ⇥ tool ⇥ figure or - ⇥ message
//! ```

use serde::Serialize;
use std::collections::BTreeMap;

/// What was measured, in the words of `benches/lib/peers-cases.sh`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub(crate) struct Case {
    pub(crate) device: String,
    pub(crate) op: String,
    pub(crate) mode: Mode,
    pub(crate) settings: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// p50 in µs.
    Latency,
    /// Messages per second.
    Rate,
    /// Megabytes (10^6) per second.
    Bandwidth,
}

/// What one round gave of a case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Round {
    pub(crate) spinwire: Option<f64>,
    pub(crate) perftest: Option<f64>,
    pub(crate) perftest_again: Option<f64>,
}

impl Round {
    /// spinwire by the geometric mean of perftest's runs of the round.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let peer = match (self.perftest, self.perftest_again) {
            (Some(a), Some(b)) => (a * b).sqrt(),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => return None,
        };
        Some(self.spinwire? / peer)
    }

    /// perftest by itself.
    pub(crate) fn noise(&self) -> Option<f64> {
        Some(self.perftest_again? / self.perftest?)
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Runs {
    pub(crate) case: Case,
    /// In the order of rounds.
    pub(crate) rounds: Vec<Round>,
    /// What a tool said when it gave no figure, each once.
    pub(crate) messages: Vec<String>,
}

/// The cases in the order in which they came.
///
/// # Errors
/// A line that is not as above, with its number.
pub(crate) fn parse(text: &str) -> Result<Vec<Runs>, String> {
    let mut all: Vec<(Case, BTreeMap<u32, Round>, Vec<String>)> = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let (case, round, tool, figure) =
            parse_line(line).ok_or_else(|| format!("line {number} is no run: {line}"))?;
        let at = all.iter().position(|(known, ..)| *known == case);
        let at = at.unwrap_or_else(|| {
            all.push((case, BTreeMap::new(), Vec::new()));
            all.len() - 1
        });
        let (_, rounds, messages) = &mut all[at];
        let round: &mut Round = rounds.entry(round).or_default();
        let place = match tool {
            "spinwire" => &mut round.spinwire,
            "perftest" => &mut round.perftest,
            "perftest-again" => &mut round.perftest_again,
            _ => return Err(format!("line {number}: no tool is called {tool}")),
        };
        match figure {
            Ok(figure) => *place = Some(figure),
            Err(message) => {
                let message = format!("{}: {message}", tool.trim_end_matches("-again"));
                if !messages.contains(&message) {
                    messages.push(message);
                }
            }
        }
    }
    let runs = all.into_iter().map(|(case, rounds, messages)| Runs {
        case,
        rounds: rounds.into_values().collect(),
        messages,
    });
    Ok(runs.collect())
}

type Line<'a> = (Case, u32, &'a str, Result<f64, &'a str>);

fn parse_line(line: &str) -> Option<Line<'_>> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [device, op, mode, settings, round, tool, figure, message] = fields[..] else {
        return None;
    };
    let case = Case {
        device: device.into(),
        op: op.into(),
        mode: match mode {
            "latency" => Mode::Latency,
            "rate" => Mode::Rate,
            "bandwidth" => Mode::Bandwidth,
            _ => return None,
        },
        settings: settings.into(),
    };
    let figure = match figure {
        "-" => Err(message),
        _ => Ok(figure
            .parse()
            .ok()
            .filter(|f: &f64| f.is_finite() && *f > 0.0)?),
    };
    Some((case, round.parse().ok()?, tool, figure))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_put_together() {
        let text = "rxe0\tsend\trate\tdefaults\t1\tperftest\t4.0\t\n\
                    rxe0\tsend\trate\tdefaults\t1\tspinwire\t12\t\n\
                    siw0\tfaa\tlatency\tsize=8\t1\tperftest\t-\tno atomics\n\
                    siw0\tfaa\tlatency\tsize=8\t1\tperftest-again\t-\tno atomics\n\
                    rxe0\tsend\trate\tdefaults\t1\tperftest-again\t9\t\n\
                    rxe0\tsend\trate\tdefaults\t2\tspinwire\t5e0\t\n";
        let runs = parse(text).expect("as the guest writes");
        assert_eq!(runs.len(), 2);
        let round = runs[0].rounds[0];
        assert_eq!((round.ratio(), round.noise()), (Some(2.0), Some(2.25)));
        let half = runs[0].rounds[1];
        assert_eq!(
            (half.spinwire, half.ratio(), half.noise()),
            (Some(5.0), None, None)
        );
        assert_eq!(runs[1].messages, ["perftest: no atomics"]);
        assert_eq!(runs[1].rounds, [Round::default()]);
    }

    #[test]
    fn anything_else_is_refused_with_its_line() {
        for bad in [
            "rxe0\tsend\trate\tdefaults\t1\tperftest\t4.0",
            "rxe0\tsend\tspeed\tdefaults\t1\tperftest\t4.0\t",
            "rxe0\tsend\trate\tdefaults\tone\tperftest\t4.0\t",
            "rxe0\tsend\trate\tdefaults\t1\tperftest\tinf\t",
            "rxe0\tsend\trate\tdefaults\t1\tperftest\t0\t",
            "rxe0\tsend\trate\tdefaults\t1\tother\t1\t",
        ] {
            let text = format!("rxe0\tsend\trate\tdefaults\t1\tspinwire\t4\t\n{bad}\n");
            let error = parse(&text).expect_err(bad);
            assert!(error.contains("line 2"), "{error}");
        }
    }
}
