//! Two engines in one process, joined by shared memory: traffic both ways, both idle policies, everything
//! late, an engine that ends under its peer, a name that nobody listens at.

mod engine_common;
mod shm_common;

use engine_common::{
    a_name_without_a_listener_is_told, an_end_is_heard_of, ping_pong, ping_pong_though_all_is_late,
};
use shm_common::Place;
use spinwire::types::IdlePolicy;

#[test]
fn ping_pong_of_workers_that_sleep() {
    let place = Place::new("engine1");
    ping_pong(|| place.open(), IdlePolicy::Event, 300);
}

#[test]
fn ping_pong_of_workers_that_yield() {
    let place = Place::new("engine2");
    ping_pong(|| place.open(), IdlePolicy::Yield, 2000);
}

#[test]
fn ping_pong_of_workers_that_sleep_though_all_is_late() {
    let place = Place::new("engine3");
    ping_pong_though_all_is_late(|| place.open());
}

#[test]
fn an_engine_that_ends_is_heard_of() {
    let place = Place::new("engine4");
    an_end_is_heard_of(|| place.open());
}

#[test]
fn a_name_that_nobody_listens_at_is_told() {
    let place = Place::new("engine5");
    a_name_without_a_listener_is_told(place.open());
}
