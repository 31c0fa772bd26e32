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
use crate::fabric::{
    Fabric, Lane, MoreSges, Note, PostFailure, RecvWr, SendWr, WcOpcode, WcStatus, WorkCompletion,
};
use crate::memory::{Registration, copy_shared};
use crate::sys::epoll::Epoll;
use crate::sys::eventfd::EventFd;
use crate::types::QpNum;
use std::os::fd::BorrowedFd;
use std::ptr::with_exposed_provenance;
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

/// A completion.
#[derive(Clone, Copy, Debug)]
pub struct FaultWc {
    pub(super) wr_id: u64,
    pub(super) status: WcStatus,
    pub(super) opcode: WcOpcode,
    pub(super) len: u32,
    pub(super) note: Note,
    pub(super) qp: QpNum,
    pub(super) vendor: u32,
}

impl FaultWc {
    fn of<W: WorkCompletion>(wc: &W) -> Self {
        let good = wc.is_success();
        Self {
            wr_id: wc.wr_id(),
            status: wc.status(),
            opcode: if good {
                wc.opcode()
            } else {
                WcOpcode::Other(u32::MAX)
            },
            len: if good { wc.byte_len() } else { u32::MAX },
            note: if good { wc.note() } else { Note::None },
            qp: wc.qp_num(),
            vendor: wc.vendor_err(),
        }
    }
}

impl WorkCompletion for FaultWc {
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
        self.vendor
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
    let mut bytes = Vec::new();
    let behind = more.map_or(&[][..], |more| &more[..usize::from(wr.more)]);
    let behind = behind.iter().map(|sge| (sge.addr, sge.len));
    for (addr, len) in std::iter::once((wr.addr, wr.len)).chain(behind) {
        let begin = bytes.len();
        bytes.resize(begin + len as usize, 0);
        let from = with_exposed_provenance::<u8>(usize::try_from(addr).unwrap_or(0));
        let to = bytes[begin..].as_mut_ptr();
        // SAFETY: `copy_shared` requires
        // - `len` bytes to read: the caller of `Lane::post_send` has the payload in its hands during
        //   the call, which this is a part of;
        // - as many to write, and no other reference to them: they were just made.
        unsafe { copy_shared(from, to, len as usize) };
    }
    bytes
}

impl<F: Fabric> Lane for FaultLane<F> {
    type Qp = FaultQp<F>;
    type Wc = FaultWc;

    fn blank() -> FaultWc {
        FaultWc {
            wr_id: 0,
            status: WcStatus::Success,
            opcode: WcOpcode::Other(u32::MAX),
            len: 0,
            note: Note::None,
            qp: QpNum(0),
            vendor: 0,
        }
    }

    fn poll(&mut self, into: &mut [FaultWc]) -> usize {
        let mut book = self.shared.lock();
        book.polls += 1;
        book.resume(&mut self.inner);
        let mut wcs = [F::Lane::blank(); crate::limits::POLL_BATCH_MAX];
        loop {
            let n = self.inner.poll(&mut wcs);
            for wc in &wcs[..n] {
                book.take(&FaultWc::of(wc));
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
    }

    fn post_recv(&mut self, qp: &mut FaultQp<F>, chain: &[RecvWr]) -> Result<(), PostFailure> {
        let mut book = self.shared.lock();
        let (ours, cut) = book.receives(chain);
        // Completions may come during the post, but are looked at only by polls.
        let outcome = match book.qp(qp.number).and_then(|book| book.qp.as_mut()) {
            Some(qp) => self.inner.post_recv(qp, &ours),
            None => Err(PostFailure {
                posted: 0,
                errno: libc::EINVAL,
            }),
        };
        let posted = outcome.map_or_else(|failure| failure.posted, |()| ours.len());
        let words = ours
            .iter()
            .zip(chain)
            .map(|(ours, wr)| (ours.wr_id, wr.wr_id));
        book.received(qp.number, words.take(posted));
        outcome.and(cut)
    }

    fn post_shared_recv(&mut self, chain: &[RecvWr]) -> Result<(), PostFailure> {
        let mut book = self.shared.lock();
        let (ours, cut) = book.receives(chain);
        let outcome = self.inner.post_shared_recv(&ours);
        let posted = outcome.map_or_else(|failure| failure.posted, |()| ours.len());
        let words = ours
            .iter()
            .zip(chain)
            .map(|(ours, wr)| (ours.wr_id, wr.wr_id));
        book.shared.extend(words.take(posted));
        outcome.and(cut)
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
    /// Receives under words of ours, as many as are let through, and the refusal of the rest.
    fn receives(&mut self, chain: &[RecvWr]) -> (Vec<RecvWr>, Result<(), PostFailure>) {
        let cut = self.cut(chain.len());
        let taken = &chain[..cut.unwrap_or(chain.len())];
        let ours = taken.iter().map(|wr| RecvWr {
            wr_id: self.word(),
            ..*wr
        });
        let ours = ours.collect();
        let refusal = cut.map(|posted| PostFailure {
            posted,
            errno: libc::ENOMEM,
        });
        (ours, refusal.map_or(Ok(()), Err))
    }
}
