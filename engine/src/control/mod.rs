//! The control core: connections come to be and end here; workers only ever get finished queue pairs.
//!
//! ```text
//!  rdma_cm events ─┐                       ┌─► execute: fabric calls (resolve, create_qp, connect…)
//!  device events ──┼─► Machine (pure) ─────┤
//!  worker events ──┤   one a connection    └─► commands to workers (Adopt, Stop, Flush, QpGone)
//!  deadlines ──────┘                                    │
//!  callers: listen, connect, close, shutdown            └─► notices to the caller
//! ```
//! An embedder with an event loop of its own polls [`Control::fd`] and calls [`Control::turn`] when
//! it is readable or [`Control::wait_hint`] is over; [`Control::run`] is that loop, blocking.
//! Imports worker, fabric, ring, sys. Imported by engine. Never touches a message.

#[cfg(all(test, not(loom)))]
mod control_tests;
mod error;
mod execute;
mod growing;
mod handshake;
mod links;
mod machine;
mod offer;
mod removal;
mod run;
mod turn;

pub use error::ConnectError;
pub use growing::PoolGrowth;
pub use links::{LaneLink, WorkerLink};
pub use machine::{Drain, State};
pub use offer::{Offer, Request, Verdict, Welcome};

use crate::fabric::{
    CmEvent, CmEventKind, ConnParams, Endpoint, Fabric, FabricError, IdKey, PrivateData,
};
use crate::limits::LISTEN_BACKLOG;
use crate::sys::epoll::Epoll;
use crate::sys::eventfd::EventFd;
use crate::types::{Nanos, QpNum};
use crate::wire::{Hello, HelloError};
use crate::worker::{CloseReason, ConnId, Role};
use links::{Place, Post};
use machine::{Action, Machine};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// Times and retries of every connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// For the address, and again for the route.
    pub resolve: Duration,
    /// From the request to the connection.
    pub connect: Duration,
    /// For flushes, and for the peer's last word.
    pub drain: Duration,
    /// Retries of an unanswered packet: 0 to 7.
    pub retry_count: u8,
    /// Retries after RNR: 0 to 7, where 7 is for ever.
    pub rnr_retry_count: u8,
}

/// Names a connection attempt or listener of this control core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(u64);

/// What an embedder is told.
#[derive(Debug)]
pub enum Notice {
    /// An attempt succeeded; the worker's service has the connection.
    Connected(Handle, ConnId),
    /// An attempt failed.
    Failed(Handle, ConnectError),
    /// A peer's request was accepted.
    Accepted(ConnId),
    /// A connection that was up has ended, and everything of it is given back.
    Closed(ConnId, CloseReason),
}

struct Listener<F: Fabric> {
    id: F::Id,
    at: Endpoint,
    welcome: Welcome,
}

/// One connection, from its first step to its last.
struct Conn<F: Fabric> {
    handle: Handle,
    machine: Machine,
    id: Option<F::Id>,
    qp: Option<F::QpControl>,
    /// The posting half, back from the worker.
    qp_back: Option<F::Qp>,
    place: Option<Place>,
    offer: Offer,
    params: ConnParams,
    peer_endpoint: String,
    peer_data: PrivateData,
    /// What a framed peer says of itself, or why that cannot be read; `None` before it spoke, and in raw
    /// mode.
    hello: Option<Result<Hello, HelloError>>,
    /// Receives that the worker had posted when it took the connection.
    posted: u32,
    announced: bool,
    /// The call that failed, where the cause is an action.
    error: Option<FabricError>,
    device: String,
    qp_number: Option<QpNum>,
    /// When its state began; FAR until the next turn, for a caller between turns knows no time.
    since: Nanos,
    /// How long the state lasted in which the cause of the end came.
    waited: Duration,
    deadline: Nanos,
}

impl<F: Fabric> Conn<F> {
    /// Keeps what the peer says in its answer to a request. False: it is no answer that this side can
    /// go on with.
    fn hear(&mut self, event: &CmEvent<F::Id>) -> bool {
        let answers = self.machine.role() == Role::Active;
        match event.kind {
            CmEventKind::ConnectResponse | CmEventKind::Established if answers => {
                let p = &mut self.params;
                p.responder_resources = p.responder_resources.min(event.responder_resources);
                p.initiator_depth = p.initiator_depth.min(event.initiator_depth);
                // On InfiniBand the hello comes with ConnectResponse; Established has nothing more.
                if self.hello.is_none() {
                    self.peer_data = event.private_data;
                    return self.hear_hello();
                }
            }
            CmEventKind::Rejected => self.peer_data = event.private_data,
            _ => {}
        }
        true
    }
}

/// The control core of one engine.
pub struct Control<F: Fabric> {
    conns: HashMap<Handle, Conn<F>>,
    by_id: HashMap<IdKey, Handle>,
    by_conn: HashMap<ConnId, Handle>,
    listeners: HashMap<Handle, Listener<F>>,
    posts: Vec<Post<F>>,
    notices: VecDeque<Notice>,
    /// Connections whose machine has something to do, with what.
    todo: VecDeque<(Handle, Vec<Action>)>,
    timing: Timing,
    next_handle: u64,
    now: Nanos,
    epoll: Epoll,
    wake: Arc<EventFd>,
    /// Devices that are going away.
    removals: Vec<String>,
    stopping: bool,
    exit_sent: bool,
    // Last, so that ids and QPs go before the fabric they belong to.
    fabric: F,
}

impl<F: Fabric> std::fmt::Debug for Control<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control")
            .field("connections", &self.conns.len())
            .field("listeners", &self.listeners.len())
            .finish_non_exhaustive()
    }
}

