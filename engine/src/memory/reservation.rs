//! Address space that a pool may grow into, so that a slot's address is always base + slot × bytes.
//!
//! ```text
//!  reserved, PROT_NONE   │ pad │ base ─ chunk 0 ─ chunk 1 ─ … nothing yet … ─ base + bytes │ pad │
//!                                  each a Region, mapped at its place by MAP_FIXED
//! ```
//! Owns the range. A chunk that goes puts PROT_NONE back, so that nobody else's mapping can come to lie in
//! a range that is unmapped here later. Cold: every function is a system call. Imports nothing of ours.
//! Imported by mapping, region, growth.

#![allow(
    unsafe_code,
    reason = "mmap and its relatives change the address space"
)]

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A range of this process's addresses that nothing else is mapped to.
#[derive(Debug)]
pub(super) struct Reservation {
    /// All that was reserved, padding included.
    start: *mut c_void,
    reserved: usize,
    /// Aligned to `unit`.
    base: NonNull<u8>,
    bytes: usize,
    unit: usize,
    /// Bytes from `base` on that were given to chunks: none is given out twice.
    taken: AtomicUsize,
}

// SAFETY: `Send` requires that another thread may use and drop it: the range belongs to the process, and
// `munmap` may come from any thread.
unsafe impl Send for Reservation {}
// SAFETY: `Sync` requires that `&Reservation` on two threads at once is sound: its fields never change,
// except `taken`, which is atomic; mapping calls on disjoint ranges may run side by side, and `take` gives
// each range once.
unsafe impl Sync for Reservation {}

/// A part of a reservation that is one chunk's. Holding one proves: nobody else maps there.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

