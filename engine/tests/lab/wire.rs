//! Over a wire: two rxe devices, a veth pair between them.

use crate::support::*;
use spinwire::config::Plan;
use spinwire::control::Offer;
use spinwire::types::IdlePolicy;

/// Which of the two devices a connection leaves by is the routing's choice, so a lane on each.
fn both_devices(core: usize) -> Plan {
    let mut plan = plan("rxe0", core, IdlePolicy::Spin);
    let mut second = plan.workers[0].lanes[0].clone();
    second.device = "rxe1".into();
    plan.workers[0].lanes.push(second);
    plan
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn wire_ping_pong() {
    let witness = Witness::new();
    let before = packets();
    let server = start_echo(&both_devices(1));
    for (host, port) in [("10.9.0.1", 7301), ("10.9.0.2", 7302)] {
        server.listen(&url(host, port)).unwrap();
    }
    for (host, port, size) in [
        ("10.9.0.2", 7302, 8),
        ("10.9.0.1", 7301, 4096),
        ("10.9.0.2", 7302, 16_384),
    ] {
        let (client, told) = start_pinger(&both_devices(0), size, 500, 8);
        client.connect(&url(host, port), Offer::default()).unwrap();
        await_told(&told, |t| *t == Told::Done);
        end(client);
    }
    end(server);
    // 1500 messages each way, some of several packets.
    let crossed = packets() - before;
    assert!(crossed >= 3000, "{crossed} packets crossed the wire");
    witness.assert_unchanged();
}
