//! `spinwire rping` and the stock `rping` of librdmacm, as processes: either side with either, every
//! byte checked by both. The stock one is of the Debian package rdmacm-utils.

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

/// What a client says that is none.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// These bytes.
    Message(&'static [u8]),
    /// An advert of these bytes from the source on, with the key that much off.
    Advert { len: u32, key_off: u32 },
    /// The last address.
    Wraps,
}

/// Tells the lies that a connection's tag names one after another, each but the first after a
/// go-ahead. Its source is ping 0 of 32 bytes.
struct Liar {
    source: ExposedMemory,
    lies: HashMap<ConnId, &'static [Lie]>,
    ended: Sender<CloseReason>,
}

const PING: &[u8; 32] = b"rdma-ping-0: ABCDEFGHIJKLMNOPQR\0";

impl Liar {
    fn lie(&mut self, io: &mut Io<'_>, conn: ConnId) {
        let lies = self.lies.get_mut(&conn).unwrap();
        let Some((lie, rest)) = lies.split_first() else {
            return;
        };
        *lies = rest;
        let region = io.exposed(conn, &self.source).unwrap();
        let advert = |addr: u64, rkey: u32, len: u32| {
            [
                &addr.to_be_bytes()[..],
                &rkey.to_be_bytes(),
                &len.to_be_bytes(),
            ]
            .concat()
        };
        let bytes = match *lie {
            Lie::Message(bytes) => bytes.to_vec(),
            Lie::Advert { len, key_off } => {
                advert(region.addr(), region.rkey().0.wrapping_add(key_off), len)
            }
            Lie::Wraps => advert(u64::MAX, region.rkey().0, 64),
        };
        let mut buffer = io.alloc().unwrap();
        buffer.copy_from(&bytes).unwrap();
        io.send(conn, buffer, Token(0)).unwrap();
    }
}

impl Service for Liar {
    fn connected(&mut self, io: &mut Io<'_>, conn: ConnId, peer: &Peer) {
        let (lies, _) = LIES[usize::try_from(peer.tag).unwrap()];
        self.lies.insert(conn, lies);
        self.lie(io, conn);
    }
    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        drop(message);
        self.lie(io, conn);
    }
    fn completed(&mut self, _: &mut Io<'_>, _: ConnId, completed: Completed) {
        drop(completed);
    }
    fn disconnected(&mut self, _: &mut Io<'_>, _: ConnId, reason: CloseReason) {
        let _ = self.ended.send(reason);
    }
}

/// Lies, and what the server says of each. The last two are refused by a device, not by the server.
const LIES: &[(&[Lie], &str)] = &[
    (&[Lie::Message(b"")], "a message of 0 B came"),
    (
        &[Lie::Message(b"fifteen bytes..")],
        "a message of 15 B came",
    ),
    (&[Lie::Message(&[0x55; 4000])], "a message of 4000 B came"),
    (
        &[Lie::Message(&[0xff; 16])],
        "4294967295 B at 0xffffffffffffffff",
    ),
    (&[Lie::Message(&[0; 16])], "an advert of 0 B at 0x0"),
    (&[advert(65_536, 0)], "at most 65535 B are taken here"),
    (&[Lie::Wraps], "reaches past the last address"),
    // Not the 0 that ends a ping of 31 bytes.
    (
        &[advert(31, 0)],
        "byte 30 of 31 is 0x52, and 0x00 was expected",
    ),
    (
        &[advert(33, 0)],
        "byte 31 of 33 is 0x00, and 0x53 was expected",
    ),
    (
        &[advert(32, 0), advert(31, 0)],
        "a sink of 31 B for a ping of 32 B",
    ),
    (
        &[advert(32, 0), Lie::Message(b"no")],
        "a message of 2 B came",
    ),
    (&[advert(32, 77)], "in the READ of 32 B"),
    (&[advert(32, 0), advert(32, 77)], "in the WRITE to 32 B"),
];

const fn advert(len: u32, key_off: u32) -> Lie {
    Lie::Advert { len, key_off }
}

