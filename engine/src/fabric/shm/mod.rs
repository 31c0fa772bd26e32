//! RC between processes of one host, over memory that they share.
//!
//! ```text
//!  control   Shm ─► Door: a Unix socket a name, requests, descriptors           door/
//!             │ tell(Ready, Error, Region…)   ▲ questions, lost QPs             link, switchboard
//!             ▼                               │
//!  worker    ShmLane: QPs, CQ, shared receives                                  lane, qp, orders, cq
//!             ├ SEND ─► the peer's inbox ═► its lane copies into a receive      send, receive, inbox/
//!             └ WRITE, READ, CAS, FAA ─► the peer's region, by our CPU          send, peer, piece
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
mod geometry;
mod handles;
#[doc(hidden)] // for benches
pub mod inbox;
mod lane;
mod link;
mod maps;
mod orders;
mod peer;
mod piece;
mod qp;
mod receive;
mod registry;
mod send;
mod switchboard;

pub use device::{ShmDevice, limits};
#[doc(hidden)] // for fuzz/targets/door.rs
pub use door::fuzz_frame;
pub use geometry::{Geometry, GeometryError};
pub use handles::{ShmCq, ShmId, ShmQp, ShmQpControl};
pub use lane::ShmLane;
pub use registry::ShmRegistration;

use super::{
    AsyncEvent, CmEvent, ConnParams, Endpoint, Fabric, FabricError, IdKey, LaneGrant, LaneSpec,
    PrivateData, QpGrant, QpSpec, Step,
};
use crate::limits::{INLINE_MAX_BYTES, QUEUE_DEPTH_MAX};
use crate::sys::bell::Bell;
use crate::sys::epoll::Epoll;
use crate::sys::memfd::Memfd;
use crate::types::{Access, DeviceLimits, QpNum, Rkey};
use device::CQ_DEPTH_MAX;
use door::{CmNews, Door, DoorEvent, Grant, GrantedRegion, Offer, PeerEnd};
use handles::{QpHandle, SharedDoor};
use inbox::{Inlet, Outlet};
use link::LaneLink;
use peer::{Mapped, Peer};
use qp::{QpState, Shape};
use registry::Registry;
use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;
use switchboard::{Question, Switchboard};

/// Name of the one device.
pub const DEVICE: &str = "shm0";
/// Things of the door that one call of `next_event` takes; what is left keeps the descriptor readable.
const DOOR_BATCH: usize = 1024;

/// Where names are, and who may come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The directory of the names. `None`: `SPINWIRE_SHM_DIR`, or one of the user's own.
    pub dir: Option<PathBuf>,
    /// Users that may connect, and be connected to. Empty: this user and root.
    pub uids: Vec<u32>,
}

/// The inbox of a QP, and its bell with the peer's end of it, where the lane sleeps.
type Inbox = (Arc<Memfd>, Inlet, Option<(Bell, OwnedFd)>);

