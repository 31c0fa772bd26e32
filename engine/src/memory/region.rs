//! One mapping that devices can be told of.
//!
//! ```text
//!  allocate ─► explicit ─► transparent ─► small      each: map → keep from children → populate
//!                  └───────────┴────────────┴─► Region ─► Arc: registrations, pool, buffers
//!  shared ───► small pages of a sealed memfd ───┘         what peers of this host may map
//! ```
//! Owns the mapping; unmaps when the last `Arc` goes. Gives out an address and no slice: who may look
//! at which byte is for the pool, or for the holder of a one-sided region, to say.
//! Cold. Imports mapping, hugepages, tiers, sys. Imported by pool, registrar, fabric and control.

#![allow(
    unsafe_code,
    reason = "Region may cross threads although it holds a pointer"
)]

use super::hugepages::{self, Hugepages};
use super::mapping::{Mapping, small_page_bytes};
use super::reservation::Reservation;
use super::tiers::{HugepagePolicy, Tier};
use crate::sys::memfd::Memfd;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a region could not be had.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// Nothing was asked for.
    #[error("a region needs at least one byte")]
    Empty,
    /// `require`, and there are too few explicit huge pages.
    #[error(
        "{bytes} B need {needed} huge pages of {} KiB, but {} are available \
         (vm.nr_hugepages = {}, HugePages_Total {}, HugePages_Free {}, HugePages_Rsvd {}): {source}. \
         Run `sysctl vm.nr_hugepages={enough}`, shrink the pool, or set hugepages = \"prefer\"",
        .pages.page_bytes >> 10, .pages.available(), .pages.asked, .pages.total, .pages.free,
        .pages.reserved
    )]
    NoHugepages {
        /// Asked for.
        bytes: usize,
        /// Pages that this takes.
        needed: u64,
        /// Pages that `vm.nr_hugepages` must say.
        enough: u64,
        /// What the host has.
        pages: Hugepages,
        /// What the kernel said.
        source: io::Error,
    },
    /// `require`, and the kernel has no explicit huge pages at all.
    #[error(
        "this kernel has no explicit huge pages (no Hugepagesize in /proc/meminfo); \
         set hugepages = \"prefer\" or boot a kernel with CONFIG_HUGETLBFS"
    )]
    NoHugetlb,
    /// `require`, for memory that peers of this host map.
    #[error(
        "{bytes} B that peers of this host may map lie in small pages, as a hole punched into huge ones \
         would kill whoever reads there: expose them with hugepages \"prefer\" or \"off\""
    )]
    SharedIsSmall {
        /// Asked for.
        bytes: usize,
    },
    /// More than the host has. Populating it would call the out-of-memory killer.
    #[error(
        "{bytes} B are more than the {available} B that this host can give (MemAvailable in \
         /proc/meminfo). Shrink the pool or free memory"
    )]
    TooBig {
        /// Asked for.
        bytes: usize,
        /// What there is.
        available: u64,
    },
    /// The kernel refused to map memory or to fill it.
    #[error(
        "{action} {bytes} B: {source}. Shrink the pool, or free memory (`free -m`; a cgroup's memory.max counts too)"
    )]
    Memory {
        /// What was being done.
        action: &'static str,
        /// Asked for.
        bytes: usize,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Zeroed, present, page-aligned memory that a fork does not hand to children. Unmapped on drop.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    tier: Tier,
    huge_bytes: usize,
    /// One pool at a time may cut this into slots.
    has_pool: AtomicBool,
}

// SAFETY: `Send` requires that another thread may use and drop it: the mapping belongs to the process,
// not to a thread, and `munmap` may come from any.
unsafe impl Send for Region {}
// SAFETY: `Sync` requires that `&Region` on two threads at once is sound: its methods read fields that
// never change after `allocate`, except `has_pool`, which is atomic; none touches the memory itself.
unsafe impl Sync for Region {}

impl Region {
    /// Maps and populates at least `bytes`. Call it on the core that will use the memory, or under a
    /// memory policy for that core's node: population decides where the pages are.
    ///
    /// # Errors
    ///
    /// [`RegionError::NoHugepages`] and [`RegionError::NoHugetlb`] only under
    /// [`HugepagePolicy::Require`]; [`RegionError::TooBig`] and [`RegionError::Memory`] when there is no memory for small
    /// pages either.
    pub fn allocate(bytes: usize, policy: HugepagePolicy) -> Result<Self, RegionError> {
        Self::at(None, bytes, policy)
    }

    /// Memory that peers of this host may map: a memfd of its own, sealed so that it neither shrinks
    /// nor grows. Always in small pages: anybody who has a memfd can punch holes into it, which zeroes
    /// bytes in small pages, and in huge ones makes the next access a SIGBUS.
    ///
    /// # Errors
    ///
    /// [`RegionError::TooBig`] and [`RegionError::Memory`].
    pub fn shared(bytes: usize) -> Result<Self, RegionError> {
        if bytes == 0 {
            return Err(RegionError::Empty);
        }
        Self::fits_the_host(bytes)?;
        let mapping = Mapping::shared(bytes).map_err(memory("make a memfd of", bytes))?;
        Self::populated(mapping, bytes)
    }

    /// The memfd underneath, if it was made by [`shared`](Self::shared). Who gives it to a peer adds the
    /// seals against writing that the grant wants.
    #[must_use]
    pub fn memfd(&self) -> Option<&Arc<Memfd>> {
        self.mapping.memfd()
    }

    /// The same, at the next place of a reservation.
    pub(super) fn allocate_in(
        range: &Arc<Reservation>,
        bytes: usize,
        policy: HugepagePolicy,
    ) -> Result<Self, RegionError> {
        Self::at(Some(range), bytes, policy)
    }

