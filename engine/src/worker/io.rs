//! What a handler can do: take buffers, send, read and write the peer's memory, close. The only way to
//! post.
//!
//! A send goes to the connection's queue; the worker rings the doorbell right after the handlers of
//! the batch have run, so a lone send leaves at once and a burst leaves behind one doorbell.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::connection::{Connection, Phase, Table};
use super::{ConnId, Token};
use crate::fabric::SendOp;
use crate::memory::{Buffer, Exhausted, ExposedMemory, Pool};
use crate::metrics::CounterWriter;
use crate::types::{Access, CoreId, Nanos, RemoteRegion, RemoteSpan};
use std::time::Duration;

/// Why a send was not taken. One variant for each decision that a caller can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The send queue is full: try again after a `completed`.
    #[error("the send queue is full")]
    WouldBlock,
    /// The connection is closing or gone.
    #[error("the connection is closed")]
    NotConnected,
    /// The message exceeds what the device can send.
    #[error("the message is longer than the device can send")]
    TooLong,
    /// The bytes are not all in the peer's region.
    #[error("the bytes lie outside the peer's region")]
    OutOfRegion,
    /// The peer did not offer the region for this.
    #[error("the peer does not allow this access to its region")]
    NotAllowed,
    /// The handshake left no READ to this side (`initiator_depth` 0).
    #[error(
        "the handshake settled on no READs: raise initiator_depth here or responder_resources there"
    )]
    NoReads,
}

/// The post failed, so the NIC never saw the buffer; here it is back.
#[derive(Debug)]
pub struct Rejected {
    /// The buffer.
    pub buffer: Buffer,
    /// Why.
    pub reason: PostError,
}

/// What handlers and the worker's own passes work on.
pub(crate) struct Core {
    pub(crate) table: Table,
    pub(crate) pool: Pool,
    pub(crate) counters: CounterWriter,
    /// Connections with sends to post.
    pub(crate) dirty: Vec<u16>,
    /// Connections with a deadline.
    pub(crate) timed: Vec<u16>,
    pub(crate) now: Nanos,
    pub(crate) close_deadline: Duration,
    pub(crate) worker: u16,
    pub(crate) core: Option<CoreId>,
}

impl Core {
    /// The connection, if it takes an operation of so many bytes.
    #[inline]
    fn admit(&mut self, conn: ConnId, len: u32, op: SendOp) -> Result<&mut Connection, PostError> {
        let Some(c) = self.table.open(conn) else {
            return Err(PostError::NotConnected);
        };
        if c.sends.room() == 0 {
            self.counters.would_block.add(1);
            return Err(PostError::WouldBlock);
        }
        if len > c.message_bytes_max {
            return Err(PostError::TooLong);
        }
        if matches!(op, SendOp::Read(_)) && c.sends.read_depth() == 0 {
            return Err(PostError::NoReads);
        }
        Ok(c)
    }
}

/// A connection that can post, as a layer on top sees it.
#[derive(Clone, Copy)]
pub(crate) struct Standing {
    /// Operations that the send queue has room for.
    pub(crate) room: u32,
    /// Receives posted since the connection began, modulo 2^32.
    pub(crate) receives_posted: u32,
}

/// A handler's hands.
pub struct Io<'a> {
    core: &'a mut Core,
}

impl std::fmt::Debug for Io<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Io")
            .field("worker", &self.core.worker)
            .finish_non_exhaustive()
    }
}

impl<'a> Io<'a> {
    #[inline]
    pub(crate) fn new(core: &'a mut Core) -> Self {
        Self { core }
    }

    /// A buffer from the worker's pool.
    ///
    /// # Errors
    /// Every slot is in use; the counter `pool_exhausted` says how often.
    #[inline]
    pub fn alloc(&mut self) -> Result<Buffer, Exhausted> {
        self.core
            .pool
            .alloc()
            .inspect_err(|_| self.core.counters.pool_exhausted.add(1))
    }

    /// Sends the buffer's bytes as one message. It comes back in `completed`, with `token`.
    ///
    /// # Errors
    /// Nothing was sent; the buffer comes back here.
    #[inline]
    pub fn send(&mut self, conn: ConnId, buffer: Buffer, token: Token) -> Result<(), Rejected> {
        self.post(conn, buffer, SendOp::Send, token)
    }

    /// Writes the buffer's bytes to the peer's memory, `offset` bytes into `region`, without its CPU
    /// (RDMA WRITE). The buffer comes back in `completed`, with `token`. Operations of a connection
    /// are executed in order: a message sent behind a WRITE finds it done.
    ///
    /// # Errors
    /// Nothing was written; the buffer comes back here.
    #[inline]
    pub fn write(
        &mut self,
        conn: ConnId,
        buffer: Buffer,
        region: &RemoteRegion,
        offset: u64,
        token: Token,
    ) -> Result<(), Rejected> {
        match span_of(&buffer, region, offset, Access::REMOTE_WRITE) {
            Ok(span) => self.post(conn, buffer, SendOp::Write(span), token),
            Err(reason) => Err(Rejected { buffer, reason }),
        }
    }

