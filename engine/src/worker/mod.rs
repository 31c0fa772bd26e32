//! One shard of the data plane: a core, its lanes, its pool, its service.
//!
//! ```text
//!   commands ─► lifecycle ─┐                      ┌─► Service handlers ─► Io
//!                          ▼                      │                        │
//!   Worker::turn: poll CQs ──► completions ───────┘     send queues ◄──────┘
//!                                                            │ doorbells
//!   events ◄── lifecycle                  receives reposted ─┴─► Lane::post_*
//! ```
//! A worker takes no lock, allocates nothing and makes no system call of its own in a turn (idle
//! policies `yield` and `event` make theirs between turns). It shares nothing with other workers.
//! Imports fabric, memory, ring, metrics. Imported by control. Never names control.

mod completion;
mod connection;
mod group;
#[cfg(all(test, not(loom)))]
mod group_tests;
mod growing;
#[cfg(all(test, loom))]
mod handover_loom;
mod io;
mod lifecycle;
mod mailbox;
mod post;
mod qp_index;
mod recv_queue;
mod run;
#[cfg(all(test, not(loom)))]
pub(crate) mod scripted;
mod send_queue;
mod service;
mod shared_recvs;
mod sharing;
mod sinks;
mod turn;
mod windows;
#[cfg(all(test, not(loom)))]
mod worker_tests;
mod wr_id;

pub use connection::LaneCapacity;
pub use group::{Group, NoPick, NotOfGroup, Policy};
pub use io::Io;
pub(crate) use io::Standing;
pub use mailbox::{Command, ControlEnd, Event, Handover, PoolChunk, WorkerEnd, mailbox};
pub(crate) use post::word_of;
pub use post::{PostError, Rejected};
pub use service::{
    CloseReason, Completed, ConnId, Message, Outcome, Peer, Role, Service, Token, Turn, Violation,
};
pub(crate) use wr_id::GENERATIONS;

use crate::fabric::{Fabric, Lane};
use crate::limits::{LANES_MAX, POLL_BATCH_MAX, POOL_CHUNKS_MAX};
use crate::memory::{ExposedMemory, Exposures, Pool, Registrar, Registration};
use crate::metrics::CounterWriter;
use crate::types::{CoreId, IdlePolicy, Lkey, Nanos};
use connection::Table;
use growing::Growing;
use io::Core;
use recv_queue::RecvChain;
use shared_recvs::SharedRecvs;
use sinks::Sinks;
use std::collections::VecDeque;
use std::time::Duration;

type Wcs<F> = Box<[<<F as Fabric>::Lane as Lane>::Wc; POLL_BATCH_MAX]>;
type RegistrationOf<F> = <<F as Fabric>::Device as Registrar>::Registration;

/// A lane as control prepared it.
pub struct LaneSetup<F: Fabric> {
    /// The datapath half.
    pub lane: F::Lane,
    /// The pool's registration on the lane's device.
    pub registration: RegistrationOf<F>,
    /// Connections and depths.
    pub capacity: LaneCapacity,
}

/// Everything a worker starts from.
pub struct WorkerSetup<F: Fabric> {
    /// Number of the worker.
    pub number: u16,
    /// Core it is pinned to.
    pub core: Option<CoreId>,
    /// Its lanes.
    pub lanes: Vec<LaneSetup<F>>,
    /// Its pool.
    pub pool: Pool,
    /// Its end of the mailbox.
    pub mailbox: WorkerEnd<F>,
    /// Its counters.
    pub counters: CounterWriter,
    /// What it does with idle turns.
    pub idle: IdlePolicy,
    /// How long a close waits for sends that are out.
    pub close_deadline: Duration,
    /// Memory of the service's that peers have access to.
    pub exposures: Exposures<F::Device>,
    /// By lane: memory exposed for writing that READs go through, where the device wants that
    /// ([`Abilities::read_sink_is_exposed`](crate::types::Abilities)); may be shorter.
    pub read_sinks: Vec<Option<ExposedMemory>>,
}

impl<F: Fabric> std::fmt::Debug for WorkerSetup<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerSetup")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl<F: Fabric> std::fmt::Debug for LaneSetup<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaneSetup")
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// One device as this worker uses it.
struct LaneState<F: Fabric> {
    /// `None` once the device is removed.
    lane: Option<F::Lane>,
    lkey: Lkey,
    /// Places of it that are taken; it is polled while there is one.
    connections: u32,
    /// Completions in `wcs` that wait to be served.
    polled: usize,
    /// `None` while they are served.
    wcs: Option<Wcs<F>>,
    registration: Option<RegistrationOf<F>>,
    /// Receives shared by its connections. Behind the lane, so that buffers go back when the queue is
    /// gone.
    shared: Option<Box<SharedRecvs>>,
}

