//! The datapath of the pair fabric: posts execute at once as far as they can, polls retry the rest.
//!
//! ```text
//!  post_send ─► enqueue ─► run ─┬─► CQ of the requester ─► poll
//!  post_recv ─► enqueue ────────┴─► CQ of the peer      ─► poll (retries what waits for a receive)
//! ```
//! This is the provider, not the engine: it locks the hub. It does not allocate once its queues are
//! made. Its four calls are never inlined, so that a profile of an engine tells the two apart.
//! Imported by mod.

#![allow(unsafe_code, reason = "copies inline payloads by address")]

use super::cq::Completed;
use super::handles::{CqHandle, PairQp};
use crate::fabric::{
    Lane, MoreSges, Note, PostFailure, RecvWr, SendWr, WcOpcode, WcStatus, WorkCompletion,
};
use crate::memory::copy_shared;
use crate::sys::eventfd::EventFd;
use crate::types::QpNum;
use std::os::fd::BorrowedFd;
use std::ptr::with_exposed_provenance;
use std::sync::Arc;

/// A completion.
#[derive(Clone, Copy, Debug)]
pub struct PairWc {
    wr_id: u64,
    status: WcStatus,
    opcode: WcOpcode,
    len: u32,
    note: Note,
    qp: QpNum,
}

impl From<Completed> for PairWc {
    fn from(done: Completed) -> Self {
        Self {
            wr_id: done.wr_id,
            status: done.status,
            opcode: done.opcode,
            len: done.len,
            note: done.note,
            qp: done.qp,
        }
    }
}

impl WorkCompletion for PairWc {
    fn wr_id(&self) -> u64 {
        self.wr_id
    }
    fn status(&self) -> WcStatus {
        self.status
    }
    fn is_success(&self) -> bool {
        self.status == WcStatus::Success
    }
    fn opcode(&self) -> WcOpcode {
        self.opcode
    }
    fn byte_len(&self) -> u32 {
        self.len
    }
    fn note(&self) -> Note {
        self.note
    }
    fn qp_num(&self) -> QpNum {
        self.qp
    }
    fn vendor_err(&self) -> u32 {
        0
    }
}

/// The worker's half of a lane.
#[derive(Debug)]
pub struct PairLane {
    cq: Arc<CqHandle>,
    bell: Option<Arc<EventFd>>,
}

impl PairLane {
    pub(super) fn new(cq: Arc<CqHandle>, bell: Option<Arc<EventFd>>) -> Self {
        Self { cq, bell }
    }
}

/// Copies an inline payload together.
///
/// # Safety
/// The pieces of `wr` are readable.
unsafe fn gather_inline(wr: &SendWr, more: Option<&MoreSges>, mut into: &mut [u8]) {
    let first = (wr.addr, wr.len);
    let behind = more.map_or(&[][..], |more| &more[..usize::from(wr.more)]);
    let behind = behind.iter().map(|sge| (sge.addr, sge.len));
    for (addr, len) in std::iter::once(first).chain(behind) {
        let Some((here, rest)) = into.split_at_mut_checked(len as usize) else {
            return;
        };
        let from = with_exposed_provenance::<u8>(usize::try_from(addr).unwrap_or(0));
        // SAFETY: `copy_shared` requires
        // - `len` bytes to read: the caller promises;
        // - as many to write, and no other reference to them: `here` has just those.
        unsafe { copy_shared(from, here.as_mut_ptr(), here.len()) };
        into = rest;
    }
}

impl Lane for PairLane {
    type Qp = PairQp;
    type Wc = PairWc;

    fn blank() -> PairWc {
        PairWc {
            wr_id: 0,
            status: WcStatus::Success,
            opcode: WcOpcode::Other(u32::MAX),
            len: 0,
            note: Note::None,
            qp: QpNum(0),
        }
    }

    #[inline(never)]
    fn poll(&mut self, into: &mut [PairWc]) -> usize {
        let mut net = self.cq.hub.lock();
        if !net.stalled.is_empty() {
            net.retry(self.cq.index);
        }
        for (n, slot) in into.iter_mut().enumerate() {
            let Some(done) = net.take_completion(self.cq.index) else {
                return n;
            };
            *slot = done.into();
        }
        into.len()
    }

    #[inline(never)]
    fn post_send(
        &mut self,
        qp: &mut PairQp,
        chain: &[SendWr],
        more: &[MoreSges],
    ) -> Result<(), PostFailure> {
        let mut net = self.cq.hub.lock();
        let at = qp.index();
        let mut outcome = Ok(());
        for (posted, wr) in chain.iter().enumerate() {
            let pieces = more.get(posted);
            match net.enqueue(at, wr, pieces) {
                Ok(sequence) if wr.inline => {
                    let Some(qp) = net.qps.get_mut(at) else { break };
                    let place = qp.inline_place(sequence, qp.inline_bytes as usize);
                    // SAFETY: `gather_inline` requires readable pieces: the caller of
                    // `Lane::post_send` has the payload in its hands during the call.
                    unsafe { gather_inline(wr, pieces, place) };
                }
                Ok(_) => {}
                Err(errno) => {
                    outcome = Err(PostFailure { posted, errno });
                    break;
                }
            }
        }
        net.pushed(at);
        outcome
    }

    #[inline(never)]
    fn post_recv(&mut self, qp: &mut PairQp, chain: &[RecvWr]) -> Result<(), PostFailure> {
        let mut net = self.cq.hub.lock();
        let outcome = net.enqueue_receives(qp.index(), chain);
        net.pushed(qp.index());
        if !net.stalled.is_empty() {
            net.rouse(qp.index());
        }
        outcome
    }

    #[inline(never)]
    fn post_shared_recv(&mut self, chain: &[RecvWr]) -> Result<(), PostFailure> {
        let mut net = self.cq.hub.lock();
        let outcome = net.enqueue_shared(self.cq.index, chain);
        if !net.stalled.is_empty() {
            net.received_shared(self.cq.index);
        }
        outcome
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_deref().map(EventFd::fd)
    }

    fn arm(&mut self) -> Result<(), i32> {
        if let Some(cq) = self.cq.hub.lock().cqs.get_mut(self.cq.index) {
            cq.armed = true;
        }
        Ok(())
    }

    fn drain_events(&mut self) {
        if let Some(bell) = &self.bell {
            // An eventfd of ours cannot fail.
            let _ = bell.drain();
        }
    }
}
