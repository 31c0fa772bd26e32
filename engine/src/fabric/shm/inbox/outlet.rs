//! The sending end of an inbox: it writes into the peer's memory.
//!
//! ```text
//!  push ─► room in cells and data? ─► payload ─► second word ─► first word (Release) ─► prefetchw ahead
//!            └─ Full: look, or wait for note_ack
//! ```
//! Owns the positions behind its last cell and data. Imported by shm.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::super::geometry::CELL_BYTES;
use super::Broken;
use super::layout::{INLINE_BYTES, InboxMemory, KIND_SHIFT, MORE, high, kind, low, word};
use crate::fabric::Note;
use crate::memory::ask_to_write;
use std::num::NonZeroU8;
use std::sync::atomic::{Ordering, fence};

/// Lines that are asked for ahead of the one that is written. Measured: 4 are too few, 16 as good.
const AHEAD: u32 = 8;
/// Bytes of data that are asked for before the first is written: 840 instead of 960 ns for half a round
/// trip of 4 KiB.
const ASKED_BYTES: u32 = 4096;
/// Cells that only [`Outlet::push_fault`] may take.
const KEPT: u32 = 1;

/// No room for it in the inbox now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer's inbox is full")]
pub struct Full;

/// What the peer says of the message at the head of its inbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Periods of its timer that the message behind the last one acknowledged has waited for a receive.
    pub waited: u32,
    /// The message behind the last one acknowledged is refused with this code, and nothing more is taken.
    pub refusal: Option<NonZeroU8>,
}

/// The end that sends.
#[derive(Debug)]
pub struct Outlet {
    memory: InboxMemory,
    /// Cells sent.
    tail: u32,
    /// Cells known to be consumed, and so acknowledged.
    acked: u32,
    /// Data units given out.
    data_tail: u32,
    /// Data units known to be free again.
    data_free: u32,
}

impl Outlet {
    /// Of the peer's inbox, which nobody has written to yet.
    #[must_use]
    pub fn new(memory: InboxMemory) -> Self {
        Self {
            memory,
            tail: 0,
            acked: 0,
            data_tail: 0,
            data_free: 0,
        }
    }

    /// Bytes that go by one push.
    #[inline(always)]
    #[must_use]
    pub fn fragment_bytes(&self) -> u32 {
        self.memory.fragment_bytes()
    }

    /// Sends what is left of a message, `left` bytes, as far as one fragment takes it: `fill` gets the
    /// place and how many bytes to put there, which is what comes back. Less than `left`: the rest goes
    /// by further pushes, with nothing between. `ack` is [`Inlet::ack`](super::Inlet::ack) of the other
    /// direction, to be [told](super::Inlet::told) when the push succeeded.
    ///
    /// # Errors
    /// [`Full`]; nothing was sent.
    #[inline(always)]
    pub fn push(
        &mut self,
        note: Note,
        ack: u32,
        left: u32,
        fill: impl FnOnce(*mut u8, usize),
    ) -> Result<u32, Full> {
        if self.under_way() >= self.memory.cells() - KEPT {
            return Err(Full);
        }
        let (kind, beside) = match note {
            Note::None => (kind::SEND, 0),
            Note::Imm(imm) => (kind::SEND_IMM, imm),
            Note::Invalidated(rkey) => (kind::SEND_INVALIDATE, rkey.0),
        };
        let mut about = kind << KIND_SHIFT | left;
        let mut len = left;
        if left <= INLINE_BYTES {
            fill(self.memory.cell(self.tail).inline().as_ptr(), left as usize);
        } else {
            len = left.min(self.memory.fragment_bytes());
            about = kind << KIND_SHIFT | len | if len < left { MORE } else { 0 };
            let place = self.memory.place(self.data_tail, len);
            if place.end.wrapping_sub(self.data_free) > self.memory.units() {
                return Err(Full);
            }
            let to = self.memory.data(place).as_ptr();
            for line in (0..len.min(ASKED_BYTES) as usize).step_by(CELL_BYTES) {
                ask_to_write(to.wrapping_add(line));
            }
            fill(to, len as usize);
            self.data_tail = place.end;
        }
        self.publish(about, ack, beside);
        Ok(len)
    }

    /// As [`push`](Self::push), of a message without a note and of at most [`INLINE_BYTES`], which goes
    /// whole.
    ///
    /// # Errors
    /// [`Full`]; nothing was sent.
    #[inline(always)]
    pub fn push_short(
        &mut self,
        ack: u32,
        len: u32,
        fill: impl FnOnce(*mut u8),
    ) -> Result<(), Full> {
        debug_assert!(len <= INLINE_BYTES);
        if self.under_way() >= self.memory.cells() - KEPT {
            return Err(Full);
        }
        fill(self.memory.cell(self.tail).inline().as_ptr());
        self.publish(kind::SEND << KIND_SHIFT | len, ack, 0);
        Ok(())
    }