impl<F: Fabric> Control<F> {
    /// Takes charge of a fabric and of workers that were prepared for it.
    ///
    /// # Errors
    /// No epoll or eventfd is to be had.
    pub fn new(fabric: F, workers: Vec<WorkerLink<F>>, timing: Timing) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        let wake = Arc::new(EventFd::new()?);
        epoll.add(wake.fd(), 0)?;
        epoll.add(fabric.event_fd(), 1)?;
        for (fd, token) in fabric.async_fds().into_iter().zip(2..) {
            epoll.add(fd, token)?;
        }
        Ok(Self {
            conns: HashMap::new(),
            by_id: HashMap::new(),
            by_conn: HashMap::new(),
            listeners: HashMap::new(),
            posts: workers.into_iter().map(Post::new).collect(),
            notices: VecDeque::new(),
            todo: VecDeque::new(),
            timing,
            next_handle: 1,
            now: Nanos(0),
            epoll,
            wake,
            removals: Vec::new(),
            stopping: false,
            exit_sent: false,
            fabric,
        })
    }

    /// Readable when there is something for [`Control::turn`]. Workers never signal it, for that
    /// would cost them a system call: see [`Control::wait_hint`].
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.fd()
    }

    /// Signalled by whoever has something for the caller of [`Control::turn`].
    #[must_use]
    pub fn waker(&self) -> Arc<EventFd> {
        Arc::clone(&self.wake)
    }

    /// Listens; connections go to the worker with the most room on the device they come in by.
    ///
    /// # Errors
    /// The address is taken, or belongs to no device.
    pub fn listen(&mut self, at: &Endpoint, welcome: Welcome) -> Result<Endpoint, FabricError> {
        let id = self.fabric.listen(at, LISTEN_BACKLOG)?;
        let at = self
            .fabric
            .local_endpoint(&id)
            .unwrap_or_else(|| at.clone());
        let handle = self.handle();
        self.by_id.insert(F::key(&id), handle);
        tracing::info!(%at, "listening");
        self.listeners.insert(
            handle,
            Listener {
                id,
                at: at.clone(),
                welcome,
            },
        );
        Ok(at)
    }

    /// Begins a connection; a notice says how it went.
    ///
    /// # Errors
    /// The address cannot be resolved from here, or the engine is stopping.
    pub fn connect(&mut self, peer: &Endpoint, offer: Offer) -> Result<Handle, ConnectError> {
        if self.stopping {
            return Err(ConnectError::Stopped);
        }
        let id = self.fabric.resolve_address(peer, self.timing.resolve)?;
        let params = self.params(&offer);
        Ok(self.record(Machine::active(), id, offer, params, peer.to_string()))
    }

    /// Closes a connection; a notice says when it has ended.
    pub fn close(&mut self, conn: ConnId) {
        if let Some(handle) = self.by_conn.get(&conn).copied() {
            self.feed(handle, machine::Input::Close(CloseReason::Local));
        }
    }

    /// Stops listening and closes every connection; [`Control::is_done`] says when all has ended.
    pub fn shutdown(&mut self) {
        self.stopping = true;
        for (_, listener) in self.listeners.drain() {
            tracing::info!(at = %listener.at, "no longer listening");
            self.by_id.remove(&F::key(&listener.id));
            self.fabric.destroy_id(listener.id);
        }
        let handles: Vec<Handle> = self.conns.keys().copied().collect();
        for handle in handles {
            self.feed(handle, machine::Input::Close(CloseReason::Shutdown));
        }
    }

    /// Everything has ended after [`Control::shutdown`].
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.stopping && self.conns.is_empty() && self.posts.iter().all(|p| p.lost)
    }

    /// The next notice.
    pub fn take_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Connections that exist in any state.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// The state of a connection, `None` when it is gone.
    #[must_use]
    pub fn state(&self, handle: Handle) -> Option<State> {
        self.conns.get(&handle).map(|c| c.machine.state())
    }

    fn handle(&mut self) -> Handle {
        let handle = Handle(self.next_handle);
        self.next_handle += 1;
        handle
    }

    fn params(&self, offer: &Offer) -> ConnParams {
        ConnParams {
            private_data: offer.private_data,
            responder_resources: offer.responder_resources,
            initiator_depth: offer.initiator_depth,
            retry_count: self.timing.retry_count,
            rnr_retry_count: self.timing.rnr_retry_count,
        }
    }

    fn record(
        &mut self,
        machine: Machine,
        id: F::Id,
        offer: Offer,
        params: ConnParams,
        peer_endpoint: String,
    ) -> Handle {
        let handle = self.handle();
        self.by_id.insert(F::key(&id), handle);
        let conn = Conn {
            handle,
            machine,
            id: Some(id),
            qp: None,
            qp_back: None,
            place: None,
            offer,
            params,
            peer_endpoint,
            peer_data: PrivateData::EMPTY,
            hello: None,
            posted: 0,
            announced: false,
            error: None,
            device: String::new(),
            qp_number: None,
            since: Nanos::FAR,
            waited: Duration::ZERO,
            deadline: Nanos::FAR,
        };
        self.conns.insert(handle, conn);
        handle
    }

    fn deadline_of(&self, state: State) -> Nanos {
        let grace = Duration::from_secs(1);
        match state {
            // The fabric has its own timeout; ours is for one that forgets.
            State::Idle | State::AddressResolved => self.now + self.timing.resolve + grace,
            State::RouteResolved => self.now + self.timing.connect,
            State::Connecting => self.now + self.timing.connect,
            State::Draining(_) => self.now + self.timing.drain,
            State::Established | State::Closed => Nanos::FAR,
        }
    }
}
