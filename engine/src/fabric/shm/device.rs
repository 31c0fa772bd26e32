//! The one device of shared memory: its limits, and the registration of memory.
//!
//! Imports registry. Imported by mod.

use super::DEVICE;
use super::registry::{Registry, ShmRegistration};
use crate::fabric::soft;
use crate::memory::{Region, Registrar};
use crate::types::{Access, DeviceLimits};
use std::io;
use std::sync::Arc;

/// The device of a [`Shm`](super::Shm), with its protection domain.
#[derive(Clone, Debug)]
pub struct ShmDevice {
    pub(super) limits: Arc<DeviceLimits>,
    pub(super) registry: Arc<Registry>,
}

impl Registrar for ShmDevice {
    type Registration = ShmRegistration;

    fn register(&self, region: Arc<Region>, access: Access) -> io::Result<ShmRegistration> {
        soft::check_access(access)?;
        if access.is_remote() && region.memfd().is_none() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "memory that peers over shm:// may use must be a memfd of its own: Region::shared",
            ));
        }
        self.registry.register(region, access)
    }

    fn needs_memfd(&self) -> bool {
        true
    }
}

/// Limits of the device, the same on every host.
#[must_use]
pub fn limits() -> DeviceLimits {
    soft::limits(DEVICE)
}
