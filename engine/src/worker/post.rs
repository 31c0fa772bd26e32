//! Whether an operation may be posted, and where its memory is: asked before anything is changed.
//!
//! ```text
//!  Io::send, write, read… ─► span_of, word_of ─► admit ─► Pieces ─► SendQueue
//!                                 │ the region      │ the connection, its device
//!                                 └─── PostError ───┘ the payload comes back in Rejected
//! ```
//! Imports connection, sinks. Imported by io, and by what posts without it.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::ConnId;
use super::connection::{Connection, Table};
use super::sinks::{Sink, Sinks};
use crate::fabric::{MoreSges, SendOp, Sge};
use crate::memory::{Buffer, Postable};
use crate::metrics::CounterWriter;
use crate::types::{Access, Lkey, RemoteRegion, RemoteSpan};

/// Bytes of an atomic operation (IBTA 9.4.5).
pub(super) const ATOMIC_BYTES: u32 = 8;

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
    /// The handshake left no READ or atomic to this side (`initiator_depth` 0).
    #[error(
        "the handshake settled on no READs: raise initiator_depth here or responder_resources there"
    )]
    NoReads,
    /// The device of this connection has no such operation: see [`Io::abilities`](super::Io::abilities).
    #[error("the device cannot do this operation: `spinwire devices` shows what it can")]
    Unsupported,
    /// More pieces than the device takes in one operation.
    #[error("the payload has more pieces than the device takes")]
    TooManyPieces,
    /// An atomic works on 8 bytes at an address that 8 divides.
    #[error("an atomic needs 8 bytes at an address that is a multiple of 8")]
    Misaligned,
    /// The bytes are to go to memory that this side registered without LOCAL_WRITE, or, on a device
    /// whose READs need it, without REMOTE_WRITE.
    #[error("the memory is not registered for what a READ writes to it")]
    SinkNotWritable,
    /// Every slot of the pool is in use.
    #[error("every slot of the pool is in use")]
    Exhausted,
    /// Every memory window of the connection is bound, or it has none.
    #[error("no memory window is free: raise `Offer::windows`, or revoke one")]
    NoWindow,
    /// The memory was not exposed for windows.
    #[error("the memory takes no windows: expose it with Access::WINDOWS")]
    NotBindable,
    /// No window of this connection has the key.
    #[error("no memory window of this connection has this key")]
    NoSuchKey,
}

/// The post failed, so the NIC never saw the payload; here it is back.
#[derive(Debug)]
pub struct Rejected<P = Buffer> {
    /// What was to be posted.
    pub payload: P,
    /// Why.
    pub reason: PostError,
}

/// How an operation gets at its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Direct,
    /// A READ whose bytes come through the lane's arena.
    ThroughSinks,
}

/// The connection, if it takes the operation.
#[inline(always)]
pub(super) fn admit<'t>(
    table: &'t mut Table,
    counters: &CounterWriter,
    conn: ConnId,
    payload: &impl Postable,
    op: SendOp,
) -> Result<(&'t mut Connection, Route), PostError> {
    let Some(c) = table.open(conn) else {
        return Err(PostError::NotConnected);
    };
    if c.sends.room() == 0 {
        counters.would_block.add(1);
        return Err(PostError::WouldBlock);
    }
    let crosses = !matches!(op, SendOp::Bind { .. });
    if crosses && payload.len_bytes() > c.message_bytes_max {
        return Err(PostError::TooLong);
    }
    let can = c.sends.abilities();
    let (has, pieces) = match op {
        SendOp::Send | SendOp::Write(_) => (true, can.sges),
        SendOp::SendImm(_) | SendOp::WriteImm(..) => (can.immediate, can.sges),
        SendOp::SendInvalidate(_) => (can.send_invalidate, can.sges),
        SendOp::Read(_) => (true, can.read_sges),
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => (can.atomics, 1),
        SendOp::Bind { .. } | SendOp::LocalInvalidate(_) => (can.windows, 1),
    };
    if !has {
        return Err(PostError::Unsupported);
    }
    if op.is_fetch() {
        if c.sends.fetch_depth() == 0 {
            return Err(PostError::NoReads);
        }
        if !payload.is_writable() {
            return Err(PostError::SinkNotWritable);
        }
        if can.read_sink_is_exposed {
            // Its bytes come through the arena, as one piece, or go straight to open memory.
            if payload.is_pooled() {
                return Ok((c, Route::ThroughSinks));
            }
            if !payload.is_exposed() {
                return Err(PostError::SinkNotWritable);
            }
        }
    }
    if payload.piece_count() > pieces.into() {
        return Err(PostError::TooManyPieces);
    }
    Ok((c, Route::Direct))
}

/// The key of a payload of one piece, where the pool has grown.
#[cold]
#[inline(never)]
pub(super) fn grown_key(payload: &impl Postable, lane: usize, otherwise: Lkey) -> Lkey {
    let place = payload.place(lane, 0, true);
    place.and_then(|p| p.lkey).unwrap_or(otherwise)
}

/// Where the pieces of an operation are.
pub(super) struct Pieces {
    pub(super) first: Sge,
    more: MoreSges,
    count: usize,
    pub(super) sink: Option<Sink>,
}

impl Pieces {
    /// `None`: the arena is full, or the device is going away.
    #[inline]
    pub(super) fn of(
        payload: &impl Postable,
        c: &Connection,
        route: Route,
        sinks: &mut [Option<Sinks>],
        grown: bool,
    ) -> Option<Self> {
        let lane = usize::from(c.lane);
        if route == Route::ThroughSinks {
            let arena = sinks.get_mut(lane)?.as_mut()?;
            let (sink, first) = arena.take(lane, payload.len_bytes())?;
            return Some(Self {
                first,
                more: MoreSges::default(),
                count: 1,
                sink: Some(sink),
            });
        }
        let first = c.sends.sge(payload.place(lane, 0, grown)?);
        let count = payload.piece_count().max(1);
        let mut more = MoreSges::default();
        for (entry, piece) in more.iter_mut().zip(1..count) {
            *entry = c.sends.sge(payload.place(lane, piece, grown)?);
        }
        Some(Self {
            first,
            more,
            count,
            sink: None,
        })
    }

    /// The pieces behind the first.
    pub(super) fn more(&self) -> &[Sge] {
        &self.more[..self.count - 1]
    }
}

/// Where in the peer's region the payload's bytes go or come from.
#[inline]
pub(super) fn span_of(
    payload: &impl Postable,
    region: &RemoteRegion,
    offset: u64,
    need: Access,
) -> Result<RemoteSpan, PostError> {
    if !region.access().contains(need) {
        return Err(PostError::NotAllowed);
    }
    region
        .span(offset, payload.len_bytes())
        .ok_or(PostError::OutOfRegion)
}

/// The 8 bytes that an atomic works on.
pub(crate) fn word_of(region: &RemoteRegion, offset: u64) -> Result<RemoteSpan, PostError> {
    if !region.access().contains(Access::REMOTE_ATOMIC) {
        return Err(PostError::NotAllowed);
    }
    let at = region.span(offset, ATOMIC_BYTES);
    let at = at.ok_or(PostError::OutOfRegion)?;
    if !at.addr.is_multiple_of(ATOMIC_BYTES.into()) {
        return Err(PostError::Misaligned);
    }
    Ok(at)
}
