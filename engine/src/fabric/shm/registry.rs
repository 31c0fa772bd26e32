//! Memory that was registered, and the board that tells peers which keys are in use.
//!
//! ```text
//!  register ─► slot { lkey, rkey, access, base, bytes }   lanes look it up between enter and leave
//!     │            └─ board: memfd of words, slot ─► tag or 0, read by peers before each access
//!  drop ─► keys to 0 ─► barrier, lanes out ─► the slot is free, the region may go
//! ```
//! A look-up takes no lock: whoever is inside its [`Turnstile`] keeps what it found. The board binds
//! honest peers; what binds others is that memory which was theirs once is never used for anything else
//! (each region is a memfd of its own). Every peer can read the board, so it has no keys: a tag is a number
//! of no meaning that another registration does not have. Rkeys have 19 bits to be guessed, and no lkey is
//! an rkey.
//! Imports memory, sys, types. Imported by the other files of this folder.

#![allow(unsafe_code, reason = "the board is read by other processes")]

use super::piece::Piece;
use crate::fabric::WcStatus;
use crate::memory::{Region, Registration};
use crate::sys::memfd::Memfd;
use crate::sys::turnstile::{Turnstile, Watch, barrier};
use crate::types::{Access, Lkey, Rkey};
use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Regions that a fabric knows at most.
pub(super) const SLOTS: usize = 1 << INDEX_BITS;
/// Bytes of the board: one word a slot.
pub(super) const BOARD_BYTES: usize = SLOTS * size_of::<u32>();
/// Bits of a key that find the slot; those above tell its uses apart.
const INDEX_BITS: u32 = 12;
/// Rkeys have this bit, lkeys have not: one taken for the other is unknown.
const REMOTE: u32 = 1 << 31;

/// The slot of a key, below [`SLOTS`].
#[inline]
pub(super) fn slot_of(key: u32) -> usize {
    (key & ((1 << INDEX_BITS) - 1)) as usize
}

/// A region as lanes find it. All fields but the keys change only while both keys are 0 and no lane is
/// inside.
#[derive(Debug, Default)]
struct Slot {
    lkey: AtomicU32,
    /// 0 when a peer took it out of use, and where peers have no right.
    rkey: AtomicU32,
    writable: AtomicU32,
    base: AtomicPtr<u8>,
    bytes: AtomicUsize,
}

/// What a slot stands for, for control.
#[derive(Debug, Default)]
struct Held {
    region: Option<Arc<Region>>,
    access: Access,
}

#[derive(Debug, Default)]
struct Books {
    held: Vec<Held>,
    /// The longest free is used first: its keys are long forgotten.
    free: VecDeque<usize>,
    lanes: Vec<Watch>,
    keys: u64,
}

/// All registrations of a fabric.
#[derive(Debug)]
pub(super) struct Registry {
    slots: Box<[Slot; SLOTS]>,
    board: Arc<Memfd>,
    books: Mutex<Books>,
    random: RandomState,
}

/// What a peer that names an rkey is given.
pub(super) struct Offered {
    pub(super) region: Arc<Region>,
    pub(super) access: Access,
}

