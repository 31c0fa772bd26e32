//! A region cut into equal slots, for one worker.
//!
//! ```text
//!  Region   │ slot 0 │ slot 1 │ slot 2 │ slot 3 │ …          fixed size, whole cache lines
//!  free     [ 7, 6, 5, 4, 3 | 1, 0, 2 ]                      a stack of slot numbers
//!                          ▲ depth: alloc pops, drop pushes; the slot used last, still in cache,
//!                                   is the next one out
//! ```
//! A pool that grows takes further regions behind the first, whose slots are numbered on: an address is
//! always base + slot × bytes. Only the key depends on the region: a slot of the first has the lane's
//! own, and the others say theirs.
//! Owns the free list; the slots in use belong to their [`Buffer`]s, whose count is what the list lacks:
//! no other count is kept of them. One thread: `Rc` and `Cell`, so no lock and no atomic. Allocates at creation and never again; a full pool answers [`Exhausted`].
//! Imports region, limits. Imported by worker and fabric.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]
#![allow(
    unsafe_code,
    reason = "computes the address of a slot in a region, and frees the list of slots with the last"
)]

use super::buffer::Buffer;
use super::region::Region;
use crate::limits::{LANES_MAX, POOL_CHUNKS_MAX, POOL_SLOTS_MAX, SLOT_BYTES_MAX, SLOT_BYTES_MIN};
use crate::types::Lkey;
use std::cell::{Cell, RefCell};
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
    /// A chunk lies elsewhere, or there are too many of them.
    #[error("the region is no chunk that this pool can grow by")]
    NotAChunk,
}

/// Fixed slots in one [`Region`]. Cloning it gives another handle to the same pool.
///
/// It stays on the thread that made it:
/// ```compile_fail,E0277
/// fn send<T: Send>() {}
/// send::<spinwire::memory::Pool>();
/// ```
#[derive(Clone)]
pub struct Pool(Rc<Owner>);

/// All handles of a pool. When they are gone, the slots that are out keep the rest.
struct Owner(SlotsRef);

/// What a buffer has of its pool. The slots outlive it: they are freed when the handles are gone and
/// every slot is back, and it is out until it is given back.
#[derive(Clone, Copy)]
pub(super) struct SlotsRef(NonNull<Slots>);

/// A region that a pool has grown by.
struct Chunk {
    region: Arc<Region>,
    /// Its slots have numbers below this.
    end: u32,
    /// By lane.
    lkeys: [Lkey; LANES_MAX],
}

/// What a pool and its buffers share.
pub(super) struct Slots {
    /// Keeps the memory mapped for as long as a buffer is left, forgotten ones included.
    region: Arc<Region>,
    /// The region's first byte, here so that an address is one load away.
    base: NonNull<u8>,
    slot_bytes: u32,
    /// Numbers of free slots are in `free[..depth]`; what lies above is stale. Room for every number.
    free: Box<[Cell<u32>]>,
    /// Slots that there are.
    count: Cell<u32>,
    /// Slots of the first region have numbers below this.
    first_slots: u32,
    /// Further regions, in order; room for [`POOL_CHUNKS_MAX`].
    chunks: RefCell<Vec<Chunk>>,
    depth: Cell<u32>,
    low_water: Cell<u32>,
    exhausted: Cell<u64>,
    /// No handle is left.
    abandoned: Cell<bool>,
}

impl Pool {
    /// Cuts `region` into `slots` of `slot_bytes`, all free, slot 0 first in line.
    ///
    /// # Errors
    ///
    /// [`PoolError`] says which number is wrong and what would be right.
    pub fn new(region: Arc<Region>, slots: u32, slot_bytes: u32) -> Result<Self, PoolError> {
        Self::growable(region, slots, slot_bytes, slots)
    }

    /// The same, with room for numbers of slots up to `slots_max`: see [`Pool::grow`].
    ///
    /// # Errors
    ///
    /// As [`Pool::new`].
    pub fn growable(
        region: Arc<Region>,
        slots: u32,
        slot_bytes: u32,
        slots_max: u32,
    ) -> Result<Self, PoolError> {
        let slots_max = slots_max.max(slots);
        if slots_max > POOL_SLOTS_MAX {
            return Err(PoolError::Slots { slots: slots_max });
        }
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
        let slots = Box::new(Slots {
            base: region.base(),
            region,
            slot_bytes,
            free: (0..slots)
                .rev()
                .chain(slots..slots_max)
                .map(Cell::new)
                .collect(),
            count: Cell::new(slots),
            first_slots: slots,
            chunks: RefCell::new(Vec::with_capacity(if slots_max > slots {
                POOL_CHUNKS_MAX
            } else {
                0
            })),
            depth: Cell::new(slots),
            low_water: Cell::new(slots),
            exhausted: Cell::new(0),
            abandoned: Cell::new(false),
        });
        Ok(Self(Rc::new(Owner(SlotsRef(NonNull::from(Box::leak(
            slots,
        )))))))
    }

    #[inline]
    fn all(&self) -> &Slots {
        self.0.0.get()
    }

