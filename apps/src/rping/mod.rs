//! `spinwire rping`: the protocol of librdmacm's `rping`, either side, with every byte checked.
//!
//! ```text
//!  client                                                server
//!    │ SEND advert(source) ─────────────────────────────►  │
//!    │ ◄──────────────────────────────── RDMA READ source  │  check
//!    │ ◄─────────────────────────────────── SEND go-ahead  │
//!    │ SEND advert(sink) ───────────────────────────────►  │
//!    │ ◄───────────────────── RDMA WRITE sink, SEND go-ahead │
//!  compare                                                 │
//! ```
//! In raw mode, so the peer may be the stock `rping`. `advert` is the message, `ping` the text.

mod advert;
mod client;
mod ping;
mod server;

use crate::cli::RpingArgs;
use crate::setup::{Failure, Fit, plan};
use crate::watch::{Manner, Progress, watch};
use client::{Client, Done, Job};
use serde::Serialize;
use server::{Server, Tally, Told};
use spinwire::Engine;
use spinwire::config::{Plan, Side};
use spinwire::control::Offer;
use spinwire::fabric::Url;
use spinwire::limits::{SLOT_BYTES_MAX, SLOT_BYTES_MIN};
use spinwire::sys::clock::Clock;
use spinwire::sys::signal::StopSignal;
use spinwire::types::Access;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

pub(crate) const SIZE_MIN: u32 = ping::BYTES_MIN;
pub(crate) const SIZE_MAX: u32 = SLOT_BYTES_MAX;
/// What the stock rping takes where nothing is said.
const SIZE_DEFAULT: u32 = 64;
/// Without one exchange in this time the peer is taken to be no rping server.
const STALL: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(100);
/// For the end of an exchange that is under way when a signal comes, and for clients to leave.
const GRACE: Duration = Duration::from_secs(2);
/// One message at a time needs two; a READ, a WRITE and two go-aheads may be out.
const RECV_DEPTH: u32 = 4;
const SEND_DEPTH: u32 = 8;
/// Buffers that one connection may have in use.
const BUFFERS_OF_ONE: u32 = RECV_DEPTH + 4;

