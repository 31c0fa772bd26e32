//! `spinwire`: serve, measure and inspect RDMA from the command line.
//!
//! ```text
//!  cli (arguments) ─► serve · bench · rping · devices ─► spinwire::Engine
//!                     setup (core map or defaults ─► plan)   report (table, JSON)
//! ```
//! Exit status: 0 done, 1 failed, 2 wrong usage.

mod bench;
mod cli;
mod devices;
mod greeting;
mod report;
mod rping;
mod serve;
mod setup;
mod stats;
mod watch;
mod writes;

use clap::Parser;
use cli::{Cli, Command};
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let level = match cli.command {
        Command::Serve(_) => "info",
        Command::Bench(_) | Command::Rping(_) | Command::Devices(_) => "warn",
    };
    let filter = EnvFilter::try_from_env("SPINWIRE_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let result = match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Rping(args) => rping::run(&args),
        Command::Devices(args) => devices::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spinwire: {error}");
            ExitCode::FAILURE
        }
    }
}
