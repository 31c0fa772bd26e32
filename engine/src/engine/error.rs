//! Why an engine did not start, or ended.

use crate::fabric::{Endpoint, FabricError, Url};
use crate::memory::{ExposeError, PoolError, RegionError};
use crate::sys::affinity::PinError;
use std::io;

/// An engine did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A call of the fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The plan names a device that the fabric does not have.
    #[error("no device {wanted} on this fabric: there are {found}. See `spinwire devices`")]
    NoDevice {
        /// The plan's.
        wanted: String,
        /// The fabric's.
        found: String,
    },
    /// The plan's devices are of two fabrics.
    #[error(
        "{shm} is shared memory and {other} is not: an engine has either for now; make a plan and start \
         an engine for each"
    )]
    TwoFabrics {
        /// The one device.
        shm: String,
        /// The other.
        other: String,
    },
    /// An RDMA device, or an address of one, in a build without verbs.
    #[error(
        "{wanted} wants libibverbs, which this spinwire was built without: build it with the feature \
         `verbs`, or take shm0 and shm://NAME"
    )]
    NoVerbs {
        /// Which.
        wanted: String,
    },
    /// No memory for a pool.
    #[error("the pool of worker {worker}: {source}")]
    Region {
        /// Its number.
        worker: u16,
        /// Why.
        source: RegionError,
    },
    /// A pool does not fit its region.
    #[error("the pool of worker {worker}: {source}")]
    Pool {
        /// Its number.
        worker: u16,
        /// Why.
        source: PoolError,
    },
    /// Memory for READs, on a device that wants it open to peers.
    #[error("memory for the READs of worker {worker}: {source}")]
    ReadSinks {
        /// Its number.
        worker: u16,
        /// Why.
        source: ExposeError,
    },
    /// A pool could not be registered.
    #[error("register {bytes} B of worker {worker} on {device}: {source}. {advice}")]
    Register {
        /// The worker.
        worker: u16,
        /// The device.
        device: String,
        /// Bytes of the pool.
        bytes: usize,
        /// The system's word.
        source: io::Error,
        /// What mends it.
        advice: String,
    },
    /// A thread could not be pinned.
    #[error("{thread}: {source}")]
    Pin {
        /// Which.
        thread: String,
        /// Why.
        source: PinError,
    },
    /// A thread, epoll or eventfd is not to be had, or waiting failed.
    #[error("{what}: {source}")]
    System {
        /// What for.
        what: String,
        /// The system's word.
        source: io::Error,
    },
    /// A name has no address.
    #[error("{url}: {source}. Is the name right, and does the resolver know it?")]
    Resolve {
        /// The address asked for.
        url: String,
        /// The resolver's word.
        source: io::Error,
    },
    /// A thread panicked; the panic itself stands on standard error.
    #[error("the thread of {0} panicked")]
    Panicked(String),
    /// The engine has stopped.
    #[error("the engine has stopped")]
    Stopped,
}

impl EngineError {
    pub(super) fn system(what: &str) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::System {
            what: what.into(),
            source,
        }
    }

    pub(super) fn resolve(url: &Url) -> Result<Vec<Endpoint>, Self> {
        url.resolve().map_err(|source| Self::Resolve {
            url: url.to_string(),
            source,
        })
    }
}
