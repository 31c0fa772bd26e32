//! What lies where in an inbox, and the only code that turns positions into addresses.
//!
//! ```text
//!  header   0: progress: data units << 32 | cells   8: refusal   16: waits   24: ─   128: sleeping
//!  cell     0: sequence | length << 32 | kind << 56 | more << 59   8: ack | note << 32   16: inline
//!  data     units of 64 B; a fragment never wraps: it begins anew at the front where it would
//! ```
//! The header is written by the receiver. A cell's sequence is its position plus one, so zeroed memory
//! holds no cell, and what the last lap left is not taken for new. Positions count for ever and wrap.
//!
//! Imports geometry, memory (hints). Imported by outlet and inlet.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]
#![allow(
    unsafe_code,
    reason = "addresses within a mapping that another process writes, from masked positions"
)]

use super::super::Geometry;
use super::super::geometry::{CELL_BYTES, HEADER_BYTES, UNIT_BYTES};
use crate::memory::{ask_to_read, ask_to_write};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes of a payload that fit beside the words of a cell.
pub const INLINE_BYTES: u32 = 48;

const INLINE_AT: usize = 16;
const PROGRESS_AT: usize = 0;
const REFUSAL_AT: usize = 8;
const WAITS_AT: usize = 16;
/// Not in the line of the others, nor in the one that is fetched with it.
const SLEEPING_AT: usize = 128;

const _: () = assert!(INLINE_AT + INLINE_BYTES as usize == CELL_BYTES);
const _: () = assert!(SLEEPING_AT + size_of::<AtomicU32>() <= HEADER_BYTES);
const _: () = assert!(HEADER_BYTES.is_multiple_of(CELL_BYTES));
// The largest fragment's length fits.
const _: () = assert!((1 << 25) / 16 <= LEN_MASK);

/// Upper half of a cell's first word: the length's bits.
pub(super) const LEN_MASK: u32 = (1 << 24) - 1;
/// Where the kind begins there; three bits.
pub(super) const KIND_SHIFT: u32 = 24;
/// More fragments of the message follow.
pub(super) const MORE: u32 = 1 << 27;
/// The bits above are zero.
pub(super) const UNUSED: u32 = !((MORE << 1) - 1);

/// Kinds of cells. Zero is none.
pub(super) mod kind {
    pub(in super::super) const SEND: u32 = 1;
    pub(in super::super) const SEND_IMM: u32 = 2;
    pub(in super::super) const SEND_INVALIDATE: u32 = 3;
    pub(in super::super) const WRITTEN: u32 = 4;
    pub(in super::super) const FAULT: u32 = 5;
}

/// An inbox as it is mapped here. Holding one proves: the bytes of its geometry, which is checked, are
/// mapped readable and writable from `base` on, as long as `owner` lives.
pub struct InboxMemory {
    base: NonNull<u8>,
    geometry: Geometry,
    cell_mask: u32,
    unit_mask: u32,
    fragment_bytes: u32,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: `Send` wants that another thread may use the memory: the mapping is the process's, the owner
// is Send and Sync, and the words are reached by atomics or by the copy routine alone.
unsafe impl Send for InboxMemory {}

impl fmt::Debug for InboxMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InboxMemory({} at {:?})", self.geometry, self.base)
    }
}

impl InboxMemory {
    /// The inbox in the first of `len` bytes. `None` where the geometry is none, the bytes are too few
    /// or do not begin a line of the cache.
    ///
    /// # Safety
    /// While `owner` lives, `len` bytes from `base` on are mapped readable and writable, access to
    /// them does not fault, and nobody of this process has a reference to them but to atomics.
    #[must_use]
    pub unsafe fn new(
        base: NonNull<u8>,
        len: usize,
        geometry: Geometry,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Option<Self> {
        let geometry = geometry.check().ok()?;
        let fits = geometry.bytes() <= len && base.addr().get().is_multiple_of(CELL_BYTES);
        fits.then_some(Self {
            base,
            geometry,
            cell_mask: geometry.cells - 1,
            unit_mask: geometry.data_bytes / UNIT_BYTES - 1,
            fragment_bytes: geometry.fragment_bytes(),
            _owner: owner,
        })
    }

    #[inline(always)]
    pub(super) fn cells(&self) -> u32 {
        self.cell_mask + 1
    }

    /// Units of the data ring.
    #[inline(always)]
    pub(super) fn units(&self) -> u32 {
        self.unit_mask + 1
    }

    #[inline(always)]
    pub(super) fn fragment_bytes(&self) -> u32 {
        self.fragment_bytes
    }

    /// The cell of a position.
    #[inline(always)]
    pub(super) fn cell(&self, position: u32) -> Cell<'_> {
        let at = HEADER_BYTES + (position & self.cell_mask) as usize * CELL_BYTES;
        // SAFETY: `add` requires to stay in the mapping: the masked position is below `cells`, so the
        // cell ends at or before `HEADER_BYTES + cells * CELL_BYTES`, and `new` saw that so much is there.
        let at = unsafe { self.base.add(at) };
        Cell { at, _of: self }
    }

    /// Where a fragment of `len` bytes goes that follows `position` in the data, and the position behind
    /// it. It does not wrap: `len` is at most a fragment's, and fragments divide the ring.
    #[inline(always)]
    pub(super) fn place(&self, position: u32, len: u32) -> Place {
        debug_assert!(len <= self.fragment_bytes);
        let units = len.div_ceil(UNIT_BYTES);
        let left = self.units() - (position & self.unit_mask);
        let skipped = if units > left { left } else { 0 };
        let start = position.wrapping_add(skipped);
        Place {
            start,
            end: start.wrapping_add(units),
        }
    }

