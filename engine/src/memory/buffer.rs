//! One slot of a pool, owned.
//!
//! ```text
//!  Pool::alloc ─► Buffer ── fill ──► post: moves into the worker's in-flight table ─► NIC reads or writes
//!                   ▲                                        │
//!       drop: slot free at once ◄── handler ◄── completion ──┘
//! ```
//! Whoever has the `Buffer` owns the bytes. While the NIC owns them the handle lies in the worker's
//! in-flight table, where no one can read through it or drop it; a completion, or a refused post,
//! takes it out. A `Buffer` that is forgotten (`mem::forget`) costs its slot and keeps the region
//! mapped for the life of the process: memory is never freed under DMA.
//! Imports pool. Imported by worker, fabric and services.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]
#![allow(
    unsafe_code,
    reason = "forms a slice over the slot that the buffer owns"
)]

use super::pool::SlotsRef;
use crate::types::Lkey;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::slice;

/// More bytes than a slot has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{asked} B do not fit a slot of {capacity} B; see [pool] slot_bytes")]
pub struct TooLong {
    /// Asked for.
    pub asked: usize,
    /// Bytes of the slot.
    pub capacity: u32,
}

/// An owned slot. It derefs to its [`len_bytes`](Self::len_bytes) bytes and returns to its pool when
/// dropped. Holding one proves: nobody else, CPU or NIC, uses the slot.
///
/// ```
/// # use spinwire::memory::{HugepagePolicy, Pool, Region};
/// # use std::sync::Arc;
/// let region = Region::allocate(4096, HugepagePolicy::Off)?;
/// let pool = Pool::new(Arc::new(region), 4, 1024)?;
/// let mut buffer = pool.alloc()?;
/// buffer.copy_from(b"ping")?;
/// buffer[1] = b'o';
/// assert_eq!(&buffer[..], b"pong");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
/// It cannot be copied, so it cannot be posted twice:
/// ```compile_fail,E0599
/// fn twice(buffer: spinwire::memory::Buffer) { let _copy = buffer.clone(); }
/// ```
/// ```compile_fail,E0382
/// fn post(_: spinwire::memory::Buffer) {}
/// fn twice(buffer: spinwire::memory::Buffer) { post(buffer); post(buffer); }
/// ```
/// It stays with the worker whose pool it is from:
/// ```compile_fail,E0277
/// fn elsewhere(buffer: spinwire::memory::Buffer) { std::thread::spawn(move || drop(buffer)); }
/// ```
#[must_use = "dropping a buffer gives its slot back"]
pub struct Buffer {
    pool: SlotsRef,
    slot: u32,
    /// At most `pool.slot_bytes()`.
    len: u32,
}

impl Buffer {
    /// The caller took `slot` from the free list.
    #[inline]
    pub(super) fn new(pool: SlotsRef, slot: u32) -> Self {
        Self { pool, slot, len: 0 }
    }

    /// Address of the first byte, as a work request wants it.
    #[inline]
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.pool
            .get()
            .address(self.slot)
            .as_ptr()
            .expose_provenance() as u64
    }

    /// Key for a device of lane `lane`, where it is not the key of the pool's first region.
    #[cold]
    #[inline(never)]
    pub(crate) fn lkey(&self, lane: usize) -> Option<Lkey> {
        self.pool.get().lkey(self.slot, lane)
    }

    /// Number of the slot in its pool.
    #[inline]
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Bytes that it derefs to.
    #[inline]
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        self.len
    }

    /// Bytes of the slot.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.pool.get().slot_bytes()
    }

    /// Says how many of the slot's bytes count. Bytes that become visible by this hold what was
    /// written there last, maybe by an earlier use of the slot: fill them before sending them.
    ///
    /// # Errors
    ///
    /// [`TooLong`] above [`capacity`](Self::capacity); the length stays as it was.
    #[inline]
    pub fn set_len(&mut self, len_bytes: u32) -> Result<(), TooLong> {
        let capacity = self.capacity();
        if len_bytes > capacity {
            return Err(TooLong {
                asked: len_bytes as usize,
                capacity,
            });
        }
        self.len = len_bytes;
        Ok(())
    }

    /// Replaces the contents with `bytes`.
    ///
    /// # Errors
    ///
    /// [`TooLong`] if they do not fit; the contents stay as they were.
    #[inline]
    pub fn copy_from(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        let too_long = TooLong {
            asked: bytes.len(),
            capacity: self.capacity(),
        };
        self.set_len(u32::try_from(bytes.len()).map_err(|_| too_long)?)?;
        self.copy_from_slice(bytes);
        Ok(())
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let first = self.pool.get().address(self.slot).as_ptr().cast_const();
        // SAFETY: `from_raw_parts` requires, in turn,
        // - memory valid for reading `len` bytes, in one mapping: `len <= slot_bytes`, the slot lies in
        //   the region, and the region lives as long as a slot is out;
        // - initialised bytes: the kernel zeroed them all, and only bytes were written since;
        // - no writer while the slice lives: the slot left the free list once and comes back in our
        //   `Drop`, the region has no other pool (`Region::claim`), and while a NIC may write the
        //   in-flight table holds this handle, so nobody can call this.
        unsafe { slice::from_raw_parts(first, self.len as usize) }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let first = self.pool.get().address(self.slot).as_ptr();
        // SAFETY: `from_raw_parts_mut` requires what `deref` proves, with writing for reading, and
        // no reader while the slice lives: we hold `&mut self`, and a NIC that reads the slot does so
        // while the in-flight table holds this handle.
        unsafe { slice::from_raw_parts_mut(first, self.len as usize) }
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        self.pool.give_back(self.slot);
    }
}

/// Without the contents, which may be secret and long.
impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("slot", &self.slot)
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .finish()
    }
}
