//! What fabrics that play the NIC have in common: the limits of their device, the numbers of their RC,
//! and what a completion in their CQs gives back.
//!
//! Imports plain, types, limits. Imported by pair and shm.

use super::plain::PlainWc;
use crate::limits::{QUEUE_DEPTH_MAX, SGE_MAX};
use crate::types::{Abilities, Access, DeviceLimits, QpNum, Transport};
use std::io;

/// Bytes of a message at most.
pub(super) const MESSAGE_BYTES_MAX: u32 = 1 << 30;
/// Entries of a CQ.
pub(super) const CQ_DEPTH_MAX: u32 = 1 << 20;
/// READs and atomics that a QP may have outstanding.
const FETCH_DEPTH_MAX: u32 = 128;
/// RNR retries for ever (`rnr_retry_count`, IBTA 9.7.5.2.8).
pub(super) const RNR_FOR_EVER: u8 = 7;
/// Bytes of an atomic.
pub(super) const WORD: u32 = 8;

/// Limits of the device. QPs and CQs take memory and descriptors, so a host has room for fewer.
pub(super) fn limits(name: &str) -> DeviceLimits {
    let sges = u8::try_from(SGE_MAX).unwrap_or(u8::MAX);
    DeviceLimits {
        name: name.into(),
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

/// Peers write only where we may, as `ibv_reg_mr(3)` says.
///
/// # Errors
/// `EINVAL`.
pub(super) fn check_access(access: Access) -> io::Result<()> {
    if access.is_remote_writable() && !access.contains(Access::LOCAL_WRITE) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    Ok(())
}

/// Whose room a completion gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retires {
    /// All sends up to this one.
    Sends { qp: usize, sequence: u64 },
    /// One receive of the QP.
    Receive { qp: usize },
    /// One receive of the shared queue.
    Shared,
    /// Nothing but its own place: the QP is gone.
    Nothing,
}

/// A completion in a CQ.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completed {
    pub(super) wc: PlainWc,
    pub(super) retires: Retires,
}

/// Gives QPs their numbers: of 24 bits, and none that was given of late.
#[derive(Debug, Default)]
pub(super) struct QpNumbers(u32);

impl QpNumbers {
    /// One that no QP has which lives.
    pub(super) fn next(&mut self, taken: impl Fn(QpNum) -> bool) -> QpNum {
        loop {
            self.0 = (self.0 + 1) & 0x00ff_ffff;
            // 0 and 1 are those of management, SMI and GSI.
            if self.0 > 1 && !taken(QpNum(self.0)) {
                return QpNum(self.0);
            }
        }
    }
}
