//! How results look: a table for people, one JSON document for programs.

use crate::cli::{Mode, Op};
use crate::stats::{Bucket, Summary};
use serde::Serialize;
use spinwire::WorkerGrant;
use spinwire::metrics::CounterSnapshot;
use std::fmt::Write;

/// One run of `spinwire bench`.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) tool: &'static str,
    pub(crate) version: &'static str,
    pub(crate) op: Op,
    pub(crate) mode: Mode,
    pub(crate) peer: String,
    /// What the figures are of.
    pub(crate) measured: &'static str,
    pub(crate) clock: ClockFacts,
    pub(crate) granted: Vec<WorkerGrant>,
    pub(crate) results: Vec<Row>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ClockFacts {
    pub(crate) source: &'static str,
    pub(crate) stamp_cost_ns: f64,
}

/// One size.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) size_bytes: u32,
    pub(crate) depth: u32,
    pub(crate) post_list: u32,
    pub(crate) iterations: u64,
    pub(crate) warmup: u64,
    pub(crate) inline_asked: u32,
    pub(crate) seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency_ns: Option<Summary>,
    /// How many took so long; where latency was measured. For programs only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) histogram: Vec<Bucket>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<Rate>,
    pub(crate) counters: CounterSnapshot,
}

/// Operations in a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Rate {
    pub(crate) per_second: f64,
    /// Of a million bytes.
    pub(crate) megabytes_per_second: f64,
}

impl Rate {
    #[allow(
        clippy::cast_precision_loss,
        reason = "for people, who read fewer digits"
    )]
    pub(crate) fn new(operations: u64, seconds: f64, size: u32) -> Self {
        let per_second = if seconds > 0.0 {
            operations as f64 / seconds
        } else {
            0.0
        };
        Self {
            per_second,
            megabytes_per_second: per_second * f64::from(size) / 1e6,
        }
    }
}

impl Row {
    /// Heads and cells of the table.
    fn cells(&self) -> Vec<(&'static str, String)> {
        let mut cells = vec![("bytes", self.size_bytes.to_string())];
        let mut add = |head, cell| cells.push((head, cell));
        if let Some(l) = &self.latency_ns {
            let whole = [
                ("exchanges", self.iterations),
                ("min", l.min),
                ("p50", l.p50),
                ("p90", l.p90),
                ("p99", l.p99),
                ("p99.9", l.p999),
                ("max", l.max),
            ];
            whole.into_iter().for_each(|(h, n)| add(h, n.to_string()));
            add("mean", format!("{:.1}", l.mean));
            add("stddev", format!("{:.1}", l.stddev));
        }
        if let Some(r) = &self.rate {
            add("operations", self.iterations.to_string());
            add("depth", self.depth.to_string());
            add("post list", self.post_list.to_string());
            add("seconds", format!("{:.3}", self.seconds));
            add("per second", format!("{:.0}", r.per_second));
            add("MB/s", format!("{:.2}", r.megabytes_per_second));
        }
        cells
    }
}

impl Report {
    pub(crate) fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    pub(crate) fn to_table(&self) -> String {
        let (op, mode) = (name(self.op), name(self.mode));
        let unit = match self.mode {
            Mode::Latency => ", in ns",
            Mode::Rate | Mode::Bandwidth => "",
        };
        let mut text = format!("{op} {mode} to {}: {}{unit}\n", self.peer, self.measured);
        let rows: Vec<_> = self.results.iter().map(Row::cells).collect();
        let heads = rows
            .first()
            .map(|row| row.iter().map(|(h, _)| (*h).to_owned()));
        let mut lines: Vec<Vec<String>> = heads.into_iter().map(Iterator::collect).collect();
        lines.extend(
            rows.iter()
                .map(|r| r.iter().map(|(_, c)| c.clone()).collect()),
        );
        let widths: Vec<usize> = (0..lines.first().map_or(0, Vec::len))
            .map(|c| lines.iter().map(|l| l[c].len()).max().unwrap_or(0))
            .collect();
        for line in &lines {
            for (cell, width) in line.iter().zip(&widths) {
                let _ = write!(text, "{cell:>width$}  ");
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        for row in &self.results {
            let c = &row.counters;
            let _ = writeln!(
                text,
                "{} of warm-up before, {:.2} s in all; {} doorbells and {} of {} posts inline; a time \
                 stamp costs {:.0} ns ({})",
                row.warmup,
                row.seconds,
                c.doorbells,
                c.inline_sends,
                c.sends_posted,
                self.clock.stamp_cost_ns,
                self.clock.source,
            );
        }
        text
    }
}

fn name(value: impl clap::ValueEnum) -> String {
    value
        .to_possible_value()
        .map_or_else(String::new, |v| v.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(mode: Mode, latency_ns: Option<Summary>, rate: Option<Rate>) -> Report {
        Report {
            tool: "spinwire",
            version: "0",
            op: Op::Faa,
            mode,
            peer: "rdma://h:1".into(),
            measured: "so",
            clock: ClockFacts {
                source: "tsc",
                stamp_cost_ns: 11.0,
            },
            granted: Vec::new(),
            results: vec![Row {
                size_bytes: 8,
                depth: 16,
                post_list: 4,
                iterations: 1000,
                warmup: 10,
                inline_asked: 0,
                seconds: 0.5,
                latency_ns,
                histogram: Vec::new(),
                rate,
                counters: CounterSnapshot::default(),
            }],
        }
    }

    #[test]
    fn a_rate_is_in_both_forms_and_no_latency_is_claimed() {
        let report = report(Mode::Rate, None, Some(Rate::new(1000, 0.5, 8)));
        let json: serde_json::Value =
            serde_json::from_str(&report.to_json().expect("serializes")).expect("is JSON");
        let row = &json["results"][0];
        assert_eq!(row["rate"]["per_second"], 2000.0);
        assert_eq!(row["rate"]["megabytes_per_second"], 0.016);
        assert!(row.get("latency_ns").is_none(), "{row}");
        let table = report.to_table();
        let line = table.lines().nth(2).expect("a row");
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells, ["8", "1000", "16", "4", "0.500", "2000", "0.02"]);
        assert!(table.starts_with("faa rate to rdma://h:1: so\n"), "{table}");
    }

    #[test]
    fn a_latency_has_its_row() {
        let summary = Summary {
            min: 1,
            p50: 2,
            p90: 3,
            p99: 4,
            p999: 5,
            max: 6,
            mean: 2.5,
            stddev: 0.25,
        };
        let table = report(Mode::Latency, Some(summary), None).to_table();
        let line = table.lines().nth(2).expect("a row");
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            cells,
            ["8", "1000", "1", "2", "3", "4", "5", "6", "2.5", "0.2"]
        );
        assert!(!table.contains("per second"), "{table}");
    }

    #[test]
    fn no_time_is_no_rate() {
        assert_eq!(Rate::new(5, 0.0, 8).per_second, 0.0);
    }
}
