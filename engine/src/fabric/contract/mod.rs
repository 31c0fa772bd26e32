//! The contract of fabrics, as cases that every fabric must pass.
//!
//! ```text
//!  run ─► Bench: the fabric, its events ─┬─► Side: lane, pool, registration   (one a device and end)
//!   │                                    └─► Conn: id, both halves of the QP, what is posted
//!   └─► Case… ─► messages  completions  handshake  endings  errors  misuse  sleeping
//! ```
//! It drives [`Fabric`] and [`Lane`](super::Lane) directly, on one thread, and is both ends of every
//! connection. No wait is without a bound, and an error says what was awaited. What a case made is
//! destroyed after it, passed or failed, in the order that [`Fabric`] asks for; a case also fails if
//! the device then keeps a work request, or an event names an id that is gone.
//!
//! Some promises are checked in every case: completions come in the order of the posts, once each, on
//! the QP that they belong to, with the opcode of what was posted; memory sent inline is overwritten
//! right after the post.
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

mod bench;
mod clean;
mod completions;
mod connection;
mod deviations;
mod endings;
mod errors;
mod handshake;
mod messages;
mod misuse;
mod report;
mod side;
mod sleeping;
mod traffic;

pub use deviations::{Deviation, RXE, SIW};
pub use report::{CaseReport, Failure, Outcome, Report};

use super::{Endpoint, Fabric};
use crate::types::Transport;
use bench::Bench;
use std::time::Instant;

/// What a case needs of the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing beyond the traits.
    Nothing,
    /// A message without a receive waits for one (RNR), and a send is done only when the peer's
    /// device has it; iWARP ends the connection instead.
    Rnr,
    /// Endpoints with ports.
    Ports,
    /// Failed completions whose status the transport's standard gives, as IB's does.
    Names,
}

impl Need {
    /// Why a transport does not have it.
    fn missing(self, transport: Transport) -> Option<&'static str> {
        match (self, transport) {
            (Self::Rnr, Transport::Iwarp) => {
                Some("iWARP ends a connection whose peer has no receive posted")
            }
            (Self::Ports, Transport::Shm) => Some("names of shared memory have no port"),
            (Self::Names, Transport::Iwarp) => Some("iWARP names few errors at either end"),
            (Self::Nothing | Self::Rnr | Self::Ports | Self::Names, _) => None,
        }
    }
}

type Verdict = Result<(), Failure>;
type Check<F> = for<'a> fn(&mut Bench<'a, F>) -> Verdict;

/// One case: a promise of the contract and how it is checked.
pub struct Case<F: Fabric> {
    /// Name, for reports and deviations.
    pub name: &'static str,
    /// What a fabric promises.
    pub promise: &'static str,
    /// What the case needs.
    pub needs: Need,
    check: Check<F>,
}

impl<F: Fabric> Case<F> {
    const fn new(name: &'static str, promise: &'static str, check: Check<F>) -> Self {
        Self {
            name,
            promise,
            needs: Need::Nothing,
            check,
        }
    }

    const fn needs(mut self, needs: Need) -> Self {
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
    let (device, transport) = Bench::new(fabric, target.at.clone()).finish(Bench::probe)?;
    let mut report = Report {
        device,
        transport,
        cases: Vec::with_capacity(cases.len()),
    };
    for case in &cases {
        let known = target
            .deviations
            .iter()
            .find(|d| d.case == case.name)
            .map(|d| d.reason);
        let began = Instant::now();
        let outcome = match case.needs.missing(transport).or(known) {
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
