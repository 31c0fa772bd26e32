//! The verbs fabric: libibverbs and librdmacm. InfiniBand, RoCE and iWARP in one code path that asks
//! the device for its transport.
//!
//! ```text
//!  control files                                   datapath file
//!  open ─► device (PD, CQ, MR) ─► queue_pair       lane (post, poll, arm)
//!  cm (ids, events)   async_events, watch   gid   inventory
//! ```
//! No type of rdma-sys leaves this folder. Imports memory, types, sys. Imported by control.

mod async_events;
mod cm;
mod device;
mod gid;
mod inventory;
mod lane;
mod open;
mod queue_pair;
mod watch;
mod window;

pub use cm::Id;
pub use device::{Device, Mr};
pub use gid::{Gid, GidKind, choose};
pub use inventory::{DeviceReport, PortReport, inventory};
pub use lane::{Lane, Wc};
pub use queue_pair::{Qp, QpControl};

use super::{
    AsyncEvent, CmEvent, ConnParams, Endpoint, Fabric, FabricError, IdKey, LaneGrant, LaneSpec,
    PrivateData, QpGrant, QpSpec, Step,
};
use crate::types::{DeviceLimits, Rkey};
use device::CqHandle;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// Every device that librdmacm has, and one event channel.
#[derive(Debug)]
pub struct Verbs {
    channel: cm::Channel,
    watch: watch::Watch,
    devices: Vec<Device>,
}

/// Control's half of a lane.
#[derive(Debug)]
pub struct Cq(Arc<CqHandle>);

impl Verbs {
    /// Opens the devices and the event channel.
    ///
    /// # Errors
    /// The libraries are missing, or the kernel has no rdma_cm.
    pub fn open() -> Result<Self, FabricError> {
        let channel = cm::Channel::open()?;
        let watch = watch::Watch::open();
        let devices = open::devices()?;
        for device in &devices {
            async_events::prepare(device)?;
        }
        Ok(Self {
            channel,
            watch,
            devices,
        })
    }
}

/// Limits of every device that rdma_cm can use.
///
/// # Errors
/// The libraries are missing, or the kernel has no rdma_cm.
pub fn limits_of_all() -> Result<Vec<DeviceLimits>, FabricError> {
    Ok(open::devices()?
        .iter()
        .map(|d| d.limits().clone())
        .collect())
}

impl Fabric for Verbs {
    type Device = Device;
    type Lane = Lane;
    type Cq = Cq;
    type Qp = Qp;
    type QpControl = QpControl;
    type Id = Id;

    fn devices(&self) -> Vec<Device> {
        self.devices.clone()
    }

    fn forget_device(&mut self, name: &str) -> bool {
        self.devices
            .retain(|device| device.limits().name != name || device.is_shared());
        !self.devices.iter().any(|d| d.limits().name == name) && !open::is_listed(name)
    }

    fn limits(device: &Device) -> &DeviceLimits {
        device.limits()
    }

    fn create_lane(
        &mut self,
        device: &Device,
        spec: &LaneSpec,
    ) -> Result<(Cq, Lane, LaneGrant), FabricError> {
        let cq = CqHandle::create(device, spec)?;
        let grant = LaneGrant {
            device: device.limits().name.clone(),
            cq_depth: cq.depth(),
            thread_domain: cq.thread_domain.clone(),
            relaxed_ordering: device.relaxed_ordering(),
            shared_recv_depth: cq.shared_recv_depth(),
        };
        Ok((Cq(Arc::clone(&cq)), Lane::new(cq), grant))
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    fn next_event(&mut self) -> Result<Option<CmEvent<Id>>, FabricError> {
        self.channel.next_event()
    }

    fn async_fds(&self) -> Vec<BorrowedFd<'_>> {
        let devices = self.devices.iter().map(async_events::fd);
        devices.chain(self.watch.fd()).collect()
    }

    fn next_async_event(&mut self) -> Option<AsyncEvent> {
        let told = self.devices.iter().find_map(async_events::next);
        told.or_else(|| self.watch.next(&self.devices))
    }

    fn key(id: &Id) -> IdKey {
        id.key()
    }

    fn listen(&mut self, at: &Endpoint, backlog: u32) -> Result<Id, FabricError> {
        self.channel.listen(at, backlog)
    }

    fn local_endpoint(&self, id: &Id) -> Option<Endpoint> {
        id.local()
    }

    fn peer_endpoint(&self, id: &Id) -> Option<Endpoint> {
        id.peer()
    }

    fn resolve_address(&mut self, peer: &Endpoint, timeout: Duration) -> Result<Id, FabricError> {
        self.channel.resolve_address(peer, timeout)
    }

    fn resolve_route(&mut self, id: &mut Id, timeout: Duration) -> Result<(), FabricError> {
        id.resolve_route(timeout)
    }

    fn device_name(&self, id: &Id) -> Option<String> {
        id.device_name()
    }

    fn create_qp(
        &mut self,
        id: &mut Id,
        cq: &Cq,
        spec: &QpSpec,
    ) -> Result<(QpControl, Qp, QpGrant), FabricError> {
        let lane = &cq.0.device().limits().name;
        if id.device_name().as_ref() != Some(lane) {
            let error = io::Error::from(io::ErrorKind::InvalidInput);
            return Err(FabricError::new(Step::CreateQp, lane, error)
                .advise("The connection is bound to another device than the lane"));
        }
        queue_pair::create(id, &cq.0, spec)
    }

    fn connect(
        &mut self,
        id: &mut Id,
        qp: &mut QpControl,
        params: &ConnParams,
    ) -> Result<(), FabricError> {
        id.connect(&mut cm::native_params(params, qp.number()))
    }

    fn confirm(&mut self, id: &mut Id, qp: &mut QpControl) -> Result<(), FabricError> {
        if qp.moved_by_cm() {
            return Ok(());
        }
        qp.ready(id)?;
        id.establish()
    }

    fn accept(
        &mut self,
        id: &mut Id,
        qp: &mut QpControl,
        params: &ConnParams,
    ) -> Result<(), FabricError> {
        if !qp.moved_by_cm() {
            qp.ready(id)?;
        }
        id.accept(&mut cm::native_params(params, qp.number()))
    }

    fn reject(&mut self, id: &mut Id, data: &PrivateData) -> Result<(), FabricError> {
        id.reject(data)
    }

    fn notify_established(&mut self, id: &mut Id) {
        id.notify_established();
    }

    fn disconnect(&mut self, id: &mut Id) -> Result<(), FabricError> {
        id.disconnect()
    }

    fn set_error(&mut self, _id: &mut Id, qp: &mut QpControl) -> Result<(), FabricError> {
        qp.fail()
    }

    fn window_keys(qp: &Qp) -> Vec<Rkey> {
        qp.windows().iter().map(window::Window::rkey).collect()
    }

    fn destroy_qp(&mut self, _id: &mut Id, control: QpControl, qp: Qp) {
        debug_assert!(control.pairs_with(&qp));
        drop((control, qp));
    }

    fn destroy_id(&mut self, id: Id) {
        drop(id);
    }
}
