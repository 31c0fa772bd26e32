//! Regions on whatever host this is: they must work without huge pages and use them when there.

use super::*;
use crate::memory::hugepages::Hugepages;
use std::fs;

/// The flags of the mapping that holds `address`, from `/proc/self/smaps`.
fn vm_flags(address: usize) -> String {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in smaps.lines() {
        let range = line.split(' ').next().and_then(|word| word.split_once('-'));
        if let Some((from, to)) = range {
            let hex = |text| usize::from_str_radix(text, 16).unwrap();
            inside = (hex(from)..hex(to)).contains(&address);
        } else if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
            return flags.to_owned() + " ";
        }
    }
    panic!("no mapping at {address:#x}");
}

fn bytes_of(region: &mut Region) -> &mut [u8] {
    // SAFETY: `from_raw_parts_mut` requires memory that is valid, initialised and used by nobody else:
    // the region is mapped and zeroed for as long as the borrow, which is exclusive.
    unsafe { std::slice::from_raw_parts_mut(region.base().as_ptr(), region.len()) }
}

fn check(region: &mut Region, asked: usize) {
    assert!(region.len() >= asked);
    assert!(region.len().is_multiple_of(small_page_bytes()));
    assert!(
        region
            .base()
            .as_ptr()
            .addr()
            .is_multiple_of(small_page_bytes())
    );
    let bytes = bytes_of(region);
    assert!(bytes.iter().all(|byte| *byte == 0));
    bytes.fill(0xa5);
    let flags = vm_flags(region.base().as_ptr().addr());
    assert!(flags.contains(" dc "), "MADV_DONTFORK is not set: {flags}");
}

#[test]
fn off_gives_small_pages() {
    let mut region = Region::allocate(10_000, HugepagePolicy::Off).unwrap();
    check(&mut region, 10_000);
    assert_eq!((region.tier(), region.huge_bytes()), (Tier::Small, 0));
    assert_eq!(
        region.len(),
        10_000_usize.next_multiple_of(small_page_bytes())
    );
}

#[test]
fn a_shared_region_is_a_memfd_of_small_pages() {
    let mut region = Region::shared(10_000).unwrap();
    check(&mut region, 10_000);
    assert_eq!((region.tier(), region.huge_bytes()), (Tier::Small, 0));
    let flags = vm_flags(region.base().as_ptr().addr());
    assert!(flags.contains(" sh "), "not MAP_SHARED: {flags}");
    let memfd = region.memfd().expect("a memfd");
    assert_eq!((memfd.base(), memfd.bytes()), (region.base(), region.len()));
    assert!(matches!(Region::shared(0), Err(RegionError::Empty)));
    assert!(matches!(
        Region::shared(1 << 46),
        Err(RegionError::TooBig { .. })
    ));
    let private = Region::allocate(1, HugepagePolicy::Off).unwrap();
    assert!(private.memfd().is_none());
}

#[test]
fn prefer_works_everywhere_and_says_what_it_got() {
    let mut region = Region::allocate(5 << 20, HugepagePolicy::Prefer).unwrap();
    check(&mut region, 5 << 20);
    match region.tier() {
        Tier::Explicit => assert_eq!(region.huge_bytes(), region.len()),
        Tier::Transparent => assert!((1..=region.len()).contains(&region.huge_bytes())),
        Tier::Small => assert_eq!(region.huge_bytes(), 0),
    }
}

#[test]
fn transparent_pages_are_counted_for_this_region_alone() {
    let regions: Vec<_> = (0..3).map(|_| Region::transparent(None, 4 << 20)).collect();
    for region in regions {
        let mut region = region.unwrap();
        check(&mut region, 4 << 20);
        assert!(region.huge_bytes() <= region.len());
    }
}

#[test]
fn require_gives_explicit_pages_or_the_remedy() {
    match Region::allocate(3 << 20, HugepagePolicy::Require) {
        Ok(mut region) => {
            check(&mut region, 3 << 20);
            assert_eq!(region.tier(), Tier::Explicit);
            assert_eq!(region.huge_bytes(), region.len());
        }
        Err(RegionError::NoHugetlb) => assert_eq!(Hugepages::probe(), None),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("sysctl vm.nr_hugepages="), "{text}");
            assert!(text.contains("HugePages_Free"), "{text}");
        }
    }
}

