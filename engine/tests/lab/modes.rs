//! The other idle policies.

use crate::support::*;
use spinwire::control::Offer;
use spinwire::types::IdlePolicy;

fn idle_policy((device, host): (&str, &str), port: u16, idle: IdlePolicy) {
    let witness = Witness::new();
    let server = start_echo(&plan(device, 1, idle));
    server.listen(&url(host, port)).unwrap();
    let (client, told) = start_pinger(&plan(device, 0, idle), 64, 500, 1);
    client.connect(&url(host, port), Offer::default()).unwrap();
    await_told(&told, |t| *t == Told::Done);
    // Idle now: an event-mode worker sleeps, and wakes for the next connection.
    let slept = || server.counters()[0].sleeps;
    if idle == IdlePolicy::Event {
        let before = slept();
        let until = std::time::Instant::now() + LONG;
        while slept() < before + 3 {
            assert!(
                std::time::Instant::now() < until,
                "an idle worker does not sleep"
            );
            std::thread::park_timeout(PAUSE);
        }
    } else {
        assert_eq!(slept(), 0);
    }
    let (second, told) = start_pinger(&plan(device, 0, idle), 8, 50, 1);
    second.connect(&url(host, port), Offer::default()).unwrap();
    await_told(&told, |t| *t == Told::Done);
    end(second);
    end(client);
    end(server);
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_event_mode() {
    idle_policy(RXE, 7201, IdlePolicy::Event);
    idle_policy(SIW, 7202, IdlePolicy::Event);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_yield_mode() {
    idle_policy(RXE, 7211, IdlePolicy::Yield);
    idle_policy(SIW, 7212, IdlePolicy::Yield);
}
