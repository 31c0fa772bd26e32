//! The contract of fabrics on shared memory, both ends in one process: every case, and no deviations.

mod shm_common;

use shm_common::Place;
use spinwire::fabric::Endpoint;
use spinwire::fabric::contract::{self, Target};

#[test]
fn contract_shm() {
    let place = Place::new("contract");
    let mut fabric = place.open();
    let at = Endpoint::Shm("contract".into());
    let target = Target {
        at,
        deviations: &[],
    };
    let report = contract::run(&mut fabric, &target, |case| println!("{case}")).expect("runs");
    println!("{report}");
    assert_eq!(report.failed(), 0, "see the lines that begin with FAIL");
    assert!(report.passed() > 40, "{report}");
    assert_eq!(fabric.alive(), (0, 0));
}
