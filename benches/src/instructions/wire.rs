//! A fabric inside one thread, for counting: two devices, and a wire on which everything arrives at
//! once.
//!
//! ```text
//!  near0: CQ, QPs ── post_send ─► the peer's receive is filled, both CQs have their completion ── far0
//! ```
//! It checks nothing that a scenario could not do wrong; an operation that finds no receive panics.
//! Who connects is on `near0`, who accepts on `far0`. Ids, devices and events are here, the datapath
//! is in `lane`. Imported by rig.
//!
//! It is not `spinwire::fabric::pair`, for what is counted would change. The engine takes a completion
//! apart, so it has to be as verbs lay it out, not decoded already. A reply's count begins and ends
//! inside `poll` and `post_send`. And what lies in `engine/src` counts as the engine's.

use crate::lane::{Lane, Memory, Qp, QpState, Wc};
use spinwire::fabric::{
    AsyncEvent, CmEvent, CmEventKind, ConnParams, Endpoint, Fabric, FabricError, IdKey, LaneGrant,
    LaneSpec, PrivateData, QpGrant, QpSpec, Step,
};
use spinwire::memory::{Region, Registrar};
use spinwire::sys::eventfd::EventFd;
use spinwire::types::{Abilities, Access, DeviceLimits, QpNum, Transport};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Device of the side that connects, whose worker is counted.
pub(crate) const NEAR: &str = "near0";
/// Device of its peer.
pub(crate) const FAR: &str = "far0";
/// Payloads up to this are copied at the post, as the engine asks of real devices by default.
const INLINE_BYTES: u32 = 64;

/// What both ends share. One thread uses it, so the lock is never waited for.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<State>>);

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
pub(crate) struct State {
    events: VecDeque<CmEvent<Id>>,
    ids: HashMap<u64, IdState>,
    ids_made: u64,
    pub(crate) qps: Vec<QpState>,
    pub(crate) cqs: Vec<VecDeque<Wc>>,
}

#[derive(Default)]
struct IdState {
    /// Where a listener listens, or where an active id goes.
    at: Option<Endpoint>,
    listens: bool,
    passive: bool,
    peer: Option<u64>,
    qp: Option<usize>,
    left: bool,
}

impl State {
    fn make_id(&mut self, id: IdState) -> Id {
        self.ids_made += 1;
        self.ids.insert(self.ids_made, id);
        Id(self.ids_made)
    }

    fn id(&mut self, id: u64) -> io::Result<&mut IdState> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        self.ids.get_mut(&id).ok_or_else(gone)
    }

    fn raise(&mut self, id: u64, kind: CmEventKind, data: PrivateData, request: Option<Id>) {
        self.events.push_back(CmEvent {
            id: IdKey(id),
            kind,
            status: 0,
            private_data: data,
            responder_resources: 16,
            initiator_depth: 16,
            request,
        });
    }

    /// The request reaches its listener.
    fn request(&mut self, id: u64, data: PrivateData) -> io::Result<()> {
        let at = self.id(id)?.at.clone();
        let mut all = self.ids.iter();
        let listener = all.find(|(_, other)| other.listens && other.at == at);
        let listener = *listener.ok_or(io::ErrorKind::ConnectionRefused)?.0;
        let request = self.make_id(IdState {
            passive: true,
            peer: Some(id),
            ..IdState::default()
        });
        self.id(id)?.peer = Some(request.0);
        self.raise(listener, CmEventKind::ConnectRequest, data, Some(request));
        Ok(())
    }

    /// Joins the QPs of a request and of who made it.
    fn join(&mut self, id: u64, data: PrivateData) -> io::Result<()> {
        let missing = || io::Error::from(io::ErrorKind::NotConnected);
        let (peer, here) = {
            let id = self.id(id)?;
            (id.peer.ok_or_else(missing)?, id.qp.ok_or_else(missing)?)
        };
        let there = self.id(peer)?.qp.ok_or_else(missing)?;
        (self.qps[here].peer, self.qps[there].peer) = (Some(there), Some(here));
        self.raise(id, CmEventKind::Established, PrivateData::EMPTY, None);
        self.raise(peer, CmEventKind::Established, data, None);
        Ok(())
    }

    /// Each side hears once that the connection has ended.
    fn part(&mut self, id: u64) {
        let peer = self.ids.get(&id).and_then(|id| id.peer);
        for one in [Some(id), peer].into_iter().flatten() {
            if let Some(state) = self.ids.get_mut(&one)
                && !std::mem::replace(&mut state.left, true)
            {
                self.raise(one, CmEventKind::Disconnected, PrivateData::EMPTY, None);
            }
        }
    }
}