    /// Reads as many bytes as the buffer's length says from the peer's memory, `offset` bytes into
    /// `region`, without its CPU (RDMA READ). They are in the buffer when it comes back in
    /// `completed`, with `token`. READs beyond the depth of the handshake wait in order, and what was
    /// asked for after them waits behind them.
    ///
    /// # Errors
    /// Nothing was read; the buffer comes back here.
    #[inline]
    pub fn read(
        &mut self,
        conn: ConnId,
        buffer: Buffer,
        region: &RemoteRegion,
        offset: u64,
        token: Token,
    ) -> Result<(), Rejected> {
        match span_of(&buffer, region, offset, Access::REMOTE_READ) {
            Ok(span) => self.post(conn, buffer, SendOp::Read(span), token),
            Err(reason) => Err(Rejected { buffer, reason }),
        }
    }

    #[inline]
    fn post(
        &mut self,
        conn: ConnId,
        buffer: Buffer,
        op: SendOp,
        token: Token,
    ) -> Result<(), Rejected> {
        let c = match self.core.admit(conn, buffer.len_bytes(), op) {
            Ok(c) => c,
            Err(reason) => return Err(Rejected { buffer, reason }),
        };
        c.sends.push(buffer, op, token);
        if !c.dirty {
            c.dirty = true;
            self.core.dirty.push(conn.index);
        }
        Ok(())
    }

    /// What a layer on top needs to know before it posts; `None` when nothing can be posted.
    #[inline]
    pub(crate) fn standing(&mut self, conn: ConnId) -> Option<Standing> {
        let c = self.core.table.open(conn)?;
        Some(Standing {
            room: c.sends.room(),
            receives_posted: c.recvs.posted_total(),
        })
    }

    /// Receives that the connection's queue holds; 0 when it is gone.
    pub(crate) fn recv_depth(&mut self, conn: ConnId) -> u32 {
        let c = self.core.table.get(conn);
        c.map_or(0, |c| c.recvs.depth())
    }

    /// Slots of this worker's pool.
    pub(crate) fn pool_slots(&self) -> u32 {
        self.core.pool.slots()
    }

    /// A layer on top kept a send back.
    #[inline]
    pub(crate) fn count_would_block(&self) {
        self.core.counters.would_block.add(1);
    }

    /// The same hands, for a shorter time.
    #[inline]
    pub(crate) fn reborrow(&mut self) -> Io<'_> {
        Io { core: self.core }
    }

    /// Sends that the connection's queue has room for; 0 when it is closed.
    #[inline]
    #[must_use]
    pub fn room(&mut self, conn: ConnId) -> u32 {
        let c = self.core.table.open(conn);
        c.map_or(0, |c| c.sends.room())
    }

    /// Receives posted on the connection since it began, modulo 2^32; 0 when it is gone.
    #[inline]
    #[must_use]
    pub fn receives_posted(&mut self, conn: ConnId) -> u32 {
        let c = self.core.table.get(conn);
        c.map_or(0, |c| c.recvs.posted_total())
    }

    /// The region as the peer of this connection names it, for READs and WRITEs of the peer's; `None`
    /// when the connection is gone, or its device.
    #[must_use]
    pub fn exposed(&mut self, conn: ConnId, memory: &ExposedMemory) -> Option<RemoteRegion> {
        let lane = self.core.table.get(conn)?.lane;
        memory.remote_region(usize::from(lane))
    }

    /// Closes the connection once the sends so far have completed, or the drain deadline is over.
    /// Does nothing if it is closing or gone.
    pub fn close(&mut self, conn: ConnId) {
        self.close_for(conn, super::CloseReason::Local);
    }

    /// The same, for a reason of a layer on top.
    pub(crate) fn close_for(&mut self, conn: ConnId, reason: super::CloseReason) {
        let deadline = self.core.now + self.core.close_deadline;
        let Some(c) = self.core.table.get(conn) else {
            return;
        };
        if c.phase == Phase::Open {
            c.phase = Phase::Closing(deadline);
            c.blame(reason);
            if !c.timed {
                c.timed = true;
                self.core.timed.push(conn.index);
            }
        }
    }

    /// When this turn began.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.core.now
    }

    /// Bytes of a buffer of this worker's pool.
    #[must_use]
    pub fn buffer_bytes(&self) -> u32 {
        self.core.pool.slot_bytes()
    }

    /// Number of this worker.
    #[must_use]
    pub fn worker(&self) -> u16 {
        self.core.worker
    }

    /// Core that this worker is pinned to.
    #[must_use]
    pub fn core(&self) -> Option<CoreId> {
        self.core.core
    }
}

/// Where in the peer's region the buffer's bytes go or come from.
#[inline]
fn span_of(
    buffer: &Buffer,
    region: &RemoteRegion,
    offset: u64,
    need: Access,
) -> Result<RemoteSpan, PostError> {
    if !region.access().contains(need) {
        return Err(PostError::NotAllowed);
    }
    region
        .span(offset, buffer.len_bytes())
        .ok_or(PostError::OutOfRegion)
}