/// READs and WRITEs as the stock rping asks for them: one at a time.
fn offer(access: Access) -> Offer {
    Offer {
        responder_resources: 1,
        initiator_depth: 1,
        access,
        ..Offer::default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    Client,
    Server,
}

/// One run.
#[derive(Debug, Serialize)]
struct Report {
    tool: &'static str,
    version: &'static str,
    role: Role,
    /// Where the server is.
    server: String,
    exchanges: u64,
    /// Bytes of pings that were read and written back.
    bytes: u64,
    /// Bytes that this side compared with what they should be, and found right.
    verified: u64,
    connections: u64,
    failures: u64,
    seconds: f64,
}

impl Report {
    fn print(&self, json: bool) -> Result<(), Failure> {
        let text = if json {
            serde_json::to_string_pretty(self)?
        } else {
            let Self {
                exchanges,
                server,
                bytes,
                verified,
                seconds,
                ..
            } = self;
            let of = match self.role {
                Role::Client => format!("with {server}"),
                Role::Server => format!(
                    "at {server} on {} connections, {} of which failed",
                    self.connections, self.failures
                ),
            };
            format!(
                "{exchanges} exchanges {of}: {bytes} B read and written back, {verified} B verified, \
                 in {seconds:.2} s"
            )
        };
        writeln!(std::io::stdout(), "{text}")?;
        Ok(())
    }
}

pub(crate) fn run(args: &RpingArgs) -> Result<(), Failure> {
    match (&args.listen, &args.url) {
        (Some(at), _) => serve(args, at),
        (None, Some(peer)) => ping(args, peer),
        (None, None) => Err("name a server, or be one with --server --listen URL".into()),
    }
}

fn ping(args: &RpingArgs, peer: &Url) -> Result<(), Failure> {
    // Only adverts lie in the pool.
    let fit_one = Fit {
        size: Some(SLOT_BYTES_MIN),
        connections: Some(1),
        ..Fit::default()
    };
    let mut plan = plan(&args.host, Side::Client, &fit_one, peer)?;
    plan.workers.truncate(1);
    let job = Job {
        size: args.size.unwrap_or(SIZE_DEFAULT),
        count: args.count,
        stop: Arc::new(AtomicBool::new(false)),
    };
    let signal = StopSignal::install()?;
    let (sender, result) = mpsc::channel();
    let engine = Engine::start(&plan, {
        let job = job.clone();
        move |worker| Client::new(job.clone(), &worker, sender.clone())
    })?;
    engine.connect(peer, offer(Access::REMOTE_READ | Access::REMOTE_WRITE))?;
    let done = wait(&engine, &result, &signal, &job);
    let left = engine.shutdown()?;
    let done = done?;
    let bytes = done.exchanges * u64::from(job.size);
    let report = Report {
        tool: "spinwire",
        version: env!("CARGO_PKG_VERSION"),
        role: Role::Client,
        server: peer.to_string(),
        exchanges: done.exchanges,
        bytes,
        verified: bytes,
        connections: 1,
        failures: 0,
        seconds: done.took.as_secs_f64(),
    };
    if !left.is_empty() {
        return Err(format!("left behind: {left:?}").into());
    }
    report.print(args.json)
}

fn wait(
    engine: &Engine,
    result: &Receiver<Result<Done, String>>,
    signal: &StopSignal,
    job: &Job,
) -> Result<Done, Failure> {
    // Two go-aheads each.
    let exchanges = |messages| messages / 2;
    let manner = Manner {
        stall: STALL,
        count: |counters| counters.messages_received,
        progress: &|messages| line(exchanges(messages), job.count),
        stalled: &|messages, time| {
            let (seconds, exchanges) = (time.as_secs(), exchanges(messages));
            format!(
                "no go-ahead came for {seconds} s, after {exchanges} exchanges: is the peer an rping \
                 server, and the link up?"
            )
        },
        signalled: &|messages| match job.count {
            Some(count) => {
                let exchanges = exchanges(messages);
                Err(format!(
                    "stopped by a signal after {exchanges} of {count} exchanges"
                ))
            }
            None => {
                job.stop.store(true, Ordering::Relaxed);
                Ok(GRACE)
            }
        },
    };
    watch(engine, result, signal, &manner)
}

fn line(exchanges: u64, count: Option<u64>) -> String {
    let of = count.map_or(String::new(), |count| format!(" of {count}"));
    format!("{exchanges} exchanges{of}")
}

fn serve(args: &RpingArgs, at: &Url) -> Result<(), Failure> {
    let mapped = args.host.config.is_some();
    let size = args.size.or((!mapped).then_some(ping::STOCK_BYTES_MAX));
    let mut plan = plan(
        &args.host,
        Side::Server,
        &Fit {
            size,
            ..Fit::default()
        },
        at,
    )?;
    if !mapped {
        fit(&mut plan);
    }
    let most = size.unwrap_or(plan.pool.slot_bytes);
    let signal = StopSignal::install()?;
    let tally = Arc::new(Tally::new(args.count));
    let (tell, told) = mpsc::channel();
    let engine = Engine::start(&plan, {
        let tally = Arc::clone(&tally);
        move |_| Server::new(most, Arc::clone(&tally), tell.clone())
    })?;
    let at = engine.listen_with(at, offer(Access::NONE))?;
    let greeting = format!("listening on {at}; ends with Ctrl-C");
    if args.json {
        // Standard output is for one document.
        eprintln!("{greeting}");
    } else {
        println!("{greeting}");
        std::io::stdout().flush()?;
    }
    let mut log = Log::default();
    let ended = attend(&told, &signal, &tally, args.count, &mut log);
    let left = engine.shutdown()?;
    told.try_iter().for_each(|told| log.take(told));
    let exchanges = tally.exchanges.load(Ordering::Relaxed);
    let report = Report {
        tool: "spinwire",
        version: env!("CARGO_PKG_VERSION"),
        role: Role::Server,
        server: at.to_string(),
        exchanges,
        bytes: tally.bytes.load(Ordering::Relaxed),
        verified: tally.verified.load(Ordering::Relaxed),
        connections: log.connections,
        failures: log.failures,
        seconds: tally.took().as_secs_f64(),
    };
    report.print(args.json)?;
    ended?;
    if !left.is_empty() {
        return Err(format!("left behind: {left:?}").into());
    }
    if let Some(first) = log.first {
        let failures = log.failures;
        return Err(format!("{failures} failed, the first of them: {first}").into());
    }
    match args.count {
        Some(count) if exchanges < count => {
            Err(format!("stopped by a signal after {exchanges} of {count} exchanges").into())
        }
        _ => Ok(()),
    }
}

/// Queues as shallow as the protocol is, and no more connections than there are buffers for.
fn fit(plan: &mut Plan) {
    for worker in &mut plan.workers {
        let lanes = u32::try_from(worker.lanes.len()).unwrap_or(u32::MAX).max(1);
        let each = plan.pool.slots / lanes / BUFFERS_OF_ONE;
        for lane in &mut worker.lanes {
            lane.recv_depth = lane.recv_depth.min(RECV_DEPTH);
            lane.send_depth = lane.send_depth.min(SEND_DEPTH);
            lane.connections_max = lane.connections_max.min(each).max(1);
            lane.cq_depth = lane.connections_max * (lane.send_depth + lane.recv_depth);
        }
    }
}

/// What the server was told.
#[derive(Debug, Default)]
struct Log {
    open: u64,
    connections: u64,
    failures: u64,
    first: Option<String>,
    enough: bool,
}

impl Log {
    fn take(&mut self, told: Told) {
        match told {
            Told::Opened => {
                self.open += 1;
                self.connections += 1;
            }
            Told::Closed => self.open -= 1,
            Told::Failed(text) => {
                eprintln!("spinwire: {text}");
                self.failures += 1;
                self.first.get_or_insert(text);
            }
            Told::Enough => self.enough = true,
        }
    }
}

/// Until a signal, or until there were enough exchanges and their clients have left.
fn attend(
    told: &Receiver<Told>,
    signal: &StopSignal,
    tally: &Tally,
    count: Option<u64>,
    log: &mut Log,
) -> Result<(), Failure> {
    let clock = Clock::calibrated();
    let progress = Progress::new();
    let mut deadline = None;
    loop {
        match told.recv_timeout(LOOK) {
            Ok(told) => {
                progress.clear();
                log.take(told);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err("the workers have ended".into()),
        }
        progress.show(|| line(tally.exchanges.load(Ordering::Relaxed), count));
        if log.enough {
            let deadline = *deadline.get_or_insert(clock.now() + GRACE);
            if log.open == 0 || clock.now() >= deadline {
                break;
            }
        }
        if signal.wait(Duration::ZERO) {
            break;
        }
    }
    progress.clear();
    Ok(())
}
