//! The primitives that rings are made of, so that loom can stand in for the machine.
//!
//! ```text
//!             ┌─ std::sync, core::sync::atomic          (every normal build)
//! crate::sync ┤
//!             └─ loom::sync, loom::cell, loom::thread   (unit tests under --cfg loom)
//! ```
//! A module whose ordering is to be proven takes atomics, `Arc` and cells from here and from nowhere
//! else; loom then runs it through every interleaving that the C11 model allows.
//! Imports nothing of ours. Imported by ring.

#[cfg(all(loom, test))]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence},
};

#[cfg(not(all(loom, test)))]
pub(crate) use self::machine::*;

#[cfg(not(all(loom, test)))]
mod machine {
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

    /// `std::cell::UnsafeCell` with the interface of loom's, which must see where an access begins
    /// and ends.
    #[derive(Debug)]
    #[repr(transparent)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// Hands `f` a pointer to read through, valid for the length of the call.
        #[inline(always)]
        pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get().cast_const())
        }

        /// Hands `f` a pointer to write through, valid for the length of the call.
        #[inline(always)]
        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}
