//! What a host does not have: cores, devices, depths, CQs, QPs, memory for pools.

use crate::config_common::{MIB, device, host, plan_of, rxe, shm, siw};
use crate::{GOOD, one_fault, one_fault_on, two_core};
use spinwire::config::{Host, Plan};
use spinwire::limits::LANES_MAX;
use spinwire::types::{CoreId, DeviceLimits};

#[test]
fn a_core_that_does_not_exist_is_refused() {
    one_fault_on(
        &two_core(),
        "[[worker]]\ncore = 9\n",
        "map.toml:2: [[worker]] core = 9: a core of 0-1, which are online and allowed",
        &[],
    );
    one_fault_on(
        &two_core(),
        "[[worker]]\ncore = 1024\n",
        "map.toml:2: [[worker]] core = 1024: a whole number from 0 to 1023",
        &[],
    );
    let odd = Host::from_parts(
        [0, 2, 3, 7].iter().filter_map(|&n| CoreId::new(n)),
        vec![rxe()],
        0,
        [].into(),
    );
    one_fault_on(
        &odd,
        "[control]\ncore = 1\n[[worker]]\ncore = 2\n",
        "map.toml:2: [control] core = 1: a core of 0,2-3,7,",
        &[],
    );
}

#[test]
fn a_core_used_twice_names_the_other_line() {
    one_fault_on(
        &host(4, vec![rxe()], 0),
        "[control]\ncore = 2\n\n[[worker]]\ncore = 2\n",
        "map.toml:5: [[worker]] core = 2: a core that nobody else has: [control] core in line 2 has it already; free: 0-1,3",
        &[],
    );
    one_fault_on(
        &two_core(),
        "[[worker]]\ncore = 1\n[[worker]]\ncore = 1\n",
        "map.toml:4: [[worker]] core = 1: a core that nobody else has: [[worker]] core in line 2 has it already; free: 0",
        &[],
    );
    // The later line is at fault, whichever section it is in.
    one_fault_on(
        &two_core(),
        "[[worker]]\ncore = 1\n[control]\ncore = 1\n",
        "map.toml:4: [control] core = 1: a core that nobody else has: [[worker]] core in line 2",
        &[],
    );
}

#[test]
fn a_device_that_is_missing_down_or_doubled_is_refused() {
    let down = DeviceLimits {
        active: false,
        ..device("mlx5_1", 1000, 1000)
    };
    let host = host(2, vec![rxe(), siw(), down], 0);
    let text = |devices: &str| format!("[[worker]]\ncore = 1\ndevices = {devices}\n");
    one_fault_on(
        &host,
        &text("[\"rxe1\"]"),
        "map.toml:3: [[worker]] devices = \"rxe1\": a device with an active port; there is rxe0, siw0 (`rdma link`)",
        &[],
    );
    one_fault_on(
        &host,
        &text("[\n  \"siw0\",\n  \"mlx5_1\",\n]"),
        "map.toml:5: [[worker]] devices = \"mlx5_1\": a device with an active port, this one has none; there is rxe0, siw0",
        &[],
    );
    one_fault_on(
        &host,
        &text("[\n  \"siw0\",\n  \"siw0\",\n]"),
        "map.toml:5: [[worker]] devices = \"siw0\": each device once: line 4 names it already",
        &[],
    );
    for seen in ["[]", "\"rxe0\"", "[1]", "[[\"rxe0\"]]"] {
        one_fault_on(
            &host,
            &text(seen),
            &format!("map.toml:3: [[worker]] devices = {seen}: a list of device names such as"),
            &[],
        );
    }
}

#[test]
fn too_many_lanes_are_refused() {
    let devices: Vec<_> = (0..=LANES_MAX)
        .map(|n| device(&format!("d{n}"), 1000, 100_000))
        .collect();
    let names: Vec<_> = devices
        .iter()
        .map(|device| format!("{:?}", device.name))
        .collect();
    let host = host(2, devices, 0);
    one_fault_on(
        &host,
        &format!("[[worker]]\ncore = 0\ndevices = [{}]\n", names.join(", ")),
        "map.toml:3: [[worker]] devices = [\"d0\", ",
        &["at most 8 devices for one worker, these are 9"],
    );
    one_fault_on(
        &host,
        "[[worker]]\ncore = 0\n",
        "map.toml:1: [[worker]] devices = every one: a list of at most 8 devices; there is d0, d1",
        &[],
    );
}

