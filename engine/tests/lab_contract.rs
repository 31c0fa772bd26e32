//! The contract of fabrics on the lab's devices; run by `scripts/test --lab`.
//!
//! `own_`: topology A, a device at its own address. `wire_`: topology B, two devices and a wire.
#![cfg(feature = "verbs")]

use spinwire::fabric::contract::{self, Deviation, Target};
use spinwire::fabric::{Endpoint, verbs::Verbs};
use spinwire::types::Transport;
use std::process::Command;

fn check(address: &str, device: &str, transport: Transport, deviations: &'static [Deviation]) {
    let mut fabric = Verbs::open().expect("the lab has devices");
    let at = Endpoint::Rdma(format!("{address}:0").parse().expect("an address"));
    let target = Target { at, deviations };
    let report = contract::run(&mut fabric, &target, |case| println!("{case}")).expect("runs");
    println!("{report}");
    assert_eq!(
        (report.device.as_str(), report.transport),
        (device, transport)
    );
    assert_eq!(report.failed(), 0, "see the lines that begin with FAIL");
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_contract_rxe() {
    check("10.9.0.1", "rxe0", Transport::Ib, contract::RXE);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_contract_siw() {
    check("10.9.1.1", "siw0", Transport::Iwarp, contract::SIW);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn wire_contract_rxe() {
    // The client names no source. Without this rule it would be given the listener's own address,
    // and the packets would not leave rxe1.
    let _rule = Rule::add("pref 9 iif lo to 10.9.0.2 lookup 101");
    let before = packets();
    check("10.9.0.2", "rxe0", Transport::Ib, contract::RXE);
    let crossed = packets() - before;
    assert!(crossed > 1000, "only {crossed} packets crossed the wire");
}

/// A rule of routing, until dropped.
struct Rule(&'static str);

impl Rule {
    fn add(rule: &'static str) -> Self {
        assert!(ip("add", rule), "ip rule add {rule}");
        Self(rule)
    }
}

impl Drop for Rule {
    fn drop(&mut self) {
        ip("del", self.0);
    }
}

fn ip(action: &str, rule: &str) -> bool {
    let ip = Command::new("ip")
        .args(["rule", action])
        .args(rule.split(' '))
        .status();
    ip.is_ok_and(|status| status.success())
}

/// Packets that the wire carried from v0.
fn packets() -> u64 {
    let path = "/sys/class/net/v0/statistics/tx_packets";
    let text = std::fs::read_to_string(path).expect("the lab has v0");
    text.trim().parse().expect("a number")
}
