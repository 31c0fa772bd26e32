//! Messages there and back.

use crate::support::*;
use spinwire::control::Offer;
use spinwire::types::IdlePolicy;

fn ping_pong((device, host): (&str, &str), port: u16, size: u32, count: u64, window: u64) {
    let witness = Witness::new();
    let server = start_echo(&plan(device, 1, IdlePolicy::Spin));
    server.listen(&url(host, port)).unwrap();
    let (client, told) = start_pinger(&plan(device, 0, IdlePolicy::Spin), size, count, window);
    client.connect(&url(host, port), Offer::default()).unwrap();
    await_told(&told, |t| *t == Told::Done);
    let counters = client.counter_readers();
    end(client);
    let counters = counters[0].snapshot();
    assert_eq!(counters.messages_received, count);
    assert_eq!(counters.sends_posted, count);
    assert!(
        matches!(await_told(&told, |t| matches!(t, Told::Ended(..))), Told::Ended(_, n) if n == count)
    );
    end(server);
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_ping_pong_rxe() {
    for (size, port) in [
        (0, 7001),
        (1, 7002),
        (64, 7003),
        (65, 7004),
        (4096, 7005),
        (16_384, 7006),
    ] {
        ping_pong(RXE, port, size, 300, 1);
    }
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_ping_pong_siw() {
    for (size, port) in [
        (0, 7011),
        (1, 7012),
        (64, 7013),
        (65, 7014),
        (4096, 7015),
        (16_384, 7016),
    ] {
        ping_pong(SIW, port, size, 300, 1);
    }
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_many_under_way_rxe() {
    // A window as deep as the receive queue never meets RNR, and chains posts.
    ping_pong(RXE, 7021, 512, 5000, 48);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_many_under_way_siw() {
    ping_pong(SIW, 7022, 512, 5000, 32);
}

/// Places are used again, each time with a generation of its own.
fn connects_one_after_another((device, host): (&str, &str), port: u16) {
    let witness = Witness::new();
    let server = start_echo(&plan(device, 1, IdlePolicy::Spin));
    server.listen(&url(host, port)).unwrap();
    let (client, told) = start_pinger(&plan(device, 0, IdlePolicy::Spin), 8, 0, 1);
    let mut names = std::collections::HashSet::new();
    for _ in 0..20 {
        let conn = client.connect(&url(host, port), Offer::default()).unwrap();
        assert!(names.insert(conn), "{conn} was used before");
        await_told(&told, |t| *t == Told::Connected(conn));
        client.close(conn);
        await_told(&told, |t| matches!(t, Told::Ended(..)));
    }
    end(client);
    end(server);
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_connects_rxe() {
    connects_one_after_another(RXE, 7031);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_connects_siw() {
    connects_one_after_another(SIW, 7032);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_a_port_of_0_is_chosen_and_told() {
    let witness = Witness::new();
    let server = start_echo(&plan(RXE.0, 1, IdlePolicy::Spin));
    let at = server.listen(&url(RXE.1, 0)).unwrap().to_string();
    assert!(!at.ends_with(":0"), "{at}");
    let (client, told) = start_pinger(&plan(RXE.0, 0, IdlePolicy::Spin), 8, 10, 1);
    client
        .connect(&at.parse().unwrap(), Offer::default())
        .unwrap();
    await_told(&told, |t| *t == Told::Done);
    end(client);
    end(server);
    witness.assert_unchanged();
}
