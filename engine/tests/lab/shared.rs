//! Receives that the connections of a lane share, on real devices: many connections over one queue, framed
//! floods that never find it empty, a killed peer that leaves the others alone.

use crate::framed::rnr;
use crate::killed::peer;
use crate::support::*;
use spinwire::config::Plan;
use spinwire::control::Offer;
use spinwire::framed::{self, Framed, FramedIo, Payload};
use spinwire::metrics::CounterSnapshot;
use spinwire::types::{IdlePolicy, Nanos};
use spinwire::worker::{
    CloseReason, Completed, ConnId, Io, Message, Outcome, Peer, Service, Token, Turn,
};
use spinwire::{Engine, WorkerInfo};
use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

/// Connections at once; the shared queue is just what they are promised.
const CONNECTIONS: u32 = 4;
const SHARE: u32 = 8;

fn shared(device: &str, core: usize) -> Plan {
    let mut plan = plan(device, core, IdlePolicy::Spin);
    let lane = &mut plan.workers[0].lanes[0];
    lane.connections_max = CONNECTIONS;
    lane.recv_depth = SHARE;
    lane.shared_recv_depth = CONNECTIONS * SHARE;
    plan
}

/// One connection's numbers.
#[derive(Default)]
struct Count {
    sent: u64,
    back: u64,
    done: u64,
    finished: bool,
}

/// Sends `count` messages on each of its connections, half a share of them under way, and checks that each
/// comes back on the connection that it went out by. More could find no receive: an answer may be here
/// before its question's receive is posted again, and raw mode has no credits.
struct Pingers {
    size: u32,
    count: u64,
    conns: HashMap<ConnId, Count>,
    tell: Sender<Told>,
}

/// Which connection a message is of: an index is not used twice here.
fn mark(conn: ConnId) -> u64 {
    let text = conn.to_string();
    text.bytes().fold(0, |hash, b| hash * 131 + u64::from(b))
}

impl Pingers {
    fn fill(&mut self, io: &mut Io<'_>, conn: ConnId) {
        let Some(c) = self.conns.get_mut(&conn) else {
            return;
        };
        while c.sent < self.count && c.sent - c.back < u64::from(SHARE / 2) {
            let Ok(mut buffer) = io.alloc() else { return };
            buffer.set_len(self.size).unwrap();
            buffer[..8].copy_from_slice(&mark(conn).to_le_bytes());
            buffer[8..16].copy_from_slice(&c.sent.to_le_bytes());
            if io.send(conn, buffer, Token(c.sent)).is_err() {
                return;
            }
            c.sent += 1;
        }
    }

    fn finish(&mut self, conn: ConnId) {
        let c = self.conns.get_mut(&conn).unwrap();
        if c.back == self.count && c.done == self.count && !c.finished {
            c.finished = true;
            let _ = self.tell.send(Told::Done);
        }
    }
}

impl Service for Pingers {
    fn connected(&mut self, io: &mut Io<'_>, conn: ConnId, _: &Peer) {
        self.conns.insert(conn, Count::default());
        let _ = self.tell.send(Told::Connected(conn));
        self.fill(io, conn);
    }
    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        let c = self.conns.get_mut(&conn).unwrap();
        let word = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().unwrap());
        if message.len() != self.size as usize || (word(0), word(8)) != (mark(conn), c.back) {
            let text = format!("{conn}: answer {} is {} of {}", c.back, word(8), word(0));
            let _ = self.tell.send(Told::Wrong(text));
        }
        c.back += 1;
        if c.back.is_multiple_of(1000) {
            let _ = self.tell.send(Told::Progress(c.back));
        }
        drop(message);
        self.fill(io, conn);
        self.finish(conn);
    }
    fn completed(&mut self, io: &mut Io<'_>, conn: ConnId, completed: Completed) {
        if completed.outcome == Outcome::Done {
            self.conns.get_mut(&conn).unwrap().done += 1;
            drop(completed);
            self.fill(io, conn);
            self.finish(conn);
        }
    }
    fn disconnected(&mut self, _: &mut Io<'_>, conn: ConnId, reason: CloseReason) {
        let c = self.conns.remove(&conn).unwrap();
        let _ = self.tell.send(Told::Ended(reason, c.back));
    }
}

