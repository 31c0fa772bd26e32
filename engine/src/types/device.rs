//! What a device says it can do, as far as plans and connections depend on it.

use serde::Serialize;

/// Wire protocol of a device; it decides how a QP is moved through its states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// InfiniBand or RoCE: the QP is ours to move.
    Ib,
    /// iWARP: rdma_cm moves the QP, the connecting side speaks first, no RNR.
    Iwarp,
    /// Shared memory of one host.
    Shm,
}

/// What a device can do beyond SEND, WRITE and READ of one piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Abilities {
    /// 32 bits beside a SEND or a WRITE.
    pub immediate: bool,
    /// SEND that takes a key of the peer's out of use.
    pub send_invalidate: bool,
    /// CAS and FAA.
    pub atomics: bool,
    /// Type-2 memory windows.
    pub windows: bool,
    /// Pieces that a SEND or WRITE may gather from.
    pub sges: u8,
    /// Pieces that a READ may scatter to.
    pub read_sges: u8,
    /// A READ's sink must allow remote writes (iWARP, whose peer answers with a write).
    pub read_sink_is_exposed: bool,
}

impl Abilities {
    /// What every device can do.
    pub const LEAST: Self = Self {
        immediate: false,
        send_invalidate: false,
        atomics: false,
        windows: false,
        sges: 1,
        read_sges: 1,
        read_sink_is_exposed: false,
    };
}

/// Limits of one device (`ibv_query_device(3)`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceLimits {
    /// The name that `ibv_devices` and core maps use, such as `rxe0`.
    pub name: String,
    /// Wire protocol.
    pub transport: Transport,
    /// A port is active, so connections can be made.
    pub active: bool,
    /// NUMA node of the device, where it says so.
    pub numa_node: Option<u32>,
    /// QPs on the device.
    pub qp_max: u32,
    /// Work requests outstanding on one queue of a QP.
    pub qp_depth_max: u32,
    /// Scatter and gather entries of a work request.
    pub sge_max: u32,
    /// CQs on the device.
    pub cq_max: u32,
    /// Entries of a CQ.
    pub cq_depth_max: u32,
    /// Bytes of one memory region.
    pub mr_bytes_max: u64,
    /// READs and atomics that a QP may have outstanding as initiator.
    pub rd_atomic_initiator_max: u32,
    /// READs and atomics that a QP can hold as responder.
    pub rd_atomic_responder_max: u32,
    /// Bytes of one message; the least over the active ports.
    pub message_bytes_max: u32,
    /// Work requests of a shared receive queue; 0 where the device has none.
    pub shared_recv_depth_max: u32,
    /// What it can do beyond SEND, WRITE and READ.
    pub abilities: Abilities,
}