impl Reservation {
    /// At least `bytes`, at an address aligned to `unit`: a power of two, no less than a page, and the
    /// grain of all parts.
    pub(super) fn new(bytes: usize, unit: usize) -> io::Result<Self> {
        let out = || io::Error::from(io::ErrorKind::OutOfMemory);
        let bytes = bytes.checked_next_multiple_of(unit).ok_or_else(out)?;
        let reserved = bytes.checked_add(unit).ok_or_else(out)?;
        if isize::try_from(reserved).is_err() {
            return Err(out());
        }
        // Nothing is charged for PROT_NONE. With MAP_NORESERVE nothing would be charged later either.
        // SAFETY: `mmap_anonymous` requires that a fixed address replaces nothing in use: the address
        // is null and the flags hold no MAP_FIXED, so the kernel picks an unused range.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                reserved,
                ProtFlags::empty(),
                MapFlags::PRIVATE,
            )
        }?;
        let first = start.cast::<u8>();
        let base = first.wrapping_add(first.align_offset(unit));
        Ok(Self {
            start,
            reserved,
            // `start` is not null, and at most `unit` was added of `bytes + unit`.
            base: NonNull::new(base).ok_or_else(out)?,
            bytes,
            unit,
            taken: AtomicUsize::new(0),
        })
    }

    /// The grain of parts.
    pub(super) fn unit(&self) -> usize {
        self.unit
    }

    /// Bytes that no chunk has.
    pub(super) fn left(&self) -> usize {
        self.bytes - self.taken.load(Ordering::Acquire)
    }

    /// Bytes that chunks have.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }

    /// The next part, of `bytes` rounded up to whole units; `None` where less is left.
    pub(super) fn take(&self, bytes: usize) -> Option<Part> {
        let bytes = bytes.checked_next_multiple_of(self.unit)?;
        let room = |taken: usize| {
            let end = taken.checked_add(bytes)?;
            (bytes > 0 && end <= self.bytes).then_some(end)
        };
        let offset = self
            .taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, room)
            .ok()?;
        Some(Part { offset, bytes })
    }

    /// Gives the part back, if it is the last that was taken: it could not be mapped.
    pub(super) fn untake(&self, part: Part) {
        let end = part.offset + part.bytes;
        // Where another was taken since, the range stays unused.
        let _ = self
            .taken
            .compare_exchange(end, part.offset, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The addresses in which no mapping but those of chunks can be.
    pub(super) fn addresses(&self) -> Range<usize> {
        let start = self.start.addr();
        start..start + self.reserved
    }

    /// First byte of a part.
    pub(super) fn address(&self, part: &Part) -> NonNull<u8> {
        debug_assert!(part.offset + part.bytes <= self.bytes);
        // SAFETY: `add` requires to stay inside one mapping: the part lies in `bytes`, by `take`.
        unsafe { self.base.add(part.offset) }
    }

    /// Makes a part readable and writable small pages, which are charged from here on.
    pub(super) fn open_pages(&self, part: &Part) -> io::Result<()> {
        // SAFETY: `mprotect` requires that the range is ours to change: the part is the caller's alone.
        unsafe {
            rustix::mm::mprotect(
                self.address(part).as_ptr().cast(),
                part.bytes,
                MprotectFlags::READ | MprotectFlags::WRITE,
            )
        }?;
        Ok(())
    }

    /// Maps explicit huge pages of the default size over a part.
    pub(super) fn open_huge(&self, part: &Part) -> io::Result<()> {
        // SAFETY: `mmap_anonymous` with MAP_FIXED requires that nobody uses what it replaces: the part is
        // the caller's alone, and PROT_NONE until now.
        let got = unsafe {
            rustix::mm::mmap_anonymous(
                self.address(part).as_ptr().cast(),
                part.bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::HUGETLB,
            )
        };
        if let Err(error) = got {
            // MAP_FIXED may have unmapped the range before it failed.
            self.close(part);
            return Err(error.into());
        }
        Ok(())
    }

    /// Nothing is in the part any more.
    pub(super) fn close(&self, part: &Part) {
        // SAFETY: `mmap_anonymous` with MAP_FIXED requires that nobody uses what it replaces: whoever
        // holds an address in the part holds the Region that calls this when it goes.
        let result = unsafe {
            rustix::mm::mmap_anonymous(
                self.address(part).as_ptr().cast(),
                part.bytes,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::FIXED,
            )
        };
        debug_assert!(result.is_ok(), "reserving our own range: {result:?}");
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: `munmap` requires that nobody uses the range: it is the one that `mmap` returned, each
        // chunk in it holds an Arc of this value, and puts PROT_NONE back when it goes.
        let result = unsafe { rustix::mm::munmap(self.start, self.reserved) };
        debug_assert!(result.is_ok(), "munmap of our own range: {result:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: usize = 1 << 20;

    #[test]
    fn parts_follow_each_other_and_end_with_the_range() {
        let range = Reservation::new(3 * UNIT - 1, UNIT).unwrap();
        assert!(range.base.as_ptr().addr().is_multiple_of(UNIT));
        let first = range.take(1).unwrap();
        assert_eq!((first.offset, first.bytes), (0, UNIT));
        assert!(range.take(3 * UNIT).is_none());
        let second = range.take(2 * UNIT).unwrap();
        assert_eq!((second.offset, range.left()), (UNIT, 0));
        assert!(range.take(1).is_none() && range.take(0).is_none());
        range.untake(second);
        assert_eq!((range.left(), range.taken()), (2 * UNIT, UNIT));
    }

    #[test]
    fn a_part_is_usable_while_open_and_zeroed_when_opened_again() {
        let range = Reservation::new(2 * UNIT, UNIT).unwrap();
        let part = range.take(UNIT).unwrap();
        for _ in 0..2 {
            range.open_pages(&part).unwrap();
            let byte = range.address(&part).as_ptr();
            // SAFETY: reading and writing require mapped memory that nobody else uses: the part was
            // opened above, for this test alone.
            let seen = unsafe {
                let seen = byte.read();
                byte.write(7);
                seen
            };
            assert_eq!(seen, 0);
            range.close(&part);
        }
    }

    #[test]
    fn what_no_address_space_holds_is_refused() {
        assert!(Reservation::new(usize::MAX, UNIT).is_err());
        assert!(Reservation::new(usize::MAX / 2 - UNIT, UNIT).is_err());
    }
}
