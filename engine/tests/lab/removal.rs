//! A device that is removed under traffic: everything on it ends, and the kernel gets it back. In a
//! guest of its own (`alone_`): in one where other tests ran before, `rdma link del` was seen to wait
//! after both engines had let go, and why is not known.

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
        if !run("ip link show w9 >/dev/null 2>&1") {
            assert!(run(
                "ip link add w9 mtu 4200 type veth peer name x9 mtu 4200"
            ));
            assert!(run(&format!("ip addr add {HOST}/24 dev w9")));
            assert!(run("ip link set w9 up && ip link set x9 up"));
        }
        assert!(run(&format!("rdma link add {DEVICE} type rxe netdev w9")));
        Self
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        run(&format!(
            "rdma link show | grep -q '{DEVICE}/' && timeout 20 rdma link del {DEVICE}"
        ));
        // The link stays: 6.1's kernel now and then keeps a reference to it, and would wait for ever.
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
        assert!(Instant::now() < until, "rdma link del still waits");
        std::thread::park_timeout(PAUSE);
    };
    assert!(status.success(), "rdma link del: {status}");
    assert!(!run(&format!("rdma link show | grep -q '{DEVICE}/'")));
}

/// Set for the process that has the engines.
const CHILD: &str = "SPINWIRE_TEST_REMOVAL";

/// In a process of its own: librdmacm keeps its devices for a whole process, and other tests have used
/// them.
#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn alone_a_device_removed_under_traffic_is_given_back() {
    let witness = Witness::new();
    let output = Command::new("timeout")
        .arg("150")
        .arg(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--nocapture",
            "--exact",
            "removal::removal_process",
        ])
        .env(CHILD, "1")
        .env("SPINWIRE_LOG", "info")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    witness.assert_unchanged();
}

/// Not a test by itself: the body of the process above.
#[test]
#[ignore = "a child of the test in this file"]
fn removal_process() {
    if std::env::var(CHILD).is_err() {
        return;
    }
    let witness = Witness::new();
    let device = Device::add();
    let (ended, endings) = mpsc::channel();
    let server = Engine::start(&plan(DEVICE, 1, IdlePolicy::Spin), move |_| {
        Echo::telling(ended.clone())
    })
    .unwrap();
    server.listen(&url(HOST, 7501)).unwrap();
    let client_plan = plan(DEVICE, 0, IdlePolicy::Spin);
    let (client, told) = start_pinger(&client_plan, 512, u64::MAX, 16);
    client.connect(&url(HOST, 7501), Offer::default()).unwrap();
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
    let error = client.connect(&url(HOST, 7501), Offer::default());
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("no way to") || text.contains("no worker"),
        "{text}"
    );
    end(client);
    end(server);
    drop(device);
    witness.assert_unchanged();
}
