//! What a busy worker does not do: allocate, or make system calls of its own.

use crate::support::*;
use spinwire::Engine;
use spinwire::control::Offer;
use spinwire::memory::Buffer;
use spinwire::types::IdlePolicy;
use spinwire::worker::{ConnId, Io, Message, Peer, Service, Token, Turn};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Instant;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn note() {
    // A thread that ends may allocate after its locals are gone.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: every call goes to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

/// What the service on the worker and the test tell each other.
#[derive(Default)]
struct Board {
    thread: AtomicI32,
    go: AtomicBool,
    exchanges: AtomicU64,
    allocations: AtomicU64,
}

/// Waits for `go`, then makes `exchanges` exchanges and holds still again.
struct Metered {
    board: Arc<Board>,
    per_go: u64,
    left: u64,
    conn: Option<ConnId>,
    ball: Option<Buffer>,
    at_start: u64,
}

impl Metered {
    fn throw(&mut self, io: &mut Io<'_>) {
        let (Some(conn), Some(ball)) = (self.conn, self.ball.take()) else {
            return;
        };
        assert!(io.send(conn, ball, Token(0)).is_ok());
    }
}

impl Service for Metered {
    fn connected(&mut self, io: &mut Io<'_>, conn: ConnId, _: &Peer) {
        let mut ball = io.alloc().unwrap();
        ball.set_len(32).unwrap();
        (self.conn, self.ball) = (Some(conn), Some(ball));
        // SAFETY: gettid has no precondition.
        self.board
            .thread
            .store(unsafe { libc::gettid() }, Ordering::SeqCst);
    }
    fn turn(&mut self, io: &mut Io<'_>) -> Turn {
        if self.ball.is_some() && self.board.go.load(Ordering::Acquire) {
            self.board.go.store(false, Ordering::Relaxed);
            self.left = self.per_go;
            self.at_start = allocations();
            self.throw(io);
            return Turn::Busy;
        }
        Turn::Idle
    }
    fn message(&mut self, io: &mut Io<'_>, _: ConnId, message: Message) {
        self.ball = Some(message.into_buffer());
        self.left -= 1;
        if self.left > 0 {
            return self.throw(io);
        }
        let made = allocations() - self.at_start;
        self.board.allocations.store(made, Ordering::Relaxed);
        self.board
            .exchanges
            .fetch_add(self.per_go, Ordering::Release);
    }
}

fn metered(host: (&str, &str), port: u16, per_go: u64) -> (Engine, Engine, Arc<Board>) {
    let server = start_echo(&plan(host.0, 1, IdlePolicy::Spin));
    server.listen(&url(host.1, port)).unwrap();
    let board = Arc::new(Board::default());
    let on_worker = Arc::clone(&board);
    let mut plan = plan(host.0, 0, IdlePolicy::Spin);
    // At its own address rxe sends what is inline and what is not by one and the same call.
    plan.workers[0].lanes[0].inline_bytes = 0;
    let client = Engine::start(&plan, move |_| Metered {
        board: Arc::clone(&on_worker),
        per_go,
        left: 0,
        conn: None,
        ball: None,
        at_start: 0,
    })
    .unwrap();
    client
        .connect(&url(host.1, port), Offer::default())
        .unwrap();
    wait_until(|| board.thread.load(Ordering::SeqCst) != 0);
    (server, client, board)
}

fn wait_until(what: impl Fn() -> bool) {
    let until = Instant::now() + LONG;
    while !what() {
        assert!(Instant::now() < until, "waited for too long");
        std::thread::park_timeout(PAUSE);
    }
}

fn go(board: &Board) {
    let before = board.exchanges.load(Ordering::Acquire);
    board.go.store(true, Ordering::Release);
    wait_until(|| board.exchanges.load(Ordering::Acquire) > before);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_busy_turns_allocate_nothing() {
    let before = allocations();
    drop(std::hint::black_box(Box::new(7)));
    assert_eq!(allocations() - before, 2, "the counter counts");
    for (host, port) in [(RXE, 7401), (SIW, 7402)] {
        let witness = Witness::new();
        let (server, client, board) = metered(host, port, 5000);
        go(&board);
        go(&board);
        assert_eq!(board.exchanges.load(Ordering::Acquire), 10_000);
        assert_eq!(board.allocations.load(Ordering::Relaxed), 0);
        end(client);
        end(server);
        witness.assert_unchanged();
    }
}

/// Counts the system calls of one thread by number, through the kernel's own tracepoint.
struct Calls {
    trigger: std::path::PathBuf,
    rule: String,
    histogram: std::path::PathBuf,
}

impl Calls {
    fn of(thread: i32) -> Self {
        let event = Path::new("/sys/kernel/tracing/events/raw_syscalls/sys_enter");
        let rule = format!("hist:keys=id if common_pid=={thread}");
        let calls = Self {
            trigger: event.join("trigger"),
            histogram: event.join("hist"),
            rule,
        };
        fs::write(&calls.trigger, &calls.rule).expect("tracefs with histogram triggers");
        calls
    }

    /// (number of the call, how often).
    fn counts(&self) -> Vec<(u64, u64)> {
        let text = fs::read_to_string(&self.histogram).unwrap();
        let number = |line: &str, key: &str| {
            let rest = line.split(key).nth(1)?.trim_start();
            rest.split(|c: char| !c.is_ascii_digit())
                .next()?
                .parse::<u64>()
                .ok()
        };
        text.lines()
            .filter_map(|l| Some((number(l, "id:")?, number(l, "hitcount:")?)))
            .collect()
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        let _ = fs::write(&self.trigger, format!("!{}", self.rule));
    }
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_system_calls_are_the_doorbells() {
    let witness = Witness::new();
    let (server, client, board) = metered(RXE, 7411, 3000);
    go(&board);
    let quiet = || {
        // The last completion is polled, and receives are reposted, in turns after the last answer.
        let c = client.counters()[0];
        wait_until(|| client.counters()[0].turns_idle > c.turns_idle + 1000);
    };
    quiet();
    let doorbells = || client.counters()[0].doorbells;
    let thread = board.thread.load(Ordering::SeqCst);

    // A spinning worker that has nothing to do makes no call at all.
    let calls = Calls::of(thread);
    quiet();
    assert_eq!(calls.counts(), [], "calls of an idle worker");
    // A busy one makes one write a doorbell, which is rxe's own.
    let before = doorbells();
    go(&board);
    quiet();
    let rung = doorbells() - before;
    assert_eq!(rung, 3000);
    let write = u64::try_from(libc::SYS_write).unwrap();
    assert_eq!(calls.counts(), [(write, rung)]);
    drop(calls);
    end(client);
    end(server);
    witness.assert_unchanged();
}
