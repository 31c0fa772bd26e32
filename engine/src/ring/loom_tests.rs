//! Rings and the sleep protocol under every interleaving that the memory model allows.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p spinwire --no-default-features --lib --release loom_
//! ```
//! Models are small on purpose: two threads, two or three items, a ring of one or two. The last
//! tests break the sleep protocol in each way that matters and want loom to find it, which shows that
//! the others could fail.

use super::sleep::{self, Sleeper, Waker};
use super::spsc::{Consumer, PopError, PushError, channel};
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// Pops until the producer is gone; what came, in order.
fn drain(mut rx: Consumer<Box<u32>>) -> Vec<u32> {
    let mut out = Vec::new();
    loop {
        match rx.pop() {
            Ok(item) => out.push(*item),
            Err(PopError::Empty) => thread::yield_now(),
            Err(PopError::Abandoned) => return out,
        }
    }
}

#[test]
fn loom_items_arrive_in_order_through_a_ring_of_one() {
    loom::model(|| {
        let (mut tx, rx) = channel(1);
        let producer = thread::spawn(move || {
            for i in 0..2 {
                let mut item = Box::new(i);
                while let Err(PushError::Full(back)) = tx.push(item) {
                    item = back;
                    thread::yield_now();
                }
            }
        });
        assert_eq!(drain(rx), [0, 1]);
        producer.join().unwrap();
    });
}

#[test]
fn loom_batches_meet_singles() {
    loom::model(|| {
        let (mut tx, mut rx) = channel(2);
        let producer = thread::spawn(move || {
            let mut items = (0..3).map(Box::new);
            while items.len() > 0 {
                if tx.push_batch(&mut items) == 0 {
                    thread::yield_now();
                }
            }
        });
        let mut out = Vec::new();
        rx.pop_batch(2, |item| out.push(*item));
        out.extend(drain(rx));
        assert_eq!(out, [0, 1, 2]);
        producer.join().unwrap();
    });
}

#[test]
fn loom_abandoned_is_never_said_before_the_last_item() {
    loom::model(|| {
        let (mut tx, rx) = channel(2);
        let producer = thread::spawn(move || tx.push(Box::new(5)).unwrap());
        assert_eq!(drain(rx), [5]);
        producer.join().unwrap();
    });
}

#[test]
fn loom_what_remains_is_dropped_once_whoever_leaves_last() {
    loom::model(|| {
        let (mut tx, mut rx) = channel(2);
        let item = Arc::new(());
        let mine = Arc::clone(&item);
        let producer = thread::spawn(move || {
            // Full cannot be: two slots. Abandoned gives it back and drops it here.
            let _ = tx.push(Arc::clone(&mine));
            let _ = tx.push(mine);
        });
        let _ = rx.pop();
        drop(rx);
        producer.join().unwrap();
        assert_eq!(Arc::strong_count(&item), 1);
    });
}

/// An eventfd as the protocol sees it: it counts, and waiting blocks while the count is zero.
#[derive(Clone)]
struct Bell(Arc<(Mutex<u32>, Condvar)>);

impl Bell {
    fn new() -> Self {
        Self(Arc::new((Mutex::new(0), Condvar::new())))
    }

    fn signal(&self) {
        *self.0.0.lock().unwrap() += 1;
        self.0.1.notify_one();
    }

    /// Blocks for ever if nobody signals, which loom reports as a deadlock.
    fn wait_and_drain(&self) {
        let mut count = self.0.0.lock().unwrap();
        while *count == 0 {
            count = self.0.1.wait(count).unwrap();
        }
        *count = 0;
    }
}

fn push_and_wake(items: std::ops::Range<u32>, waker: &Waker, bell: &Bell) -> Consumer<u32> {
    let (mut tx, rx) = channel(2);
    let (waker, bell) = (waker.clone(), bell.clone());
    thread::spawn(move || {
        for i in items {
            while tx.push(i).is_err() {
                thread::yield_now();
            }
            if waker.wake_needed() {
                bell.signal();
            }
        }
    });
    rx
}

/// Waits for one item the way a worker in event mode does.
fn sleep_until_item(rx: &mut Consumer<u32>, sleeper: &mut Sleeper, bell: &Bell) -> u32 {
    loop {
        if let Ok(item) = rx.pop() {
            return item;
        }
        sleeper.prepare();
        if rx.is_empty() {
            bell.wait_and_drain();
            sleeper.woke();
        } else {
            sleeper.cancel();
        }
    }
}

#[test]
fn loom_no_wake_up_is_lost() {
    loom::model(|| {
        let (mut sleeper, waker) = sleep::pair();
        let bell = Bell::new();
        let mut rx = push_and_wake(0..1, &waker, &bell);
        assert_eq!(sleep_until_item(&mut rx, &mut sleeper, &bell), 0);
    });
}

