//! What a transport must offer: RC queue pairs, completion queues, and a connection manager.
//!
//! ```text
//!  control core                               worker core
//!  Fabric: listen, resolve, create_qp ──Qp──► Lane: post_send, post_recv, poll
//!          connect, accept, disconnect        (one CQ and the QPs that complete on it)
//!          set_error, destroy ◄──────────Qp── …until drained
//! ```
//! Everything is monomorphised: a worker knows its fabric's types, the service does not. A queue
//! pair has two halves. [`Fabric::QpControl`] stays with control and moves the QP through its
//! states; [`Fabric::Qp`] travels to the worker and is the only way to post. Destroying takes both,
//! so no QP dies under a worker that could still post to it.
//!
//! Imports memory, types, limits. Imported by worker and control.

mod cm;
pub mod contract;
mod datapath;
mod error;
pub mod fault;
pub mod pair;
mod plain;
pub mod shm;
mod soft;
#[cfg(all(test, not(loom)))]
pub(crate) mod toy;
mod url;
#[cfg(feature = "verbs")]
pub mod verbs;

pub use cm::{
    AsyncEvent, AsyncSubject, CmEvent, CmEventKind, ConnParams, Endpoint, IdKey, PrivateData,
    PrivateDataTooLong,
};
pub use datapath::{
    Lane, MoreSges, Note, PostFailure, RecvWr, SendOp, SendWr, Sge, WcOpcode, WcStatus,
    WorkCompletion,
};
pub use error::{FabricError, Step};
pub use plain::PlainWc;
pub use url::{Url, UrlError};

use crate::memory::Registrar;
use crate::types::{Abilities, Access, DeviceLimits, QpNum, Rkey};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// What to create a QP with. The device may grant a smaller inline size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpSpec {
    /// Work requests on the send queue.
    pub send_depth: u32,
    /// Work requests on the receive queue; not used with `shared_receives`.
    pub recv_depth: u32,
    /// Messages go to receives of the lane's shared queue.
    pub shared_receives: bool,
    /// Inline bytes asked for.
    pub inline_bytes: u32,
    /// What the peer may do to memory that it has keys of. iWARP's QPs allow everything: there the
    /// registration alone decides.
    pub access: Access,
    /// Memory windows of the QP's own; 0 on devices that have none.
    pub windows: u16,
}

/// What a device granted for a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpGrant {
    /// Number on the device.
    pub number: QpNum,
    /// Payload bytes that a post may copy into the work request.
    pub inline_bytes: u32,
    /// Bytes of one message.
    pub message_bytes_max: u32,
    /// Completions prove less than on InfiniBand (SoftiWARP, and so iWARP): what is posted behind a READ
    /// may complete before it, and an unsignalled operation of [`SIGNALLED_FROM_BYTES`](crate::limits::SIGNALLED_FROM_BYTES) may still be
    /// read from memory when one behind it has completed.
    pub loose: bool,
    /// What the device can do beyond SEND, WRITE and READ.
    pub abilities: Abilities,
}

/// What a lane got from its provider; shown in reports.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LaneGrant {
    /// Device of the lane.
    pub device: String,
    /// Entries of the CQ; at least what was asked.
    pub cq_depth: u32,
    /// QPs are in a thread domain, so the provider takes no lock on a post. `Err` says why not.
    pub thread_domain: Result<(), String>,
    /// The pool is registered with relaxed ordering. `Err` says why not.
    pub relaxed_ordering: Result<(), String>,
    /// Work requests of the shared receive queue; 0 where there is none.
    pub shared_recv_depth: u32,
}

/// Specification of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneSpec {
    /// Entries of the CQ.
    pub cq_depth: u32,
    /// The worker sleeps on the lane's completion channel.
    pub events: bool,
    /// Work requests of a receive queue shared by all QPs of the lane; 0 for none.
    pub shared_recv_depth: u32,
}

