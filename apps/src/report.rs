//! How results look: a table for people, one JSON document for programs.

use crate::cli::{Mode, Op};
use crate::stats::OneWay;
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
    /// What a latency is: half of the round trip of a SEND and its answer.
    pub(crate) latency_is: &'static str,
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
    pub(crate) iterations: u64,
    pub(crate) warmup: u64,
    pub(crate) inline_asked: u32,
    pub(crate) seconds: f64,
    pub(crate) latency_ns: OneWay,
    pub(crate) counters: CounterSnapshot,
}

impl Report {
    pub(crate) fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    pub(crate) fn to_table(&self) -> String {
        let mut text = format!(
            "send latency to {}: {}, in ns\n",
            self.peer, self.latency_is
        );
        let heads = [
            "bytes",
            "exchanges",
            "min",
            "p50",
            "p90",
            "p99",
            "p99.9",
            "max",
            "mean",
            "stddev",
        ];
        let mut rows = vec![heads.map(String::from)];
        rows.extend(self.results.iter().map(|r| {
            let l = r.latency_ns;
            let whole = [
                u64::from(r.size_bytes),
                r.iterations,
                l.min,
                l.p50,
                l.p90,
                l.p99,
                l.p999,
                l.max,
            ];
            let mut cells: [String; 10] = Default::default();
            for (cell, value) in cells.iter_mut().zip(whole) {
                *cell = value.to_string();
            }
            cells[8] = format!("{:.1}", l.mean);
            cells[9] = format!("{:.1}", l.stddev);
            cells
        }));
        let widths: Vec<usize> = (0..heads.len())
            .map(|c| rows.iter().map(|r| r[c].len()).max().unwrap_or(0))
            .collect();
        for row in &rows {
            for (cell, width) in row.iter().zip(&widths) {
                let _ = write!(text, "{cell:>width$}  ");
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        for row in &self.results {
            let sent = row.counters.sends_posted;
            let _ = writeln!(
                text,
                "{} warm-up exchanges before, {:.2} s in all; {} of {sent} sends inline; a time stamp \
                 costs {:.0} ns ({})",
                row.warmup,
                row.seconds,
                row.counters.inline_sends,
                self.clock.stamp_cost_ns,
                self.clock.source,
            );
        }
        text
    }
}
