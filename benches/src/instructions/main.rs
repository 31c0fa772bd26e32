//! How many instructions the engine's own code spends on an operation, by callgrind.
//!
//! ```text
//!  instructions ─► valgrind instructions run SCENARIO ─► callgrind.out ─► addr2line ─► table, check
//!                      └ rig: control and two workers in one thread, on a wire of this crate, or
//!                             over shared memory
//! ```
//! Counted is what lies in a worker's turn and was compiled from `engine/src`, with what it calls in
//! the standard library and libc. The wire's lane and the services are this crate's, and are not
//! counted: the first stands for the provider, the second for the embedder. Over shared memory the lane is
//! the engine's own, and counted; how much of the sum it is has a column. `docs/PERFORMANCE.md` has the
//! results.

mod callgrind;
mod count;
mod lane;
mod report;
mod rig;
mod scenarios;
mod valgrind;
mod wire;

use clap::{Parser, Subcommand};
use report::{KEPT, Kept, RISE_MAX_PERCENT, RUSTC, Row};
use rig::Fallible;
use scenarios::{SCENARIOS, Scenario};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Rounds that are counted: a multiple of every batch of the engine's.
const ROUNDS: u32 = 4096;
/// Functions and lines that `--explain` shows.
const EXPLAIN_MOST: usize = 15;

/// Counts the instructions that the engine's own code spends on an operation. Needs valgrind.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    /// Scenarios to count; all where none is named
    scenarios: Vec<String>,
    /// Fail where a count rose by more than 3 % over the kept file
    #[arg(long)]
    check: bool,
    /// Write the kept file, benches/instructions.json
    #[arg(long, conflicts_with = "check")]
    keep: bool,
    /// Write the counts to FILE as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Show the functions and lines that the instructions of a scenario are spent on
    #[arg(long, value_name = "SCENARIO", conflicts_with_all = ["scenarios", "check", "keep", "json"])]
    explain: Option<String>,
    #[command(subcommand)]
    command: Option<Run>,
}

#[derive(Debug, Subcommand)]
enum Run {
    /// What valgrind runs
    #[command(hide = true)]
    Run { scenario: String, rounds: u32 },
}

fn main() -> ExitCode {
    match start(Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start(cli: Cli) -> Fallible<bool> {
    if let Some(Run::Run { scenario, rounds }) = cli.command {
        println!("{}", Scenario::named(&scenario)?.run(rounds)?);
        return Ok(true);
    }
    if !cfg!(target_arch = "x86_64") {
        return Err("instructions are counted on x86_64 only".into());
    }
    if let Some(name) = cli.explain {
        explain(Scenario::named(&name)?)?;
        return Ok(true);
    }
    let mut scenarios = Vec::new();
    for name in &cli.scenarios {
        scenarios.push(Scenario::named(name)?);
    }
    if scenarios.is_empty() {
        scenarios.extend(&SCENARIOS);
    }
    let kept = Kept::read(Path::new(KEPT));
    if cli.check
        && let Err(error) = kept
    {
        return Err(error.into());
    }
    let mut rows = Vec::new();
    for scenario in scenarios {
        rows.push(count(scenario)?);
    }
    print!("{}", report::table(&rows, kept.as_ref().ok()));
    if let Some(file) = &cli.json {
        write(file, &report::keep(&rows, None))?;
    }
    if cli.keep {
        write(Path::new(KEPT), &report::keep(&rows, kept.ok()))?;
        println!("\nkept in {KEPT}");
        return Ok(true);
    }
    if cli.check {
        return Ok(check(&rows, &kept?));
    }
    Ok(true)
}

fn count(scenario: &'static Scenario) -> Fallible<Row> {
    let binary = std::env::current_exe()?;
    let run = callgrind::run(&binary, scenario.name, ROUNDS)?;
    let count = count::assign(&run, &binary)?;
    Ok(Row { scenario, count })
}

fn explain(scenario: &'static Scenario) -> Fallible<()> {
    let Row { count, .. } = count(scenario)?;
    println!("{}: {}", scenario.name, scenario.what);
    println!("{:>10.2} instructions, in", count.instructions);
    let show = |all| report::ranking(all, count.instructions, EXPLAIN_MOST);
    print!("{}at\n{}", show(&count.functions), show(&count.lines));
    Ok(())
}

/// Says what rose. Counts of another compiler prove nothing.
fn check(rows: &[Row], kept: &Kept) -> bool {
    if kept.rustc != RUSTC {
        println!(
            "not checked: the kept file is of {}, this is {RUSTC}",
            kept.rustc
        );
        return true;
    }
    let risen = report::risen(rows, kept);
    for line in &risen {
        println!("{line}");
    }
    if risen.is_empty() {
        println!("nothing rose by more than {RISE_MAX_PERCENT} %");
    }
    risen.is_empty()
}

fn write(path: &Path, counts: &Kept) -> Fallible<()> {
    let text = serde_json::to_string_pretty(counts)? + "\n";
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(())
}
