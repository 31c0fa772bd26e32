//! Executing what is posted: messages into the peer's inbox, one-sided operations by our own CPU.
//!
//! ```text
//!  post ─► nothing waits? ─► execute ─┬─ Done: completes when its last cell is taken
//!            └─ kept ─► run, by polls ┤─ Later: no room, no peer, no key yet, messages before it under way
//!                                     └─ Failed: when all before it are done, it ends the QP
//! ```
//! A one-sided operation is executed when every message before it was taken: what would stand behind one
//! that fails must not happen. Statuses are IB's (IBTA 9.9, 11.6.2): what our memory does not allow is our
//! own affair; what the peer's does not allow ends both QPs, by a fault that goes into its inbox.
//! Imports qp, orders, piece, onesided. Imported by lane.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]
#![allow(unsafe_code, reason = "plays the NIC: copies by address")]

use super::cq::Sink;
use super::inbox::{Broken, Full, INLINE_BYTES, Outlet};
use super::piece::{Piece, Reader};
use super::qp::{Ground, Phase, QpState, refusal};
use super::registry::Registry;
use crate::fabric::plain::{PlainWc, gather_inline, payload_bytes};
use crate::fabric::soft::{Completed, MESSAGE_BYTES_MAX, Retires, WORD};
use crate::fabric::{MoreSges, Note, SendOp, SendWr, WcStatus};
use crate::limits::SGE_MAX;
use crate::memory::copy_message;
use std::ptr::with_exposed_provenance;

/// Bytes of one operation that a turn copies, and then what is left of a fragment: a worker has other
/// things to do as well.
pub(super) const BYTES_A_TURN: u32 = 256 << 10;
/// Operations of a queue that one turn executes.
const SENDS_A_TURN: usize = 64;
/// Turns with messages after which what the peer publishes is looked at all the same.
const UNSEEN_MAX: u8 = 16;

/// What a fault tells the peer, whose QP ends too.
pub(super) mod fault {
    /// Its QP takes no such request.
    pub(in super::super) const REQUEST: u32 = 1;
    /// Its memory does not allow it.
    pub(in super::super) const ACCESS: u32 = 2;
}

/// How a send fared.
pub(super) enum Fate {
    /// It is done when so many cells are taken.
    Done(Option<u32>),
    Later,
    Failed(WcStatus),
    /// The peer hears of it.
    Denied(WcStatus, u32),
    Broken,
}

impl From<Broken> for Fate {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

/// Our side of one operation.
pub(super) struct Local {
    pieces: [Piece; SGE_MAX],
    count: usize,
    pub(super) len: u32,
}

impl Local {
    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces[..self.count]
    }
}

/// Where an inline payload is.
enum Inline {
    /// Where the caller says, for the length of the post.
    Posted,
    /// It was copied.
    Kept(Piece),
}

/// First byte of what is sent inline.
#[inline(always)]
fn posted_at(wr: &SendWr) -> *const u8 {
    with_exposed_provenance(usize::try_from(wr.addr).unwrap_or(0))
}

/// Sends a plain message that goes by one push; false if that is not so, or cannot be now.
#[inline(never)]
fn push_whole(
    outlet: &mut Outlet,
    registry: &Registry,
    ack: u32,
    wr: &SendWr,
    inline_bytes: u32,
) -> bool {
    if wr.len > outlet.fragment_bytes() || (wr.inline && wr.len > inline_bytes) {
        return false;
    }
    let piece = if wr.inline {
        // SAFETY: `posted` requires readable bytes: the caller of `Lane::post_send` has the payload of
        // what it sends inline in its hands during the call.
        unsafe { Piece::posted(wr.addr, wr.len) }
    } else {
        match registry.local(wr.lkey, wr.addr, wr.len, false) {
            Ok(piece) => piece,
            Err(_) => return false,
        }
    };
    // SAFETY: `copy_to` requires writable bytes that nobody has a reference to: `push` gives such a
    // place, in the peer's inbox.
    let fill = |to: *mut u8, len: usize| unsafe { piece.copy_to(to, len) };
    outlet.push(Note::None, ack, wr.len, fill).is_ok()
}

