//! The ring against a `VecDeque`, against drops and panics, and between two real threads.

use super::spsc::{Consumer, PopError, Producer, PushError, channel};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread;

#[test]
fn fifo_until_full() {
    let (mut tx, mut rx) = channel(2);
    assert_eq!((tx.capacity(), rx.capacity()), (2, 2));
    assert_eq!(rx.pop(), Err(PopError::Empty));
    assert_eq!(tx.push(1), Ok(()));
    assert_eq!(tx.push(2), Ok(()));
    assert_eq!(tx.push(3), Err(PushError::Full(3)));
    assert_eq!((tx.len(), tx.slots(), rx.len()), (2, 0, 2));
    assert_eq!(rx.pop(), Ok(1));
    assert_eq!(tx.push(3), Ok(()));
    assert_eq!((rx.pop(), rx.pop()), (Ok(2), Ok(3)));
    assert!(tx.is_empty() && rx.is_empty());
}

#[test]
fn capacity_is_rounded_up() {
    for (asked, had) in [(1, 1), (2, 2), (3, 4), (1000, 1024)] {
        assert_eq!(channel::<u8>(asked).0.capacity(), had);
    }
}

#[test]
#[should_panic(expected = "capacity from 1")]
fn capacity_of_zero_panics() {
    let _ = channel::<u8>(0);
}

#[test]
fn capacity_of_one_works() {
    let (mut tx, mut rx) = channel(1);
    for i in 0..5 {
        assert_eq!(tx.push(i), Ok(()));
        assert_eq!(tx.push(9), Err(PushError::Full(9)));
        assert_eq!(rx.pop(), Ok(i));
        assert_eq!(rx.pop(), Err(PopError::Empty));
    }
}

#[test]
fn abandonment_is_told_after_the_last_item() {
    let (mut tx, mut rx) = channel(4);
    tx.push(7).unwrap();
    drop(tx);
    assert!(rx.is_abandoned());
    assert_eq!(rx.pop(), Ok(7));
    assert_eq!(rx.pop(), Err(PopError::Abandoned));
    assert_eq!(rx.pop_batch(8, |_| ()), 0);
}

#[test]
fn abandonment_gives_the_item_back() {
    let (mut tx, rx) = channel(4);
    drop(rx);
    assert!(tx.is_abandoned());
    let refused = tx.push(String::from("back")).unwrap_err();
    assert!(matches!(&refused, PushError::Abandoned(_)));
    assert_eq!(refused.into_inner(), "back");
    let mut items = ["a".to_owned(), "b".to_owned()].into_iter();
    assert_eq!(tx.push_batch(&mut items), 0);
    assert_eq!(items.len(), 2);
}

