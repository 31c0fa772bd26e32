//! `spinwire rping` and the stock `rping` of librdmacm, as processes: either side with either, every
//! byte checked by both. The stock one is of the Debian package rdmacm-utils.

mod hostile;

use crate::support::*;
use rustix::process::{Pid, Signal, kill_process};
use spinwire::Engine;
use spinwire::control::Offer;
use spinwire::memory::{ExposedMemory, HugepagePolicy};
use spinwire::types::{Access, IdlePolicy, RemoteRegion, Rkey};
use spinwire::worker::{CloseReason, Completed, ConnId, Io, Message, Peer, Service, Token};
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

const WIRE: &str = "10.9.0.2";

/// The command beside the tests (`scripts/test` builds both), or the one that SPINWIRE_BIN names.
fn spinwire_binary() -> PathBuf {
    let binary = std::env::var_os("SPINWIRE_BIN").map_or_else(
        || {
            let test = std::env::current_exe().unwrap();
            test.ancestors().nth(2).unwrap().join("spinwire")
        },
        PathBuf::from,
    );
    let name = binary.display();
    assert!(
        binary.is_file(),
        "no {name}: cargo build --release -p spinwire-apps, or set SPINWIRE_BIN"
    );
    binary
}

/// A process that is ended by its id however the test ends, and what it said.
struct Process {
    child: Child,
    name: String,
    out: PathBuf,
    err: PathBuf,
}

impl Process {
    fn start(program: &Path, arguments: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = |kind: &str| {
            let name = format!("spinwire-rping-{}-{number}.{kind}", std::process::id());
            std::env::temp_dir().join(name)
        };
        // Files, as a pipe that nobody empties would stop the process.
        let (out, err) = (file("out"), file("err"));
        let child = Command::new(program)
            .args(arguments.split(' '))
            .stdin(Stdio::null())
            .stdout(File::create(&out).unwrap())
            .stderr(File::create(&err).unwrap())
            .spawn();
        let name = format!("{} {arguments}", program.display());
        let child = child.unwrap_or_else(|error| panic!("{name}: {error}"));
        Self {
            child,
            name,
            out,
            err,
        }
    }

    fn ours(arguments: &str) -> Self {
        Self::start(&spinwire_binary(), &format!("rping {arguments}"))
    }

