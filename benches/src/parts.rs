//! What the parts of the datapath cost on this host: `cargo run --release -p spinwire-benches`.
//!
//! Each part runs in rounds that take turns, and the median of the rounds is shown beside the best.
//! Compare only figures of one run.

use spinwire::memory::{HugepagePolicy, Pool, Region};
use spinwire::metrics::counters;
use spinwire::ring::spsc;
use spinwire::sys::clock::Clock;
use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;

const ROUNDS: usize = 15;
const TIMES: u32 = 200_000;

type Part<'a> = (&'static str, Box<dyn FnMut() + 'a>);

fn main() -> Result<(), Box<dyn Error>> {
    let clock = Clock::calibrated();
    let region = Region::allocate(64 * 64, HugepagePolicy::Off)?;
    let pool = Pool::new(Arc::new(region), 64, 64)?;
    let (mut full, mut drain) = spsc::channel::<u64>(256);
    let (_producer, mut empty) = spsc::channel::<u64>(256);
    let (writer, _reader) = counters();
    let mut parts: Vec<Part<'_>> = vec![
        (
            "time stamp",
            Box::new(|| {
                black_box(clock.now());
            }),
        ),
        (
            "ring: empty pop",
            Box::new(|| {
                let _ = black_box(empty.pop());
            }),
        ),
        (
            "ring: push and pop",
            Box::new(|| {
                let _ = black_box(full.push(7));
                let _ = black_box(drain.pop());
            }),
        ),
        (
            "pool: alloc and drop",
            Box::new(|| drop(black_box(pool.alloc()))),
        ),
        (
            "counter: add",
            Box::new(|| writer.doorbells.add(black_box(1))),
        ),
    ];
    let mut rounds = vec![Vec::with_capacity(ROUNDS); parts.len()];
    for _ in 0..ROUNDS {
        for ((_, part), costs) in parts.iter_mut().zip(&mut rounds) {
            let began = clock.now();
            for _ in 0..TIMES {
                part();
            }
            let nanos = clock.now().since(began);
            costs.push(nanos * 100 / u64::from(TIMES));
        }
    }
    println!("{:<22} {:>10} {:>10}", "part", "median ns", "best ns");
    for ((name, _), costs) in parts.iter().zip(&mut rounds) {
        costs.sort_unstable();
        let (median, best) = (costs[ROUNDS / 2], costs[0]);
        let show = |hundredths: u64| format!("{}.{:02}", hundredths / 100, hundredths % 100);
        println!("{name:<22} {:>10} {:>10}", show(median), show(best));
    }
    Ok(())
}
