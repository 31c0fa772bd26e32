//! `spinwire bench`: one message to and fro, timed by one stamp an exchange.

use crate::cli::BenchArgs;
use crate::report::{ClockFacts, Report, Row};
use crate::setup::{Failure, plan};
use crate::stats::RoundTrips;
use crate::watch::{Manner, watch};
use spinwire::config::Side;
use spinwire::control::Offer;
use spinwire::memory::Buffer;
use spinwire::metrics::CounterReader;
use spinwire::sys::clock::Clock;
use spinwire::sys::signal::StopSignal;
use spinwire::types::Nanos;
use spinwire::worker::{
    CloseReason, Completed, ConnId, Io, Message, Outcome, Peer, Service, Token,
};
use spinwire::{Engine, WorkerInfo};
use std::io::Write;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

/// Without one exchange in this time the peer is taken to be no echo server.
const STALL: Duration = Duration::from_secs(10);

/// When the measurement ends.
#[derive(Clone, Copy, Debug)]
enum Until {
    Exchanges(u64),
    Time(Duration),
}

#[derive(Clone, Copy, Debug)]
struct Job {
    size: u32,
    warmup: u64,
    until: Until,
}

struct Measured {
    trips: RoundTrips,
    seconds: f64,
}

/// Sends, waits for the answer, sends again.
struct Latency {
    job: Job,
    clock: Clock,
    warmup_left: u64,
    /// When the message that is under way was sent.
    sent: Nanos,
    began: Nanos,
    /// A round trip that is not yet in the histogram: recording waits until the next message is out.
    pending: Option<u64>,
    trips: RoundTrips,
    result: Option<Sender<Result<Measured, String>>>,
}

impl Latency {
    fn new(job: Job, worker: WorkerInfo, result: Sender<Result<Measured, String>>) -> Self {
        Self {
            job,
            clock: worker.clock,
            warmup_left: job.warmup,
            sent: Nanos(0),
            began: Nanos(0),
            pending: None,
            trips: RoundTrips::new(),
            result: Some(result),
        }
    }

    fn end(&mut self, io: &mut Io<'_>, conn: ConnId, result: Result<(), String>) {
        let Some(sender) = self.result.take() else {
            return;
        };
        self.record_pending();
        let trips = std::mem::replace(&mut self.trips, RoundTrips::new());
        let seconds = (self.sent - self.began).as_secs_f64();
        // The program may have given up on the result.
        let _ = sender.send(result.map(|()| Measured { trips, seconds }));
        io.close(conn);
    }

    fn send(&mut self, io: &mut Io<'_>, conn: ConnId, buffer: Buffer) {
        if let Err(rejected) = io.send(conn, buffer, Token::default()) {
            self.end(
                io,
                conn,
                Err(format!("a send was not taken: {}", rejected.reason)),
            );
        }
    }

    fn record_pending(&mut self) {
        if let Some(nanos) = self.pending.take() {
            self.trips.record(nanos);
        }
    }

    fn is_over(&self, now: Nanos) -> bool {
        let measured = self.trips.count() + u64::from(self.pending.is_some());
        match self.job.until {
            Until::Exchanges(n) => measured >= n,
            Until::Time(time) => now - self.began >= time,
        }
    }
}

