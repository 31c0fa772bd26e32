//! RC between two ends in one process: a fabric without a device, a kernel or a second thread.
//!
//! ```text
//!  Pair::open(&hub) ─┐                      ┌─ Pair::open(&hub)       or one Pair for both ends
//!    ids, QPs, CQs ──┴──► Hub: Mutex<Net> ◄─┴── ids, QPs, CQs
//! ```
//! Everything happens inside the calls of either end, so whatever is driven from one thread happens
//! in the same order each time. Ends may be on different threads. It takes every operation of RC, and
//! is as strict as the standard: keys, ranges and rights are checked, queues hold what was asked and no
//! more, and nobody may look at what a completion does not define. Endpoints are names, as of `shm://NAME`.
//!
//! What time does elsewhere, polls do here: RNR retries are counted in polls of either side's lane. A
//! peer that is gone answers nothing, and that is known at once. A peer that does not answer a
//! disconnect is waited for without a bound. An rkey may be invalidated by the peer although it is that of a
//! plain registration, which on a device only those of windows may.
//!
//! For tests and benchmarks of what lies above a fabric; between processes there is no such thing.
//! Imports memory, types, limits, sys and the fabric traits.
//!
//! ```
//! use spinwire::fabric::{Endpoint, Fabric, pair::{Hub, Pair}};
//! let hub = Hub::new();
//! let (mut here, mut there) = (Pair::open(&hub)?, Pair::open(&hub)?);
//! let listener = there.listen(&Endpoint::Shm("node".into()), 8)?;
//! assert!(here.listen(&Endpoint::Shm("node".into()), 8).is_err());
//! drop(listener);
//! # Ok::<(), spinwire::fabric::FabricError>(())
//! ```

mod cm;
mod cq;
mod device;
mod execute;
mod handles;
mod lane;
mod net;
mod queues;
mod regions;

pub use device::PairDevice;
pub use handles::{PairCq, PairId, PairQp, PairQpControl};
pub use lane::PairLane;
pub use net::{Alive, Hub};
pub use regions::PairRegistration;

use super::{
    AsyncEvent, CmEvent, ConnParams, Endpoint, Fabric, FabricError, IdKey, LaneGrant, LaneSpec,
    PrivateData, QpGrant, QpSpec, Step, soft,
};
use crate::limits::{INLINE_MAX_BYTES, QUEUE_DEPTH_MAX};
use crate::sys::eventfd::EventFd;
use crate::types::{Abilities, DeviceLimits};
use cq::CqState;
use handles::{CqHandle, QpHandle};
use net::{DEVICE, Port};
use queues::{QpShape, QpState};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// One end's fabric, with one device.
#[derive(Debug)]
pub struct Pair {
    hub: Hub,
    domain: u64,
    devices: Vec<PairDevice>,
    bell: Arc<EventFd>,
    async_bell: Arc<EventFd>,
}

fn at(step: Step) -> impl FnOnce(io::Error) -> FabricError {
    move |error| FabricError::new(step, DEVICE, error)
}

fn invalid(step: Step, advice: &str) -> FabricError {
    FabricError::new(step, DEVICE, io::ErrorKind::InvalidInput.into()).advise(advice)
}

fn name(endpoint: &Endpoint, step: Step) -> Result<&str, FabricError> {
    match endpoint {
        Endpoint::Shm(name) => Ok(name),
        Endpoint::Rdma(_) => Err(FabricError::new(
            step,
            endpoint.to_string(),
            io::Error::from_raw_os_error(libc::EAFNOSUPPORT),
        )
        .advise("This fabric knows names of this process only: write shm://NAME")),
    }
}

impl Pair {
    /// Joins a hub.
    ///
    /// # Errors
    /// No descriptors are left for its events.
    pub fn open(hub: &Hub) -> Result<Self, FabricError> {
        let bell = || EventFd::new().map(Arc::new).map_err(at(Step::Open));
        let (bell, async_bell) = (bell()?, bell()?);
        let mut net = hub.lock();
        let domain = net.number();
        let port = Port {
            events: Default::default(),
            bell: Arc::clone(&bell),
            async_events: Default::default(),
            async_bell: Arc::clone(&async_bell),
        };
        net.ports.insert(domain, port);
        drop(net);
        Ok(Self {
            hub: hub.clone(),
            domain,
            devices: vec![PairDevice::new(hub, domain)],
            bell,
            async_bell,
        })
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.hub.lock().close_port(self.domain);
    }
}

