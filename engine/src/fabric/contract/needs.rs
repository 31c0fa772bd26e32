//! What a case needs of the fabric, and why a device has not got it.

use crate::types::{DeviceLimits, Transport};

/// What a case needs beyond what every fabric does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A message without a receive waits for one (RNR), and a send is done only when the peer's
    /// device has it; iWARP ends the connection instead.
    Rnr,
    /// Endpoints with ports.
    Ports,
    /// Failed completions whose status the transport's standard gives, as IB's does.
    Names,
    /// QPs that keep the peer from memory although it has the key ([`QpSpec::access`](crate::fabric::QpSpec)).
    QpAccess,
    /// 32 bits beside a SEND or a WRITE.
    Immediate,
    /// SEND that takes a key of the peer's out of use.
    SendInvalidate,
    /// CAS and FAA.
    Atomics,
    /// Memory windows.
    Windows,
    /// SEND and WRITE from several pieces.
    Gather,
    /// READ into several pieces.
    Scatter,
    /// Receive queues that the QPs of a lane share.
    SharedReceives,
}

impl Need {
    /// Why a device does not have it.
    pub(super) fn missing(self, limits: &DeviceLimits) -> Option<&'static str> {
        let can = &limits.abilities;
        let iwarp = limits.transport == Transport::Iwarp;
        let (has, why) = match self {
            Self::Rnr => (
                !iwarp,
                "iWARP ends a connection whose peer has no receive posted",
            ),
            Self::Ports => (
                limits.transport != Transport::Shm,
                "names of shared memory have no port",
            ),
            Self::Names => (!iwarp, "iWARP names few errors at either end"),
            Self::QpAccess => (!iwarp, "on iWARP the registration alone decides"),
            Self::Immediate => (can.immediate, "the device has no immediate data"),
            Self::SendInvalidate => (
                can.send_invalidate,
                "the device has no SEND with invalidate",
            ),
            Self::Atomics => (can.atomics, "the device has no atomics"),
            Self::Windows => (can.windows, "the device has no memory windows"),
            Self::Gather => (can.sges > 1, "the device takes one piece a work request"),
            Self::Scatter => (can.read_sges > 1, "a READ of the device has one sink"),
            Self::SharedReceives => (
                limits.shared_recv_depth_max > 0,
                "the device has no shared receive queues",
            ),
        };
        (!has).then_some(why)
    }
}
