//! Two workers and their control cores, stepped by hand on a faulty fabric: whatever fails, every token
//! comes back once, every buffer returns, messages come in order, and outcomes are true.
//!
//! ```text
//!  Step… ─► Side 0: Control, Worker<Chatter> ─► Fault<Pair> ─┐
//!           Side 1: Control, Worker<Chatter> ─► Fault<Pair> ─┴─ Hub
//! ```
//! Time moves as the steps say. A failure prints the steps and the seed of the faults.

mod service;

use proptest::prelude::*;
use service::{Chatter, Ledger, Order, WORDS};
use spinwire::control::{Control, LaneLink, Offer, Timing, Welcome, WorkerLink};
use spinwire::fabric::fault::{Fault, Profile};
use spinwire::fabric::pair::{Alive, Hub, Pair};
use spinwire::fabric::{Endpoint, Fabric, LaneSpec, PrivateData, QpSpec};
use spinwire::memory::{Exposures, HugepagePolicy, Pool, Region, Registrar};
use spinwire::sys::eventfd::EventFd;
use spinwire::types::{Access, IdlePolicy, Nanos};
use spinwire::worker::{LaneCapacity, LaneSetup, Outcome, Worker, WorkerSetup, mailbox};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

type Fabrics = Fault<Pair>;

const DEPTH: u32 = 8;
const CONNECTIONS: u32 = 4;
const SLOTS: u32 = 64;
const SLOT_BYTES: u32 = 512;
const TIMING: Timing = Timing {
    resolve: Duration::from_millis(200),
    connect: Duration::from_millis(300),
    drain: Duration::from_millis(50),
    retry_count: 7,
    rnr_retry_count: 7,
};
/// Rounds after which nothing that is only late is left.
const LATE: usize = 200;

/// One end.
struct Side {
    control: Control<Fabrics>,
    worker: Worker<Fabrics, Chatter>,
    pool: Pool,
}

fn access() -> Access {
    Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC
}

fn name(side: usize) -> Endpoint {
    Endpoint::Shm(format!("side{side}"))
}

impl Side {
    fn new(mut fabric: Fabrics, ledger: &Rc<RefCell<Ledger>>) -> Self {
        let device = fabric.devices().remove(0);
        let spec = LaneSpec {
            cq_depth: 2 * DEPTH * CONNECTIONS,
            events: false,
            shared_recv_depth: 0,
        };
        let (cq, lane, grant) = fabric.create_lane(&device, &spec).expect("a lane");
        let bytes = (SLOTS * SLOT_BYTES) as usize;
        let region = Arc::new(Region::allocate(bytes, HugepagePolicy::Off).expect("memory"));
        let registration = device.register(Arc::clone(&region), Access::LOCAL_WRITE);
        let pool = Pool::new(region, SLOTS, SLOT_BYTES).expect("a pool");
        let exposures = Exposures::new(vec![device]);
        let memory = exposures.expose(8 * WORDS, HugepagePolicy::Off, access());
        let (control_end, worker_end) = mailbox();
        let (writer, counters) = spinwire::metrics::counters();
        let setup = WorkerSetup {
            number: 0,
            core: None,
            lanes: vec![LaneSetup {
                lane,
                registration: registration.expect("registered"),
                capacity: LaneCapacity {
                    connections: CONNECTIONS,
                    send_depth: DEPTH,
                    recv_depth: DEPTH,
                    shared_recv_depth: 0,
                },
            }],
            pool: pool.clone(),
            mailbox: worker_end,
            counters: writer,
            idle: IdlePolicy::Spin,
            close_deadline: TIMING.drain,
            exposures,
            read_sinks: vec![None],
        };
        let link = WorkerLink {
            end: control_end,
            wake: Arc::new(EventFd::new().expect("a descriptor")),
            lanes: vec![LaneLink {
                device: grant.device.clone(),
                cq: Some(cq),
                device_handle: None,
                spec: QpSpec {
                    send_depth: DEPTH,
                    recv_depth: DEPTH,
                    shared_receives: false,
                    inline_bytes: 64,
                    access: Access::NONE,
                    windows: 0,
                },
                connections_max: CONNECTIONS,
                buffer_bytes: SLOT_BYTES,
                grant,
            }],
            counters,
            growth: None,
        };
        let service = Chatter::new(ledger, memory.expect("memory"));
        Self {
            control: Control::new(fabric, vec![link], TIMING).expect("descriptors"),
            worker: Worker::new(setup, service),
            pool,
        }
    }