impl QpState {
    /// Posts the first of some plain SENDs, for as long as none needs to wait, as nearly none does; gives
    /// how many. The next may have to wait, or is not to be had: [`post`](Self::post) sees to that.
    #[inline]
    pub(super) fn post_plain(&mut self, ground: &mut Ground, chain: &[SendWr]) -> usize {
        let (Some(peer), Phase::Ready, true) = (&mut self.peer, self.phase, self.sends.is_free())
        else {
            return 0;
        };
        let outlet = &mut peer.outlet;
        let room = self.sends.room().min(ground.cq.room());
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let short = self.sends.inline_bytes().min(INLINE_BYTES);
        let ack = self.inlet.ack();
        let mut posted = 0;
        for wr in chain.iter().take(room) {
            let sent = if wr.inline && wr.len <= short {
                // SAFETY: `copy_message` requires
                // - readable bytes: the caller of `Lane::post_send` has the payload of what it sends
                //   inline in its hands during the call;
                // - writable ones that nobody has a reference to, and which are others: `push_short` gives
                //   such a place, in the peer's inbox.
                let fill =
                    |to: *mut u8| unsafe { copy_message(posted_at(wr), to, wr.len as usize) };
                outlet.push_short(ack, wr.len, fill).is_ok()
            } else {
                push_whole(outlet, &ground.registry, ack, wr, self.sends.inline_bytes())
            };
            if !sent {
                break;
            }
            self.sends.push_sent(wr, outlet.sent());
            posted += 1;
        }
        if posted > 0 {
            self.sends.all_sent();
            ground.cq.promise_all(posted as u64);
            self.inlet.told();
            self.wake = true;
        }
        posted
    }

    /// Posts one operation, and executes it if it need not wait.
    ///
    /// # Errors
    /// The errno; nothing was posted.
    #[inline]
    pub(super) fn post(
        &mut self,
        ground: &mut Ground,
        wr: &SendWr,
        more: Option<&MoreSges>,
    ) -> Result<(), i32> {
        let extra = usize::from(wr.more);
        if self.phase == Phase::Init || extra >= SGE_MAX || (extra > 0 && more.is_none()) {
            return Err(libc::EINVAL);
        }
        let len = payload_bytes(wr, more);
        if wr.op.is_special() && matches!(wr.op, SendOp::LocalInvalidate(_) | SendOp::Bind { .. }) {
            // There are no windows.
            return Err(libc::EOPNOTSUPP);
        }
        let inline_bytes = self.sends.inline_bytes() as usize;
        if wr.inline && (!wr.op.may_be_inline() || len > inline_bytes) {
            return Err(libc::EINVAL);
        }
        if !self.sends.has_room() || !ground.cq.promise() {
            return Err(libc::ENOMEM);
        }
        let at_once = self.phase == Phase::Ready && self.sends.is_free();
        self.sends.push(wr, u32::try_from(len).unwrap_or(u32::MAX));
        if at_once {
            let fate = self.execute(ground, wr, more, &Inline::Posted);
            if let Fate::Done(cell) = fate {
                self.sends.execute(cell);
                return Ok(());
            }
            self.keep(wr, more, len);
            self.ran(ground, fate);
            return Ok(());
        }
        self.keep(wr, more, len);
        Ok(())
    }

    fn keep(&mut self, wr: &SendWr, more: Option<&MoreSges>, len: usize) {
        let place = self.sends.keep(wr, more);
        if wr.inline {
            // SAFETY: `gather_inline` requires readable pieces: the caller of `Lane::post_send` has the
            // payload in its hands during the call.
            unsafe { gather_inline(wr, more, &mut place[..len]) };
        }
    }

