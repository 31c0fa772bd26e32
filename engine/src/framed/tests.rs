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
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

const DRAIN: Duration = Duration::from_millis(3);
const SLOT_BYTES: u32 = 256;

/// What a service was told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Connected,
    Request(u64, Vec<u8>),
    Reply(u64, Vec<u8>),
    Message(Vec<u8>),
    Sent(u64, Outcome),
    OneSided(u64, Outcome),
    Writable,
    Offered(RegionOffer),
    Withdrawn(RegionId),
    Large(Incoming),
    Chunk(u32, u32, Vec<u8>, bool),
    /// With the first bytes of the memory, as many as the message has.
    LargeDone(u32, ReceiveOutcome, Option<Vec<u8>>),
    LargeSent(u64, LargeOutcome),
    Disconnected(CloseReason),
}

/// What a service is to do in its next turn.
#[derive(Debug)]
enum Order {
    Request(u64, Vec<u8>),
    Message(u64, Vec<u8>),
    Write(u64),
    Offer(RegionId, u16),
    Withdraw(RegionId),
    Close,
    Do(Act),
}

/// What a test has in mind.
struct Act(Box<dyn Deed>);

trait Deed: FnOnce(&mut Probe, &mut FramedIo<'_>, ConnId) {}
impl<F: FnOnce(&mut Probe, &mut FramedIo<'_>, ConnId)> Deed for F {}

impl std::fmt::Debug for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Act")
    }
}

/// A service that writes down what it sees.
#[derive(Default)]
struct Probe {
    conn: Option<ConnId>,
    seen: Vec<Seen>,
    orders: VecDeque<Order>,
    refused: Vec<(u64, SendError)>,
    refused_offers: Vec<OfferRefused>,
    /// Answers each request with what was asked, in its buffer.
    answer: bool,
    /// Takes no messages.
    deaf: bool,
    /// Keeps payloads here instead of dropping them.
    kept: Option<VecDeque<Payload>>,
    /// Messages still to be sent; the next one's number.
    to_send: u32,
    next: u32,
    /// One was refused, and nobody has said since that it may go.
    blocked: bool,
    memory: Option<ExposedMemory>,
    /// What it says to each large message; it says nothing at first.
    on_large: Option<fn(&mut Probe, &mut FramedIo<'_>, ConnId, Incoming)>,
    /// Memory that came back from large messages.
    spans: Vec<MemorySpan>,
}

fn numbered(number: u32) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(4 + number as usize % 40, 7);
    bytes
}

impl Probe {
    /// Sends numbered messages until one is refused.
    fn pour(&mut self, io: &mut FramedIo<'_>, conn: ConnId) -> Turn {
        let before = self.next;
        while self.to_send > 0 && !self.blocked {
            let Ok(mut frame) = io.frame() else { break };
            frame.copy_from(&numbered(self.next)).expect("short");
            match io.message(conn, frame, Token(self.next.into())) {
                Ok(()) => {
                    self.next += 1;
                    self.to_send -= 1;
                }
                Err(refused) => {
                    assert_eq!(refused.reason, SendError::WouldBlock);
                    self.blocked = true;
                }
            }
        }
        if self.next == before {
            Turn::Idle
        } else {
            Turn::Busy
        }
    }

    fn keep(&mut self, payload: Payload) {
        if let Some(kept) = &mut self.kept {
            kept.push_back(payload);
        }
    }

    fn obey(&mut self, io: &mut FramedIo<'_>, conn: ConnId, order: Order) {
        let frame_of = |io: &mut FramedIo<'_>, bytes: &[u8]| {
            let mut frame = io.frame().expect("a slot");
            frame.copy_from(bytes).expect("short");
            frame
        };
        let (token, sent) = match order {
            Order::Request(id, bytes) => {
                let frame = frame_of(io, &bytes);
                (id, io.request(conn, frame, RequestId(id), Token(id)))
            }
            Order::Message(token, bytes) => {
                let frame = frame_of(io, &bytes);
                (token, io.message(conn, frame, Token(token)))
            }
            Order::Write(token) => {
                let mut buffer = io.alloc().expect("a slot");
                buffer.copy_from(&[9; 30]).expect("short");
                let to = RemoteRegion::parse(4096, 64, Rkey(5), Access::REMOTE_WRITE);
                let done = io.write(conn, buffer, &to.expect("valid"), 0, Token(token));
                if let Err(rejected) = done {
                    assert_eq!(rejected.reason, PostError::WouldBlock);
                    self.refused.push((token, SendError::WouldBlock));
                }
                return;
            }
            Order::Offer(id, kind) => {
                let memory = self.memory.clone().expect("memory");
                self.refused_offers
                    .extend(io.offer(conn, &memory, id, kind).err());
                return;
            }
            Order::Withdraw(id) => {
                self.refused_offers.extend(io.withdraw(conn, id).err());
                return;
            }
            Order::Close => return io.close(conn),
            Order::Do(act) => return (act.0)(self, io, conn),
        };
        self.refused.extend(sent.err().map(|r| (token, r.reason)));
    }
}

