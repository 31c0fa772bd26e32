//! Receives that connections share: what a core map may say, and what it must fit.

use crate::config_common::{device, host, plan_of, rxe, siw};
use crate::{one_fault_on, two_core};
use spinwire::config::LanePlan;
use spinwire::types::DeviceLimits;

const GOOD: &str = "[control]\ncore = 0\n[[worker]]\ncore = 1\n[queues]\nreceives = \"shared\"\n";

fn lane(more: &str) -> LanePlan {
    let plan = plan_of(&format!("{GOOD}{more}"), &two_core()).unwrap();
    plan.workers[0].lanes[0].clone()
}

#[track_caller]
fn one_fault(more: &str, start: &str) {
    one_fault_on(&two_core(), &format!("{GOOD}{more}"), start, &[]);
}

#[test]
fn defaults_give_each_connection_a_share() {
    let lane = lane("");
    assert_eq!((lane.shared_recv_depth, lane.recv_depth), (512, 8));
    assert_eq!((lane.connections_max, lane.send_depth), (64, 128));
    // 64 * 128 + 512, rounded up.
    assert_eq!(lane.cq_depth, 16_384);
}

#[test]
fn without_the_key_each_has_its_own() {
    for text in ["", "receives = \"own\"\nrecv_depth = 32\n"] {
        let map = format!("[control]\ncore = 0\n[[worker]]\ncore = 1\n[queues]\n{text}");
        let plan = plan_of(&map, &two_core()).unwrap();
        assert_eq!(plan.workers[0].lanes[0].shared_recv_depth, 0);
    }
}

#[test]
fn defaults_shrink_with_the_pool_and_the_device() {
    let small = lane("[pool]\nslots = 100\n");
    assert_eq!((small.shared_recv_depth, small.connections_max), (50, 12));
    assert_eq!(small.recv_depth, 4);
    let small = DeviceLimits {
        shared_recv_depth_max: 100,
        ..rxe()
    };
    let plan = plan_of(GOOD, &host(2, vec![small], 0)).unwrap();
    assert_eq!(plan.workers[0].lanes[0].shared_recv_depth, 80);
    // Two devices fill two queues from one pool.
    let plan = plan_of(GOOD, &host(2, vec![rxe(), siw()], 0)).unwrap();
    let lanes = &plan.workers[0].lanes;
    assert!(lanes.iter().all(|lane| lane.shared_recv_depth == 256));
    let plan = plan_of(
        &format!("{GOOD}[pool]\nslots = 512\n"),
        &host(2, vec![rxe(), siw()], 0),
    );
    let lanes = &plan.unwrap().workers[0].lanes;
    assert!(lanes.iter().all(|lane| lane.shared_recv_depth == 128));
}

#[test]
fn words_and_numbers() {
    let own = "[[worker]]\ncore = 1\n[queues]\nreceives = ";
    one_fault_on(
        &two_core(),
        &format!("{own}\"one\"\n"),
        "map.toml:4: [queues] receives = \"one\": \"own\" or \"shared\"",
        &[],
    );
    for seen in ["3", "65537", "\"many\""] {
        one_fault(
            &format!("shared_recv_depth = {seen}\n"),
            &format!(
                "map.toml:7: [queues] shared_recv_depth = {seen}: a whole number from 4 to 65536"
            ),
        );
    }
}

#[test]
fn a_key_of_the_other_kind_is_refused() {
    one_fault(
        "recv_depth = 64\n",
        "map.toml:7: [queues] recv_depth = 64: nothing, as receives = \"shared\"",
    );
    one_fault_on(
        &two_core(),
        "[[worker]]\ncore = 1\n[queues]\nshared_recv_depth = 64\n",
        "map.toml:4: [queues] shared_recv_depth = 64: nothing, or with it receives = \"shared\"",
        &[],
    );
}

#[test]
fn a_queue_must_fit_the_device() {
    one_fault(
        "shared_recv_depth = 40000\n[pool]\nslots = 100000\n",
        "map.toml:7: [queues] shared_recv_depth = 40000: at most 32767, the depth of a shared receive \
         queue on rxe0 (`ibv_devinfo -v -d rxe0`)",
    );
    let none = DeviceLimits {
        shared_recv_depth_max: 0,
        ..device("old0", 1000, 1000)
    };
    one_fault_on(
        &host(2, vec![none], 0),
        GOOD,
        "map.toml:6: [queues] receives = \"shared\": \"own\": old0 has no shared receive queues",
        &[],
    );
}

#[test]
fn a_queue_must_fit_the_pool() {
    one_fault(
        "shared_recv_depth = 1024\n",
        "map.toml:7: [queues] shared_recv_depth = 1024: at most 1023 for shared_recv_depth, or [pool] \
         slots = 1025 and more, now 1024: a pool holds the shared receives of 1 devices and one send",
    );
    one_fault_on(
        &host(2, vec![rxe(), siw()], 0),
        &format!("{GOOD}shared_recv_depth = 600\n"),
        "map.toml:7: [queues] shared_recv_depth = 600: at most 511 for shared_recv_depth, or [pool] \
         slots = 1201",
        &[],
    );
    one_fault(
        "[pool]\nslots = 4\n",
        "map.toml:8: [pool] slots = 4: at most 3 for shared_recv_depth, or [pool] slots = 5",
    );
}

#[test]
fn each_connection_needs_a_share() {
    one_fault(
        "shared_recv_depth = 100\nconnections_max = 26\n",
        "map.toml:8: [queues] connections_max = 26: 26 connections share 100 receives, and each needs 4: \
         at most 25 connections, or shared_recv_depth = 104",
    );
    assert_eq!(
        lane("shared_recv_depth = 104\nconnections_max = 26\n").recv_depth,
        4
    );
}

#[test]
fn the_cq_holds_the_sends_of_each_and_the_receives_of_all() {
    one_fault(
        "cq_depth = 1000\nconnections_max = 10\nsend_depth = 60\nshared_recv_depth = 401\n",
        "map.toml:8: [queues] connections_max = 10: 10 connections × send_depth 60 + shared_recv_depth \
         401 = 1001 completions, above the cq_depth of 1000; at most 9 connections, or cq_depth = 1001",
    );
    let lane =
        lane("cq_depth = 1000\nconnections_max = 10\nsend_depth = 60\nshared_recv_depth = 400\n");
    assert_eq!((lane.cq_depth, lane.recv_depth), (1000, 40));
    one_fault(
        "connections_max = 500\nshared_recv_depth = 20000\n[pool]\nslots = 30000\n",
        "map.toml:7: [queues] connections_max = 500: 500 connections × send_depth 128 + \
         shared_recv_depth 20000 = 84000 completions, above the CQ's 26213 that rxe0 has by default; at \
         most 48 connections; rxe0 has CQs up to 32767",
    );
    // Not even one connection.
    one_fault(
        "cq_depth = 100\nshared_recv_depth = 100\n",
        "map.toml:7: [queues] cq_depth = 100: 1 connections × send_depth 1 + shared_recv_depth 100 = 101 \
         completions, above the cq_depth of 100; at most 100 for send_depth + shared_recv_depth, or \
         cq_depth = 101",
    );
}
