//! How two threads hand things to each other without a lock.
//!
//! ```text
//!   producer ── spsc::Producer ──► [ ring of slots ] ──► spsc::Consumer ── consumer
//!       └────── sleep::Waker ────► [ sleeping flag ] ◄── sleep::Sleeper ──────┘
//! ```
//! [`spsc`] moves values. [`sleep`] decides, in event mode, whether the other side must be woken;
//! a worker that spins needs only the first. Neither makes a system call.
//! Imports sync. Imported by worker, fabric and control.

pub mod sleep;
pub mod spsc;

#[cfg(all(loom, test))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod spsc_tests;
