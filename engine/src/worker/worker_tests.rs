//! The worker, turn by turn, on the toy fabric.
//!
//! ```text
//!  test ── tell ─► mailbox ─► Worker::turn ◄─► Toy ◄── deliver, execute, fail ── test
//!  test ◄─ answers ─ mailbox ◄──┘   └─► Recorder: what the service saw, and orders it carries out
//! ```
//! Time stands still unless a test moves it. A bench ends with a balance: every slot is free again.

mod adopt;
mod growing;
mod mailbox;
mod operations;
mod random;
mod receives;
mod sends;
mod shared;
mod teardown;

use super::*;
use crate::fabric::toy::{MESSAGE_BYTES_MAX, Toy, ToyQp, ToyQpControl};
use crate::fabric::{Endpoint, LaneSpec, PrivateData, QpSpec};
use crate::memory::{Buffer, Growth, HugepagePolicy, Payload};
use crate::metrics::{CounterReader, CounterSnapshot};
use crate::types::{Access, QpNum};
use std::sync::Arc;

const CLOSE_DEADLINE: Duration = Duration::from_millis(5);
const DRAIN: Duration = Duration::from_millis(3);

/// What the service was told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Connected(ConnId),
    Message(ConnId, Vec<u8>),
    Completed(ConnId, u64, Outcome),
    Disconnected(ConnId, CloseReason),
}

/// What the service is to do in its next turn.
enum Order {
    Send(ConnId, Vec<u8>, u64),
    Close(ConnId),
}

/// A service that writes down what it sees.
#[derive(Default)]
struct Recorder {
    seen: Vec<Seen>,
    orders: Vec<Order>,
    rejected: Vec<(u64, PostError)>,
    /// Sends each message back at once, with its first byte as token.
    echo: bool,
    /// Keeps the buffers of messages here instead of dropping them.
    kept: Option<Vec<Buffer>>,
    /// Keeps what operations carried here instead of dropping it.
    carried: Option<Vec<Payload>>,
}

impl Recorder {
    fn send(&mut self, io: &mut Io<'_>, conn: ConnId, bytes: &[u8], token: u64) {
        let Ok(mut buffer) = io.alloc() else { return };
        buffer.copy_from(bytes).expect("short");
        if let Err(Rejected { reason, .. }) = io.send(conn, buffer, Token(token)) {
            self.rejected.push((token, reason));
        }
    }
}

impl Service for Recorder {
    fn connected(&mut self, _: &mut Io<'_>, conn: ConnId, _: &Peer) {
        self.seen.push(Seen::Connected(conn));
    }
    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        self.seen.push(Seen::Message(conn, message.to_vec()));
        if self.echo {
            let token = u64::from(message[0]);
            let sent = io.send(conn, message.into_buffer(), Token(token));
            self.rejected.extend(sent.err().map(|r| (token, r.reason)));
        } else if let Some(kept) = &mut self.kept {
            kept.push(message.into_buffer());
        }
    }
    fn completed(&mut self, _: &mut Io<'_>, conn: ConnId, completed: Completed) {
        let Completed { token, outcome, .. } = completed;
        self.seen.push(Seen::Completed(conn, token.0, outcome));
        if let Some(carried) = &mut self.carried {
            carried.push(completed.payload);
        }
    }
    fn disconnected(&mut self, _: &mut Io<'_>, conn: ConnId, reason: CloseReason) {
        self.seen.push(Seen::Disconnected(conn, reason));
    }
    fn turn(&mut self, io: &mut Io<'_>) -> Turn {
        for order in std::mem::take(&mut self.orders) {
            match order {
                Order::Send(conn, bytes, token) => self.send(io, conn, &bytes, token),
                Order::Close(conn) => io.close(conn),
            }
        }
        Turn::Idle
    }
}

/// An event as tests compare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Armed(ConnId),
    Refused(ConnId),
    CloseRequested(ConnId, CloseReason),
    Stopped(ConnId),
    Drained(ConnId, u32),
    Released(ConnId),
    LaneDropped(u8),
    PoolLow,
}

