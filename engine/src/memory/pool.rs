//! A region cut into equal slots, for one worker.
//!
//! ```text
//!  Region   │ slot 0 │ slot 1 │ slot 2 │ slot 3 │ …          fixed size, whole cache lines
//!  free     [ 7, 6, 5, 4, 3 | 1, 0, 2 ]                      a stack of slot numbers
//!                          ▲ depth: alloc pops, drop pushes; the slot used last, still in cache,
//!                                   is the next one out
//! ```
//! Owns the free list; the slots in use belong to their [`Buffer`]s. One thread: `Rc` and `Cell`, so
//! no lock and no atomic. Allocates at creation and never again; a full pool answers [`Exhausted`].
//! Imports region, limits. Imported by worker and fabric.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]
#![allow(unsafe_code, reason = "computes the address of a slot in a region")]

use super::buffer::Buffer;
use super::region::Region;
use crate::limits::{POOL_SLOTS_MAX, SLOT_BYTES_MAX, SLOT_BYTES_MIN};
use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

/// Every slot is in use: wait for a completion, or send less. Counted by
/// [`Pool::exhausted_count`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("every slot of the pool is in use")]
pub struct Exhausted;

/// Why a region cannot be cut as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The number of slots is out of range.
    #[error("a pool has 1 to {POOL_SLOTS_MAX} slots, not {slots}; see [pool] slots")]
    Slots {
        /// Asked for.
        slots: u32,
    },
    /// The size of a slot is out of range, or slots would share a cache line.
    #[error(
        "a slot has {SLOT_BYTES_MIN} to {SLOT_BYTES_MAX} bytes, a multiple of {SLOT_BYTES_MIN}, \
         not {slot_bytes}; see [pool] slot_bytes"
    )]
    SlotBytes {
        /// Asked for.
        slot_bytes: u32,
    },
    /// The region is smaller than the slots together.
    #[error("{slots} slots of {slot_bytes} B need {need} B, but the region has {have}")]
    RegionTooSmall {
        /// Asked for.
        slots: u32,
        /// Asked for.
        slot_bytes: u32,
        /// The product.
        need: u64,
        /// Bytes of the region.
        have: u64,
    },
    /// Another pool, or a buffer of one, still uses the region.
    #[error("the region already has a pool; allocate one region for each")]
    RegionInUse,
}

/// Fixed slots in one [`Region`]. Cloning it gives another handle to the same pool.
///
/// It stays on the thread that made it:
/// ```compile_fail,E0277
/// fn send<T: Send>() {}
/// send::<spinwire::memory::Pool>();
/// ```
#[derive(Clone)]
pub struct Pool(pub(super) Rc<Slots>);

/// What a pool and its buffers share.
pub(super) struct Slots {
    /// Keeps the memory mapped for as long as a buffer is left, forgotten ones included.
    region: Arc<Region>,
    /// The region's first byte, here so that an address is one load away.
    base: NonNull<u8>,
    slot_bytes: u32,
    /// Numbers of free slots are in `free[..depth]`; what lies above is stale.
    free: Box<[Cell<u32>]>,
    depth: Cell<u32>,
    low_water: Cell<u32>,
    exhausted: Cell<u64>,
}

impl Pool {
    /// Cuts `region` into `slots` of `slot_bytes`, all free, slot 0 first in line.
    ///
    /// # Errors
    ///
    /// [`PoolError`] says which number is wrong and what would be right.
    pub fn new(region: Arc<Region>, slots: u32, slot_bytes: u32) -> Result<Self, PoolError> {
        if !(1..=POOL_SLOTS_MAX).contains(&slots) {
            return Err(PoolError::Slots { slots });
        }
        if !(SLOT_BYTES_MIN..=SLOT_BYTES_MAX).contains(&slot_bytes)
            || !slot_bytes.is_multiple_of(SLOT_BYTES_MIN)
        {
            return Err(PoolError::SlotBytes { slot_bytes });
        }
        let (need, have) = (
            u64::from(slots) * u64::from(slot_bytes),
            region.len() as u64,
        );
        if need > have {
            return Err(PoolError::RegionTooSmall {
                slots,
                slot_bytes,
                need,
                have,
            });
        }
        if !region.claim() {
            return Err(PoolError::RegionInUse);
        }
        Ok(Self(Rc::new(Slots {
            base: region.base(),
            region,
            slot_bytes,
            free: (0..slots).rev().map(Cell::new).collect(),
            depth: Cell::new(slots),
            low_water: Cell::new(slots),
            exhausted: Cell::new(0),
        })))
    }

    /// Takes a slot. The buffer starts with length 0; its bytes are whatever the last use left, zeros
    /// at first.
    ///
    /// # Errors
    ///
    /// [`Exhausted`] when every slot is in use.
    #[inline]
    pub fn alloc(&self) -> Result<Buffer, Exhausted> {
        let slot = self.0.take()?;
        Ok(Buffer::new(Rc::clone(&self.0), slot))
    }

    /// Bytes of one slot.
    #[must_use]
    pub fn slot_bytes(&self) -> u32 {
        self.0.slot_bytes
    }

    /// Slots, free and in use.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.0.count()
    }

    /// Slots that are free now.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.0.depth.get()
    }

    /// The fewest slots that were ever free.
    #[must_use]
    pub fn low_water(&self) -> u32 {
        self.0.low_water.get()
    }

    /// How often [`alloc`](Self::alloc) found nothing.
    #[must_use]
    pub fn exhausted_count(&self) -> u64 {
        self.0.exhausted.get()
    }

    /// The region that the slots are in, to be registered.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.0.region
    }
}

impl Slots {
    #[inline]
    fn take(&self) -> Result<u32, Exhausted> {
        let Some(top) = self.depth.get().checked_sub(1) else {
            self.exhausted.set(self.exhausted.get() + 1);
            return Err(Exhausted);
        };
        self.depth.set(top);
        if top < self.low_water.get() {
            self.low_water.set(top);
        }
        Ok(self.free[top as usize].get())
    }

    /// Called once for each slot taken, by the `Drop` of its buffer.
    #[inline]
    pub(super) fn give_back(&self, slot: u32) {
        debug_assert!(slot < self.count());
        let depth = self.depth.get();
        self.free[depth as usize].set(slot);
        self.depth.set(depth + 1);
    }

    #[inline]
    pub(super) fn slot_bytes(&self) -> u32 {
        self.slot_bytes
    }

    /// The first byte of a slot that this pool handed out.
    #[inline]
    pub(super) fn address(&self, slot: u32) -> NonNull<u8> {
        debug_assert!(slot < self.count());
        let offset = slot as usize * self.slot_bytes as usize;
        // SAFETY: `add` requires that offset and result stay inside one mapping of at most isize::MAX
        // bytes: `slot < slots`, as only numbers from `free` are handed out, and
        // `slots * slot_bytes <= region.len()` was checked in `Pool::new`.
        unsafe { self.base.add(offset) }
    }

    fn count(&self) -> u32 {
        // `Pool::new` made it from a u32.
        u32::try_from(self.free.len()).unwrap_or(u32::MAX)
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // The last handle and the last buffer are gone, so no slice into the region is left.
        self.region.release();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("slots", &self.slots())
            .field("slot_bytes", &self.slot_bytes())
            .field("free", &self.free())
            .field("low_water", &self.low_water())
            .finish_non_exhaustive()
    }
}
