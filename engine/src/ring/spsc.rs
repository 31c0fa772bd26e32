//! A bounded ring from one thread to one other: no lock, no allocation after creation, no system
//! call.
//!
//! ```text
//!                 head (consumer writes)        tail (producer writes)
//!                   ▼                             ▼
//!  slots   │ free │ item │ item │ item │ item │ free │ free │ free │
//!
//!  line of the consumer: head          line of the producer: tail
//!  line that nobody writes in steady state: slots, mask, the two "gone" flags
//! ```
//! `head` and `tail` count for ever and wrap around; `position & mask` names the slot. Each side keeps
//! a copy of its own position and the last position it saw of its peer, so the usual push or pop
//! writes one line of its own and reads the peer's only when the copy says full or empty.
//!
//! Ordering, in full: a position is stored with `Release` after its slots were written (tail) or
//! emptied (head), and loaded with `Acquire` before the peer touches them.
//!
//! Imports sync. Imported by worker, fabric and control. Run under loom by `loom_tests.rs`.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]
#![allow(
    unsafe_code,
    reason = "a slot is written by one thread and read by another; positions decide whose it is"
)]

use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering, UnsafeCell};
use crossbeam_utils::CachePadded;
use std::fmt;
use std::mem::MaybeUninit;

mod consumer;
mod producer;

pub use consumer::Consumer;
pub use producer::Producer;

/// Why a push did not happen. The value is handed back.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError<T> {
    /// Every slot is taken: retry after the consumer's next pop.
    #[error("the ring is full")]
    Full(T),
    /// The consumer was dropped: no push will ever be read.
    #[error("the consumer of this ring is gone")]
    Abandoned(T),
}

impl<T> PushError<T> {
    /// The value that was not pushed.
    pub fn into_inner(self) -> T {
        match self {
            Self::Full(value) | Self::Abandoned(value) => value,
        }
    }
}

impl<T> fmt::Debug for PushError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Abandoned(_) => "Abandoned(..)",
        })
    }
}

/// Why a pop gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PopError {
    /// Nothing there now.
    #[error("the ring is empty")]
    Empty,
    /// Nothing there, and nothing will come: the producer was dropped and all it pushed was popped.
    #[error("the ring is empty and its producer is gone")]
    Abandoned,
}

type Slot<T> = UnsafeCell<MaybeUninit<T>>;

#[repr(C)] // keeps what nobody writes apart from the two lines that are written
struct Shared<T> {
    /// Items popped so far. Written by the consumer alone.
    head: CachePadded<AtomicUsize>,
    /// Items pushed so far. Written by the producer alone.
    tail: CachePadded<AtomicUsize>,
    slots: Box<[Slot<T>]>,
    mask: usize,
    producer_gone: AtomicBool,
    consumer_gone: AtomicBool,
}

// SAFETY: `Sync` for `Shared` requires that two threads may use it at once.
// - Its only field that is not `Sync` is `slots`. The slots in `head..tail` are touched by the one
//   `Consumer` only, the others by the one `Producer` only (neither is `Clone`), and a slot changes
//   sides by a `Release` store that the other side loads with `Acquire`.
// - An item crosses from thread to thread, which `T: Send` allows.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: `Send` requires that another thread may drop `Shared`, and with it the items that remain:
// `T: Send` allows that, and nothing else in it is bound to a thread.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    fn slot(&self, position: usize) -> &Slot<T> {
        // `slots.len()` is `mask + 1`, so the compiler cannot see that this is in bounds, but the
        // check is one predicted branch on a line that is hot anyway.
        &self.slots[position & self.mask]
    }

    /// Items between two positions, which may have wrapped around.
    fn distance(head: usize, tail: usize) -> usize {
        tail.wrapping_sub(head)
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Both handles are gone, and the last release of the `Arc` ordered their stores before us.
        let tail = self.tail.load(Ordering::Relaxed);
        let mut position = self.head.load(Ordering::Relaxed);
        while position != tail {
            self.slot(position).with_mut(|item| {
                // SAFETY: a `&mut` to the slot requires that nobody else uses it: we hold
                // `&mut self`, and no reference to a slot outlives the call that made it.
                let item = unsafe { &mut *item };
                // SAFETY: `assume_init_drop` requires an initialised item, dropped once: slots in
                // `head..tail` were written by `push` and not yet read by `pop`, and `position`
                // passes each once.
                unsafe { item.assume_init_drop() }
            });
            position = position.wrapping_add(1);
        }
    }
}

/// Makes a ring of `capacity` items, rounded up to a power of two.
///
/// What is still in it when both ends are dropped is dropped then, on the thread of the later one.
///
/// # Panics
///
/// If `capacity` is 0 or above `isize::MAX / 2`.
///
/// ```
/// let (mut tx, mut rx) = spinwire::ring::spsc::channel(3);
/// assert_eq!(tx.capacity(), 4);
/// tx.push("hello").unwrap();
/// assert_eq!(rx.pop(), Ok("hello"));
/// ```
#[must_use]
pub fn channel<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    channel_at(capacity, 0)
}

/// A ring whose positions begin at `start`, so that tests reach the wrap-around.
pub(super) fn channel_at<T: Send>(capacity: usize, start: usize) -> (Producer<T>, Consumer<T>) {
    assert!(
        (1..=isize::MAX.unsigned_abs() / 2).contains(&capacity),
        "a ring needs a capacity from 1 to isize::MAX / 2, not {capacity}"
    );
    let capacity = capacity.next_power_of_two();
    let shared = Arc::new(Shared {
        head: CachePadded::new(AtomicUsize::new(start)),
        tail: CachePadded::new(AtomicUsize::new(start)),
        slots: (0..capacity)
            .map(|_| UnsafeCell::new(MaybeUninit::uninit()))
            .collect(),
        mask: capacity - 1,
        producer_gone: AtomicBool::new(false),
        consumer_gone: AtomicBool::new(false),
    });
    let producer = Producer {
        shared: Arc::clone(&shared),
        tail: start,
        head_seen: start,
    };
    let consumer = Consumer {
        shared,
        head: start,
        tail_seen: start,
    };
    (producer, consumer)
}
