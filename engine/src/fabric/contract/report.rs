//! Results, for people and for tests.

use crate::fabric::FabricError;
use crate::memory::{Exhausted, PoolError, RegionError, TooLong};
use crate::types::Transport;
use std::fmt;
use std::io;
use std::time::Duration;

/// What was expected and what was seen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failure(String);

impl Failure {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// Names what was being done.
    pub(super) fn during(self, what: &str) -> Self {
        Self(format!("{what}: {}", self.0))
    }
}

macro_rules! failure_from {
    ($($error:ty),+) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self(error.to_string())
            }
        })+
    };
}
failure_from!(
    FabricError,
    RegionError,
    PoolError,
    Exhausted,
    TooLong,
    io::Error
);

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The promise holds.
    Passed,
    /// It does not; what was expected and what was seen.
    Failed(String),
    /// The case was not run; why.
    Skipped(String),
}

/// The result of one case. It prints as one line.
#[derive(Clone, Debug)]
pub struct CaseReport {
    /// Name of the case.
    pub name: &'static str,
    /// What a fabric promises.
    pub promise: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// How long it took, with making and destroying all that it used.
    pub took: Duration,
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.took.as_millis();
        match &self.outcome {
            Outcome::Passed => write!(f, "pass  {:<34} {ms:>5} ms", self.name),
            Outcome::Failed(why) => {
                write!(
                    f,
                    "FAIL  {:<34} {ms:>5} ms  {} - {why}",
                    self.name, self.promise
                )
            }
            Outcome::Skipped(why) => write!(f, "skip  {:<34}           {why}", self.name),
        }
    }
}

/// Results of all cases.
#[derive(Clone, Debug)]
pub struct Report {
    /// Device of the active end.
    pub device: String,
    /// Its transport.
    pub transport: Transport,
    /// One a case, in their order.
    pub cases: Vec<CaseReport>,
}

impl Report {
    fn count(&self, which: impl Fn(&Outcome) -> bool) -> usize {
        self.cases.iter().filter(|c| which(&c.outcome)).count()
    }

    /// Cases that passed.
    #[must_use]
    pub fn passed(&self) -> usize {
        self.count(|o| matches!(o, Outcome::Passed))
    }

    /// Cases that failed.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.count(|o| matches!(o, Outcome::Failed(_)))
    }

    /// Cases that were not run.
    #[must_use]
    pub fn skipped(&self) -> usize {
        self.count(|o| matches!(o, Outcome::Skipped(_)))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({:?}): {} passed, {} failed, {} skipped",
            self.device,
            self.transport,
            self.passed(),
            self.failed(),
            self.skipped()
        )
    }
}
