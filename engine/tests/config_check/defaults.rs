//! The plan where there is no file, or where it says little.

use crate::config_common::{device, host, plan_of, rxe, siw};
use crate::{GOOD, two_core};
use spinwire::config::{Config, Side};
use spinwire::types::{CoreId, IdlePolicy};

#[test]
fn defaults_take_apart_cores_for_client_and_server() {
    let host = host(4, vec![siw(), rxe()], 0);
    let server = Config::default_for(&host, Side::Server).unwrap();
    let client = Config::default_for(&host, Side::Client).unwrap();
    assert_eq!(server.control.core, CoreId::new(0));
    assert_eq!(server.workers[0].core, CoreId::new(3));
    assert_eq!(client.control.core, CoreId::new(3));
    assert_eq!(client.workers[0].core, CoreId::new(0));
    assert_eq!(server.workers.len(), 1);
    assert_eq!(server.workers[0].idle, IdlePolicy::Spin);
    let lanes = &server.workers[0].lanes;
    assert_eq!(lanes.len(), 2);
    for lane in lanes {
        assert_eq!((lane.send_depth, lane.recv_depth), (128, 128));
        assert_eq!((lane.connections_max, lane.cq_depth), (64, 16_384));
    }
}

#[test]
fn defaults_of_one_core_share_it() {
    let plan = Config::default_for(&host(1, vec![rxe()], 0), Side::Client).unwrap();
    assert_eq!(plan.control.core, None);
    assert_eq!(plan.workers[0].core, CoreId::new(0));
    assert_eq!(plan.workers[0].idle, IdlePolicy::Yield);
}

#[test]
fn defaults_without_device_or_core_say_so() {
    let shown = Config::default_for(&host(2, Vec::new(), 0), Side::Server)
        .unwrap_err()
        .to_string();
    assert!(
        shown.starts_with("built-in defaults: [[worker]] devices = every one: needs a device"),
        "{shown}"
    );
    let shown = Config::default_for(&host(0, vec![rxe()], 0), Side::Server)
        .unwrap_err()
        .to_string();
    assert!(shown.contains("[[worker]] core = none"), "{shown}");
}

#[test]
fn defaults_shrink_to_the_device() {
    // Depths: 80 % of 10. Connections: 80 % of 100, by 16.
    let plan =
        Config::default_for(&host(2, vec![device("tiny", 10, 100)], 0), Side::Server).unwrap();
    let lane = &plan.workers[0].lanes[0];
    assert_eq!((lane.send_depth, lane.recv_depth), (8, 8));
    assert_eq!((lane.connections_max, lane.cq_depth), (5, 80));
    // A CQ smaller than one connection's usual queues halves them.
    let plan =
        Config::default_for(&host(2, vec![device("flat", 1000, 100)], 0), Side::Server).unwrap();
    let lane = &plan.workers[0].lanes[0];
    assert_eq!(
        (lane.send_depth, lane.recv_depth, lane.connections_max),
        (40, 40, 1)
    );
    // A device without room for a send and a receive is none.
    let shown = Config::default_for(&host(2, vec![device("nil", 1, 1)], 0), Side::Server)
        .unwrap_err()
        .to_string();
    assert!(shown.contains("= 2 completions"), "{shown}");
}

#[test]
fn a_plan_reports_as_json() {
    let plan = plan_of(GOOD, &two_core()).unwrap();
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["control"]["core"], 0);
    assert_eq!(json["workers"][0]["core"], 1);
    assert_eq!(json["workers"][0]["idle"], "spin");
    assert_eq!(json["workers"][0]["lanes"][0]["device"], "rxe0");
    assert_eq!(json["pool"]["hugepages"], "prefer");
    assert_eq!(json["connection"]["drain_deadline_ms"], 1000);
}
