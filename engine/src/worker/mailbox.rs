//! What control and a worker say to each other. The rings are the only memory that both write.
//!
//! ```text
//!  control ─Adopt─► worker ─Armed─► control …connect… ─Established─► worker
//!                   worker ─CloseRequested─► control
//!  control ─Stop──► worker ─Stopped─► control: disconnect, ERR
//!                   worker ─Drained(qp)─► control: destroy the QP
//!  control ─QpGone► worker ─Released─► control: destroy the id
//!                   worker ─PoolLow─► control: map, register ─Grow─► worker
//! ```
//! A worker owns these types, so the data plane never names control.

use super::{CloseReason, ConnId, Peer, RegistrationOf};
use crate::fabric::{Fabric, QpGrant};
use crate::limits::MAILBOX_DEPTH;
use crate::memory::Region;
use crate::ring::sleep::{Sleeper, Waker};
use crate::ring::spsc::{self, Consumer, Producer};
use crate::types::Rkey;
use std::sync::Arc;
use std::time::Duration;

/// A connection on its way to a worker.
pub struct Handover<F: Fabric> {
    /// Its name; the index is free on the worker.
    pub(crate) conn: ConnId,
    /// Lane whose CQ the QP completes on.
    pub(crate) lane: u8,
    /// The posting half.
    pub(crate) qp: F::Qp,
    /// What the device granted.
    pub(crate) grant: QpGrant,
    /// Keys of its windows.
    pub(crate) windows: Vec<Rkey>,
    /// The passive side knows its peer before the handshake ends, so data that is early is served.
    pub(crate) peer: Option<Peer>,
}

/// What a pool grows by, on its way to the worker.
pub struct PoolChunk<F: Fabric> {
    /// The next of the pool's regions.
    pub(crate) region: Arc<Region>,
    /// By lane; `None` where the device is gone.
    pub(crate) registrations: Vec<Option<RegistrationOf<F>>>,
}

/// Control to worker.
pub enum Command<F: Fabric> {
    /// Post receives on this QP and answer Armed, or Refused.
    Adopt(Handover<F>),
    /// The handshake is done.
    Established(ConnId, Peer),
    /// Post nothing any more, give back what was not posted, and answer Stopped.
    Stop(ConnId, CloseReason),
    /// The QP is in ERR: poll until everything outstanding came back, at most this long, and answer
    /// Drained.
    Flush(ConnId, Duration),
    /// The QP is destroyed: what never completed is the pool's again. Answer Released.
    QpGone(ConnId),
    /// The device goes away, and no connection is left on the lane: drop it, and answer LaneDropped.
    DropLane(u8),
    /// More memory for the pool.
    Grow(Box<PoolChunk<F>>),
    /// There is none.
    NotGrown {
        /// There may be later.
        again: bool,
    },
    /// No connection is left: end the loop.
    Exit,
}

/// Worker to control.
pub enum Event<F: Fabric> {
    /// Receives are posted, so many.
    Armed(ConnId, u32),
    /// The connection cannot be taken: the posting half comes back.
    Refused(ConnId, F::Qp),
    /// The service, or an error, wants the connection closed.
    CloseRequested(ConnId, CloseReason),
    /// The worker posts nothing any more on it.
    Stopped(ConnId),
    /// Everything outstanding came back, or the time was up; the posting half comes back.
    Drained {
        /// The connection.
        conn: ConnId,
        /// The posting half.
        qp: F::Qp,
        /// Work requests that never completed; their slots wait for QpGone.
        missing: u32,
    },
    /// The worker has forgotten the connection.
    Released(ConnId),
    /// Nothing of the lane is left on the worker.
    LaneDropped(u8),
    /// Little of the pool is free, and it may grow: answer Grow or NotGrown.
    PoolLow,
}

impl<F: Fabric> std::fmt::Debug for Handover<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handover({})", self.conn)
    }
}

impl<F: Fabric> std::fmt::Debug for PoolChunk<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PoolChunk({} B)", self.region.len())
    }
}

impl<F: Fabric> std::fmt::Debug for Command<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Adopt(h) => write!(f, "Adopt({})", h.conn),
            Self::Established(c, _) => write!(f, "Established({c})"),
            Self::Stop(c, reason) => write!(f, "Stop({c}, {reason:?})"),
            Self::Flush(c, time) => write!(f, "Flush({c}, {time:?})"),
            Self::QpGone(c) => write!(f, "QpGone({c})"),
            Self::DropLane(lane) => write!(f, "DropLane({lane})"),
            Self::Grow(chunk) => write!(f, "Grow({} B)", chunk.region.len()),
            Self::NotGrown { again } => write!(f, "NotGrown(again: {again})"),
            Self::Exit => f.write_str("Exit"),
        }
    }
}

impl<F: Fabric> std::fmt::Debug for Event<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Armed(c, posted) => write!(f, "Armed({c}, {posted} receives)"),
            Self::Refused(c, _) => write!(f, "Refused({c})"),
            Self::CloseRequested(c, reason) => write!(f, "CloseRequested({c}, {reason:?})"),
            Self::Stopped(c) => write!(f, "Stopped({c})"),
            Self::Drained { conn, missing, .. } => write!(f, "Drained({conn}, {missing} missing)"),
            Self::Released(c) => write!(f, "Released({c})"),
            Self::LaneDropped(lane) => write!(f, "LaneDropped({lane})"),
            Self::PoolLow => f.write_str("PoolLow"),
        }
    }
}

/// The worker's end of the mailbox.
pub struct WorkerEnd<F: Fabric> {
    pub(super) commands: Consumer<Command<F>>,
    pub(super) events: Producer<Event<F>>,
    pub(super) sleeper: Sleeper,
}

/// Control's end of the mailbox.
pub struct ControlEnd<F: Fabric> {
    pub(crate) commands: Producer<Command<F>>,
    pub(crate) events: Consumer<Event<F>>,
    pub(crate) waker: Waker,
}

impl<F: Fabric> std::fmt::Debug for WorkerEnd<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerEnd").finish_non_exhaustive()
    }
}

impl<F: Fabric> std::fmt::Debug for ControlEnd<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlEnd").finish_non_exhaustive()
    }
}

/// A mailbox between control and one worker.
#[must_use]
pub fn mailbox<F: Fabric>() -> (ControlEnd<F>, WorkerEnd<F>) {
    let (command_tx, command_rx) = spsc::channel(MAILBOX_DEPTH);
    let (event_tx, event_rx) = spsc::channel(MAILBOX_DEPTH);
    let (sleeper, waker) = crate::ring::sleep::pair();
    (
        ControlEnd {
            commands: command_tx,
            events: event_rx,
            waker,
        },
        WorkerEnd {
            commands: command_rx,
            events: event_tx,
            sleeper,
        },
    )
}
