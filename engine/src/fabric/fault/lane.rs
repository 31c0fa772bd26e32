//! The datapath of a faulty fabric.
//!
//! ```text
//!  post ─► LaneBook: now, later, or to fail ─► Lane of the fabric underneath
//!  poll ─► …resume what waited ─► all completions underneath ─► a line a QP ─► those that are due
//! ```
//! Order is kept on each QP, as RC keeps it, and not between QPs. A worker that is about to sleep is
//! not left with something that only another poll would bring: arming releases all that is late.
//! Imported by mod.

#![allow(unsafe_code, reason = "copies inline payloads that are posted later")]

use super::book::LaneBook;
use crate::fabric::plain::{PlainWc, gather_inline, payload_bytes, refuse_binds};
use crate::fabric::{Fabric, Lane, MoreSges, PostFailure, RecvWr, SendWr, WorkCompletion};
use crate::memory::Registration;
use crate::sys::epoll::Epoll;
use crate::sys::eventfd::EventFd;
use crate::types::QpNum;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a lane and its QPs share.
pub(super) struct Shared<F: Fabric> {
    book: Mutex<LaneBook<F>>,
    /// Of a lane with events: rung when control frees what waited.
    pub(super) bell: Option<EventFd>,
}

impl<F: Fabric> Shared<F> {
    pub(super) fn new(book: LaneBook<F>, bell: Option<EventFd>) -> Arc<Self> {
        let book = Mutex::new(book);
        Arc::new(Self { book, bell })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LaneBook<F>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ring(&self) {
        if let Some(bell) = &self.bell {
            // An eventfd of ours cannot fail.
            let _ = bell.signal();
        }
    }
}

/// The posting half of a QP; the QP itself is in its lane's book, for what is posted later.
pub struct FaultQp<F: Fabric> {
    pub(super) number: QpNum,
    pub(super) shared: Arc<Shared<F>>,
}

impl<F: Fabric> std::fmt::Debug for FaultQp<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FaultQp({})", self.number.0)
    }
}

impl<F: Fabric> FaultQp<F> {
    /// Takes the QP out of the book: nothing can be posted to it any more.
    pub(super) fn take(&mut self) -> Option<F::Qp> {
        let mut book = self.shared.lock();
        book.hurry = true;
        book.qp(self.number)?.qp.take()
    }
}

impl<F: Fabric> Drop for FaultQp<F> {
    fn drop(&mut self) {
        let gone = self.take();
        drop(gone);
    }
}

/// The worker's half of a lane.
pub struct FaultLane<F: Fabric> {
    pub(super) inner: F::Lane,
    pub(super) shared: Arc<Shared<F>>,
    /// The descriptors of the lane underneath and of the bell.
    pub(super) wait: Option<Epoll>,
    /// QP from which on the next poll looks, so that none starves.
    pub(super) first: usize,
}

impl<F: Fabric> std::fmt::Debug for FaultLane<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultLane").finish_non_exhaustive()
    }
}

/// The payload of an inline operation.
pub(super) fn gather(wr: &SendWr, more: Option<&MoreSges>) -> Vec<u8> {
    let mut bytes = vec![0; payload_bytes(wr, more)];
    // SAFETY: `gather_inline` requires readable pieces: the caller of `Lane::post_send` has the payload
    // in its hands during the call, which this is a part of.
    unsafe { gather_inline(wr, more, &mut bytes) };
    bytes
}

/// A completion of the fabric underneath; what a failed one does not define is not looked at.
fn plain<W: WorkCompletion>(wc: &W) -> PlainWc {
    let ended = PlainWc {
        vendor: wc.vendor_err(),
        ..PlainWc::ended(wc.wr_id(), wc.qp_num(), wc.status())
    };
    if !wc.is_success() {
        return ended;
    }
    PlainWc {
        opcode: wc.opcode(),
        len: wc.byte_len(),
        note: wc.note(),
        ..ended
    }
}

impl<F: Fabric> Lane for FaultLane<F> {
    type Qp = FaultQp<F>;
    type Wc = PlainWc;

    fn blank() -> PlainWc {
        PlainWc::BLANK
    }

