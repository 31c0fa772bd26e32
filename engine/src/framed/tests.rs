//! Two workers with framed services, joined by a pump: the toy fabric's queue pairs, of which one's
//! sends become the other's messages when the test says so.
//!
//! ```text
//!  Probe ◄─► Framed ◄─► Worker ◄─► Toy QP ── carry ──► Toy QP ◄─► Worker ◄─► Framed ◄─► Probe
//! ```
//! A message that finds no receive fails the test: that is what framed mode is for.

mod credits;
mod endings;
mod large;
mod large_hostile;
mod large_random;
mod large_refused;
mod large_rig;
mod probe;
mod random;
mod traffic;

use super::*;
use crate::fabric::toy::{Toy, ToyQp, ToyQpControl};
use crate::fabric::{Endpoint, Fabric, LaneSpec, PrivateData, QpSpec, SendOp};
use crate::memory::{
    ExposedMemory, Exposures, HugepagePolicy, MemorySpan, Pool, Region, Registrar,
};
use crate::metrics::CounterReader;
use crate::types::{Access, IdlePolicy, Nanos, QpNum, RemoteRegion, Rkey};
use crate::wire::{Features, HEADER_BYTES, Hello, Kind};
use crate::worker::{
    Command, ControlEnd, Event, Handover, LaneCapacity, LaneSetup, Outcome, PostError, Role, Token,
    Worker, WorkerSetup, mailbox,
};
use probe::{Order, Probe, Seen, act, numbered};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

const DRAIN: Duration = Duration::from_millis(3);
const SLOT_BYTES: u32 = 256;

#[derive(Clone, Copy, Debug)]
struct Size {
    send_depth: u32,
    recv_depth: u32,
    /// The two places of the side share one queue.
    shared: bool,
    slots: u32,
}

impl Size {
    fn shared_recv_depth(&self) -> u32 {
        if self.shared { 2 * self.recv_depth } else { 0 }
    }
}

const SMALL: Size = Size {
    send_depth: 16,
    recv_depth: 8,
    shared: false,
    slots: 64,
};

/// One worker and the connection that it has.
struct Side {
    worker: Worker<Toy, Framed<Probe>>,
    control: ControlEnd<Toy>,
    cq: <Toy as Fabric>::Cq,
    exposures: Exposures<<Toy as Fabric>::Device>,
    pool: Pool,
    counters: CounterReader,
    size: Size,
    generation: u32,
    conn: ConnId,
    qp: QpNum,
    qp_control: Option<ToyQpControl>,
    qp_back: Option<ToyQp>,
    /// Sends that are not of the test's doing.
    began: usize,
    /// Why the worker wants the connection closed.
    asked: Option<CloseReason>,
    /// READs that the handshake leaves it.
    reads: u8,
    /// Its device wants what READs write to open to peers, as iWARP does.
    sinks_are_open: bool,
}

impl Side {
    fn new(toy: &mut Toy, size: Size) -> Self {
        let device = toy.devices().remove(0);
        let spec = LaneSpec {
            shared_recv_depth: size.shared_recv_depth(),
            cq_depth: 1024,
            events: false,
        };
        let (cq, lane, _) = toy.create_lane(&device, &spec).expect("a lane");
        let bytes = (size.slots * SLOT_BYTES) as usize;
        let region = Arc::new(Region::allocate(bytes, HugepagePolicy::Off).expect("memory"));
        let registration = device
            .register(Arc::clone(&region), Access::LOCAL_WRITE)
            .expect("a registration");
        let (control, end) = mailbox();
        let (writer, counters) = crate::metrics::counters();
        let exposures = Exposures::new(vec![device]);
        let capacity = LaneCapacity {
            connections: 2,
            send_depth: size.send_depth,
            recv_depth: size.recv_depth,
            shared_recv_depth: size.shared_recv_depth(),
        };
        let pool = Pool::new(region, size.slots, SLOT_BYTES).expect("a pool");
        let setup = WorkerSetup {
            read_sinks: Vec::new(),
            number: 0,
            core: None,
            lanes: vec![LaneSetup {
                lane,
                registration,
                capacity,
            }],
            pool: pool.clone(),
            mailbox: end,
            counters: writer,
            idle: IdlePolicy::Spin,
            close_deadline: DRAIN,
            exposures: exposures.clone(),
        };
        Self {
            worker: Worker::new(setup, Framed::new(Probe::default())),
            control,
            cq,
            exposures,
            pool,
            counters,
            size,
            generation: 0,
            conn: ConnId {
                worker: 0,
                index: 1,
                generation: 0,
            },
            qp: QpNum(0),
            qp_control: None,
            qp_back: None,
            began: 0,
            asked: None,
            reads: 4,
            sinks_are_open: false,
        }
    }