/// Places, depths and slots of a bench.
#[derive(Clone, Copy)]
struct Size {
    connections: u32,
    send_depth: u32,
    recv_depth: u32,
    shared_recv_depth: u32,
    slots: u32,
    /// The pool may grow to so many slots; 0 for none.
    slots_max: u32,
}

const SMALL: Size = Size {
    connections: 3,
    send_depth: 8,
    recv_depth: 8,
    shared_recv_depth: 0,
    slots: 64,
    slots_max: 0,
};

struct Bench {
    toy: Toy,
    device: <Toy as Fabric>::Device,
    growth: Growth,
    worker: Worker<Toy, Recorder>,
    control: ControlEnd<Toy>,
    cq: <Toy as Fabric>::Cq,
    counters: CounterReader,
    size: Size,
    now: Nanos,
    generation: u32,
    /// Halves: control's of every QP, the posting ones that came back.
    qps: Vec<(ConnId, ToyQpControl)>,
    back: Vec<(ConnId, ToyQp)>,
}

impl Bench {
    fn new(size: Size) -> Self {
        let mut toy = Toy::new();
        let device = toy.devices().remove(0);
        let spec = LaneSpec {
            shared_recv_depth: size.shared_recv_depth,
            cq_depth: 1024,
            events: true,
        };
        let (cq, lane, _) = toy.create_lane(&device, &spec).expect("a lane");
        let bytes = size.slots as usize * 256;
        let most = bytes.max(size.slots_max as usize * 256);
        let (region, growth) = Growth::begin(bytes, most, HugepagePolicy::Off).expect("memory");
        let region = Arc::new(region);
        let registration = device
            .register(Arc::clone(&region), Access::LOCAL_WRITE)
            .expect("a registration");
        let (control, mailbox) = super::mailbox();
        let (writer, counters) = crate::metrics::counters();
        let capacity = LaneCapacity {
            connections: size.connections,
            send_depth: size.send_depth,
            recv_depth: size.recv_depth,
            shared_recv_depth: size.shared_recv_depth,
        };
        let setup = WorkerSetup {
            read_sinks: Vec::new(),
            number: 0,
            core: None,
            lanes: vec![LaneSetup {
                lane,
                registration,
                capacity,
            }],
            pool: Pool::growable(region, size.slots, 256, size.slots_max).expect("a pool"),
            mailbox,
            counters: writer,
            idle: IdlePolicy::Spin,
            close_deadline: CLOSE_DEADLINE,
            exposures: crate::memory::Exposures::new(vec![device.clone()]),
        };
        Self {
            worker: Worker::new(setup, Recorder::default()),
            toy,
            device,
            growth,
            control,
            cq,
            counters,
            size,
            now: Nanos(1000),
            generation: 0,
            qps: Vec::new(),
            back: Vec::new(),
        }
    }

    fn peer(role: Role) -> Peer {
        Peer {
            role,
            address: None,
            private_data: PrivateData::EMPTY,
            initiator_depth: 1,
            responder_resources: 1,
            tag: 0,
            membership: None,
            hello: None,
        }
    }

    /// Creates a QP and sends its Adopt; the worker has not had a turn since.
    fn hand_over(&mut self, index: u16, lane: u8, role: Role) -> (ConnId, QpNum) {
        self.generation += 1;
        let conn = ConnId {
            worker: 0,
            index,
            generation: self.generation,
        };
        let timeout = Duration::from_secs(1);
        let to = Endpoint::Shm("peer".into());
        let mut id = self.toy.resolve_address(&to, timeout).expect("an id");
        let spec = QpSpec {
            windows: 0,
            shared_receives: self.size.shared_recv_depth > 0,
            send_depth: self.size.send_depth,
            recv_depth: self.size.recv_depth,
            inline_bytes: 0,
            access: crate::types::Access::NONE,
        };
        let (control, qp, grant) = self.toy.create_qp(&mut id, &self.cq, &spec).expect("a QP");
        self.toy.destroy_id(id);
        assert_eq!(grant.message_bytes_max, MESSAGE_BYTES_MAX);
        let peer = (role == Role::Passive).then(|| Self::peer(role));
        self.qps.push((conn, control));
        self.tell(Command::Adopt(Handover {
            conn,
            lane,
            qp,
            grant,
            windows: Vec::new(),
            peer,
        }));
        (conn, grant.number)
    }