#[test]
fn require_of_too_much_names_the_number() {
    let Some(pages) = Hugepages::probe() else {
        return;
    };
    // One page more than there is, and far more than overcommit would lend.
    let bytes = pages.page_bytes * (usize::try_from(pages.total).unwrap() + (1 << 20));
    let error = Region::allocate(bytes, HugepagePolicy::Require).unwrap_err();
    let RegionError::NoHugepages { needed, enough, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*needed, pages.total + (1 << 20));
    assert!(enough >= needed);
    assert!(error.to_string().contains(&format!("={enough}`")));
}

#[test]
fn a_failed_explicit_attempt_falls_through() {
    let region = Region::explicit(None, usize::MAX / 4).unwrap_err();
    assert!(matches!(
        region,
        RegionError::NoHugepages { .. } | RegionError::NoHugetlb
    ));
}

#[test]
fn nonsense_is_refused() {
    assert!(matches!(
        Region::allocate(0, HugepagePolicy::Prefer),
        Err(RegionError::Empty)
    ));
    for policy in [HugepagePolicy::Prefer, HugepagePolicy::Off] {
        // Neither may reach population: it would call the out-of-memory killer.
        for bytes in [usize::MAX - 5, 1 << 46] {
            let error = Region::allocate(bytes, policy).unwrap_err();
            assert!(matches!(error, RegionError::TooBig { .. }), "{error}");
        }
    }
}

#[test]
fn the_kernel_may_refuse_what_the_estimate_allowed() {
    // Commit accounting is on unless the host overcommits always (mode 1).
    let mode = fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap();
    if mode.trim() != "1" {
        assert!(Mapping::pages(1 << 46, small_page_bytes()).is_err());
    }
    assert!(Mapping::pages(usize::MAX - 5, small_page_bytes()).is_err());
}

#[test]
fn the_mapping_stands_between_guards() {
    let region = Region::allocate(small_page_bytes(), HugepagePolicy::Off).unwrap();
    let start = region.base().as_ptr().addr();
    for beside in [start - 1, start + region.len()] {
        let flags = vm_flags(beside);
        assert!(
            !flags.contains(" rd ") && !flags.contains(" wr "),
            "{flags}"
        );
    }
}

#[test]
fn dropping_unmaps() {
    let mapped = || fs::read_to_string("/proc/self/statm").unwrap();
    let pages = |text: String| text.split(' ').next().unwrap().parse::<usize>().unwrap();
    let region = Region::allocate(256 << 20, HugepagePolicy::Off).unwrap();
    let with = pages(mapped());
    drop(region);
    // Other tests run beside this one, so leave room for theirs.
    assert!(pages(mapped()) + (128 << 20) / small_page_bytes() < with);
}

/// So that the kernel refuses what it cannot back, before population kills someone.
#[test]
fn a_chunk_of_a_reservation_is_charged_like_any_region() {
    let bytes = 4 * small_page_bytes();
    let range = Arc::new(Reservation::new(bytes, small_page_bytes()).unwrap());
    for _ in 0..2 {
        for region in [
            Region::allocate(bytes, HugepagePolicy::Off),
            Region::allocate_in(&range, bytes, HugepagePolicy::Off),
        ] {
            let mut region = region.unwrap();
            check(&mut region, bytes);
            let flags = vm_flags(region.base().as_ptr().addr());
            assert!(flags.contains(" ac "), "not charged: {flags}");
        }
    }
}

/// Neighbours in a reservation can become one mapping to the kernel.
#[test]
fn huge_bytes_are_counted_for_each_chunk() {
    let Some(huge) = hugepages::transparent_bytes() else {
        return;
    };
    let range = Arc::new(Reservation::new(6 * huge, huge).unwrap());
    let chunks = [1, 2, 3].map(|n| Region::transparent(Some(&range), n * huge).unwrap());
    let addresses = range.addresses();
    let all = hugepages::anon_huge_bytes(addresses.start, addresses.end);
    let counted = chunks.each_ref().map(Region::huge_bytes);
    assert_eq!(counted.iter().sum::<usize>(), all, "{counted:?}");
    assert!(chunks.iter().all(|c| c.huge_bytes() <= c.len()));
}
