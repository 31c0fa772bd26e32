//! A pool that grows: the worker asks, control maps and registers a chunk, the worker takes it.
//!
//! ```text
//!  few slots free ─► PoolLow ─► control: map, populate, register with every lane's device
//!                               Grow(chunk) ─► Pool::grow: its slots are free
//!                               NotGrown ────► go on with what there is; ask again later, or never
//! ```
//! Asked once until it is answered. Looked at where receives are posted, which an idle worker does too now
//! and then, so that neither a message nor an idle turn pays for it. Imports memory, mailbox.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::{Event, PoolChunk, Service, Worker};
use crate::fabric::Fabric;
use crate::limits::{LANES_MAX, POOL_GROW_RETRY_MS, POOL_LOW_SHARE};
use crate::memory::Registration;
use crate::types::{Lkey, Nanos};
use std::sync::Arc;
use std::time::Duration;

/// Whether a worker may ask for more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growing {
    /// There is no more to be had.
    Off,
    /// When little is free.
    Ready,
    /// It has asked.
    Asked,
    /// It was refused, and may ask again then.
    After(Nanos),
}

impl<F: Fabric, S: Service> Worker<F, S> {
    /// Asks for more memory where little is left.
    #[inline]
    pub(super) fn watch_pool(&mut self) {
        if self.growing != Growing::Off {
            self.ask_for_memory();
        }
    }

    #[cold]
    fn ask_for_memory(&mut self) {
        let may = match self.growing {
            Growing::Ready => true,
            Growing::After(time) => self.core.now >= time,
            Growing::Off | Growing::Asked => false,
        };
        let pool = &self.core.pool;
        if may && pool.free() <= pool.slots() / POOL_LOW_SHARE {
            self.growing = Growing::Asked;
            self.outbox.push_back(Event::PoolLow);
        }
    }

    /// Takes a chunk. Nothing is allocated: the tables have room for every chunk that can come.
    #[cold]
    pub(super) fn grow(&mut self, chunk: Box<PoolChunk<F>>) {
        let mut lkeys = [Lkey(0); LANES_MAX];
        for (lkey, registration) in lkeys.iter_mut().zip(&chunk.registrations) {
            if let Some(registration) = registration {
                *lkey = registration.lkey();
            }
        }
        match self.core.pool.grow(Arc::clone(&chunk.region), &lkeys) {
            Ok(_) => {
                self.chunks.push(chunk);
                self.core.grown = true;
                self.core.counters.pool_growths.add(1);
                self.growing = Growing::Ready;
                // Whoever waits for slots need not wait for a message.
                self.repost_due = true;
            }
            Err(_) => self.not_grown(false),
        }
    }

    #[cold]
    pub(super) fn not_grown(&mut self, again: bool) {
        self.growing = Growing::Off;
        if again {
            let retry = Duration::from_millis(POOL_GROW_RETRY_MS);
            self.growing = Growing::After(self.core.now + retry);
            self.core.counters.pool_growth_failures.add(1);
        }
    }
}
