//! Framed mode: floods that never overrun, who refuses whom, regions offered both ways, the examples.

use crate::quiet::allocations;
mod examples;
pub(crate) mod large;
mod regions;

use crate::support::*;
use spinwire::config::Plan;
use spinwire::control::{ConnectError, Offer};
use spinwire::framed::{
    Completed, Framed, FramedIo, Operation, Payload, RegionId, RegionOffer, RequestId, Service,
};
use spinwire::memory::{ExposedMemory, HugepagePolicy};
use spinwire::types::{Access, IdlePolicy, Nanos, RemoteRegion};
use spinwire::wire::{HelloError, Refusal};
use spinwire::worker::{CloseReason, ConnId, Outcome, Peer, Token, Turn};
use spinwire::{Engine, WorkerInfo};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

/// Times that a device sent or got "receiver not ready", where it counts that.
pub(crate) fn rnr(device: &str) -> Vec<Option<u64>> {
    ["send_rnr_err", "rcvd_rnr_err"]
        .map(|name| {
            let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/{name}");
            let text = std::fs::read_to_string(path).ok()?;
            text.trim().parse().ok()
        })
        .to_vec()
}

/// Sends `count` numbered messages as fast as they are taken. Keeps up to `hold` of those that come,
/// and frees them all when the first has been kept for `pause`.
struct Flooder {
    count: u64,
    hold: usize,
    pause: Duration,
    sent: u64,
    done: u64,
    came: u64,
    kept: VecDeque<Payload>,
    free_at: Nanos,
    conn: Option<ConnId>,
    blocked: bool,
    tell: Sender<Told>,
}

fn long(number: u64) -> usize {
    8 + usize::try_from(number % 193).unwrap()
}

impl Flooder {
    fn pour(&mut self, io: &mut FramedIo<'_>) -> Turn {
        let (Some(conn), before) = (self.conn, self.sent) else {
            return Turn::Idle;
        };
        while self.sent < self.count && !self.blocked {
            let Ok(mut frame) = io.frame() else { break };
            let len = long(self.sent);
            frame.set_len(len.try_into().unwrap()).unwrap();
            frame.fill(7);
            frame[..8].copy_from_slice(&self.sent.to_le_bytes());
            match io.message(conn, frame, Token(self.sent)) {
                Ok(()) => self.sent += 1,
                Err(_) => self.blocked = true,
            }
        }
        if self.sent == before {
            Turn::Idle
        } else {
            Turn::Busy
        }
    }

    fn check_done(&mut self) {
        if self.came == self.count && self.done == self.count {
            let _ = self.tell.send(Told::Done);
        }
    }
}

impl Service for Flooder {
    fn connected(&mut self, _: &mut FramedIo<'_>, conn: ConnId, _: &Peer) {
        self.conn = Some(conn);
    }
    fn writable(&mut self, _: &mut FramedIo<'_>, _: ConnId) {
        assert!(self.blocked, "told to go on without having been stopped");
        self.blocked = false;
    }
    fn message(&mut self, io: &mut FramedIo<'_>, _: ConnId, message: Payload) {
        let number = message.first_chunk().copied().map(u64::from_le_bytes);
        if number != Some(self.came) || message.len() != long(self.came) {
            let text = format!("message {} is {number:?}", self.came);
            let _ = self.tell.send(Told::Wrong(text));
        }
        self.came += 1;
        if self.came.is_multiple_of(1000) {
            let _ = self.tell.send(Told::Progress(self.came));
        }
        if self.kept.len() < self.hold {
            if self.kept.is_empty() {
                self.free_at = io.now() + self.pause;
            }
            self.kept.push_back(message);
        }
        self.check_done();
    }
    fn completed(&mut self, _: &mut FramedIo<'_>, _: ConnId, completed: Completed) {
        let right = completed.token == Token(self.done) && completed.outcome == Outcome::Done;
        if !right {
            let text = format!("{} completes as {completed:?}", self.done);
            let _ = self.tell.send(Told::Wrong(text));
        }
        self.done += 1;
        self.check_done();
    }
    fn disconnected(&mut self, _: &mut FramedIo<'_>, _: ConnId, reason: CloseReason) {
        self.conn = None;
        self.kept.clear();
        let _ = self.tell.send(Told::Ended(reason, self.done));
    }
    fn turn(&mut self, io: &mut FramedIo<'_>) -> Turn {
        if io.now() >= self.free_at {
            self.kept.clear();
        }
        self.pour(io)
    }
}

fn start_flooder(plan: &Plan, count: u64, hold: usize) -> (Engine, Receiver<Told>) {
    let (tell, told) = mpsc::channel();
    let engine = Engine::start(plan, move |_: WorkerInfo| {
        Framed::new(Flooder {
            count,
            hold,
            pause: Duration::from_micros(300),
            sent: 0,
            done: 0,
            came: 0,
            kept: VecDeque::with_capacity(hold),
            free_at: Nanos(0),
            conn: None,
            blocked: false,
            tell: tell.clone(),
        })
    });
    (engine.unwrap(), told)
}

fn shallow(device: &str, core: usize, recv_depth: u32, slots: u32) -> Plan {
    let mut plan = plan(device, core, IdlePolicy::Spin);
    plan.workers[0].lanes[0].recv_depth = recv_depth;
    plan.workers[0].lanes[0].send_depth = 16;
    plan.pool.slots = slots;
    plan.pool.slot_bytes = 256;
    plan
}

