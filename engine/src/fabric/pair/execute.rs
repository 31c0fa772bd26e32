//! Executing what is posted: one operation after the other, at the requester and at its peer at once.
//!
//! ```text
//!  run(qp): oldest send ─► local memory? ─► peer there? ─► receive there? ─► peer's memory? ─► copy
//!                │ Done: completed at both ends     │ Wait: stalled          │ Fail: both ends told
//!                └──────────── next ◄───────────────┘ retried by polls       └─► QP to ERR, all flushed
//! ```
//! Statuses are IB's (IBTA 9.9, 11.6.2): what the requester's memory does not allow is its own affair;
//! what the peer cannot take ends both QPs. A QP that is not there any more, or in error, does not
//! answer, and the requester's retries are over at once. RNR retries are counted in polls of either
//! side's lane. Imported by lane, cm and mod.

use super::net::Net;
use super::queues::{QpPhase, Send};
use super::regions::{Piece, copy_pieces};
use crate::fabric::soft::{MESSAGE_BYTES_MAX, RNR_FOR_EVER, WORD};
use crate::fabric::{Note, SendOp, Sge, WcOpcode, WcStatus};
use crate::limits::SGE_MAX;
use crate::types::{Access, RemoteSpan};

/// How the oldest send of a QP fared.
enum Fate {
    Done,
    /// The peer is not ready to receive anything yet.
    Early,
    /// The peer has no receive posted.
    NotReady,
    Failed(WcStatus),
}

/// The requester's side of one operation.
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

impl Net {
    /// Executes what a QP has on its send queue until something must wait, or fails.
    pub(super) fn run(&mut self, at: usize) {
        // Out of the list meanwhile: what fails at the peer must not come back here.
        self.stalled.retain(|stalled| *stalled != at);
        loop {
            let Some(qp) = self.qps.get(at) else { return };
            let oldest = qp.sends.front().copied();
            let Some(send) = oldest.filter(|_| qp.phase == QpPhase::Ready) else {
                return;
            };
            let (count, used) = (qp.rnr_retry_count, qp.rnr_retries);
            let status = match self.execute(at, &send) {
                Fate::Done => {
                    self.complete_send(at, WcStatus::Success);
                    continue;
                }
                Fate::NotReady if count < RNR_FOR_EVER && used >= count => {
                    WcStatus::RnrRetryExceeded
                }
                Fate::NotReady | Fate::Early => {
                    self.stalled.push_back(at);
                    return;
                }
                Fate::Failed(status) => status,
            };
            self.complete_send(at, status);
            self.fail(at);
            return;
        }
    }

    /// Something was posted to a QP: it is executed, or flushed.
    pub(super) fn pushed(&mut self, at: usize) {
        match self.qps.get(at).map(|qp| qp.phase) {
            Some(QpPhase::Ready) => self.run(at),
            Some(QpPhase::Error) => self.flush(at),
            Some(QpPhase::Init) | None => {}
        }
    }

    /// The QPs of a CQ have receives again.
    pub(super) fn received_shared(&mut self, cq: usize) {
        for _ in 0..self.stalled.len() {
            let Some(at) = self.stalled.pop_front() else {
                return;
            };
            let peer = self.qps.get(at).and_then(|qp| qp.peer);
            let peer = peer.and_then(|peer| self.qps.get(peer));
            if peer.is_some_and(|peer| peer.cq == cq && peer.shared) {
                self.run(at);
            } else {
                self.stalled.push_back(at);
            }
        }
    }

    /// Tries again what waits, as far as a poll of `cq` is a poll of its requester or of its peer.
    pub(super) fn retry(&mut self, cq: usize) {
        for _ in 0..self.stalled.len() {
            let Some(at) = self.stalled.pop_front() else {
                return;
            };
            let on = |at: usize| self.qps.get(at).is_some_and(|qp| qp.cq == cq);
            let peer = self.qps.get(at).and_then(|qp| qp.peer);
            if !on(at) && !peer.is_some_and(on) {
                self.stalled.push_back(at);
                continue;
            }
            let early = self.peer_phase(at) == Some(QpPhase::Init);
            if let Some(qp) = self.qps.get_mut(at)
                && !early
            {
                qp.rnr_retries = qp.rnr_retries.saturating_add(1);
            }
            self.run(at);
        }
    }

    fn peer_phase(&self, at: usize) -> Option<QpPhase> {
        let peer = self.qps.get(at)?.peer?;
        self.qps.get(peer).map(|peer| peer.phase)
    }

