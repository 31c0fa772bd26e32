//! Every file in `config/` is loaded and checked against the host that it was written for.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod config_common;

use config_common::{MIB, device, host, plan_of, rxe, shm, siw};
use spinwire::config::{Config, Host, Plan};
use spinwire::memory::HugepagePolicy;
use spinwire::types::IdlePolicy;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Each example and its host, as the file's own comment says.
fn hosts() -> BTreeMap<&'static str, Host> {
    let mellanox = |name| device(name, 32_768, 4_194_303);
    BTreeMap::from([
        ("two-core.toml", host(2, vec![rxe()], 0)),
        ("two-core-client.toml", host(2, vec![rxe()], 0)),
        ("shared-memory.toml", host(2, vec![rxe(), shm()], 0)),
        ("event-mode.toml", host(2, vec![siw()], 0)),
        (
            "many-connections.toml",
            host(2, vec![mellanox("mlx5_0")], 0),
        ),
        (
            "storage-8-core.toml",
            host(8, vec![mellanox("mlx5_0"), mellanox("mlx5_1")], 512 * MIB),
        ),
    ])
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../config"))
}

fn load(name: &str) -> Plan {
    let config = Config::from_path(folder().join(name)).unwrap();
    config.check(&hosts()[name]).unwrap()
}

#[test]
fn every_example_loads_and_none_is_missed() {
    let there: BTreeSet<_> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let known: BTreeSet<_> = hosts().keys().map(|&name| name.to_owned()).collect();
    assert_eq!(there, known, "give each file of config/ a host above");
    for name in hosts().keys() {
        let plan = load(name);
        assert!(plan.workers.iter().all(|worker| !worker.lanes.is_empty()));
    }
}

#[test]
fn examples_say_what_they_are_checked_against() {
    for name in hosts().keys() {
        let text = fs::read_to_string(folder().join(name)).unwrap();
        assert!(text.contains("# Checked against: "), "{name}");
    }
}

#[test]
fn client_and_server_of_two_cores_have_workers_apart() {
    let (server, client) = (load("two-core.toml"), load("two-core-client.toml"));
    assert_eq!(server.workers[0].core, client.control.core);
    assert_eq!(client.workers[0].core, server.control.core);
    assert_ne!(server.workers[0].core, client.workers[0].core);
}

#[test]
fn the_storage_node_is_what_its_comments_say() {
    let plan = load("storage-8-core.toml");
    assert_eq!(plan.workers.len(), 7);
    assert_eq!(plan.pool.bytes(), 64 * MIB);
    assert_eq!(plan.pool.hugepages, HugepagePolicy::Require);
    let on = |name| {
        let lanes = plan.workers.iter().flat_map(|worker| &worker.lanes);
        let on = lanes.filter(|lane| lane.device == name);
        on.map(|lane| lane.connections_max).sum::<u32>()
    };
    assert_eq!((on("mlx5_0"), on("mlx5_1")), (768, 1024));
}

#[test]
fn event_mode_sleeps_on_shared_cores() {
    let plan = load("event-mode.toml");
    assert_eq!(plan.control.core, None);
    assert!(
        plan.workers
            .iter()
            .all(|worker| worker.idle == IdlePolicy::Event)
    );
    assert_eq!(plan.workers[0].lanes[0].cq_depth, 32_768);
}

#[test]
fn many_connections_share_what_they_could_not_have_each() {
    let plan = load("many-connections.toml");
    let lane = &plan.workers[0].lanes[0];
    assert_eq!(lane.connections_max, 2000);
    assert_eq!((lane.shared_recv_depth, lane.recv_depth), (8192, 4));
    assert!(lane.shared_recv_depth < plan.pool.slots);
}

#[test]
fn shared_memory_is_for_its_host() {
    let plan = load("shared-memory.toml");
    assert_eq!(plan.workers[0].lanes[0].device, "shm0");
    assert_eq!(plan.shm.dir.as_deref(), Some(Path::new("/run/spinwire")));
    assert_eq!(plan.shm.uids, Some(vec![0]));
}

/// The example that writes every key writes the defaults: it documents them.
#[test]
fn two_core_spells_the_defaults_out() {
    let host = &hosts()["two-core.toml"];
    let short = "[control]\ncore = 0\n[[worker]]\ncore = 1\n";
    assert_eq!(load("two-core.toml"), plan_of(short, host).unwrap());
}