impl Fabric for Pair {
    type Device = PairDevice;
    type Lane = PairLane;
    type Cq = PairCq;
    type Qp = PairQp;
    type QpControl = PairQpControl;
    type Id = PairId;

    fn devices(&self) -> Vec<PairDevice> {
        self.devices.clone()
    }

    fn forget_device(&mut self, name: &str) -> bool {
        self.devices.retain(|device| device.limits.name != name);
        true
    }

    fn limits(device: &PairDevice) -> &DeviceLimits {
        &device.limits
    }

    fn create_lane(
        &mut self,
        device: &PairDevice,
        spec: &LaneSpec,
    ) -> Result<(PairCq, PairLane, LaneGrant), FabricError> {
        if spec.cq_depth > soft::CQ_DEPTH_MAX {
            return Err(invalid(Step::CreateCq, "The CQ is too deep"));
        }
        if spec.shared_recv_depth > QUEUE_DEPTH_MAX {
            return Err(invalid(Step::CreateSrq, "The shared queue is too deep"));
        }
        let bell = spec.events.then(EventFd::new).transpose();
        let bell = bell.map_err(at(Step::CreateCq))?.map(Arc::new);
        let cq = CqState::new(spec.cq_depth, spec.shared_recv_depth, bell.clone());
        let index = self.hub.lock().cqs.insert(cq);
        let handle = Arc::new(CqHandle {
            hub: self.hub.clone(),
            index,
            domain: device.domain,
        });
        let grant = LaneGrant {
            device: device.limits.name.clone(),
            cq_depth: spec.cq_depth,
            thread_domain: Err("the hub has a lock".into()),
            relaxed_ordering: Err("there is no bus".into()),
            shared_recv_depth: spec.shared_recv_depth,
        };
        let lane = PairLane::new(Arc::clone(&handle), bell);
        Ok((PairCq(handle), lane, grant))
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }

    fn next_event(&mut self) -> Result<Option<CmEvent<PairId>>, FabricError> {
        let mut net = self.hub.lock();
        let Some(port) = net.ports.get_mut(&self.domain) else {
            return Ok(None);
        };
        let event = port.events.pop_front();
        port.settle();
        drop(net);
        Ok(event.map(|event| CmEvent {
            id: IdKey(event.id),
            kind: event.kind,
            status: event.status,
            private_data: event.private_data,
            responder_resources: event.responder_resources,
            initiator_depth: event.initiator_depth,
            request: event.request.map(|key| self.own(key)),
        }))
    }

