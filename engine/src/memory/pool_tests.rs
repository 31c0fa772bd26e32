//! The pool against a model, at its limits, and at the end of its life.

use super::*;
use crate::limits::{POOL_SLOTS_MAX, SLOT_BYTES_MAX};
use crate::types::Lkey;
use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::Arc;

fn region(bytes: usize) -> Arc<Region> {
    Arc::new(Region::allocate(bytes, HugepagePolicy::Off).unwrap())
}

fn pool(slots: u32, slot_bytes: u32) -> Pool {
    Pool::new(region((slots * slot_bytes) as usize), slots, slot_bytes).unwrap()
}

#[test]
fn exhaustion_is_a_value_and_is_counted() {
    let pool = pool(2, 64);
    let first = pool.alloc().unwrap();
    let second = pool.alloc().unwrap();
    assert_eq!((first.slot(), second.slot()), (0, 1));
    assert_eq!(pool.alloc().unwrap_err(), Exhausted);
    assert_eq!(pool.alloc().unwrap_err(), Exhausted);
    assert_eq!(
        (pool.free(), pool.low_water(), pool.exhausted_count()),
        (0, 0, 2)
    );
    drop(first);
    assert_eq!((pool.free(), pool.low_water()), (1, 0));
    assert_eq!(pool.alloc().unwrap().slot(), 0);
}

#[test]
fn the_slot_used_last_is_next() {
    let pool = pool(8, 64);
    let buffers: Vec<_> = (0..8).map(|_| pool.alloc().unwrap()).collect();
    let [.., fifth, _, _, _] = &buffers[..] else {
        panic!("eight buffers")
    };
    let slot = fifth.slot();
    let mut buffers = buffers;
    drop(buffers.remove(0));
    drop(buffers.remove(3));
    assert_eq!(pool.alloc().unwrap().slot(), slot);
}

#[test]
fn length_is_bounded_by_the_slot() {
    let pool = pool(2, 128);
    let mut buffer = pool.alloc().unwrap();
    assert_eq!(
        (buffer.len_bytes(), buffer.capacity(), buffer.len()),
        (0, 128, 0)
    );
    buffer.set_len(128).unwrap();
    assert!(buffer.iter().all(|byte| *byte == 0)); // zeroed at first
    let long = TooLong {
        asked: 129,
        capacity: 128,
    };
    assert_eq!(buffer.set_len(129), Err(long));
    assert_eq!(buffer.copy_from(&[1; 129]), Err(long));
    assert_eq!(buffer.len_bytes(), 128);
    buffer.copy_from(b"abc").unwrap();
    assert_eq!(&buffer[..], b"abc");
    assert!(long.to_string().contains("slot_bytes"));
}

#[test]
fn addresses_are_what_the_region_says() {
    let region = region(4 * 256);
    let base = region.base().as_ptr().addr() as u64;
    let pool = Pool::new(region, 4, 256).unwrap();
    for slot in 0..4 {
        let buffer = pool.alloc().unwrap();
        assert_eq!(buffer.addr(), base + slot * 256);
        std::mem::forget(buffer);
    }
}

#[test]
fn wrong_numbers_are_named() {
    let region = region(4096);
    let new = |slots, slot_bytes| Pool::new(Arc::clone(&region), slots, slot_bytes).unwrap_err();
    assert_eq!(new(0, 64), PoolError::Slots { slots: 0 });
    let slots = POOL_SLOTS_MAX + 1;
    assert_eq!(new(slots, 64), PoolError::Slots { slots });
    for slot_bytes in [0, 63, 100, SLOT_BYTES_MAX + 64] {
        assert_eq!(new(1, slot_bytes), PoolError::SlotBytes { slot_bytes });
    }
    let too_small = PoolError::RegionTooSmall {
        slots: 65,
        slot_bytes: 64,
        need: 4160,
        have: 4096,
    };
    assert_eq!(new(65, 64), too_small);
    assert!(Pool::new(region, 64, 64).is_ok()); // a refused pool leaves the region free
}

#[test]
fn one_pool_at_a_time_in_a_region() {
    let region = region(4096);
    let first = Pool::new(Arc::clone(&region), 4, 64).unwrap();
    let buffer = first.alloc().unwrap();
    let second = || Pool::new(Arc::clone(&region), 4, 64);
    assert_eq!(second().unwrap_err(), PoolError::RegionInUse);
    drop(first);
    assert_eq!(second().unwrap_err(), PoolError::RegionInUse); // its buffer lives
    drop(buffer);
    assert!(second().is_ok());
}

