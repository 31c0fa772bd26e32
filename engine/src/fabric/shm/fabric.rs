//! The calls of [`Fabric`] on shared memory.
//!
//! ```text
//!  listen, resolve, connect, accept… ─► door          create_lane, create_qp ─► link ─► lane
//! ```
//! Each returns without waiting for the peer. Imports the files of control. Imported by nobody.

use super::door::{DoorEvent, Offer};
use super::handles::QpHandle;
use super::link::{LaneLink, Step as LaneStep};
use super::qp::{QpState, Shape};
use super::{
    DEVICE, Geometry, Link, Shm, ShmCq, ShmDevice, ShmId, ShmLane, ShmQp, ShmQpControl, at,
    invalid, limits, name, wrong_state,
};
use crate::fabric::soft;
use crate::fabric::{
    AsyncEvent, CmEvent, ConnParams, Endpoint, Fabric, FabricError, IdKey, LaneGrant, LaneSpec,
    PrivateData, QpGrant, QpSpec, Step,
};
use crate::limits::{INLINE_MAX_BYTES, QUEUE_DEPTH_MAX};
use crate::types::DeviceLimits;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// Things of the door that one call of `next_event` takes; what is left keeps the descriptor readable.
const DOOR_BATCH: usize = 1024;

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
        if spec.cq_depth > soft::CQ_DEPTH_MAX {
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
                    self.give(key, rkey);
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
            access: spec.access,
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
        let heard = bell.as_ref().map(|bell| cq.link.hear(shape.index, bell));
        let state = Box::new(QpState::new(&shape, inlet, bell));
        // Also if it is not heard: the lane gives the place back when the handle has gone.
        handle.tell(LaneStep::New(state));
        heard.transpose().map_err(at(Step::CreateQp))?;
        let link = Link {
            qp: Arc::downgrade(&handle),
            params: None,
            peer: None,
            access: spec.access,
            refused: 0,
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
            message_bytes_max: soft::MESSAGE_BYTES_MAX,
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
        qp.handle.tell(LaneStep::Accepted);
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
        qp.handle.tell(LaneStep::Error);
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
    }
}
