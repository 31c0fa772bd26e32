//! Why a connection did not come to be, for people.

use super::machine::{Cause, State};
use crate::fabric::{CmEventKind, FabricError, PrivateData, Step};
use crate::wire::{HelloError, Refusal};
use crate::worker::CloseReason;
use std::io;
use std::time::Duration;

/// A connection that was asked for did not come to be.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A call of the fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The address or route cannot be resolved.
    #[error("no way to {peer}: {source}. {}", no_route(.peer))]
    NoRoute {
        /// Where to.
        peer: String,
        /// The connection manager's word.
        source: io::Error,
    },
    /// Nobody listens there.
    #[error("{peer} refused: nothing listens {}. Start `spinwire serve --listen {peer}`", place(.peer))]
    NothingListens {
        /// Where to.
        peer: String,
    },
    /// Whoever listens there refused.
    #[error("{peer} rejected the connection (reason {reason}): its workers may be full")]
    Rejected {
        /// Where to.
        peer: String,
        /// IBTA 12.6.7.2, or a negative errno on iWARP.
        reason: i32,
        /// What the peer said with it.
        private_data: Vec<u8>,
    },
    /// Whoever listens there speaks framed mode, and says why it refused.
    #[error("{peer} refused the connection: {refusal}")]
    Refused {
        /// Where to.
        peer: String,
        /// Its reason.
        refusal: Refusal,
    },
    /// The peer accepted, but with nothing that framed mode can go on with.
    #[error("{peer} accepted without a hello of framed mode: {source}")]
    Handshake {
        /// Where to.
        peer: String,
        /// What is wrong with its answer.
        source: HelloError,
    },
    /// No answer.
    #[error("{peer} does not answer: {}", no_answer(.peer))]
    Unreachable {
        /// Where to.
        peer: String,
    },
    /// A step took longer than configured.
    #[error(
        "{peer}: {step} took longer than {after:?}. Raise [connection] connect_timeout_ms, or see \
         whether the peer is up"
    )]
    TimedOut {
        /// Where to.
        peer: String,
        /// What took so long.
        step: State,
        /// How long.
        after: Duration,
    },
    /// No worker has a free place on the device.
    #[error(
        "no worker has room for another connection on {device}: raise [queues] connections_max, or \
         add the device to a [[worker]]"
    )]
    NoRoom {
        /// The device.
        device: String,
    },
    /// It was up, and ended before the caller heard of it; or the engine stops.
    #[error("the connection to {peer} ended at once: {reason}")]
    Ended {
        /// Where to.
        peer: String,
        /// Why.
        reason: CloseReason,
    },
    /// The engine is gone.
    #[error("the engine has stopped")]
    Stopped,
}

/// What mends it depends on whether the peer is on this host.
fn is_here(peer: &str) -> bool {
    peer.starts_with("shm://")
}

fn no_route(peer: &str) -> &'static str {
    if is_here(peer) {
        "Names are in the directory of [shm] dir or SPINWIRE_SHM_DIR, which both ends have alike"
    } else {
        "No RDMA device reaches this address: see `ip route get ADDRESS` and `spinwire devices`"
    }
}

fn place(peer: &str) -> &'static str {
    if is_here(peer) {
        "at that name, among those of this user and of root (or in SPINWIRE_SHM_DIR)"
    } else {
        "on that port"
    }
}

fn no_answer(peer: &str) -> &'static str {
    if is_here(peer) {
        "is it of another user? [shm] uids says, at either end, who may be met"
    } else {
        "is the host up, and does it have an RDMA device there?"
    }
}

/// IBTA table 111: invalid service ID, so nobody listens.
const REJ_INVALID_SERVICE_ID: i32 = 8;

impl ConnectError {
    pub(super) fn from_cause(
        cause: Cause,
        peer: String,
        device: String,
        waited: Duration,
        private_data: PrivateData,
    ) -> Self {
        match cause {
            Cause::Cm(kind, status) => Self::from_event(kind, status, peer, private_data),
            Cause::TimedOut(step) => Self::TimedOut {
                peer,
                step,
                after: waited,
            },
            Cause::NoRoom => Self::NoRoom { device },
            Cause::Close(reason) => Self::Ended { peer, reason },
            Cause::Action(_) | Cause::WorkerLost => Self::Ended {
                peer,
                reason: cause.reason(),
            },
        }
    }

    /// iWARP tells of a closed port by the call, not by an event.
    pub(super) fn from_action(error: FabricError, peer: String) -> Self {
        let refused = error.source.raw_os_error() == Some(libc::ECONNREFUSED);
        if error.step == Step::Connect && refused {
            return Self::NothingListens { peer };
        }
        Self::Fabric(error)
    }

    fn from_event(kind: CmEventKind, status: i32, peer: String, private_data: PrivateData) -> Self {
        match kind {
            CmEventKind::AddrError | CmEventKind::RouteError => {
                let source = io::Error::from_raw_os_error(status.saturating_abs());
                Self::NoRoute { peer, source }
            }
            CmEventKind::Rejected
                if status == REJ_INVALID_SERVICE_ID || status == -libc::ECONNREFUSED =>
            {
                Self::NothingListens { peer }
            }
            CmEventKind::Rejected
                if let Some(refusal) = Refusal::parse(private_data.as_slice()) =>
            {
                Self::Refused { peer, refusal }
            }
            CmEventKind::Rejected => Self::Rejected {
                peer,
                reason: status,
                private_data: private_data.as_slice().to_vec(),
            },
            CmEventKind::ConnectError if status == -libc::ECONNREFUSED => {
                Self::NothingListens { peer }
            }
            CmEventKind::Unreachable | CmEventKind::ConnectError => Self::Unreachable { peer },
            _ => Self::Ended {
                peer,
                reason: Cause::Cm(kind, status).reason(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kind: CmEventKind, status: i32) -> String {
        let peer = "rdma://10.9.0.1:7471".to_string();
        ConnectError::from_event(kind, status, peer, PrivateData::EMPTY).to_string()
    }

    #[test]
    fn a_closed_port_is_named_on_every_transport() {
        for (kind, status) in [
            (CmEventKind::Rejected, 8),
            (CmEventKind::Rejected, -libc::ECONNREFUSED),
            (CmEventKind::ConnectError, -libc::ECONNREFUSED),
        ] {
            assert!(text(kind, status).contains("nothing listens"), "{kind:?}");
        }
        assert!(text(CmEventKind::Rejected, 28).contains("reason 28"));
    }

    #[test]
    fn errors_say_where_and_what_mends_them() {
        let error = text(CmEventKind::AddrError, -libc::ENETUNREACH);
        assert!(
            error.contains("10.9.0.1:7471") && error.contains("ip route get"),
            "{error}"
        );
        let here = |kind, status| {
            let peer = "shm://name".to_string();
            ConnectError::from_event(kind, status, peer, PrivateData::EMPTY).to_string()
        };
        for (kind, status, word) in [
            (CmEventKind::AddrError, -libc::EACCES, "SPINWIRE_SHM_DIR"),
            (CmEventKind::Rejected, 8, "at that name"),
            (CmEventKind::Unreachable, -libc::ETIMEDOUT, "[shm] uids"),
        ] {
            let error = here(kind, status);
            assert!(
                error.contains(word) && error.contains("shm://name"),
                "{error}"
            );
            assert!(!error.contains("RDMA"), "{error}");
        }
        // A status that no errno has, even the least integer, is no panic.
        assert!(text(CmEventKind::RouteError, i32::MIN).contains("10.9.0.1"));
    }
}