#[test]
fn a_host_without_a_device_is_told_where_to_look() {
    one_fault_on(
        &host(2, Vec::new(), 0),
        "[[worker]]\ncore = 0\n",
        "map.toml:1: [[worker]] devices = every one: needs a device with an active port",
        &["`rdma link`", "`ibv_devices`"],
    );
}

#[test]
fn a_depth_above_the_device_names_device_and_limit() {
    let host = host(2, vec![device("small", 100, 1000)], 0);
    for key in ["send_depth", "recv_depth"] {
        one_fault_on(
            &host,
            &format!("{GOOD}[queues]\n{key} = 101\n"),
            &format!(
                "map.toml:6: [queues] {key} = 101: at most 100, the depth of a queue on small"
            ),
            &["ibv_devinfo -v -d small"],
        );
    }
    one_fault_on(
        &host,
        &format!("{GOOD}[queues]\ncq_depth = 1001\n"),
        "map.toml:6: [queues] cq_depth = 1001: at most 1000, the depth of a CQ on small",
        &[],
    );
}

#[test]
fn sums_above_the_cq_show_the_sum_and_what_fits() {
    // The CQ that is asked for.
    one_fault(
        "[queues]\ncq_depth = 1000\nconnections_max = 10\nsend_depth = 60\nrecv_depth = 60\n",
        "map.toml:7: [queues] connections_max = 10: 10 connections × (send_depth 60 + recv_depth 60) = 1200 completions, above the cq_depth of 1000; at most 8 connections, or cq_depth = 1200",
        &[],
    );
    // The CQ by default: 80 % of 32767.
    one_fault(
        "[queues]\nconnections_max = 103\n",
        "map.toml:6: [queues] connections_max = 103: 103 connections × (send_depth 128 + recv_depth 128) = 26368 completions, above the CQ's 26213 that rxe0 has by default; at most 102 connections, or cq_depth = 26368",
        &[],
    );
    // More than the device has at all.
    one_fault(
        "[queues]\nconnections_max = 1000\n",
        "map.toml:6: [queues] connections_max = 1000: ",
        &["= 256000 completions", "rxe0 has CQs up to 32767"],
    );
    // Not even one connection.
    one_fault(
        "[queues]\ncq_depth = 100\nsend_depth = 100\n",
        "map.toml:6: [queues] cq_depth = 100: 1 connections × (send_depth 100 + recv_depth 1) = 101 completions",
        &[
            "at most 100 for send_depth + recv_depth",
            "or cq_depth = 101",
        ],
    );
}

#[test]
fn more_connections_than_qps_or_numbers_are_refused() {
    let few = DeviceLimits {
        qp_max: 100,
        ..device("few", 1000, 1_000_000)
    };
    one_fault_on(
        &host(4, vec![few], 0),
        "[[worker]]\ncore = 0\n[[worker]]\ncore = 1\n[queues]\nconnections_max = 51\n",
        "map.toml:6: [queues] connections_max = 51: at most 50: 2 workers make 102 connections on few, which has 100 QPs",
        &[],
    );
    let big = |name| DeviceLimits {
        qp_max: u32::MAX,
        ..device(name, 1000, u32::MAX)
    };
    one_fault_on(
        &host(2, vec![big("a"), big("b")], 0),
        "[[worker]]\ncore = 0\n[queues]\nconnections_max = 40000\ncq_depth = 4000000000\n",
        "map.toml:4: [queues] connections_max = 40000: at most 32768: 2 devices make 80000 connections of one worker",
        &[],
    );
    let one_cq = DeviceLimits {
        cq_max: 1,
        ..device("one", 1000, 100_000)
    };
    one_fault_on(
        &host(2, vec![one_cq], 0),
        "[[worker]]\ncore = 0\n[[worker]]\ncore = 1\n",
        "map.toml:1: [[worker]] devices = 2 workers: at most 1 workers on one, each with a CQ",
        &[],
    );
}

#[test]
fn a_pool_holds_the_receives_of_a_connection_and_a_send() {
    one_fault(
        "[pool]\nslots = 64\n[queues]\nrecv_depth = 64\n",
        "map.toml:8: [queues] recv_depth = 64: at most 63, or [pool] slots = 65 and more, now 64",
        &[],
    );
    one_fault(
        "[queues]\nrecv_depth = 1024\n",
        "map.toml:6: [queues] recv_depth = 1024: at most 1023, or [pool] slots = 1025 and more, now 1024",
        &[],
    );
    // The default shrinks instead.
    let plan = plan_of(&format!("{GOOD}[pool]\nslots = 64\n"), &two_core()).unwrap();
    assert_eq!(plan.workers[0].lanes[0].recv_depth, 63);
}

