//! Two workers and the control core in one thread, turned by hand: how an embedder with loops of his
//! own would, and so that what is counted is one worker's turns and nothing else.
//!
//! ```text
//!  near: Worker<F, S>  ◄── a fabric ──►  far: Worker<F, Far>
//!        counted                           sends what it is told, swallows what it gets
//! ```
//! The fabric is this crate's wire, or shared memory with both its ends here. Imported by scenarios.

use crate::valgrind::toggle_counting;
use crate::wire::{FAR, NEAR, Wire};
use spinwire::control::{Control, LaneLink, Offer, Timing, Welcome, WorkerLink};
use spinwire::fabric::shm::{DEVICE, Settings, Shm};
use spinwire::fabric::{Endpoint, Fabric, LaneSpec, QpSpec};
use spinwire::memory::{
    ExposedMemory, Exposures, HugepagePolicy, Pool, Region, Registrar, Registration,
};
use spinwire::metrics::counters;
use spinwire::sys::eventfd::EventFd;
use spinwire::types::{Access, IdlePolicy, Nanos};
use spinwire::worker::{
    ConnId, Io, LaneCapacity, LaneSetup, Message, Peer, Service, Token, Turn, Worker, WorkerSetup,
    mailbox,
};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

pub(crate) type Fallible<T> = Result<T, Box<dyn Error>>;

/// Bytes of a pool slot.
const SLOT_BYTES: u32 = 256;
/// Rounds in which everything must have come about.
const PATIENCE: usize = 100_000;
/// Connections that are made together.
const CONNECT_BATCH: usize = 64;

/// Workers by their numbers: who connects and is counted, and who accepts.
const NEAR_WORKER: u16 = 0;
const FAR_WORKER: u16 = 1;

/// A fabric that has both ends in this thread.
pub(crate) trait Field: Fabric + Sized {
    /// Devices of the side that is counted, and of its peer.
    const DEVICES: (&'static str, &'static str);
    /// With the directory that it needs, if any.
    fn open() -> Fallible<(Self, Option<TempDir>)>;
}

impl Field for Wire {
    const DEVICES: (&'static str, &'static str) = (NEAR, FAR);
    fn open() -> Fallible<(Self, Option<TempDir>)> {
        Ok((Self::new()?, None))
    }
}

impl Field for Shm {
    const DEVICES: (&'static str, &'static str) = (DEVICE, DEVICE);
    fn open() -> Fallible<(Self, Option<TempDir>)> {
        let names = tempfile::tempdir()?;
        let settings = Settings {
            dir: Some(names.path().into()),
            ..Settings::default()
        };
        Ok((Self::open(settings)?, Some(names)))
    }
}

/// How many connections, and how deep their queues are.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) connections: u32,
    pub(crate) depth: u32,
}

/// A service that a scenario counts.
pub(crate) trait Counted: Service {
    /// Connections that it has.
    fn connections(&self) -> usize;
}

/// The peer: sends as many messages as it is told in its next turn, and keeps nothing.
#[derive(Debug, Default)]
pub(crate) struct Far {
    conns: Vec<ConnId>,
    /// Messages to send in the next turn, on the first connection.
    pub(crate) to_send: u32,
    /// Messages that came.
    pub(crate) received: u64,
}

/// What every message carries.
pub(crate) const PAYLOAD: [u8; 8] = *b"spinwire";

impl Service for Far {
    fn connected(&mut self, _: &mut Io<'_>, conn: ConnId, _: &Peer) {
        self.conns.push(conn);
    }
    fn message(&mut self, _: &mut Io<'_>, _: ConnId, message: Message) {
        assert_eq!(*message, PAYLOAD, "a message is what was sent");
        self.received += 1;
    }
    fn turn(&mut self, io: &mut Io<'_>) -> Turn {
        for _ in 0..std::mem::take(&mut self.to_send) {
            let mut buffer = io.alloc().expect("the peer's pool is large enough");
            buffer.copy_from(&PAYLOAD).expect("it fits");
            let sent = io.send(self.conns[0], buffer, Token::default());
            sent.expect("the peer's queue has room");
        }
        Turn::Idle
    }
}

struct Side<F: Fabric, S: Service> {
    worker: Worker<F, S>,
    pool: Pool,
    exposures: Exposures<F::Device>,
}

/// Both workers and control, connected.
pub(crate) struct Rig<F: Field, S: Counted> {
    control: Control<F>,
    near: Side<F, S>,
    far: Side<F, Far>,
    now: Nanos,
    /// Removed at the end.
    _names: Option<TempDir>,
}

impl<F: Field, S: Counted> Rig<F, S> {
    /// Makes both sides and every connection.
    pub(crate) fn new(size: Size, service: S) -> Fallible<Self> {
        let (mut fabric, names) = <F as Field>::open()?;
        let (near_name, far_name) = F::DEVICES;
        let (near, near_link) = side(&mut fabric, NEAR_WORKER, near_name, size, service)?;
        let (far, far_link) = side(&mut fabric, FAR_WORKER, far_name, size, Far::default())?;
        let timing = Timing {
            resolve: Duration::from_secs(1),
            connect: Duration::from_secs(10),
            drain: Duration::from_secs(1),
            retry_count: 7,
            rnr_retry_count: 7,
        };
        let control = Control::new(fabric, vec![near_link, far_link], timing)?;
        let mut rig = Self {
            control,
            near,
            far,
            now: Nanos(1_000_000_000),
            _names: names,
        };
        rig.connect(size.connections as usize)?;
        Ok(rig)
    }

