//! RC between processes of one host, over memory that they share.
//!
//! ```text
//!  control   Shm ─► Door: a Unix socket a name, requests, descriptors           fabric, events, door/
//!             │ tell(Ready, Error, Region…)   ▲ questions, lost QPs             link, switchboard
//!             ▼                               │
//!  worker    ShmLane: QPs, CQ, shared receives                                  lane, qp, orders, cq
//!             ├ SEND ─► the peer's inbox ═► its lane copies into a receive      send, receive, inbox/
//!             └ WRITE, READ, CAS, FAA ─► the peer's region, by our CPU          onesided, peer, piece
//!  memory    registered once, found by key without a lock; a board for peers    registry
//! ```
//! **Semantics** are those of InfiniBand's RC, as `pair` has them: keys, ranges and rights are checked,
//! queues hold what was asked and no more, a message waits for a receive (RNR), and a send has completed
//! when the peer's lane has put it into one. What a NIC does by itself, lanes do when they are polled: a
//! peer that does not poll takes nothing and acknowledges nothing. READs, WRITEs and atomics need no part
//! of the peer's lane, but its control is asked for each region once.
//!
//! **Trust.** A peer writes into an inbox that is its connection's alone, and into regions that it was
//! given for writing. Whatever it writes there, this process neither panics nor waits nor reads out of
//! bounds: at worst the connection ends. See `docs` of [`crate::memory::Region::shared`] for what seals do.
//!
//! Imports memory, types, limits, sys and the fabric traits.

mod cq;
mod device;
mod door;
mod events;
mod fabric;
mod geometry;
mod handles;
#[doc(hidden)] // for benches
pub mod inbox;
mod lane;
mod link;
mod maps;
mod onesided;
mod orders;
mod peer;
mod piece;
mod qp;
mod receive;
mod receives;
mod registry;
mod roster;
mod send;
mod switchboard;

pub use device::{ShmDevice, limits};
#[doc(hidden)] // for fuzz/targets/door.rs
pub use door::fuzz_frame;
pub use geometry::{Geometry, GeometryError};
pub use handles::{ShmCq, ShmId, ShmQp, ShmQpControl};
pub use lane::ShmLane;
pub use registry::ShmRegistration;

use super::{ConnParams, Endpoint, FabricError, Step};
use crate::fabric::soft::QpNumbers;
use crate::sys::epoll::Epoll;
use crate::types::Access;
use door::{Door, PeerEnd};
use handles::{QpHandle, SharedDoor};
use link::LaneLink;
use registry::Registry;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use switchboard::Switchboard;

/// Name of the one device.
pub const DEVICE: &str = "shm0";

/// Where names are, and who may come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The directory of the names. `None`: `SPINWIRE_SHM_DIR`, or one of the user's own.
    pub dir: Option<PathBuf>,
    /// Users that may connect, and be connected to. Empty: this user and root.
    pub uids: Vec<u32>,
}

/// The QP of an id, as events find it.
#[derive(Debug)]
struct Link {
    qp: Weak<QpHandle>,
    /// What this side told its peer.
    params: Option<ConnParams>,
    /// The peer, from the answer to the confirmation.
    peer: Option<Box<PeerEnd>>,
    /// What the QP lets the peer do.
    access: Access,
    /// Keys that the peer asked for and was not given.
    refused: u32,
}

/// The fabric of shared memory, with one device.
#[derive(Debug)]
pub struct Shm {
    door: SharedDoor,
    /// The door's descriptor and the switchboard's.
    epoll: Epoll,
    switchboard: Arc<Switchboard>,
    registry: Arc<Registry>,
    devices: Vec<ShmDevice>,
    links: HashMap<u64, Link>,
    lanes: Vec<Weak<LaneLink>>,
    qp_numbers: QpNumbers,
}

fn at(step: Step) -> impl FnOnce(io::Error) -> FabricError {
    move |error| FabricError::new(step, DEVICE, error)
}

fn invalid(step: Step, advice: &str) -> FabricError {
    FabricError::new(step, DEVICE, io::ErrorKind::InvalidInput.into()).advise(advice)
}

fn wrong_state(step: Step) -> FabricError {
    FabricError::new(step, DEVICE, io::Error::from_raw_os_error(libc::EINVAL))
}

fn name(endpoint: &Endpoint, step: Step) -> Result<&str, FabricError> {
    match endpoint {
        Endpoint::Shm(name) => Ok(name),
        Endpoint::Rdma(_) => Err(FabricError::new(
            step,
            endpoint.to_string(),
            io::Error::from_raw_os_error(libc::EAFNOSUPPORT),
        )
        .advise("This fabric knows names of this host only: write shm://NAME")),
    }
}

impl Shm {
    /// Opens the door to other processes. Nothing listens yet.
    ///
    /// # Errors
    /// No descriptors or no memory are left, or the directory of names belongs to a stranger.
    pub fn open(settings: Settings) -> Result<Self, FabricError> {
        let usual = door::Settings::default();
        let settings = door::Settings {
            dir: settings.dir,
            uids: if settings.uids.is_empty() {
                usual.uids
            } else {
                settings.uids
            },
            timeout: usual.timeout,
        };
        let door = Door::open(settings).map_err(at(Step::Open))?;
        let (epoll, switchboard) = (Epoll::new(), Switchboard::new());
        let epoll = epoll.map_err(at(Step::Open))?;
        let switchboard = switchboard.map_err(at(Step::Open))?;
        epoll.add(door.event_fd(), 0).map_err(at(Step::Open))?;
        let questions = epoll.add(switchboard.questions_fd(), 1);
        questions.map_err(at(Step::Open))?;
        let registry = Registry::new().map_err(at(Step::Open))?;
        Ok(Self {
            door: SharedDoor::new(door),
            epoll,
            switchboard: Arc::new(switchboard),
            devices: vec![ShmDevice {
                limits: Arc::new(limits()),
                registry: Arc::clone(&registry),
            }],
            registry,
            links: HashMap::new(),
            lanes: Vec::new(),
            qp_numbers: QpNumbers::default(),
        })
    }

    /// What is alive here, for tests that must leave nothing: QPs, and registrations.
    #[must_use]
    pub fn alive(&self) -> (usize, usize) {
        let qps = self.links.values().filter(|l| l.qp.strong_count() > 0);
        (qps.count(), self.registry.count())
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
