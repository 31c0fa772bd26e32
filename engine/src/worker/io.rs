//! What a handler can do: take buffers, send, read and write the peer's memory, close. The only way to
//! post.
//!
//! A send goes to the connection's queue; the worker rings the doorbell right after the handlers of
//! the batch have run, so a lone send leaves at once and a burst leaves behind one doorbell.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::connection::{Connection, Phase, Table};
use super::send_queue::{Entry, Special};
use super::sinks::{Sink, Sinks};
use super::{ConnId, Token};
use crate::fabric::{MoreSges, SendOp, Sge};
use crate::memory::{Buffer, Exhausted, ExposedMemory, MemorySpan, Payload, Pool, Postable};
use crate::metrics::CounterWriter;
use crate::types::{Abilities, Access, CoreId, Lkey, Nanos, RemoteRegion, RemoteSpan, Rkey};
use std::time::Duration;

/// Bytes of an atomic operation (IBTA 9.4.5).
const ATOMIC_BYTES: u32 = 8;

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
    /// The device of this connection has no such operation: see [`Io::abilities`].
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

/// What handlers and the worker's own passes work on.
pub(crate) struct Core {
    pub(crate) table: Table,
    pub(crate) pool: Pool,
    /// The pool has regions beside its first, with keys of their own.
    pub(crate) grown: bool,
    pub(crate) counters: CounterWriter,
    /// By lane: where READs of pooled buffers go first, if the device wants it.
    pub(crate) sinks: Box<[Option<Sinks>]>,
    /// Connections with sends to post.
    pub(crate) dirty: Vec<u16>,
    /// Connections with a deadline.
    pub(crate) timed: Vec<u16>,
    pub(crate) now: Nanos,
    pub(crate) close_deadline: Duration,
    pub(crate) worker: u16,
    pub(crate) core: Option<CoreId>,
}

/// How an operation gets at its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Direct,
    /// A READ whose bytes come through the lane's arena.
    ThroughSinks,
}

/// The connection, if it takes the operation.
#[inline(always)]
fn admit<'t>(
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
fn grown_key(payload: &impl Postable, lane: usize, otherwise: Lkey) -> Lkey {
    let place = payload.place(lane, 0, true);
    place.and_then(|p| p.lkey).unwrap_or(otherwise)
}

/// Where the pieces of an operation are.
struct Pieces {
    first: Sge,
    more: MoreSges,
    count: usize,
    sink: Option<Sink>,
}

