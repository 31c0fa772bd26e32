//! Waiting until other threads are out of a stretch of code, at no cost for them.
//!
//! ```text
//!  datapath   enter ─► looks at shared tables ─► leave        two plain stores
//!  control    takes an entry out ─► barrier on every core ─► waits for those inside ─► frees it
//! ```
//! The barrier is `membarrier(2)`: the datapath orders its store before its loads by nothing but program
//! order, and whoever waits makes every running core do the rest. A kernel without it costs a fence at
//! each entry. Imports nothing of ours. Imported by the fabrics made of software.

#![allow(unsafe_code, reason = "membarrier has no wrapper")]

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};

const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: `membarrier` takes a command and flags by value, and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether this process may ask for the barrier.
fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| membarrier(REGISTER_PRIVATE_EXPEDITED))
}

/// Counts entries and exits: odd while its thread is inside.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicU32);

/// The side of the thread that passes.
#[derive(Debug)]
pub(crate) struct Turnstile {
    count: Arc<Count>,
    fenced: bool,
}

/// The side of those that wait.
#[derive(Debug)]
pub(crate) struct Watch(Arc<Count>);

impl Turnstile {
    /// One that nobody is inside of.
    pub(crate) fn new() -> Self {
        Self {
            count: Arc::default(),
            fenced: !available(),
        }
    }

    /// For whoever must wait.
    pub(crate) fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.count))
    }

    /// What is loaded after this is looked at from inside, until the matching [`leave`](Self::leave).
    #[inline]
    pub(crate) fn enter(&self) {
        // Odd in any case: whoever unwound out of here before has never left.
        let count = self.count.0.load(Ordering::Relaxed) | 1;
        self.count.0.store(count, Ordering::Relaxed);
        if self.fenced {
            fence(Ordering::SeqCst);
        }
        compiler_fence(Ordering::SeqCst);
    }

    /// Ends what [`enter`](Self::enter) began.
    #[inline]
    pub(crate) fn leave(&self) {
        let count = self.count.0.load(Ordering::Relaxed) | 1;
        self.count.0.store(count.wrapping_add(1), Ordering::Release);
    }
}

impl Watch {
    /// Nobody passes here any more.
    pub(crate) fn is_over(&self) -> bool {
        let over = Arc::strong_count(&self.0) == 1;
        // After all that the lane did before it let go of its end.
        fence(Ordering::Acquire);
        over
    }

    /// Returns when whoever was inside at the call has left. To be called behind [`barrier`].
    pub(crate) fn wait(&self) {
        let seen = self.0.0.load(Ordering::Acquire);
        if seen.is_multiple_of(2) {
            return;
        }
        // A call of the datapath is short, unless its thread was preempted.
        while self.0.0.load(Ordering::Acquire) == seen && !self.is_over() {
            std::thread::yield_now();
        }
    }
}

/// What was stored before this is seen by everyone who enters a turnstile after it; and who has entered
/// before is seen by [`Watch::wait`].
pub(crate) fn barrier() {
    fence(Ordering::SeqCst);
    if available() {
        membarrier(PRIVATE_EXPEDITED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    #[test]
    fn who_waits_returns_when_the_other_has_left() {
        let gate = Turnstile::new();
        let watch = gate.watch();
        watch.wait();
        gate.enter();
        let out = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                barrier();
                watch.wait();
                out.load(Ordering::Acquire)
            });
            std::thread::sleep(Duration::from_millis(20));
            out.store(true, Ordering::Release);
            gate.leave();
            assert!(waiter.join().expect("it returns"));
        });
        assert!(!watch.is_over());
        drop(gate);
        assert!(watch.is_over());
    }
}
