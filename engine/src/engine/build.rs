//! From a plan to the parts of an engine: regions, registrations, lanes. Nothing runs yet, so any
//! failure just drops what was made.

use super::{EngineError, WorkerGrant, timing};
use crate::config::{Plan, PoolPlan, WorkerPlan};
use crate::control::{Control, LaneLink, PoolGrowth, WorkerLink};
use crate::fabric::{Fabric, LaneSpec, QpSpec};
use crate::memory::{Growth, Region, RegionError, Registrar};
use crate::metrics::{CounterReader, CounterWriter, counters};
use crate::sys::eventfd::EventFd;
use crate::sys::rlimit;
use crate::types::{Access, IdlePolicy};
use crate::worker::{LaneCapacity, LaneSetup, WorkerEnd, mailbox};
use std::sync::Arc;

/// A worker before its thread: everything that may cross to it.
pub(super) struct WorkerParts<F: Fabric> {
    pub(super) number: u16,
    pub(super) plan: WorkerPlan,
    pub(super) region: Arc<Region>,
    pub(super) lanes: Vec<LaneSetup<F>>,
    pub(super) mailbox: WorkerEnd<F>,
    pub(super) counters: CounterWriter,
    pub(super) wake: Arc<EventFd>,
    /// The lanes' devices, in order.
    pub(super) devices: Vec<F::Device>,
}

pub(super) struct Built<F: Fabric> {
    pub(super) control: Control<F>,
    pub(super) workers: Vec<WorkerParts<F>>,
    pub(super) counters: Vec<CounterReader>,
    pub(super) grants: Vec<WorkerGrant>,
}

pub(super) fn build<F: Fabric>(mut fabric: F, plan: &Plan) -> Result<Built<F>, EngineError> {
    let (mut workers, mut links) = (Vec::new(), Vec::new());
    let (mut readers, mut grants) = (Vec::new(), Vec::new());
    for (worker, number) in plan.workers.iter().zip(0..) {
        let (parts, link, grant) = build_worker(&mut fabric, plan, worker, number)?;
        readers.push(link.counters.clone());
        grants.push(grant);
        workers.push(parts);
        links.push(link);
    }
    let control = Control::new(fabric, links, timing(plan))
        .map_err(EngineError::system("set up the control core"))?;
    Ok(Built {
        control,
        workers,
        counters: readers,
        grants,
    })
}

fn build_worker<F: Fabric>(
    fabric: &mut F,
    plan: &Plan,
    worker: &WorkerPlan,
    number: u16,
) -> Result<(WorkerParts<F>, WorkerLink<F>, WorkerGrant), EngineError> {
    let (region, growth) = memory(&plan.pool).map_err(|source| EngineError::Region {
        worker: number,
        source,
    })?;
    let region = Arc::new(region);
    let (mut setups, mut links, mut devices) = (Vec::new(), Vec::new(), Vec::new());
    for lane in &worker.lanes {
        let device = find(fabric, &lane.device)?;
        // The least access that receives need; remote access to a pool is never granted.
        let registration = device
            .register(Arc::clone(&region), Access::LOCAL_WRITE)
            .map_err(|source| register_error(number, &lane.device, region.len(), source))?;
        let spec = LaneSpec {
            shared_recv_depth: lane.shared_recv_depth,
            cq_depth: lane.cq_depth,
            events: worker.idle == IdlePolicy::Event,
        };
        let (cq, half, grant) = fabric.create_lane(&device, &spec)?;
        let capacity = LaneCapacity {
            connections: lane.connections_max,
            send_depth: lane.send_depth,
            recv_depth: lane.recv_depth,
            shared_recv_depth: lane.shared_recv_depth,
        };
        let device_handle = growth.as_ref().map(|_| device.clone());
        devices.push(device);
        setups.push(LaneSetup {
            lane: half,
            registration,
            capacity,
        });
        links.push(LaneLink {
            device: lane.device.clone(),
            cq: Some(cq),
            device_handle,
            spec: QpSpec {
                windows: 0,
                shared_receives: lane.shared_recv_depth > 0,
                send_depth: lane.send_depth,
                recv_depth: lane.recv_depth,
                inline_bytes: lane.inline_bytes,
                access: crate::types::Access::NONE,
            },
            connections_max: lane.connections_max,
            buffer_bytes: plan.pool.slot_bytes,
            grant,
        });
    }
    let grant = WorkerGrant {
        number,
        pool: region.tier(),
        pool_bytes: region.len(),
        lanes: links.iter().map(|l| l.grant.clone()).collect(),
    };
    let wake = EventFd::new().map_err(EngineError::system("make an eventfd"))?;
    let wake = Arc::new(wake);
    let (control_end, worker_end) = mailbox();
    let (writer, reader) = counters();
    let link = WorkerLink {
        end: control_end,
        wake: Arc::clone(&wake),
        lanes: links,
        counters: reader,
        growth: growth.map(PoolGrowth::new),
    };
    let parts = WorkerParts {
        number,
        plan: worker.clone(),
        region,
        lanes: setups,
        mailbox: worker_end,
        counters: writer,
        wake,
        devices,
    };
    Ok((parts, link, grant))
}

/// The pool's memory, and where more comes from if it may grow.
fn memory(pool: &PoolPlan) -> Result<(Region, Option<Growth>), RegionError> {
    let bytes = |slots: u32| {
        let bytes = u64::from(slots) * u64::from(pool.slot_bytes);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    };
    if pool.slots_max <= pool.slots {
        return Ok((Region::allocate(bytes(pool.slots), pool.hugepages)?, None));
    }
    let (region, growth) = Growth::begin(bytes(pool.slots), bytes(pool.slots_max), pool.hugepages)?;
    Ok((region, Some(growth)))
}

fn find<F: Fabric>(fabric: &F, name: &str) -> Result<F::Device, EngineError> {
    let devices = fabric.devices();
    if let Some(device) = devices.iter().find(|d| F::limits(d).name == name) {
        return Ok(device.clone());
    }
    let found: Vec<&str> = devices.iter().map(|d| F::limits(d).name.as_str()).collect();
    let found = if found.is_empty() {
        "none".into()
    } else {
        found.join(", ")
    };
    Err(EngineError::NoDevice {
        wanted: name.into(),
        found,
    })
}

fn register_error(worker: u16, device: &str, bytes: usize, source: std::io::Error) -> EngineError {
    let limit = rlimit::memlock().map_or_else(
        || "Memory that may be locked is not limited here".into(),
        |most| format!("Memory that may be locked is limited to {most} B (`ulimit -l`): raise it"),
    );
    let advice = format!("{limit}, or shrink [pool] slots or slot_bytes");
    EngineError::Register {
        worker,
        device: device.into(),
        bytes,
        source,
        advice,
    }
}
