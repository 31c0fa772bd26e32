//! The contract of fabrics on a faulty fabric whose faults are only delays: it is as good as any.

use spinwire::fabric::Endpoint;
use spinwire::fabric::contract::{self, Deviation, Target};
use spinwire::fabric::fault::{Fault, Profile};
use spinwire::fabric::pair::{Alive, Hub, Pair};

/// A send that waits is posted by the next poll of its own lane, and these poll only the other one.
const WAITING: &[Deviation] = &[
    Deviation {
        case: "armed_lane_wakes",
        reason: "the send waits for a poll",
    },
    Deviation {
        case: "armed_once",
        reason: "the send waits for a poll",
    },
    Deviation {
        case: "poll_again_after_arming",
        reason: "the send waits for a poll",
    },
];

fn check(seed: u64, profile: Profile, deviations: &'static [Deviation]) {
    let hub = Hub::new();
    let inner = Pair::open(&hub).expect("descriptors");
    let mut fabric = Fault::new(inner, seed, profile).expect("descriptors");
    let at = Endpoint::Shm("contract".into());
    let target = Target { at, deviations };
    let report = contract::run(&mut fabric, &target, |case| println!("{case}")).expect("runs");
    println!("seed {seed}: {report}");
    assert_eq!(report.failed(), 0, "see the lines that begin with FAIL");
    assert!(report.passed() > 40, "{report}");
    drop(fabric);
    assert_eq!(hub.alive(), Alive::default());
}

#[test]
fn contract_late_completions_1() {
    check(1, Profile::harmless(), &[]);
}

#[test]
fn contract_late_completions_42() {
    check(42, Profile::harmless(), &[]);
}

#[test]
fn contract_late_posts_too() {
    let profile = Profile {
        wait: 200,
        polls_max: 20,
        ..Profile::harmless()
    };
    check(2011, profile, WAITING);
}