fn lies((device, host): (&str, &str), port: u16) {
    let witness = Witness::new();
    let mut server = Process::ours(&format!("--server --listen rdma://{host}:{port} --json"));
    server.await_listening(port);
    let (ended, reasons) = mpsc::channel();
    let liar = Engine::start(&plan(device, 0, IdlePolicy::Yield), move |worker| {
        let read = Access::REMOTE_READ;
        let source = worker.expose(PING.len(), HugepagePolicy::Off, read);
        let source = source.unwrap();
        source.copy_in(0, PING).unwrap();
        Liar {
            source,
            lies: HashMap::new(),
            ended: ended.clone(),
        }
    })
    .unwrap();
    let mut told = 0;
    for (tag, (_, expected)) in (0..).zip(LIES) {
        // An iWARP sender is not told that its peer refused a WRITE.
        if device == SIW.0 && expected.contains("WRITE") {
            continue;
        }
        let offer = Offer {
            tag,
            responder_resources: 1,
            initiator_depth: 1,
            access: Access::REMOTE_READ,
            ..Offer::default()
        };
        liar.connect(&url(host, port), offer).unwrap();
        let reason = reasons.recv_timeout(LONG).expect("ended in time");
        println!("{device}: {expected}: {reason}");
        told += 1;
        // Of each exactly one line, behind the greeting.
        let until = Instant::now() + LONG;
        while server.err().lines().count() <= told {
            assert!(Instant::now() < until, "not {expected}: {}", server.said());
            std::thread::park_timeout(PAUSE);
        }
        let error = server.err();
        let last = error.lines().last().unwrap();
        assert!(last.contains(expected), "not {expected}: {last}");
    }
    end(liar);
    // Others are served as ever.
    let mut client = Process::ours(&format!("rdma://{host}:{port} --count 10 --json"));
    client.succeeds();
    client.assert_verified("client", 10, 64);
    let mut client = Process::stock(&format!("-c -a {host} -p {port} -v -V -C 10"));
    client.succeeds();
    client.assert_pings("ping data: ", 10);
    server.interrupt();
    assert_eq!(server.wait().code(), Some(1), "{}", server.said());
    let report: serde_json::Value = serde_json::from_str(&server.out()).unwrap();
    assert_eq!(report["failures"], told, "{report}");
    assert_eq!(report["connections"], told + 2, "{report}");
    assert_eq!(report["exchanges"], 20, "{report}");
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_rping_liars() {
    lies(RXE, 7631);
    lies(SIW, 7632);
}

/// A server of lies, one a connection: a go-ahead of 15 bytes, no WRITE, and a WRITE with a wrong byte.
#[derive(Default)]
struct LyingServer {
    connections: usize,
    /// The lie of each connection, and the adverts that came.
    links: HashMap<ConnId, (usize, u32)>,
}

const SERVER_LIES: [&str; 3] = [
    "a message of 15 B came, a go-ahead has 16 B",
    "byte 0 of 64 is 0xee, and 0x72 was expected",
    "byte 40 of 64 is 0x21, and 0x5c was expected",
];

impl LyingServer {
    fn write_wrong(io: &mut Io<'_>, conn: ConnId, advert: &[u8]) {
        let addr = u64::from_be_bytes(advert[..8].try_into().unwrap());
        let rkey = Rkey(u32::from_be_bytes(advert[8..12].try_into().unwrap()));
        let mut ping = b"rdma-ping-0: ".to_vec();
        ping.extend((b'A'..).take(50));
        ping.push(0);
        ping[40] = b'!';
        let sink = RemoteRegion::parse(addr, 64, rkey, Access::REMOTE_WRITE).unwrap();
        let mut buffer = io.alloc().unwrap();
        buffer.copy_from(&ping).unwrap();
        io.write(conn, buffer, &sink, 0, Token(0)).unwrap();
    }
}

impl Service for LyingServer {
    fn connected(&mut self, _: &mut Io<'_>, conn: ConnId, _: &Peer) {
        self.links.insert(conn, (self.connections, 0));
        self.connections += 1;
    }
    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        let (lie, adverts) = self.links.get_mut(&conn).unwrap();
        *adverts += 1;
        if (*lie, *adverts) == (2, 2) {
            Self::write_wrong(io, conn, &message);
        }
        let mut buffer = message.into_buffer();
        buffer.set_len(if *lie == 0 { 15 } else { 16 }).unwrap();
        io.send(conn, buffer, Token(0)).unwrap();
    }
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_rping_lying_server() {
    for ((device, host), port) in [(RXE, 7651), (SIW, 7652)] {
        let witness = Witness::new();
        let server = Engine::start(&plan(device, 1, IdlePolicy::Yield), |_| {
            LyingServer::default()
        });
        let server = server.unwrap();
        server.listen(&url(host, port)).unwrap();
        for expected in SERVER_LIES {
            let mut client = Process::ours(&format!("rdma://{host}:{port} --count 5"));
            assert_eq!(client.wait().code(), Some(1), "{}", client.said());
            assert!(client.err().contains(expected), "{}", client.said());
            assert!(client.err().contains("exchange 0: "), "{}", client.said());
        }
        end(server);
        witness.assert_unchanged();
    }
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

fn number_in(file: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    text.trim().parse().unwrap()
}

fn packets() -> u64 {
    number_in("/sys/class/net/v0/statistics/tx_packets")
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
    let retries = hw_counter("completer_retry_err");
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
    assert_eq!(hw_counter("retry_exceeded_err"), 0);
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