#[test]
fn a_region_outlives_its_pool_and_a_buffer_its_pool() {
    let region = region(4096);
    let weak = Arc::downgrade(&region);
    let pool = Pool::new(region, 4, 64).unwrap();
    let mut buffer = pool.alloc().unwrap();
    drop(pool);
    assert!(weak.upgrade().is_some());
    buffer.copy_from(b"still here").unwrap();
    assert_eq!(&buffer[..], b"still here");
    drop(buffer);
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_forgotten_buffer_costs_a_slot_and_keeps_the_region() {
    let region = region(4096);
    let weak = Arc::downgrade(&region);
    let pool = Pool::new(region, 2, 64).unwrap();
    std::mem::forget(pool.alloc().unwrap());
    assert_eq!(pool.free(), 1);
    drop(pool);
    assert!(weak.upgrade().is_some());
}

#[test]
fn handles_share_one_pool() {
    let pool = pool(2, 64);
    let other = pool.clone();
    let buffer = other.alloc().unwrap();
    assert_eq!(pool.free(), 1);
    drop((other, buffer));
    assert_eq!(pool.free(), 2);
}

#[derive(Clone, Debug)]
enum Op {
    Alloc(Vec<u8>),
    Drop(prop::sample::Index),
    Rewrite(prop::sample::Index, Vec<u8>),
    Forget(prop::sample::Index),
}

fn op() -> impl Strategy<Value = Op> {
    let contents = || prop::collection::vec(any::<u8>(), 0..80);
    let index = any::<prop::sample::Index>;
    prop_oneof![
        6 => contents().prop_map(Op::Alloc),
        4 => index().prop_map(Op::Drop),
        2 => (index(), contents()).prop_map(|(at, bytes)| Op::Rewrite(at, bytes)),
        1 => index().prop_map(Op::Forget),
    ]
}

proptest! {
    #[test]
    fn behaves_like_a_set_of_slots(
        slots in 1..12u32,
        ops in prop::collection::vec(op(), 0..120),
    ) {
        let pool = pool(slots, 64);
        let mut live: Vec<(Buffer, Vec<u8>)> = Vec::new();
        let mut forgotten = HashSet::new();
        let (mut low, mut refused) = (slots, 0);
        for op in ops {
            match op {
                Op::Alloc(bytes) => match pool.alloc() {
                    Ok(mut buffer) => {
                        prop_assert_eq!(buffer.copy_from(&bytes).is_ok(), bytes.len() <= 64);
                        let contents = buffer.to_vec();
                        live.push((buffer, contents));
                    }
                    Err(Exhausted) => {
                        refused += 1;
                        prop_assert_eq!(live.len() + forgotten.len(), slots as usize);
                    }
                },
                Op::Drop(at) if !live.is_empty() => {
                    drop(live.swap_remove(at.index(live.len())));
                }
                Op::Rewrite(at, bytes) if !live.is_empty() => {
                    let at = at.index(live.len());
                    let (buffer, contents) = &mut live[at];
                    if buffer.copy_from(&bytes).is_ok() {
                        *contents = bytes;
                    }
                }
                Op::Forget(at) if !live.is_empty() => {
                    let (buffer, _) = live.swap_remove(at.index(live.len()));
                    forgotten.insert(buffer.slot());
                    std::mem::forget(buffer);
                }
                Op::Drop(_) | Op::Rewrite(..) | Op::Forget(_) => {}
            }
            let mut seen = forgotten.clone();
            for (buffer, contents) in &live {
                prop_assert!(seen.insert(buffer.slot()), "slot {} twice", buffer.slot());
                prop_assert!(buffer.slot() < slots);
                prop_assert_eq!(&buffer[..], &contents[..]);
            }
            let free = slots - u32::try_from(seen.len()).unwrap();
            low = low.min(free);
            prop_assert_eq!(pool.free(), free);
            prop_assert_eq!(pool.low_water(), low);
            prop_assert_eq!(pool.exhausted_count(), refused);
        }
    }
}

/// The numbers of all slots, which are taken for that.
fn numbers(pool: &Pool) -> Vec<u32> {
    let mut all: Vec<u32> = std::iter::from_fn(|| pool.alloc().ok())
        .map(|buffer| {
            let slot = buffer.slot();
            std::mem::forget(buffer);
            slot
        })
        .collect();
    all.sort_unstable();
    all
}

#[test]
fn a_pool_grows_in_place() {
    let page = rustix::param::page_size();
    let slots = u32::try_from(page / 256).unwrap();
    let (region, growth) = Growth::begin(page, 4 * page, HugepagePolicy::Off).unwrap();
    let pool = Pool::growable(Arc::new(region), slots, 256, 4 * slots).unwrap();
    assert!(pool.is_growable());
    let held: Vec<Buffer> = (0..slots).map(|_| pool.alloc().unwrap()).collect();
    assert_eq!(pool.alloc().unwrap_err(), Exhausted);
    assert!(held.iter().all(|buffer| buffer.lkey(1).is_none()));

    let chunk = Arc::new(growth.next_chunk().unwrap().unwrap());
    assert_eq!(pool.grow(chunk, &[Lkey(8), Lkey(9)]), Ok(slots));
    assert_eq!((pool.slots(), pool.free()), (2 * slots, slots));
    let mut more = pool.alloc().unwrap();
    more.copy_from(b"hello").unwrap();
    assert_eq!(
        (more.slot(), &*more),
        (slots, &b"hello"[..]),
        "the lowest first"
    );
    assert_eq!(more.addr(), held[0].addr() + page as u64);
    assert_eq!((more.lkey(0), more.lkey(1)), (Some(Lkey(8)), Some(Lkey(9))));
    let chunk = Arc::new(growth.next_chunk().unwrap().unwrap());
    assert_eq!(pool.grow(chunk, &[Lkey(10)]), Ok(slots));
    drop(held);
    // Those that were used last are in line before those that nobody used.
    assert!(pool.alloc().unwrap().slot() < slots);
    let last: Vec<Buffer> = std::iter::from_fn(|| pool.alloc().ok()).collect();
    let of_third = last.iter().filter(|b| b.lkey(0) == Some(Lkey(10))).count();
    assert_eq!(of_third, slots as usize);
    drop((more, last));
    assert_eq!(pool.free(), 3 * slots);
}

#[test]
fn slots_that_do_not_divide_the_pages_stay_within_one() {
    // 4096 is 13 slots of 320 B less 64 B, so each border is crossed by a slot that nobody gets.
    let page = 4096;
    if rustix::param::page_size() != page {
        return;
    }
    let (region, growth) = Growth::begin(12 * 320, 4 * page, HugepagePolicy::Off).unwrap();
    let pool = Pool::growable(Arc::new(region), 12, 320, 51).unwrap();
    let mut chunks = Vec::new();
    while let Some(chunk) = growth.next_chunk().unwrap() {
        chunks.push(Arc::new(chunk));
    }
    let sizes: Vec<usize> = chunks.iter().map(|c| c.len() / page).collect();
    assert_eq!(sizes, [1, 1, 1]);
    for chunk in &chunks {
        pool.grow(Arc::clone(chunk), &[Lkey(1)]).unwrap();
    }
    let inside = |slot: &u32| {
        let (from, to) = (*slot as usize * 320, (*slot as usize + 1) * 320 - 1);
        from / page == to / page
    };
    // Slot 12 would cross the first border.
    let want: Vec<u32> = (0..51).filter(inside).collect();
    assert!(want.contains(&13) && !want.contains(&12));
    assert_eq!(numbers(&pool), want);
}

#[test]
fn only_its_own_next_chunk_is_taken() {
    let page = rustix::param::page_size();
    let begin = || Growth::begin(page, 4 * page, HugepagePolicy::Off).unwrap();
    let ((region, growth), (_other, elsewhere)) = (begin(), begin());
    let pool = Pool::growable(Arc::new(region), 4, 256, 64).unwrap();
    let next = |growth: &Growth| Arc::new(growth.next_chunk().unwrap().unwrap());
    let foreign = next(&elsewhere);
    assert_eq!(pool.grow(foreign, &[]), Err(PoolError::NotAChunk));
    let alone = Arc::new(Region::allocate(page, HugepagePolicy::Off).unwrap());
    assert_eq!(pool.grow(alone, &[]), Err(PoolError::NotAChunk));
    let (first, second) = (next(&growth), next(&growth));
    assert!(pool.grow(Arc::clone(&second), &[]).is_ok());
    assert_eq!(
        pool.grow(first, &[]),
        Err(PoolError::NotAChunk),
        "it is behind"
    );
    assert_eq!(pool.grow(second, &[]), Err(PoolError::NotAChunk), "twice");
    let fixed = Arc::new(Region::allocate(page, HugepagePolicy::Off).unwrap());
    let fixed = Pool::new(fixed, 4, 256).unwrap();
    assert!(!fixed.is_growable());
    assert_eq!(fixed.grow(next(&growth), &[]), Err(PoolError::NotAChunk));
}