/// The fabric.
pub(crate) struct Wire {
    shared: Shared,
    /// Never rung: the rig turns control by hand.
    bell: EventFd,
}

impl Wire {
    pub(crate) fn new() -> io::Result<Self> {
        let shared = Shared::default();
        let bell = EventFd::new()?;
        Ok(Self { shared, bell })
    }
}

#[derive(Clone)]
pub(crate) struct Device(DeviceLimits);

impl Registrar for Device {
    type Registration = Memory;
    fn register(&self, region: Arc<Region>, _: Access) -> io::Result<Memory> {
        Ok(Memory::new(region))
    }
}

/// Control's half of a lane: its number.
pub(crate) struct Cq(usize);

/// Control's half of a QP: its number.
pub(crate) struct QpControl(usize);

/// An id: its key.
pub(crate) struct Id(u64);

/// An error of the connection manager.
fn at(step: Step) -> impl FnOnce(io::Error) -> FabricError {
    move |source| FabricError::new(step, "the wire", source)
}

impl Fabric for Wire {
    type Device = Device;
    type Lane = Lane;
    type Cq = Cq;
    type Qp = Qp;
    type QpControl = QpControl;
    type Id = Id;

    fn devices(&self) -> Vec<Device> {
        let device = |name: &str| {
            Device(DeviceLimits {
                name: name.into(),
                transport: Transport::Shm,
                active: true,
                numa_node: None,
                qp_max: 65_536,
                qp_depth_max: 16_384,
                sge_max: 1,
                cq_max: 16,
                cq_depth_max: 1 << 20,
                mr_bytes_max: u64::MAX,
                rd_atomic_initiator_max: 16,
                rd_atomic_responder_max: 16,
                message_bytes_max: 1 << 20,
                shared_recv_depth_max: 0,
                abilities: Abilities::LEAST,
            })
        };
        vec![device(NEAR), device(FAR)]
    }
    fn forget_device(&mut self, _: &str) -> bool {
        true
    }
    fn limits(device: &Device) -> &DeviceLimits {
        &device.0
    }
    fn create_lane(
        &mut self,
        device: &Device,
        spec: &LaneSpec,
    ) -> Result<(Cq, Lane, LaneGrant), FabricError> {
        let mut state = self.shared.lock();
        let number = state.cqs.len();
        state.cqs.push(VecDeque::with_capacity(4096));
        drop(state);
        let grant = LaneGrant {
            device: device.0.name.clone(),
            cq_depth: spec.cq_depth,
            thread_domain: Ok(()),
            relaxed_ordering: Ok(()),
            shared_recv_depth: 0,
        };
        Ok((Cq(number), Lane::new(self.shared.clone(), number), grant))
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }
    fn next_event(&mut self) -> Result<Option<CmEvent<Id>>, FabricError> {
        Ok(self.shared.lock().events.pop_front())
    }
    fn async_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
    fn next_async_event(&mut self) -> Option<AsyncEvent> {
        None
    }

