//! What the kernel says about huge pages: how many are set aside, whether it makes transparent ones,
//! and how much of a mapping got them.
//!
//! ```text
//!  /proc/meminfo                          HugePages_*, Hugepagesize ─► Hugepages
//!                                         MemAvailable ─────────────► available_bytes
//!  /proc/sys/vm/nr_hugepages              asked for ─────────────────►     │
//!  /sys/kernel/mm/transparent_hugepage    enabled, hpage_pmd_size ───► transparent_bytes
//!  /proc/self/smaps                       AnonHugePages ─────────────► anon_huge_bytes
//! ```
//! Cold: reads files, allocates. Imports nothing of ours. Imported by region and by whoever explains
//! a host to its user.

use std::fs;

/// Explicit huge pages of the default size on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hugepages {
    /// Bytes of one page.
    pub page_bytes: usize,
    /// Pages in the kernel's pool.
    pub total: u64,
    /// Pages in the pool that nobody touched yet, some of them promised to a mapping.
    pub free: u64,
    /// Of the free pages, those promised.
    pub reserved: u64,
    /// What `vm.nr_hugepages` asks for; more than `total` when memory was too fragmented to give it.
    pub asked: u64,
}

impl Hugepages {
    /// Asks the kernel. `None` where it has no explicit huge pages at all (or no `/proc`).
    #[must_use]
    pub fn probe() -> Option<Self> {
        let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
        let mut found = Self::parse(&meminfo)?;
        found.asked = fs::read_to_string("/proc/sys/vm/nr_hugepages")
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(found.total);
        Some(found)
    }

    /// Pages that a new mapping can have.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.free.saturating_sub(self.reserved)
    }

    /// Pages that `bytes` need.
    #[must_use]
    pub fn needed(&self, bytes: usize) -> u64 {
        bytes.div_ceil(self.page_bytes) as u64
    }

    /// The value of `vm.nr_hugepages` that would let a mapping of `bytes` succeed now.
    #[must_use]
    pub fn enough_for(&self, bytes: usize) -> u64 {
        self.total + self.needed(bytes).saturating_sub(self.available())
    }

    fn parse(meminfo: &str) -> Option<Self> {
        let page_kib = field(meminfo, "Hugepagesize:")?;
        let total = field(meminfo, "HugePages_Total:")?;
        Some(Self {
            page_bytes: usize::try_from(page_kib.checked_mul(1024)?)
                .ok()
                .filter(|bytes| bytes.is_power_of_two())?,
            total,
            free: field(meminfo, "HugePages_Free:")?,
            reserved: field(meminfo, "HugePages_Rsvd:").unwrap_or(0),
            asked: total,
        })
    }
}

/// The number behind `name` on the first line that starts with it.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

/// Bytes that the host can give without swapping, by its own estimate.
pub(super) fn available_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    field(&meminfo, "MemAvailable:")?.checked_mul(1024)
}

/// Bytes of one transparent huge page, `None` where the kernel makes none even if asked.
pub(super) fn transparent_bytes() -> Option<usize> {
    let dir = "/sys/kernel/mm/transparent_hugepage";
    let enabled = fs::read_to_string(format!("{dir}/enabled")).ok()?;
    if enabled.contains("[never]") {
        return None;
    }
    // Kernels before 4.20 do not say; 2 MiB is right for x86-64 and for 4 KiB pages on aarch64.
    let bytes: usize = fs::read_to_string(format!("{dir}/hpage_pmd_size"))
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(2 << 20);
    bytes.is_power_of_two().then_some(bytes)
}

/// Bytes of transparent huge pages in the mappings of this process that lie inside `start..end`.
/// 0 where the kernel does not tell.
pub(super) fn anon_huge_bytes(start: usize, end: usize) -> usize {
    fs::read_to_string("/proc/self/smaps").map_or(0, |smaps| huge_bytes_in(&smaps, start, end))
}

fn huge_bytes_in(smaps: &str, start: usize, end: usize) -> usize {
    let mut inside = false;
    let mut kib = 0;
    for line in smaps.lines() {
        if let Some((from, to)) = mapping_range(line) {
            inside = start <= from && to <= end;
        } else if inside && line.starts_with("AnonHugePages:") {
            kib += field(line, "AnonHugePages:").unwrap_or(0);
        }
    }
    usize::try_from(kib).unwrap_or(0) * 1024
}

/// `7f12a000-7f12c000 rw-p …` opens a mapping; every other line is `Name: value`.
fn mapping_range(line: &str) -> Option<(usize, usize)> {
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    Some((
        usize::from_str_radix(from, 16).ok()?,
        usize::from_str_radix(to, 16).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal: 16 kB\nAnonHugePages: 0 kB\nHugePages_Total:      10\n\
        HugePages_Free:        6\nHugePages_Rsvd:        2\nHugepagesize:       2048 kB\n";

    #[test]
    fn meminfo_is_read() {
        let pages = Hugepages::parse(MEMINFO).unwrap();
        assert_eq!(pages.page_bytes, 2 << 20);
        assert_eq!((pages.total, pages.free, pages.reserved), (10, 6, 2));
        assert_eq!(pages.available(), 4);
        assert_eq!(pages.needed((2 << 20) + 1), 2);
        assert_eq!(pages.enough_for(2 << 20), 10); // there already
        assert_eq!(pages.enough_for(5 << 21), 11); // 5 needed, 4 there
    }

    #[test]
    fn a_kernel_without_hugetlb_has_none() {
        assert_eq!(Hugepages::parse("MemTotal: 16 kB\n"), None);
        assert_eq!(
            Hugepages::parse(&MEMINFO.replace("2048 kB", "odd kB")),
            None
        );
        assert_eq!(Hugepages::parse(&MEMINFO.replace("2048", "0")), None);
    }

    #[test]
    fn smaps_counts_only_mappings_inside() {
        let smaps = "1000-3000 rw-p 0 00:00 0\nRss: 8 kB\nAnonHugePages: 4 kB\n\
            3000-5000 rw-p 0 00:00 0 [heap]\nAnonHugePages: 2048 kB\nVmFlags: rd wr\n\
            5000-6000 rw-p 0 00:00 0\nAnonHugePages: 4096 kB\n";
        assert_eq!(huge_bytes_in(smaps, 0x3000, 0x5000), 2048 << 10);
        assert_eq!(huge_bytes_in(smaps, 0x3000, 0x6000), 6144 << 10);
        assert_eq!(huge_bytes_in(smaps, 0x3000, 0x4000), 0);
    }

    #[test]
    fn this_host_can_be_asked() {
        let _ = Hugepages::probe();
        assert!(available_bytes().is_some_and(|bytes| bytes > 0));
        let _ = transparent_bytes();
    }
}