#[test]
fn loom_no_wake_up_is_lost_over_two_sleeps() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3); // keeps the run in seconds
    model.check(|| {
        let (mut sleeper, waker) = sleep::pair();
        let bell = Bell::new();
        let mut rx = push_and_wake(0..2, &waker, &bell);
        assert_eq!(sleep_until_item(&mut rx, &mut sleeper, &bell), 0);
        assert_eq!(sleep_until_item(&mut rx, &mut sleeper, &bell), 1);
    });
}

#[test]
fn loom_two_producers_wake_one_sleeper() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2); // three threads: likewise
    model.check(|| {
        let (mut sleeper, waker) = sleep::pair();
        let bell = Bell::new();
        let mut rx = [
            push_and_wake(0..1, &waker, &bell),
            push_and_wake(1..2, &waker, &bell),
        ];
        let mut sum = 0;
        let mut got = 0;
        while got < 2 {
            sleeper.prepare();
            if rx.iter().all(Consumer::is_empty) {
                bell.wait_and_drain();
                sleeper.woke();
            } else {
                sleeper.cancel();
            }
            for rx in &mut rx {
                got += rx.pop_batch(2, |item| sum += item);
            }
        }
        assert_eq!(sum, 1);
    });
}

#[test]
fn loom_one_waker_of_a_sleep_is_told() {
    loom::model(|| {
        let (mut sleeper, waker) = sleep::pair();
        sleeper.prepare();
        let other = waker.clone();
        let told = thread::spawn(move || u32::from(other.wake_needed()));
        let here = u32::from(waker.wake_needed());
        assert_eq!(here + told.join().unwrap(), 1);
    });
}

/// One push against one sleep, with the two sides given. True if loom finds an execution in which the
/// worker decides to sleep, nobody signals, and the item is in the ring.
fn sleeps_for_ever(
    decide_to_sleep: impl Fn(&AtomicBool, &Consumer<u32>) -> bool + Send + Sync + 'static,
    decide_to_wake: impl Fn(&AtomicBool) -> bool + Send + Sync + 'static,
) -> bool {
    let lost = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let found = std::sync::Arc::clone(&lost);
    let sides = std::sync::Arc::new((decide_to_sleep, decide_to_wake));
    loom::model(move || {
        let flag = Arc::new(AtomicBool::new(false));
        let (mut tx, rx) = channel(1);
        let (their_flag, their_sides) = (Arc::clone(&flag), std::sync::Arc::clone(&sides));
        let producer = thread::spawn(move || {
            tx.push(1).unwrap();
            (their_sides.1)(&their_flag)
        });
        let asleep = (sides.0)(&flag, &rx);
        let signalled = producer.join().unwrap();
        if asleep && !signalled {
            found.store(true, Ordering::Relaxed);
        }
    });
    lost.load(Ordering::Relaxed)
}

fn flag_fence_recheck(flag: &AtomicBool, rx: &Consumer<u32>) -> bool {
    flag.store(true, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    rx.is_empty()
}

fn fence_swap(flag: &AtomicBool) -> bool {
    fence(Ordering::SeqCst);
    flag.swap(false, Ordering::Relaxed)
}

fn fence_load(flag: &AtomicBool) -> bool {
    fence(Ordering::SeqCst);
    flag.load(Ordering::Relaxed)
}

#[test]
fn loom_finds_nothing_in_the_protocol_as_it_is() {
    assert!(!sleeps_for_ever(flag_fence_recheck, fence_swap));
    assert!(!sleeps_for_ever(flag_fence_recheck, fence_load));
}

#[test]
fn loom_finds_a_sleep_without_recheck() {
    let no_recheck = |flag: &AtomicBool, _: &Consumer<u32>| {
        flag.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        true
    };
    assert!(sleeps_for_ever(no_recheck, fence_load));
}

#[test]
fn loom_finds_a_recheck_that_comes_too_early() {
    let too_early = |flag: &AtomicBool, rx: &Consumer<u32>| {
        let empty = rx.is_empty();
        flag.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        empty
    };
    assert!(sleeps_for_ever(too_early, fence_load));
}

#[test]
fn loom_finds_either_fence_missing() {
    let no_fence = |flag: &AtomicBool, rx: &Consumer<u32>| {
        flag.store(true, Ordering::Relaxed);
        rx.is_empty()
    };
    assert!(sleeps_for_ever(no_fence, fence_load));
    assert!(sleeps_for_ever(flag_fence_recheck, |flag| flag.load(Ordering::Relaxed)));
}