    fn probe(&mut self) -> &mut Probe {
        self.worker.service().service()
    }

    fn seen(&mut self) -> Vec<Seen> {
        std::mem::take(&mut self.probe().seen)
    }

    fn refused(&mut self) -> Vec<(u64, SendError)> {
        std::mem::take(&mut self.probe().refused)
    }

    /// Gives an order and turns once, so that it is carried out.
    fn order(&mut self, order: Order) {
        self.probe().orders.push_back(order);
        self.turn();
    }

    fn turn(&mut self) -> Turn {
        self.turn_at(Nanos(1000))
    }

    fn turn_at(&mut self, now: Nanos) -> Turn {
        let turn = self.worker.turn(now);
        while let Ok(event) = self.control.events.pop() {
            match event {
                Event::CloseRequested(conn, reason) => {
                    assert_eq!(conn, self.conn);
                    assert!(self.asked.replace(reason).is_none(), "asked twice");
                }
                Event::Drained { qp, missing, .. } => {
                    assert_eq!(missing, 0);
                    self.qp_back = Some(qp);
                }
                Event::Stopped(_) | Event::Released(_) => {}
                Event::Armed(..) | Event::Refused(..) | Event::LaneDropped(_) | Event::PoolLow => {
                    panic!("{event:?}")
                }
            }
        }
        turn
    }

    fn tell(&mut self, command: Command<Toy>) {
        assert!(self.control.commands.push(command).is_ok());
    }

    /// Creates a QP and has the worker post its receives; gives their number.
    fn arm(&mut self, toy: &mut Toy) -> u32 {
        self.generation += 1;
        self.conn.generation = self.generation;
        let to = Endpoint::Shm("peer".into());
        let mut id = toy.resolve_address(&to, DRAIN).expect("an id");
        let spec = QpSpec {
            windows: 0,
            shared_receives: self.size.shared,
            send_depth: self.size.send_depth,
            recv_depth: self.size.recv_depth,
            inline_bytes: 16,
            access: Access::NONE,
        };
        let (control, qp, mut grant) = toy.create_qp(&mut id, &self.cq, &spec).expect("a QP");
        grant.abilities.read_sink_is_exposed = self.sinks_are_open;
        toy.destroy_id(id);
        (self.qp, self.qp_control) = (grant.number, Some(control));
        (self.asked, self.began) = (None, 0);
        self.tell(Command::Adopt(Handover {
            conn: self.conn,
            lane: 0,
            qp,
            grant,
            windows: Vec::new(),
            peer: None,
        }));
        self.worker.turn(Nanos(1000));
        match self.control.events.pop() {
            Ok(Event::Armed(conn, posted)) if conn == self.conn => posted,
            other => panic!("{other:?}"),
        }
    }

    fn establish(&mut self, role: Role, hello: Option<Hello>) {
        let peer = Peer {
            role,
            address: None,
            private_data: PrivateData::EMPTY,
            initiator_depth: self.reads,
            responder_resources: 4,
            tag: 0,
            membership: None,
            hello,
        };
        self.tell(Command::Established(self.conn, peer));
        self.turn();
    }

    fn hello(&self, posted: u32) -> Hello {
        let hello = Hello::new(self.size.recv_depth, posted, SLOT_BYTES).expect("a hello");
        hello.with_features(Features::OURS)
    }

    /// Ends the connection as control does; every slot is the pool's again.
    fn end(&mut self, toy: &mut Toy) {
        self.tell(Command::Stop(self.conn, CloseReason::Peer));
        self.turn();
        toy.flush(self.qp);
        self.tell(Command::Flush(self.conn, DRAIN));
        for _ in 0..4 {
            self.turn();
        }
        let to = Endpoint::Shm("peer".into());
        let mut id = toy.resolve_address(&to, DRAIN).expect("an id");
        let control = self.qp_control.take().expect("control's half");
        let qp = self.qp_back.take().expect("the posting half is back");
        toy.destroy_qp(&mut id, control, qp);
        toy.destroy_id(id);
        self.tell(Command::QpGone(self.conn));
        self.turn();
        // What is shared stays with the lane.
        let free = self.pool.free() as usize + toy.shared_outstanding(self.cq.lane());
        assert_eq!(
            free, self.size.slots as usize,
            "slots that did not come back"
        );
    }
}

