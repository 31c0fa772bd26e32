//! Adding from six connections of three workers in two processes, and a device that has no atomics.

use super::*;
use spinwire::framed::{Completed, RegionOffer};
use spinwire::kit::{Answer, LockError, RemoteCounter};
use spinwire::types::Rkey;
use spinwire::worker::{Peer, PostError};
use std::collections::HashMap;

/// Additions of each connection, and those under way at a time.
const ADDITIONS: u64 = 400;
const WINDOW: u64 = 8;

/// Adds one, so many times on each connection, and tells every value before.
struct Adder {
    counters: HashMap<ConnId, (RemoteCounter, u64, u64)>,
    tell: Sender<u64>,
}

impl Adder {
    fn add(&mut self, io: &mut FramedIo<'_>, conn: ConnId) {
        let Some((counter, asked, done)) = self.counters.get_mut(&conn) else {
            return;
        };
        while *asked < ADDITIONS && *asked - *done < WINDOW {
            counter.add(io, 1, Token(*asked)).unwrap();
            *asked += 1;
        }
    }
}

impl Service for Adder {
    fn connected(&mut self, io: &mut FramedIo<'_>, conn: ConnId, _: &Peer) {
        ask_for_offer(io, conn);
    }
    fn reply(&mut self, _: &mut FramedIo<'_>, _: ConnId, _: RequestId, _: Payload) {}
    fn offered(&mut self, io: &mut FramedIo<'_>, conn: ConnId, offer: &RegionOffer) {
        let word = RemoteWord::new(conn, &offer.region(), COUNTER).unwrap();
        self.counters.insert(conn, (RemoteCounter::new(word), 0, 0));
        self.add(io, conn);
    }
    fn completed(&mut self, io: &mut FramedIo<'_>, conn: ConnId, completed: Completed) {
        if let Answer::Was(before) = Answer::from(&completed) {
            let (_, _, done) = self.counters.get_mut(&conn).unwrap();
            *done += 1;
            let _ = self.tell.send(before);
        }
        self.add(io, conn);
    }
}

/// Two connections a worker; gives all values before.
fn add(at: (&str, u16), workers: u16) -> Vec<u64> {
    let (tell, told) = mpsc::channel();
    let client = Engine::start(&plan_of(workers.into()), move |_| {
        Framed::new(Adder {
            counters: HashMap::new(),
            tell: tell.clone(),
        })
    });
    let client = client.unwrap();
    connect(&client, at, 2 * workers);
    let all = 2 * u64::from(workers) * ADDITIONS;
    let values = (0..all).map(|_| told.recv_timeout(LONG).expect("added in time"));
    let values = values.collect();
    end(client);
    values
}

pub(super) fn add_from(at: (&str, u16), workers: u16) {
    add(at, workers);
}

/// Reads the counter, once.
struct Reader(Sender<u64>);

impl Service for Reader {
    fn connected(&mut self, io: &mut FramedIo<'_>, conn: ConnId, _: &Peer) {
        ask_for_offer(io, conn);
    }
    fn reply(&mut self, _: &mut FramedIo<'_>, _: ConnId, _: RequestId, _: Payload) {}
    fn offered(&mut self, io: &mut FramedIo<'_>, conn: ConnId, offer: &RegionOffer) {
        let word = RemoteWord::new(conn, &offer.region(), COUNTER).unwrap();
        RemoteCounter::new(word).get(io, Token(0)).unwrap();
    }
    fn completed(&mut self, _: &mut FramedIo<'_>, _: ConnId, completed: Completed) {
        if let Answer::Was(value) = Answer::from(&completed) {
            let _ = self.0.send(value);
        }
    }
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_atomics_counter_is_exact() {
    let witness = Witness::new();
    let (port, at) = (7501, (RXE.1, 7501));
    let (node, _guarded) = start_node(port);
    let other = start_child("count", port, 0);
    let mut here = add(at, 2);
    other.assert_success();
    let all = 6 * ADDITIONS;
    // Each adder got a value of its own.
    here.sort_unstable();
    here.dedup();
    assert_eq!(here.len() as u64, 4 * ADDITIONS);
    assert!(here.iter().all(|value| *value < all));
    let (tell, told) = mpsc::channel();
    let reader = Engine::start(&plan_of(1), move |_| Framed::new(Reader(tell.clone()))).unwrap();
    connect(&reader, at, 1);
    assert_eq!(told.recv_timeout(LONG), Ok(all));
    println!("{all} additions by 6 connections, and the counter is {all}");
    end(reader);
    end(node);
    witness.assert_unchanged();
}

/// Tries a counter and a lock in memory that a node could have offered.
struct Tries(Sender<(PostError, LockError)>);

impl spinwire::worker::Service for Tries {
    fn connected(&mut self, io: &mut spinwire::worker::Io<'_>, conn: ConnId, _: &Peer) {
        let region = RemoteRegion::parse(4096, 4096, Rkey(1), Access::REMOTE_ATOMIC).unwrap();
        let counter = RemoteCounter::new(RemoteWord::new(conn, &region, COUNTER).unwrap());
        let refused = counter.add(io, 1, Token(0)).unwrap_err();
        let mut lock = lock_at(conn, &region, 1, Duration::from_secs(1));
        let now = io.now();
        lock.acquire(now);
        let stuck = lock.turn(io, now).unwrap_err();
        assert!(lock.is_idle());
        let _ = self.0.send((refused, stuck));
    }
    fn message(
        &mut self,
        _: &mut spinwire::worker::Io<'_>,
        _: ConnId,
        _: spinwire::worker::Message,
    ) {
    }
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_atomics_are_refused_on_siw() {
    let witness = Witness::new();
    let at = url(SIW.1, 7502);
    let server = start_echo(&plan(SIW.0, 1, IdlePolicy::Yield));
    server.listen(&at).unwrap();
    let (tell, told) = mpsc::channel();
    let client = Engine::start(&plan(SIW.0, 0, IdlePolicy::Yield), move |_| {
        Tries(tell.clone())
    });
    let client = client.unwrap();
    client.connect(&at, Offer::default()).unwrap();
    let (refused, stuck) = told.recv_timeout(LONG).expect("told");
    assert_eq!(refused, PostError::Unsupported);
    assert_eq!(stuck, LockError::Post(PostError::Unsupported));
    assert!(stuck.to_string().contains("cannot do this operation"));
    end(client);
    end(server);
    witness.assert_unchanged();
}
