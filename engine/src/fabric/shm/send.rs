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
//! Imports qp, orders, peer, piece, registry. Imported by lane.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]
#![allow(unsafe_code, reason = "plays the NIC: copies by address")]

use super::device::MESSAGE_BYTES_MAX;
use super::inbox::{Broken, Full};
use super::peer::Remote;
use super::piece::{Piece, Reader, copy_pieces};
use super::qp::{Ground, Phase, QpState, refusal};
use super::switchboard::Question;
use crate::fabric::plain::{gather_inline, payload_bytes};
use crate::fabric::{MoreSges, Note, SendOp, SendWr, WcStatus};
use crate::limits::SGE_MAX;
use crate::types::{Access, RemoteSpan};

/// RNR retries for ever.
const RNR_FOR_EVER: u8 = 7;
/// One RNR retry: code 12 of `min_rnr_timer` ([`crate::limits::MIN_RNR_TIMER`]).
const RNR_PERIOD_NS: u64 = 640_000;
/// Fragments of messages that one turn sends, and bytes of one operation that it copies: a worker has other
/// things to do as well.
const FRAGMENTS_A_TURN: usize = 32;
const BYTES_A_TURN: u32 = 256 << 10;
/// Operations of a queue that one turn executes.
const SENDS_A_TURN: usize = 64;
/// Bytes of an atomic.
const WORD: u32 = 8;

/// What a fault tells the peer, whose QP ends too.
pub(super) mod fault {
    /// Its QP takes no such request.
    pub(in super::super) const REQUEST: u32 = 1;
    /// Its memory does not allow it.
    pub(in super::super) const ACCESS: u32 = 2;
}