    /// To the error state: everything posted is flushed, sends first.
    pub(super) fn fail(&mut self, at: usize) {
        let Some(qp) = self.qps.get_mut(at) else {
            return;
        };
        let was = qp.phase;
        qp.phase = QpPhase::Error;
        self.flush(at);
        if was != QpPhase::Error {
            self.rouse(at);
        }
    }

    /// Flushes what is on the queues of a QP in error.
    fn flush(&mut self, at: usize) {
        while self.qps.get(at).is_some_and(|qp| !qp.sends.is_empty()) {
            self.complete_send(at, WcStatus::Flushed);
        }
        while self.qps.get(at).is_some_and(|qp| !qp.receives.is_empty()) {
            self.complete_receive(at, Err(WcStatus::Flushed));
        }
        self.stalled.retain(|stalled| *stalled != at);
    }

    /// What waits for a QP is tried again: it has receives, or it does not answer any more.
    pub(super) fn rouse(&mut self, awaited: usize) {
        let waits = |at: &&usize| {
            self.qps
                .get(**at)
                .is_some_and(|qp| qp.peer == Some(awaited))
        };
        // A QP has one peer.
        if let Some(at) = self.stalled.iter().find(waits).copied() {
            self.run(at);
        }
    }

    /// Destroys a QP; its peer gets no answers from here on.
    pub(super) fn destroy_qp(&mut self, at: usize) {
        self.remove_qp(at);
        self.rouse(at);
        let peers: Vec<usize> = self
            .qps
            .iter()
            .filter(|(_, qp)| qp.peer == Some(at))
            .map(|(peer, _)| peer)
            .collect();
        for peer in peers {
            if let Some(qp) = self.qps.get_mut(peer) {
                // The number may be another's soon.
                qp.peer = None;
            }
        }
        for id in self.ids.values_mut().filter(|id| id.qp == Some(at)) {
            id.qp = None;
        }
    }

