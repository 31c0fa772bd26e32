//! The receiving end of an inbox: it reads what a peer writes, and believes none of it unchecked.
//!
//! ```text
//!  peek ─► first word (Acquire): the sequence that is due? ─► length, kind, order ─► Head
//!  Head ─► payload() copied out once ─► consume ─► now and then: progress (Release)
//!          no receive: waits(periods)      not to be had: refuse(code)
//! ```
//! Owns the positions of the head. Imported by shm.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]
#![allow(
    unsafe_code,
    reason = "hands out the word to be looked at without the inlet"
)]

use super::layout::{
    INLINE_BYTES, InboxMemory, KIND_SHIFT, LEN_MASK, MORE, UNUSED, high, kind, low, word,
};
use super::{Broken, Due, What};
use crate::fabric::Note;
use crate::types::Rkey;
use std::num::NonZeroU8;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

/// Lines that are asked for ahead of the one that is read.
const AHEAD: u32 = 8;
/// Shares of the cells and of the data that may be consumed without being published.
const LAZY: u32 = 8;

/// The fragment at the head of an inbox, checked.
#[derive(Debug)]
pub struct Head {
    what: What,
    payload: NonNull<u8>,
    len: u32,
    more: bool,
    ack: u32,
    /// Data units behind it.
    data_end: u32,
    position: u32,
}

impl Head {
    /// What it brings.
    #[inline(always)]
    #[must_use]
    pub fn what(&self) -> What {
        self.what
    }

    /// Bytes of this fragment; at most [`fragment_bytes`](super::super::Geometry::fragment_bytes).
    #[inline(always)]
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "an empty message is one too")]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Where they are: readable for `len` bytes as long as the inlet lives, the peer's to be reused
    /// once consumed, and the peer may write them at any time. To be copied out, once, by
    /// `memory::copy_arrived`.
    #[inline(always)]
    #[must_use]
    pub fn payload(&self) -> *const u8 {
        self.payload.as_ptr()
    }

    /// Another fragment of the message follows.
    #[inline(always)]
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.more
    }

    /// Ack of the other direction: for [`Outlet::note_ack`](super::Outlet::note_ack).
    #[inline(always)]
    #[must_use]
    pub fn ack(&self) -> u32 {
        self.ack
    }
}

/// A message that is whole in the cell at the head.
#[derive(Debug)]
pub struct Short {
    payload: NonNull<u8>,
    len: u32,
    ack: u32,
}

impl Short {
    /// Bytes of it; at most [`INLINE_BYTES`].
    #[inline(always)]
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "an empty message is one too")]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Where they are, as [`Head::payload`] says.
    #[inline(always)]
    #[must_use]
    pub fn payload(&self) -> *const u8 {
        self.payload.as_ptr()
    }

    /// Ack of the other direction: for [`Outlet::note_ack`](super::Outlet::note_ack).
    #[inline(always)]
    #[must_use]
    pub fn ack(&self) -> u32 {
        self.ack
    }
}

/// The end that receives.
#[derive(Debug)]
pub struct Inlet {
    memory: InboxMemory,
    /// Cells consumed: the position of the head.
    head: u32,
    /// Data units consumed.
    data_head: u32,
    /// What the peer was told of `head`, by either way.
    told: u32,
    /// What was published of both.
    published: u32,
    data_published: u32,
    /// From this position on lines are asked for ahead: the peer is in front of us then.
    behind_from: u32,
    /// Fragments of the message at the head have been consumed.
    inside: bool,
}

impl Inlet {
    /// Of an inbox of ours, zeroed.
    #[must_use]
    pub fn new(memory: InboxMemory) -> Self {
        Self {
            memory,
            head: 0,
            data_head: 0,
            told: 0,
            published: 0,
            data_published: 0,
            behind_from: AHEAD,
            inside: false,
        }
    }

