//! What a handler can do: take buffers, send, read and write the peer's memory, close. The only way to
//! post.
//!
//! A send goes to the connection's queue; the worker rings the doorbell right after the handlers of
//! the batch have run, so a lone send leaves at once and a burst leaves behind one doorbell.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::connection::{Phase, Table};
use super::post::{ATOMIC_BYTES, Pieces, PostError, Rejected, admit, grown_key, span_of, word_of};
use super::send_queue::{Entry, Special};
use super::sinks::Sinks;
use super::{ConnId, Token};
use crate::fabric::SendOp;
use crate::memory::{Buffer, Exhausted, ExposedMemory, MemorySpan, Payload, Pool, Postable};
use crate::metrics::CounterWriter;
use crate::types::{Abilities, Access, CoreId, Nanos, RemoteRegion, Rkey};
use std::time::Duration;

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
        c.wants_doorbell(&mut core.dirty);
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
        let Some(mut pieces) = Pieces::of(&payload, c, route, &mut core.sinks, core.grown) else {
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
            sink: pieces.sink.take(),
        };
        c.sends
            .push_special(entry, special, pieces.first, pieces.more(), len);
        c.wants_doorbell(&mut core.dirty);
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
        let bound = self.bind_window(conn, &span, access, token);
        bound.map_err(|reason| Rejected {
            payload: span,
            reason,
        })
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
    /// none any more, and the window is free again. A key goes out of use once: a peer that ends it
    /// meanwhile, by SEND with invalidate, makes this fail and so ends the connection.
    ///
    /// # Errors
    /// Nothing was posted. [`PostError::NoSuchKey`] too when it is being revoked already.
    pub fn revoke(&mut self, conn: ConnId, rkey: Rkey, token: Token) -> Result<(), PostError> {
        let c = self.core.table.open(conn);
        let c = c.ok_or(PostError::NotConnected)?;
        if !c.windows.is_revocable(rkey) {
            return Err(PostError::NoSuchKey);
        }
        let op = SendOp::LocalInvalidate(rkey);
        self.post(conn, Payload::Nothing, op, token)
            .map_err(|r| r.reason)?;
        self.core.table.at(conn.index).windows.revoke(rkey);
        Ok(())
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