    fn connect(&mut self, connections: usize) -> Fallible<()> {
        let at = Endpoint::Shm("far".into());
        let offer = |worker| Offer {
            access: Access::REMOTE_WRITE,
            worker: Some(worker),
            ..Offer::default()
        };
        self.control.listen(&at, Welcome::from(offer(FAR_WORKER)))?;
        let mut made = 0;
        while made < connections {
            let next = connections.min(made + CONNECT_BATCH);
            for _ in made..next {
                self.control.connect(&at, offer(NEAR_WORKER))?;
            }
            made = next;
            self.turn_until("connect", |rig| {
                rig.near().connections() == made && rig.far().conns.len() == made
            })?;
        }
        // Until nothing moves any more.
        for _ in 0..4 {
            self.turn_all();
        }
        Ok(())
    }

    fn turn_all(&mut self) {
        let now = self.tick();
        self.control.turn(now);
        self.near.worker.turn(now);
        self.far.worker.turn(now);
        while self.control.take_notice().is_some() {}
    }

    /// Turns everything until that is so.
    pub(crate) fn turn_until(
        &mut self,
        what: &str,
        done: impl Fn(&mut Self) -> bool,
    ) -> Fallible<()> {
        for _ in 0..PATIENCE {
            self.turn_all();
            if done(self) {
                return Ok(());
            }
        }
        Err(format!("the workers did not {what}").into())
    }

    fn tick(&mut self) -> Nanos {
        self.now = self.now + Duration::from_micros(1);
        self.now
    }

    /// The service that is counted.
    pub(crate) fn near(&mut self) -> &mut S {
        self.near.worker.service()
    }

    /// Its peer.
    pub(crate) fn far(&mut self) -> &mut Far {
        self.far.worker.service()
    }

    /// Memory of the peer's that the near side may write.
    pub(crate) fn expose(&self, bytes: usize) -> Fallible<ExposedMemory> {
        let exposures = &self.far.exposures;
        Ok(exposures.expose(bytes, HugepagePolicy::Off, Access::REMOTE_WRITE)?)
    }

    /// One turn of the near side.
    pub(crate) fn turn(&mut self) {
        let now = self.tick();
        self.near.worker.turn(now);
    }

    /// One turn of the near side, counted.
    pub(crate) fn turn_counted(&mut self) {
        let now = self.tick();
        counted(&mut self.near.worker, now);
    }

    /// One turn of the near side, counted as far as its service is asked for work of its own.
    pub(crate) fn turn_counted_to_service(&mut self) {
        let now = self.tick();
        toggle_counting();
        self.near.worker.turn(now);
    }

    /// One turn of the peer.
    pub(crate) fn turn_far(&mut self) {
        let now = self.tick();
        self.far.worker.turn(now);
    }

    /// Ends every connection: the books balance, or what was counted was not what it seems.
    pub(crate) fn end(mut self) -> Fallible<()> {
        self.control.shutdown();
        self.turn_until("end", |rig| {
            rig.control.is_done() || (rig.near.worker.is_done() && rig.far.worker.is_done())
        })?;
        for pool in [&self.near.pool, &self.far.pool] {
            if pool.free() != pool.slots() {
                let missing = pool.slots() - pool.free();
                return Err(format!("{missing} slots did not come back").into());
            }
        }
        Ok(())
    }
}

/// Never inlined: what the caller does stays outside.
#[inline(never)]
fn counted<F: Fabric, S: Service>(worker: &mut Worker<F, S>, now: Nanos) {
    toggle_counting();
    worker.turn(now);
    toggle_counting();
}

fn side<F: Fabric, S: Service>(
    fabric: &mut F,
    number: u16,
    name: &str,
    size: Size,
    service: S,
) -> Fallible<(Side<F, S>, WorkerLink<F>)> {
    let mut devices = fabric.devices().into_iter();
    let device = devices.find(|d| F::limits(d).name == name);
    let device = device.ok_or("the fabric has no such device")?;
    let (cq, lane, grant) = fabric.create_lane(
        &device,
        &LaneSpec {
            cq_depth: 2 * size.connections * size.depth,
            events: false,
            shared_recv_depth: 0,
        },
    )?;
    // All receives, all sends, and as much again for what a service holds.
    let slots = 4 * size.connections * size.depth;
    let region = Region::allocate((slots * SLOT_BYTES) as usize, HugepagePolicy::Off)?;
    let region = Arc::new(region);
    let registration = device.register(Arc::clone(&region), Access::LOCAL_WRITE)?;
    debug_assert!(registration.lkey().0 != 0);
    let (control_end, worker_end) = mailbox();
    let (writer, reader) = counters();
    let exposures = Exposures::new(vec![device]);
    let pool = Pool::new(region, slots, SLOT_BYTES)?;
    let setup = WorkerSetup {
        number,
        core: None,
        lanes: vec![LaneSetup {
            lane,
            registration,
            capacity: LaneCapacity {
                connections: size.connections,
                send_depth: size.depth,
                recv_depth: size.depth,
                shared_recv_depth: 0,
            },
        }],
        pool: pool.clone(),
        mailbox: worker_end,
        counters: writer,
        idle: IdlePolicy::Spin,
        close_deadline: Duration::from_secs(1),
        exposures: exposures.clone(),
        read_sinks: Vec::new(),
    };
    let link = WorkerLink {
        end: control_end,
        wake: Arc::new(EventFd::new()?),
        lanes: vec![LaneLink {
            device: name.into(),
            cq: Some(cq),
            device_handle: None,
            spec: QpSpec {
                send_depth: size.depth,
                recv_depth: size.depth,
                shared_receives: false,
                windows: 0,
                inline_bytes: 64,
                access: Access::NONE,
            },
            connections_max: size.connections,
            buffer_bytes: SLOT_BYTES,
            grant,
        }],
        counters: reader,
        growth: None,
    };
    let side = Side {
        worker: Worker::new(setup, service),
        pool,
        exposures,
    };
    Ok((side, link))
}