    /// The fragment at the head, if it has come. It stays there until it is consumed.
    ///
    /// # Errors
    /// [`Broken`]: no honest peer writes such a cell.
    #[inline(always)]
    pub fn peek(&mut self) -> Result<Option<Head>, Broken> {
        let cell = self.memory.cell(self.head);
        let first = cell.first().load(Ordering::Acquire);
        if low(first) != self.head.wrapping_add(1) {
            // Lines that are not written yet are not to be taken from who is about to write them.
            self.behind_from = self.head.wrapping_add(AHEAD);
            return Ok(None);
        }
        let second = cell.second().load(Ordering::Relaxed);
        let about = high(first);
        let len = about & LEN_MASK;
        let mut head = Head {
            what: What::Message(Note::None),
            payload: cell.inline(),
            len,
            more: about & MORE != 0,
            ack: low(second),
            data_end: self.data_head,
            position: self.head,
        };
        if about == kind::SEND << KIND_SHIFT | len && len <= INLINE_BYTES {
            return Ok(Some(head));
        }
        if about & UNUSED != 0 {
            return Err(Broken::Kind);
        }
        head.what = match about >> KIND_SHIFT & 7 {
            kind::SEND => What::Message(Note::None),
            kind::SEND_IMM => What::Message(Note::Imm(high(second))),
            kind::SEND_INVALIDATE => What::Message(Note::Invalidated(Rkey(high(second)))),
            other => {
                head.what = self.other(other, high(second))?;
                return if len == 0 && !head.more {
                    Ok(Some(head))
                } else {
                    Err(Broken::Length)
                };
            }
        };
        let fragment = self.memory.fragment_bytes();
        // One that is not the last is whole, so that a message that never ends is one that is too long.
        if len > fragment || (head.more && len != fragment) {
            return Err(Broken::Length);
        }
        if len > INLINE_BYTES {
            let place = self.memory.place(self.data_head, len);
            head.payload = self.memory.data(place);
            head.data_end = place.end;
        }
        Ok(Some(head))
    }

    /// What tells that the next cell has come.
    ///
    /// # Safety
    /// The inlet lives as long as the answer is asked.
    #[inline(always)]
    #[must_use]
    pub unsafe fn due(&self) -> Due {
        let sequence = self.head.wrapping_add(1);
        // SAFETY: `new` requires a word that is mapped and only accessed by atomics as long as it is asked:
        // it is so as long as the inlet lives, which the caller promises.
        unsafe { Due::new(self.memory.cell(self.head).first(), sequence) }
    }

    /// A cell that brings no message.
    fn other(&self, code: u32, beside: u32) -> Result<What, Broken> {
        match code {
            // In the middle of a message only a fault may come.
            kind::WRITTEN if !self.inside => {
                let len = self.memory.cell(self.head).third().load(Ordering::Relaxed);
                let len = u32::try_from(len).map_err(|_| Broken::Length)?;
                Ok(What::Written { imm: beside, len })
            }
            kind::FAULT => Ok(What::Fault(beside)),
            _ => Err(Broken::Kind),
        }
    }

    /// Whether there is something to [`peek`](Self::peek) at.
    #[inline(always)]
    #[must_use]
    pub fn has_come(&mut self) -> bool {
        let first = self.memory.cell(self.head).first();
        let come = low(first.load(Ordering::Relaxed)) == self.head.wrapping_add(1);
        if !come {
            // As in `peek`.
            self.behind_from = self.head.wrapping_add(AHEAD);
        }
        come
    }

    /// The message at the head, if it has come and is of the shortest kind: a SEND whole in its cell. To
    /// be [consumed](Self::consume_short) as such; of any other, and of none, [`peek`](Self::peek) tells.
    #[inline(always)]
    #[must_use]
    pub fn peek_short(&self) -> Option<Short> {
        let cell = self.memory.cell(self.head);
        let first = cell.first().load(Ordering::Acquire);
        let len = high(first).wrapping_sub(kind::SEND << KIND_SHIFT);
        if low(first) != self.head.wrapping_add(1) || len > INLINE_BYTES || self.inside {
            return None;
        }
        Some(Short {
            payload: cell.inline(),
            len,
            ack: low(cell.second().load(Ordering::Relaxed)),
        })
    }

    /// As [`consume`](Self::consume), of what [`peek_short`](Self::peek_short) gave.
    #[inline(always)]
    pub fn consume_short(&mut self) -> bool {
        self.step(false)
    }

