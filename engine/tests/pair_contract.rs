//! The contract of fabrics on the fabric without a device: every case, and no deviations.

use spinwire::fabric::Endpoint;
use spinwire::fabric::contract::{self, Target};
use spinwire::fabric::pair::{Alive, Hub, Pair};

#[test]
fn contract_pair() {
    let hub = Hub::new();
    let mut fabric = Pair::open(&hub).expect("descriptors");
    let at = Endpoint::Shm("contract".into());
    let target = Target {
        at,
        deviations: &[],
    };
    let report = contract::run(&mut fabric, &target, |case| println!("{case}")).expect("runs");
    println!("{report}");
    assert_eq!(report.failed(), 0, "see the lines that begin with FAIL");
    assert!(report.passed() > 40, "{report}");
    assert_eq!(hub.alive(), Alive::default());
}
