//! What the ring between two processes costs on this host; see `benches/shm-ring`.
//!
//! ```text
//!  cases (latency, rate; ring, raw) ─► rounds that take turns ─► median and best ─► table, JSON
//! ```

mod latency;
mod link;
mod rate;
mod threads;

use clap::Parser;
use serde::Serialize;
use spinwire::fabric::shm::Geometry;
use spinwire::sys::affinity::{allowed_cores, pin_current_thread};
use spinwire::sys::clock::Clock;
use spinwire::types::CoreId;
use std::error::Error;
use std::path::PathBuf;

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Measures the shared-memory ring between two cores, beside a raw cache line and a plain copy.
#[derive(Parser)]
struct Args {
    /// Rounds that take turns; the median and the best are shown
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// The two cores, such as 0,1; else the first two that are allowed
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// Cells of a ring
    #[arg(long, default_value_t = Geometry::DEFAULT.cells)]
    cells: u32,
    /// Bytes of a ring's data
    #[arg(long, default_value_t = Geometry::DEFAULT.data_bytes)]
    data_bytes: u32,
    /// Only what has this in its name
    #[arg(long)]
    only: Option<String>,
    /// Writes the figures there as well
    #[arg(long)]
    json: Option<PathBuf>,
}

/// What is measured, and how it came out.
#[derive(Serialize)]
struct Case {
    name: String,
    /// `ns`: less is better; `M/s`: more is.
    unit: &'static str,
    #[serde(skip)]
    run: Box<dyn Fn([CoreId; 2]) -> Fallible<f64>>,
    /// By round.
    figures: Vec<f64>,
    median: f64,
    best: f64,
}

impl Case {
    fn new(
        name: impl Into<String>,
        unit: &'static str,
        run: impl Fn([CoreId; 2]) -> Fallible<f64> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            unit,
            run: Box::new(run),
            figures: Vec::new(),
            median: 0.0,
            best: 0.0,
        }
    }

    fn sum_up(&mut self) {
        let mut sorted = self.figures.clone();
        sorted.sort_by(f64::total_cmp);
        let first_is_best = self.unit == "ns";
        let best = if first_is_best {
            sorted.first()
        } else {
            sorted.last()
        };
        self.median = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
        self.best = best.copied().unwrap_or(0.0);
    }
}

fn cases(geometry: Geometry) -> Vec<Case> {
    let mut cases = vec![
        Case::new("raw, one line: half round trip", "ns", latency::one_line),
        Case::new("raw, two lines: half round trip", "ns", latency::two_lines),
    ];
    for bytes in [8, 48, 64, 256, 4096] {
        let name = format!("ring, {bytes} B: half round trip");
        let run = move |cores| latency::ring(cores, geometry, bytes);
        cases.push(Case::new(name, "ns", run));
    }
    for bytes in [8, 48, 64, 256, 4096] {
        let name = format!("ring, {bytes} B: messages");
        let run = move |cores| rate::ring(cores, geometry, bytes, rate::Receiver::Copies);
        cases.push(Case::new(name, "M/s", run));
    }
    for bytes in [8, 4096] {
        let name = format!("ring, {bytes} B, not copied out: messages");
        let run = move |cores| rate::ring(cores, geometry, bytes, rate::Receiver::Skips);
        cases.push(Case::new(name, "M/s", run));
    }
    cases.push(Case::new("one thread, 4096 B: copies", "M/s", |cores| {
        rate::copies(cores, 4096)
    }));
    for bytes in [4096, 65536, 1 << 20] {
        let name = format!("far memory, {bytes} B: copies");
        let run = move |cores| rate::far_copies(cores, bytes);
        cases.push(Case::new(name, "M/s", run));
    }
    cases
}

fn main() -> Fallible<()> {
    let args = Args::parse();
    let cores = two_cores(&args.cores)?;
    let _ = Clock::calibrated();
    let geometry = Geometry {
        cells: args.cells,
        data_bytes: args.data_bytes,
    };
    let mut cases = cases(geometry.check()?);
    if let Some(only) = &args.only {
        cases.retain(|case| case.name.contains(only.as_str()));
    }
    for _ in 0..args.rounds {
        for case in &mut cases {
            case.figures.push((case.run)(cores)?);
        }
    }
    println!(
        "{:<44} {:>5} {:>9} {:>9}",
        "measured", "unit", "median", "best"
    );
    for case in &mut cases {
        case.sum_up();
        let (name, unit) = (&case.name, case.unit);
        println!(
            "{name:<44} {unit:>5} {:>9.2} {:>9.2}",
            case.median, case.best
        );
    }
    if let Some(path) = args.json {
        let document = serde_json::json!({
            "bench": "shm-ring",
            "rounds": args.rounds,
            "cells": geometry.cells,
            "data_bytes": geometry.data_bytes,
            "cores": cores.map(CoreId::number),
            "cases": cases,
        });
        let text = serde_json::to_string_pretty(&document)? + "\n";
        std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}

fn two_cores(asked: &[usize]) -> Fallible<[CoreId; 2]> {
    let allowed = allowed_cores()?;
    let cores: Vec<CoreId> = if asked.is_empty() {
        allowed.into_iter().take(2).collect()
    } else {
        asked.iter().copied().filter_map(CoreId::new).collect()
    };
    match cores[..] {
        [a, b] if a != b => {
            pin_current_thread(a)?;
            pin_current_thread(b)?;
            Ok([a, b])
        }
        _ => Err("two cores are needed, such as --cores 0,1".into()),
    }
}