    /// Past the head. It is published when it is `due`, or cells enough were consumed; true if it was.
    #[inline(always)]
    fn step(&mut self, due: bool) -> bool {
        self.head = self.head.wrapping_add(1);
        self.ask_ahead();
        let cells = self.head.wrapping_sub(self.published);
        let due = due || cells >= self.memory.cells() / LAZY;
        if due {
            self.publish();
        }
        due
    }

    #[inline(always)]
    fn ask_ahead(&mut self) {
        let ahead = self.head.wrapping_sub(self.behind_from);
        if ahead < self.memory.cells() {
            let due = self.head.wrapping_add(AHEAD - 1);
            self.memory.cell(due).prefetch_to_read();
            // Kept near, so that the difference stays small however long the peer is in front.
            self.behind_from = self.head;
        }
    }

    /// The head was copied out: its room is the peer's again, and with its last fragment a message is
    /// acknowledged. True if the peer was told right away.
    #[inline(always)]
    pub fn consume(&mut self, head: Head) -> bool {
        debug_assert_eq!(head.position, self.head, "an old head");
        self.inside = head.more;
        self.data_head = head.data_end;
        let units = self.data_head.wrapping_sub(self.data_published);
        self.step(units >= self.memory.units() / LAZY)
    }

    /// Cells consumed: goes with the next push of the other direction, and is then [told](Self::told).
    #[inline(always)]
    #[must_use]
    pub fn ack(&self) -> u32 {
        self.head
    }

    /// The peer was sent [`ack`](Self::ack).
    #[inline(always)]
    pub fn told(&mut self) {
        self.told = self.head;
    }

    /// Something was consumed that the peer has not been told of: if nothing is pushed the other way
    /// soon, [`publish`](Self::publish). (Room that it was not told of is little enough to wait.)
    #[inline(always)]
    #[must_use]
    pub fn owes_ack(&self) -> bool {
        self.told != self.head
    }

    /// Tells the peer what was consumed, by the header's line.
    #[inline]
    pub fn publish(&mut self) {
        (self.published, self.data_published) = (self.head, self.data_head);
        self.told = self.head;
        let progress = word(self.data_head, self.head);
        // After the copies out of what is given back here.
        self.memory.progress().store(progress, Ordering::Release);
    }

    /// The head message has waited so many periods for a receive.
    pub fn waits(&mut self, periods: u32) {
        if self.published != self.head {
            self.publish();
        }
        let waits = word(periods, self.head);
        self.memory.waits().store(waits, Ordering::Relaxed);
    }

    /// The head message is not taken, nor any behind it. All before it is acknowledged.
    pub fn refuse(&mut self, code: NonZeroU8) {
        self.publish();
        let code = u64::from(code.get());
        // After the progress, which the peer reads after it.
        self.memory.refusal().store(code, Ordering::Release);
    }

    /// Announces that this end is about to sleep. The caller must now peek once more, look at its
    /// outlets too, and then either [`disarm`](Self::disarm) or wait for the bell and disarm then.
    pub fn arm(&mut self) {
        self.memory.sleeping().store(1, Ordering::Relaxed);
        // Orders the store before the recheck's loads; pairs with `Outlet::peer_sleeps`.
        fence(Ordering::SeqCst);
    }

    /// Awake: nobody needs to ring.
    pub fn disarm(&mut self) {
        self.memory.sleeping().store(0, Ordering::Relaxed);
    }

    /// The head is within a message.
    #[cfg(all(test, not(loom)))]
    pub(super) fn is_inside(&self) -> bool {
        self.inside
    }

    /// As if so much had been consumed.
    #[cfg(all(test, not(loom)))]
    pub(super) fn begin_at(&mut self, cells: u32, units: u32) {
        (self.head, self.told, self.published) = (cells, cells, cells);
        (self.data_head, self.data_published) = (units, units);
        self.behind_from = cells.wrapping_add(AHEAD);
    }

    /// The memory, for a test that writes to it.
    #[cfg(all(test, not(loom)))]
    pub(super) fn memory(&self) -> &InboxMemory {
        &self.memory
    }
}
