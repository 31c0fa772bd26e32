//! What the engine starts from: numbers that have been checked, nothing left to look up.
//!
//! Imports types and the memory policy. Imported by everyone above.

use crate::memory::HugepagePolicy;
use crate::types::{CoreId, IdlePolicy};
use serde::{Serialize, Serializer};
use std::path::PathBuf;
use std::time::Duration;

/// A checked core map. One that came from [`Config::check`](super::Config::check) proves: cores
/// exist and none is used twice, depths are within every device's limits, and the completions of
/// all connections fit the CQ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The control core.
    pub control: ControlPlan,
    /// The workers, in the order of the file; at least one.
    pub workers: Vec<WorkerPlan>,
    /// The pool that each worker has.
    pub pool: PoolPlan,
    /// Timeouts and retries of each connection.
    pub connection: ConnectionPlan,
    /// Who meets over shared memory, and where. Of use only with lanes on `shm0`.
    pub shm: ShmPlan,
}

/// Where connections are managed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ControlPlan {
    /// The core it is pinned to; `None` floats over the process's cores.
    #[serde(serialize_with = "core_number")]
    pub core: Option<CoreId>,
}

/// One worker: a core and its lanes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkerPlan {
    /// The core it is pinned to; `None` floats (only plans that were built by hand).
    #[serde(serialize_with = "core_number")]
    pub core: Option<CoreId>,
    /// What it does with an empty turn.
    pub idle: IdlePolicy,
    /// One per device; at least one.
    pub lanes: Vec<LanePlan>,
}

/// One device of one worker: a CQ and the QPs on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LanePlan {
    /// The device's name, such as `rxe0`.
    pub device: String,
    /// Entries of the CQ; at least `connections_max * (send_depth + recv_depth)`, or with a shared receive
    /// queue `connections_max * send_depth + shared_recv_depth`.
    pub cq_depth: u32,
    /// Work requests of each send queue.
    pub send_depth: u32,
    /// Work requests of each receive queue; of a shared one each connection's share.
    pub recv_depth: u32,
    /// Work requests of the receive queue that the lane's connections share; 0 where each has its own.
    pub shared_recv_depth: u32,
    /// Inline bytes to ask for; the device may grant fewer.
    pub inline_bytes: u32,
    /// Connections that the lane serves at once.
    pub connections_max: u32,
}

/// The memory of each worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolPlan {
    /// Slots; more than any lane's `recv_depth`, and than all shared receive queues of a worker.
    pub slots: u32,
    /// Slots that the pool may grow to; `slots` where it does not grow.
    pub slots_max: u32,
    /// Bytes of a slot; a multiple of a cache line.
    pub slot_bytes: u32,
    /// Whether the pool lies in huge pages.
    pub hugepages: HugepagePolicy,
}

impl PoolPlan {
    /// Bytes of the pool as it starts.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.slots) * u64::from(self.slot_bytes)
    }
}

/// Timeouts and retries of each connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConnectionPlan {
    /// To resolve an address, and again to resolve a route.
    #[serde(rename = "resolve_timeout_ms", serialize_with = "millis")]
    pub resolve_timeout: Duration,
    /// From the request to the established connection.
    #[serde(rename = "connect_timeout_ms", serialize_with = "millis")]
    pub connect_timeout: Duration,
    /// For the completions of a closing connection.
    #[serde(rename = "drain_deadline_ms", serialize_with = "millis")]
    pub drain_deadline: Duration,
    /// Retries of a request that nobody acknowledged; 0 to 7.
    pub retry_count: u8,
    /// Retries of a send that found no receive posted; 0 to 7, and 7 is for ever.
    pub rnr_retry_count: u8,
}

/// Who meets over shared memory, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ShmPlan {
    /// The directory that has the names of `shm://NAME`; an absolute path. `None` for that of
    /// `SPINWIRE_SHM_DIR`, or the usual ones.
    pub dir: Option<PathBuf>,
    /// Users whose processes this one connects with, as either side. `None` for its own user and root.
    pub uids: Option<Vec<u32>>,
}

#[expect(clippy::ref_option, reason = "serde hands the field over by reference")]
fn core_number<S: Serializer>(core: &Option<CoreId>, to: S) -> Result<S::Ok, S::Error> {
    core.map(CoreId::number).serialize(to)
}

fn millis<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    u64::try_from(time.as_millis())
        .unwrap_or(u64::MAX)
        .serialize(to)
}