/// Both sides share; every connection has half its share of messages under way at all times.
fn traffic((device, host): (&str, &str), port: u16, size: u32, count: u64) {
    let witness = Witness::new();
    let server = start_echo(&shared(device, 1));
    assert_eq!(
        server.grants()[0].lanes[0].shared_recv_depth,
        CONNECTIONS * SHARE
    );
    server.listen(&url(host, port)).unwrap();
    let (tell, told) = mpsc::channel();
    let client = Engine::start(&shared(device, 0), move |_: WorkerInfo| Pingers {
        size,
        count,
        conns: HashMap::new(),
        tell: tell.clone(),
    })
    .unwrap();
    for _ in 0..CONNECTIONS {
        client.connect(&url(host, port), Offer::default()).unwrap();
    }
    for _ in 0..CONNECTIONS {
        await_told(&told, |t| *t == Told::Done);
    }
    let counters = client.counter_readers();
    end(client);
    let seen = counters[0].snapshot();
    assert_eq!(seen.messages_received, u64::from(CONNECTIONS) * count);
    println!(
        "{device}: {} receives in {} posts",
        seen.recvs_posted, seen.recv_doorbells
    );
    end(server);
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_shared_traffic_rxe() {
    traffic(RXE, 7701, 64, 3000);
    traffic(RXE, 7702, 9000, 100);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_shared_traffic_siw() {
    traffic(SIW, 7703, 64, 3000);
    traffic(SIW, 7704, 9000, 100);
}

/// One connection of a flood.
#[derive(Default)]
struct Stream {
    sent: u64,
    done: u64,
    came: u64,
    blocked: bool,
}

/// On each of its connections sends as fast as frames are taken, and keeps some of those that come.
struct Floods {
    count: u64,
    streams: Vec<(ConnId, Stream)>,
    kept: VecDeque<Payload>,
    free_at: Nanos,
    finished: usize,
    tell: Sender<Told>,
}

impl Floods {
    const HOLD: usize = 16;

    fn stream(&mut self, conn: ConnId) -> &mut Stream {
        let stream = self.streams.iter_mut().find(|(c, _)| *c == conn);
        &mut stream.expect("a stream").1
    }

    fn finish(&mut self, conn: ConnId) {
        let count = self.count;
        let s = self.stream(conn);
        if s.came == count && s.done == count {
            self.finished += 1;
            let _ = self.tell.send(Told::Done);
        }
    }
}

impl framed::Service for Floods {
    fn connected(&mut self, _: &mut FramedIo<'_>, conn: ConnId, _: &Peer) {
        self.streams.push((conn, Stream::default()));
    }
    fn writable(&mut self, _: &mut FramedIo<'_>, conn: ConnId) {
        self.stream(conn).blocked = false;
    }
    fn message(&mut self, io: &mut FramedIo<'_>, conn: ConnId, message: Payload) {
        let number = message.first_chunk().copied().map(u64::from_le_bytes);
        let s = self.stream(conn);
        if number != Some(s.came) {
            let text = format!("{conn}: message {} is {number:?}", s.came);
            let _ = self.tell.send(Told::Wrong(text));
            return;
        }
        s.came += 1;
        if s.came.is_multiple_of(1000) {
            let progress = Told::Progress(s.came);
            let _ = self.tell.send(progress);
        }
        if self.kept.len() < Self::HOLD {
            self.free_at = io.now() + Duration::from_micros(300);
            self.kept.push_back(message);
        }
        self.finish(conn);
    }
    fn completed(&mut self, _: &mut FramedIo<'_>, conn: ConnId, completed: framed::Completed) {
        if completed.outcome == Outcome::Done {
            self.stream(conn).done += 1;
            self.finish(conn);
        }
    }
    fn disconnected(&mut self, _: &mut FramedIo<'_>, conn: ConnId, reason: CloseReason) {
        self.streams.retain(|(c, _)| *c != conn);
        self.kept.clear();
        let _ = self.tell.send(Told::Ended(reason, 0));
    }
    fn turn(&mut self, io: &mut FramedIo<'_>) -> Turn {
        if io.now() >= self.free_at {
            self.kept.clear();
        }
        let mut turn = Turn::Idle;
        for (conn, s) in &mut self.streams {
            while s.sent < self.count && !s.blocked {
                let Ok(mut frame) = io.frame() else { break };
                frame.set_len(8).unwrap();
                frame.copy_from_slice(&s.sent.to_le_bytes());
                match io.message(*conn, frame, Token(0)) {
                    Ok(()) => s.sent += 1,
                    Err(_) => s.blocked = true,
                }
                turn = Turn::Busy;
            }
        }
        turn
    }
}

/// All connections flood each other at once, both ways, and the queue holds just what all are told.
fn flood((device, host): (&str, &str), port: u16) {
    let witness = Witness::new();
    let before = rnr(device);
    let (tell, told) = mpsc::channel();
    let start = |core| {
        let tell = tell.clone();
        let mut plan = shared(device, core);
        plan.pool.slots = 128;
        plan.pool.slot_bytes = 256;
        let engine = Engine::start(&plan, move |_: WorkerInfo| {
            Framed::new(Floods {
                count: 5000,
                streams: Vec::new(),
                kept: VecDeque::with_capacity(Floods::HOLD),
                free_at: Nanos(0),
                finished: 0,
                tell: tell.clone(),
            })
        });
        engine.unwrap()
    };
    let (server, client) = (start(1), start(0));
    server
        .listen_with(&url(host, port), Offer::framed())
        .unwrap();
    for _ in 0..CONNECTIONS {
        client.connect(&url(host, port), Offer::framed()).unwrap();
    }
    let mut left = 2 * CONNECTIONS;
    while left > 0 {
        let on = |t: &Told| matches!(t, Told::Done | Told::Progress(_));
        left -= u32::from(await_told(&told, on) == Told::Done);
    }
    assert!(client.counters()[0].would_block > 0, "nobody was stopped");
    end(client);
    end(server);
    assert_eq!(rnr(device), before, "a message found no receive");
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_shared_framed_flood_rxe() {
    assert!(rnr(RXE.0).iter().all(Option::is_some), "rxe counts RNR");
    flood(RXE, 7711);
}

/// SoftiWARP has no RNR: a message that found no receive would end its connection.
#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_shared_framed_flood_siw() {
    flood(SIW, 7712);
}

/// Clients are killed in the middle of long messages; one that lives is served all the time, and so is
/// whoever comes after them.
fn killed((device, host): (&str, &str), port: u16) {
    let witness = Witness::new();
    let (ended, reasons) = mpsc::channel();
    let server = Engine::start(&shared(device, 1), move |_: WorkerInfo| {
        Echo::telling(ended.clone())
    })
    .unwrap();
    server.listen(&url(host, port)).unwrap();
    let (living, told) = start_pinger(&plan(device, 0, IdlePolicy::Yield), 64, u64::MAX, 4);
    living.connect(&url(host, port), Offer::default()).unwrap();
    let progress = |told: &_| await_told(told, |t| matches!(t, Told::Progress(_)));
    // Messages of several packets, so that a kill falls into the middle of one.
    for round in 0..3 {
        let until = Instant::now() + LONG;
        let await_count = |reached: &dyn Fn(&CounterSnapshot) -> bool| {
            while !reached(&server.counters()[0]) {
                assert!(Instant::now() < until, "no traffic");
                std::thread::park_timeout(PAUSE);
            }
        };
        let before = server.counters()[0].handovers;
        let mut child = peer("ping", device, host, format!("{port} 16384"));
        // The living one's bytes count too, so its traffic alone must not do.
        await_count(&|count| count.handovers > before);
        let from = server.counters()[0].recv_bytes;
        await_count(&|count| count.recv_bytes > from + 100 * 16_384);
        child.kill();
        let reason = reasons.recv_timeout(LONG).expect("told of the end");
        println!("{device}: round {round}: {reason}");
        progress(&told);
        progress(&told);
    }
    let (next, done) = start_pinger(&plan(device, 0, IdlePolicy::Yield), 16_384, 20, 4);
    next.connect(&url(host, port), Offer::default()).unwrap();
    await_told(&done, |t| *t == Told::Done);
    end(next);
    end(living);
    end(server);
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_shared_peer_killed_rxe() {
    killed(RXE, 7721);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_shared_peer_killed_siw() {
    killed(SIW, 7722);
}
