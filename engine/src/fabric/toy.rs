//! A device that does what a test says, in one process and one thread at a time.
//!
//! ```text
//!  test ── event, request, deliver, execute, fail, refuse ─► [ State ] ◄─ Fabric, Lane ── code under test
//!   └───── calls, sent, chains, ends of ids and QPs ◄───────────┘
//! ```
//! Nothing happens by itself: no event, no completion, no flush. It checks what a device could only
//! suffer: calls on a destroyed id, a QP that dies while a half of it is elsewhere, queues that are
//! filled beyond their depth, work requests whose memory is not registered under their key. A test instrument, not a transport. Built for unit tests only.

mod datapath;

use super::plain::PlainWc;
use super::{
    AsyncEvent, CmEvent, CmEventKind, ConnParams, Endpoint, Fabric, FabricError, IdKey, LaneGrant,
    LaneSpec, PrivateData, QpGrant, QpSpec, Step,
};
use crate::sys::eventfd::EventFd;
use crate::types::{Abilities, Access, DeviceLimits, QpNum, Transport};
use datapath::{QpState, SharedState};
pub(crate) use datapath::{ToyLane, ToyQp};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The device that ids are bound to unless a test says otherwise.
pub(crate) const DEVICE: &str = "toy0";
/// Payloads up to this go inline.
pub(crate) const INLINE_BYTES: u32 = 16;
/// The longest message that the device takes.
pub(crate) const MESSAGE_BYTES_MAX: u32 = 200;

/// A call of control's, as the log has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Listen,
    ResolveAddress,
    ResolveRoute,
    CreateQp,
    Connect,
    Confirm,
    Accept,
    Reject,
    Notify,
    Disconnect,
    SetError,
    DestroyQp,
    DestroyId,
}

/// How a QP ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QpEnd {
    Alive,
    /// By `destroy_qp`, with both halves.
    Destroyed,
    /// Its halves were dropped one by one.
    Orphaned,
}

#[derive(Default)]
struct State {
    events: VecDeque<CmEvent<ToyId>>,
    async_events: VecDeque<AsyncEvent>,
    log: Vec<(IdKey, Call)>,
    refusals: Vec<(Call, i32)>,
    /// Whether each id was destroyed, and the device it is bound to.
    ids: Vec<(bool, Option<String>)>,
    qps: Vec<QpState>,
    /// Completions that wait on each lane.
    cqs: Vec<VecDeque<PlainWc>>,
    /// Memory that is registered: first byte, bytes, key, what the key allows.
    regions: Vec<(u64, u64, u32, Access)>,
    registrations: u32,
    /// The next registration fails, with this errno.
    refuse_registration: Option<i32>,
    /// Shared receives of each lane.
    shared: Vec<SharedState>,
    /// Private data of every connect, accept and reject.
    said: Vec<(IdKey, PrivateData)>,
    /// Devices that control let go of.
    forgotten: Vec<String>,
}

/// The fabric; clones are the test's hands on it.
#[derive(Clone)]
pub(crate) struct Toy {
    state: Arc<Mutex<State>>,
    bell: Arc<EventFd>,
    async_bell: Arc<EventFd>,
}

/// An id. Its number is its key, and is never used again.
#[derive(Debug)]
pub(crate) struct ToyId(u64);

#[derive(Clone)]
pub(crate) struct ToyDevice {
    limits: DeviceLimits,
    toy: Toy,
}

/// Control's half of a lane: its number.
pub(crate) struct ToyCq(usize);

impl ToyCq {
    /// Number of the lane, as the test's hands name it.
    pub(crate) fn lane(&self) -> usize {
        self.0
    }
}

/// Control's half of a QP.
pub(crate) struct ToyQpControl {
    toy: Toy,
    number: usize,
}

impl Drop for ToyQpControl {
    fn drop(&mut self) {
        self.toy.lock().qps[self.number].control_half = false;
        self.toy.half_gone(self.number);
    }
}

