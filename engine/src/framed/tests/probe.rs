//! The service of the tests: does what it is told, and writes down what it hears.
//!
//! ```text
//!  test ── Order ──► Probe ──► FramedIo          what the service is told ──► Probe ── Seen ──► test
//! ```

use super::*;

/// What a service was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
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
pub(super) enum Order {
    Request(u64, Vec<u8>),
    Message(u64, Vec<u8>),
    Write(u64),
    Offer(RegionId, u16),
    Withdraw(RegionId),
    Close,
    Do(Act),
}

/// What a test has in mind.
pub(super) struct Act(Box<Deed>);

type Deed = dyn FnOnce(&mut Probe, &mut FramedIo<'_>, ConnId);

pub(super) fn act(what: impl FnOnce(&mut Probe, &mut FramedIo<'_>, ConnId) + 'static) -> Order {
    Order::Do(Act(Box::new(what)))
}

impl std::fmt::Debug for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Act")
    }
}

/// A service that writes down what it sees.
#[derive(Default)]
pub(super) struct Probe {
    pub(super) conn: Option<ConnId>,
    pub(super) seen: Vec<Seen>,
    pub(super) orders: VecDeque<Order>,
    pub(super) refused: Vec<(u64, SendError)>,
    pub(super) refused_offers: Vec<OfferRefused>,
    /// Answers each request with what was asked, in its buffer.
    pub(super) answer: bool,
    /// Takes no messages.
    pub(super) deaf: bool,
    /// Keeps payloads here instead of dropping them.
    pub(super) kept: Option<VecDeque<Payload>>,
    /// Messages still to be sent; the next one's number.
    pub(super) to_send: u32,
    pub(super) next: u32,
    /// One was refused, and nobody has said since that it may go.
    pub(super) blocked: bool,
    pub(super) memory: Option<ExposedMemory>,
    /// What it says to each large message; it says nothing at first.
    pub(super) on_large: Option<fn(&mut Probe, &mut FramedIo<'_>, ConnId, Incoming)>,
    /// Memory that came back from large messages.
    pub(super) spans: Vec<MemorySpan>,
}

pub(super) fn numbered(number: u32) -> Vec<u8> {
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
            return unserved(io, conn, Kind::Message);
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