    fn key(id: &Id) -> IdKey {
        IdKey(id.0)
    }
    fn listen(&mut self, at: &Endpoint, _: u32) -> Result<Id, FabricError> {
        Ok(self.shared.lock().make_id(IdState {
            at: Some(at.clone()),
            listens: true,
            passive: true,
            ..IdState::default()
        }))
    }
    fn local_endpoint(&self, id: &Id) -> Option<Endpoint> {
        self.shared.lock().ids.get(&id.0)?.at.clone()
    }
    fn peer_endpoint(&self, _: &Id) -> Option<Endpoint> {
        None
    }
    fn resolve_address(&mut self, peer: &Endpoint, _: Duration) -> Result<Id, FabricError> {
        let mut state = self.shared.lock();
        let id = state.make_id(IdState {
            at: Some(peer.clone()),
            ..IdState::default()
        });
        state.raise(id.0, CmEventKind::AddrResolved, PrivateData::EMPTY, None);
        Ok(id)
    }
    fn resolve_route(&mut self, id: &mut Id, _: Duration) -> Result<(), FabricError> {
        let mut state = self.shared.lock();
        state.raise(id.0, CmEventKind::RouteResolved, PrivateData::EMPTY, None);
        Ok(())
    }
    fn device_name(&self, id: &Id) -> Option<String> {
        let passive = self.shared.lock().ids.get(&id.0)?.passive;
        Some(if passive { FAR } else { NEAR }.into())
    }

    fn create_qp(
        &mut self,
        id: &mut Id,
        cq: &Cq,
        spec: &QpSpec,
    ) -> Result<(QpControl, Qp, QpGrant), FabricError> {
        let mut state = self.shared.lock();
        let number = state.qps.len();
        state.qps.push(QpState::new(cq.0, spec.recv_depth));
        state.id(id.0).map_err(at(Step::CreateQp))?.qp = Some(number);
        let grant = QpGrant {
            number: QpNum(u32::try_from(number).unwrap_or(u32::MAX)),
            inline_bytes: spec.inline_bytes.min(INLINE_BYTES),
            message_bytes_max: 1 << 20,
            loose: false,
            abilities: Abilities::LEAST,
        };
        Ok((QpControl(number), Qp(number), grant))
    }
    fn connect(
        &mut self,
        id: &mut Id,
        _: &mut QpControl,
        params: &ConnParams,
    ) -> Result<(), FabricError> {
        let asked = self.shared.lock().request(id.0, params.private_data);
        asked.map_err(at(Step::Connect))
    }
    fn confirm(&mut self, _: &mut Id, _: &mut QpControl) -> Result<(), FabricError> {
        // `accept` raises Established, never ConnectResponse.
        Ok(())
    }
    fn accept(
        &mut self,
        id: &mut Id,
        _: &mut QpControl,
        params: &ConnParams,
    ) -> Result<(), FabricError> {
        let joined = self.shared.lock().join(id.0, params.private_data);
        joined.map_err(at(Step::Accept))
    }
    fn reject(&mut self, id: &mut Id, data: &PrivateData) -> Result<(), FabricError> {
        let mut state = self.shared.lock();
        let peer = state.id(id.0).map_err(at(Step::Accept))?.peer;
        if let Some(peer) = peer {
            state.raise(peer, CmEventKind::Rejected, *data, None);
        }
        Ok(())
    }
    fn notify_established(&mut self, _: &mut Id) {}
    fn disconnect(&mut self, id: &mut Id) -> Result<(), FabricError> {
        self.shared.lock().part(id.0);
        Ok(())
    }
    fn set_error(&mut self, _: &mut Id, qp: &mut QpControl) -> Result<(), FabricError> {
        self.shared.lock().flush(qp.0);
        Ok(())
    }
    fn destroy_qp(&mut self, id: &mut Id, _: QpControl, qp: Qp) {
        let mut state = self.shared.lock();
        if let Ok(id) = state.id(id.0) {
            id.qp = None;
        }
        state.flush(qp.0);
    }
    fn destroy_id(&mut self, id: Id) {
        self.shared.lock().ids.remove(&id.0);
    }
}
