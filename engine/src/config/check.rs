//! Values against each other and against the host. Finds everything that is wrong, once.
//!
//! ```text
//!  cores:   each exists, each once          ┐
//!  lanes:   per worker and device, all of   │  a value with a fault is not concluded from:
//!           one fabric (lanes.rs, shared.rs)├─ one mistake, one fault
//!  pool:    holds a connection, fits an MR, │
//!           fits the free huge pages        ┘
//! ```
//! Defaults shrink until they fit; what the file says is taken or refused, never changed.
//!
//! Imports limits, types, the memory policy, parse, value, host, error. Imported by parse.

mod lanes;
mod shared;

use super::error::{At, ConfigErrors, Faults};
use super::host::{Host, ranges};
use super::parse::{Config, Receives, WorkerText};
use super::plan::{ConnectionPlan, ControlPlan, Plan, PoolPlan, ShmPlan, WorkerPlan};
use super::value::Field;
use super::{
    CONNECT_TIMEOUT_MS_DEFAULT, DRAIN_DEADLINE_MS_DEFAULT, RESOLVE_TIMEOUT_MS_DEFAULT,
    RETRY_COUNT_MAX,
};
use crate::limits::{
    DEVICE_SHARE_PERCENT, LANES_MAX, POOL_SLOTS_DEFAULT, POOL_SLOTS_MAX, SLOT_BYTES_DEFAULT,
    SLOT_BYTES_MAX,
};
use crate::memory::HugepagePolicy;
use crate::types::{CoreId, DeviceLimits, IdlePolicy, Transport};
use std::collections::BTreeMap;
use std::time::Duration;

// A pool that parses has a size.
const _: () = assert!(
    (POOL_SLOTS_MAX as u64)
        .checked_mul(SLOT_BYTES_MAX as u64)
        .is_some()
);

/// What is known of a lane besides its device.
#[derive(Clone, Copy)]
struct Share {
    /// Lanes of the worker.
    lanes: u32,
    /// Workers on the device.
    workers: u32,
}

pub(super) fn check(config: &Config, host: &Host) -> Result<Plan, ConfigErrors> {
    let mut check = Check {
        config,
        host,
        faults: config.faults.clone(),
    };
    check.cores();
    let devices: Vec<_> = config
        .workers()
        .iter()
        .map(|worker| check.devices(worker))
        .collect();
    let used = check.used(&devices);
    check.one_fabric(&used);
    let pool = check.pool(&used);
    let workers = config
        .workers()
        .iter()
        .zip(devices)
        .map(|(worker, devices)| check.worker(worker, &devices, &used))
        .collect();
    let plan = Plan {
        control: ControlPlan {
            core: config.control_core.get(),
        },
        workers,
        pool,
        connection: connection(config),
        shm: ShmPlan {
            dir: config.shm.dir.given().cloned(),
            uids: config.shm.uids.given().cloned(),
        },
    };
    check.faults.finish(plan)
}

struct Check<'c> {
    config: &'c Config,
    host: &'c Host,
    faults: Faults,
}