/// The test's hands.
impl Toy {
    pub(crate) fn new() -> Self {
        let bell = || Arc::new(EventFd::new().expect("a descriptor"));
        Self {
            state: Arc::default(),
            bell: bell(),
            async_bell: bell(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A test that failed under the lock has said why already.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, id: &ToyId, data: &PrivateData) {
        self.lock().said.push((IdKey(id.0), *data));
    }

    /// Private data that was last sent on an id.
    pub(crate) fn said(&self, id: IdKey) -> Option<PrivateData> {
        let state = self.lock();
        let said = state.said.iter().rev().find(|(of, _)| *of == id);
        said.map(|(_, data)| *data)
    }

    /// Devices that control let go of.
    pub(crate) fn forgotten(&self) -> Vec<String> {
        self.lock().forgotten.clone()
    }

    /// The connection manager says `kind` of an id.
    pub(crate) fn event(&self, id: IdKey, kind: CmEventKind, status: i32) {
        self.raise(id, kind, status, b"", None);
    }

    /// The same, with the peer's private data.
    pub(crate) fn event_with(&self, id: IdKey, kind: CmEventKind, status: i32, data: &[u8]) {
        self.raise(id, kind, status, data, None);
    }

    /// A peer asks a listener for a connection; gives the id of the request.
    pub(crate) fn request(&self, listener: IdKey, data: &[u8]) -> IdKey {
        let id = self.new_id();
        let key = IdKey(id.0);
        self.raise(listener, CmEventKind::ConnectRequest, 0, data, Some(id));
        key
    }

    fn raise(&self, id: IdKey, kind: CmEventKind, status: i32, data: &[u8], new: Option<ToyId>) {
        self.lock().events.push_back(CmEvent {
            id,
            kind,
            status,
            private_data: PrivateData::received(data),
            responder_resources: 4,
            initiator_depth: 2,
            request: new,
        });
        self.bell.signal().expect("a bell");
    }

    pub(crate) fn async_event(&self, event: AsyncEvent) {
        self.lock().async_events.push_back(event);
        self.async_bell.signal().expect("a bell");
    }

    /// The next call of this kind fails.
    pub(crate) fn refuse(&self, call: Call, errno: i32) {
        self.lock().refusals.push((call, errno));
    }

    /// Binds an id to a device, or to none.
    pub(crate) fn bind(&self, id: IdKey, device: Option<&str>) {
        self.lock().ids[index(id.0)].1 = device.map(Into::into);
    }

    /// Calls about an id so far.
    pub(crate) fn calls(&self, id: IdKey) -> Vec<Call> {
        let state = self.lock();
        let of_id = state.log.iter().filter(|(key, _)| *key == id);
        of_id.map(|(_, call)| *call).collect()
    }

    /// The id that was made last.
    pub(crate) fn last_id(&self) -> IdKey {
        IdKey(self.made() - 1)
    }

    /// How many ids were made so far.
    pub(crate) fn made(&self) -> u64 {
        self.lock().ids.len() as u64
    }

    /// Ids that live.
    pub(crate) fn ids(&self) -> Vec<IdKey> {
        let state = self.lock();
        let all = (0..).zip(&state.ids);
        all.filter(|(_, id)| !id.0)
            .map(|(key, _)| IdKey(key))
            .collect()
    }

    /// How each QP ended, in the order of creation, which is that of their numbers.
    pub(crate) fn qp_ends(&self) -> Vec<QpEnd> {
        self.lock().qps.iter().map(|qp| qp.end).collect()
    }

    fn new_id(&self) -> ToyId {
        let mut state = self.lock();
        state.ids.push((false, Some(DEVICE.into())));
        ToyId(state.ids.len() as u64 - 1)
    }

    fn call(&self, id: &ToyId, call: Call, step: Step) -> Result<(), FabricError> {
        let mut state = self.lock();
        assert!(!state.ids[index(id.0)].0, "{call:?} on a destroyed id");
        state.log.push((IdKey(id.0), call));
        let refusal = state.refusals.iter().position(|(c, _)| *c == call);
        let Some(refusal) = refusal else {
            return Ok(());
        };
        let (_, errno) = state.refusals.remove(refusal);
        let source = io::Error::from_raw_os_error(errno);
        Err(FabricError::new(step, DEVICE, source))
    }

    /// A half was dropped: the last one ends a QP that nobody destroyed.
    fn half_gone(&self, number: usize) {
        let mut state = self.lock();
        let qp = &mut state.qps[number];
        if !qp.control_half && !qp.posting_half && qp.end == QpEnd::Alive {
            qp.end = QpEnd::Orphaned;
        }
    }
}

fn index(key: u64) -> usize {
    usize::try_from(key).expect("a key of this toy")
}

impl Fabric for Toy {
    type Device = ToyDevice;
    type Lane = ToyLane;
    type Cq = ToyCq;
    type Qp = ToyQp;
    type QpControl = ToyQpControl;
    type Id = ToyId;

    fn forget_device(&mut self, name: &str) -> bool {
        self.lock().forgotten.push(name.into());
        true
    }
    fn devices(&self) -> Vec<ToyDevice> {
        let limits = DeviceLimits {
            name: DEVICE.into(),
            transport: Transport::Shm,
            active: true,
            numa_node: None,
            qp_max: 1024,
            qp_depth_max: 1024,
            sge_max: 1,
            cq_max: 64,
            cq_depth_max: 65_536,
            mr_bytes_max: u64::MAX,
            rd_atomic_initiator_max: 16,
            rd_atomic_responder_max: 16,
            message_bytes_max: MESSAGE_BYTES_MAX,
            shared_recv_depth_max: 1024,
            abilities: Abilities::LEAST,
        };
        let toy = self.clone();
        vec![ToyDevice { limits, toy }]
    }
    fn limits(device: &ToyDevice) -> &DeviceLimits {
        &device.limits
    }
    fn create_lane(
        &mut self,
        device: &ToyDevice,
        spec: &LaneSpec,
    ) -> Result<(ToyCq, ToyLane, LaneGrant), FabricError> {
        let mut state = self.lock();
        let number = state.cqs.len();
        state.cqs.push(VecDeque::new());
        state.shared.push(SharedState::new(spec.shared_recv_depth));
        let grant = LaneGrant {
            shared_recv_depth: spec.shared_recv_depth,
            device: device.limits.name.clone(),
            cq_depth: spec.cq_depth,
            thread_domain: Err("a toy".into()),
            relaxed_ordering: Err("a toy".into()),
        };
        Ok((ToyCq(number), ToyLane::new(self.clone(), number), grant))
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }
    fn next_event(&mut self) -> Result<Option<CmEvent<ToyId>>, FabricError> {
        let event = self.lock().events.pop_front();
        if event.is_none() {
            self.bell.drain().expect("a bell");
        }
        Ok(event)
    }
    fn async_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.async_bell.fd()]
    }
    fn next_async_event(&mut self) -> Option<AsyncEvent> {
        let event = self.lock().async_events.pop_front();
        if event.is_none() {
            self.async_bell.drain().expect("a bell");
        }
        event
    }

