//! The runs as the scripts wrote them, by case and round.
//!
//! ```text
//!  device ⇥ op ⇥ mode ⇥ settings ⇥ round ⇥ tool ⇥ figure or - ⇥ message
//! ```
//! A tool is `spinwire`, the name of the case's peer, or that with `-again`.

use serde::Serialize;
use std::collections::BTreeMap;

/// What was measured, in the words of the lists of cases in `benches/lib`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub(crate) struct Case {
    pub(crate) device: String,
    pub(crate) op: String,
    pub(crate) mode: Mode,
    pub(crate) settings: String,
}

impl Case {
    /// The settings for people, without the target, which has a column.
    pub(crate) fn shown_settings(&self) -> String {
        let all = self.settings.split(',');
        let shown = all.filter(|s| !s.starts_with(AT_MOST) && !s.starts_with(AT_LEAST));
        shown.collect::<Vec<_>>().join(", ").replace('=', " ")
    }

    /// The number that a setting has, if it is there.
    pub(crate) fn number(&self, setting: &str) -> Option<f64> {
        let pairs = self.settings.split(',').filter_map(|s| s.split_once('='));
        let value = pairs.into_iter().find(|(name, _)| *name == setting)?.1;
        value.parse().ok()
    }
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
    pub(crate) peer: Option<f64>,
    pub(crate) peer_again: Option<f64>,
}

impl Round {
    /// spinwire by the geometric mean of the peer's runs of the round.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let peer = match (self.peer, self.peer_again) {
            (Some(a), Some(b)) => (a * b).sqrt(),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => return None,
        };
        Some(self.spinwire? / peer)
    }

    /// The peer by itself.
    pub(crate) fn noise(&self) -> Option<f64> {
        Some(self.peer_again? / self.peer?)
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Runs {
    pub(crate) case: Case,
    /// Its name; empty where it was not run.
    pub(crate) peer: String,
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
    let mut all: Vec<Gathered> = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let (case, round, tool, figure) =
            parse_line(line).ok_or_else(|| format!("line {number} is no run: {line}"))?;
        let at = all.iter().position(|known| known.case == case);
        let at = at.unwrap_or_else(|| {
            all.push(Gathered::new(case));
            all.len() - 1
        });
        let gathered = &mut all[at];
        let (name, again) = match tool.strip_suffix("-again") {
            Some(name) => (name, true),
            None => (tool, false),
        };
        if name != OURS {
            if gathered.peer.is_empty() {
                name.clone_into(&mut gathered.peer);
            }
            if gathered.peer != name {
                let known = &gathered.peer;
                return Err(format!(
                    "line {number}: {name}, but the case's peer is {known}"
                ));
            }
        }
        let round = gathered.rounds.entry(round).or_default();
        let place = match (name, again) {
            (OURS, false) => &mut round.spinwire,
            (OURS, true) => return Err(format!("line {number}: spinwire runs once a round")),
            (_, false) => &mut round.peer,
            (_, true) => &mut round.peer_again,
        };
        match figure {
            Ok(figure) => *place = Some(figure),
            Err(message) => {
                let message = format!("{name}: {message}");
                if !gathered.messages.contains(&message) {
                    gathered.messages.push(message);
                }
            }
        }
    }
    Ok(all.into_iter().map(Gathered::done).collect())
}

/// Settings that name a target of the case's own, for a latency and for the rest.
pub(crate) const AT_MOST: &str = "atmost";
pub(crate) const AT_LEAST: &str = "atleast";
const OURS: &str = "spinwire";

struct Gathered {
    case: Case,
    peer: String,
    rounds: BTreeMap<u32, Round>,
    messages: Vec<String>,
}

impl Gathered {
    fn new(case: Case) -> Self {
        Self {
            case,
            peer: String::new(),
            rounds: BTreeMap::new(),
            messages: Vec::new(),
        }
    }

    fn done(self) -> Runs {
        Runs {
            case: self.case,
            peer: self.peer,
            rounds: self.rounds.into_values().collect(),
            messages: self.messages,
        }
    }
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
            "rxe0\tsend\trate\tdefaults\t1\tspinwire-again\t1\t",
        ] {
            let text = format!("rxe0\tsend\trate\tdefaults\t1\tperftest\t4\t\n{bad}\n");
            let error = parse(&text).expect_err(bad);
            assert!(error.contains("line 2"), "{error}");
        }
    }
}
