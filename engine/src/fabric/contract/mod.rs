//! The contract of fabrics, as cases that every fabric must pass.
//!
//! ```text
//!  run ─► Bench: the fabric, its events ─┬─► Side: lane, pool, registration   (one a device and end)
//!   │                                    ├─► Conn: id, both halves of the QP, what is posted
//!   │                                    └─► Memory: for one-sided use, and what must be in it
//!   │
//!   └─► Case… ─► messages  completions  gather  immediate  shared     what SENDs and receives do
//!                onesided  atomics  windows  denied  missing          what peers do to memory
//!                handshake  endings  errors  misuse  sleeping         how connections come and go
//! ```
//! It drives [`Fabric`] and [`Lane`](super::Lane) directly, on one thread, and is both ends of every
//! connection. No wait is without a bound, and an error says what was awaited. What a case made is
//! destroyed after it, passed or failed, in the order that [`Fabric`] asks for; a case also fails if
//! the device then keeps a work request, or an event names an id that is gone.
//!
//! Some promises are checked in every case: completions come in the order of the posts, once each, on
//! the QP that they belong to, with the opcode of what was posted; a message brings a note only where
//! one was sent, and nothing is written behind it; memory sent inline is overwritten right after the
//! post. What a device says it cannot do is skipped with the reason ([`Need`]).
//!
//! Imports memory, types, limits and the fabric traits. Imported by tests and by applications that
//! check a device.
//!
//! ```no_run
//! # #[cfg(feature = "verbs")] {
//! use spinwire::fabric::{contract, verbs::Verbs, Endpoint};
//! let at = Endpoint::Rdma("10.0.0.1:0".parse().expect("an address"));
//! let mut fabric = Verbs::open().expect("a device");
//! let target = contract::Target { at, deviations: &[] };
//! let report = contract::run(&mut fabric, &target, |case| println!("{case}")).expect("runs");
//! assert_eq!(report.failed(), 0);
//! # }
//! ```

/// Ends the case with a failure unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($why:tt)+) => {
        if !$holds {
            return Err($crate::fabric::contract::Failure::new(format!($($why)+)));
        }
    };
}

mod atomics;
mod bench;
mod clean;
mod completions;
mod connection;
mod denied;
mod deviations;
mod endings;
mod errors;
mod gather;
mod handshake;
mod immediate;
mod memory;
mod message;
mod messages;
mod missing;
mod misuse;
mod needs;
mod onesided;
mod report;
mod shared;
mod side;
mod sleeping;
mod traffic;
mod windows;

pub use deviations::{Deviation, RXE, SIW};
pub use needs::Need;
pub use report::{CaseReport, Failure, Outcome, Report};

use super::{Endpoint, Fabric};
use bench::Bench;
use std::time::Instant;

type Verdict = Result<(), Failure>;
type Check<F> = for<'a> fn(&mut Bench<'a, F>) -> Verdict;

/// One case: a promise of the contract and how it is checked.
pub struct Case<F: Fabric> {
    /// Name, for reports and deviations.
    pub name: &'static str,
    /// What a fabric promises.
    pub promise: &'static str,
    /// What the case needs.
    pub needs: &'static [Need],
    check: Check<F>,
}

impl<F: Fabric> Case<F> {
    const fn new(name: &'static str, promise: &'static str, check: Check<F>) -> Self {
        Self {
            name,
            promise,
            needs: &[],
            check,
        }
    }

    const fn needs(mut self, needs: &'static [Need]) -> Self {
        self.needs = needs;
        self
    }
}

impl<F: Fabric> std::fmt::Debug for Case<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case")
            .field("name", &self.name)
            .field("promise", &self.promise)
            .field("needs", &self.needs)
            .finish_non_exhaustive()
    }
}

/// Where and how the suite runs.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where the passive end listens, reachable from this process. Port 0 gives each case a port of
    /// its own, and so do names. The devices are those that own the address and the route to it.
    pub at: Endpoint,
    /// What this device is known not to do. Its cases are skipped and reported with the reason.
    pub deviations: &'static [Deviation],
}

/// Every case, in the order in which they run.
#[must_use]
pub fn cases<F: Fabric>() -> Vec<Case<F>> {
    let mut all = Vec::new();
    all.extend(handshake::cases());
    all.extend(messages::cases());
    all.extend(completions::cases());
    all.extend(gather::cases());
    all.extend(immediate::cases());
    all.extend(shared::cases());
    all.extend(onesided::cases());
    all.extend(atomics::cases());
    all.extend(denied::cases());
    all.extend(windows::cases());
    all.extend(missing::cases());
    all.extend(sleeping::cases());
    all.extend(errors::cases());
    all.extend(misuse::cases());
    all.extend(endings::cases());
    all
}

/// Runs every case on `target`, and shows each result as it comes.
///
/// # Errors
/// The target cannot be reached from here, or a deviation names no case.
pub fn run<F: Fabric>(
    fabric: &mut F,
    target: &Target,
    mut each: impl FnMut(&CaseReport),
) -> Result<Report, Failure> {
    let cases = cases::<F>();
    for deviation in target.deviations {
        ensure!(
            cases.iter().any(|c| c.name == deviation.case),
            "the deviation {:?} names no case",
            deviation.case
        );
    }
    let limits = Bench::new(fabric, target.at.clone()).finish(Bench::probe)?;
    let mut report = Report {
        device: limits.name.clone(),
        transport: limits.transport,
        cases: Vec::with_capacity(cases.len()),
    };
    for case in &cases {
        let known = target
            .deviations
            .iter()
            .find(|d| d.case == case.name)
            .map(|d| d.reason);
        let began = Instant::now();
        let missing = case.needs.iter().find_map(|need| need.missing(&limits));
        let outcome = match missing.or(known) {
            Some(reason) => Outcome::Skipped(reason.into()),
            None => Bench::new(fabric, target.at.clone())
                .finish(case.check)
                .map_or_else(
                    |failure| Outcome::Failed(failure.to_string()),
                    |()| Outcome::Passed,
                ),
        };
        let result = CaseReport {
            name: case.name,
            promise: case.promise,
            outcome,
            took: began.elapsed(),
        };
        each(&result);
        report.cases.push(result);
    }
    Ok(report)
}