    fn turn(&mut self, now: Nanos) {
        self.control.turn(now);
        while self.control.take_notice().is_some() {}
        if !self.worker.is_done() {
            self.worker.turn(now);
        }
    }
}

struct Scene {
    hub: Hub,
    sides: [Side; 2],
    ledger: Rc<RefCell<Ledger>>,
    now: Nanos,
    asked: u64,
}

impl Scene {
    fn new(seed: u64, profile: Profile) -> Self {
        let hub = Hub::new();
        let ledger = Rc::new(RefCell::new(Ledger::default()));
        let mut sides = [0, 1].map(|n| {
            let pair = Pair::open(&hub).expect("descriptors");
            let fabric = Fault::new(pair, seed.wrapping_add(n), profile);
            Side::new(fabric.expect("descriptors"), &ledger)
        });
        let offer = Offer {
            access: access(),
            ..Offer::default()
        };
        let regions = [0, 1].map(|n: usize| {
            let memory = &sides[n].worker.service().memory;
            memory.remote_region(0).expect("registered")
        });
        for (n, side) in sides.iter_mut().enumerate() {
            side.worker.service().target = Some(regions[1 - n]);
            let listening = side.control.listen(&name(n), Welcome::from(offer));
            listening.expect("the name is free");
        }
        Self {
            hub,
            sides,
            ledger,
            now: Nanos(1_000_000_000),
            asked: 0,
        }
    }

    /// `side` asks the other for a connection.
    fn connect(&mut self, side: usize) {
        // The number tells who asked.
        self.asked += 2;
        let number = self.asked + side as u64;
        let offer = Offer {
            private_data: PrivateData::of(&number.to_le_bytes()),
            tag: number,
            access: access(),
            ..Offer::default()
        };
        let asked = self.sides[side].control.connect(&name(1 - side), offer);
        asked.expect("an id");
    }

    fn round(&mut self) {
        for side in &mut self.sides {
            side.turn(self.now);
        }
    }

    /// Everything that can happen without time passing happens.
    fn settle(&mut self, lively: bool) {
        for _ in 0..LATE {
            self.round();
        }
        for side in &mut self.sides {
            side.worker.service().hoard = 0;
        }
        for _ in 0..LATE {
            self.round();
        }
        if !lively {
            return;
        }
        // Between two ends that are well, all that was asked for is done, and what was sent has come.
        for (number, both) in &self.ledger.borrow().connections {
            let up = |d: &service::Direction| d.connected && d.disconnected.is_none();
            if both.iter().all(up) {
                let well = both.iter().all(service::Direction::all_is_done);
                assert!(well, "connection {number}: {both:?}");
            }
        }
    }

