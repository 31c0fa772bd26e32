//! The engine: a plan brought to life. Threads are started, pinned and joined here, and only here.
//!
//! ```text
//!  Engine::start(plan, service factory)
//!     choose: the plan's fabric ─► build: pools, lanes, registrations on it
//!                                    └─► one thread a worker, one for control
//!  Engine::listen, connect, close ─► requests ─► control thread
//!  Engine::run_until(stop) / shutdown ─► drain, join, report what is left
//! ```
//! Imports everything; imported by programs.

mod build;
mod choose;
mod error;
mod group;
mod requests;
mod threads;

pub use error::EngineError;
pub use group::{GroupError, GroupSpec, OpenGroup};
pub use requests::Stop;

use crate::config::Plan;
use crate::control::{ConnectError, Offer, Timing, Welcome};
use crate::fabric::shm::Shm;
use crate::fabric::{Endpoint, Fabric, FabricError, LaneGrant, Url};
use crate::memory::{ExposeError, ExposedMemory, HugepagePolicy, Tier};
use crate::metrics::{CounterReader, CounterSnapshot};
use crate::sys::clock::Clock;
use crate::types::{Access, CoreId};
use crate::worker::{ConnId, Service};
use choose::Chosen;
use requests::{Request, Requests};
use serde::Serialize;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;

type Expose = dyn Fn(usize, HugepagePolicy, Access) -> Result<ExposedMemory, ExposeError>;

/// A worker, as its service's factory sees it.
#[derive(Clone)]
pub struct WorkerInfo {
    /// Number, from 0.
    pub number: u16,
    /// Core that its thread is pinned to.
    pub core: Option<CoreId>,
    /// Bytes of a buffer of its pool.
    pub buffer_bytes: u32,
    /// The clock that its turns are given.
    pub clock: Clock,
    expose: Rc<Expose>,
}

impl WorkerInfo {
    /// Takes zeroed memory that peers may be given `access` to, registered with every device of the
    /// worker. Connections must allow the access too: [`Offer::access`].
    ///
    /// # Errors
    /// The memory is not to be had, or a device refused it.
    pub fn expose(
        &self,
        bytes: usize,
        hugepages: HugepagePolicy,
        access: Access,
    ) -> Result<ExposedMemory, ExposeError> {
        (self.expose)(bytes, hugepages, access)
    }
}

impl std::fmt::Debug for WorkerInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerInfo")
            .field("number", &self.number)
            .field("core", &self.core)
            .field("buffer_bytes", &self.buffer_bytes)
            .finish_non_exhaustive()
    }
}

/// What a worker was granted by the host and its devices.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerGrant {
    /// Number, from 0.
    pub number: u16,
    /// Pages of its pool.
    pub pool: Tier,
    /// Bytes of its pool.
    pub pool_bytes: usize,
    /// Its lanes.
    pub lanes: Vec<LaneGrant>,
}

/// What was left when an engine ended. Empty when all is well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Leftovers {
    /// Pool slots that did not come back, by worker.
    pub slots: Vec<(u16, u32)>,
    /// Connections that could not be ended in time.
    pub connections: usize,
}

impl Leftovers {
    /// Nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.connections == 0
    }
}

/// A running engine: its control core and workers. Dropping it shuts it down.
#[derive(Debug)]
pub struct Engine {
    requests: Requests,
    control: Option<JoinHandle<Result<usize, EngineError>>>,
    workers: Vec<JoinHandle<Result<u32, EngineError>>>,
    counters: Vec<CounterReader>,
    grants: Vec<WorkerGrant>,
    /// Groups opened so far: the name of the next.
    groups: AtomicU64,
}

impl Engine {
    /// Starts an engine on the fabric of the plan's devices: shared memory where they are `shm0`, else
    /// verbs. One service a worker, made on the worker's own core.
    ///
    /// # Errors
    /// A device, memory or core that the plan names is not to be had, or its devices are of two
    /// fabrics. Nothing is left running.
    pub fn start<S, M>(plan: &Plan, service: M) -> Result<Self, EngineError>
    where
        S: Service + 'static,
        M: Fn(WorkerInfo) -> S + Send + Sync + 'static,
    {
        match choose::choose(plan)? {
            Chosen::Shm => {
                let fabric = Shm::open(choose::settings(&plan.shm))?;
                Self::start_on(fabric, plan, service)
            }
            #[cfg(feature = "verbs")]
            Chosen::Verbs => Self::start_on(crate::fabric::verbs::Verbs::open()?, plan, service),
        }
    }

    /// Starts an engine on a fabric of the caller's choice.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn start_on<F, S, M>(fabric: F, plan: &Plan, service: M) -> Result<Self, EngineError>
    where
        F: Fabric,
        S: Service + 'static,
        M: Fn(WorkerInfo) -> S + Send + Sync + 'static,
    {
        let built = build::build(fabric, plan)?;
        threads::start(built, plan, service)
    }

