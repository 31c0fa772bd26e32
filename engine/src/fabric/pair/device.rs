//! The one device of a pair fabric: its limits, and the registration of memory in its domain.
//!
//! Imports net and regions. Imported by mod.

use super::execute::MESSAGE_BYTES_MAX;
use super::net::{DEVICE, Hub};
use super::regions::{self, PairRegistration};
use crate::limits::{QUEUE_DEPTH_MAX, SGE_MAX};
use crate::memory::{Region, Registrar};
use crate::types::{Abilities, Access, DeviceLimits, Transport};
use std::io;
use std::sync::Arc;

/// READs and atomics that a QP may have outstanding.
const FETCH_DEPTH_MAX: u32 = 128;
/// Entries of a CQ.
pub(super) const CQ_DEPTH_MAX: u32 = 1 << 20;

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
            limits: Arc::new(limits()),
            hub: hub.clone(),
        }
    }
}

impl Registrar for PairDevice {
    type Registration = PairRegistration;

    fn register(&self, region: Arc<Region>, access: Access) -> io::Result<PairRegistration> {
        let written = [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];
        let written = written.iter().any(|right| access.contains(*right));
        if written && !access.contains(Access::LOCAL_WRITE) {
            // As ibv_reg_mr(3) says.
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        regions::register(&self.hub, self.domain, region, access)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
    }
}

fn limits() -> DeviceLimits {
    let sges = u8::try_from(SGE_MAX).unwrap_or(u8::MAX);
    DeviceLimits {
        name: DEVICE.into(),
        transport: Transport::Shm,
        active: true,
        numa_node: None,
        qp_max: 1 << 16,
        qp_depth_max: QUEUE_DEPTH_MAX,
        sge_max: u32::from(sges),
        cq_max: 1 << 16,
        cq_depth_max: CQ_DEPTH_MAX,
        mr_bytes_max: u64::MAX,
        rd_atomic_initiator_max: FETCH_DEPTH_MAX,
        rd_atomic_responder_max: FETCH_DEPTH_MAX,
        message_bytes_max: MESSAGE_BYTES_MAX,
        shared_recv_depth_max: QUEUE_DEPTH_MAX,
        abilities: Abilities {
            immediate: true,
            send_invalidate: true,
            atomics: true,
            windows: false,
            sges,
            read_sges: sges,
            read_sink_is_exposed: false,
        },
    }
}
