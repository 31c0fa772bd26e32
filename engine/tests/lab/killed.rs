//! A peer killed with SIGKILL in mid-transfer.

use crate::child::{Child, part};
use crate::support::*;
use spinwire::control::Offer;
use spinwire::types::IdlePolicy;
use spinwire::worker::CloseReason;
use std::fmt::Display;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Not a test by itself: the body of the processes that the tests here start and kill.
#[test]
#[ignore = "a child of the tests in this file"]
fn child_process() {
    let Some(words) = part() else {
        return;
    };
    let (device, to) = (&words[1], url(&words[2], words[3].parse().unwrap()));
    if words[0] == "serve" {
        let server = start_echo(&plan(device, 1, IdlePolicy::Spin));
        server.listen(&to).unwrap();
        let (_keep, never) = mpsc::channel::<()>();
        server.run_until(never).unwrap();
    } else if words[0] == "give" {
        crate::framed::large::hostile::give(device, &to);
    } else {
        let size = words.get(4).map_or(4096, |word| word.parse().unwrap());
        let (client, told) = start_pinger(&plan(device, 0, IdlePolicy::Spin), size, u64::MAX, 16);
        client.connect(&to, Offer::default()).unwrap();
        while told.recv().is_ok() {}
    }
}

/// A peer to be: `serve` or `give`, or `ping`, which takes its number of bytes behind the port.
pub(crate) fn peer(role: &str, device: &str, host: &str, port: impl Display) -> Child {
    let part = format!("{role} {device} {host} {port}");
    Child::start("killed::child_process", part)
}

fn server_killed((device, host): (&str, &str), port: u16) {
    let witness = Witness::new();
    let mut server = peer("serve", device, host, port);
    let (client, told) = start_pinger(&plan(device, 0, IdlePolicy::Spin), 4096, u64::MAX, 16);
    let until = Instant::now() + LONG;
    while let Err(error) = client.connect(&url(host, port), Offer::default()) {
        assert!(Instant::now() < until, "{error}");
    }
    await_told(&told, |t| matches!(t, Told::Progress(_)));
    let killed = Instant::now();
    server.kill();
    let Told::Ended(reason, _) = await_told(&told, |t| matches!(t, Told::Ended(..))) else {
        unreachable!("as awaited")
    };
    println!("{device}: {:?} after the kill: {reason}", killed.elapsed());
    assert!(killed.elapsed() < Duration::from_secs(10));
    assert!(
        matches!(reason, CloseReason::Peer | CloseReason::Failed(_)),
        "{reason:?}"
    );
    end(client);
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_server_killed_rxe() {
    server_killed(RXE, 7101);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_server_killed_siw() {
    server_killed(SIW, 7102);
}

fn client_killed((device, host): (&str, &str), port: u16) {
    let witness = Witness::new();
    let (ended, reasons) = mpsc::channel();
    let server = spinwire::Engine::start(&plan(device, 1, IdlePolicy::Spin), move |_| {
        Echo::telling(ended.clone())
    })
    .unwrap();
    server.listen(&url(host, port)).unwrap();
    let mut client = peer("ping", device, host, port);
    let until = Instant::now() + LONG;
    while server.counters()[0].messages_received < 1000 {
        assert!(Instant::now() < until, "no traffic");
        std::thread::park_timeout(PAUSE);
    }
    let killed = Instant::now();
    client.kill();
    let reason = reasons
        .recv_timeout(Duration::from_secs(10))
        .expect("told of the end in time");
    println!("{device}: {:?} after the kill: {reason}", killed.elapsed());
    assert!(
        matches!(reason, CloseReason::Peer | CloseReason::Failed(_)),
        "{reason:?}"
    );
    // The server goes on: the next client is served.
    let (next, told) = start_pinger(&plan(device, 0, IdlePolicy::Spin), 64, 100, 4);
    next.connect(&url(host, port), Offer::default()).unwrap();
    await_told(&told, |t| *t == Told::Done);
    end(next);
    end(server);
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_client_killed_rxe() {
    client_killed(RXE, 7111);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_client_killed_siw() {
    client_killed(SIW, 7112);
}