impl Registry {
    /// With an empty board.
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let board = Memfd::create("spinwire-board", BOARD_BYTES)?;
        let slots: Box<[Slot]> = (0..SLOTS).map(|_| Slot::default()).collect();
        // There are just so many.
        let slots = slots.try_into().map_err(|_| io::ErrorKind::OutOfMemory)?;
        // Our own mapping stays writable.
        board.seal_writes()?;
        Ok(Arc::new(Self {
            slots,
            board: Arc::new(board),
            books: Mutex::default(),
            random: RandomState::new(),
        }))
    }

    /// The board, to be given to peers.
    pub(super) fn board(&self) -> &Arc<Memfd> {
        &self.board
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Nothing under the lock panics.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registrations will wait for this lane before they go.
    pub(super) fn admit(&self, turnstile: &Turnstile) {
        let mut books = self.books();
        books.lanes.retain(|lane| !lane.is_over());
        books.lanes.push(turnstile.watch());
    }

    /// Regions that are registered.
    pub(super) fn count(&self) -> usize {
        let books = self.books();
        books.held.iter().filter(|h| h.region.is_some()).count()
    }

    fn word(&self, slot: usize) -> &AtomicU32 {
        debug_assert!(slot < SLOTS);
        // SAFETY: `add` requires that the result stays in the mapping: it has `SLOTS` words, and the
        // slot is below that.
        let word = unsafe { self.board.base().cast::<u32>().add(slot % SLOTS) };
        // SAFETY: `from_ptr` requires
        // - an aligned pointer to 4 bytes that stay mapped: the base is of a page, and the memfd lives
        //   as long as `self`;
        // - that all access is atomic: ours goes through here, and peers have no other.
        unsafe { AtomicU32::from_ptr(word.as_ptr()) }
    }

    /// Enters a region.
    pub(super) fn register(
        self: &Arc<Self>,
        region: Arc<Region>,
        access: Access,
    ) -> io::Result<ShmRegistration> {
        let mut books = self.books();
        let index = if books.held.len() < SLOTS {
            books.held.push(Held::default());
            books.held.len() - 1
        } else {
            let free = books.free.pop_front();
            free.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?
        };
        books.keys += 1;
        let low = u32::try_from(index).unwrap_or(0);
        let number = books.keys;
        let high = |what: u8| {
            let bits = self.random.hash_one((number, what)) & u64::from(u32::MAX);
            (u32::try_from(bits).unwrap_or(0) << INDEX_BITS) & !REMOTE
        };
        // Bit 12 is set, so that no key is 0.
        let lkey = high(0) | (1 << INDEX_BITS) | low;
        let rkey = high(1) | REMOTE | low;
        let (base, bytes) = (region.base(), region.len());
        books.held[index] = Held {
            region: Some(region),
            access,
        };
        let slot = &self.slots[index];
        let writable = u32::from(access.contains(Access::LOCAL_WRITE));
        slot.writable.store(writable, Ordering::Relaxed);
        slot.base.store(base.as_ptr(), Ordering::Relaxed);
        slot.bytes.store(bytes, Ordering::Relaxed);
        let (remote, tag) = if access.is_remote() {
            (rkey, high(2) | 1)
        } else {
            (0, 0)
        };
        // Before the key, with which it can be taken away again.
        self.word(index).store(tag, Ordering::Release);
        slot.rkey.store(remote, Ordering::Release);
        slot.lkey.store(lkey, Ordering::Release);
        drop(books);
        Ok(ShmRegistration {
            registry: Arc::clone(self),
            index,
            lkey,
            rkey,
        })
    }

    fn forget(&self, index: usize) {
        let slot = &self.slots[index];
        slot.lkey.store(0, Ordering::Relaxed);
        slot.rkey.store(0, Ordering::Relaxed);
        self.word(index).store(0, Ordering::Release);
        barrier();
        let mut books = self.books();
        for lane in &books.lanes {
            lane.wait();
        }
        let gone = std::mem::take(&mut books.held[index]);
        books.free.push_back(index);
        drop(books);
        // Unmapping, if this was the last holder, needs no lock.
        drop(gone);
    }

    /// Local bytes that allow the use. Nothing is asked of a piece without bytes. Good until the caller
    /// leaves its turnstile.
    #[inline]
    pub(super) fn local(
        &self,
        lkey: Lkey,
        addr: u64,
        len: u32,
        write: bool,
    ) -> Result<Piece, WcStatus> {
        if len == 0 {
            return Ok(Piece::EMPTY);
        }
        let slot = &self.slots[slot_of(lkey.0)];
        if slot.lkey.load(Ordering::Acquire) != lkey.0 || lkey.0 == 0 {
            return Err(WcStatus::LocalProtection);
        }
        if write && slot.writable.load(Ordering::Relaxed) == 0 {
            return Err(WcStatus::LocalProtection);
        }
        let base = slot.base.load(Ordering::Relaxed);
        let bytes = slot.bytes.load(Ordering::Relaxed);
        let piece = NonNull::new(base).and_then(|base| {
            // SAFETY: `Piece::within` requires `bytes` mapped bytes at `base`: they were registered
            // together, and the key says that they still are, as long as the caller is inside its
            // turnstile.
            unsafe { Piece::within(base, bytes as u64, base.addr().get() as u64, addr, len) }
        });
        piece.ok_or(WcStatus::LocalProtection)
    }

    /// What stands behind an rkey, for a peer that asks.
    pub(super) fn offered(&self, rkey: Rkey) -> Option<Offered> {
        let index = slot_of(rkey.0);
        let books = self.books();
        let known = self.slots.get(index)?.rkey.load(Ordering::Acquire) == rkey.0;
        let held = books.held.get(index).filter(|_| known && rkey.0 != 0)?;
        Some(Offered {
            region: Arc::clone(held.region.as_ref()?),
            access: held.access,
        })
    }

    /// Takes an rkey out of use; false if there is none such.
    pub(super) fn invalidate(&self, rkey: Rkey) -> bool {
        let index = slot_of(rkey.0);
        if rkey.0 == 0 {
            return false;
        }
        let (key, word) = (&self.slots[index].rkey, self.word(index));
        let tag = word.load(Ordering::Acquire);
        let was = key.compare_exchange(rkey.0, 0, Ordering::AcqRel, Ordering::Acquire);
        if was.is_err() {
            return false;
        }
        // Another registration may have come meanwhile.
        let _ = word.compare_exchange(tag, 0, Ordering::AcqRel, Ordering::Acquire);
        true
    }
}

