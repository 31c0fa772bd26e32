//! Pools, rings, counters and stamps allocate nothing once they are made.

mod counting;

use counting::allocations;
use spinwire::memory::{Buffer, HugepagePolicy, Pool, Region};
use spinwire::metrics::counters;
use spinwire::ring::{sleep, spsc};
use spinwire::sys::clock::Clock;
use std::hint::black_box;
use std::sync::Arc;

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
