//! Two threads, each pinned to its core, that begin together.

use crate::Fallible;
use spinwire::sys::affinity::pin_current_thread;
use spinwire::types::CoreId;
use std::sync::Barrier;
use std::thread;

/// What the first gives, when both have ended well. That they can be pinned was tried before: one that ends
/// early leaves the other waiting.
pub(crate) fn both<T: Send>(
    cores: [CoreId; 2],
    first: impl FnOnce() -> Fallible<T> + Send,
    second: impl FnOnce() -> Fallible<()> + Send,
) -> Fallible<T> {
    let begin = Barrier::new(2);
    let pin = |core| {
        let pinned = pin_current_thread(core);
        begin.wait();
        pinned
    };
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            pin(cores[0])?;
            first()
        });
        let second = scope.spawn(|| {
            pin(cores[1])?;
            second()
        });
        let second = second.join().map_err(|_| "the second thread panicked")?;
        let first = first.join().map_err(|_| "the first thread panicked")?;
        second?;
        first
    })
}