impl Pieces {
    /// `None`: the arena is full, or the device is going away.
    #[inline]
    fn of(
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
    /// Comes back with what is posted; see [`Io::marked`].
    mark: u8,
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
        Self { core, mark: 0 }
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

    /// Sends the payload's bytes as one message. It comes back in `completed`, with `token`.
    ///
    /// # Errors
    /// Nothing was sent; the payload comes back here.
    #[inline]
    pub fn send<P: Postable>(
        &mut self,
        conn: ConnId,
        payload: P,
        token: Token,
    ) -> Result<(), Rejected<P>> {
        self.post(conn, payload, SendOp::Send, token)
    }

    /// The same, with 32 bits beside the bytes: [`Message::note`](super::Message::note) has them.
    ///
    /// # Errors
    /// Nothing was sent; [`PostError::Unsupported`] on iWARP.
    pub fn send_imm<P: Postable>(
        &mut self,
        conn: ConnId,
        payload: P,
        imm: u32,
        token: Token,
    ) -> Result<(), Rejected<P>> {
        self.post(conn, payload, SendOp::SendImm(imm), token)
    }

    /// The same, and the peer's device takes its own key `rkey` out of use before it gives the message
    /// to the peer: this side has then no access by it any more.
    ///
    /// # Errors
    /// Nothing was sent; [`PostError::Unsupported`] where the device cannot.
    pub fn send_invalidate<P: Postable>(
        &mut self,
        conn: ConnId,
        payload: P,
        rkey: Rkey,
        token: Token,
    ) -> Result<(), Rejected<P>> {
        self.post(conn, payload, SendOp::SendInvalidate(rkey), token)
    }

    /// Writes the payload's bytes to the peer's memory, `offset` bytes into `region`, without its CPU
    /// (RDMA WRITE). It comes back in `completed`, with `token`. Operations of a connection are
    /// executed in order: a message sent behind a WRITE finds it done.
    ///
    /// # Errors
    /// Nothing was written; the payload comes back here.
    #[inline]
    pub fn write<P: Postable>(
        &mut self,
        conn: ConnId,
        payload: P,
        region: &RemoteRegion,
        offset: u64,
        token: Token,
    ) -> Result<(), Rejected<P>> {
        match span_of(&payload, region, offset, Access::REMOTE_WRITE) {
            Ok(span) => self.post(conn, payload, SendOp::Write(span), token),
            Err(reason) => Err(Rejected { payload, reason }),
        }
    }

    /// The same, and the peer hears of it: a receive of the peer's is consumed, and its `message` has
    /// `imm` and the number of bytes written.
    ///
    /// # Errors
    /// Nothing was written; [`PostError::Unsupported`] on iWARP.
    pub fn write_imm<P: Postable>(
        &mut self,
        conn: ConnId,
        payload: P,
        region: &RemoteRegion,
        offset: u64,
        imm: u32,
        token: Token,
    ) -> Result<(), Rejected<P>> {
        match span_of(&payload, region, offset, Access::REMOTE_WRITE) {
            Ok(span) => self.post(conn, payload, SendOp::WriteImm(span, imm), token),
            Err(reason) => Err(Rejected { payload, reason }),
        }
    }

    /// Reads as many bytes as the payload's length says from the peer's memory, `offset` bytes into
    /// `region`, without its CPU (RDMA READ). They are in the payload when it comes back in
    /// `completed`, with `token`. READs and atomics beyond the depth of the handshake wait in order,
    /// and what was asked for after them waits behind them.
    ///
    /// # Errors
    /// Nothing was read; the payload comes back here. [`PostError::WouldBlock`] too when an iWARP
    /// device's arena for READs is full.
    #[inline]
    pub fn read<P: Postable>(
        &mut self,
        conn: ConnId,
        payload: P,
        region: &RemoteRegion,
        offset: u64,
        token: Token,
    ) -> Result<(), Rejected<P>> {
        match span_of(&payload, region, offset, Access::REMOTE_READ) {
            Ok(span) => self.post(conn, payload, SendOp::Read(span), token),
            Err(reason) => Err(Rejected { payload, reason }),
        }
    }

    /// Puts `swap` into the peer's 8 bytes, `offset` bytes into `region`, if they are `expect` (atomic
    /// compare and swap). [`Completed::old_value`](super::Completed::old_value) then has what was
    /// there. It is atomic among the operations of the peer's device, not with the peer's CPU.
    ///
    /// # Errors
    /// Nothing was posted.
    pub fn compare_swap(
        &mut self,
        conn: ConnId,
        region: &RemoteRegion,
        offset: u64,
        expect: u64,
        swap: u64,
        token: Token,
    ) -> Result<(), PostError> {
        let at = word_of(region, offset)?;
        self.post_atomic(conn, SendOp::CompareSwap { at, expect, swap }, token)
    }

    /// Adds `add` to the peer's 8 bytes, wrapping (atomic fetch and add). The same as to the rest.
    ///
    /// # Errors
    /// Nothing was posted.
    pub fn fetch_add(
        &mut self,
        conn: ConnId,
        region: &RemoteRegion,
        offset: u64,
        add: u64,
        token: Token,
    ) -> Result<(), PostError> {
        let at = word_of(region, offset)?;
        self.post_atomic(conn, SendOp::FetchAdd { at, add }, token)
    }

    /// What was there comes to a buffer of the pool.
    fn post_atomic(&mut self, conn: ConnId, op: SendOp, token: Token) -> Result<(), PostError> {
        let mut sink = self.alloc().map_err(|_| PostError::Exhausted)?;
        let fits = sink.set_len(ATOMIC_BYTES);
        debug_assert!(fits.is_ok());
        self.post(conn, sink, op, token).map_err(|r| r.reason)
    }

    /// Posts a SEND or WRITE; what needs more goes another way.
    #[inline(always)]
    fn post<P: Postable>(
        &mut self,
        conn: ConnId,
        payload: P,
        op: SendOp,
        token: Token,
    ) -> Result<(), Rejected<P>> {
        if op.is_special() || payload.piece_count() != 1 {
            return self.post_special(conn, payload, op, token);
        }
        let core = &mut *self.core;
        let admitted = admit(&mut core.table, &core.counters, conn, &payload, op);
        let (c, _) = match admitted {
            Ok(admitted) => admitted,
            Err(reason) => return Err(Rejected { payload, reason }),
        };
        let Some(place) = payload.place(usize::from(c.lane), 0, false) else {
            let reason = PostError::NotConnected;
            return Err(Rejected { payload, reason });
        };
        let mut first = c.sends.sge(place);
        if core.grown {
            first.lkey = grown_key(&payload, usize::from(c.lane), first.lkey);
        }
        let entry = Entry {
            token,
            payload: payload.into(),
            mark: self.mark,
        };
        c.sends.push(entry, op, first);
        if !c.dirty {
            c.dirty = true;
            core.dirty.push(conn.index);
        }
        Ok(())
    }

    #[inline(never)]
    fn post_special<P: Postable>(
        &mut self,
        conn: ConnId,
        payload: P,
        op: SendOp,
        token: Token,
    ) -> Result<(), Rejected<P>> {
        let core = &mut *self.core;
        let admitted = admit(&mut core.table, &core.counters, conn, &payload, op);
        let (c, route) = match admitted {
            Ok(admitted) => admitted,
            Err(reason) => return Err(Rejected { payload, reason }),
        };
        let Some(pieces) = Pieces::of(&payload, c, route, &mut core.sinks, core.grown) else {
            core.counters.would_block.add(1);
            let reason = PostError::WouldBlock;
            return Err(Rejected { payload, reason });
        };
        let len = payload.len_bytes();
        let entry = Entry {
            token,
            payload: payload.into(),
            mark: self.mark,
        };
        let special = Special {
            op,
            sink: pieces.sink,
        };
        let more = &pieces.more[..pieces.count - 1];
        c.sends
            .push_special(entry, special, pieces.first, more, len);
        if !c.dirty {
            c.dirty = true;
            core.dirty.push(conn.index);
        }
        Ok(())
    }

    /// Gives the peer of this connection, and nobody else, access to `span` by a memory window: the
    /// region to tell it, which it may use as soon as a message behind this one reaches it. The access
    /// ends with [`Io::revoke`], the peer's own SEND with invalidate, or the connection. The span comes
    /// back in `completed`; the window keeps its memory registered besides.
    ///
    /// # Errors
    /// Nothing was bound; the span comes back here.
    pub fn bind(
        &mut self,
        conn: ConnId,
        span: MemorySpan,
        access: Access,
        token: Token,
    ) -> Result<RemoteRegion, Rejected<MemorySpan>> {
        match self.bind_window(conn, &span, access, token) {
            Ok(region) => Ok(region),
            Err(reason) => Err(Rejected {
                payload: span,
                reason,
            }),
        }
    }

    fn bind_window(
        &mut self,
        conn: ConnId,
        span: &MemorySpan,
        access: Access,
        token: Token,
    ) -> Result<RemoteRegion, PostError> {
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let access = access.without(access.without(remote));
        if access == Access::NONE {
            return Err(PostError::NotAllowed);
        }
        if !span.memory().access().contains(Access::WINDOWS) {
            return Err(PostError::NotBindable);
        }
        // Admitted before a window is taken, so that nothing is to be undone.
        let alike = SendOp::LocalInvalidate(Rkey(0));
        let core = &mut *self.core;
        let nothing = &Payload::Nothing;
        let admitted = admit(&mut core.table, &core.counters, conn, nothing, alike);
        let (c, _) = admitted?;
        let place = span.place(usize::from(c.lane), 0, false);
        let addr = place.ok_or(PostError::NotConnected)?.addr;
        if span.len_bytes() == 0 {
            return Err(PostError::OutOfRegion);
        }
        let (window, rkey) = c.windows.bind(span).ok_or(PostError::NoWindow)?;
        let op = SendOp::Bind {
            window,
            rkey,
            access,
        };
        self.post(conn, span.clone(), op, token)
            .map_err(|r| r.reason)?;
        let region = RemoteRegion::parse(addr, span.len_bytes().into(), rkey, access);
        region.ok_or(PostError::OutOfRegion)
    }

    /// Ends the access that [`Io::bind`] gave: when its `completed` comes with `Done`, the peer has
    /// none any more, and the window is free again.
    ///
    /// # Errors
    /// Nothing was posted.
    pub fn revoke(&mut self, conn: ConnId, rkey: Rkey, token: Token) -> Result<(), PostError> {
        let c = self.core.table.open(conn);
        let c = c.ok_or(PostError::NotConnected)?;
        if !c.windows.has(rkey) {
            return Err(PostError::NoSuchKey);
        }
        let op = SendOp::LocalInvalidate(rkey);
        self.post(conn, Payload::Nothing, op, token)
            .map_err(|r| r.reason)
    }

    /// What the connection's device can do; `None` when nothing can be posted.
    #[must_use]
    pub fn abilities(&mut self, conn: ConnId) -> Option<Abilities> {
        Some(*self.core.table.open(conn)?.sends.abilities())
    }

    /// Bytes of the longest operation that the connection's device takes; 0 when nothing can be posted.
    #[must_use]
    pub fn message_bytes_max(&mut self, conn: ConnId) -> u32 {
        let c = self.core.table.open(conn);
        c.map_or(0, |c| c.message_bytes_max)
    }

    /// READs and atomics that this side may have with the peer at once, as the handshake settled; more
    /// wait in the send queue. 0 when none are allowed, or nothing can be posted.
    #[must_use]
    pub fn read_depth(&mut self, conn: ConnId) -> u32 {
        let c = self.core.table.open(conn);
        c.map_or(0, |c| c.sends.fetch_depth())
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

    /// A layer on top kept a send back.
    #[inline]
    pub(crate) fn count_would_block(&self) {
        self.core.counters.would_block.add(1);
    }

    /// The same hands, for a shorter time.
    #[inline]
    pub(crate) fn reborrow(&mut self) -> Io<'_> {
        Io {
            core: self.core,
            mark: self.mark,
        }
    }

    /// The same hands; what they post comes back with `mark`, by which a layer on top knows its own.
    #[inline]
    pub(crate) fn marked(&mut self, mark: u8) -> Io<'_> {
        Io {
            core: self.core,
            mark,
        }
    }

    /// Sends that the connection's queue has room for; 0 when it is closed.
    #[inline]
    #[must_use]
    pub fn room(&mut self, conn: ConnId) -> u32 {
        let c = self.core.table.open(conn);
        c.map_or(0, |c| c.sends.room())
    }

    /// Operations of the connection that have not come back in `completed`; 0 when it is closed. One
    /// that the NIC has done counts until a later completion, or its own, tells of it.
    #[inline]
    #[must_use]
    pub fn outstanding(&mut self, conn: ConnId) -> u32 {
        let c = self.core.table.open(conn);
        c.map_or(0, |c| c.sends.taken())
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

/// Where in the peer's region the payload's bytes go or come from.
#[inline]
fn span_of(
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