/// A transport with the semantics of reliable connections, opened on the control core.
///
/// Every call but [`Fabric::next_event`]'s own system call returns without waiting for the peer.
pub trait Fabric: Sized + Send + 'static {
    /// A device that was opened, with its protection domain. Cheap to clone.
    type Device: Registrar + Clone + Send + 'static;
    /// Datapath half of a lane; moved to its worker.
    type Lane: Lane<Qp = Self::Qp> + Send;
    /// Control's half of a lane: the CQ as far as creating QPs needs it.
    type Cq: Send;
    /// Posting half of a queue pair.
    type Qp: Send;
    /// Control's half of a queue pair.
    type QpControl: Send;
    /// A communication identifier: a connection or listener as the connection manager knows it.
    type Id: Send;

    /// Devices found when the fabric was opened.
    fn devices(&self) -> Vec<Self::Device>;
    /// The device goes away and nothing of ours is left on it: lets go of it, so that the connection
    /// manager can close it. False while it is not closed: to be called again.
    fn forget_device(&mut self, name: &str) -> bool;
    /// Limits of a device.
    fn limits(device: &Self::Device) -> &DeviceLimits;
    /// Creates a CQ and what belongs to it.
    ///
    /// # Errors
    /// The device refused.
    fn create_lane(
        &mut self,
        device: &Self::Device,
        spec: &LaneSpec,
    ) -> Result<(Self::Cq, Self::Lane, LaneGrant), FabricError>;

    /// Readable when [`Fabric::next_event`] has something.
    fn event_fd(&self) -> BorrowedFd<'_>;
    /// The next event of the connection manager, copied out and acknowledged.
    ///
    /// # Errors
    /// The channel failed; `Ok(None)` when nothing waits.
    fn next_event(&mut self) -> Result<Option<CmEvent<Self::Id>>, FabricError>;
    /// Any of them is readable when [`Fabric::next_async_event`] has something.
    fn async_fds(&self) -> Vec<BorrowedFd<'_>>;
    /// The next asynchronous device event, acknowledged.
    fn next_async_event(&mut self) -> Option<AsyncEvent>;

    /// Identity of an id in events.
    fn key(id: &Self::Id) -> IdKey;
    /// Listens for connections.
    ///
    /// # Errors
    /// The address is taken, belongs to no device, or is not of this fabric.
    fn listen(&mut self, at: &Endpoint, backlog: u32) -> Result<Self::Id, FabricError>;
    /// The address that a listener got; the port is the real one where 0 was asked.
    fn local_endpoint(&self, id: &Self::Id) -> Option<Endpoint>;
    /// The peer's address of a connection.
    fn peer_endpoint(&self, id: &Self::Id) -> Option<Endpoint>;
    /// Begins an active connection; AddrResolved or AddrError follows.
    ///
    /// # Errors
    /// The address cannot be resolved from here.
    fn resolve_address(
        &mut self,
        peer: &Endpoint,
        timeout: Duration,
    ) -> Result<Self::Id, FabricError>;
    /// Second step of an active connection; RouteResolved or RouteError follows.
    ///
    /// # Errors
    /// The id is not in a state for it.
    fn resolve_route(&mut self, id: &mut Self::Id, timeout: Duration) -> Result<(), FabricError>;
    /// Name of the device that the id is bound to.
    fn device_name(&self, id: &Self::Id) -> Option<String>;

    /// Creates the QP of a connection on a lane's CQ, ready to take receives (INIT).
    ///
    /// # Errors
    /// The device refused, after smaller inline sizes were tried.
    fn create_qp(
        &mut self,
        id: &mut Self::Id,
        cq: &Self::Cq,
        spec: &QpSpec,
    ) -> Result<(Self::QpControl, Self::Qp, QpGrant), FabricError>;
    /// Sends the connection request; ConnectResponse or Established follows.
    ///
    /// # Errors
    /// The id or QP is not in a state for it.
    fn connect(
        &mut self,
        id: &mut Self::Id,
        qp: &mut Self::QpControl,
        params: &ConnParams,
    ) -> Result<(), FabricError>;
    /// Answers ConnectResponse: moves the QP to RTS and tells the peer. The connection is up then.
    ///
    /// # Errors
    /// The QP did not take the state, or the peer has gone.
    fn confirm(&mut self, id: &mut Self::Id, qp: &mut Self::QpControl) -> Result<(), FabricError>;
    /// Accepts a request; Established follows.
    ///
    /// # Errors
    /// The QP did not take the state, or the peer has gone.
    fn accept(
        &mut self,
        id: &mut Self::Id,
        qp: &mut Self::QpControl,
        params: &ConnParams,
    ) -> Result<(), FabricError>;
    /// Rejects a request.
    ///
    /// # Errors
    /// The request is gone.
    fn reject(&mut self, id: &mut Self::Id, data: &PrivateData) -> Result<(), FabricError>;
    /// Data came before Established: tells the connection manager so.
    fn notify_established(&mut self, id: &mut Self::Id);
    /// Tells the peer that the connection ends; Disconnected is owed afterwards. On IB it comes when the
    /// peer has answered with a disconnect of its own.
    ///
    /// # Errors
    /// It had ended already.
    fn disconnect(&mut self, id: &mut Self::Id) -> Result<(), FabricError>;
    /// Moves the QP to the error state: everything outstanding is flushed.
    ///
    /// # Errors
    /// The device refused.
    fn set_error(&mut self, id: &mut Self::Id, qp: &mut Self::QpControl)
    -> Result<(), FabricError>;
    /// Keys of the windows of a QP as they are before the first bind.
    fn window_keys(qp: &Self::Qp) -> Vec<Rkey> {
        let _ = qp;
        Vec::new()
    }
    /// Destroys a QP and its windows. Both halves prove that nobody can post to it.
    fn destroy_qp(&mut self, id: &mut Self::Id, control: Self::QpControl, qp: Self::Qp);
    /// Destroys an id; no event names it afterwards.
    fn destroy_id(&mut self, id: Self::Id);
}
