//! The word that tells that a cell has come, to be looked at without its inlet.
//!
//! ```text
//!  Inlet::due ─► Due { word, sequence } ─► has_come: one load, one comparison
//! ```
//! Imported by inlet, and by shm's roster.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]
#![allow(
    unsafe_code,
    reason = "looks at memory that another process writes, by address"
)]

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// What [`Due::NOW`] and [`Due::NEVER`] look at.
static ZERO: AtomicU64 = AtomicU64::new(0);

/// The first word of the cell that comes next, and the sequence number that it holds then. What it says is
/// a hint: [`Inlet::peek`](super::Inlet::peek) sees for itself.
#[derive(Debug)]
pub struct Due {
    word: *const AtomicU64,
    sequence: u32,
}

// SAFETY: `Send` wants that another thread may use the word: it is an atomic of memory that is the
// process's.
unsafe impl Send for Due {}

impl Due {
    /// Has come.
    pub const NOW: Self = Self {
        word: &raw const ZERO,
        sequence: 0,
    };
    /// Never comes.
    pub const NEVER: Self = Self {
        word: &raw const ZERO,
        sequence: 1,
    };

    /// # Safety
    /// The word is mapped and only accessed by atomics as long as [`has_come`](Self::has_come) is asked.
    #[inline(always)]
    pub(super) unsafe fn new(word: &AtomicU64, sequence: u32) -> Self {
        Self {
            word: ptr::from_ref(word),
            sequence,
        }
    }

    /// Whether the cell is there.
    #[inline(always)]
    #[must_use]
    pub fn has_come(&self) -> bool {
        // SAFETY: a reference requires a valid word: `new`'s caller promises that it is mapped and only
        // accessed by atomics, and `ZERO` is for ever.
        let word = unsafe { &*self.word };
        super::layout::low(word.load(Ordering::Relaxed)) == self.sequence
    }
}