#[test]
fn a_batch_takes_only_what_fits() {
    let (mut tx, mut rx) = channel(4);
    let mut items = 0..10;
    assert_eq!(tx.push_batch(&mut items), 4);
    assert_eq!(items.start, 4);
    assert_eq!(tx.push_batch(&mut items), 0);
    let mut out = Vec::new();
    assert_eq!(rx.pop_batch(3, |i| out.push(i)), 3);
    assert_eq!(tx.push_batch(&mut items), 3);
    assert_eq!(rx.pop_batch(usize::MAX, |i| out.push(i)), 4);
    assert_eq!(out, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(rx.pop_batch(0, |_: i32| ()), 0);
}

type Log = Arc<Mutex<Vec<u32>>>;

/// Writes its number into a log when dropped.
struct Item(Log, u32);

impl Drop for Item {
    fn drop(&mut self) {
        self.0.lock().expect("no panic under the lock").push(self.1);
    }
}

fn ring_of_items(count: u32) -> (Producer<Item>, Consumer<Item>, impl Fn() -> Vec<u32>) {
    let log = Log::default();
    let (mut tx, rx) = channel(8);
    for i in 0..count {
        assert!(tx.push(Item(Arc::clone(&log), i)).is_ok());
    }
    (tx, rx, move || {
        log.lock().expect("no panic under the lock").clone()
    })
}

#[test]
fn what_remains_is_dropped_once() {
    let (tx, mut rx, log) = ring_of_items(5);
    drop(rx.pop());
    assert_eq!(log(), [0]);
    drop(rx);
    assert_eq!(log(), [0]); // the producer still holds the ring
    drop(tx);
    assert_eq!(log(), [0, 1, 2, 3, 4]);
}

#[test]
fn a_panic_in_pop_batch_neither_loses_nor_doubles() {
    let (tx, mut rx, log) = ring_of_items(5);
    let mut given = 0;
    let result = catch_unwind(AssertUnwindSafe(|| {
        rx.pop_batch(5, |_item| {
            given += 1;
            assert!(given < 3, "planned");
        })
    }));
    assert!(result.is_err());
    assert_eq!(log(), [0, 1, 2]);
    assert_eq!((rx.len(), tx.slots()), (2, 6)); // the slots of the three are free again
    assert_eq!(rx.pop_batch(5, drop), 2);
    assert_eq!(log(), [0, 1, 2, 3, 4]);
    drop((tx, rx));
    assert_eq!(log().len(), 5);
}

#[test]
fn a_panic_in_the_iterator_keeps_what_it_gave() {
    let (mut tx, mut rx) = channel(8);
    let mut items = (0..).inspect(|i| assert!(*i < 3, "planned"));
    assert!(catch_unwind(AssertUnwindSafe(|| tx.push_batch(&mut items))).is_err());
    let mut out = Vec::new();
    assert_eq!(rx.pop_batch(8, |i| out.push(i)), 3);
    assert_eq!(out, [0, 1, 2]);
}

#[test]
fn positions_may_wrap_around() {
    let (mut tx, mut rx) = super::spsc::channel_at(4, usize::MAX - 2);
    for i in 0..100 {
        assert_eq!(tx.push(i), Ok(()));
        assert_eq!(tx.push(i + 1000), Ok(()));
        assert_eq!(tx.len(), 2);
        assert_eq!((rx.pop(), rx.pop()), (Ok(i), Ok(i + 1000)));
    }
    assert_eq!(tx.push_batch(&mut (0..9)), 4);
    assert_eq!((tx.slots(), rx.len()), (0, 4));
}

#[test]
fn a_million_items_keep_their_order() {
    const ITEMS: u64 = 1_000_000;
    let (mut tx, mut rx) = channel(256);
    let producer = thread::spawn(move || {
        let mut items = 0..ITEMS;
        while items.start < ITEMS {
            // Singles and batches in turn, so that both meet both.
            if items.start.is_multiple_of(3) {
                match tx.push(items.start) {
                    Ok(()) => items.start += 1,
                    Err(PushError::Full(_)) => thread::yield_now(),
                    Err(PushError::Abandoned(_)) => panic!("the consumer never leaves first"),
                }
            } else if tx.push_batch(&mut items) == 0 {
                thread::yield_now();
            }
        }
    });
    let mut expected = 0;
    loop {
        match rx.pop() {
            Ok(item) => {
                assert_eq!(item, expected);
                expected += 1;
            }
            Err(PopError::Empty) => thread::yield_now(),
            Err(PopError::Abandoned) => break,
        }
        rx.pop_batch(16, |item| {
            assert_eq!(item, expected);
            expected += 1;
        });
    }
    assert_eq!(expected, ITEMS);
    producer.join().unwrap();
}

#[test]
fn a_producer_learns_that_the_consumer_left() {
    let (mut tx, mut rx) = channel(16);
    let consumer = thread::spawn(move || {
        while rx.pop().is_err() {
            thread::yield_now();
        }
    });
    let refused = loop {
        match tx.push(1) {
            Ok(()) => {}
            Err(PushError::Full(_)) => thread::yield_now(),
            Err(PushError::Abandoned(item)) => break item,
        }
    };
    assert_eq!(refused, 1);
    consumer.join().unwrap();
}

#[derive(Clone, Debug)]
enum Op {
    Push,
    PushBatch(usize),
    Pop,
    PopBatch(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        Just(Op::Push),
        (0..20usize).prop_map(Op::PushBatch),
        Just(Op::Pop),
        (0..20usize).prop_map(Op::PopBatch),
    ]
}

proptest! {
    #[test]
    fn behaves_like_a_bounded_queue(
        capacity in 1..17usize,
        start in prop_oneof![Just(0), Just(usize::MAX - 7), any::<usize>()],
        ops in prop::collection::vec(op(), 0..200),
    ) {
        let (mut tx, mut rx) = super::spsc::channel_at(capacity, start);
        let capacity = capacity.next_power_of_two();
        let mut model = VecDeque::new();
        let mut next = 0u32;
        for op in ops {
            match op {
                Op::Push => {
                    let pushed = tx.push(Box::new(next));
                    if model.len() < capacity {
                        prop_assert_eq!(pushed, Ok(()));
                        model.push_back(next);
                    } else {
                        prop_assert_eq!(pushed, Err(PushError::Full(Box::new(next))));
                    }
                    next += 1;
                }
                Op::PushBatch(n) => {
                    let fits = n.min(capacity - model.len());
                    let mut items = (next..).take(n).map(Box::new);
                    prop_assert_eq!(tx.push_batch(&mut items), fits);
                    prop_assert_eq!(items.count(), n - fits);
                    model.extend((next..).take(fits));
                    next += 20;
                }
                Op::Pop => prop_assert_eq!(rx.pop().ok().map(|b| *b), model.pop_front()),
                Op::PopBatch(n) => {
                    let mut out = Vec::new();
                    let count = rx.pop_batch(n, |b| out.push(*b));
                    prop_assert_eq!(count, n.min(model.len()));
                    prop_assert_eq!(out, model.drain(..count).collect::<Vec<_>>());
                }
            }
            prop_assert_eq!(tx.len(), model.len());
            prop_assert_eq!(rx.len(), model.len());
            prop_assert_eq!(tx.slots(), capacity - model.len());
            prop_assert_eq!(rx.is_empty(), model.is_empty());
        }
    }
}
