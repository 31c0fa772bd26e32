//! Plans, services and witnesses that the tests share.

use spinwire::config::{
    ConnectionPlan, ControlPlan, LanePlan, Plan, PoolPlan, ShmPlan, WorkerPlan,
};
use spinwire::fabric::Url;
use spinwire::memory::{Buffer, HugepagePolicy};
use spinwire::types::{CoreId, IdlePolicy};
use spinwire::worker::{
    CloseReason, Completed, ConnId, Io, Message, Outcome, Peer, PostError, Service, Token,
};
use spinwire::{Engine, WorkerInfo};
use std::collections::VecDeque;
use std::process::Command;
use std::sync::Once;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

pub(crate) const RXE: (&str, &str) = ("rxe0", "10.9.0.1");
pub(crate) const SIW: (&str, &str) = ("siw0", "10.9.1.1");
/// No test waits longer for anything.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// Between two looks at something awaited: the cores are the workers', so no test thread spins.
pub(crate) const PAUSE: Duration = Duration::from_millis(2);

pub(crate) fn url(host: &str, port: u16) -> Url {
    format!("rdma://{host}:{port}").parse().unwrap()
}

pub(crate) fn plan(device: &str, core: usize, idle: IdlePolicy) -> Plan {
    let lane = LanePlan {
        device: device.into(),
        cq_depth: 2048,
        send_depth: 64,
        recv_depth: 64,
        shared_recv_depth: 0,
        inline_bytes: 64,
        connections_max: 16,
    };
    Plan {
        control: ControlPlan { core: None },
        workers: vec![WorkerPlan {
            core: CoreId::new(core),
            idle,
            lanes: vec![lane],
        }],
        pool: PoolPlan {
            slots: 512,
            slots_max: 0,
            slot_bytes: 16_384,
            hugepages: HugepagePolicy::Prefer,
        },
        connection: ConnectionPlan {
            resolve_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(5),
            drain_deadline: Duration::from_secs(2),
            retry_count: 7,
            rnr_retry_count: 7,
        },
        shm: ShmPlan::default(),
    }
}

/// Answers every message with itself, like `spinwire serve`.
#[derive(Default)]
pub(crate) struct Echo {
    waiting: VecDeque<(ConnId, Buffer)>,
    ended: Option<Sender<CloseReason>>,
}

impl Echo {
    /// Tells the end of each connection.
    pub(crate) fn telling(ended: Sender<CloseReason>) -> Self {
        Self {
            ended: Some(ended),
            ..Self::default()
        }
    }

    fn answer(&mut self, io: &mut Io<'_>, conn: ConnId, buffer: Buffer) {
        if let Err(rejected) = io.send(conn, buffer, Token(0))
            && rejected.reason == PostError::WouldBlock
        {
            self.waiting.push_back((conn, rejected.payload));
        }
    }
}

impl Service for Echo {
    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        self.answer(io, conn, message.into_buffer());
    }
    fn completed(&mut self, io: &mut Io<'_>, _: ConnId, completed: Completed) {
        drop(completed);
        for _ in 0..self.waiting.len() {
            if let Some((conn, buffer)) = self.waiting.pop_front() {
                self.answer(io, conn, buffer);
            }
        }
    }
    fn disconnected(&mut self, _: &mut Io<'_>, _: ConnId, reason: CloseReason) {
        if let Some(ended) = &self.ended {
            let _ = ended.send(reason);
        }
    }
}

/// What a pinger has to tell.
#[derive(Debug, PartialEq)]
pub(crate) enum Told {
    Connected(ConnId),
    /// Every message came back as it was sent.
    Done,
    /// This many came back so far; told at every thousandth.
    Progress(u64),
    Wrong(String),
    /// The connection ended; of its sends this many were given back.
    Ended(CloseReason, u64),
}

/// Sends `count` messages, `window` of them under way at a time, and checks every answer.
pub(crate) struct Pinger {
    pub(crate) size: u32,
    pub(crate) count: u64,
    pub(crate) window: u64,
    sent: u64,
    back: u64,
    completions: u64,
    tell: Sender<Told>,
}

impl Pinger {
    pub(crate) fn new(size: u32, count: u64, window: u64, tell: Sender<Told>) -> Self {
        Self {
            size,
            count,
            window,
            sent: 0,
            back: 0,
            completions: 0,
            tell,
        }
    }

    fn tell(&self, told: Told) {
        let _ = self.tell.send(told);
    }

    fn fill(&mut self, io: &mut Io<'_>, conn: ConnId) {
        while self.sent < self.count && self.sent - self.back < self.window {
            let Ok(mut buffer) = io.alloc() else { return };
            buffer.set_len(self.size).unwrap();
            let number = self.sent;
            for (i, byte) in buffer.iter_mut().enumerate() {
                *byte = pattern(number, i);
            }
            match io.send(conn, buffer, Token(number)) {
                Ok(()) => self.sent += 1,
                // There is room again after a completion, or the connection has ended.
                Err(_) => return,
            }
        }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "any byte will do")]
fn pattern(number: u64, i: usize) -> u8 {
    (number as u8).wrapping_mul(31).wrapping_add(i as u8)
}