impl<'c> Check<'c> {
    fn cores(&mut self) {
        let config = self.config;
        if config.workers().is_empty() && !matches!(config.workers, Field::Bad) {
            let at = At {
                line: Some(1),
                seen: "none".to_owned(),
            };
            self.faults.push(&at, "[[worker]]", || {
                format!(
                    "at least one [[worker]] section, with a core of {}",
                    ranges(&self.host.cores)
                )
            });
        }
        for worker in config.workers() {
            if matches!(worker.core, Field::Absent) {
                let at = At {
                    line: worker.at.line,
                    seen: "none".to_owned(),
                };
                self.faults.push(&at, "[[worker]] core", || {
                    format!("a core of {}", ranges(&self.host.cores))
                });
            }
        }

        let control = std::iter::once(("[control] core", &config.control_core));
        let workers = config
            .workers()
            .iter()
            .map(|worker| ("[[worker]] core", &worker.core));
        let mut named: Vec<(&str, CoreId, &At)> = control
            .chain(workers)
            .filter_map(|(place, field)| Some((place, field.get()?, field.at()?)))
            .collect();
        named.sort_by_key(|(_, _, at)| at.line);
        let mut owners: BTreeMap<CoreId, (&str, &At)> = BTreeMap::new();
        let mut twice = Vec::new();
        for (place, core, at) in named {
            if !self.host.cores.contains(&core) {
                self.faults.push(at, place, || {
                    format!(
                        "a core of {}, which are online and allowed to this process",
                        ranges(&self.host.cores)
                    )
                });
            } else if let Some(owner) = owners.get(&core) {
                twice.push((place, at, *owner));
            } else {
                owners.insert(core, (place, at));
            }
        }
        for (place, at, (owner, owner_at)) in twice {
            self.faults.push(at, place, || {
                let free: Vec<_> = self
                    .host
                    .cores
                    .iter()
                    .copied()
                    .filter(|core| !owners.contains_key(core))
                    .collect();
                let line = owner_at
                    .line
                    .map_or_else(String::new, |line| format!(" in line {line}"));
                format!(
                    "a core that nobody else has: {owner}{line} has it already; free: {}",
                    ranges(&free)
                )
            });
        }
    }

