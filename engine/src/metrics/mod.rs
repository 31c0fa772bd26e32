//! What a worker counts while it works.
//!
//! ```text
//!  worker ── CounterWriter ──► [ WorkerCounters, lines of their own ] ◄── CounterReader ── control
//!              add: load, store                                            snapshot, since
//! ```
//! A counter is an atomic with one writer, so adding is a plain load and store: no locked
//! instruction, and the reader's line traffic only when it reads. Counters are relaxed; a snapshot may
//! see one counter newer than another.
//! Imports nothing of ours. Imported by worker, control and apps.

mod counters;

pub use counters::{
    Counter, CounterReader, CounterSnapshot, CounterWriter, WorkerCounters, counters,
};