/// Both sides flood and both are slow. `hold` of `slots` buffers are kept at a time.
fn flood(
    (device, host): (&str, &str),
    port: u16,
    count: u64,
    recv_depth: u32,
    (slots, hold): (u32, usize),
) {
    let witness = Witness::new();
    let before = rnr(device);
    let (server, came) = start_flooder(&shallow(device, 1, recv_depth, slots), count, hold);
    server
        .listen_with(&url(host, port), Offer::framed())
        .unwrap();
    let (client, back) = start_flooder(&shallow(device, 0, recv_depth, slots), count, hold);
    client.connect(&url(host, port), Offer::framed()).unwrap();
    // However slow the machine is, a thousand messages take no longer than LONG.
    for told in [&back, &came] {
        let on = |t: &Told| matches!(t, Told::Done | Told::Progress(_));
        while await_told(told, on) != Told::Done {}
    }
    let blocked = client.counters()[0].would_block;
    assert!(blocked > 0, "nobody was ever stopped: no test");
    println!("{device}: {count} each way, stopped {blocked} times, RNR {before:?} before");
    end(client);
    end(server);
    assert_eq!(rnr(device), before, "a message found no receive");
    if device.starts_with("rxe") {
        assert!(before.iter().all(Option::is_some), "rxe counts RNR");
    }
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_framed_flood_rxe() {
    flood(RXE, 7301, 20_000, 8, (64, 20));
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_framed_flood_siw() {
    flood(SIW, 7302, 20_000, 8, (64, 20));
}

/// The receivers keep so much that nothing is left to receive with.
#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_framed_flood_of_a_dry_pool() {
    flood(RXE, 7303, 5000, 4, (24, 20));
    flood(SIW, 7304, 5000, 4, (24, 20));
}

/// Nobody keeps anything: the queues alone say how far one is ahead of the other.
#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_framed_flood_of_fast_receivers() {
    flood(RXE, 7305, 20_000, 64, (256, 0));
    flood(SIW, 7306, 20_000, 64, (256, 0));
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_framed_listener_refuses_a_raw_client() {
    for (device, host) in [RXE, SIW] {
        let witness = Witness::new();
        let (server, _told) = start_flooder(&plan(device, 1, IdlePolicy::Spin), 0, 0);
        server
            .listen_with(&url(host, 7311), Offer::framed())
            .unwrap();
        let (client, _told) = start_pinger(&plan(device, 0, IdlePolicy::Spin), 8, 1, 1);
        let error = client
            .connect(&url(host, 7311), Offer::default())
            .unwrap_err();
        let refused = matches!(
            error,
            ConnectError::Refused {
                refusal: Refusal::NoHello,
                ..
            }
        );
        assert!(refused, "{error:?}");
        let text = error.to_string();
        assert!(text.contains("connect in framed mode"), "{text}");
        end(client);
        end(server);
        witness.assert_unchanged();
    }
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_framed_client_does_not_take_a_raw_listener() {
    for (device, host) in [RXE, SIW] {
        let witness = Witness::new();
        let server = start_echo(&plan(device, 1, IdlePolicy::Spin));
        server.listen(&url(host, 7312)).unwrap();
        let (client, _told) = start_flooder(&plan(device, 0, IdlePolicy::Spin), 1, 0);
        let error = client
            .connect(&url(host, 7312), Offer::framed())
            .unwrap_err();
        let silent = matches!(
            error,
            ConnectError::Handshake {
                source: HelloError::Silent,
                ..
            }
        );
        assert!(silent, "{error:?}");
        assert!(error.to_string().contains("framed mode"), "{error}");
        end(client);
        end(server);
        witness.assert_unchanged();
    }
}

/// Sends one message back and forth, and notes what its thread has allocated between two rounds.
struct Juggler {
    throws: bool,
    rounds: u64,
    at_start: u64,
    made: Arc<AtomicU64>,
}

impl Juggler {
    const WARM: u64 = 1000;
    const ROUNDS: u64 = 11_000;
}

impl Service for Juggler {
    fn connected(&mut self, io: &mut FramedIo<'_>, conn: ConnId, _: &Peer) {
        if self.throws {
            let frame = io.frame().unwrap();
            io.message(conn, frame, Token(0)).unwrap();
        }
    }
    fn message(&mut self, io: &mut FramedIo<'_>, conn: ConnId, message: Payload) {
        self.rounds += 1;
        if self.rounds == Self::WARM {
            self.at_start = allocations();
        } else if self.rounds == Self::ROUNDS {
            let made = allocations() - self.at_start;
            self.made.store(made, Ordering::Release);
            if self.throws {
                return;
            }
        }
        io.message(conn, message.into_frame(), Token(0)).unwrap();
    }
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_framed_turns_allocate_nothing() {
    let witness = Witness::new();
    let start = |core, throws| {
        let made = Arc::new(AtomicU64::new(u64::MAX));
        let of_service = Arc::clone(&made);
        let engine = Engine::start(&plan(RXE.0, core, IdlePolicy::Spin), move |_| {
            Framed::new(Juggler {
                throws,
                rounds: 0,
                at_start: 0,
                made: Arc::clone(&of_service),
            })
        });
        (engine.unwrap(), made)
    };
    let (server, there) = start(1, false);
    server
        .listen_with(&url(RXE.1, 7331), Offer::framed())
        .unwrap();
    let (client, here) = start(0, true);
    client.connect(&url(RXE.1, 7331), Offer::framed()).unwrap();
    let until = std::time::Instant::now() + LONG;
    while here.load(Ordering::Acquire) == u64::MAX || there.load(Ordering::Acquire) == u64::MAX {
        assert!(std::time::Instant::now() < until, "the ball is lost");
        std::thread::park_timeout(PAUSE);
    }
    let made = [&here, &there].map(|made| made.load(Ordering::Acquire));
    assert_eq!(made, [0, 0], "allocations in {} rounds", Juggler::ROUNDS);
    end(client);
    end(server);
    witness.assert_unchanged();
}