    /// The devices of one worker; empty if that has a fault.
    fn devices(&mut self, worker: &WorkerText) -> Vec<&'c DeviceLimits> {
        let host = self.host;
        let active = || host.devices.iter().filter(|device| device.active);
        let there = || {
            let names: Vec<_> = active().map(|device| device.name.as_str()).collect();
            if names.is_empty() {
                "no RDMA device of this host has one: see `rdma link` and `ibv_devices`. Processes of \
                 one host need none: shm://NAME"
                    .to_owned()
            } else {
                format!("there is {} (`rdma link`)", names.join(", "))
            }
        };
        let names = match &worker.devices {
            Field::Bad => return Vec::new(),
            Field::Absent => {
                let at = At {
                    line: worker.at.line,
                    seen: "every one".to_owned(),
                };
                let mut all: Vec<_> = active().filter(|device| !of_shm(device)).collect();
                if all.is_empty() {
                    all.extend(active());
                }
                if all.is_empty() {
                    self.faults.push(&at, "[[worker]] devices", || {
                        format!("needs a device with an active port; {}", there())
                    });
                } else if all.len() > LANES_MAX {
                    self.faults.push(&at, "[[worker]] devices", || {
                        format!("a list of at most {LANES_MAX} devices; {}", there())
                    });
                    return Vec::new();
                }
                return all;
            }
            Field::Given { value, at } => {
                if value.len() > LANES_MAX {
                    self.faults.push(at, "[[worker]] devices", || {
                        format!(
                            "at most {LANES_MAX} devices for one worker, these are {}",
                            value.len()
                        )
                    });
                    return Vec::new();
                }
                value
            }
        };
        let mut devices: Vec<&DeviceLimits> = Vec::new();
        let mut whole = true;
        for (index, (name, at)) in names.iter().enumerate() {
            let found = host.devices.iter().find(|device| device.name == *name);
            let twice = names.iter().take(index).find(|(other, _)| other == name);
            let allowed = match (found, twice) {
                (_, Some((_, first))) => {
                    let line = first.line.unwrap_or(0);
                    format!("each device once: line {line} names it already")
                }
                (None, None) => {
                    format!("a device with an active port; {}", there())
                }
                (Some(device), None) if !device.active => {
                    format!(
                        "a device with an active port, this one has none; {}",
                        there()
                    )
                }
                (Some(device), None) => {
                    devices.push(device);
                    continue;
                }
            };
            whole = false;
            self.faults.push(at, "[[worker]] devices", || allowed);
        }
        if whole { devices } else { Vec::new() }
    }

    /// Each device that is used, and by how many workers.
    fn used(&mut self, devices: &[Vec<&'c DeviceLimits>]) -> Vec<(&'c DeviceLimits, u32)> {
        let mut used: Vec<(&DeviceLimits, u32)> = Vec::new();
        for device in devices.iter().flatten() {
            match used.iter_mut().find(|(known, _)| known.name == device.name) {
                Some((_, workers)) => *workers += 1,
                None => used.push((device, 1)),
            }
        }
        for (device, workers) in &used {
            if *workers > device.cq_max {
                let at = self.somewhere(format!("{workers} workers"));
                self.faults.push(&at, "[[worker]] devices", || {
                    format!(
                        "at most {} workers on {}, each with a CQ",
                        device.cq_max, device.name
                    )
                });
            }
        }
        used
    }

    /// An engine opens one fabric.
    fn one_fabric(&mut self, used: &[(&DeviceLimits, u32)]) {
        let mut devices = used.iter().map(|(device, _)| *device);
        let Some(shm) = devices.clone().find(|device| of_shm(device)) else {
            return;
        };
        let Some(other) = devices.find(|device| !of_shm(device)) else {
            return;
        };
        // Only who names it gets it beside others.
        let named = self.config.workers().iter().find_map(|worker| {
            let names = worker.devices.given()?;
            names.iter().find(|(name, _)| *name == shm.name)
        });
        let at = named.map_or_else(|| self.somewhere(shm.name.clone()), |(_, at)| at.clone());
        self.faults.push(&at, "[[worker]] devices", || {
            format!(
                "devices of one fabric: {} is shared memory, {} an RDMA device, and an engine has \
                 either for now; write a core map for each, and start an engine for each (a worker \
                 that names no device takes RDMA devices where there are any)",
                shm.name, other.name
            )
        });
    }

    fn pool(&mut self, used: &[(&DeviceLimits, u32)]) -> PoolPlan {
        let text = &self.config.pool;
        let slots = text.slots.or(POOL_SLOTS_DEFAULT);
        let slot_bytes = text.slot_bytes.or(SLOT_BYTES_DEFAULT);

        if let (Some(slots), Field::Given { value: recv, at }) =
            (slots, &self.config.queues.recv_depth)
            && *recv >= slots
            && self.config.queues.receives.get() != Some(Receives::Shared)
        {
            self.faults.push(at, "[queues] recv_depth", || {
                format!(
                    "at most {}, or [pool] slots = {} and more, now {slots}: a pool holds one \
                     connection's receives and one send",
                    slots - 1,
                    recv + 1
                )
            });
        }

        if let (Some(slots), Field::Given { value: most, at }) = (slots, &text.slots_max)
            && *most < slots
        {
            self.faults.push(at, "[pool] slots_max", || {
                format!("{slots} or more: the pool starts with so many slots ([pool] slots)")
            });
        }

        if let (Some(slots), Some(slot_bytes)) = (slots, slot_bytes) {
            let bytes = u64::from(slots) * u64::from(slot_bytes);
            for (device, _) in used {
                if bytes > device.mr_bytes_max {
                    let (place, at) = self.blame(&[
                        ("[pool] slots", &text.slots, slots),
                        ("[pool] slot_bytes", &text.slot_bytes, slot_bytes),
                    ]);
                    self.faults.push(&at, place, || {
                        format!(
                            "{slots} slots × {slot_bytes} B = {bytes} B, above the {} B that \
                             {} registers at once; at most {} slots",
                            device.mr_bytes_max,
                            device.name,
                            device.mr_bytes_max / u64::from(slot_bytes)
                        )
                    });
                }
            }
            self.hugepages(bytes);
        }
        PoolPlan {
            slots: slots.unwrap_or(POOL_SLOTS_DEFAULT),
            slots_max: text.slots_max.get().or(slots).unwrap_or(POOL_SLOTS_DEFAULT),
            slot_bytes: slot_bytes.unwrap_or(SLOT_BYTES_DEFAULT),
            hugepages: text.hugepages.get().unwrap_or_default(),
        }
    }

    fn hugepages(&mut self, pool_bytes: u64) {
        let Field::Given {
            value: HugepagePolicy::Require,
            at,
        } = &self.config.pool.hugepages
        else {
            return;
        };
        let (page, free) = (self.host.hugepage_bytes, self.host.free_hugepages_bytes);
        let pools = self.config.workers().len();
        if page == 0 {
            self.faults.push(at, "[pool] hugepages", || {
                "\"prefer\" or \"off\": this kernel has no huge pages of the explicit kind"
                    .to_owned()
            });
            return;
        }
        let need = pool_bytes
            .div_ceil(page)
            .saturating_mul(page)
            .saturating_mul(pools as u64);
        if need > free {
            let pages = self
                .host
                .hugepages_total
                .saturating_add((need - free).div_ceil(page));
            self.faults.push(at, "[pool] hugepages", || {
                format!(
                    "needs {need} B in pages of {page} B for {pools} pools, {free} B are free; \
                     `sysctl vm.nr_hugepages={pages}`, fewer slots, or \"prefer\""
                )
            });
        }
    }

    fn worker(
        &mut self,
        worker: &WorkerText,
        devices: &[&DeviceLimits],
        used: &[(&DeviceLimits, u32)],
    ) -> WorkerPlan {
        let receives = self.receives();
        let lanes = u32::try_from(devices.len()).unwrap_or(u32::MAX);
        let lanes = devices
            .iter()
            .filter_map(|device| {
                let workers = used
                    .iter()
                    .find(|(known, _)| known.name == device.name)
                    .map_or(1, |(_, workers)| *workers);
                let share = Share { lanes, workers };
                match receives? {
                    Receives::Own => self.lane(device, share),
                    Receives::Shared => self.shared_lane(device, share),
                }
            })
            .collect();
        WorkerPlan {
            core: worker.core.get(),
            idle: worker.idle.get().unwrap_or(IdlePolicy::Spin),
            lanes,
        }
    }

    /// The first of these keys that the file has; if none, the first with its default.
    fn blame(&self, keys: &[(&'static str, &Field<u32>, u32)]) -> (&'static str, At) {
        let given = keys
            .iter()
            .find_map(|(place, field, _)| Some((*place, field.at()?.clone())));
        given.unwrap_or_else(|| {
            let (place, value) = keys
                .first()
                .map_or(("", 0), |(place, _, value)| (*place, *value));
            (place, self.somewhere(format!("{value} (default)")))
        })
    }

    /// The line of a fault that no key made.
    fn somewhere(&self, seen: String) -> At {
        let worker = self.config.workers().first();
        At {
            line: worker.and_then(|worker| worker.at.line),
            seen,
        }
    }
}

fn of_shm(device: &DeviceLimits) -> bool {
    device.transport == Transport::Shm
}

/// The share of a device's limit that a default takes; at least 1.
fn part(limit: u32) -> u32 {
    let part = u64::from(limit) * u64::from(DEVICE_SHARE_PERCENT) / 100;
    u32::try_from(part).unwrap_or(limit).max(1)
}

fn connection(config: &Config) -> ConnectionPlan {
    let text = &config.connection;
    let millis = |field: &Field<u32>, default: u32| {
        Duration::from_millis(u64::from(field.get().unwrap_or(default)))
    };
    ConnectionPlan {
        resolve_timeout: millis(&text.resolve_timeout_ms, RESOLVE_TIMEOUT_MS_DEFAULT),
        connect_timeout: millis(&text.connect_timeout_ms, CONNECT_TIMEOUT_MS_DEFAULT),
        drain_deadline: millis(&text.drain_deadline_ms, DRAIN_DEADLINE_MS_DEFAULT),
        retry_count: text.retry_count.get().unwrap_or(RETRY_COUNT_MAX),
        rnr_retry_count: text.rnr_retry_count.get().unwrap_or(RETRY_COUNT_MAX),
    }
}
