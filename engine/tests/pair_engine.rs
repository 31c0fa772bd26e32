//! Two engines in one process, joined by the fabric without a device: traffic both ways, both idle
//! policies, everything late, an engine that ends under its peer, a name that nobody listens at.

mod engine_common;

use engine_common::{
    a_name_without_a_listener_is_told, an_end_is_heard_of, ping_pong, ping_pong_though_all_is_late,
};
use spinwire::fabric::pair::{Alive, Hub, Pair};
use spinwire::types::IdlePolicy;

fn pair(hub: &Hub) -> Pair {
    Pair::open(hub).expect("descriptors")
}

#[test]
fn ping_pong_of_workers_that_sleep() {
    let hub = Hub::new();
    ping_pong(|| pair(&hub), IdlePolicy::Event, 300);
    assert_eq!(hub.alive(), Alive::default());
}

#[test]
fn ping_pong_of_workers_that_yield() {
    let hub = Hub::new();
    ping_pong(|| pair(&hub), IdlePolicy::Yield, 2000);
    assert_eq!(hub.alive(), Alive::default());
}

#[test]
fn ping_pong_of_workers_that_sleep_though_all_is_late() {
    let hub = Hub::new();
    ping_pong_though_all_is_late(|| pair(&hub));
    assert_eq!(hub.alive(), Alive::default());
}

#[test]
fn an_engine_that_ends_is_heard_of() {
    let hub = Hub::new();
    an_end_is_heard_of(|| pair(&hub));
    assert_eq!(hub.alive(), Alive::default());
}

#[test]
fn a_name_that_nobody_listens_at_is_told() {
    let hub = Hub::new();
    a_name_without_a_listener_is_told(pair(&hub));
    assert_eq!(hub.alive(), Alive::default());
}
