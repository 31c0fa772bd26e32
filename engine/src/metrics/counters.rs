//! The counters of one worker: one block, one writer, any number of readers.
//!
//! The list below is the only place to add one; block, snapshot and difference follow from it.
//! Plain std atomics rather than `crate::sync`: nothing is ordered by them, so loom has nothing to
//! check. Imports nothing of ours.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use crossbeam_utils::CachePadded;
use serde::Serialize;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread raises and others read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Raises it by `n`, wrapping around. No locked instruction: of two threads that add at once one
    /// would be lost, which is why only a [`CounterWriter`] leads here.
    #[inline]
    pub fn add(&self, n: u64) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now.wrapping_add(n), Ordering::Relaxed);
    }

    /// The number now.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! worker_counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// The block of counters that a [`CounterWriter`] derefs to.
        #[derive(Debug, Default)]
        pub struct WorkerCounters {
            $($(#[doc = $doc])+ pub $name: Counter,)+
        }

        /// What the counters said at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct CounterSnapshot {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl WorkerCounters {
            fn snapshot(&self) -> CounterSnapshot {
                CounterSnapshot { $($name: self.$name.get(),)+ }
            }
        }

        impl CounterSnapshot {
            /// What was counted after `earlier`.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name.wrapping_sub(earlier.$name),)+ }
            }

            /// Names and values, in order, for whoever prints or exports them.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }
        }
    };
}

worker_counters! {
    /// Turns that found something to do.
    turns_busy,
    /// Turns that found nothing.
    turns_idle,
    /// Times the worker slept in event mode.
    sleeps,
    /// Completions taken from CQs, failed ones included.
    completions,
    /// Completions with an error status, flushes included.
    completions_failed,
    /// Sends, one-sided operations and markers posted.
    sends_posted,
    /// Payload bytes of what was posted.
    send_bytes,
    /// Sends whose bytes went inline in the work request.
    inline_sends,
    /// Doorbells rung for sends; `sends_posted / doorbells` is the batching.
    doorbells,
    /// Receives posted.
    recvs_posted,
    /// Doorbells rung for receives.
    recv_doorbells,
    /// Messages received.
    messages_received,
    /// Payload bytes received.
    recv_bytes,
    /// Times the pool had no free slot.
    pool_exhausted,
    /// Times the pool grew.
    pool_growths,
    /// Times the pool was to grow and could not.
    pool_growth_failures,
    /// Posts refused because the send queue was full.
    would_block,
    /// Connections handed to the worker by the control core.
    handovers,
}

/// Makes the counters of one worker, all zero.
///
/// ```
/// let (writer, reader) = spinwire::metrics::counters();
/// let before = reader.snapshot();
/// writer.doorbells.add(1);
/// assert_eq!(reader.snapshot().since(&before).doorbells, 1);
/// ```
#[must_use]
pub fn counters() -> (CounterWriter, CounterReader) {
    let block = Arc::new(CachePadded::new(WorkerCounters::default()));
    let reader = CounterReader(Arc::clone(&block));
    let writer = CounterWriter {
        block,
        one_thread: PhantomData,
    };
    (writer, reader)
}

/// The worker's side. It can move to the worker's thread; it cannot be cloned or shared:
/// ```compile_fail,E0277
/// fn share<T: Sync>() {}
/// share::<spinwire::metrics::CounterWriter>();
/// ```
/// ```compile_fail,E0599
/// let _two = spinwire::metrics::counters().0.clone();
/// ```
#[derive(Debug)]
pub struct CounterWriter {
    block: Arc<CachePadded<WorkerCounters>>,
    /// Takes `Sync` away.
    one_thread: PhantomData<Cell<()>>,
}

impl Deref for CounterWriter {
    type Target = WorkerCounters;

    #[inline]
    fn deref(&self) -> &WorkerCounters {
        &self.block
    }
}

/// Everyone else's side.
#[derive(Clone, Debug)]
pub struct CounterReader(Arc<CachePadded<WorkerCounters>>);

impl CounterReader {
    /// What the counters say now. Each is read by itself, so two may be some additions apart.
    #[must_use]
    pub fn snapshot(&self) -> CounterSnapshot {
        self.0.snapshot()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_what_the_writer_added() {
        let (writer, reader) = counters();
        writer.sends_posted.add(3);
        writer.send_bytes.add(4096);
        let first = reader.snapshot();
        assert_eq!((first.sends_posted, first.send_bytes), (3, 4096));
        writer.sends_posted.add(2);
        let delta = reader.clone().snapshot().since(&first);
        let only = CounterSnapshot {
            sends_posted: 2,
            ..CounterSnapshot::default()
        };
        assert_eq!(delta, only);
        assert_eq!(writer.sends_posted.get(), 5);
    }

    #[test]
    fn counts_across_threads() {
        fn shared<T: Send + Sync + Clone>(_: &T) {}
        let (writer, reader) = counters();
        shared(&reader);
        let worker = std::thread::Builder::new()
            .spawn(move || (0..1000).for_each(|_| writer.turns_busy.add(1)))
            .unwrap();
        worker.join().unwrap();
        assert_eq!(reader.snapshot().turns_busy, 1000);
    }

    #[test]
    fn wraps_around() {
        let (writer, reader) = counters();
        writer.recv_bytes.add(u64::MAX);
        let before = reader.snapshot();
        writer.recv_bytes.add(5);
        assert_eq!(reader.snapshot().since(&before).recv_bytes, 5);
    }

    #[test]
    fn names_and_json_agree() {
        let (writer, reader) = counters();
        writer.handovers.add(7);
        let snapshot = reader.snapshot();
        let json = serde_json::to_value(snapshot).unwrap();
        let mut names = 0;
        for (name, value) in snapshot.iter() {
            assert_eq!(json[name], value);
            names += 1;
        }
        assert_eq!(names, json.as_object().unwrap().len());
        assert_eq!(names, 18);
        assert_eq!(json["handovers"], 7);
    }
}
