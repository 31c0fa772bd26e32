//! The queues of the pair fabric: what is posted, what has completed, and how much room is left.
//!
//! ```text
//!  post ─► QpState: sends, receives ─► execute ─► CqState ─► poll
//!          CqState: shared receives ─────┘            │
//!            ▲─────────── room ◄──────────────────────┘
//! ```
//! A work request takes a place in its queue and in the CQ from the post until a completion that
//! retires it is polled, as with the queues of a NIC: a caller that signals too little runs out of
//! room. So no CQ can overrun. All memory is taken when a queue is made. Imported by execute and lane.

use super::net::Net;
use crate::fabric::plain::PlainWc;
use crate::fabric::soft::{Completed, Retires};
use crate::fabric::{MoreSges, Note, PostFailure, RecvWr, SendOp, SendWr, Sge, WcOpcode, WcStatus};
use crate::limits::SGE_MAX;
use crate::types::{Access, QpNum};
use std::collections::VecDeque;

/// Where a QP is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QpPhase {
    /// Takes receives.
    Init,
    /// Sends and receives.
    Ready,
    /// Flushes.
    Error,
}

/// A work request on a send queue.
#[derive(Clone, Copy)]
pub(super) struct Send {
    pub(super) wr: SendWr,
    pub(super) pieces: [Sge; SGE_MAX],
    pub(super) count: usize,
    pub(super) sequence: u64,
}

impl Send {
    pub(super) fn pieces(&self) -> &[Sge] {
        &self.pieces[..self.count]
    }

    /// Bytes of all pieces.
    pub(super) fn len(&self) -> u64 {
        self.pieces().iter().map(|sge| u64::from(sge.len)).sum()
    }
}

/// A queue pair.
pub(super) struct QpState {
    pub(super) number: QpNum,
    pub(super) domain: u64,
    pub(super) cq: usize,
    pub(super) phase: QpPhase,
    pub(super) access: Access,
    pub(super) shared: bool,
    /// The QP at the other end, once this one is ready.
    pub(super) peer: Option<usize>,
    pub(super) rnr_retry_count: u8,
    /// READs and atomics that may be under way; 0 for none.
    pub(super) fetch_depth: u8,
    pub(super) sends: VecDeque<Send>,
    send_depth: u32,
    /// Sequence of the next send, and of the oldest that still takes room.
    pub(super) next: u64,
    pub(super) retired: u64,
    pub(super) receives: VecDeque<RecvWr>,
    recv_depth: u32,
    receives_taken: u32,
    /// Copies of inline payloads, one place a send.
    inline: Box<[u8]>,
    pub(super) inline_bytes: u32,
    /// Retries of the oldest send that found no receive.
    pub(super) rnr_retries: u8,
}

/// What to make a QP of.
pub(super) struct QpShape {
    pub(super) domain: u64,
    pub(super) cq: usize,
    pub(super) access: Access,
    pub(super) shared: bool,
    pub(super) send_depth: u32,
    pub(super) recv_depth: u32,
    pub(super) inline_bytes: u32,
}

impl QpState {
    pub(super) fn new(number: QpNum, shape: &QpShape) -> Self {
        let recv_depth = if shape.shared { 0 } else { shape.recv_depth };
        let inline = shape.inline_bytes as usize * shape.send_depth as usize;
        Self {
            number,
            domain: shape.domain,
            cq: shape.cq,
            phase: QpPhase::Init,
            access: shape.access,
            shared: shape.shared,
            peer: None,
            rnr_retry_count: 0,
            fetch_depth: 0,
            sends: VecDeque::with_capacity(shape.send_depth as usize),
            send_depth: shape.send_depth,
            next: 0,
            retired: 0,
            receives: VecDeque::with_capacity(recv_depth as usize),
            recv_depth,
            receives_taken: 0,
            inline: vec![0; inline].into_boxed_slice(),
            inline_bytes: shape.inline_bytes,
            rnr_retries: 0,
        }
    }