/// Two sides and what lies between them.
struct Pair {
    toy: Toy,
    a: Side,
    b: Side,
}

/// Which way messages go.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    AToB,
    BToA,
}

impl Pair {
    fn new(a: Size, b: Size) -> Self {
        Self::prepared(a, b, |_| {})
    }

    /// As [`new`](Self::new); what is to be said of the sides before they connect is said.
    fn prepared(a: Size, b: Size, prepare: impl FnOnce(&mut Self)) -> Self {
        let mut toy = Toy::new();
        let (a, b) = (Side::new(&mut toy, a), Side::new(&mut toy, b));
        let mut pair = Self { toy, a, b };
        prepare(&mut pair);
        pair.connect();
        pair
    }

    fn connect(&mut self) {
        let posted = (self.a.arm(&mut self.toy), self.b.arm(&mut self.toy));
        let hellos = (self.a.hello(posted.0), self.b.hello(posted.1));
        self.a.establish(Role::Active, Some(hellos.1));
        self.b.establish(Role::Passive, Some(hellos.0));
        assert_eq!(self.a.seen(), [Seen::Connected]);
        assert_eq!(self.b.seen(), [Seen::Connected]);
        // Each has said a word then: of eight receives there are seven for the other.
        self.settle();
        for side in [&mut self.a, &mut self.b] {
            side.began = self.toy.sent(side.qp).0.len();
        }
    }

    fn end(&mut self) {
        self.a.end(&mut self.toy);
        self.b.end(&mut self.toy);
    }

    /// Executes up to `most` sends of one side; gives how many there were.
    fn carry(&mut self, way: Way, most: usize) -> usize {
        let (from, to) = match way {
            Way::AToB => (self.a.qp, self.b.qp),
            Way::BToA => (self.b.qp, self.a.qp),
        };
        let (sent, executed) = self.toy.sent(from);
        let chains = self.toy.send_chains(from);
        let ops: Vec<SendOp> = chains.iter().flatten().map(|wr| wr.op).collect();
        let mut carried = 0;
        for number in (executed..sent.len()).take(most) {
            if matches!(ops[number], SendOp::Read(_)) {
                if !self.toy.answer_read(from) {
                    return carried;
                }
                carried += 1;
                continue;
            }
            if ops[number] == SendOp::Send {
                let found = self.toy.deliver(to, &sent[number]);
                assert!(found, "{way:?}: message {number} finds no receive");
            }
            carried += self.toy.execute(from, 1);
        }
        carried
    }

    /// Everything that is under way arrives, and what it brings about, until nothing moves.
    fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..10_000 {
            let carried = self.carry(Way::AToB, usize::MAX) + self.carry(Way::BToA, usize::MAX);
            let turns = [self.a.turn(), self.b.turn()];
            let moved = carried > 0 || turns != [Turn::Idle; 2];
            quiet = if moved { 0 } else { quiet + 1 };
            // Receives that are posted behind an idle turn are told of in the next.
            if quiet == 2 {
                return;
            }
        }
        panic!("something moves for ever");
    }

    /// Kinds of the frames that a side has sent since the connection is up.
    fn kinds(&self, side: &Side) -> Vec<Kind> {
        let sent = self.toy.sent(side.qp).0;
        let chains = self.toy.send_chains(side.qp);
        let all = sent.iter().zip(chains.iter().flatten()).skip(side.began);
        let frames = all.filter(|(_, wr)| wr.op == SendOp::Send);
        let kind = |frame: &Vec<u8>| Kind::from_byte(frame[0]).expect("a frame");
        frames.map(|(frame, _)| kind(frame)).collect()
    }

    fn credits(&self, side: &Side) -> usize {
        let kinds = self.kinds(side);
        kinds.iter().filter(|kind| **kind == Kind::Credits).count()
    }
}