impl<F: Fabric> LaneState<F> {
    /// Polls, unless something waits already; gives the number that waits. What a lane without
    /// connections still completes is of the past: it is polled out when there is one again.
    #[inline]
    fn poll(&mut self) -> usize {
        if self.polled == 0
            && self.connections > 0
            && let (Some(lane), Some(wcs)) = (&mut self.lane, &mut self.wcs)
        {
            let n = lane.poll(&mut **wcs);
            if n > 0 {
                self.polled = n;
            }
            return n;
        }
        self.polled
    }
}

/// One shard. Owned by one thread; the caller owns the loop (or calls [`Worker::run`]).
pub struct Worker<F: Fabric, S: Service> {
    // Posting halves go first when a worker is dropped: no QP outlives the memory it was given.
    qps: Box<[Option<F::Qp>]>,
    lanes: Box<[LaneState<F>]>,
    core: Core,
    service: S,
    mailbox: WorkerEnd<F>,
    /// Regions that the pool has grown by, with their registrations; room for all that can come.
    #[expect(
        clippy::vec_box,
        reason = "a chunk stays in the box that it came in: a turn frees nothing"
    )]
    chunks: Vec<Box<PoolChunk<F>>>,
    growing: Growing,
    /// Events that wait for room in the ring; bounded by five a connection, one a lane and one more.
    outbox: VecDeque<Event<F>>,
    /// Connections with receives to post.
    hungry: Vec<u16>,
    /// One of them misses a batch.
    repost_due: bool,
    /// One of them misses half.
    repost_first: bool,
    recv_chain: Box<RecvChain>,
    exposures: Exposures<F::Device>,
    idle: IdlePolicy,
    /// Turns since the last busy one.
    idle_turns: u32,
    done: bool,
}

impl<F: Fabric, S: Service> std::fmt::Debug for Worker<F, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("number", &self.core.worker)
            .finish_non_exhaustive()
    }
}

/// The first place of a lane, as the table counts them.
fn first_place(lanes: &[LaneCapacity], lane: u8) -> u16 {
    let before = lanes.iter().take(lane.into()).map(|l| l.connections);
    u16::try_from(before.sum::<u32>()).unwrap_or(u16::MAX)
}

impl<F: Fabric, S: Service> Worker<F, S> {
    /// Takes all memory that the worker will ever use.
    pub fn new(setup: WorkerSetup<F>, service: S) -> Self {
        let capacities: Vec<LaneCapacity> = setup.lanes.iter().map(|l| l.capacity).collect();
        let table = Table::new(setup.number, &capacities);
        let places = table.len();
        let lanes = setup
            .lanes
            .into_iter()
            .zip(0..)
            .map(|(l, number)| LaneState {
                shared: SharedRecvs::new(
                    number,
                    first_place(&capacities, number),
                    l.registration.lkey(),
                    &l.capacity,
                )
                .map(Box::new),
                lane: Some(l.lane),
                lkey: l.registration.lkey(),
                connections: 0,
                polled: 0,
                wcs: Some(Box::new([F::Lane::blank(); POLL_BATCH_MAX])),
                registration: Some(l.registration),
            });
        let (slot_bytes, grows) = (setup.pool.slot_bytes(), setup.pool.is_growable());
        let sinks = setup.read_sinks.into_iter();
        let sinks = sinks.map(|memory| memory.map(|m| Sinks::new(m, slot_bytes)));
        let mut worker = Self {
            qps: (0..places).map(|_| None).collect(),
            lanes: lanes.collect(),
            core: Core {
                table,
                grown: setup.pool.has_grown(),
                pool: setup.pool,
                counters: setup.counters,
                sinks: sinks.collect(),
                dirty: Vec::with_capacity(places),
                timed: Vec::with_capacity(places),
                now: Nanos(0),
                close_deadline: setup.close_deadline,
                worker: setup.number,
                core: setup.core,
            },
            service,
            mailbox: setup.mailbox,
            chunks: Vec::with_capacity(if grows { POOL_CHUNKS_MAX } else { 0 }),
            growing: if grows { Growing::Ready } else { Growing::Off },
            outbox: VecDeque::with_capacity(5 * places + LANES_MAX + 1),
            hungry: Vec::with_capacity(places),
            repost_due: false,
            repost_first: false,
            recv_chain: Box::new(RecvChain::new()),
            exposures: setup.exposures,
            idle: setup.idle,
            idle_turns: 0,
            done: false,
        };
        worker.fill_shared();
        worker
    }

    /// Control has told the worker to end, or is gone: no further turn is needed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// The service, for a caller that owns the worker.
    pub fn service(&mut self) -> &mut S {
        &mut self.service
    }
}