/// How a send fared.
enum Fate {
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
struct Local {
    pieces: [Piece; SGE_MAX],
    count: usize,
    len: u32,
}

impl Local {
    fn pieces(&self) -> &[Piece] {
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

fn is_atomic(op: SendOp) -> bool {
    matches!(op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
}

impl QpState {
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
    fn ran(&mut self, ground: &mut Ground, fate: Fate) -> bool {
        match fate {
            Fate::Done(cell) => {
                self.sends.execute(cell);
                return true;
            }
            Fate::Later => {}
            Fate::Broken => self.broken(ground),
            Fate::Failed(status) => {
                self.settle(ground);
                if !self.sends.is_executed() {
                    self.fail_send(ground, status);
                }
            }
            Fate::Denied(status, fault) => {
                self.settle(ground);
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
    pub(super) fn settle(&mut self, ground: &mut Ground) {
        while self.sends.is_executed() {
            let (Some(order), Some(peer)) = (self.sends.first(), &self.peer) else {
                return;
            };
            if order.cell.is_some_and(|cell| !peer.outlet.is_acked(cell)) {
                return;
            }
            self.complete_send(&mut ground.cq, WcStatus::Success);
        }
    }

    /// Looks after what is posted; true if something has happened.
    #[inline]
    pub(super) fn attend_sends(&mut self, ground: &mut Ground) -> bool {
        let Some(peer) = &mut self.peer else {
            return false;
        };
        if !self.sends.is_outstanding() {
            (self.rnr, self.more) = (None, false);
            return false;
        }
        let Ok(look) = peer.outlet.look() else {
            self.broken(ground);
            return true;
        };
        let before = self.sends.done();
        self.settle(ground);
        if let Some(code) = look.refusal {
            if self.sends.is_outstanding() {
                self.fail_send(ground, refusal::status(code));
            }
            return true;
        }
        self.more = false;
        if !self.sends.is_free() {
            self.run(ground);
            self.settle(ground);
        }
        if look.waited > 0 {
            self.not_ready(ground);
        } else {
            self.rnr = None;
        }
        self.sends.done() != before
    }

    /// The peer has no receive for the oldest message.
    #[cold]
    fn not_ready(&mut self, ground: &mut Ground) {
        let Some(peer) = self.peer.as_ref().filter(|_| self.sends.is_outstanding()) else {
            return;
        };
        let count = peer.rnr_retry_count;
        if count >= RNR_FOR_EVER {
            return;
        }
        let now = ground.clock.now();
        let oldest = self.sends.done();
        let since = match self.rnr {
            Some((of, since)) if of == oldest => since,
            _ => now,
        };
        self.rnr = Some((oldest, since));
        if now.since(since) >= u64::from(count) * RNR_PERIOD_NS {
            self.fail_send(ground, WcStatus::RnrRetryExceeded);
        }
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
        if len > MESSAGE_BYTES_MAX || (is_atomic(wr.op) && len != WORD) {
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
        for _ in 0..FRAGMENTS_A_TURN {
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

    /// Copies between one piece of the peer's and ours, as much as a turn does.
    fn copy(&mut self, from: &[Piece], to: &[Piece], len: u32) -> Result<(), Fate> {
        let part = self.sends.part;
        let now = len.saturating_sub(part).min(BYTES_A_TURN);
        copy_pieces(from, to, part as usize, now as usize);
        if part + now < len {
            self.sends.part = part + now;
            self.more = true;
            return Err(Fate::Later);
        }
        Ok(())
    }

    /// The peer's bytes, when it is their turn.
    fn at_peer(
        &mut self,
        ground: &Ground,
        at: RemoteSpan,
        len: u32,
        access: Access,
    ) -> Result<Piece, Fate> {
        let key = self.key;
        let Some(peer) = &mut self.peer else {
            return Err(Fate::Later);
        };
        let look = peer.outlet.look()?;
        if peer.outlet.under_way() > 0 || look.refusal.is_some() {
            return Err(Fate::Later);
        }
        let misplaced = access == Access::REMOTE_ATOMIC && !at.addr.is_multiple_of(WORD.into());
        if !peer.access.contains(access) || misplaced {
            let status = WcStatus::RemoteInvalidRequest;
            return Err(Fate::Denied(status, fault::REQUEST));
        }
        match peer.remote(at, len, access) {
            Remote::Here(piece) => Ok(piece),
            Remote::Refused => Err(Fate::Denied(WcStatus::RemoteAccess, fault::ACCESS)),
            Remote::Unknown => {
                if peer.ask(at.rkey) {
                    let rkey = at.rkey;
                    ground.control.ask(Question { key, rkey });
                }
                Err(Fate::Later)
            }
        }
    }

    fn write(&mut self, ground: &Ground, to: RemoteSpan, local: &Local) -> Result<(), Fate> {
        let sink = self.at_peer(ground, to, local.len, Access::REMOTE_WRITE)?;
        self.copy(local.pieces(), &[sink], local.len)
    }

    fn write_imm(
        &mut self,
        ground: &Ground,
        to: RemoteSpan,
        imm: u32,
        local: &Local,
    ) -> Result<Option<u32>, Fate> {
        self.write(ground, to, local)?;
        let Some(peer) = &mut self.peer else {
            return Err(Fate::Later);
        };
        // Nothing is under way, so there is room; if not, the same bytes are written again.
        let pushed = peer.outlet.push_written(imm, self.inlet.ack(), local.len);
        pushed.map_err(|Full| Fate::Later)?;
        self.inlet.told();
        self.wake = true;
        Ok(Some(peer.outlet.sent()))
    }

    fn read(&mut self, ground: &Ground, from: RemoteSpan, local: &Local) -> Result<(), Fate> {
        let source = self.at_peer(ground, from, local.len, Access::REMOTE_READ)?;
        self.copy(&[source], local.pieces(), local.len)
    }

    fn atomic(
        &mut self,
        ground: &Ground,
        op: SendOp,
        at: RemoteSpan,
        local: &Local,
    ) -> Result<(), Fate> {
        let word = self.at_peer(ground, at, WORD, Access::REMOTE_ATOMIC)?;
        let was = word.as_atomic(|word, order| match op {
            SendOp::CompareSwap { expect, swap, .. } => word
                .compare_exchange(expect, swap, order, order)
                .unwrap_or_else(|was| was),
            SendOp::FetchAdd { add, .. } => word.fetch_add(add, order),
            _ => word.load(order),
        });
        let mut was = was.to_ne_bytes();
        copy_pieces(&[Piece::of(&mut was)], local.pieces(), 0, was.len());
        Ok(())
    }
}
