//! What cannot be connected to, or taken: a clear error each, within a bounded time.

use crate::support::*;
use spinwire::config::Plan;
use spinwire::control::{ConnectError, Offer};
use spinwire::fabric::WcStatus;
use spinwire::types::IdlePolicy;
use spinwire::worker::CloseReason;
use spinwire::{Engine, EngineError};
use std::time::Instant;

fn refusal(device: &str, host: &str, port: u16) -> ConnectError {
    let witness = Witness::new();
    let (client, _told) = start_pinger(&plan(device, 0, IdlePolicy::Spin), 8, 1, 1);
    let began = Instant::now();
    let error = client
        .connect(&url(host, port), Offer::default())
        .unwrap_err();
    // Resolving twice and connecting have 2, 2 and 5 s in the plan, and a second of grace.
    assert!(began.elapsed().as_secs() < 11, "{error}");
    println!("{error}");
    end(client);
    witness.assert_unchanged();
    error
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_closed_port() {
    for (device, host) in [RXE, SIW] {
        let error = refusal(device, host, 7999);
        assert!(
            matches!(error, ConnectError::NothingListens { .. }),
            "{error:?}"
        );
        assert!(
            error.to_string().contains("spinwire serve --listen"),
            "{error}"
        );
    }
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_no_route() {
    let error = refusal(RXE.0, "192.0.2.1", 7471);
    assert!(error.to_string().contains("ip route get"), "{error}");
    assert!(error.to_string().contains("192.0.2.1"), "{error}");
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_address_of_no_device() {
    let error = refusal(RXE.0, "127.0.0.1", 7471);
    assert!(error.to_string().contains("No RDMA device"), "{error}");
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_nobody_at_the_address() {
    // In the subnet of v0, so it routes; no host answers there.
    let error = refusal(RXE.0, "10.9.0.77", 7471);
    assert!(error.to_string().contains("10.9.0.77"), "{error}");
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_a_device_without_a_lane() {
    // The address is of siw0, and the only worker has a lane on rxe0.
    let error = refusal(RXE.0, SIW.1, 7471);
    assert!(error.to_string().contains("siw0"), "{error}");
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_listening_twice_or_nowhere() {
    let witness = Witness::new();
    let server = start_echo(&plan(RXE.0, 1, IdlePolicy::Spin));
    server.listen(&url(RXE.1, 7801)).unwrap();
    let again = server.listen(&url(RXE.1, 7801)).unwrap_err().to_string();
    assert!(again.contains("choose another"), "{again}");
    let nowhere = server
        .listen(&url("203.0.113.5", 7801))
        .unwrap_err()
        .to_string();
    assert!(nowhere.contains("203.0.113.5"), "{nowhere}");
    end(server);
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_a_device_that_is_not_there() {
    let witness = Witness::new();
    let error = Engine::start(&plan("mlx5_7", 0, IdlePolicy::Spin), |_| Echo::default());
    let error = error.unwrap_err();
    assert!(matches!(error, EngineError::NoDevice { .. }), "{error:?}");
    assert!(error.to_string().contains("rxe0"), "{error}");
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_a_full_server_rejects() {
    let witness = Witness::new();
    let mut small: Plan = plan(RXE.0, 1, IdlePolicy::Spin);
    small.workers[0].lanes[0].connections_max = 2;
    let server = start_echo(&small);
    server.listen(&url(RXE.1, 7802)).unwrap();
    let (client, _told) = start_pinger(&plan(RXE.0, 0, IdlePolicy::Spin), 8, 0, 1);
    let to = url(RXE.1, 7802);
    for _ in 0..2 {
        client.connect(&to, Offer::default()).unwrap();
    }
    let error = client.connect(&to, Offer::default()).unwrap_err();
    assert!(matches!(error, ConnectError::Rejected { .. }), "{error:?}");
    end(client);
    end(server);
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_a_message_longer_than_the_peers_buffer() {
    let witness = Witness::new();
    let mut small = plan(RXE.0, 1, IdlePolicy::Spin);
    small.pool.slot_bytes = 1024;
    let server = start_echo(&small);
    server.listen(&url(RXE.1, 7803)).unwrap();
    let (client, told) = start_pinger(&plan(RXE.0, 0, IdlePolicy::Spin), 4000, 5, 1);
    client.connect(&url(RXE.1, 7803), Offer::default()).unwrap();
    let Told::Ended(reason, _) = await_told(&told, |t| matches!(t, Told::Ended(..))) else {
        unreachable!("as awaited")
    };
    // Verbs say remote invalid request; rxe says remote operation error.
    let refused = [WcStatus::RemoteInvalidRequest, WcStatus::RemoteOperation];
    assert!(
        matches!(reason, CloseReason::Failed(status) if refused.contains(&status)),
        "{reason:?}"
    );
    assert!(reason.to_string().contains("slot_bytes"), "{reason}");
    end(client);
    end(server);
    witness.assert_unchanged();
}