    /// A connection that is up.
    fn up(&mut self, index: u16) -> (ConnId, QpNum) {
        let (conn, qp) = self.hand_over(index, 0, Role::Active);
        assert_eq!(self.turn_answers(), [Answer::Armed(conn)]);
        self.establish(conn);
        self.turn();
        assert_eq!(self.seen(), [Seen::Connected(conn)]);
        (conn, qp)
    }

    fn tell(&mut self, command: Command<Toy>) {
        assert!(self.control.commands.push(command).is_ok());
    }

    fn establish(&mut self, conn: ConnId) {
        self.tell(Command::Established(conn, Self::peer(Role::Active)));
    }

    fn order(&mut self, order: Order) {
        self.worker.service().orders.push(order);
    }

    /// Orders sends with the payload `[token; 20]`, too long for inline.
    fn send(&mut self, conn: ConnId, tokens: std::ops::Range<u8>) {
        for token in tokens {
            self.order(Order::Send(conn, vec![token; 20], token.into()));
        }
    }

    fn turn(&mut self) -> Turn {
        self.worker.turn(self.now)
    }

    fn answers(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
        while let Ok(event) = self.control.events.pop() {
            answers.push(match event {
                Event::Armed(conn, _) => Answer::Armed(conn),
                Event::Refused(conn, qp) => {
                    self.back.push((conn, qp));
                    Answer::Refused(conn)
                }
                Event::CloseRequested(conn, reason) => Answer::CloseRequested(conn, reason),
                Event::Stopped(conn) => Answer::Stopped(conn),
                Event::Drained { conn, qp, missing } => {
                    self.back.push((conn, qp));
                    Answer::Drained(conn, missing)
                }
                Event::Released(conn) => Answer::Released(conn),
                Event::LaneDropped(lane) => Answer::LaneDropped(lane),
                Event::PoolLow => Answer::PoolLow,
            });
        }
        answers
    }

    fn turn_answers(&mut self) -> Vec<Answer> {
        self.turn();
        self.answers()
    }

    fn seen(&mut self) -> Vec<Seen> {
        std::mem::take(&mut self.worker.service().seen)
    }

    fn turn_seen(&mut self) -> Vec<Seen> {
        self.turn();
        self.seen()
    }

    fn count(&self) -> CounterSnapshot {
        self.counters.snapshot()
    }

    fn free(&self) -> u32 {
        self.worker.core.pool.free()
    }

    /// Destroys a QP whose halves are both here.
    fn destroy_qp(&mut self, conn: ConnId) {
        let control = self.qps.iter().position(|(c, _)| *c == conn);
        let (_, control) = self.qps.remove(control.expect("control's half"));
        let back = self.back.iter().position(|(c, _)| *c == conn);
        let (_, qp) = self.back.remove(back.expect("the posting half is back"));
        let to = Endpoint::Shm("peer".into());
        let mut id = self.toy.resolve_address(&to, DRAIN).expect("an id");
        self.toy.destroy_qp(&mut id, control, qp);
        self.toy.destroy_id(id);
    }

    /// Ends a connection as control does, from Stop to Released.
    fn end(&mut self, conn: ConnId, qp: QpNum) {
        self.tell(Command::Stop(conn, CloseReason::Peer));
        assert_eq!(self.turn_answers(), [Answer::Stopped(conn)]);
        self.toy.flush(qp);
        self.tell(Command::Flush(conn, DRAIN));
        let mut answers = Vec::new();
        for _ in 0..4 {
            answers.extend(self.turn_answers());
        }
        assert_eq!(answers, [Answer::Drained(conn, 0)]);
        self.release(conn);
    }

    /// From Drained to Released.
    fn release(&mut self, conn: ConnId) {
        self.destroy_qp(conn);
        self.tell(Command::QpGone(conn));
        assert_eq!(self.turn_answers(), [Answer::Released(conn)]);
    }
}

fn message(conn: ConnId, byte: u8) -> Seen {
    Seen::Message(conn, vec![byte])
}