/// Memory that the fabric knows; forgotten when this is dropped, which waits until no lane uses it.
#[derive(Debug)]
pub struct ShmRegistration {
    registry: Arc<Registry>,
    index: usize,
    lkey: u32,
    rkey: u32,
}

impl Registration for ShmRegistration {
    fn lkey(&self) -> Lkey {
        Lkey(self.lkey)
    }
    fn rkey(&self) -> Rkey {
        Rkey(self.rkey)
    }
}

impl Drop for ShmRegistration {
    fn drop(&mut self) {
        self.registry.forget(self.index);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::HugepagePolicy;

    fn region() -> Arc<Region> {
        Arc::new(Region::allocate(4096, HugepagePolicy::Off).expect("memory"))
    }

    #[test]
    fn keys_are_found_while_they_are_registered_and_only_within() {
        let registry = Registry::new().expect("a memfd");
        let region = region();
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let registered = registry.register(Arc::clone(&region), access);
        let registered = registered.expect("room");
        let (lkey, rkey) = (registered.lkey(), registered.rkey());
        let base = region.base().addr().get() as u64;
        let local = |addr, len| registry.local(lkey, addr, len, true);
        assert!(local(base, 4096).is_ok() && local(base + 4095, 1).is_ok());
        for (addr, len) in [(base, 4097), (base - 1, 2), (base + 4096, 1), (0, 1)] {
            assert_eq!(local(addr, len).err(), Some(WcStatus::LocalProtection));
        }
        assert!(local(0, 0).is_ok(), "nothing is asked of no bytes");
        assert!(registry.local(Lkey(rkey.0), base, 1, false).is_err());
        assert!(registry.offered(rkey).is_some() && registry.offered(Rkey(lkey.0)).is_none());
        let word = registry.word(slot_of(rkey.0));
        let tag = word.load(Ordering::Relaxed);
        assert!(tag != 0 && tag != rkey.0, "in use, but no key");
        assert!(registry.invalidate(rkey) && !registry.invalidate(rkey));
        assert!(registry.offered(rkey).is_none() && word.load(Ordering::Relaxed) == 0);
        assert!(local(base, 1).is_ok(), "the owner keeps it");
        assert_eq!(registry.count(), 1);
        drop(registered);
        assert!(registry.local(lkey, base, 1, false).is_err());
        assert_eq!((registry.count(), Arc::strong_count(&region)), (0, 1));
    }

    #[test]
    fn read_only_memory_is_not_written_and_full_is_full() {
        let registry = Registry::new().expect("a memfd");
        let region = region();
        let base = region.base().addr().get() as u64;
        let all: Vec<_> = (0..SLOTS)
            .map(|_| {
                registry
                    .register(Arc::clone(&region), Access::NONE)
                    .expect("room")
            })
            .collect();
        assert!(
            registry
                .register(Arc::clone(&region), Access::NONE)
                .is_err()
        );
        let lkey = all[7].lkey();
        assert!(registry.local(lkey, base, 1, false).is_ok());
        assert!(registry.local(lkey, base, 1, true).is_err());
        assert!(
            registry.offered(all[7].rkey()).is_none(),
            "no right was given"
        );
        drop(all);
        assert!(registry.register(region, Access::NONE).is_ok());
    }
}