    fn execute(&mut self, at: usize, send: &Send) -> Fate {
        let op = send.wr.op;
        let local = match self.local_side(at, send) {
            Ok(local) => local,
            Err(status) => return Fate::Failed(status),
        };
        let peer = self.qps.get(at).and_then(|qp| qp.peer);
        let Some(peer) = peer.filter(|_| self.peer_phase(at).is_some()) else {
            return Fate::Failed(WcStatus::RetryExceeded);
        };
        match self.peer_phase(at) {
            Some(QpPhase::Ready) => {}
            Some(QpPhase::Init) => return Fate::Early,
            Some(QpPhase::Error) | None => return Fate::Failed(WcStatus::RetryExceeded),
        }
        match op {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) => {
                self.message(peer, op, &local)
            }
            SendOp::Write(to) => self.write(peer, to, &local),
            SendOp::WriteImm(to, imm) => {
                if self.next_receive(peer).is_none() {
                    return Fate::NotReady;
                }
                let fate = self.write(peer, to, &local);
                if matches!(fate, Fate::Done) {
                    let (opcode, note) = (WcOpcode::RecvWriteImm, Note::Imm(imm));
                    self.complete_receive(peer, Ok((opcode, local.len, note)));
                }
                fate
            }
            SendOp::Read(from) => {
                if !self.allows(peer, Access::REMOTE_READ) {
                    return self.refuse_request(peer);
                }
                match self.at_peer(peer, from, local.len, Access::REMOTE_READ) {
                    Some(source) => copy_pieces(&[source], local.pieces()),
                    None => return self.refuse_access(peer),
                }
                Fate::Done
            }
            SendOp::CompareSwap { at, .. } | SendOp::FetchAdd { at, .. } => {
                self.atomic(peer, op, at, &local)
            }
            // Refused by the post.
            SendOp::Bind { .. } | SendOp::LocalInvalidate(_) => {
                Fate::Failed(WcStatus::LocalQpOperation)
            }
        }
    }

    /// The requester's memory, held against its registrations.
    fn local_side(&mut self, at: usize, send: &Send) -> Result<Local, WcStatus> {
        let op = send.wr.op;
        let mut local = Local {
            pieces: [Piece::EMPTY; SGE_MAX],
            count: send.count,
            len: u32::try_from(send.len()).map_err(|_| WcStatus::LocalLength)?,
        };
        if local.len > MESSAGE_BYTES_MAX || (op.is_atomic() && local.len != WORD) {
            return Err(WcStatus::LocalLength);
        }
        let qp = self.qps.get_mut(at).ok_or(WcStatus::LocalQpOperation)?;
        if op.is_fetch() && qp.fetch_depth == 0 {
            return Err(WcStatus::LocalQpOperation);
        }
        if send.wr.inline {
            let place = qp.inline_place(send.sequence, local.len as usize);
            (local.pieces[0], local.count) = (Piece::of(place), 1);
            return Ok(local);
        }
        let domain = qp.domain;
        let access = if op.is_fetch() {
            Access::LOCAL_WRITE
        } else {
            Access::NONE
        };
        for (place, sge) in local.pieces.iter_mut().zip(send.pieces()) {
            *place = self.local(domain, *sge, access)?;
        }
        Ok(local)
    }

    /// Whether a QP takes such requests at all.
    fn allows(&self, peer: usize, access: Access) -> bool {
        let qp = self.qps.get(peer);
        qp.is_some_and(|qp| qp.access.contains(access))
    }

    fn at_peer(&self, peer: usize, at: RemoteSpan, len: u32, access: Access) -> Option<Piece> {
        let domain = self.qps.get(peer)?.domain;
        self.remote(domain, at, len, access)
    }

    /// The peer's QP does not take the request: NAK, and both ends are in error.
    fn refuse_request(&mut self, peer: usize) -> Fate {
        self.fail(peer);
        Fate::Failed(WcStatus::RemoteInvalidRequest)
    }

    /// The peer's memory does not allow it: NAK, both ends are in error, and the peer's control hears.
    fn refuse_access(&mut self, peer: usize) -> Fate {
        if let Some(qp) = self.qps.get(peer) {
            let (domain, number) = (qp.domain, qp.number);
            self.raise_fatal(domain, number, "QP access error");
        }
        self.fail(peer);
        Fate::Failed(WcStatus::RemoteAccess)
    }

    /// A message takes its receive and fails there: both ends are in error.
    fn spoil(&mut self, peer: usize, there: WcStatus, here: WcStatus) -> Fate {
        self.complete_receive(peer, Err(there));
        self.fail(peer);
        Fate::Failed(here)
    }

    fn message(&mut self, peer: usize, op: SendOp, local: &Local) -> Fate {
        let Some(receive) = self.next_receive(peer) else {
            return Fate::NotReady;
        };
        if local.len > receive.len {
            return self.spoil(peer, WcStatus::LocalLength, WcStatus::RemoteInvalidRequest);
        }
        let place = Sge {
            addr: receive.addr,
            len: local.len,
            lkey: receive.lkey,
        };
        let Some(domain) = self.qps.get(peer).map(|qp| qp.domain) else {
            return Fate::Failed(WcStatus::RetryExceeded);
        };
        let Ok(sink) = self.local(domain, place, Access::LOCAL_WRITE) else {
            return self.spoil(peer, WcStatus::LocalProtection, WcStatus::RemoteOperation);
        };
        copy_pieces(local.pieces(), &[sink]);
        let note = match op {
            SendOp::SendImm(imm) => Note::Imm(imm),
            SendOp::SendInvalidate(rkey) => {
                if !self.invalidate(domain, rkey) {
                    // The message is not acknowledged (class J, IBTA 9.9.3.1).
                    let (there, here) = (WcStatus::RemoteInvalidRequest, WcStatus::RetryExceeded);
                    return self.spoil(peer, there, here);
                }
                Note::Invalidated(rkey)
            }
            _ => Note::None,
        };
        self.complete_receive(peer, Ok((WcOpcode::Recv, local.len, note)));
        Fate::Done
    }

    fn write(&mut self, peer: usize, to: RemoteSpan, local: &Local) -> Fate {
        if !self.allows(peer, Access::REMOTE_WRITE) {
            return self.refuse_request(peer);
        }
        let Some(sink) = self.at_peer(peer, to, local.len, Access::REMOTE_WRITE) else {
            return self.refuse_access(peer);
        };
        copy_pieces(local.pieces(), &[sink]);
        Fate::Done
    }

    fn atomic(&mut self, peer: usize, op: SendOp, at: RemoteSpan, local: &Local) -> Fate {
        if !self.allows(peer, Access::REMOTE_ATOMIC) || !at.addr.is_multiple_of(u64::from(WORD)) {
            return self.refuse_request(peer);
        }
        let Some(word) = self.at_peer(peer, at, WORD, Access::REMOTE_ATOMIC) else {
            return self.refuse_access(peer);
        };
        let was = word.as_atomic(|word, order| match op {
            SendOp::CompareSwap { expect, swap, .. } => word
                .compare_exchange(expect, swap, order, order)
                .unwrap_or_else(|was| was),
            SendOp::FetchAdd { add, .. } => word.fetch_add(add, order),
            _ => word.load(order),
        });
        copy_pieces(&[Piece::of(&mut was.to_ne_bytes())], local.pieces());
        Fate::Done
    }
}
