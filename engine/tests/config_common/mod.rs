//! Hosts and devices for the tests of core maps.

use spinwire::config::{Config, Host, Plan};
use spinwire::types::{Abilities, CoreId, DeviceLimits, Transport};
use std::collections::BTreeMap;

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn device(name: &str, qp_depth_max: u32, cq_depth_max: u32) -> DeviceLimits {
    DeviceLimits {
        name: name.to_owned(),
        transport: Transport::Ib,
        active: true,
        numa_node: None,
        qp_max: 65_536,
        qp_depth_max,
        sge_max: 32,
        cq_max: 65_536,
        cq_depth_max,
        mr_bytes_max: u64::MAX,
        rd_atomic_initiator_max: 128,
        rd_atomic_responder_max: 128,
        message_bytes_max: 8 << 20,
        shared_recv_depth_max: 32_767,
        abilities: Abilities::LEAST,
    }
}

/// Soft-RoCE as the kernel has it.
pub(crate) fn rxe() -> DeviceLimits {
    device("rxe0", 1_048_576, 32_767)
}

/// Software iWARP as the kernel has it.
pub(crate) fn siw() -> DeviceLimits {
    DeviceLimits {
        transport: Transport::Iwarp,
        sge_max: 6,
        ..device("siw0", 32_768, 3_276_800)
    }
}

/// Shared memory, as every host has it.
pub(crate) fn shm() -> DeviceLimits {
    DeviceLimits {
        transport: Transport::Shm,
        sge_max: 4,
        ..device("shm0", 16_384, 1 << 20)
    }
}

/// Cores 0 to `cores - 1`.
pub(crate) fn host(cores: usize, devices: Vec<DeviceLimits>, free_hugepages_bytes: u64) -> Host {
    Host::from_parts(
        (0..cores).filter_map(CoreId::new),
        devices,
        free_hugepages_bytes,
        BTreeMap::new(),
    )
}

/// The plan, or the errors as the user reads them.
pub(crate) fn plan_of(text: &str, host: &Host) -> Result<Plan, String> {
    Config::from_text(text, "map.toml")
        .map_err(|error| error.to_string())?
        .check(host)
        .map_err(|errors| errors.to_string())
}