impl Service for Probe {
    fn connected(&mut self, _: &mut FramedIo<'_>, conn: ConnId, _: &Peer) {
        self.conn = Some(conn);
        self.seen.push(Seen::Connected);
    }
    fn request(&mut self, io: &mut FramedIo<'_>, conn: ConnId, id: RequestId, question: Payload) {
        self.seen.push(Seen::Request(id.0, question.to_vec()));
        if self.answer {
            let sent = io.reply(conn, id, question.into_frame(), Token(id.0));
            self.refused.extend(sent.err().map(|r| (id.0, r.reason)));
        } else {
            self.keep(question);
        }
    }
    fn reply(&mut self, _: &mut FramedIo<'_>, _: ConnId, id: RequestId, answer: Payload) {
        self.seen.push(Seen::Reply(id.0, answer.to_vec()));
        self.keep(answer);
    }
    fn message(&mut self, io: &mut FramedIo<'_>, conn: ConnId, message: Payload) {
        if self.deaf {
            return super::unserved(io, conn, Kind::Message);
        }
        self.seen.push(Seen::Message(message.to_vec()));
        self.keep(message);
    }
    fn completed(&mut self, _: &mut FramedIo<'_>, _: ConnId, completed: Completed) {
        let token = completed.token.0;
        self.seen.push(match completed.operation {
            Operation::Sent(_) => Seen::Sent(token, completed.outcome),
            Operation::Written(_) | Operation::Read(_) | Operation::Atomic(_) => {
                Seen::OneSided(token, completed.outcome)
            }
        });
    }
    fn writable(&mut self, io: &mut FramedIo<'_>, conn: ConnId) {
        self.seen.push(Seen::Writable);
        self.blocked = false;
        let _ = self.pour(io, conn);
    }
    fn offered(&mut self, _: &mut FramedIo<'_>, _: ConnId, offer: &RegionOffer) {
        self.seen.push(Seen::Offered(*offer));
    }
    fn withdrawn(&mut self, _: &mut FramedIo<'_>, _: ConnId, id: RegionId) {
        self.seen.push(Seen::Withdrawn(id));
    }
    fn large(&mut self, io: &mut FramedIo<'_>, conn: ConnId, incoming: Incoming) {
        self.seen.push(Seen::Large(incoming));
        if let Some(say) = self.on_large {
            say(self, io, conn, incoming);
        }
    }
    fn large_chunk(&mut self, _: &mut FramedIo<'_>, _: ConnId, chunk: Chunk) {
        let (id, offset, is_last) = (chunk.id.0, chunk.offset, chunk.is_last);
        self.seen
            .push(Seen::Chunk(id, offset, chunk.to_vec(), is_last));
    }
    fn large_done(&mut self, _: &mut FramedIo<'_>, _: ConnId, received: LargeReceived) {
        let LargeReceived {
            incoming,
            outcome,
            span,
        } = received;
        let bytes = span.as_ref().map(|span| {
            let mut bytes = vec![0; incoming.len_bytes as usize];
            let copied = span.memory().copy_out(span.offset(), &mut bytes);
            copied.expect("the span is as long");
            bytes
        });
        self.spans.extend(span);
        let id = incoming.id.0;
        self.seen.push(Seen::LargeDone(id, outcome, bytes));
    }
    fn large_sent(&mut self, _: &mut FramedIo<'_>, _: ConnId, sent: LargeSent) {
        self.seen.push(Seen::LargeSent(sent.token.0, sent.outcome));
        self.spans.push(sent.span);
    }
    fn disconnected(&mut self, _: &mut FramedIo<'_>, _: ConnId, reason: CloseReason) {
        self.conn = None;
        self.kept = self.kept.take().map(|_| VecDeque::new());
        self.seen.push(Seen::Disconnected(reason));
    }
    fn turn(&mut self, io: &mut FramedIo<'_>) -> Turn {
        let Some(conn) = self.conn else {
            return Turn::Idle;
        };
        let orders = std::mem::take(&mut self.orders);
        let ordered = !orders.is_empty();
        for order in orders {
            self.obey(io, conn, order);
        }
        let poured = self.pour(io, conn);
        if ordered { Turn::Busy } else { poured }
    }
}

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
        let (control, qp, grant) = toy.create_qp(&mut id, &self.cq, &spec).expect("a QP");
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
        let mut toy = Toy::new();
        let (a, b) = (Side::new(&mut toy, a), Side::new(&mut toy, b));
        let mut pair = Self { toy, a, b };
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
