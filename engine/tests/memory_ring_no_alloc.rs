//! Pools, rings, counters and stamps allocate nothing once they are made. Counts allocations of this
//! thread, and tests that the counter counts.

#![allow(
    unsafe_code,
    reason = "a global allocator that counts; it forwards to the system's"
)]

use spinwire::memory::{Buffer, HugepagePolicy, Pool, Region};
use spinwire::metrics::counters;
use spinwire::ring::{sleep, spsc};
use spinwire::sys::clock::Clock;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::sync::Arc;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: `GlobalAlloc` requires blocks as the layout says that never unwind: both calls forward their
// arguments unchanged to `System`, and counting in a const thread-local neither allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the same precondition as ours: a layout of non-zero size.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the same precondition as ours: `alloc` above got the block from `System`.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(f: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    f();
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(black_box(Box::new(1)))), 2);
}

#[test]
fn the_datapath_s_pieces_do_not_allocate() {
    let region = Region::allocate(64 * 4096, HugepagePolicy::Prefer).expect("64 pages");
    let pool = Pool::new(Arc::new(region), 64, 4096).expect("they fit");
    let (mut tx, mut rx) = spsc::channel::<u64>(64);
    let (mut sleeper, waker) = sleep::pair();
    let (writer, reader) = counters();
    let clock = Clock::calibrated();
    let mut held: Vec<Buffer> = Vec::with_capacity(80);
    let count = allocations(|| {
        for turn in 0..1000 {
            let start = clock.now();
            while let Ok(mut buffer) = pool.alloc() {
                buffer.copy_from(&[7; 512]).expect("512 fit 4096");
                held.push(buffer);
            }
            held.clear();
            while tx.push(turn).is_ok() {}
            tx.push_batch(&mut (0..9));
            rx.pop_batch(32, |item| writer.completions.add(item));
            while rx.pop().is_ok() {}
            sleeper.prepare();
            black_box(waker.wake_needed());
            sleeper.woke();
            black_box(reader.snapshot());
            black_box(clock.now().since(start));
        }
    });
    assert_eq!(count, 0);
    assert_eq!((pool.free(), pool.exhausted_count()), (64, 1000));
}
