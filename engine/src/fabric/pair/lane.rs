//! The datapath of the pair fabric: posts execute at once as far as they can, polls retry the rest.
//!
//! ```text
//!  post_send ─► enqueue ─► run ─┬─► CQ of the requester ─► poll
//!  post_recv ─► enqueue ────────┴─► CQ of the peer      ─► poll (retries what waits for a receive)
//! ```
//! This is the provider, not the engine: it locks the hub. It does not allocate once its queues are
//! made. Its four calls are never inlined, so that a profile of an engine tells the two apart.
//! Imported by mod.

#![allow(unsafe_code, reason = "has inline payloads copied by address")]

use super::handles::{CqHandle, PairQp};
use crate::fabric::plain::{PlainWc, gather_inline, refuse_binds};
use crate::fabric::{Lane, MoreSges, PostFailure, RecvWr, SendWr};
use crate::sys::eventfd::EventFd;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

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

impl Lane for PairLane {
    type Qp = PairQp;
    type Wc = PlainWc;

    fn blank() -> PlainWc {
        PlainWc::BLANK
    }

    #[inline(never)]
    fn poll(&mut self, into: &mut [PlainWc]) -> usize {
        let mut net = self.cq.hub.lock();
        if !net.stalled.is_empty() {
            net.retry(self.cq.index);
        }
        for (n, slot) in into.iter_mut().enumerate() {
            let Some(done) = net.take_completion(self.cq.index) else {
                return n;
            };
            *slot = done;
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
        refuse_binds(chain)?;
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
