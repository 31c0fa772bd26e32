//! A device that is removed under traffic: everything on it ends, and the kernel gets it back.

use crate::support::*;
use spinwire::Engine;
use spinwire::control::Offer;
use spinwire::types::IdlePolicy;
use spinwire::worker::CloseReason;
use std::process::{Child, Command};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const DEVICE: &str = "rxe9";
const HOST: &str = "10.9.9.1";

fn run(command: &str) -> bool {
    let status = Command::new("sh").args(["-c", command]).status().unwrap();
    status.success()
}

/// A device of the test's own; what is left of it goes with this.
struct Device;

impl Device {
    fn add() -> Self {
        let link = "ip link add w9 mtu 4200 type veth peer name x9 mtu 4200";
        assert!(run(link));
        assert!(run(&format!("ip addr add {HOST}/24 dev w9")));
        assert!(run("ip link set w9 up && ip link set x9 up"));
        assert!(run(&format!("rdma link add {DEVICE} type rxe netdev w9")));
        Self
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        run(&format!(
            "rdma link show | grep -q '{DEVICE}/' && timeout 20 rdma link del {DEVICE}"
        ));
        // It waits for whoever still has the device.
        run("timeout 20 ip link del w9");
    }
}

/// `rdma link del`, which waits until every process has closed the device.
fn start_deletion() -> Child {
    Command::new("timeout")
        .args(["60", "rdma", "link", "del", DEVICE])
        .spawn()
        .unwrap()
}

fn await_deletion(mut deletion: Child) {
    let until = Instant::now() + Duration::from_secs(60);
    let status = loop {
        if let Some(status) = deletion.try_wait().unwrap() {
            break status;
        }
        if Instant::now() >= until {
            tell_who_holds_it();
            panic!("rdma link del still waits");
        }
        std::thread::park_timeout(PAUSE);
    };
    assert!(status.success(), "rdma link del: {status}");
    assert!(!run(&format!("rdma link show | grep -q '{DEVICE}/'")));
}

/// What a deletion that never ends may be waiting for: files of this process, objects, the kernel.
fn tell_who_holds_it() {
    let pid = std::process::id();
    run(&format!(
        "exec 1>&2
        ls -l /proc/{pid}/fd | grep -e uverbs -e rdma_cm
        rdma resource show; for kind in qp cq mr pd cm_id; do rdma resource show $kind; done
        for task in $(pgrep -x rdma); do cat /proc/$task/stack; done
        dmesg | tail -n 20"
    ));
}

/// Both engines are in this process, and so share librdmacm's context of the device: neither may have
/// it closed while the other still has a CQ on it. Some rounds, as it is a matter of their order.
#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_a_device_removed_under_traffic_is_given_back() {
    let witness = Witness::new();
    for round in 0..4 {
        removed_under_traffic(7501 + round);
        witness.assert_unchanged();
    }
}

fn removed_under_traffic(port: u16) {
    let device = Device::add();
    let (ended, endings) = mpsc::channel();
    let server = Engine::start(&plan(DEVICE, 1, IdlePolicy::Spin), move |_| {
        Echo::telling(ended.clone())
    })
    .unwrap();
    server.listen(&url(HOST, port)).unwrap();
    let client_plan = plan(DEVICE, 0, IdlePolicy::Spin);
    let (client, told) = start_pinger(&client_plan, 512, u64::MAX, 16);
    client.connect(&url(HOST, port), Offer::default()).unwrap();
    await_told(&told, |t| matches!(t, Told::Progress(_)));

    let deletion = start_deletion();
    let end_of_client = await_told(&told, |t| matches!(t, Told::Ended(..)));
    let reasons = [CloseReason::DeviceRemoved, CloseReason::Peer];
    assert!(
        matches!(end_of_client, Told::Ended(reason, n) if reasons.contains(&reason) && n > 0),
        "{end_of_client:?}"
    );
    assert!(reasons.contains(&endings.recv_timeout(LONG).unwrap()));
    // The engines go on; it is they who let the device go.
    await_deletion(deletion);
    let error = client.connect(&url(HOST, port), Offer::default());
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("no way to") || text.contains("no worker"),
        "{text}"
    );
    end(client);
    end(server);
    drop(device);
}

/// rdma_cm tells ids of a removal, and neither a wildcard listener nor an idle engine has one there.
#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_a_device_without_connections_is_given_back() {
    let witness = Witness::new();
    let device = Device::add();
    let idle = Engine::start(&plan(DEVICE, 0, IdlePolicy::Spin), |_| Echo::default()).unwrap();
    let plan = plan(DEVICE, 1, IdlePolicy::Spin);
    let listening = Engine::start(&plan, |_| Echo::default()).unwrap();
    listening.listen(&url("0.0.0.0", 7511)).unwrap();
    await_deletion(start_deletion());
    end(idle);
    end(listening);
    drop(device);
    witness.assert_unchanged();
}