    /// Where the inline payload of a send lies.
    pub(super) fn inline_place(&mut self, sequence: u64, len: usize) -> &mut [u8] {
        let place = usize::try_from(sequence % u64::from(self.send_depth)).unwrap_or(0);
        let begin = place * self.inline_bytes as usize;
        &mut self.inline[begin..begin + len]
    }

    /// Places that the QP takes in its CQ.
    pub(super) fn in_cq(&self) -> u64 {
        self.next - self.retired + u64::from(self.receives_taken)
    }
}

fn refusal(posted: usize, errno: i32) -> PostFailure {
    PostFailure { posted, errno }
}

impl Net {
    /// Puts one operation on the queue.
    pub(super) fn enqueue(
        &mut self,
        at: usize,
        wr: &SendWr,
        more: Option<&MoreSges>,
    ) -> Result<u64, i32> {
        let Some(qp) = self.qps.get_mut(at) else {
            return Err(libc::EINVAL);
        };
        let Some(cq) = self.cqs.get_mut(qp.cq) else {
            return Err(libc::EINVAL);
        };
        if qp.phase == QpPhase::Init {
            return Err(libc::EINVAL);
        }
        let extra = usize::from(wr.more);
        if extra >= SGE_MAX || (extra > 0 && more.is_none()) {
            return Err(libc::EINVAL);
        }
        let mut send = Send {
            wr: *wr,
            pieces: [Sge::default(); SGE_MAX],
            count: 1 + extra,
            sequence: qp.next,
        };
        send.pieces[0] = Sge {
            addr: wr.addr,
            len: wr.len,
            lkey: wr.lkey,
        };
        if let Some(more) = more {
            send.pieces[1..=extra].copy_from_slice(&more[..extra]);
        }
        if matches!(wr.op, SendOp::LocalInvalidate(_)) {
            // There are no windows.
            return Err(libc::EOPNOTSUPP);
        }
        if wr.inline && (!wr.op.may_be_inline() || send.len() > u64::from(qp.inline_bytes)) {
            return Err(libc::EINVAL);
        }
        if qp.next - qp.retired >= u64::from(qp.send_depth) || cq.taken >= cq.depth {
            return Err(libc::ENOMEM);
        }
        cq.taken += 1;
        qp.next += 1;
        qp.sends.push_back(send);
        Ok(send.sequence)
    }

    /// Posts receives to a QP, as many as there is room for.
    pub(super) fn enqueue_receives(
        &mut self,
        at: usize,
        chain: &[RecvWr],
    ) -> Result<(), PostFailure> {
        let Some(qp) = self.qps.get_mut(at) else {
            return Err(refusal(0, libc::EINVAL));
        };
        let Some(cq) = self.cqs.get_mut(qp.cq) else {
            return Err(refusal(0, libc::EINVAL));
        };
        if qp.shared {
            return Err(refusal(0, libc::EINVAL));
        }
        for (posted, wr) in chain.iter().enumerate() {
            if qp.receives_taken >= qp.recv_depth || cq.taken >= cq.depth {
                return Err(refusal(posted, libc::ENOMEM));
            }
            qp.receives_taken += 1;
            cq.taken += 1;
            qp.receives.push_back(*wr);
        }
        Ok(())
    }

    /// Posts receives to the shared queue of a CQ, as many as there is room for.
    pub(super) fn enqueue_shared(
        &mut self,
        at: usize,
        chain: &[RecvWr],
    ) -> Result<(), PostFailure> {
        let Some(cq) = self.cqs.get_mut(at).filter(|cq| cq.has_shared()) else {
            return Err(refusal(0, libc::EOPNOTSUPP));
        };
        for (posted, wr) in chain.iter().enumerate() {
            if cq.shared_taken >= cq.shared_depth || cq.taken >= cq.depth {
                return Err(refusal(posted, libc::ENOMEM));
            }
            cq.shared_taken += 1;
            cq.taken += 1;
            cq.shared.push_back(*wr);
        }
        Ok(())
    }

