//! Memory that a NIC reads and writes: where it comes from, and who holds which piece of it.
//!
//! ```text
//!  tiers ─► Region (one mapping, huge pages if it can) ─► Registrar (a fabric) ─► lkey, rkey
//!              └─► Pool (fixed slots, one thread) ─► Buffer (one slot, moves, returns on drop)
//! ```
//! A pool may grow: [`Growth`] makes further regions, each in line with the first. A [`Region`] is mapped once at set-up and unmapped when the last of its registrations, pools and
//! buffers is gone. Nothing here allocates after that, and nothing here is shared between workers.
//! Imports types, limits. Imported by fabric, worker, config and control.

mod buffer;
mod copy;
mod exposed;
mod growth;
mod hugepages;
mod mapping;
mod payload;
mod pool;
mod region;
mod registrar;
mod reservation;
mod tiers;

pub use buffer::{Buffer, TooLong};
pub(crate) use copy::{ask_to_read, ask_to_write, copy_arrived, copy_message, copy_shared};
pub use exposed::{ExposeError, ExposedMemory, Exposures, OutOfRange};
pub use growth::Growth;
pub use hugepages::Hugepages;
pub use payload::{MemorySpan, Parts, Payload, Piece, Place, Postable};
pub use pool::{Exhausted, Pool, PoolError};
pub use region::{Region, RegionError};
pub use registrar::{Registrar, Registration};
pub use tiers::{HugepagePolicy, Tier};

#[cfg(all(test, not(loom)))]
pub(crate) use exposed::span_for_tests;
#[cfg(test)]
mod pool_tests;