    fn poll(&mut self, into: &mut [PlainWc]) -> usize {
        let mut book = self.shared.lock();
        book.polls += 1;
        book.resume(&mut self.inner);
        let mut wcs = [F::Lane::blank(); crate::limits::POLL_BATCH_MAX];
        loop {
            let n = self.inner.poll(&mut wcs);
            for wc in &wcs[..n] {
                book.take(&plain(wc));
            }
            if n < wcs.len() {
                break;
            }
        }
        // What was flushed just now lets what waits behind it be flushed too.
        book.resume(&mut self.inner);
        let (polls, hurry, count) = (book.polls, book.hurry, book.qps.len());
        self.first += 1;
        let mut n = 0;
        for at in 0..count {
            let qp = &mut book.qps[(self.first + at) % count];
            while n < into.len()
                && let Some(wc) = qp.next(polls, hurry)
            {
                into[n] = wc;
                n += 1;
            }
        }
        if n == 0 && !into.is_empty() {
            book.hurry = false;
        }
        n
    }

    fn post_send(
        &mut self,
        qp: &mut FaultQp<F>,
        chain: &[SendWr],
        more: &[MoreSges],
    ) -> Result<(), PostFailure> {
        refuse_binds(chain)?;
        let mut book = self.shared.lock();
        let cut = book.cut(chain.len());
        for (posted, wr) in chain.iter().enumerate() {
            if cut == Some(posted) {
                let errno = libc::ENOMEM;
                return Err(PostFailure { posted, errno });
            }
            book.post(&mut self.inner, qp.number, wr, more.get(posted))
                .map_err(|errno| PostFailure { posted, errno })?;
        }
        Ok(())
    }

    fn post_bind(
        &mut self,
        qp: &mut FaultQp<F>,
        wr: &SendWr,
        memory: &dyn Registration,
    ) -> Result<(), PostFailure> {
        let mut book = self.shared.lock();
        book.bind(&mut self.inner, qp.number, wr, memory)
            .map_err(|errno| PostFailure { posted: 0, errno })
    }

    fn post_recv(&mut self, qp: &mut FaultQp<F>, chain: &[RecvWr]) -> Result<(), PostFailure> {
        let (mut book, inner) = (self.shared.lock(), &mut self.inner);
        let (words, outcome) = book.receives(chain, |book, ours| {
            let book = book.qp(qp.number).and_then(|book| book.qp.as_mut());
            let errno = libc::EINVAL;
            let qp = book.ok_or(PostFailure { posted: 0, errno })?;
            inner.post_recv(qp, ours)
        });
        if let Some(book) = book.qp(qp.number) {
            book.receives.extend(words);
        }
        outcome
    }

    fn post_shared_recv(&mut self, chain: &[RecvWr]) -> Result<(), PostFailure> {
        let (mut book, inner) = (self.shared.lock(), &mut self.inner);
        let (words, outcome) = book.receives(chain, |_, ours| inner.post_shared_recv(ours));
        book.shared.extend(words);
        outcome
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.wait.as_ref().map(Epoll::fd)
    }

    fn arm(&mut self) -> Result<(), i32> {
        self.inner.arm()?;
        let mut book = self.shared.lock();
        book.hurry = true;
        book.resume(&mut self.inner);
        Ok(())
    }

    fn drain_events(&mut self) {
        self.inner.drain_events();
        if let Some(bell) = &self.shared.bell {
            // An eventfd of ours cannot fail.
            let _ = bell.drain();
        }
    }
}

impl<F: Fabric> LaneBook<F> {
    /// Posts receives under words of ours, as many as are let through. Gives the words of those that
    /// were posted, ours and the caller's: completions may come during the post, but are looked at only
    /// by polls.
    fn receives(
        &mut self,
        chain: &[RecvWr],
        post: impl FnOnce(&mut Self, &[RecvWr]) -> Result<(), PostFailure>,
    ) -> (Vec<(u64, u64)>, Result<(), PostFailure>) {
        let cut = self.cut(chain.len());
        let refusal = cut.map(|posted| PostFailure {
            posted,
            errno: libc::ENOMEM,
        });
        let taken = &chain[..cut.unwrap_or(chain.len())];
        let mut ours = taken.to_vec();
        for wr in &mut ours {
            wr.wr_id = self.word();
        }
        let outcome = post(self, &ours);
        let posted = outcome.map_or_else(|failure| failure.posted, |()| ours.len());
        let words = ours.iter().zip(taken).take(posted);
        let words = words.map(|(ours, wr)| (ours.wr_id, wr.wr_id)).collect();
        (words, outcome.and(refusal.map_or(Ok(()), Err)))
    }
}
