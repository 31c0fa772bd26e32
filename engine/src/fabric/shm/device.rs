//! The one device of shared memory: its limits, and the registration of memory.
//!
//! Imports registry. Imported by mod, send.

use super::DEVICE;
use super::registry::{Registry, ShmRegistration};
use crate::limits::{QUEUE_DEPTH_MAX, SGE_MAX};
use crate::memory::{Region, Registrar};
use crate::types::{Abilities, Access, DeviceLimits, Transport};
use std::io;
use std::sync::Arc;

/// Bytes of a message at most.
pub(super) const MESSAGE_BYTES_MAX: u32 = 1 << 30;
/// READs and atomics that a QP may have outstanding.
const FETCH_DEPTH_MAX: u32 = 128;
/// Entries of a CQ.
pub(super) const CQ_DEPTH_MAX: u32 = 1 << 20;
/// QPs: each takes a handful of descriptors and an inbox, so a host has room for fewer.
const QPS_MAX: u32 = 1 << 16;

/// The device of a [`Shm`](super::Shm), with its protection domain.
#[derive(Clone, Debug)]
pub struct ShmDevice {
    pub(super) limits: Arc<DeviceLimits>,
    pub(super) registry: Arc<Registry>,
}

impl Registrar for ShmDevice {
    type Registration = ShmRegistration;

    fn register(&self, region: Arc<Region>, access: Access) -> io::Result<ShmRegistration> {
        let written = [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];
        let written = written.iter().any(|right| access.contains(*right));
        if written && !access.contains(Access::LOCAL_WRITE) {
            // As ibv_reg_mr(3) says.
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
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
    let sges = u8::try_from(SGE_MAX).unwrap_or(u8::MAX);
    DeviceLimits {
        name: DEVICE.into(),
        transport: Transport::Shm,
        active: true,
        numa_node: None,
        qp_max: QPS_MAX,
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