    /// The receive that the next message to a QP will take.
    pub(super) fn next_receive(&self, at: usize) -> Option<RecvWr> {
        let qp = self.qps.get(at)?;
        if qp.shared {
            self.cqs.get(qp.cq)?.shared.front().copied()
        } else {
            qp.receives.front().copied()
        }
    }

    /// Takes the next receive of a QP and completes it, with what it brought or how it failed.
    pub(super) fn complete_receive(
        &mut self,
        at: usize,
        outcome: Result<(WcOpcode, u32, Note), WcStatus>,
    ) {
        let Some(qp) = self.qps.get_mut(at) else {
            return;
        };
        let Some(cq) = self.cqs.get_mut(qp.cq) else {
            return;
        };
        let (queue, retires) = if qp.shared {
            (&mut cq.shared, Retires::Shared)
        } else {
            (&mut qp.receives, Retires::Receive { qp: at })
        };
        let Some(wr) = queue.pop_front() else {
            return;
        };
        let number = qp.number;
        let ended = |status| PlainWc::ended(wr.wr_id, number, status);
        let wc = match outcome {
            Ok((opcode, len, note)) => PlainWc {
                opcode,
                len,
                note,
                ..ended(WcStatus::Success)
            },
            Err(status) => ended(status),
        };
        cq.push(Completed { wc, retires });
    }

    /// Takes the oldest send of a QP and completes it; without a word if it was to be so.
    pub(super) fn complete_send(&mut self, at: usize, status: WcStatus) {
        let Some(qp) = self.qps.get_mut(at) else {
            return;
        };
        let Some(send) = qp.sends.pop_front() else {
            return;
        };
        qp.rnr_retries = 0;
        if status == WcStatus::Success && !send.wr.signalled {
            return;
        }
        if let Some(cq) = self.cqs.get_mut(qp.cq) {
            let mut wc = PlainWc::ended(send.wr.wr_id, qp.number, status);
            if status == WcStatus::Success {
                wc.opcode = send.wr.op.completes_as();
                wc.len = u32::try_from(send.len()).unwrap_or(u32::MAX);
                wc.note = Note::None;
            }
            let (qp, sequence) = (at, send.sequence);
            let retires = Retires::Sends { qp, sequence };
            cq.push(Completed { wc, retires });
        }
    }

    /// Takes the oldest completion of a CQ, and gives back the room that it retires.
    pub(super) fn take_completion(&mut self, at: usize) -> Option<PlainWc> {
        let cq = self.cqs.get_mut(at)?;
        let done = cq.completions.pop_front()?;
        match done.retires {
            Retires::Sends { qp, sequence } => {
                if let Some(qp) = self.qps.get_mut(qp) {
                    cq.taken -= sequence + 1 - qp.retired;
                    qp.retired = sequence + 1;
                }
            }
            Retires::Receive { qp } => {
                cq.taken -= 1;
                if let Some(qp) = self.qps.get_mut(qp) {
                    qp.receives_taken -= 1;
                }
            }
            Retires::Shared => {
                cq.taken -= 1;
                cq.shared_taken -= 1;
            }
            Retires::Nothing => cq.taken -= 1,
        }
        Some(done.wc)
    }

    /// Forgets a QP. Its completions stay in the CQ, to be polled out by its number.
    pub(super) fn remove_qp(&mut self, at: usize) {
        let Some(qp) = self.qps.remove(at) else {
            return;
        };
        self.stalled.retain(|stalled| *stalled != at);
        if let Some(cq) = self.cqs.get_mut(qp.cq) {
            cq.taken -= qp.in_cq();
            for done in &mut cq.completions {
                if done.wc.qp == qp.number && done.retires != Retires::Shared {
                    done.retires = Retires::Nothing;
                    cq.taken += 1;
                }
            }
        }
    }
}