    /// Takes a further region of the first one's [`Growth`](super::Growth), that follows those that are
    /// here; `lkeys` are its keys by lane. Gives the number of new slots: a slot lies in one region, so one
    /// that would begin in an earlier one is left out. Allocates nothing.
    ///
    /// # Errors
    ///
    /// [`PoolError::NotAChunk`], [`PoolError::RegionInUse`].
    pub fn grow(&self, region: Arc<Region>, lkeys: &[Lkey]) -> Result<u32, PoolError> {
        let slots = self.all();
        let mut chunks = slots.chunks.borrow_mut();
        let (end_before, follows) = match chunks.last() {
            Some(last) => (last.end, last.region.is_continued_by(&region)),
            None => (slots.first_slots, slots.region.is_continued_by(&region)),
        };
        if !follows || chunks.len() == chunks.capacity() || lkeys.len() > LANES_MAX {
            return Err(PoolError::NotAChunk);
        }
        if !region.claim() {
            return Err(PoolError::RegionInUse);
        }
        let offset = region.base().as_ptr().addr() - slots.base.as_ptr().addr();
        let numbers = u32::try_from(slots.free.len()).unwrap_or(u32::MAX);
        let number = |slot: usize| u32::try_from(slot).unwrap_or(u32::MAX).min(numbers);
        let bytes = slots.slot_bytes as usize;
        let begin = number(offset.div_ceil(bytes)).max(end_before);
        let end = number((offset + region.len()) / bytes).max(begin);
        let mut all = [Lkey(0); LANES_MAX];
        all[..lkeys.len()].copy_from_slice(lkeys);
        chunks.push(Chunk {
            region,
            end,
            lkeys: all,
        });
        // Below those that are free: they were used, and may be in the cache.
        let (depth, more) = (slots.depth.get() as usize, (end - begin) as usize);
        for place in (0..depth).rev() {
            slots.free[place + more].set(slots.free[place].get());
        }
        for (place, slot) in slots.free.iter().zip((begin..end).rev()) {
            place.set(slot);
        }
        slots.depth.set(slots.depth.get() + (end - begin));
        slots.count.set(slots.count.get() + (end - begin));
        Ok(end - begin)
    }

    /// Takes a slot. The buffer starts with length 0; its bytes are whatever the last use left, zeros
    /// at first.
    ///
    /// # Errors
    ///
    /// [`Exhausted`] when every slot is in use.
    #[inline]
    pub fn alloc(&self) -> Result<Buffer, Exhausted> {
        let slot = self.all().take()?;
        Ok(Buffer::new(self.0.0, slot))
    }

    /// Bytes of one slot.
    #[must_use]
    pub fn slot_bytes(&self) -> u32 {
        self.all().slot_bytes
    }

    /// Slots, free and in use.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.all().count()
    }

    /// Whether [`Pool::grow`] can be of use.
    #[must_use]
    pub fn is_growable(&self) -> bool {
        self.all().chunks.borrow().capacity() > 0
    }

    /// Whether there are slots with keys of their own.
    #[inline]
    pub(crate) fn has_grown(&self) -> bool {
        self.all().first_slots < self.all().count.get()
    }

    /// Slots that are free now.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.all().depth.get()
    }

    /// The fewest slots that were ever free.
    #[must_use]
    pub fn low_water(&self) -> u32 {
        self.all().low_water.get()
    }

    /// How often [`alloc`](Self::alloc) found nothing.
    #[must_use]
    pub fn exhausted_count(&self) -> u64 {
        self.all().exhausted.get()
    }

    /// The region that the slots are in, to be registered.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.all().region
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

    #[inline]
    pub(super) fn slot_bytes(&self) -> u32 {
        self.slot_bytes
    }

    /// The first byte of a slot that this pool handed out.
    #[inline]
    pub(super) fn address(&self, slot: u32) -> NonNull<u8> {
        debug_assert!((slot as usize) < self.free.len());
        let offset = slot as usize * self.slot_bytes as usize;
        // SAFETY: `add` requires that offset and result stay inside one mapping of at most isize::MAX
        // bytes: only numbers from `free` are handed out. Those of the first region are below `slots`, and
        // `slots * slot_bytes <= region.len()` was checked in `Pool::growable`; those of a chunk were put
        // there by `Pool::grow`, which computes them from where the chunk lies, in the same reservation.
        unsafe { self.base.add(offset) }
    }

    fn count(&self) -> u32 {
        self.count.get()
    }

    /// The key of a slot for a lane, where it is not the lane's own: `None` in the first region.
    pub(super) fn lkey(&self, slot: u32, lane: usize) -> Option<Lkey> {
        if slot < self.first_slots {
            return None;
        }
        let chunks = self.chunks.borrow();
        let chunk = chunks.iter().find(|chunk| slot < chunk.end);
        debug_assert!(chunk.is_some());
        chunk?.lkeys.get(lane).copied()
    }
}

impl SlotsRef {
    #[inline]
    pub(super) fn get(&self) -> &Slots {
        // SAFETY: `as_ref` requires a live, initialised value that nobody has `&mut` to: it came out of a
        // box and is only shared since. It goes back to one in `free` alone, which is called when no handle
        // is left and every slot is back, so neither an `Owner` nor a `Buffer` is there to call this.
        unsafe { self.0.as_ref() }
    }

    /// Called once for each slot taken, by the `Drop` of its buffer.
    #[inline]
    pub(super) fn give_back(self, slot: u32) {
        let slots = self.get();
        debug_assert!((slot as usize) < slots.free.len());
        let depth = slots.depth.get();
        slots.free[depth as usize].set(slot);
        slots.depth.set(depth + 1);
        if slots.abandoned.get() {
            self.free_if_whole();
        }
    }

    /// No handle is left: frees all, if this was the last slot that was out.
    #[cold]
    #[inline(never)]
    fn free_if_whole(self) {
        let slots = self.get();
        if slots.depth.get() < slots.count() {
            return;
        }
        // SAFETY: `from_raw` requires a pointer that came out of such a box, which `Pool::growable` leaked,
        // and that it is done once: no slot is out and no handle is left, so nothing is that could call this
        // again, and nothing else uses the value.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.get().abandoned.set(true);
        self.0.free_if_whole();
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // The last handle and the last buffer are gone, so no slice into the region is left.
        self.region.release();
        for chunk in self.chunks.get_mut() {
            chunk.region.release();
        }
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
