//! spinwire: a busy-polling, run-to-completion RDMA data plane.
//!
//! Every pinned core owns one worker: a completion queue per device, the queue pairs on it and a
//! hugepage pool. A turn polls, serves, posts; it takes no lock, allocates nothing and makes no
//! system call of its own. One control core handles connections and moves them to the workers
//! through SPSC rings.
//!
//! ```text
//! types, sys → ring, metrics → memory → fabric → worker → config, control → kit, engine
//! ```
//! Imports point to the left only.

pub mod config;
pub mod control;
mod engine;
pub mod fabric;
pub mod flow;
pub mod framed;
pub mod kit;
pub mod limits;
pub mod memory;
pub mod metrics;
pub mod ring;
mod sync;
pub mod sys;
pub mod types;
pub mod wire;
pub mod worker;

pub use engine::{
    Engine, EngineError, GroupError, GroupSpec, Leftovers, OpenGroup, Stop, WorkerGrant, WorkerInfo,
};
