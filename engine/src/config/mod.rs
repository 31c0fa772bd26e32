//! Core maps: from TOML text to a plan that has been checked against this host.
//!
//! ```text
//!  path ─► read.rs ─► text ─► parse.rs ─► Config ─► check.rs ─► Plan
//!          bounded            keys, types  faults     ▲          every number fits every
//!          regular files      own limits   kept       │          device that it is used on
//!          UTF-8              lines kept             Host (host.rs): cores, devices, huge pages
//!                             (value.rs, keys.rs)
//! ```
//! A file that is TOML makes a [`Config`], whatever is wrong with its keys and values;
//! [`Config::check`] then reports every fault at once, each with file, line, value seen and value
//! allowed. Only a [`Plan`] starts an engine.
//!
//! ```
//! use spinwire::config::{Config, Host};
//! use spinwire::types::CoreId;
//!
//! let text = "[[worker]]\ncore = 4\n[queues]\nsend_dept = 64\n";
//! let host = Host::from_parts(CoreId::new(0), Vec::new(), 0, Default::default());
//! let errors = Config::from_text(text, "map.toml")?.check(&host).unwrap_err();
//! let lines: Vec<_> = errors.faults().iter().map(|fault| fault.line).collect();
//! assert_eq!(lines, [Some(1), Some(2), Some(4)]); // no device, no core 4, no such key
//! # Ok::<(), spinwire::config::ConfigError>(())
//! ```
//! Imports limits, types and memory's policy. Imported by control and apps. Cold: allocates and
//! reads files, never from a worker.

mod check;
mod error;
mod host;
mod keys;
mod parse;
mod plan;
mod read;
mod value;

pub use error::{ConfigError, ConfigErrors, Fault};
pub use host::Host;
pub use parse::Config;
pub use plan::{ConnectionPlan, ControlPlan, LanePlan, Plan, PoolPlan, ShmPlan, WorkerPlan};

/// Bytes of a core map.
pub const CONFIG_BYTES_MAX: usize = 1 << 20;
/// Faults kept of one core map; the rest is counted.
pub const FAULTS_MAX: usize = 64;
/// Characters of a value that a fault repeats.
const SEEN_CHARS_MAX: usize = 60;
/// Milliseconds of a timeout: ten minutes.
const TIMEOUT_MS_MAX: u32 = 600_000;
/// Milliseconds to resolve an address and a route where the core map names none.
const RESOLVE_TIMEOUT_MS_DEFAULT: u32 = 2000;
/// Milliseconds from the request to the established connection where the core map names none.
const CONNECT_TIMEOUT_MS_DEFAULT: u32 = 5000;
/// Milliseconds that a closing connection waits for its completions where the core map names none.
const DRAIN_DEADLINE_MS_DEFAULT: u32 = 1000;
/// `retry_count` and `rnr_retry_count` have 3 bits (IBTA 9.9.2.1); 7 of the latter is for ever.
const RETRY_COUNT_MAX: u8 = 7;
/// Bytes of the directory of `shm://` names: `PATH_MAX` without its end.
const SHM_DIR_BYTES_MAX: usize = 4095;
/// Users that a core map may name for shared memory.
const SHM_UIDS_MAX: usize = 64;

/// Which end of a connection a process is; it decides the cores that [`Config::default_for`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Control on the first allowed core, the worker on the last.
    Server,
    /// Control on the last allowed core, the worker on the first.
    Client,
}
