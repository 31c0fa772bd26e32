//! Chunks for a pool that runs low: registered for the lanes that there are, refused in words once.

use super::*;
use crate::memory::{Growth, HugepagePolicy, Region};

/// A worker whose pool has one small page and may have three.
fn bench() -> (Bench, Region) {
    let mut b = Bench::new(1, 2);
    let page = rustix::param::page_size();
    let (first, growth) = Growth::begin(page, 3 * page, HugepagePolicy::Off).expect("memory");
    b.control.posts[0].link.growth = Some(PoolGrowth::new(growth));
    (b, first)
}

fn ask(b: &mut Bench) -> Vec<Order> {
    b.say(Answer::PoolLow);
    b.orders()
}

#[test]
fn a_chunk_is_registered_with_the_lanes_and_handed_over() {
    let (mut b, first) = bench();
    let page = first.len();
    // A scripted worker drops what it is given, so the same addresses come again.
    assert_eq!(ask(&mut b), [Order::Grow(page, vec![true])]);
    assert_eq!(b.toy.registered(), 0);
}

#[test]
fn nothing_more_is_to_be_had() {
    let mut b = Bench::new(1, 2);
    assert_eq!(ask(&mut b), [Order::NotGrown(false)], "it does not grow");
    let page = rustix::param::page_size();
    let (_first, growth) = Growth::begin(page, page, HugepagePolicy::Off).expect("memory");
    b.control.posts[0].link.growth = Some(PoolGrowth::new(growth));
    assert_eq!(ask(&mut b), [Order::NotGrown(false)], "all is taken");
}

#[test]
fn a_device_that_refuses_leaves_nothing_behind() {
    let (mut b, first) = bench();
    for _ in 0..2 {
        b.toy.refuse_registration(12);
        assert_eq!(ask(&mut b), [Order::NotGrown(true)]);
        assert_eq!(b.toy.registered(), 0);
    }
    assert_eq!(ask(&mut b), [Order::Grow(first.len(), vec![true])]);
}

#[test]
fn a_lane_that_is_to_be_dropped_gets_no_more() {
    let (mut b, first) = bench();
    let (_, id) = b.connect();
    b.cm(id, CmEventKind::DeviceRemoval);
    let asked = b.orders();
    assert_eq!(asked, [Order::DropLane(0)]);
    assert_eq!(ask(&mut b), [Order::Grow(first.len(), vec![false])]);
    b.say(Answer::LaneDropped(0));
    assert!(b.control.posts[0].link.lanes[0].device_handle.is_none());
    assert_eq!(b.toy.forgotten(), [DEVICE]);
}
