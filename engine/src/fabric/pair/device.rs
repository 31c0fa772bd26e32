//! The one device of a pair fabric: its limits, and the registration of memory in its domain.
//!
//! Imports net and regions. Imported by mod.

use super::net::{DEVICE, Hub};
use super::regions::{self, PairRegistration};
use crate::fabric::soft;
use crate::memory::{Region, Registrar};
use crate::types::{Access, DeviceLimits};
use std::io;
use std::sync::Arc;

/// The device of a [`Pair`](super::Pair), with its protection domain.
#[derive(Clone, Debug)]
pub struct PairDevice {
    pub(super) domain: u64,
    pub(super) limits: Arc<DeviceLimits>,
    hub: Hub,
}

impl PairDevice {
    pub(super) fn new(hub: &Hub, domain: u64) -> Self {
        Self {
            domain,
            limits: Arc::new(soft::limits(DEVICE)),
            hub: hub.clone(),
        }
    }
}

impl Registrar for PairDevice {
    type Registration = PairRegistration;

    fn register(&self, region: Arc<Region>, access: Access) -> io::Result<PairRegistration> {
        soft::check_access(access)?;
        regions::register(&self.hub, self.domain, region, access)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
    }
}
