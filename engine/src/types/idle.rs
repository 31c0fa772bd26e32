//! What a worker does with a turn that found nothing.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What a worker does with a turn that found nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdlePolicy {
    /// Poll again at once: least latency, one core fully busy, no system call.
    #[default]
    Spin,
    /// `sched_yield` after an idle turn: for cores that are shared.
    Yield,
    /// Arm the CQ and sleep on its completion channel: least power, interrupt latency.
    Event,
}

impl fmt::Display for IdlePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Spin => "spin",
            Self::Yield => "yield",
            Self::Event => "event",
        })
    }
}
