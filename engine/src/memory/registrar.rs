//! What a fabric does with a region before a NIC may touch it.
//!
//! ```text
//!  Arc<Region> ── Registrar::register(access) ─► Registration { lkey, rkey, the Arc }
//! ```
//! The traits are here so that pools and workers can speak of keys without naming a fabric.
//! Imports types. Implemented by fabric; imported by worker and control.

use super::Region;
use crate::types::{Access, Lkey, Rkey};
use std::any::Any;
use std::io;
use std::sync::Arc;

/// One device (or its like) that can be told of memory.
pub trait Registrar {
    /// What it gives for it.
    type Registration: Registration;

    /// Tells the device of all of `region`.
    ///
    /// # Errors
    ///
    /// As the device says; for verbs `ENOMEM` mostly means that `ulimit -l` is too low.
    fn register(&self, region: Arc<Region>, access: Access) -> io::Result<Self::Registration>;

    /// Whether memory that peers are given access to must be of [`Region::shared`], because they map it
    /// themselves. No NIC needs that: it reaches any memory.
    fn needs_memfd(&self) -> bool {
        false
    }
}

/// A region that a device knows. It holds the `Arc<Region>`, and gives it up only after the device
/// has forgotten the region, so the memory outlives every access of the device.
pub trait Registration: Any + Send {
    /// Names the region in our own work requests.
    fn lkey(&self) -> Lkey;
    /// Names the region in a peer's work requests.
    fn rkey(&self) -> Rkey;
}
