//! Connections come and go: one after another, and many at once.

use crate::child::{Child, part};
use crate::support::*;
use spinwire::Engine;
use spinwire::config::Plan;
use spinwire::control::Offer;
use spinwire::fabric::Url;
use spinwire::types::IdlePolicy;
use spinwire::worker::{CloseReason, ConnId};
use std::collections::HashSet;
use std::io::Read;
use std::sync::mpsc::{self, Receiver};
use std::time::Instant;

const AT_ONCE: u32 = 64;

/// Places for as many connections as are up at once, with short queues.
fn roomy(device: &str, core: usize) -> Plan {
    let mut plan = plan(device, core, IdlePolicy::Spin);
    let lane = &mut plan.workers[0].lanes[0];
    (lane.send_depth, lane.recv_depth) = (8, 8);
    lane.connections_max = AT_ONCE;
    lane.cq_depth = AT_ONCE * 16;
    plan.pool.slots = AT_ONCE * 16;
    plan.pool.slot_bytes = 1024;
    plan
}

fn start_server(plan: &Plan) -> (Engine, Receiver<CloseReason>) {
    let (ended, endings) = mpsc::channel();
    let engine = Engine::start(plan, move |_| Echo::telling(ended.clone())).unwrap();
    (engine, endings)
}

fn one_after_another((device, host): (&str, &str), port: u16) {
    let witness = Witness::new();
    let (server, endings) = start_server(&roomy(device, 1));
    server.listen(&url(host, port)).unwrap();
    let (client, told) = start_pinger(&roomy(device, 0), 8, 0, 1);
    let mut names = HashSet::new();
    for _ in 0..200 {
        let conn = client.connect(&url(host, port), Offer::default()).unwrap();
        assert!(names.insert(conn), "{conn} was used before");
        await_told(&told, |t| *t == Told::Connected(conn));
        client.close(conn);
        await_told(&told, |t| matches!(t, Told::Ended(..)));
        let reason = endings.recv_timeout(LONG).unwrap();
        assert_eq!(reason, CloseReason::Peer);
    }
    end(client);
    end(server);
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_two_hundred_one_after_another_rxe() {
    one_after_another(RXE, 7401);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_two_hundred_one_after_another_siw() {
    one_after_another(SIW, 7402);
}

/// Not a test by itself: the body of the server process. Its part: `DEVICE HOST PORT`.
#[test]
#[ignore = "a child of the tests in this file"]
fn server_process() {
    let Some(words) = part() else {
        return;
    };
    let mut plan = roomy(&words[0], 1);
    // The connection that found the listener may still be ending.
    let lane = &mut plan.workers[0].lanes[0];
    lane.connections_max += 1;
    lane.cq_depth += 16;
    let (server, _endings) = start_server(&plan);
    server
        .listen(&url(&words[1], words[2].parse().unwrap()))
        .unwrap();
    // Until the parent closes our stdin.
    let (alive, gone) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(alive);
    });
    let left = server.run_until(gone).unwrap();
    assert!(left.is_empty(), "{left:?}");
}

/// Client and server are processes of their own, as in life.
fn at_once((device, host): (&str, &str), port: u16) {
    let witness = Witness::new();
    let server = Child::start("churn::server_process", format!("{device} {host} {port}"));
    let (client, told) = start_pinger(&roomy(device, 0), 8, 0, 1);
    await_listener(&client, &told, &url(host, port));
    let conns: HashSet<ConnId> = std::thread::scope(|scope| {
        let connect = || client.connect(&url(host, port), Offer::default()).unwrap();
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(connect)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(conns.len(), AT_ONCE as usize);
    for _ in &conns {
        await_told(
            &told,
            |t| matches!(t, Told::Connected(c) if conns.contains(c)),
        );
    }
    // All are up, so there is room for no other.
    let error = client.connect(&url(host, port), Offer::default());
    let text = error.unwrap_err().to_string();
    assert!(text.contains("connections_max"), "{text}");
    for conn in &conns {
        client.close(*conn);
    }
    for _ in &conns {
        await_told(&told, |t| matches!(t, Told::Ended(CloseReason::Local, 0)));
    }
    end(client);
    server.assert_success();
    witness.assert_unchanged();
}

/// Connects and closes, until somebody listens.
fn await_listener(client: &Engine, told: &Receiver<Told>, to: &Url) {
    let until = Instant::now() + LONG;
    let conn = loop {
        match client.connect(to, Offer::default()) {
            Ok(conn) => break conn,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::park_timeout(PAUSE * 20);
    };
    await_told(told, |t| *t == Told::Connected(conn));
    client.close(conn);
    await_told(told, |t| matches!(t, Told::Ended(..)));
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_sixty_four_at_once_rxe() {
    at_once(RXE, 7411);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_sixty_four_at_once_siw() {
    at_once(SIW, 7412);
}