    fn key(id: &ToyId) -> IdKey {
        IdKey(id.0)
    }
    fn listen(&mut self, _: &Endpoint, _: u32) -> Result<ToyId, FabricError> {
        let id = self.new_id();
        self.call(&id, Call::Listen, Step::Listen)?;
        Ok(id)
    }
    fn local_endpoint(&self, _: &ToyId) -> Option<Endpoint> {
        None
    }
    fn peer_endpoint(&self, id: &ToyId) -> Option<Endpoint> {
        Some(Endpoint::Shm(format!("peer{}", id.0)))
    }
    fn resolve_address(&mut self, _: &Endpoint, _: Duration) -> Result<ToyId, FabricError> {
        let id = self.new_id();
        let step = Step::ResolveAddress;
        if let Err(error) = self.call(&id, Call::ResolveAddress, step) {
            self.destroy_id(id);
            return Err(error);
        }
        Ok(id)
    }
    fn resolve_route(&mut self, id: &mut ToyId, _: Duration) -> Result<(), FabricError> {
        self.call(id, Call::ResolveRoute, Step::ResolveRoute)
    }
    fn device_name(&self, id: &ToyId) -> Option<String> {
        self.lock().ids[index(id.0)].1.clone()
    }

    fn create_qp(
        &mut self,
        id: &mut ToyId,
        cq: &ToyCq,
        spec: &QpSpec,
    ) -> Result<(ToyQpControl, ToyQp, QpGrant), FabricError> {
        self.call(id, Call::CreateQp, Step::CreateQp)?;
        let mut state = self.lock();
        let number = state.qps.len();
        state.qps.push(QpState::new(cq.0, *spec));
        let grant = QpGrant {
            number: QpNum(u32::try_from(number).expect("few QPs")),
            inline_bytes: spec.inline_bytes.min(INLINE_BYTES),
            message_bytes_max: MESSAGE_BYTES_MAX,
            loose: false,
            abilities: Abilities::LEAST,
        };
        let toy = self.clone();
        let control = ToyQpControl { toy, number };
        Ok((control, ToyQp::new(self.clone(), number), grant))
    }
    fn connect(
        &mut self,
        id: &mut ToyId,
        _: &mut ToyQpControl,
        params: &ConnParams,
    ) -> Result<(), FabricError> {
        self.say(id, &params.private_data);
        self.call(id, Call::Connect, Step::Connect)
    }
    fn confirm(&mut self, id: &mut ToyId, _: &mut ToyQpControl) -> Result<(), FabricError> {
        self.call(id, Call::Confirm, Step::Establish)
    }
    fn accept(
        &mut self,
        id: &mut ToyId,
        _: &mut ToyQpControl,
        params: &ConnParams,
    ) -> Result<(), FabricError> {
        self.say(id, &params.private_data);
        self.call(id, Call::Accept, Step::Accept)
    }
    fn reject(&mut self, id: &mut ToyId, data: &PrivateData) -> Result<(), FabricError> {
        self.say(id, data);
        self.call(id, Call::Reject, Step::Reject)
    }
    fn notify_established(&mut self, id: &mut ToyId) {
        let _ = self.call(id, Call::Notify, Step::Establish);
    }
    fn disconnect(&mut self, id: &mut ToyId) -> Result<(), FabricError> {
        self.call(id, Call::Disconnect, Step::Disconnect)
    }
    fn set_error(&mut self, id: &mut ToyId, _: &mut ToyQpControl) -> Result<(), FabricError> {
        self.call(id, Call::SetError, Step::ToErr)
    }
    fn destroy_qp(&mut self, id: &mut ToyId, control: ToyQpControl, qp: ToyQp) {
        assert_eq!(control.number, qp.number(), "halves of two QPs");
        let _ = self.call(id, Call::DestroyQp, Step::DestroyQp);
        let mut state = self.lock();
        let qp_state = &mut state.qps[control.number];
        assert_eq!(qp_state.end, QpEnd::Alive);
        qp_state.end = QpEnd::Destroyed;
        drop(state);
        drop((control, qp));
    }
    fn destroy_id(&mut self, id: ToyId) {
        let _ = self.call(&id, Call::DestroyId, Step::CreateId);
        self.lock().ids[index(id.0)].0 = true;
    }
}