    fn stock(arguments: &str) -> Self {
        Self::start(Path::new("rping"), arguments)
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    fn out(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.out).unwrap()).into()
    }

    fn err(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.err).unwrap()).into()
    }

    fn said(&self) -> String {
        let tail = |text: &str| text[text.len().saturating_sub(2000)..].to_owned();
        format!("{}:\n{}{}", self.name, tail(&self.out()), self.err())
    }

    /// Until it listens: the device says so a moment before iWARP's TCP does.
    fn await_listening(&mut self, port: u16) {
        let until = Instant::now() + LONG;
        let ready = || {
            let shown = run("rdma", "resource show cm_id");
            let own = format!(":{port} ");
            let mut lines = shown.lines().filter(|l| l.contains(" LISTEN "));
            let Some(line) = lines.find(|l| format!("{l} ").contains(&own)) else {
                return false;
            };
            let tcp = std::fs::read_to_string("/proc/net/tcp").unwrap();
            // State 0A is LISTEN.
            !line.contains(SIW.0)
                || tcp
                    .lines()
                    .any(|l| l.contains(&format!(":{port:04X} 00000000:0000 0A ")))
        };
        while !ready() {
            assert!(self.is_running(), "{}", self.said());
            assert!(Instant::now() < until, "does not listen: {}", self.said());
            std::thread::park_timeout(10 * PAUSE);
        }
    }

    /// Until SIGINT no longer ends it outright: it blocks the signal, to take it at its own time.
    fn await_taking_signals(&mut self) {
        let until = Instant::now() + LONG;
        let status = format!("/proc/{}/status", self.child.id());
        let blocks = || {
            let text = std::fs::read_to_string(&status).unwrap();
            let mask = text.lines().find_map(|l| l.strip_prefix("SigBlk:"));
            let mask = u64::from_str_radix(mask.unwrap().trim(), 16).unwrap();
            mask & (1 << (Signal::INT.as_raw() - 1)) != 0
        };
        while !blocks() {
            assert!(self.is_running(), "{}", self.said());
            assert!(Instant::now() < until, "takes none: {}", self.said());
            std::thread::park_timeout(10 * PAUSE);
        }
    }

    fn wait(&mut self) -> ExitStatus {
        // A busy machine may take minutes where an idle one takes seconds.
        let until = Instant::now() + 4 * LONG;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "does not end: {}", self.said());
            std::thread::park_timeout(10 * PAUSE);
        }
    }

    fn succeeds(&mut self) {
        let status = self.wait();
        assert!(status.success(), "{status}: {}", self.said());
    }

    fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
    }

    /// Of a process with --json: all was done, and every byte was checked.
    fn assert_verified(&self, role: &str, count: u64, size: u64) {
        let report: serde_json::Value = serde_json::from_str(&self.out()).unwrap();
        let number = |key: &str| report[key].as_u64().unwrap();
        assert_eq!(report["role"], role, "{report}");
        assert_eq!(number("exchanges"), count, "{report}");
        assert_eq!(number("bytes"), count * size, "{report}");
        assert_eq!(number("verified"), count * size, "{report}");
        assert_eq!(number("failures"), 0, "{report}");
        assert!(report["seconds"].as_f64().unwrap() > 0.0, "{report}");
    }

    /// Of a stock rping with -v. Its exit status does not tell: a client that is cut off in mid-run
    /// ends with 0, and so does a server whose READ failed, if the end comes fast enough.
    fn assert_pings(&self, prefix: &str, count: u64) {
        let out = self.out();
        let numbers: Vec<&str> = out
            .lines()
            .filter_map(|line| line.strip_prefix(prefix)?.strip_prefix("rdma-ping-"))
            .map(|rest| rest.split(':').next().unwrap())
            .collect();
        let expected: Vec<String> = (0..count).map(|n| n.to_string()).collect();
        assert!(
            numbers == expected,
            "{} of {count} pings: {}",
            numbers.len(),
            self.said()
        );
        assert!(!self.err().contains("mismatch"), "{}", self.said());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for file in [&self.out, &self.err] {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Who is who. A stock client names its source.
#[derive(Clone, Copy, PartialEq)]
enum Pair {
    StockClient,
    StockServer,
    Ours,
}

struct Run {
    server: Process,
    client: Process,
}

impl Run {
    fn start(pair: Pair, host: &str, port: u16, count: u64, size: u64) -> Self {
        let at = format!("rdma://{host}:{port}");
        let mut server = if pair == Pair::StockServer {
            Process::stock(&format!(
                "-s -a {host} -p {port} -v -V -C {count} -S {size}"
            ))
        } else {
            Process::ours(&format!("--server --listen {at} --count {count} --json"))
        };
        server.await_listening(port);
        let client = if pair == Pair::StockClient {
            let source = if host == WIRE { " -I 10.9.0.1" } else { "" };
            let what = format!("-p {port} -v -V -C {count} -S {size}{source}");
            Process::stock(&format!("-c -a {host} {what}"))
        } else {
            Process::ours(&format!("{at} --count {count} --size {size} --json"))
        };
        Self { server, client }
    }

    fn assert_done(mut self, pair: Pair, count: u64, size: u64) {
        self.client.succeeds();
        self.server.succeeds();
        match pair {
            Pair::StockClient => self.client.assert_pings("ping data: ", count),
            Pair::StockServer | Pair::Ours => self.client.assert_verified("client", count, size),
        }
        match pair {
            Pair::StockServer => self.server.assert_pings("server ping data: ", count),
            Pair::StockClient | Pair::Ours => self.server.assert_verified("server", count, size),
        }
    }
}

fn thousand(pair: Pair, (_, host): (&str, &str), port: u16) {
    let witness = Witness::new();
    Run::start(pair, host, port, 1000, 500).assert_done(pair, 1000, 500);
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_rping_stock_client() {
    thousand(Pair::StockClient, RXE, 7601);
    thousand(Pair::StockClient, SIW, 7603);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_rping_stock_server() {
    thousand(Pair::StockServer, RXE, 7611);
    thousand(Pair::StockServer, SIW, 7613);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_rping_ours() {
    thousand(Pair::Ours, RXE, 7621);
    thousand(Pair::Ours, SIW, 7623);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_rping_failures_are_told() {
    let witness = Witness::new();
    let (host, port) = (RXE.1, 7641);
    // A stock server that reads 64 bytes and no more.
    let mut server = Process::stock(&format!("-s -a {host} -p {port}"));
    server.await_listening(port);
    let mut client = Process::ours(&format!("rdma://{host}:{port} --count 5 --size 100"));
    assert_eq!(client.wait().code(), Some(1), "{}", client.said());
    assert!(client.err().contains("-S 100"), "{}", client.said());
    server.wait();
    // A server that is to end before the client is done, and a client that is not.
    let mut server = Process::ours(&format!("--server --listen rdma://{host}:{port} --count 9"));
    server.await_listening(port);
    let mut client = Process::ours(&format!("rdma://{host}:{port} --count 10"));
    assert_eq!(client.wait().code(), Some(1), "{}", client.said());
    assert!(client.err().contains("exchange 9: "), "{}", client.said());
    server.succeeds();
    // Without a count until a signal, on both sides.
    let mut server = Process::ours(&format!("--server --listen rdma://{host}:{port}"));
    server.await_listening(port);
    let mut client = Process::ours(&format!("rdma://{host}:{port}"));
    client.await_taking_signals();
    client.interrupt();
    client.succeeds();
    assert!(client.out().contains(" B verified"), "{}", client.said());
    server.interrupt();
    server.succeeds();
    witness.assert_unchanged();
}

fn run(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split(' ')).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {text}");
    String::from_utf8(output.stdout).unwrap()
}

/// Undone however the test ends.
struct Undo(&'static str, &'static str);

impl Drop for Undo {
    fn drop(&mut self) {
        let _ = Command::new(self.0).args(self.1.split(' ')).status();
    }
}

fn hw_counter(name: &str) -> u64 {
    ["rxe0", "rxe1"]
        .iter()
        .map(|d| {
            number_in(&format!(
                "/sys/class/infiniband/{d}/ports/1/hw_counters/{name}"
            ))
        })
        .sum()
}

fn wire(pair: Pair, port: u16) {
    let witness = Witness::new();
    let before = packets();
    Run::start(pair, WIRE, port, 1000, 500).assert_done(pair, 1000, 500);
    // From this end two adverts and the ping, at the least.
    let crossed = packets() - before;
    assert!(crossed >= 3000, "{crossed} packets crossed the wire");
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn wire_rping_stock_client() {
    wire(Pair::StockClient, 7651);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn wire_rping_stock_server() {
    wire(Pair::StockServer, 7652);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn wire_rping_ours() {
    wire(Pair::Ours, 7653);
}

/// Two seconds in mid-run in which the wire loses everything.
fn loss(pair: Pair, port: u16) {
    const COUNT: u64 = 2000;
    let witness = Witness::new();
    let before = packets();
    let mut both = Run::start(pair, WIRE, port, COUNT, 64);
    let until = Instant::now() + LONG;
    while packets() < before + COUNT {
        assert!(Instant::now() < until, "no traffic: {}", both.client.said());
        std::thread::park_timeout(PAUSE);
    }
    let (retries, exceeded) = (
        hw_counter("completer_retry_err"),
        hw_counter("retry_exceeded_err"),
    );
    run("tc", "qdisc add dev v0 root netem loss 100%");
    let lossy = Undo("tc", "qdisc del dev v0 root");
    std::thread::sleep(Duration::from_secs(2));
    assert!(both.client.is_running() && both.server.is_running());
    let shown = run("tc", "-s qdisc show dev v0");
    drop(lossy);
    let healed = Instant::now();
    both.assert_done(pair, COUNT, 64);
    let dropped = shown
        .split("(dropped ")
        .nth(1)
        .and_then(|t| t.split(',').next());
    let dropped: u64 = dropped.expect("a count of drops").parse().unwrap();
    let retried = hw_counter("completer_retry_err") - retries;
    println!(
        "{dropped} packets dropped, {retried} retries; done {:?} after the loss",
        healed.elapsed()
    );
    assert!(dropped > 0, "{shown}");
    assert!(retried > 0, "no retry was counted");
    assert_eq!(hw_counter("retry_exceeded_err"), exceeded);
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn wire_rping_loss_stock_client() {
    loss(Pair::StockClient, 7661);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn wire_rping_loss_stock_server() {
    loss(Pair::StockServer, 7662);
}
