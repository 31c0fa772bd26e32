//! Reliable connections, whatever is done to them: random operations on several connections at once,
//! held against a model of RC.
//!
//! ```text
//!  Step… ─► World: two ends, SLOTS connections ─► fabric under test
//!             │ every completion: posted? once? in order? what it says true?
//!             └ at the end: memory = some head of what was asked, answers as that head gives them
//! ```
//! On the fabric without a device, which must do what can be done and must not refuse what has room;
//! and on the same with faults, which may fail whatever it likes, but may not lie. A failure prints the
//! steps and the seed of the faults.

#![allow(
    clippy::cast_possible_truncation,
    reason = "patterns of bytes, and indices of small tables"
)]

mod build;
mod check;
mod connect;
mod history;
#[path = "../shm_common/mod.rs"]
mod shm_common;
mod world;

use history::Bad;
use proptest::prelude::*;
use shm_common::Place;
use spinwire::fabric::fault::{Fault, Profile};
use spinwire::fabric::pair::{Alive, Hub, Pair};
use spinwire::fabric::{Fabric, WcStatus};
use world::{Order, Rules, SLOTS, Spec, World};

#[derive(Clone, Debug)]
enum Step {
    Connect(usize, Spec),
    Post(usize, usize, Vec<Order>),
    Receive(usize, usize, u32),
    Poll(usize, usize),
    Settle,
    SetError(usize, usize),
    Disconnect(usize, usize),
    Destroy(usize, usize),
    End(usize),
}

fn spec() -> impl Strategy<Value = Spec> {
    let depth = prop_oneof![Just(1), Just(4), Just(16)];
    let rnr = prop_oneof![3 => Just(7), 1 => 0..4u8];
    let inline = prop_oneof![Just(0), Just(64)];
    (depth, 0..12u32, prop::bool::weighted(0.3), rnr, inline).prop_map(
        |(depth, receives, shared, rnr_retry_count, inline_bytes)| Spec {
            depth,
            receives,
            shared,
            rnr_retry_count,
            inline_bytes,
        },
    )
}

fn order() -> impl Strategy<Value = Order> {
    let bad = prop_oneof![
        60 => Just(None),
        1 => Just(Some(Bad::Lkey)),
        1 => Just(Some(Bad::Rkey)),
        1 => Just(Some(Bad::Range)),
        1 => Just(Some(Bad::Misaligned)),
        1 => Just(Some(Bad::TooLong)),
    ];
    let pieces = prop::collection::vec(0..50u8, 1..5);
    (
        any::<u8>(),
        pieces,
        any::<u16>(),
        any::<u8>(),
        prop::bool::weighted(0.6),
        any::<bool>(),
        bad,
    )
        .prop_map(|(kind, pieces, at, value, signalled, inline, bad)| Order {
            kind,
            pieces,
            at,
            value,
            signalled,
            inline,
            bad,
        })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (slot, end) = (0..SLOTS, 0..2usize);
    let orders = prop::collection::vec(order(), 0..6);
    let step = prop_oneof![
        6 => (slot.clone(), spec()).prop_map(|(s, spec)| Step::Connect(s, spec)),
        20 => (slot.clone(), end.clone(), orders).prop_map(|(s, e, o)| Step::Post(s, e, o)),
        12 => (slot.clone(), end.clone(), 1..8u32).prop_map(|(s, e, n)| Step::Receive(s, e, n)),
        20 => (end.clone(), 0..16usize).prop_map(|(e, n)| Step::Poll(e, n)),
        2 => Just(Step::Settle),
        1 => (slot.clone(), end.clone()).prop_map(|(s, e)| Step::SetError(s, e)),
        1 => (slot.clone(), end.clone()).prop_map(|(s, e)| Step::Disconnect(s, e)),
        1 => (slot.clone(), end).prop_map(|(s, e)| Step::Destroy(s, e)),
        1 => slot.prop_map(Step::End),
    ];
    prop::collection::vec(step, 0..150)
}

fn run<F: Fabric>(fabrics: [F; 2], rules: Rules, steps: &[Step]) -> Vec<(usize, u64, WcStatus)> {
    let mut world = World::new(fabrics, rules);
    let usual = Spec {
        depth: 16,
        receives: 8,
        shared: false,
        rnr_retry_count: 7,
        inline_bytes: 64,
    };
    world.connect(0, usual);
    for step in steps {
        match step {
            Step::Connect(slot, spec) => world.connect(*slot, *spec),
            Step::Post(slot, end, orders) => world.post(*slot, *end, orders),
            Step::Receive(slot, end, count) => world.receive(*slot, *end, *count),
            Step::Poll(end, most) => {
                world.poll(*end, *most);
            }
            Step::Settle => world.settle_all(),
            Step::SetError(slot, end) => world.set_error(*slot, *end),
            Step::Disconnect(slot, end) => world.disconnect(*slot, *end),
            Step::Destroy(slot, end) => world.destroy(*slot, *end),
            Step::End(slot) => world.end(*slot),
        }
    }
    world.settle_all();
    world.close()
}

fn on_faulty(
    steps: &[Step],
    seed: u64,
    profile: Profile,
    rules: Rules,
) -> Vec<(usize, u64, WcStatus)> {
    let hub = Hub::new();
    let fabric = |n: u64| {
        let pair = Pair::open(&hub).expect("descriptors");
        Fault::new(pair, seed.wrapping_add(n), profile).expect("descriptors")
    };
    let seen = run([fabric(0), fabric(1)], rules, steps);
    assert_eq!(hub.alive(), Alive::default());
    seen
}

/// `RC_MODEL_CASES` asks for more.
fn config() -> ProptestConfig {
    ProptestConfig {
        cases: std::env::var("RC_MODEL_CASES")
            .ok()
            .and_then(|n| n.parse().ok())
            .unwrap_or(128),
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn pair_is_rc(steps in steps()) {
        let hub = Hub::new();
        let fabric = || Pair::open(&hub).expect("descriptors");
        let rules = Rules { faulty: false, lively: true, exact: true, taken: false };
        run([fabric(), fabric()], rules, &steps);
        assert_eq!(hub.alive(), Alive::default());
    }

    /// What is flushed may have been taken by the peer, as on a NIC.
    #[test]
    fn shm_is_rc(steps in steps()) {
        let place = Place::new("model");
        let rules = Rules { faulty: true, lively: true, exact: true, taken: true };
        run([place.open(), place.open()], rules, &steps);
    }

    #[test]
    fn late_is_rc(steps in steps(), seed in any::<u64>()) {
        let profile = Profile { wait: 200, ..Profile::harmless() };
        let rules = Rules { faulty: false, lively: true, exact: false, taken: false };
        on_faulty(&steps, seed, profile, rules);
    }

    #[test]
    fn faults_are_those_of_rc(steps in steps(), seed in any::<u64>()) {
        let rules = Rules { faulty: true, lively: false, exact: false, taken: false };
        let seen = on_faulty(&steps, seed, Profile::all(), rules);
        // The same seed gives the same faults.
        let again = on_faulty(&steps, seed, Profile::all(), rules);
        assert_eq!(seen, again);
    }
}