    /// Executes what waits, oldest first, until something must wait on.
    #[inline(never)]
    pub(super) fn run(&mut self, ground: &mut Ground) {
        for _ in 0..SENDS_A_TURN {
            let oldest = self.sends.oldest();
            let Some((waiting, place)) = oldest.filter(|_| self.phase == Phase::Ready) else {
                return;
            };
            let (wr, more) = (waiting.wr, waiting.more);
            let len = payload_bytes(&wr, Some(&more)).min(place.len());
            let inline = Inline::Kept(Piece::of(&mut place[..len]));
            let fate = self.execute(ground, &wr, Some(&more), &inline);
            if !self.ran(ground, fate) {
                return;
            }
        }
        self.more = true;
    }

    /// The oldest that was not executed fared so; false if it still is not.
    #[inline(never)]
    fn ran(&mut self, ground: &mut Ground, fate: Fate) -> bool {
        match fate {
            Fate::Done(cell) => {
                self.sends.execute(cell);
                return true;
            }
            Fate::Later => {}
            Fate::Broken => self.broken(ground),
            Fate::Failed(status) => {
                self.settle(ground, &mut Sink::none());
                if !self.sends.is_executed() {
                    self.fail_send(ground, status);
                }
            }
            Fate::Denied(status, fault) => {
                self.settle(ground, &mut Sink::none());
                if !self.sends.is_executed() {
                    let ack = self.inlet.ack();
                    if let Some(peer) = &mut self.peer {
                        peer.outlet.push_fault(fault, ack);
                        self.wake = true;
                    }
                    self.fail_send(ground, status);
                }
            }
        }
        false
    }

    /// Completes what the peer has taken.
    #[inline]
    pub(super) fn settle(&mut self, ground: &mut Ground, sink: &mut Sink<'_>) {
        let Some(peer) = &self.peer else {
            return;
        };
        let outlet = &peer.outlet;
        while let Some((order, sequence)) = self.sends.complete(|cell| outlet.is_acked(cell)) {
            let what = (order.opcode, order.len, Note::None);
            let wc = PlainWc::succeeded(order.wr_id, self.number, what);
            if let Some(place) = ground.cq.direct(sink) {
                *place = wc;
                ground.cq.give_back(self.sends.retire(sequence));
                continue;
            }
            let qp = self.index;
            ground.cq.push(Completed {
                wc,
                retires: Retires::Sends { qp, sequence },
            });
        }
    }

    /// Looks after what is posted; true if something has happened. Where messages came their acks were
    /// taken, and what the peer publishes is not looked at each time: it is another line of the cache.
    #[inline]
    pub(super) fn attend_sends(
        &mut self,
        ground: &mut Ground,
        sink: &mut Sink<'_>,
        came: bool,
    ) -> bool {
        if came && self.unseen < UNSEEN_MAX && self.sends.is_free() {
            self.unseen += 1;
            return false;
        }
        self.unseen = 0;
        let Some(peer) = &mut self.peer else {
            return false;
        };
        let Ok(look) = peer.outlet.look() else {
            self.broken(ground);
            return true;
        };
        let before = self.sends.done();
        self.settle(ground, sink);
        if let Some(code) = look.refusal {
            if self.sends.is_outstanding() {
                self.fail_send(ground, refusal::status(code));
            }
            return true;
        }
        self.more = false;
        if !self.sends.is_free() {
            self.run(ground);
            self.settle(ground, sink);
        }
        self.sends.done() != before
    }

