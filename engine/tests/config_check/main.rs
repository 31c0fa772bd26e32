//! Core maps against hosts: every fault names file, line, value seen and value allowed, and what a map does
//! not say has a default that fits.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../config_common/mod.rs"]
mod config_common;
mod defaults;
mod file;
mod host;
mod shared;

use config_common::{host, plan_of, rxe};
use spinwire::config::Host;

/// A map with nothing wrong; 4 lines, so that what a test adds begins in line 5.
const GOOD: &str = "[control]\ncore = 0\n[[worker]]\ncore = 1\n";

fn two_core() -> Host {
    host(2, vec![rxe()], 0)
}

/// `text` has exactly this one fault, with all of `parts` in its message.
#[track_caller]
fn one_fault_on(host: &Host, text: &str, start: &str, parts: &[&str]) {
    let shown = plan_of(text, host).unwrap_err();
    assert_eq!(shown.lines().count(), 1, "one mistake, one fault:\n{shown}");
    assert!(
        shown.starts_with(start),
        "{shown}\nshould start with\n{start}"
    );
    for part in parts {
        assert!(shown.contains(part), "{shown}\nshould contain\n{part}");
    }
}

/// [`GOOD`] and `more` have exactly this one fault on the two-core host.
#[track_caller]
fn one_fault(more: &str, start: &str, parts: &[&str]) {
    one_fault_on(&two_core(), &format!("{GOOD}{more}"), start, parts);
}
