//! The table, the kept file, and what a check says.

use crate::count::Count;
use crate::scenarios::Scenario;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// The compiler that built this program and the engine in it.
pub(crate) const RUSTC: &str = env!("SPINWIRE_RUSTC");
/// The kept file.
pub(crate) const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.json");
/// A rise of more than this fails a check.
pub(crate) const RISE_MAX_PERCENT: f64 = 3.0;

/// What is kept of a run: instructions an operation, by scenario.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// Counts of another compiler do not compare.
    pub(crate) rustc: String,
    /// Rounded to hundredths.
    pub(crate) instructions: BTreeMap<String, f64>,
}

impl Kept {
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("{}: {error}; --keep writes it", path.display()))?;
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// One scenario that was counted.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) scenario: &'static Scenario,
    pub(crate) count: Count,
}

impl Row {
    /// Instructions, rounded as they are kept.
    pub(crate) fn instructions(&self) -> f64 {
        (self.count.instructions * 100.0).round() / 100.0
    }

    /// Of them, those of the lane.
    fn lane(&self) -> f64 {
        (self.count.lane * 100.0).round() / 100.0
    }

    fn missed(&self) -> bool {
        let Scenario {
            target,
            lane_target,
            ..
        } = self.scenario;
        target.is_some_and(|target| self.instructions() > target)
            || lane_target.is_some_and(|target| self.lane() > target)
    }

    fn verdict(&self) -> &'static str {
        match (self.scenario.target, self.scenario.lane_target) {
            (None, None) => "",
            _ if self.missed() => "MISSED",
            _ => "met",
        }
    }

    /// Against the kept file, in percent.
    fn change(&self, kept: &Kept) -> Option<f64> {
        let before = *kept.instructions.get(self.scenario.name)?;
        Some((self.instructions() / before - 1.0) * 100.0)
    }
}

/// The table, and below it where the instructions of a missed target go.
pub(crate) fn table(rows: &[Row], kept: Option<&Kept>) -> String {
    let mut text = String::from("instructions of the engine's own code, for each operation\n");
    let _ = writeln!(
        text,
        "{:<14} {:>12} {:>7} {:>8} {:>7} {:<7} {:>8}  operation",
        "scenario", "instructions", "target", "in lane", "target", "verdict", "change"
    );
    for row in rows {
        let target = |of: Option<f64>| of.map_or(String::new(), |t| t.to_string());
        let lane = match row.lane() {
            0.0 => String::new(),
            lane => format!("{lane:.2}"),
        };
        let change = kept.and_then(|kept| row.change(kept));
        let change = change.map_or("-".into(), |change| format!("{change:+.2} %"));
        let _ = writeln!(
            text,
            "{:<14} {:>12.2} {:>7} {lane:>8} {:>7} {:<7} {change:>8}  {}",
            row.scenario.name,
            row.instructions(),
            target(row.scenario.target),
            target(row.scenario.lane_target),
            row.verdict(),
            row.scenario.what
        );
    }
    text.push_str(&flatness(rows));
    for row in rows.iter().filter(|row| row.missed()) {
        let _ = writeln!(text, "\n{} misses its target:", row.scenario.name);
        text.push_str(&ranking(&row.count.functions, row.count.instructions, 6));
    }
    text
}

/// What an idle turn costs more where the CQ has many connections; nothing, or it is not flat.
fn flatness(rows: &[Row]) -> String {
    let named = |name| rows.iter().find(|row| row.scenario.name == name);
    let (Some(one), Some(many)) = (named("idle"), named("idle-1024")) else {
        return String::new();
    };
    let more = many.instructions() - one.instructions();
    format!("\nan idle turn costs {more:+.2} instructions with 1,024 connections instead of one\n")
}

/// The first `most` of a ranking, with shares.
pub(crate) fn ranking(all: &[(String, f64)], total: f64, most: usize) -> String {
    let mut text = String::new();
    for (name, cost) in all.iter().take(most) {
        let _ = writeln!(text, "{cost:>10.2} {:>5.1} %  {name}", cost / total * 100.0);
    }
    text
}

/// What a check finds wrong, the kept file being of the same compiler.
pub(crate) fn risen(rows: &[Row], kept: &Kept) -> Vec<String> {
    let mut wrong = Vec::new();
    for row in rows {
        let name = row.scenario.name;
        match row.change(kept) {
            None => wrong.push(format!("{name} is not in the kept file: --keep writes it")),
            Some(rise) if rise > RISE_MAX_PERCENT => wrong.push(format!(
                "{name} rose by {rise:.2} % to {:.2} instructions: --explain {name} shows where; if \
                 that is meant, --keep",
                row.instructions()
            )),
            Some(_) => {}
        }
    }
    wrong
}

/// What was counted, as it is kept. Scenarios that were not counted stay as they were.
pub(crate) fn keep(rows: &[Row], before: Option<Kept>) -> Kept {
    let same = before.filter(|kept| kept.rustc == RUSTC);
    let mut instructions = same.map(|kept| kept.instructions).unwrap_or_default();
    for row in rows {
        instructions.insert(row.scenario.name.into(), row.instructions());
    }
    Kept {
        rustc: RUSTC.into(),
        instructions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::SCENARIOS;

    fn row(instructions: f64) -> Row {
        Row {
            scenario: &SCENARIOS[0],
            count: Count {
                instructions,
                lane: 0.0,
                functions: vec![("turn (worker/turn.rs)".into(), instructions)],
                lines: Vec::new(),
            },
        }
    }

    #[test]
    fn a_rise_beyond_the_limit_is_named() {
        let kept = keep(&[row(50.0)], None);
        assert!(risen(&[row(51.4)], &kept).is_empty());
        assert!(risen(&[row(20.0)], &kept).is_empty());
        let wrong = risen(&[row(51.6)], &kept);
        assert!(wrong[0].contains("idle rose by 3.20 %"), "{wrong:?}");
        assert_eq!(risen(&[row(1.0)], &Kept::default()).len(), 1);
    }

    #[test]
    fn a_missed_target_says_what_it_is_spent_on() {
        let text = table(&[row(60.01)], None);
        assert!(text.contains("idle misses its target"), "{text}");
        assert!(text.contains("100.0 %  turn (worker/turn.rs)"), "{text}");
        assert!(!table(&[row(60.0)], None).contains("misses"));
    }

    #[test]
    fn another_compilers_counts_are_not_mixed_with_ours() {
        let mut other = keep(&[row(50.0)], None);
        other.instructions.insert("send".into(), 9.0);
        assert_eq!(keep(&[row(1.0)], Some(other)).instructions.len(), 2);
        let mut other = keep(&[row(50.0)], None);
        other.instructions.insert("send".into(), 9.0);
        other.rustc = "another".into();
        assert_eq!(keep(&[row(1.0)], Some(other)).instructions.len(), 1);
    }
}