impl Service for Pinger {
    fn connected(&mut self, io: &mut Io<'_>, conn: ConnId, _: &Peer) {
        self.tell(Told::Connected(conn));
        self.fill(io, conn);
    }
    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        let number = self.back;
        let right = message.len() == self.size as usize
            && message
                .iter()
                .enumerate()
                .all(|(i, b)| *b == pattern(number, i));
        if !right {
            self.tell(Told::Wrong(format!(
                "answer {number} of {} B: {message:?}",
                message.len()
            )));
        }
        self.back += 1;
        drop(message);
        if self.back == self.count {
            self.tell(Told::Done);
        } else if self.back.is_multiple_of(1000) {
            self.tell(Told::Progress(self.back));
        }
        self.fill(io, conn);
    }
    fn completed(&mut self, io: &mut Io<'_>, conn: ConnId, completed: Completed) {
        if completed.token != Token(self.completions) {
            self.tell(Told::Wrong(format!(
                "{:?} is not the next to complete",
                completed.token
            )));
        }
        self.completions += 1;
        if completed.outcome == Outcome::Done {
            drop(completed);
            self.fill(io, conn);
        }
    }
    fn disconnected(&mut self, _: &mut Io<'_>, _: ConnId, reason: CloseReason) {
        if self.completions != self.sent {
            let text = format!(
                "{} of {} sends were given back",
                self.completions, self.sent
            );
            self.tell(Told::Wrong(text));
        }
        self.tell(Told::Ended(reason, self.completions));
    }
}

pub(crate) fn start_echo(plan: &Plan) -> Engine {
    Engine::start(plan, |_: WorkerInfo| Echo::default()).unwrap()
}

pub(crate) fn start_pinger(
    plan: &Plan,
    size: u32,
    count: u64,
    window: u64,
) -> (Engine, Receiver<Told>) {
    let (tell, told) = mpsc::channel();
    let engine = Engine::start(plan, move |_| {
        Pinger::new(size, count, window, tell.clone())
    });
    (engine.unwrap(), told)
}

/// Waits for what `want` accepts; anything wrong that was told fails the test.
pub(crate) fn await_told(told: &Receiver<Told>, want: impl Fn(&Told) -> bool) -> Told {
    let until = Instant::now() + LONG;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let next = told.recv_timeout(left).expect("told in time");
        if want(&next) {
            return next;
        }
        assert!(!matches!(next, Told::Wrong(_)), "{next:?}");
        if let Told::Ended(reason, _) = &next {
            panic!("the connection ended: {reason}");
        }
    }
}

/// Ends an engine, of which nothing may be left.
pub(crate) fn end(engine: Engine) {
    let left = engine.shutdown().unwrap();
    assert!(left.is_empty(), "{left:?}");
}

fn resources() -> String {
    let output = Command::new("rdma")
        .args(["resource", "show"])
        .output()
        .expect("rdma(8)");
    let text = String::from_utf8(output.stdout).unwrap();
    // A context is librdmacm's, which keeps it open until the process ends.
    let kept = |word: &&str| !word.is_empty();
    let lines = text.lines().map(|line| {
        let (head, tail) = line.split_once(" ctx ").unwrap_or((line, ""));
        let rest: Vec<&str> = tail.split(' ').skip(1).filter(kept).collect();
        format!("{head} {}\n", rest.join(" "))
    });
    lines.collect()
}

static MET: Once = Once::new();

/// With its first id on a device librdmacm makes a PD of its own, which outlives the id where engines
/// hold the device. So that no test sees it come, each device has an id once.
fn meet_devices() {
    let links = Command::new("rdma").args(["link", "show"]).output();
    let links = String::from_utf8(links.expect("rdma(8)").stdout).unwrap();
    for (device, host) in [RXE, SIW, ("rxe1", "10.9.0.2")] {
        if links.contains(&format!("{device}/")) {
            let plan = plan(device, 0, IdlePolicy::Yield);
            let engine = Engine::start(&plan, |_| Echo::default()).unwrap();
            engine.listen(&url(host, 7299)).unwrap();
            end(engine);
        }
    }
}

/// The kernel's own count of RDMA resources, as an independent witness of leaks.
pub(crate) struct Witness(String);

impl Witness {
    pub(crate) fn new() -> Self {
        // SPINWIRE_LOG=debug shows what the engine does; the first test of a process sets it up.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_env("SPINWIRE_LOG"))
            .with_ansi(false)
            .try_init();
        MET.call_once(meet_devices);
        Self(resources())
    }

    /// Everything is given back. A killed process's resources go a little later than it does.
    pub(crate) fn assert_unchanged(&self) {
        let until = Instant::now() + Duration::from_secs(10);
        while resources() != self.0 && Instant::now() < until {
            std::thread::park_timeout(PAUSE);
        }
        assert_eq!(resources(), self.0, "RDMA resources are left");
    }
}

pub(crate) fn number_in(file: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    text.trim().parse().unwrap()
}

/// Packets that left the first end of the wire.
pub(crate) fn packets() -> u64 {
    number_in("/sys/class/net/v0/statistics/tx_packets")
}
