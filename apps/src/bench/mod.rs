//! `spinwire bench`: an operation, measured in one of three modes.
//!
//! ```text
//!  arguments ─► job ─► client (the service) ── latency: one at a time ──┬─► poster: SEND, WRITE, READ,
//!                         │                 └─ stream: rate, bandwidth ─┘           CAS, FAA
//!  report ◄── measured ◄──┘
//! ```
//! The other end is `serve`; `greeting` is what they say to each other first.

mod client;
mod job;
mod latency;
mod poster;
mod stream;
#[cfg(test)]
mod tests;

use crate::cli::{BenchArgs, Mode, Op};
use crate::report::{ClockFacts, Rate, Report, Row};
use crate::setup::{Failure, Fit, plan};
use crate::watch::{Manner, watch};
use client::{Client, Measured};
use job::{Job, Until};
use spinwire::Engine;
use spinwire::config::Side;
use spinwire::control::Offer;
use spinwire::metrics::CounterReader;
use spinwire::sys::clock::Clock;
use spinwire::sys::signal::StopSignal;
use spinwire::types::Access;
use std::io::Write;
use std::sync::mpsc;
use std::time::Duration;

/// Without one operation in this time the peer is taken to be no `spinwire serve`.
const STALL: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let job = Job::parse(args)?;
    let fit = Fit {
        size: Some(job.size),
        connections: Some(1),
        send_depth: job.send_depth(),
        recv_depth: None,
    };
    let mut plan = plan(&args.host, Side::Client, &fit, &args.url)?;
    // One connection: one worker measures.
    plan.workers.truncate(1);
    let inline_asked = plan.workers[0]
        .lanes
        .first()
        .map_or(0, |lane| lane.inline_bytes);
    let stop = StopSignal::install()?;
    let (sender, result) = mpsc::channel();
    let engine = Engine::start(&plan, move |worker| {
        Client::new(job, &worker, sender.clone())
    })?;
    engine.connect(&args.url, offer(job))?;
    let measured = wait(&engine, &result, &stop, job);
    let granted = engine.grants().to_vec();
    let counters = engine.counter_readers();
    let left = engine.shutdown()?;
    let counters = counters
        .first()
        .map(CounterReader::snapshot)
        .unwrap_or_default();
    let mut measured = measured?;
    if !left.is_empty() {
        return Err(format!("left behind: {left:?}").into());
    }
    let halved = matches!(job.op, Op::Send | Op::Write);
    let (latency_ns, histogram) = match &mut measured.times {
        Some(times) => {
            let part = if halved { 2 } else { 1 };
            let summary = times.summary(part).ok_or("no exchange was measured")?;
            (Some(summary), times.buckets(part))
        }
        None => (None, Vec::new()),
    };
    let rate = latency_ns
        .is_none()
        .then(|| Rate::new(measured.operations, measured.seconds, job.size));
    let clock = Clock::calibrated();
    let report = Report {
        tool: "spinwire",
        version: env!("CARGO_PKG_VERSION"),
        op: job.op,
        mode: job.mode,
        peer: args.url.to_string(),
        measured: match (job.mode, halved) {
            (Mode::Latency, true) => "one way, half of the round trip",
            (Mode::Latency, false) => "from the post to its completion",
            (Mode::Rate | Mode::Bandwidth, _) => "one way, as completions come in",
        },
        clock: ClockFacts {
            source: clock.source(),
            stamp_cost_ns: clock.cost_ns(),
        },
        granted,
        results: vec![Row {
            size_bytes: job.size,
            depth: job.depth,
            post_list: job.post_list,
            iterations: measured.operations,
            warmup: job.warmup,
            inline_asked,
            seconds: measured.seconds,
            latency_ns,
            histogram,
            rate,
            counters,
        }],
    };
    let text = if args.json {
        report.to_json()? + "\n"
    } else {
        report.to_table()
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// What a client says and allows: only latency of WRITEs needs the server to write here.
fn offer(job: Job) -> Offer {
    Offer {
        private_data: job.op.mark(),
        access: match (job.op, job.mode) {
            (Op::Write, Mode::Latency) => Access::REMOTE_WRITE,
            _ => Access::NONE,
        },
        ..Offer::default()
    }
}

fn wait(
    engine: &Engine,
    result: &mpsc::Receiver<Result<Measured, String>>,
    stop: &StopSignal,
    job: Job,
) -> Result<Measured, Failure> {
    let of = match job.until {
        Until::Count(n) => format!(" of {}", n.saturating_add(job.warmup)),
        Until::Time(time) => format!(" in a run of {time:?}"),
    };
    let manner = Manner {
        stall: STALL,
        count: |counters| counters.sends_posted,
        progress: &|posted| format!("{posted} operations{of}"),
        stalled: &|posted, time| {
            let seconds = time.as_secs();
            format!(
                "nothing was answered for {seconds} s, after {posted} operations: is the peer \
                 `spinwire serve`, and the link up?"
            )
        },
        signalled: &|_| Err("stopped by a signal before the measurement was done".into()),
    };
    watch(engine, result, stop, &manner)
}
