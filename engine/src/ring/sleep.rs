//! Whether a worker that may be asleep must be woken: event mode's half of a mailbox.
//!
//! ```text
//!   worker (Sleeper)                        anyone (Waker)
//!   prepare:  flag = true                   push into a ring, ring a bell in shared memory …
//!             SeqCst fence                  wake_needed:  SeqCst fence
//!   recheck CQs and rings ── found ─► cancel              flag.swap(false) ── true ─► write eventfd
//!   epoll_wait ◄──────────────────────────────────────────────────────────────────────────┘
//!   woke; drain the eventfd; poll everything
//! ```
//! The two fences are the whole proof. One of them comes first in the single order of SeqCst fences:
//! if the worker's, the waker sees the flag and writes the eventfd; if the waker's, the worker's
//! recheck sees what was pushed. Without the recheck, or with it before `prepare`, an item can wait
//! in the ring for ever; `loom_tests.rs` shows both.
//!
//! The eventfd is [`crate::sys::eventfd`]'s and belongs to the caller, so that loom can run this.
//! It counts, so a wake-up that comes before `epoll_wait` is kept. One that comes after `cancel` only
//! costs the next sleep an early return.
//!
//! Imports sync. Imported by worker, fabric and control.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use crate::sync::{Arc, AtomicBool, Ordering, fence};
use crossbeam_utils::CachePadded;

/// Makes the two sides of one sleeping flag, awake.
///
/// ```
/// let (mut sleeper, waker) = spinwire::ring::sleep::pair();
/// assert!(!waker.wake_needed()); // awake: the usual case costs no system call
/// sleeper.prepare();
/// assert!(waker.wake_needed()); // the one who must write the eventfd
/// assert!(!waker.wake_needed()); // everyone after: it is being written
/// sleeper.woke();
/// ```
#[must_use]
pub fn pair() -> (Sleeper, Waker) {
    let sleeping = Arc::new(CachePadded::new(AtomicBool::new(false)));
    let sleeper = Sleeper {
        sleeping: Arc::clone(&sleeping),
    };
    (sleeper, Waker { sleeping })
}

/// The side that sleeps. There is one.
#[derive(Debug)]
pub struct Sleeper {
    sleeping: Arc<CachePadded<AtomicBool>>,
}

impl Sleeper {
    /// Announces the sleep. The caller must now look once more at everything that a [`Waker`] may
    /// have filled, and then either [`cancel`](Self::cancel) or wait on the eventfd and call
    /// [`woke`](Self::woke).
    #[inline]
    pub fn prepare(&mut self) {
        self.sleeping.store(true, Ordering::Relaxed);
        // Orders the store above before the loads of the caller's recheck; pairs with `wake_needed`.
        fence(Ordering::SeqCst);
    }

    /// The recheck found something: no sleep.
    #[inline]
    pub fn cancel(&mut self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// The wait is over, by an event, a signal or a timeout. Drain the eventfd after this and poll
    /// after that: whoever fills a ring later than the poll finds the flag down and needs none.
    #[inline]
    pub fn woke(&mut self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Announced, and nobody has been told to wake us so far.
    #[inline]
    #[must_use]
    pub fn is_announced(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed)
    }
}

/// A side that wakes. Any number, on any threads.
#[derive(Clone, Debug)]
pub struct Waker {
    sleeping: Arc<CachePadded<AtomicBool>>,
}

impl Waker {
    /// To be called after filling a ring: true if the caller must now write the eventfd. Of all
    /// callers during one sleep, exactly one is told so.
    #[inline]
    #[must_use = "if it says true and nobody writes the eventfd, the worker sleeps on"]
    pub fn wake_needed(&self) -> bool {
        // Orders the caller's push before the load below; pairs with `prepare`.
        fence(Ordering::SeqCst);
        // The load first: awake is the usual case, and a load leaves the line shared.
        self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed)
    }
}
