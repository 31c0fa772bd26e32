//! Chunks for pools that grow: mapped and populated here, registered with the device of each lane, and
//! handed to the worker that asked.

use super::Control;
use crate::fabric::Fabric;
use crate::memory::{Growth, RegionError, Registrar};
use crate::sys::rlimit;
use crate::types::Access;
use crate::worker::{Command, PoolChunk};
use std::io;
use std::sync::Arc;

/// What a worker's pool grows by.
#[derive(Debug)]
pub struct PoolGrowth {
    growth: Growth,
    /// A failure was logged.
    complained: bool,
}

impl PoolGrowth {
    /// Chunks from `growth`, whose first is the pool as it starts.
    #[must_use]
    pub fn new(growth: Growth) -> Self {
        Self {
            growth,
            complained: false,
        }
    }
}

/// Why a pool did not grow.
#[derive(Debug, thiserror::Error)]
enum GrowError {
    #[error(transparent)]
    Memory(#[from] RegionError),
    #[error("register {bytes} B with {device}: {source}. {}", memlock())]
    Register {
        device: String,
        bytes: usize,
        source: io::Error,
    },
}

fn memlock() -> String {
    rlimit::memlock().map_or_else(
        || "Memory that may be locked is not limited: the device itself refuses".into(),
        |most| format!("Memory that may be locked is limited to {most} B (`ulimit -l`): raise it"),
    )
}

impl<F: Fabric> Control<F> {
    /// Answers a worker whose pool runs low.
    pub(super) fn grow_pool(&mut self, worker: usize) {
        let command = match self.next_chunk(worker) {
            Ok(Some(chunk)) => {
                let region = &chunk.region;
                tracing::info!(worker, bytes = region.len(), pages = %region.tier(), "a pool grows");
                Command::Grow(Box::new(chunk))
            }
            Ok(None) => Command::NotGrown { again: false },
            Err(error) => {
                if let Some(pool) = &mut self.posts[worker].link.growth
                    && !std::mem::replace(&mut pool.complained, true)
                {
                    tracing::warn!(
                        worker, %error,
                        "a pool could not grow, and its worker goes on with what it has; it tries again \
                         in silence (counter pool_growth_failures). Lower [pool] slots_max, or raise slots \
                         so that the memory is there from the start"
                    );
                }
                Command::NotGrown { again: true }
            }
        };
        self.posts[worker].send(command);
    }

    fn next_chunk(&self, worker: usize) -> Result<Option<PoolChunk<F>>, GrowError> {
        let post = &self.posts[worker];
        let Some(pool) = &post.link.growth else {
            return Ok(None);
        };
        let Some(region) = pool.growth.next_chunk()? else {
            return Ok(None);
        };
        let region = Arc::new(region);
        let mut registrations = Vec::with_capacity(post.link.lanes.len());
        for (number, lane) in post.link.lanes.iter().enumerate() {
            // A lane that the worker was told to drop has no more use for it.
            let device = lane.device_handle.as_ref();
            let registered = device.filter(|_| post.has_lane(number)).map(|device| {
                let (region, access) = (Arc::clone(&region), Access::LOCAL_WRITE);
                device.register(region, access)
            });
            registrations.push(
                registered
                    .transpose()
                    .map_err(|source| GrowError::Register {
                        device: lane.device.clone(),
                        bytes: region.len(),
                        source,
                    })?,
            );
        }
        Ok(Some(PoolChunk {
            region,
            registrations,
        }))
    }
}
