//! One-sided operations: our own CPU on the peer's memory, when it is their turn.
//!
//! ```text
//!  every message before it taken? ─► the peer's QP allows it? ─► key, bounds, rights ─► copy, or atomic
//! ```
//! Imports qp, peer, piece, send. Imported by send.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::inbox::Full;
use super::peer::Remote;
use super::piece::{Piece, copy_pieces};
use super::qp::{Ground, QpState};
use super::send::{BYTES_A_TURN, Fate, Local, fault};
use super::switchboard::Question;
use crate::fabric::soft::WORD;
use crate::fabric::{SendOp, WcStatus};
use crate::types::{Access, RemoteSpan};

impl QpState {
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

    pub(super) fn write(
        &mut self,
        ground: &Ground,
        to: RemoteSpan,
        local: &Local,
    ) -> Result<(), Fate> {
        let sink = self.at_peer(ground, to, local.len, Access::REMOTE_WRITE)?;
        self.copy(local.pieces(), &[sink], local.len)
    }

    pub(super) fn write_imm(
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

    pub(super) fn read(
        &mut self,
        ground: &Ground,
        from: RemoteSpan,
        local: &Local,
    ) -> Result<(), Fate> {
        let source = self.at_peer(ground, from, local.len, Access::REMOTE_READ)?;
        self.copy(&[source], local.pieces(), local.len)
    }

    pub(super) fn atomic(
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
