//! The tables of `benches/lab-peers` and `benches/peers`: `peers RESULTS.tsv [--json FILE]`.
//!
//! ```text
//!  results.tsv ─► runs (by case and round) ─► verdict (ratios, bootstrap, targets) ─► table, JSON
//! ```

mod bootstrap;
mod runs;
mod verdict;

use bootstrap::{Estimate, RESAMPLES, SEED};
use runs::{Mode, Runs};
use std::error::Error;
use std::fmt::Write;
use verdict::{Line, Target, Verdict};

const USAGE: &str = "usage: peers RESULTS.tsv [--json FILE]";

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (results, json) = match args[..] {
        [results] => (results, None),
        [results, "--json", json] => (results, Some(json)),
        _ => return Err(USAGE.into()),
    };
    let text = std::fs::read_to_string(results).map_err(|e| format!("{results}: {e}"))?;
    let runs = runs::parse(&text).map_err(|e| format!("{results}: {e}"))?;
    let lines: Vec<Line> = runs.into_iter().map(Line::new).collect();
    print!("{}", table(&lines));
    if let Some(path) = json {
        let document = serde_json::json!({
            "interval": { "percent": 95, "resamples": RESAMPLES, "seed": SEED },
            "lines": lines,
        });
        let text = serde_json::to_string_pretty(&document)? + "\n";
        std::fs::write(path, text).map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(())
}

fn table(lines: &[Line]) -> String {
    let head = [
        "device",
        "measured",
        "settings",
        "unit",
        "spinwire",
        "peer",
        "peer's",
        "again",
        "ratio",
        "95 %",
        "again / first",
        "target",
        "verdict",
    ];
    let mut rows = vec![head.map(String::from)];
    rows.extend(lines.iter().map(row));
    let widths: Vec<usize> = (0..head.len())
        .map(|c| rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for (row, n) in rows.iter().zip(0..) {
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(text, "| {cell:<width$} ");
        }
        text += "|\n";
        if n == 0 {
            for width in &widths {
                let _ = write!(text, "|{:-<1$}", "", width + 2);
            }
            text += "|\n";
        }
    }
    text.push('\n');
    for line in lines {
        let case = &line.runs.case;
        for message in &line.runs.messages {
            let (device, op, settings) = (&case.device, &case.op, &case.settings);
            let mode = mode_name(case.mode);
            let _ = writeln!(text, "{device} {op} {mode} {settings}: {message}");
        }
    }
    let count = |verdict| lines.iter().filter(|l| l.verdict == verdict).count();
    let rounds = lines.iter().map(|l| l.runs.rounds.len()).max().unwrap_or(0);
    let _ = writeln!(
        text,
        "{rounds} rounds: {} targets met, {} missed, {} not shown; {} lines without figures",
        count(Verdict::Met),
        count(Verdict::Missed),
        count(Verdict::NotShown),
        count(Verdict::NoFigures),
    );
    text
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Latency => "latency",
        Mode::Rate => "rate",
        Mode::Bandwidth => "bandwidth",
    }
}

fn row(line: &Line) -> [String; 13] {
    let Runs { case, peer, .. } = &line.runs;
    let (unit, scale) = match case.mode {
        Mode::Latency => ("p50 µs", 1.0),
        Mode::Rate => ("k/s", 1e-3),
        Mode::Bandwidth => ("MB/s", 1.0),
    };
    let figure = |f: Option<f64>| f.map_or("-".into(), |f| format!("{:.2}", f * scale));
    let ratio = |e: Option<Estimate>| e.map_or("-".into(), |e| format!("{:.3}", e.median));
    let interval = |e: Option<Estimate>| match e.and_then(|e| e.interval) {
        Some((low, high)) => format!("{low:.3} to {high:.3}"),
        None => "-".into(),
    };
    let noise = match interval(line.noise) {
        none if none == "-" => ratio(line.noise),
        ends => format!("{} ({ends})", ratio(line.noise)),
    };
    [
        case.device.clone(),
        format!("{} {}", case.op, mode_name(case.mode)),
        case.shown_settings(),
        unit.into(),
        figure(line.spinwire),
        peer.clone(),
        figure(line.peer_figure),
        figure(line.peer_figure_again),
        ratio(line.ratio),
        interval(line.ratio),
        noise,
        match line.target {
            Target::UpperBoundAtMost(most) => format!("upper ≤ {most:.2}"),
            Target::MedianAtLeast(least) => format!("≥ {least:.1}"),
        },
        line.verdict.word().into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_medians_ratio_and_verdict() {
        let mut text = String::new();
        for (round, ours) in [(1, "3.0"), (2, "3.2"), (3, "3.1")] {
            for (tool, figure) in [
                ("perftest", "4"),
                ("spinwire", ours),
                ("perftest-again", "4"),
            ] {
                let _ = writeln!(
                    text,
                    "rxe0\tread\tlatency\tsize=8\t{round}\t{tool}\t{figure}\t"
                );
            }
        }
        text += "siw0\tfaa\tlatency\tsize=8\t1\tspinwire\t-\tno atomics\n";
        let runs = runs::parse(&text).expect("as the guest writes");
        let lines: Vec<Line> = runs.into_iter().map(Line::new).collect();
        let table = table(&lines);
        let cells: Vec<&str> = table.lines().nth(2).expect("a row").split('|').collect();
        let cells: Vec<&str> = cells.iter().map(|c| c.trim()).collect();
        assert_eq!(
            cells[1..14],
            [
                "rxe0",
                "read latency",
                "size 8",
                "p50 µs",
                "3.10",
                "perftest",
                "4.00",
                "4.00",
                "0.775",
                "0.750 to 0.800",
                "1.000 (1.000 to 1.000)",
                "upper ≤ 1.05",
                "met"
            ]
        );
        assert!(table.contains("siw0 faa latency size=8: spinwire: no atomics\n"));
        assert!(table.ends_with(
            "3 rounds: 1 targets met, 0 missed, 0 not shown; 1 lines without figures\n"
        ));
    }
}