    /// Listens; gives the address, with the real port where 0 was asked.
    ///
    /// # Errors
    /// The name is unknown, the address taken or of no device.
    pub fn listen(&self, at: &Url) -> Result<Endpoint, EngineError> {
        self.listen_with(at, Offer::default())
    }

    /// Listens on terms of the caller's: an [`Offer`] to all, or a [`Welcome`] that decides about
    /// each request.
    ///
    /// # Errors
    /// As [`Engine::listen`].
    pub fn listen_with(
        &self,
        at: &Url,
        welcome: impl Into<Welcome>,
    ) -> Result<Endpoint, EngineError> {
        let welcome = welcome.into();
        let mut last: Option<FabricError> = None;
        for endpoint in EngineError::resolve(at)? {
            let result = self
                .requests
                .ask(|reply| Request::Listen(endpoint, welcome.clone(), reply))?;
            match result {
                Ok(endpoint) => return Ok(endpoint),
                Err(error) => last = Some(error),
            }
        }
        Err(last.map_or(EngineError::Stopped, EngineError::from))
    }

    /// Connects, trying every address of a name in turn. The connection belongs to the service of
    /// the worker that it was given to.
    ///
    /// # Errors
    /// Why the last address did not work. Bounded by the plan's timeouts.
    pub fn connect(&self, peer: &Url, offer: Offer) -> Result<ConnId, ConnectError> {
        let endpoints = EngineError::resolve(peer).map_err(|error| ConnectError::NoRoute {
            peer: peer.to_string(),
            source: std::io::Error::other(error),
        })?;
        let mut last = ConnectError::Stopped;
        for endpoint in endpoints {
            let result = self
                .requests
                .ask(|reply| Request::Connect(endpoint, Box::new(offer), reply));
            match result.map_err(|_| ConnectError::Stopped)? {
                Ok(conn) => return Ok(conn),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Closes a connection; its service is told when it has ended.
    pub fn close(&self, conn: ConnId) {
        self.requests.send(Request::Close(conn));
    }

    /// What each worker has counted so far.
    #[must_use]
    pub fn counters(&self) -> Vec<CounterSnapshot> {
        self.counters.iter().map(CounterReader::snapshot).collect()
    }

    /// Readers of the workers' counters, which outlive the engine: the last word on what it did.
    #[must_use]
    pub fn counter_readers(&self) -> Vec<CounterReader> {
        self.counters.clone()
    }

    /// What each worker was granted.
    #[must_use]
    pub fn grants(&self) -> &[WorkerGrant] {
        &self.grants
    }

    /// Runs until `stop` says so or the engine fails, then shuts down.
    ///
    /// # Errors
    /// The engine failed, or could not be shut down in time.
    pub fn run_until(self, mut stop: impl Stop) -> Result<Leftovers, EngineError> {
        while !stop.wait(Duration::from_millis(200)) {
            let failed = self.control.as_ref().is_none_or(JoinHandle::is_finished)
                || self.workers.iter().any(JoinHandle::is_finished);
            if failed {
                break;
            }
        }
        self.shutdown()
    }

    /// Stops listening, closes every connection, joins every thread.
    ///
    /// # Errors
    /// A thread failed or panicked.
    pub fn shutdown(mut self) -> Result<Leftovers, EngineError> {
        self.end()
    }

    fn end(&mut self) -> Result<Leftovers, EngineError> {
        self.requests.send(Request::Shutdown);
        let mut failure = None;
        let mut left = Leftovers::default();
        // Control first: it ends when every worker has, and workers end when control is gone.
        if let Some(control) = self.control.take() {
            match control.join() {
                Ok(Ok(connections)) => left.connections = connections,
                Ok(Err(error)) => failure = Some(error),
                Err(_) => failure = Some(EngineError::Panicked("control".into())),
            }
        }
        for (number, worker) in self.workers.drain(..).enumerate() {
            let number = u16::try_from(number).unwrap_or(u16::MAX);
            match worker.join() {
                Ok(Ok(0)) => {}
                Ok(Ok(slots)) => left.slots.push((number, slots)),
                Ok(Err(error)) => failure = Some(error),
                Err(_) => failure = Some(EngineError::Panicked(format!("worker {number}"))),
            }
        }
        failure.map_or(Ok(left), Err)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.control.is_some()
            && let Err(error) = self.end()
        {
            tracing::error!(%error, "the engine did not end well");
        }
    }
}

/// The plan's times, as control takes them.
fn timing(plan: &Plan) -> Timing {
    Timing {
        resolve: plan.connection.resolve_timeout,
        connect: plan.connection.connect_timeout,
        drain: plan.connection.drain_deadline,
        retry_count: plan.connection.retry_count,
        rnr_retry_count: plan.connection.rnr_retry_count,
    }
}