    fn async_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.async_bell.fd()]
    }

    fn next_async_event(&mut self) -> Option<AsyncEvent> {
        let mut net = self.hub.lock();
        let port = net.ports.get_mut(&self.domain)?;
        let event = port.async_events.pop_front();
        port.settle();
        event
    }

    fn key(id: &PairId) -> IdKey {
        IdKey(id.key)
    }

    fn listen(&mut self, at: &Endpoint, backlog: u32) -> Result<PairId, FabricError> {
        let key = self
            .hub
            .lock()
            .listen(self.domain, name(at, Step::Listen)?, backlog);
        let key = key.map_err(|e| {
            FabricError::new(Step::Listen, at.to_string(), e)
                .advise("Another listener of this hub has the name: choose another")
        })?;
        Ok(self.own(key))
    }

    fn local_endpoint(&self, id: &PairId) -> Option<Endpoint> {
        let net = self.hub.lock();
        net.ids
            .get(&id.key)
            .map(|id| Endpoint::Shm(id.local.clone()))
    }

    fn peer_endpoint(&self, id: &PairId) -> Option<Endpoint> {
        let net = self.hub.lock();
        let remote = net.ids.get(&id.key)?.remote.clone();
        remote.map(Endpoint::Shm)
    }

    fn resolve_address(&mut self, peer: &Endpoint, _: Duration) -> Result<PairId, FabricError> {
        let key = self
            .hub
            .lock()
            .resolve(self.domain, name(peer, Step::ResolveAddress)?);
        Ok(self.own(key))
    }

    fn resolve_route(&mut self, id: &mut PairId, _: Duration) -> Result<(), FabricError> {
        let done = self.hub.lock().route(id.key);
        done.map_err(at(Step::ResolveRoute))
    }

    fn device_name(&self, _: &PairId) -> Option<String> {
        Some(DEVICE.into())
    }

    fn create_qp(
        &mut self,
        id: &mut PairId,
        cq: &PairCq,
        spec: &QpSpec,
    ) -> Result<(PairQpControl, PairQp, QpGrant), FabricError> {
        if spec.send_depth > QUEUE_DEPTH_MAX || spec.recv_depth > QUEUE_DEPTH_MAX {
            return Err(invalid(Step::CreateQp, "A queue is too deep"));
        }
        let mut net = self.hub.lock();
        let shared = net.cqs.get(cq.0.index).is_some_and(CqState::has_shared);
        if spec.shared_receives && !shared {
            return Err(invalid(Step::CreateQp, "The lane has no shared receives"));
        }
        let fresh = net.ids.get(&id.key).is_some_and(|id| id.qp.is_none());
        if !fresh || cq.0.domain != self.domain {
            return Err(invalid(
                Step::CreateQp,
                "The id has a QP already, or the lane is another fabric's",
            ));
        }
        let shape = QpShape {
            domain: self.domain,
            cq: cq.0.index,
            access: spec.access,
            shared: spec.shared_receives,
            send_depth: spec.send_depth,
            recv_depth: spec.recv_depth,
            inline_bytes: spec.inline_bytes.min(INLINE_MAX_BYTES),
        };
        let number = net.qp_number();
        let index = net.qps.insert(QpState::new(number, &shape));
        let room = net.qps.len();
        let waiting = net.stalled.len();
        net.stalled.reserve(room - waiting.min(room));
        if let Some(id) = net.ids.get_mut(&id.key) {
            id.qp = Some(index);
        }
        drop(net);
        let handle = Arc::new(QpHandle {
            index,
            cq: Arc::clone(&cq.0),
        });
        let abilities = self.devices.first().map(|device| device.limits.abilities);
        let abilities = abilities.unwrap_or(Abilities::LEAST);
        let grant = QpGrant {
            number,
            inline_bytes: shape.inline_bytes,
            message_bytes_max: soft::MESSAGE_BYTES_MAX,
            loose: false,
            abilities,
        };
        Ok((PairQpControl(Arc::clone(&handle)), PairQp(handle), grant))
    }

    fn connect(
        &mut self,
        id: &mut PairId,
        qp: &mut PairQpControl,
        params: &ConnParams,
    ) -> Result<(), FabricError> {
        let done = self.hub.lock().connect(id.key, qp.0.index, params);
        done.map_err(at(Step::Connect))
    }

    fn confirm(&mut self, id: &mut PairId, qp: &mut PairQpControl) -> Result<(), FabricError> {
        let done = self.hub.lock().confirm(id.key, qp.0.index);
        done.map_err(at(Step::Establish))
    }

    fn accept(
        &mut self,
        id: &mut PairId,
        qp: &mut PairQpControl,
        params: &ConnParams,
    ) -> Result<(), FabricError> {
        let done = self.hub.lock().accept(id.key, qp.0.index, params);
        done.map_err(at(Step::Accept))
    }

    fn reject(&mut self, id: &mut PairId, data: &PrivateData) -> Result<(), FabricError> {
        let done = self.hub.lock().reject(id.key, data);
        done.map_err(at(Step::Reject))
    }

    fn notify_established(&mut self, _: &mut PairId) {
        // Established waits in the queue before any data can come.
    }

    fn disconnect(&mut self, id: &mut PairId) -> Result<(), FabricError> {
        let done = self.hub.lock().disconnect(id.key);
        done.map_err(at(Step::Disconnect))
    }

    fn set_error(&mut self, _: &mut PairId, qp: &mut PairQpControl) -> Result<(), FabricError> {
        self.hub.lock().fail(qp.0.index);
        Ok(())
    }

    fn destroy_qp(&mut self, _: &mut PairId, control: PairQpControl, qp: PairQp) {
        debug_assert!(Arc::ptr_eq(&control.0, &qp.0), "halves of two QPs");
        drop((control, qp));
    }

    fn destroy_id(&mut self, id: PairId) {
        drop(id);
    }
}

impl Pair {
    fn own(&self, key: u64) -> PairId {
        PairId {
            hub: self.hub.clone(),
            key,
        }
    }
}