#[test]
fn a_pool_grows_from_what_it_starts_with() {
    one_fault(
        "[pool]\nslots = 100\nslots_max = 99\n[queues]\nrecv_depth = 8\n",
        "map.toml:7: [pool] slots_max = 99: 100 or more: the pool starts with so many slots",
        &[],
    );
    one_fault(
        "[pool]\nslots_max = 1048577\n",
        "map.toml:6: [pool] slots_max = 1048577: a whole number from 2 to 1048576",
        &[],
    );
    let pool = |text: &str| {
        let plan = plan_of(&format!("{GOOD}{text}"), &two_core()).unwrap();
        (plan.pool.slots, plan.pool.slots_max)
    };
    assert_eq!(pool(""), (1024, 1024), "it does not grow");
    assert_eq!(pool("[pool]\nslots = 512\n"), (512, 512));
    assert_eq!(pool("[pool]\nslots_max = 4096\n"), (1024, 4096));
}

#[test]
fn a_pool_above_one_registration_is_refused() {
    let small = DeviceLimits {
        mr_bytes_max: MIB,
        ..device("small", 1000, 100_000)
    };
    let host = host(2, vec![small], 0);
    one_fault_on(
        &host,
        &format!("{GOOD}[pool]\nslots = 257\nslot_bytes = 4096\n"),
        "map.toml:6: [pool] slots = 257: 257 slots × 4096 B = 1052672 B, above the 1048576 B that small registers at once; at most 256 slots",
        &[],
    );
    one_fault_on(
        &host,
        GOOD,
        "map.toml:3: [pool] slots = 1024 (default): 1024 slots × 16384 B",
        &[],
    );
}

#[test]
fn required_huge_pages_that_are_not_free_are_refused() {
    // One pool of 16 MiB; 6 MiB of 10 MiB free.
    let mut host = host(2, vec![rxe()], 6 * MIB);
    host.hugepages_total = 5;
    let text = format!("{GOOD}[pool]\nhugepages = \"require\"\n");
    one_fault_on(
        &host,
        &text,
        "map.toml:6: [pool] hugepages = \"require\": needs 16777216 B in pages of 2097152 B for 1 pools, 6291456 B are free; `sysctl vm.nr_hugepages=10`",
        &[],
    );
    host.free_hugepages_bytes = 16 * MIB;
    plan_of(&text, &host).unwrap();
    host.hugepage_bytes = 0;
    one_fault_on(
        &host,
        &text,
        "map.toml:6: [pool] hugepages = \"require\": \"prefer\" or \"off\"",
        &[],
    );
    plan_of(&text.replace("require", "prefer"), &host).unwrap();
}

fn with_shm(devices: Vec<DeviceLimits>) -> Host {
    host(2, [devices, vec![shm()]].concat(), 0)
}

fn devices_of(plan: &Plan) -> Vec<&str> {
    let lanes = plan.workers.iter().flat_map(|worker| &worker.lanes);
    lanes.map(|lane| lane.device.as_str()).collect()
}

#[test]
fn shared_memory_is_taken_where_there_is_no_active_rdma_device() {
    let short = "[[worker]]\ncore = 1\n";
    let down = DeviceLimits {
        active: false,
        ..rxe()
    };
    for (devices, lanes) in [
        (vec![rxe(), siw()], vec!["rxe0", "siw0"]),
        (vec![down], vec!["shm0"]),
        (Vec::new(), vec!["shm0"]),
    ] {
        let plan = plan_of(short, &with_shm(devices)).unwrap();
        assert_eq!(devices_of(&plan), lanes);
    }
    let named = format!("{short}devices = [\"shm0\"]\n");
    let plan = plan_of(&named, &with_shm(vec![rxe()])).unwrap();
    assert_eq!(devices_of(&plan), ["shm0"]);
}

#[test]
fn one_engine_has_one_fabric() {
    let host = with_shm(vec![rxe()]);
    one_fault_on(
        &host,
        "[[worker]]\ncore = 1\ndevices = [\n  \"rxe0\",\n  \"shm0\",\n]\n",
        "map.toml:5: [[worker]] devices = \"shm0\": devices of one fabric: shm0 is shared memory, rxe0 an RDMA device",
        &["a core map for each"],
    );
    one_fault_on(
        &host,
        "[[worker]]\ncore = 0\n[[worker]]\ncore = 1\ndevices = [\"shm0\"]\n",
        "map.toml:5: [[worker]] devices = \"shm0\": devices of one fabric",
        &["names no device"],
    );
}