    /// Everything ends, and the books balance.
    fn finish(mut self) {
        for side in &mut self.sides {
            side.control.shutdown();
        }
        let over = |side: &Side| side.worker.is_done() && side.control.connections() == 0;
        for _ in 0..20 {
            for _ in 0..LATE {
                if self.sides.iter().all(over) {
                    break;
                }
                self.round();
            }
            self.now = self.now + TIMING.drain;
        }
        let Self {
            hub,
            sides,
            ledger,
            now,
            ..
        } = self;
        let mut memories = Vec::new();
        for mut side in sides {
            assert!(over(&side), "it does not end");
            memories.push(side.worker.service().memory.clone());
            let Side {
                mut control,
                worker,
                pool,
            } = side;
            drop(worker);
            control.turn(now);
            assert!(control.is_done());
            drop(control);
            assert_eq!(pool.free(), SLOTS, "slots are missing");
        }
        let word = |side: usize, n: u64| {
            let mut bytes = [0; 8];
            let at = usize::try_from(n).expect("few") * 8;
            memories[side].copy_out(at, &mut bytes).expect("inside");
            u64::from_ne_bytes(bytes)
        };
        let (mut least, mut most) = ([0; 2], [0; 2]);
        for (number, both) in &ledger.borrow().connections {
            let asker = usize::from(number % 2 == 1);
            for (n, direction) in both.iter().enumerate() {
                assert_eq!(direction.connected, direction.disconnected.is_some());
                assert_eq!(direction.open_tokens(), 0);
                let (heard, outcomes) = direction.messages();
                let impossible = outcomes[..heard].contains(&Some(Outcome::NeverPosted));
                assert!(!impossible, "heard, but never posted: {direction:?}");
                let peer = &both[1 - n];
                let done = outcomes.iter().filter(|o| **o == Some(Outcome::Done));
                // IB: the peer's NIC had it, but its connection may have ended before it was looked at.
                assert!(done.count() <= heard || peer.disconnected.is_some() || !peer.connected);
                let target = if n == 0 { 1 - asker } else { asker };
                let (value, values) = (word(target, *number), direction.written());
                assert!(values.contains(&value), "{value} of {values:?}");
                let (done, may) = direction.counted();
                least[target] += done;
                most[target] += may;
            }
        }
        for side in [0, 1] {
            let count = word(side, 0);
            let range = least[side]..=most[side];
            assert!(range.contains(&count), "{count} of {range:?}");
        }
        drop(memories);
        assert_eq!(hub.alive(), Alive::default());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Connect(usize),
    Do(usize, usize, Order),
    Turn(usize, u8),
    Hoard(usize, usize),
    Wait(u64),
    Settle,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let side = 0..2usize;
    let order = prop_oneof![
        10 => (0..100u8, any::<bool>()).prop_map(|(len, imm)| Order::Send { len, imm }),
        4 => Just(Order::Write),
        4 => Just(Order::Read),
        4 => Just(Order::Count),
        1 => Just(Order::Close),
    ];
    let step = prop_oneof![
        2 => side.clone().prop_map(Step::Connect),
        20 => (side.clone(), 0..4usize, order).prop_map(|(s, n, o)| Step::Do(s, n, o)),
        20 => (side.clone(), 1..6u8).prop_map(|(s, n)| Step::Turn(s, n)),
        1 => (side, 0..50usize).prop_map(|(s, n)| Step::Hoard(s, n)),
        1 => (0..60u64).prop_map(Step::Wait),
        2 => Just(Step::Settle),
    ];
    prop::collection::vec(step, 0..200)
}

fn run(steps: &[Step], seed: u64, profile: Profile, lively: bool) {
    let mut scene = Scene::new(seed, profile);
    scene.connect(0);
    scene.settle(lively);
    if lively {
        let ledger = scene.ledger.borrow();
        let both = ledger.connections.values().flatten();
        assert_eq!(both.filter(|d| d.connected).count(), 2, "{ledger:?}");
    }
    for step in steps {
        match step {
            Step::Connect(side) if scene.asked < 40 => scene.connect(*side),
            Step::Connect(_) => {}
            Step::Do(side, nth, order) => {
                let service = scene.sides[*side].worker.service();
                service.orders.push((*nth, *order));
            }
            Step::Turn(side, count) => {
                for _ in 0..*count {
                    scene.sides[*side].turn(scene.now);
                }
            }
            Step::Hoard(side, count) => scene.sides[*side].worker.service().hoard = *count,
            Step::Wait(ms) => scene.now = scene.now + Duration::from_millis(*ms),
            Step::Settle => scene.settle(lively),
        }
    }
    scene.settle(lively);
    scene.finish();
}

/// `WORKER_FAULTS_CASES` asks for more.
fn config() -> ProptestConfig {
    ProptestConfig {
        cases: std::env::var("WORKER_FAULTS_CASES")
            .ok()
            .and_then(|n| n.parse().ok())
            .unwrap_or(48),
        failure_persistence: None,
        max_shrink_iters: 1000,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn nothing_fails_where_all_is_only_late(steps in steps(), seed in any::<u64>()) {
        let profile = Profile { wait: 100, ..Profile::harmless() };
        run(&steps, seed, profile, true);
    }

    #[test]
    fn the_books_balance_whatever_fails(steps in steps(), seed in any::<u64>()) {
        run(&steps, seed, Profile::all(), false);
    }
}
