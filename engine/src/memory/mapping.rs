//! One mapping: made, populated, kept from children, unmapped.
//!
//! ```text
//!  Pages    │ guard │ pad │ base ── bytes, readable and writable ── │ pad │ guard │   PROT_NONE outside
//!  Hugetlb  │ base ── bytes, rounded up to whole huge pages ── │                    hugepage_rs
//!  Shared   │ base ── bytes, small pages of a sealed memfd ── │                      sys::memfd
//! ```
//! The guards make an overrun by the CPU a fault, and keep the kernel from merging the mapping with a
//! neighbour, so that `/proc/self/smaps` speaks of this region alone. A growing pool's chunks lie in a
//! reservation instead (see `reservation.rs`).
//! Cold: every function here is a system call. Imports reservation, sys. Imported by region.

#![allow(
    unsafe_code,
    reason = "mmap and its relatives change the address space"
)]

use super::reservation::{Part, Reservation};
use crate::sys::memfd::Memfd;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::alloc::Layout;
use std::ffi::c_void;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Zeroed memory of this process, unmapped on drop. Holding one proves: `base..base + bytes` is
/// mapped readable and writable, by us alone, or with those that a shared one's memfd was given to.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    /// Of the pages underneath; `base` is aligned to it.
    page_bytes: usize,
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    /// What `hugepage_rs::dealloc` wants back.
    Hugetlb(Layout),
    /// All that was reserved, guards and padding included.
    Pages { start: *mut c_void, bytes: usize },
    /// A part of a reservation, which it goes back to.
    Part { range: Arc<Reservation>, part: Part },
    /// The memfd's own mapping, which it unmaps itself.
    Shared(Arc<Memfd>),
}

/// Bytes of a small page.
pub(super) fn small_page_bytes() -> usize {
    rustix::param::page_size()
}

impl Mapping {
    /// Explicit huge pages of `page_bytes`, the host's default size. They are set aside here, but
    /// not yet populated.
    pub(super) fn hugetlb(bytes: usize, page_bytes: usize) -> io::Result<Self> {
        let bytes = round_up(bytes, page_bytes)?;
        let layout = Layout::from_size_align(bytes, page_bytes)
            .map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        if bytes == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: `alloc` requires a layout of non-zero size: checked above.
        let base = unsafe { hugepage_rs::alloc(layout) };
        let base = NonNull::new(base).ok_or_else(io::Error::last_os_error)?;
        Ok(Self {
            base,
            bytes,
            page_bytes,
            origin: Origin::Hugetlb(layout),
        })
    }

    /// Small pages at an address aligned to `align`, which is a power of two and no less than a page.
    pub(super) fn pages(bytes: usize, align: usize) -> io::Result<Self> {
        let page_bytes = small_page_bytes();
        debug_assert!(align.is_power_of_two() && align >= page_bytes);
        // Whole units of `align`: a transparent huge page covers only what is all in the mapping.
        let bytes = round_up(bytes, align)?;
        let reserved = bytes
            .checked_add(align + 2 * page_bytes)
            .ok_or(io::ErrorKind::OutOfMemory)?;
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
        // Nothing is charged for PROT_NONE. `mprotect` below charges, so the kernel can still refuse
        // what it cannot back; with MAP_NORESERVE it would agree and kill someone at population.
        // From here on Drop unmaps, whatever fails.
        let first = start.cast::<u8>().wrapping_add(page_bytes);
        let base = first.wrapping_add(first.align_offset(align));
        let mapping = Self {
            base: NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?,
            bytes,
            page_bytes,
            origin: Origin::Pages {
                start,
                bytes: reserved,
            },
        };
        // SAFETY: `mprotect` requires that the range is ours to change: it lies inside what was just
        // reserved, since at most `page_bytes + align` of the `align + 2 * page_bytes` on top of
        // `bytes` are in front of `base`.
        unsafe {
            rustix::mm::mprotect(
                mapping.start(),
                bytes,
                MprotectFlags::READ | MprotectFlags::WRITE,
            )
        }?;
        Ok(mapping)
    }

    /// The next `bytes` of a reservation, as small pages.
    pub(super) fn pages_in(range: &Arc<Reservation>, bytes: usize) -> io::Result<Self> {
        Self::in_part(range, bytes, small_page_bytes(), Reservation::open_pages)
    }

    /// The next `bytes` of a reservation, as explicit huge pages of `page_bytes`, the host's default size.
    pub(super) fn hugetlb_in(
        range: &Arc<Reservation>,
        bytes: usize,
        page_bytes: usize,
    ) -> io::Result<Self> {
        if !range.unit().is_multiple_of(page_bytes) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Self::in_part(range, bytes, page_bytes, Reservation::open_huge)
    }