    /// Executes an operation; of one that is partly sent, the rest.
    #[inline]
    fn execute(
        &mut self,
        ground: &mut Ground,
        wr: &SendWr,
        more: Option<&MoreSges>,
        inline: &Inline,
    ) -> Fate {
        let local = match self.local_side(ground, wr, more, inline) {
            Ok(local) => local,
            Err(status) => return Fate::Failed(status),
        };
        let fate = match wr.op {
            SendOp::Send => self.message(Note::None, &local),
            SendOp::SendImm(imm) => self.message(Note::Imm(imm), &local),
            SendOp::SendInvalidate(rkey) => self.message(Note::Invalidated(rkey), &local),
            SendOp::Write(to) => self.write(ground, to, &local).map(|()| None),
            SendOp::WriteImm(to, imm) => self.write_imm(ground, to, imm, &local),
            SendOp::Read(from) => self.read(ground, from, &local).map(|()| None),
            SendOp::CompareSwap { at, .. } | SendOp::FetchAdd { at, .. } => {
                self.atomic(ground, wr.op, at, &local).map(|()| None)
            }
            // Refused by the post.
            SendOp::Bind { .. } | SendOp::LocalInvalidate(_) => {
                Err(Fate::Failed(WcStatus::LocalQpOperation))
            }
        };
        fate.map_or_else(|fate| fate, Fate::Done)
    }

    /// Our memory, held against its registrations.
    #[inline]
    fn local_side(
        &self,
        ground: &Ground,
        wr: &SendWr,
        more: Option<&MoreSges>,
        inline: &Inline,
    ) -> Result<Local, WcStatus> {
        let fetches = wr.op.is_fetch();
        let len = u32::try_from(payload_bytes(wr, more)).map_err(|_| WcStatus::LocalLength)?;
        if len > MESSAGE_BYTES_MAX || (wr.op.is_atomic() && len != WORD) {
            return Err(WcStatus::LocalLength);
        }
        if fetches && self.peer.as_ref().is_none_or(|peer| peer.fetch_depth == 0) {
            return Err(WcStatus::LocalQpOperation);
        }
        let mut local = Local {
            pieces: [Piece::EMPTY; SGE_MAX],
            count: 1 + usize::from(wr.more),
            len,
        };
        if let (true, Inline::Kept(piece)) = (wr.inline, inline) {
            (local.pieces[0], local.count) = (*piece, 1);
            return Ok(local);
        }
        let piece = |lkey, addr, len| {
            if wr.inline {
                // SAFETY: `posted` requires readable bytes: the caller of `Lane::post_send` has the
                // payload of what it sends inline in its hands during the call.
                return Ok(unsafe { Piece::posted(addr, len) });
            }
            ground.registry.local(lkey, addr, len, fetches)
        };
        local.pieces[0] = piece(wr.lkey, wr.addr, wr.len)?;
        if let Some(more) = more {
            let behind = more.iter().take(usize::from(wr.more));
            for (place, sge) in local.pieces[1..].iter_mut().zip(behind) {
                *place = piece(sge.lkey, sge.addr, sge.len)?;
            }
        }
        Ok(local)
    }

    /// Sends a message, as far as there is room for it.
    #[inline]
    fn message(&mut self, note: Note, local: &Local) -> Result<Option<u32>, Fate> {
        let Some(peer) = &mut self.peer else {
            return Err(Fate::Later);
        };
        let mut looked = false;
        let enough = self.sends.part.saturating_add(BYTES_A_TURN);
        while self.sends.part < enough {
            let part = self.sends.part;
            let left = local.len.saturating_sub(part);
            let fill = |to: *mut u8, len: usize| {
                if local.count == 1 && part == 0 {
                    // SAFETY: `copy_to` requires `len` writable bytes that nobody has a reference to:
                    // `push` gives such a place, in the peer's inbox.
                    unsafe { local.pieces[0].copy_to(to, len) };
                } else {
                    // SAFETY: as above.
                    unsafe { Reader::at(local.pieces(), part as usize).copy_to(to, len) };
                }
            };
            match peer.outlet.push(note, self.inlet.ack(), left, fill) {
                Ok(sent) => {
                    self.inlet.told();
                    self.wake = true;
                    if sent >= left {
                        return Ok(Some(peer.outlet.sent()));
                    }
                    self.sends.part = part + sent;
                }
                Err(Full) if looked => return Err(Fate::Later),
                Err(Full) => {
                    looked = true;
                    peer.outlet.look()?;
                }
            }
        }
        self.more = true;
        Err(Fate::Later)
    }
}