    /// First byte of a fragment that [`place`](Self::place) gave a place; so many bytes as it was asked
    /// for are there.
    #[inline(always)]
    pub(super) fn data(&self, place: Place) -> NonNull<u8> {
        let unit = place.start & self.unit_mask;
        debug_assert!(unit + place.end.wrapping_sub(place.start) <= self.units());
        let cells_end = HEADER_BYTES + self.cells() as usize * CELL_BYTES;
        // SAFETY: `add` requires to stay in the mapping: the masked unit is below `units`, so the sum is
        // below `geometry.bytes()`, and `new` saw that so much is there.
        unsafe {
            self.base
                .add(cells_end + unit as usize * UNIT_BYTES as usize)
        }
    }

    /// What the receiver has consumed: cells below, units of data above.
    #[inline(always)]
    pub(super) fn progress(&self) -> &AtomicU64 {
        self.header(PROGRESS_AT)
    }

    /// The code that the receiver refuses its head message with; 0 for none.
    #[inline(always)]
    pub(super) fn refusal(&self) -> &AtomicU64 {
        self.header(REFUSAL_AT)
    }

    /// The head message that has no receive: its position below, periods that it has waited above.
    #[inline(always)]
    pub(super) fn waits(&self) -> &AtomicU64 {
        self.header(WAITS_AT)
    }

    /// 1 while the receiver sleeps or is about to.
    #[inline(always)]
    pub(super) fn sleeping(&self) -> &AtomicU32 {
        // SAFETY: `add` requires to stay in the mapping: it has a header, as `new` saw.
        let at = unsafe { self.base.add(SLEEPING_AT) };
        // SAFETY: `from_ptr` requires
        // - alignment: `base` begins a line, and 4 divides `SLEEPING_AT`;
        // - memory valid for as long as the reference: `self` has the owner;
        // - atomic accesses only: the word has no other use, and what the peer does is another process's.
        unsafe { AtomicU32::from_ptr(at.as_ptr().cast()) }
    }

    /// Any of its words, for a test that plays the peer.
    #[cfg(all(test, not(loom)))]
    pub(super) fn word_at(&self, index: usize) -> &AtomicU64 {
        let index = index % (self.geometry.bytes() / 8);
        // SAFETY: `add` requires to stay in the mapping: the index is below the number of words.
        let at = unsafe { self.base.add(index * 8) };
        // SAFETY: as in `sleeping`. The copy routine's accesses to the same bytes are hidden from the
        // compiler, as a peer's are.
        unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }
    }

    /// Whether so many bytes from there on are all behind the header.
    #[cfg(all(test, not(loom)))]
    pub(super) fn holds(&self, at: *const u8, len: usize) -> bool {
        let from = at.addr().wrapping_sub(self.base.addr().get());
        let end = from.checked_add(len);
        from >= HEADER_BYTES && end.is_some_and(|end| end <= self.geometry.bytes())
    }

    #[inline(always)]
    fn header(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at + 8 <= HEADER_BYTES && at.is_multiple_of(8));
        // SAFETY: `add` requires to stay in the mapping: the three offsets lie in the header, and `new`
        // saw that it is there.
        let at = unsafe { self.base.add(at) };
        // SAFETY: as in `sleeping`; 8 divides the three offsets.
        unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }
    }
}

/// Units of the data that a fragment has, by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    start: u32,
    pub(super) end: u32,
}

/// One cell of an inbox.
#[derive(Clone, Copy)]
pub(super) struct Cell<'a> {
    at: NonNull<u8>,
    _of: &'a InboxMemory,
}

impl<'a> Cell<'a> {
    /// Sequence below; length, kind and more above. Written last.
    #[inline(always)]
    pub(super) fn first(self) -> &'a AtomicU64 {
        // SAFETY: `from_ptr` requires
        // - alignment: cells begin lines of the cache;
        // - memory valid for as long as the reference: the cell is of an inbox that it borrows;
        // - atomic accesses only: the word has no other use, and what the peer does is another process's.
        unsafe { AtomicU64::from_ptr(self.at.as_ptr().cast()) }
    }

    /// Ack below, note above.
    #[inline(always)]
    pub(super) fn second(self) -> &'a AtomicU64 {
        // SAFETY: `add` requires to stay in the mapping: the cell has 64 bytes.
        let at = unsafe { self.at.add(8) };
        // SAFETY: as in `first`.
        unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }
    }

    /// The first of the inline bytes as a word; only of a cell that brings no message.
    #[inline(always)]
    pub(super) fn third(self) -> &'a AtomicU64 {
        // SAFETY: as in `first`: the inline bytes are aligned to 16, and there are more than 8 of them.
        unsafe { AtomicU64::from_ptr(self.inline().as_ptr().cast()) }
    }

    /// The [`INLINE_BYTES`] behind the words.
    #[inline(always)]
    pub(super) fn inline(self) -> NonNull<u8> {
        // SAFETY: `add` requires to stay in the mapping: the cell has 64 bytes.
        unsafe { self.at.add(INLINE_AT) }
    }

    /// Asks for the line to be ours: it will be written soon.
    #[inline(always)]
    pub(super) fn prefetch_to_write(self) {
        ask_to_write(self.at.as_ptr());
    }

    /// Asks for the line: it will be read soon.
    #[inline(always)]
    pub(super) fn prefetch_to_read(self) {
        ask_to_read(self.at.as_ptr());
    }
}

/// The lower half.
#[inline(always)]
#[allow(
    clippy::cast_possible_truncation,
    reason = "the half that is asked for"
)]
pub(super) fn low(word: u64) -> u32 {
    word as u32
}

/// The upper half.
#[inline(always)]
pub(super) fn high(word: u64) -> u32 {
    low(word >> 32)
}

/// Both halves.
#[inline(always)]
pub(super) fn word(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}
