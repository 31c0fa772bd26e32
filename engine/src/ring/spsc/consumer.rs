//! The end of a ring that pops.
//!
//! ```text
//!  pop ─► any? ─► read the slot ─► head (Release) ─► the producer may reuse it
//!           └─ copy says empty: look at tail (Acquire) ─► still empty: producer gone?
//! ```
//! Owns `head`. Imports spsc, sync. Imported by spsc alone.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]
#![allow(
    unsafe_code,
    reason = "empties slots of the ring that are the consumer's by the positions"
)]

use super::{PopError, Shared};
use crate::sync::{Arc, Ordering};
use std::fmt;

/// The end that pops. One thread owns it; it can move to another.
pub struct Consumer<T> {
    pub(super) shared: Arc<Shared<T>>,
    /// Where the next item is. At or ahead of `shared.head`, equal between calls.
    pub(super) head: usize,
    /// The producer's position when last looked at; it can only have advanced since.
    pub(super) tail_seen: usize,
}

impl<T> Consumer<T> {
    /// Pops the oldest item.
    ///
    /// # Errors
    ///
    /// [`PopError::Empty`] when there is none yet, [`PopError::Abandoned`] when the producer was
    /// dropped and everything it pushed has been popped.
    #[inline]
    pub fn pop(&mut self) -> Result<T, PopError> {
        if self.available(1) == 0 {
            return Err(self.why_empty());
        }
        let item = self.read();
        self.publish();
        Ok(item)
    }

    /// Hands at most `max` items to `f`, oldest first, and frees their slots all at once. Returns how
    /// many.
    ///
    /// If `f` panics, the items it was given are gone (the last one with the panic) and the rest
    /// stay in the ring.
    #[inline]
    pub fn pop_batch(&mut self, max: usize, mut f: impl FnMut(T)) -> usize {
        let count = self.available(max).min(max);
        if count == 0 {
            return 0;
        }
        let batch = PopBatch { consumer: self };
        for _ in 0..count {
            f(batch.consumer.read());
        }
        count
    }

    /// Something waits, or the producer is gone: [`Consumer::pop`] would not say `Empty`.
    #[inline]
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.head != self.shared.tail.load(Ordering::Acquire) || self.is_abandoned()
    }

    /// Items that fit the ring.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.slots.len()
    }

    /// Items that can be popped now; the producer can only raise it.
    #[must_use]
    pub fn len(&self) -> usize {
        Shared::<T>::distance(self.head, self.shared.tail.load(Ordering::Acquire))
    }

    /// Nothing to pop now.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The producer was dropped; items may remain. Once true, always true.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.shared.producer_gone.load(Ordering::Acquire)
    }

    /// Items known to be there; looks at the producer's line only if fewer than `wanted` are known.
    #[inline]
    fn available(&mut self, wanted: usize) -> usize {
        let known = Shared::<T>::distance(self.head, self.tail_seen);
        if known >= wanted {
            return known;
        }
        // Acquire: the slots before `tail` are written.
        self.tail_seen = self.shared.tail.load(Ordering::Acquire);
        Shared::<T>::distance(self.head, self.tail_seen)
    }

    /// Empty for now, or for ever? A push may have come between `available` and the flag.
    #[inline]
    fn why_empty(&self) -> PopError {
        if self.is_abandoned() && self.is_empty() {
            PopError::Abandoned
        } else {
            PopError::Empty
        }
    }

    /// The caller has just seen `available`.
    #[inline]
    fn read(&mut self) -> T {
        debug_assert!(self.head != self.tail_seen);
        let item = self.shared.slot(self.head).with(|slot| {
            // SAFETY: reading through `slot` requires that it is valid and not being written:
            // - it points into `shared.slots`, which lives as long as `self.shared`;
            // - `head` is before `tail_seen` (available), so the producer wrote it before the tail
            //   that the Acquire there saw, and writes it again only after `publish` frees it.
            let item = unsafe { slot.read() };
            // SAFETY: `assume_init` requires an initialised item that is taken out once: `push`
            // wrote it, and `head` moves past it right below, also if the caller unwinds.
            unsafe { item.assume_init() }
        });
        self.head = self.head.wrapping_add(1);
        item
    }

    #[inline]
    fn publish(&mut self) {
        // Release: our reads of the slots before `head` are over for whoever sees it.
        self.shared.head.store(self.head, Ordering::Release);
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        // Relaxed: the producer takes nothing but the bare fact from it.
        self.shared.consumer_gone.store(true, Ordering::Relaxed);
    }
}

/// Publishes at the end of a batch, also when the closure unwinds.
struct PopBatch<'a, T> {
    consumer: &'a mut Consumer<T>,
}

impl<T> Drop for PopBatch<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.consumer.publish();
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}
