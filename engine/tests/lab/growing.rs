//! A pool that grows under traffic, on real devices, while buffers are kept.

use crate::support::*;
use spinwire::Engine;
use spinwire::control::Offer;
use spinwire::types::IdlePolicy;
use spinwire::worker::{ConnId, Io, Message, Service, Token};
use std::sync::mpsc::{self, Sender};

const SLOTS: u32 = 96;
const SLOTS_MAX: u32 = 512;
/// More than the pool has at first.
const HOLD: usize = 300;

/// Echoes a copy of each message, and keeps the first [`HOLD`] until all of them are here.
struct Hoarder {
    kept: Vec<(Message, Vec<u8>)>,
    full: bool,
    tell: Sender<bool>,
}

impl Service for Hoarder {
    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        // A pool that is dry for the moment: the answer goes in the buffer of the question.
        let answer = match io.alloc() {
            Ok(mut copy) => {
                copy.copy_from(&message).unwrap();
                if !self.full {
                    let bytes = message.to_vec();
                    self.kept.push((message, bytes));
                }
                copy
            }
            Err(_) => message.into_buffer(),
        };
        io.send(conn, answer, Token(0)).unwrap();
        if self.kept.len() == HOLD {
            self.full = true;
            let whole = self
                .kept
                .iter()
                .all(|(message, bytes)| **message == **bytes);
            self.kept.clear();
            self.tell.send(whole).unwrap();
        }
    }
}

/// Messages that came back so far.
fn progress(told: &mpsc::Receiver<Told>) -> u64 {
    let last = await_told(told, |t| matches!(t, Told::Progress(_)));
    let later = std::iter::from_fn(|| told.try_recv().ok());
    match later.last().unwrap_or(last) {
        Told::Progress(n) => n,
        other => panic!("{other:?}"),
    }
}

fn grows((device, host): (&str, &str), port: u16, shared: bool) {
    let witness = Witness::new();
    let mut roomy = plan(device, 1, IdlePolicy::Spin);
    (roomy.pool.slots, roomy.pool.slots_max) = (SLOTS, SLOTS_MAX);
    let lane = &mut roomy.workers[0].lanes[0];
    if shared {
        (lane.recv_depth, lane.shared_recv_depth) = (4, 64);
    } else {
        lane.recv_depth = 32;
    }
    let (tell, kept) = mpsc::channel();
    let server = Engine::start(&roomy, move |_| Hoarder {
        kept: Vec::with_capacity(HOLD),
        full: false,
        tell: tell.clone(),
    });
    let server = server.unwrap();
    server.listen(&url(host, port)).unwrap();
    // Its messages are checked as they come back: what they lay in was registered. It goes on for as
    // long as control needs to see that the pool runs low.
    let (client, told) = start_pinger(&plan(device, 0, IdlePolicy::Spin), 500, u64::MAX, 2);
    client.connect(&url(host, port), Offer::default()).unwrap();
    assert!(
        kept.recv_timeout(LONG).expect("all were kept"),
        "kept bytes changed"
    );
    // Of traffic after the growth too.
    let so_far = progress(&told);
    await_told(
        &told,
        |t| matches!(t, Told::Progress(n) if *n >= so_far + 2000),
    );
    let count = server.counters()[0];
    println!("{device}: grown {} times", count.pool_growths);
    assert!(count.pool_growths >= 2, "{count:?}");
    assert_eq!(count.pool_growth_failures, 0);
    end(client);
    // It reports a slot that did not come back, of whichever chunk.
    end(server);
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_pool_grows_under_traffic_rxe() {
    grows(RXE, 7801, false);
    grows(RXE, 7802, true);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_pool_grows_under_traffic_siw() {
    grows(SIW, 7803, false);
    grows(SIW, 7804, true);
}
