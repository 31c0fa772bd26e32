//! The end of a ring that pushes.
//!
//! ```text
//!  push ─► room? ─► write the slot ─► tail (Release) ─► the consumer sees it
//!            └─ copy says full: look at head (Acquire)
//! ```
//! Owns `tail`. Imports spsc, sync. Imported by spsc alone.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]
#![allow(
    unsafe_code,
    reason = "fills slots of the ring that are the producer's by the positions"
)]

use super::{PushError, Shared};
use crate::sync::{Arc, Ordering};
use std::fmt;
use std::mem::MaybeUninit;

/// The end that pushes. One thread owns it; it can move to another.
pub struct Producer<T> {
    pub(super) shared: Arc<Shared<T>>,
    /// Where the next item goes. At or ahead of `shared.tail`, equal between calls.
    pub(super) tail: usize,
    /// The consumer's position when last looked at; it can only have advanced since.
    pub(super) head_seen: usize,
}

impl<T> Producer<T> {
    /// Pushes one item.
    ///
    /// # Errors
    ///
    /// [`PushError::Full`] when every slot is taken, [`PushError::Abandoned`] when the consumer was
    /// dropped; both return the item. A consumer that is dropped during the call may be noticed only
    /// by the next one; the item then goes with the ring.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), PushError<T>> {
        if self.is_abandoned() {
            return Err(PushError::Abandoned(item));
        }
        if !self.has_room() {
            return Err(PushError::Full(item));
        }
        self.write(item);
        self.publish();
        Ok(())
    }

    /// Pushes items until the ring is full or `items` ends, and shows them to the consumer all at
    /// once. Returns how many. Takes from `items` nothing that does not fit, and nothing at all when
    /// the consumer is gone.
    ///
    /// If `items` panics, what it gave before is pushed.
    #[inline]
    pub fn push_batch(&mut self, items: &mut impl Iterator<Item = T>) -> usize {
        if self.is_abandoned() {
            return 0;
        }
        let batch = PushBatch {
            first: self.tail,
            producer: self,
        };
        while batch.producer.has_room() {
            let Some(item) = items.next() else { break };
            batch.producer.write(item);
        }
        Shared::<T>::distance(batch.first, batch.producer.tail)
    }

    /// Items that fit the ring.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.slots.len()
    }

    /// Items that can be pushed now without being refused; the consumer can only raise it.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.capacity() - self.len()
    }

    /// Items in the ring; the consumer can only lower it.
    #[must_use]
    pub fn len(&self) -> usize {
        Shared::<T>::distance(self.shared.head.load(Ordering::Acquire), self.tail)
    }

    /// The consumer has popped everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The consumer was dropped. Once true, always true.
    #[inline]
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.shared.consumer_gone.load(Ordering::Relaxed)
    }

    #[inline]
    fn has_room(&mut self) -> bool {
        let capacity = self.shared.mask + 1;
        if Shared::<T>::distance(self.head_seen, self.tail) < capacity {
            return true;
        }
        // Acquire: the consumer's reads of the slots before `head` are over.
        self.head_seen = self.shared.head.load(Ordering::Acquire);
        Shared::<T>::distance(self.head_seen, self.tail) < capacity
    }

    /// The caller has just seen `has_room`.
    #[inline]
    fn write(&mut self, item: T) {
        debug_assert!(Shared::<T>::distance(self.head_seen, self.tail) <= self.shared.mask);
        self.shared.slot(self.tail).with_mut(|slot| {
            // SAFETY: writing through `slot` requires that it is valid and used by nobody else:
            // - it points into `shared.slots`, which lives as long as `self.shared`;
            // - `tail - head_seen < capacity` (has_room), and the real head is at or past
            //   `head_seen`, so the slot is outside `head..tail`: the consumer does not touch it,
            //   and its last read was ordered before us by the Acquire in `has_room`.
            // It holds no item, so overwriting it leaks none.
            unsafe { slot.write(MaybeUninit::new(item)) }
        });
        self.tail = self.tail.wrapping_add(1);
    }

    #[inline]
    fn publish(&mut self) {
        // Release: the slots written before are visible to whoever sees this tail.
        self.shared.tail.store(self.tail, Ordering::Release);
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        // Release: whoever sees the flag sees the last tail too.
        self.shared.producer_gone.store(true, Ordering::Release);
    }
}

/// Publishes at the end of a batch, also when the iterator unwinds.
struct PushBatch<'a, T> {
    producer: &'a mut Producer<T>,
    first: usize,
}

impl<T> Drop for PushBatch<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.producer.tail != self.first {
            self.producer.publish();
        }
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}