/// The QP of an id, as events find it.
#[derive(Debug)]
struct Link {
    qp: Weak<QpHandle>,
    /// What this side told its peer.
    params: Option<ConnParams>,
    /// The peer, from the answer to the confirmation.
    peer: Option<Box<PeerEnd>>,
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
    last_qp: u32,
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
            dir: settings.dir.or_else(|| usual.dir.clone()),
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
            last_qp: 0,
        })
    }

    /// What is alive here, for tests that must leave nothing: QPs, and registrations.
    #[must_use]
    pub fn alive(&self) -> (usize, usize) {
        let qps = self.links.values().filter(|l| l.qp.strong_count() > 0);
        (qps.count(), self.registry.count())
    }

    fn own(&self, key: u64) -> ShmId {
        ShmId {
            door: self.door.clone(),
            key,
        }
    }

    /// A number of 24 bits that no QP has which lives, or was of late.
    fn qp_number(&mut self) -> QpNum {
        loop {
            self.last_qp = (self.last_qp + 1) & 0x00ff_ffff;
            let number = QpNum(self.last_qp);
            let taken = |link: &Link| link.qp.upgrade().is_some_and(|qp| qp.number == number);
            if self.last_qp > 1 && !self.links.values().any(taken) {
                return number;
            }
        }
    }

    /// Lets go of what lanes have buried.
    fn sweep(&mut self) {
        self.lanes.retain(|lane| lane.strong_count() > 0);
        for lane in &self.lanes {
            if let Some(lane) = lane.upgrade() {
                lane.sweep();
            }
        }
        self.links.retain(|_, link| link.qp.strong_count() > 0);
    }

    /// The inbox of a QP, and the bell by which its peer wakes the lane.
    fn inbox(cq: &ShmCq) -> io::Result<Inbox> {
        let geometry = Geometry::DEFAULT;
        let memfd = Arc::new(Memfd::create("spinwire-inbox", geometry.bytes())?);
        let memory = maps::ours(&memfd, geometry).ok_or(io::ErrorKind::InvalidInput)?;
        let bell = cq.link.has_events().then(Bell::new).transpose()?;
        Ok((memfd, Inlet::new(memory), bell))
    }

    /// The QP of an id can send: what its peer told is known.
    fn ready(&mut self, key: u64, end: PeerEnd) -> io::Result<()> {
        let link = self.links.get(&key);
        let qp = link.and_then(|link| Some((link.qp.upgrade()?, link.params?)));
        let Some((qp, own)) = qp else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        tracing::debug!(
            qp = qp.number.0,
            peer = end.qp.0,
            "the peer's inbox is mapped"
        );
        let theirs = end.params;
        let retries = theirs.rnr_retry_count;
        let fetches = own.initiator_depth.min(theirs.responder_resources);
        let peer = maps::theirs(end.inbox, end.geometry).and_then(|memory| {
            let outlet = Outlet::new(memory);
            Peer::new(outlet, end.board, end.access, end.bell, (retries, fetches))
        });
        let peer = peer.ok_or(io::ErrorKind::InvalidData)?;
        qp.tell(link::Step::Ready(Box::new(peer)));
        Ok(())
    }

    /// What a peer asked for by a key.
    fn grant(&self, rkey: Rkey) -> Option<Grant> {
        let offered = self.registry.offered(rkey)?;
        Some(Grant {
            memfd: Arc::clone(offered.region.memfd()?),
            base: offered.region.base().addr().get() as u64,
            len: offered.region.len() as u64,
            access: offered.access.without(Access::LOCAL_WRITE),
        })
    }

    fn answered(&self, key: u64, rkey: Rkey, grant: Option<GrantedRegion>) {
        let mapped = grant.and_then(|g| Mapped::new(rkey, g.base, g.len, g.access, g.map));
        self.tell(key, link::Step::Region(rkey, mapped.map(Box::new)));
    }

    /// Tells the lane of the QP of an id.
    fn tell(&self, key: u64, step: link::Step) {
        if let Some(qp) = self.links.get(&key).and_then(|link| link.qp.upgrade()) {
            qp.tell(step);
        }
    }

    /// Asks peers for what lanes want.
    fn put_questions(&self) {
        for Question { key, rkey } in self.switchboard.take_questions() {
            if self.door.lock().ask_region(key, rkey).is_err() {
                // The connection has ended.
                self.tell(key, link::Step::Lost);
            }
        }
    }

    fn event(&mut self, news: CmNews) -> CmEvent<ShmId> {
        if let (Some(peer), Some(link)) = (news.peer, self.links.get_mut(&news.key)) {
            link.peer = Some(peer);
        }
        CmEvent {
            id: IdKey(news.key),
            kind: news.kind,
            status: news.status,
            private_data: news.private_data,
            responder_resources: news.responder_resources,
            initiator_depth: news.initiator_depth,
            request: news.request.map(|key| self.own(key)),
        }
    }

    /// The offer of a QP that is the id's own, once.
    fn offer(
        &mut self,
        id: &ShmId,
        qp: &mut ShmQpControl,
        params: &ConnParams,
        step: Step,
    ) -> Result<Offer, FabricError> {
        let link = self.links.get_mut(&id.key);
        let link = link.filter(|_| qp.key == id.key);
        let link = link.ok_or_else(|| wrong_state(step))?;
        let offer = qp.offer.take().ok_or_else(|| wrong_state(step))?;
        link.params = Some(*params);
        Ok(offer)
    }
}

impl Fabric for Shm {
    type Device = ShmDevice;
    type Lane = ShmLane;
    type Cq = ShmCq;
    type Qp = ShmQp;
    type QpControl = ShmQpControl;
    type Id = ShmId;

    fn devices(&self) -> Vec<ShmDevice> {
        self.devices.clone()
    }

    fn forget_device(&mut self, name: &str) -> bool {
        self.devices.retain(|device| device.limits.name != name);
        true
    }

    fn limits(device: &ShmDevice) -> &DeviceLimits {
        &device.limits
    }