    /// A memfd of its own, which its owner may give to peers. It comes populated and sealed.
    pub(super) fn shared(bytes: usize) -> io::Result<Self> {
        let page_bytes = small_page_bytes();
        let memfd = Memfd::create("spinwire-region", round_up(bytes, page_bytes)?)?;
        Ok(Self {
            base: memfd.base(),
            bytes: memfd.bytes(),
            page_bytes,
            origin: Origin::Shared(Arc::new(memfd)),
        })
    }

    fn in_part(
        range: &Arc<Reservation>,
        bytes: usize,
        page_bytes: usize,
        open: impl FnOnce(&Reservation, &Part) -> io::Result<()>,
    ) -> io::Result<Self> {
        let part = range.take(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        if let Err(error) = open(range, &part) {
            range.untake(part);
            return Err(error);
        }
        Ok(Self {
            base: range.address(&part),
            bytes: part.bytes,
            page_bytes,
            origin: Origin::Part {
                range: Arc::clone(range),
                part,
            },
        })
    }

    /// The reservation that it lies in.
    pub(super) fn range(&self) -> Option<&Arc<Reservation>> {
        match &self.origin {
            Origin::Part { range, .. } => Some(range),
            Origin::Hugetlb(_) | Origin::Pages { .. } | Origin::Shared(_) => None,
        }
    }

    /// The memfd that it is a mapping of.
    pub(super) fn memfd(&self) -> Option<&Arc<Memfd>> {
        match &self.origin {
            Origin::Shared(memfd) => Some(memfd),
            Origin::Hugetlb(_) | Origin::Pages { .. } | Origin::Part { .. } => None,
        }
    }

    /// A forked child does not get these pages: without this, its first write or ours after a fork
    /// would move our page to a new place while the NIC keeps writing to the old one.
    pub(super) fn keep_from_children(&self) -> io::Result<()> {
        self.advise(Advice::LinuxDontFork)
    }

    /// Asks for transparent huge pages.
    pub(super) fn ask_for_huge(&self) -> io::Result<()> {
        self.advise(Advice::LinuxHugepage)
    }

    /// Refuses transparent huge pages. A kernel without them says EINVAL, which is as good.
    pub(super) fn refuse_huge(&self) {
        let _ = self.advise(Advice::LinuxNoHugepage);
    }

    /// Makes every page present and writable, so that no access faults later. Fails where touching
    /// the memory would have ended in SIGBUS, as when a cgroup caps huge pages.
    pub(super) fn populate(&self) -> io::Result<()> {
        loop {
            match self.advise_raw(Advice::LinuxPopulateWrite) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                // Before Linux 5.14.
                Err(Errno::INVAL) => {
                    self.touch();
                    return Ok(());
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// What population meant before `MADV_POPULATE_WRITE`.
    fn touch(&self) {
        for offset in (0..self.bytes).step_by(self.page_bytes) {
            // SAFETY: `add` requires to stay inside one mapping: `offset < bytes`.
            let page = unsafe { self.base.add(offset) };
            // SAFETY: `write_volatile` requires memory that is valid for writing and not being read
            // elsewhere: it is inside the mapping, and no address of it was given out yet (Region
            // populates before it returns itself). Zero is what the page holds anyway.
            unsafe { page.write_volatile(0) };
        }
    }

    fn advise(&self, advice: Advice) -> io::Result<()> {
        self.advise_raw(advice).map_err(io::Error::from)
    }

    fn advise_raw(&self, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: `madvise` requires a range whose meaning may change: it is all ours, and the callers
        // pass only advice that keeps the contents (fork, huge, populate).
        unsafe { rustix::mm::madvise(self.start(), self.bytes, advice) }
    }

    fn start(&self) -> *mut c_void {
        self.base.as_ptr().cast()
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes mapped; at least those asked for.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match &self.origin {
            &Origin::Hugetlb(layout) => {
                // SAFETY: `dealloc` requires a block of `hugepage_rs::alloc` and the layout it was
                // made with: `base` and `layout` are kept unchanged from `Mapping::hugetlb`.
                unsafe { hugepage_rs::dealloc(self.base.as_ptr(), layout) }
            }
            Origin::Part { range, part } => {
                range.close(part);
                range.untake(Part { ..*part });
            }
            Origin::Shared(_) => {}
            &Origin::Pages { start, bytes } => {
                // SAFETY: `munmap` requires that nobody uses the range: it is the one that `mmap`
                // returned, and whoever holds an address into it holds the Region that owns us.
                let result = unsafe { rustix::mm::munmap(start, bytes) };
                debug_assert!(result.is_ok(), "munmap of our own mapping: {result:?}");
            }
        }
    }
}

fn round_up(bytes: usize, unit: usize) -> io::Result<usize> {
    bytes
        .checked_next_multiple_of(unit)
        .filter(|rounded| isize::try_from(*rounded).is_ok())
        .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}
