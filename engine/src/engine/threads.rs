//! Starting and ending threads: each is pinned before it makes anything, and says when it is ready.

use super::build::{Built, WorkerParts};
use super::requests::{Desk, Requests};
use super::{Engine, EngineError, WorkerInfo};
use crate::config::{Plan, PoolPlan};
use crate::fabric::Fabric;
use crate::limits::{READ_SINK_BYTES_MAX, READ_SINKS};
use crate::memory::{Exposures, Pool};
use crate::sys::affinity::pin_current_thread;
use crate::sys::clock::Clock;
use crate::types::{Access, CoreId};
use crate::worker::{Service, Worker, WorkerSetup};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

type Ready = Sender<Result<(), EngineError>>;

pub(super) fn start<F, S, M>(
    built: Built<F>,
    plan: &Plan,
    service: M,
) -> Result<Engine, EngineError>
where
    F: Fabric,
    S: Service + 'static,
    M: Fn(WorkerInfo) -> S + Send + Sync + 'static,
{
    let clock = Clock::calibrated();
    let Built {
        mut control,
        workers,
        counters,
        grants,
    } = built;
    let (requests, queue) = Requests::new(control.waker());
    let (ready, readiness) = mpsc::channel();
    let count = workers.len();
    let service = Arc::new(service);
    let mut engine = Engine {
        requests,
        control: None,
        workers: Vec::with_capacity(count),
        counters,
        grants,
        groups: AtomicU64::new(0),
    };

    let core = plan.control.core;
    let ready_control = ready.clone();
    engine.control = Some(spawn("spinwire-control".into(), move || {
        settle("control", core, &ready_control)?;
        drop(ready_control);
        let mut desk = Desk::new(queue);
        control
            .run(clock, |control, notices| desk.serve(control, notices))
            .map_err(EngineError::system("wait on the control core"))?;
        Ok(control.connections())
    })?);
    for parts in workers {
        let (service, ready) = (Arc::clone(&service), ready.clone());
        let (pool, drain) = (plan.pool.clone(), plan.connection.drain_deadline);
        engine
            .workers
            .push(spawn(format!("spinwire-w{}", parts.number), move || {
                run_worker(parts, &pool, drain, clock, &*service, &ready)
            })?);
    }
    drop(ready);
    // One word from control and from each worker; the first failure ends all: dropping the engine
    // shuts down and joins.
    for _ in 0..=count {
        readiness.recv().map_err(|_| EngineError::Stopped)??;
    }
    Ok(engine)
}

fn spawn<T: Send + 'static>(
    name: String,
    body: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
) -> Result<JoinHandle<Result<T, EngineError>>, EngineError> {
    thread::Builder::new()
        .name(name)
        .spawn(body)
        .map_err(EngineError::system("start a thread"))
}

/// Pins the thread, and tells the starter how that went.
fn settle(thread: &str, core: Option<CoreId>, ready: &Ready) -> Result<(), EngineError> {
    let pinned = core.map_or(Ok(()), pin_current_thread);
    let pinned = pinned.map_err(|source| EngineError::Pin {
        thread: thread.into(),
        source,
    });
    match pinned {
        Ok(()) if thread == "control" => {
            let _ = ready.send(Ok(()));
            Ok(())
        }
        Ok(()) => Ok(()),
        Err(error) => {
            let _ = ready.send(Err(error));
            Err(EngineError::Stopped)
        }
    }
}

fn run_worker<F: Fabric, S: Service>(
    parts: WorkerParts<F>,
    pool_plan: &PoolPlan,
    close_deadline: Duration,
    clock: Clock,
    service: &impl Fn(WorkerInfo) -> S,
    ready: &Ready,
) -> Result<u32, EngineError> {
    let WorkerParts {
        number,
        plan,
        region,
        lanes,
        mailbox,
        counters,
        wake,
        devices,
    } = parts;
    settle(&format!("worker {number}"), plan.core, ready)?;
    let (slots, most) = (pool_plan.slots, pool_plan.slots_max);
    let pool = match Pool::growable(region, slots, pool_plan.slot_bytes, most) {
        Ok(pool) => pool,
        Err(source) => {
            let _ = ready.send(Err(EngineError::Pool {
                worker: number,
                source,
            }));
            return Err(EngineError::Stopped);
        }
    };
    let sinks_wanted: Vec<bool> = devices
        .iter()
        .map(|d| F::limits(d).abilities.read_sink_is_exposed)
        .collect();
    let exposures = Exposures::new(devices);
    let slot_bytes = pool_plan.slot_bytes as usize;
    let sinks = (READ_SINK_BYTES_MAX / slot_bytes).clamp(1, READ_SINKS);
    let sink = |wanted: bool| {
        let access = Access::REMOTE_WRITE;
        let expose = || exposures.expose(sinks * slot_bytes, pool_plan.hugepages, access);
        wanted.then(expose).transpose()
    };
    let read_sinks = match sinks_wanted.into_iter().map(sink).collect() {
        Ok(sinks) => sinks,
        Err(source) => {
            let _ = ready.send(Err(EngineError::ReadSinks {
                worker: number,
                source,
            }));
            return Err(EngineError::Stopped);
        }
    };
    let info = WorkerInfo {
        number,
        core: plan.core,
        buffer_bytes: pool_plan.slot_bytes,
        clock,
        expose: {
            let exposures = exposures.clone();
            Rc::new(move |bytes, hugepages, access| exposures.expose(bytes, hugepages, access))
        },
    };
    let setup = WorkerSetup {
        number,
        core: plan.core,
        lanes,
        pool: pool.clone(),
        mailbox,
        counters,
        idle: plan.idle,
        close_deadline,
        exposures,
        read_sinks,
    };
    let mut worker = Worker::new(setup, service(info));
    let _ = ready.send(Ok(()));
    worker
        .run(clock, &wake)
        .map_err(EngineError::system("wait on a worker"))?;
    // The service goes with the worker; buffers that it still held come back with it.
    drop(worker);
    Ok(pool.slots() - pool.free())
}