    fn create_lane(
        &mut self,
        device: &ShmDevice,
        spec: &LaneSpec,
    ) -> Result<(ShmCq, ShmLane, LaneGrant), FabricError> {
        if spec.cq_depth > CQ_DEPTH_MAX {
            return Err(invalid(Step::CreateCq, "The CQ is too deep"));
        }
        if spec.shared_recv_depth > QUEUE_DEPTH_MAX {
            return Err(invalid(Step::CreateSrq, "The shared queue is too deep"));
        }
        let link = Arc::new(LaneLink::new(spec.events).map_err(at(Step::CreateCq))?);
        self.lanes.push(Arc::downgrade(&link));
        let lane = ShmLane::new(
            Arc::clone(&link),
            Arc::clone(&self.registry),
            Arc::clone(&self.switchboard),
            (spec.cq_depth, spec.shared_recv_depth),
        );
        let grant = LaneGrant {
            device: device.limits.name.clone(),
            cq_depth: spec.cq_depth,
            thread_domain: Ok(()),
            relaxed_ordering: Err("there is no bus".into()),
            shared_recv_depth: spec.shared_recv_depth,
        };
        let shares = spec.shared_recv_depth > 0;
        Ok((ShmCq { link, shares }, lane, grant))
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.epoll.fd()
    }

    fn next_event(&mut self) -> Result<Option<CmEvent<ShmId>>, FabricError> {
        self.put_questions();
        for _ in 0..DOOR_BATCH {
            let event = self.door.lock().next();
            match event.map_err(at(Step::Event))? {
                None => return Ok(None),
                Some(DoorEvent::Cm(news)) => return Ok(Some(self.event(news))),
                Some(DoorEvent::Ready { key, peer }) => {
                    if self.ready(key, *peer).is_err() {
                        // It is no peer of ours; the end of it is told by the door.
                        let _ = self.door.lock().disconnect(key);
                    }
                }
                Some(DoorEvent::RegionAsked { key, rkey }) => {
                    let grant = self.grant(rkey);
                    // Where it fails the connection ends, which the door tells.
                    let _ = self.door.lock().answer_region(key, rkey, grant);
                }
                Some(DoorEvent::RegionAnswer { key, rkey, grant }) => {
                    self.answered(key, rkey, grant);
                }
            }
        }
        Ok(None)
    }