    fn at(
        range: Option<&Arc<Reservation>>,
        bytes: usize,
        policy: HugepagePolicy,
    ) -> Result<Self, RegionError> {
        if bytes == 0 {
            return Err(RegionError::Empty);
        }
        match policy {
            HugepagePolicy::Require => Self::explicit(range, bytes),
            HugepagePolicy::Prefer => Self::explicit(range, bytes).or_else(|why| {
                tracing::debug!(%why, "no explicit huge pages");
                Self::transparent(range, bytes)
            }),
            HugepagePolicy::Off => Self::small(range, bytes),
        }
    }

    fn explicit(range: Option<&Arc<Reservation>>, bytes: usize) -> Result<Self, RegionError> {
        // Asked first because hugepage_rs panics where the kernel has none.
        let pages = Hugepages::probe().ok_or(RegionError::NoHugetlb)?;
        let mapping = match range {
            Some(range) => Mapping::hugetlb_in(range, bytes, pages.page_bytes),
            None => Mapping::hugetlb(bytes, pages.page_bytes),
        };
        let mapping = mapping
            .and_then(|mapping| {
                mapping.keep_from_children()?;
                mapping.populate()?;
                Ok(mapping)
            })
            .map_err(|source| RegionError::NoHugepages {
                bytes,
                needed: pages.needed(bytes),
                enough: pages.enough_for(bytes),
                pages,
                source,
            })?;
        Ok(Self {
            huge_bytes: mapping.bytes(),
            mapping,
            tier: Tier::Explicit,
            has_pool: AtomicBool::new(false),
        })
    }

    fn transparent(range: Option<&Arc<Reservation>>, bytes: usize) -> Result<Self, RegionError> {
        Self::fits_the_host(bytes)?;
        let Some(huge_page) = hugepages::transparent_bytes() else {
            return Self::small(range, bytes);
        };
        let align = huge_page.max(small_page_bytes());
        let mapping = Self::pages(range, bytes, align)?;
        if mapping.ask_for_huge().is_err() {
            drop(mapping);
            return Self::small(range, bytes);
        }
        // The kernel may make one mapping of neighbours in a reservation, so only the sum is known.
        let counted = range.map(|range| range.addresses());
        let count = |from: &Range<usize>| hugepages::anon_huge_bytes(from.start, from.end);
        let before = counted.as_ref().map_or(0, count);
        let mut region = Self::populated(mapping, bytes)?;
        // Asking is not getting: memory may be too fragmented.
        let start = region.base().as_ptr().addr();
        let counted = counted.unwrap_or(start..start + region.len());
        region.huge_bytes = count(&counted).saturating_sub(before).min(region.len());
        if region.huge_bytes > 0 {
            region.tier = Tier::Transparent;
        }
        Ok(region)
    }

    fn pages(
        range: Option<&Arc<Reservation>>,
        bytes: usize,
        align: usize,
    ) -> Result<Mapping, RegionError> {
        let mapping = match range {
            Some(range) => Mapping::pages_in(range, bytes),
            None => Mapping::pages(bytes, align),
        };
        mapping.map_err(memory("map", bytes))
    }

    fn small(range: Option<&Arc<Reservation>>, bytes: usize) -> Result<Self, RegionError> {
        Self::fits_the_host(bytes)?;
        let mapping = Self::pages(range, bytes, small_page_bytes())?;
        mapping.refuse_huge();
        Self::populated(mapping, bytes)
    }

    /// Explicit pages need no such check: they were set aside before anyone asked.
    fn fits_the_host(bytes: usize) -> Result<(), RegionError> {
        match hugepages::available_bytes() {
            Some(available) if bytes as u64 > available => {
                Err(RegionError::TooBig { bytes, available })
            }
            _ => Ok(()),
        }
    }

    fn populated(mapping: Mapping, bytes: usize) -> Result<Self, RegionError> {
        mapping
            .keep_from_children()
            .map_err(memory("keep from children", bytes))?;
        mapping.populate().map_err(memory("populate", bytes))?;
        Ok(Self {
            mapping,
            tier: Tier::Small,
            huge_bytes: 0,
            has_pool: AtomicBool::new(false),
        })
    }

    /// The first byte. Aligned to a page, of the size that [`tier`](Self::tier) says.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.mapping.base()
    }

    /// Bytes from [`base`](Self::base) on: those asked for, rounded up to whole pages.
    #[must_use]
    #[allow(
        clippy::len_without_is_empty,
        reason = "a region is never empty: allocate refuses 0"
    )]
    pub fn len(&self) -> usize {
        self.mapping.bytes()
    }

    /// The pages underneath.
    #[must_use]
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// Bytes that lay in huge pages right after population.
    #[must_use]
    pub fn huge_bytes(&self) -> usize {
        self.huge_bytes
    }

    /// Whether `chunk` lies in the same reservation, behind this region.
    pub(super) fn is_continued_by(&self, chunk: &Self) -> bool {
        let (Some(mine), Some(its)) = (self.mapping.range(), chunk.mapping.range()) else {
            return false;
        };
        Arc::ptr_eq(mine, its) && self.base() < chunk.base()
    }

    /// True for the first caller since the last [`release`](Self::release). Two pools in one region
    /// would hand out the same bytes twice.
    pub(super) fn claim(&self) -> bool {
        !self.has_pool.swap(true, Ordering::Acquire)
    }

    /// The pool and all its buffers are gone.
    pub(super) fn release(&self) {
        self.has_pool.store(false, Ordering::Release);
    }
}

fn memory(action: &'static str, bytes: usize) -> impl FnOnce(io::Error) -> RegionError {
    move |source| RegionError::Memory {
        action,
        bytes,
        source,
    }
}

#[cfg(test)]
#[path = "region_tests.rs"]
mod tests;