impl Service for Latency {
    fn connected(&mut self, io: &mut Io<'_>, conn: ConnId, _peer: &Peer) {
        let Ok(mut buffer) = io.alloc() else {
            return self.end(io, conn, Err("the pool has no buffer to send".into()));
        };
        if let Err(error) = buffer.set_len(self.job.size) {
            return self.end(io, conn, Err(error.to_string()));
        }
        for (byte, value) in buffer.iter_mut().zip((0..=u8::MAX).cycle()) {
            *byte = value;
        }
        self.sent = self.clock.now();
        self.began = self.sent;
        self.send(io, conn, buffer);
    }

    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        // One stamp ends an exchange and begins the next, as the answer goes out as the next ping.
        let now = self.clock.now();
        if self.result.is_none() {
            return;
        }
        let buffer = message.into_buffer();
        if buffer.len_bytes() != self.job.size {
            let got = buffer.len_bytes();
            return self.end(
                io,
                conn,
                Err(format!(
                    "{} bytes sent, {got} came back: is the peer `spinwire serve`?",
                    self.job.size
                )),
            );
        }
        if self.warmup_left > 0 {
            self.warmup_left -= 1;
            self.began = now;
        } else {
            self.record_pending();
            self.pending = Some(now.since(self.sent));
        }
        self.sent = now;
        if self.warmup_left == 0 && self.is_over(now) {
            return self.end(io, conn, Ok(()));
        }
        self.send(io, conn, buffer);
    }

    fn completed(&mut self, io: &mut Io<'_>, conn: ConnId, completed: Completed) {
        self.record_pending();
        if let Outcome::NeverPosted = completed.outcome {
            self.end(io, conn, Err("a send was never posted".into()));
        }
    }

    fn disconnected(&mut self, io: &mut Io<'_>, conn: ConnId, reason: CloseReason) {
        self.end(
            io,
            conn,
            Err(format!("the connection ended early: {reason}")),
        );
    }
}

pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let mut plan = plan(&args.host, Side::Client, Some(args.size), Some(1))?;
    // One connection: one worker measures.
    plan.workers.truncate(1);
    let inline_asked = plan.workers[0]
        .lanes
        .first()
        .map_or(0, |lane| lane.inline_bytes);
    let until = args
        .duration
        .map_or(Until::Exchanges(args.iters), Until::Time);
    let warmup = args.warmup.unwrap_or_else(|| (args.iters / 10).min(1000));
    let job = Job {
        size: args.size,
        warmup,
        until,
    };
    let stop = StopSignal::install()?;
    let (sender, result) = mpsc::channel();
    let engine = Engine::start(&plan, move |worker| {
        Latency::new(job, worker, sender.clone())
    })?;
    engine.connect(&args.url, Offer::default())?;
    let measured = wait(&engine, &result, &stop, job);
    let granted = engine.grants().to_vec();
    let counters = engine.counter_readers();
    let left = engine.shutdown()?;
    let counters = counters
        .first()
        .map(CounterReader::snapshot)
        .unwrap_or_default();
    let measured = measured?;
    if !left.is_empty() {
        return Err(format!("left behind: {left:?}").into());
    }
    let latency_ns = measured.trips.one_way().ok_or("no exchange was measured")?;
    let clock = Clock::calibrated();
    let report = Report {
        tool: "spinwire",
        version: env!("CARGO_PKG_VERSION"),
        op: args.op,
        mode: args.mode,
        peer: args.url.to_string(),
        latency_is: "one way, half of the round trip",
        clock: ClockFacts {
            source: clock.source(),
            stamp_cost_ns: clock.cost_ns(),
        },
        granted,
        results: vec![Row {
            size_bytes: args.size,
            iterations: measured.trips.count(),
            warmup,
            inline_asked,
            seconds: measured.seconds,
            latency_ns,
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

fn wait(
    engine: &Engine,
    result: &mpsc::Receiver<Result<Measured, String>>,
    stop: &StopSignal,
    job: Job,
) -> Result<Measured, Failure> {
    let of = match job.until {
        Until::Exchanges(n) => format!(" of {}", n + job.warmup),
        Until::Time(time) => format!(" in a run of {time:?}"),
    };
    let manner = Manner {
        stall: STALL,
        progress: &|done| format!("{done} exchanges{of}"),
        stalled: &|done, time| {
            let seconds = time.as_secs();
            format!(
                "no message came back for {seconds} s, {done} did before: is the peer `spinwire serve`?"
            )
        },
        signalled: &|_| Err("stopped by a signal before the measurement was done".into()),
    };
    watch(engine, result, stop, &manner)
}