    fn async_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.switchboard.events_fd()]
    }

    fn next_async_event(&mut self) -> Option<AsyncEvent> {
        self.switchboard.take_event()
    }

    fn key(id: &ShmId) -> IdKey {
        IdKey(id.key)
    }

    fn listen(&mut self, at: &Endpoint, backlog: u32) -> Result<ShmId, FabricError> {
        let key = self.door.lock().listen(name(at, Step::Listen)?, backlog);
        let key = key.map_err(|error| {
            let advice = match error.kind() {
                io::ErrorKind::AddrInUse => "Another process listens at the name: choose another",
                io::ErrorKind::PermissionDenied => {
                    "The directory of names is not ours: see SPINWIRE_SHM_DIR and [shm] dir"
                }
                _ => "",
            };
            FabricError::new(Step::Listen, at.to_string(), error).advise(advice)
        })?;
        Ok(self.own(key))
    }

    fn local_endpoint(&self, id: &ShmId) -> Option<Endpoint> {
        self.door.lock().local(id.key).map(Endpoint::Shm)
    }

    fn peer_endpoint(&self, id: &ShmId) -> Option<Endpoint> {
        self.door.lock().peer(id.key).map(Endpoint::Shm)
    }

    fn resolve_address(&mut self, peer: &Endpoint, _: Duration) -> Result<ShmId, FabricError> {
        let to = name(peer, Step::ResolveAddress)?;
        let key = self.door.lock().dial(to);
        let key = key.map_err(|e| FabricError::new(Step::ResolveAddress, peer.to_string(), e))?;
        Ok(self.own(key))
    }

    fn resolve_route(&mut self, id: &mut ShmId, _: Duration) -> Result<(), FabricError> {
        let done = self.door.lock().route(id.key);
        done.map_err(at(Step::ResolveRoute))
    }

    fn device_name(&self, _: &ShmId) -> Option<String> {
        Some(DEVICE.into())
    }

    fn create_qp(
        &mut self,
        id: &mut ShmId,
        cq: &ShmCq,
        spec: &QpSpec,
    ) -> Result<(ShmQpControl, ShmQp, QpGrant), FabricError> {
        if spec.send_depth > QUEUE_DEPTH_MAX || spec.recv_depth > QUEUE_DEPTH_MAX {
            return Err(invalid(Step::CreateQp, "A queue is too deep"));
        }
        if spec.shared_receives && !cq.shares {
            return Err(invalid(Step::CreateQp, "The lane has no shared receives"));
        }
        self.sweep();
        let ours = self
            .lanes
            .iter()
            .any(|l| l.as_ptr() == Arc::as_ptr(&cq.link));
        if self.links.contains_key(&id.key) || !ours {
            return Err(invalid(
                Step::CreateQp,
                "The id has a QP already, or the lane is another fabric's",
            ));
        }
        let (inbox, inlet, bell) = Self::inbox(cq).map_err(at(Step::CreateQp))?;
        let (bell, theirs) = bell.unzip();
        let shape = Shape {
            number: self.qp_number(),
            index: cq.link.place(),
            key: id.key,
            send_depth: spec.send_depth,
            recv_depth: if spec.shared_receives {
                0
            } else {
                spec.recv_depth
            },
            shared: spec.shared_receives,
            inline_bytes: spec.inline_bytes.min(INLINE_MAX_BYTES),
        };
        let handle = Arc::new(QpHandle {
            index: shape.index,
            number: shape.number,
            link: Arc::clone(&cq.link),
        });
        if let Some(bell) = &bell {
            let heard = cq.link.hear(shape.index, bell);
            heard.map_err(at(Step::CreateQp))?;
        }
        let state = Box::new(QpState::new(&shape, inlet, bell));
        handle.tell(link::Step::New(state));
        let link = Link {
            qp: Arc::downgrade(&handle),
            params: None,
            peer: None,
        };
        self.links.insert(id.key, link);
        let offer = Offer {
            qp: shape.number,
            access: spec.access,
            geometry: Geometry::DEFAULT,
            inbox,
            board: Arc::clone(self.registry.board()),
            bell: theirs,
        };
        let grant = QpGrant {
            number: shape.number,
            inline_bytes: shape.inline_bytes,
            message_bytes_max: device::MESSAGE_BYTES_MAX,
            loose: false,
            abilities: limits().abilities,
        };
        let control = ShmQpControl {
            handle: Arc::clone(&handle),
            key: id.key,
            offer: Some(offer),
        };
        Ok((control, ShmQp(handle), grant))
    }

    fn connect(
        &mut self,
        id: &mut ShmId,
        qp: &mut ShmQpControl,
        params: &ConnParams,
    ) -> Result<(), FabricError> {
        let offer = self.offer(id, qp, params, Step::Connect)?;
        let done = self.door.lock().connect(id.key, offer, params);
        done.map_err(at(Step::Connect))
    }

    fn confirm(&mut self, id: &mut ShmId, qp: &mut ShmQpControl) -> Result<(), FabricError> {
        let link = self.links.get_mut(&id.key).filter(|_| qp.key == id.key);
        let peer = link.and_then(|link| link.peer.take());
        let peer = peer.ok_or_else(|| wrong_state(Step::Establish))?;
        let done = self.door.lock().confirm(id.key);
        done.map_err(at(Step::Establish))?;
        self.ready(id.key, *peer).map_err(at(Step::Establish))
    }

    fn accept(
        &mut self,
        id: &mut ShmId,
        qp: &mut ShmQpControl,
        params: &ConnParams,
    ) -> Result<(), FabricError> {
        let offer = self.offer(id, qp, params, Step::Accept)?;
        let done = self.door.lock().accept(id.key, offer, params);
        done.map_err(at(Step::Accept))?;
        qp.handle.tell(link::Step::Accepted);
        Ok(())
    }

    fn reject(&mut self, id: &mut ShmId, data: &PrivateData) -> Result<(), FabricError> {
        let done = self.door.lock().reject(id.key, data);
        done.map_err(at(Step::Reject))
    }

    fn notify_established(&mut self, _: &mut ShmId) {
        // The door does not wait for it.
    }

    fn disconnect(&mut self, id: &mut ShmId) -> Result<(), FabricError> {
        let done = self.door.lock().disconnect(id.key);
        done.map_err(at(Step::Disconnect))
    }

    fn set_error(&mut self, _: &mut ShmId, qp: &mut ShmQpControl) -> Result<(), FabricError> {
        qp.handle.tell(link::Step::Error);
        Ok(())
    }

    fn destroy_qp(&mut self, id: &mut ShmId, control: ShmQpControl, qp: ShmQp) {
        debug_assert!(Arc::ptr_eq(&control.handle, &qp.0), "halves of two QPs");
        drop((control, qp));
        self.links.remove(&id.key);
        self.sweep();
    }

    fn destroy_id(&mut self, id: ShmId) {
        drop(id);
        self.sweep();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