    /// Says that `len` bytes were written to memory of the peer's, and consumes a receive of its.
    ///
    /// # Errors
    /// [`Full`]; nothing was sent.
    #[inline]
    pub fn push_written(&mut self, imm: u32, ack: u32, len: u32) -> Result<(), Full> {
        if self.under_way() >= self.memory.cells() - KEPT {
            return Err(Full);
        }
        let cell = self.memory.cell(self.tail);
        cell.third().store(u64::from(len), Ordering::Relaxed);
        self.publish(kind::WRITTEN << KIND_SHIFT, ack, imm);
        Ok(())
    }

    /// Says that both ends are in error, after all that was sent before. There is always room for it,
    /// once.
    pub fn push_fault(&mut self, code: u32, ack: u32) {
        if self.under_way() < self.memory.cells() {
            self.publish(kind::FAULT << KIND_SHIFT, ack, code);
        }
    }

    /// A cell's words, the first one last.
    #[inline(always)]
    fn publish(&mut self, about: u32, ack: u32, beside: u32) {
        let cell = self.memory.cell(self.tail);
        cell.second().store(word(beside, ack), Ordering::Relaxed);
        self.tail = self.tail.wrapping_add(1);
        // After the payload and the second word.
        cell.first()
            .store(word(about, self.tail), Ordering::Release);
        let ahead = self.tail.wrapping_add(AHEAD - 1);
        self.memory.cell(ahead).prefetch_to_write();
    }

    /// Cells sent so far: after a push, the number to ask [`is_acked`](Self::is_acked) for.
    #[inline(always)]
    #[must_use]
    pub fn sent(&self) -> u32 {
        self.tail
    }

    /// Whether the peer has consumed all cells up to `sent`, which [`sent`](Self::sent) was less than
    /// 2³² cells ago.
    #[inline(always)]
    #[must_use]
    pub fn is_acked(&self, sent: u32) -> bool {
        self.tail.wrapping_sub(sent) >= self.under_way()
    }

    /// Cells sent and not known to be consumed.
    #[inline(always)]
    #[must_use]
    pub fn under_way(&self) -> u32 {
        self.tail.wrapping_sub(self.acked)
    }

    /// Takes the ack that a cell of the other direction brought: [`Head::ack`](super::Head::ack).
    ///
    /// # Errors
    /// [`Broken`]: it is none.
    #[inline(always)]
    pub fn note_ack(&mut self, ack: u32) -> Result<(), Broken> {
        let new = ack.wrapping_sub(self.acked);
        if new <= self.under_way() {
            self.acked = ack;
            return Ok(());
        }
        self.old_ack(ack)
    }

    /// An ack may be older than one that came by the other way, but not by more than a lap.
    #[cold]
    fn old_ack(&self, ack: u32) -> Result<(), Broken> {
        if self.acked.wrapping_sub(ack) <= self.memory.cells() {
            Ok(())
        } else {
            Err(Broken::Ack)
        }
    }

    /// Looks at what the peer publishes. It costs a load as long as that is the same, a line of the
    /// cache when it has changed: to be done when there is no room or nothing else to do.
    ///
    /// # Errors
    /// [`Broken`]: it is not what an honest peer publishes.
    #[inline]
    pub fn look(&mut self) -> Result<Look, Broken> {
        // The refusal first: what was consumed before it is then seen too.
        let refusal = self.memory.refusal().load(Ordering::Acquire);
        let waits = self.memory.waits().load(Ordering::Relaxed);
        let progress = self.memory.progress().load(Ordering::Acquire);
        self.note_ack(low(progress))?;
        let freed = high(progress).wrapping_sub(self.data_free);
        if freed > self.data_tail.wrapping_sub(self.data_free) {
            return Err(Broken::Room);
        }
        self.data_free = high(progress);
        let refusal = u8::try_from(refusal).map_err(|_| Broken::Refusal)?;
        let waits_now = low(waits) == self.acked && self.under_way() > 0;
        Ok(Look {
            waited: if waits_now { high(waits) } else { 0 },
            refusal: NonZeroU8::new(refusal),
        })
    }

    /// To be asked after a batch of pushes, or after publishing acks, where the peer may sleep: true if
    /// its bell must be rung now. Of several callers during one sleep one is told so.
    #[inline]
    #[must_use = "if it says true and nobody rings, the peer sleeps on"]
    pub fn peer_sleeps(&self) -> bool {
        // Orders the cells before the load; pairs with `Inlet::arm`.
        fence(Ordering::SeqCst);
        let sleeping = self.memory.sleeping();
        sleeping.load(Ordering::Relaxed) != 0 && sleeping.swap(0, Ordering::Relaxed) != 0
    }

    /// As if so much had been sent and consumed.
    #[cfg(all(test, not(loom)))]
    pub(super) fn begin_at(&mut self, cells: u32, units: u32) {
        (self.tail, self.acked) = (cells, cells);
        (self.data_tail, self.data_free) = (units, units);
        self.memory
            .progress()
            .store(word(units, cells), Ordering::Relaxed);
    }

    /// The memory, for a test that writes to it.
    #[cfg(all(test, not(loom)))]
    pub(super) fn memory(&self) -> &InboxMemory {
        &self.memory
    }
}
