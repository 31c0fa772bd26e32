//! The service of the test: it does as it is told, and holds what it hears against what was sent.
//!
//! ```text
//!  Chatter (one end) ─ orders ─► Io        Ledger, shared by both ends: every connection by number,
//!          └─ completed, message, … ─► Ledger      with all that each direction was asked and heard
//! ```

use spinwire::fabric::Note;
use spinwire::memory::{Buffer, ExposedMemory, Payload};
use spinwire::types::RemoteRegion;
use spinwire::worker::{
    CloseReason, Completed, ConnId, Io, Message, Outcome, Peer, PostError, Role, Service, Token,
};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Words of memory that each end exposes: a counter for all, then one a connection.
pub(crate) const WORDS: usize = 512;

/// What a service is to do on one of its connections.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    Send { len: u8, imm: bool },
    Write,
    Read,
    Count,
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Message,
    Write(u64),
    Read,
    Count,
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(crate) struct Direction {
    /// Kinds and outcomes of the operations, in the order of their tokens.
    operations: Vec<(Kind, Option<Outcome>)>,
    /// Messages that were asked for, and the operation of each.
    messages: Vec<usize>,
    heard: usize,
    pub(crate) connected: bool,
    pub(crate) disconnected: Option<CloseReason>,
}

impl Direction {
    fn count(&self, which: impl Fn(Kind, Outcome) -> bool) -> u64 {
        let all = self.operations.iter();
        all.filter(|(kind, outcome)| outcome.is_some_and(|o| which(*kind, o)))
            .count() as u64
    }

    /// Of the messages: how many were heard, and how each ended.
    pub(crate) fn messages(&self) -> (usize, Vec<Option<Outcome>>) {
        let outcomes = self.messages.iter().map(|n| self.operations[*n].1);
        (self.heard, outcomes.collect())
    }

    /// Every operation is done, and every message was heard.
    pub(crate) fn all_is_done(&self) -> bool {
        let done = |(_, outcome): &(Kind, _)| *outcome == Some(Outcome::Done);
        self.operations.iter().all(done) && self.heard == self.messages.len()
    }

    pub(crate) fn counted(&self) -> (u64, u64) {
        let done = self.count(|kind, o| kind == Kind::Count && o == Outcome::Done);
        let may = |kind, o| kind == Kind::Count && matches!(o, Outcome::Unknown(_));
        (done, done + self.count(may))
    }

    /// Values that the connection's word may have in the end.
    pub(crate) fn written(&self) -> Vec<u64> {
        let mut values = vec![0];
        for (kind, outcome) in &self.operations {
            match (kind, outcome) {
                (Kind::Write(value), Some(Outcome::Done)) => values = vec![*value],
                (Kind::Write(value), Some(Outcome::Unknown(_))) => values.push(*value),
                _ => {}
            }
        }
        values
    }

    pub(crate) fn open_tokens(&self) -> usize {
        self.operations.iter().filter(|(_, o)| o.is_none()).count()
    }
}

/// What both ends know. A connection's directions are that of the side that asked, and the other.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) connections: HashMap<u64, [Direction; 2]>,
}

impl Ledger {
    fn direction(&mut self, number: u64, of: usize) -> &mut Direction {
        &mut self.connections.entry(number).or_default()[of]
    }
}

/// One end's service.
pub(crate) struct Chatter {
    ledger: Rc<RefCell<Ledger>>,
    /// Number of each connection, and which direction is this side's.
    conns: Vec<(ConnId, u64, usize)>,
    pub(crate) orders: Vec<(usize, Order)>,
    pub(crate) memory: ExposedMemory,
    /// The peer's memory.
    pub(crate) target: Option<RemoteRegion>,
    /// Buffers that were kept, to make them scarce.
    kept: Vec<Buffer>,
    pub(crate) hoard: usize,
}

impl Chatter {
    pub(crate) fn new(ledger: &Rc<RefCell<Ledger>>, memory: ExposedMemory) -> Self {
        Self {
            ledger: Rc::clone(ledger),
            conns: Vec::new(),
            orders: Vec::new(),
            memory,
            target: None,
            kept: Vec::new(),
            hoard: 0,
        }
    }

    fn place(&self, conn: ConnId) -> usize {
        let place = self.conns.iter().position(|(id, ..)| *id == conn);
        place.expect("a connection that was told, and has not ended")
    }

    fn of(&self, conn: ConnId) -> (u64, usize) {
        let (_, number, side) = self.conns[self.place(conn)];
        (number, side)
    }

    fn obey(&mut self, io: &mut Io<'_>, nth: usize, order: Order) {
        if self.conns.is_empty() {
            return;
        }
        let (conn, number, side) = self.conns[nth % self.conns.len()];
        let target = self.target.expect("told at the start");
        let mut ledger = self.ledger.borrow_mut();
        let direction = ledger.direction(number, side);
        let token = Token(direction.operations.len() as u64);
        let word = number * 8;
        let (kind, taken) = match order {
            Order::Close => return io.close(conn),
            Order::Count => (Kind::Count, io.fetch_add(conn, &target, 0, 1, token)),
            Order::Send { .. } | Order::Write | Order::Read => {
                let Ok(mut buffer) = io.alloc() else { return };
                match order {
                    Order::Send { len, imm } => {
                        let n = direction.messages.len() as u64;
                        buffer.copy_from(&message(number, n, len)).expect("short");
                        let taken = if imm {
                            let imm = u32::try_from(n).expect("few");
                            io.send_imm(conn, buffer, imm, token)
                        } else {
                            io.send(conn, buffer, token)
                        };
                        (Kind::Message, taken.map_err(|r| r.reason))
                    }
                    Order::Write => {
                        let value = token.0 + 1;
                        buffer.copy_from(&value.to_ne_bytes()).expect("short");
                        let taken = io.write(conn, buffer, &target, word, token);
                        (Kind::Write(value), taken.map_err(|r| r.reason))
                    }
                    _ => {
                        buffer.set_len(8).expect("short");
                        let taken = io.read(conn, buffer, &target, word, token);
                        (Kind::Read, taken.map_err(|r| r.reason))
                    }
                }
            }
        };
        match taken {
            Ok(()) => {
                if kind == Kind::Message {
                    direction.messages.push(direction.operations.len());
                }
                direction.operations.push((kind, None));
            }
            Err(reason) => assert!(
                matches!(
                    reason,
                    PostError::WouldBlock | PostError::NotConnected | PostError::Exhausted
                ),
                "{reason:?}"
            ),
        }
    }
}

/// Message number `n` of a connection.
fn message(number: u64, n: u64, len: u8) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(n.to_le_bytes());
    bytes.resize(16 + usize::from(len), n.to_le_bytes()[0]);
    bytes
}

impl Service for Chatter {
    fn connected(&mut self, _: &mut Io<'_>, conn: ConnId, peer: &Peer) {
        let (number, side) = match peer.role {
            Role::Active => (peer.tag, 0),
            Role::Passive => {
                let number = peer.private_data.as_slice()[..8].try_into();
                (u64::from_le_bytes(number.expect("8 bytes")), 1)
            }
        };
        assert!(self.conns.iter().all(|(id, ..)| *id != conn));
        self.conns.push((conn, number, side));
        let mut ledger = self.ledger.borrow_mut();
        let direction = ledger.direction(number, side);
        assert!(!direction.connected, "connected twice");
        direction.connected = true;
    }

    fn message(&mut self, _: &mut Io<'_>, conn: ConnId, heard: Message) {
        let (number, side) = self.of(conn);
        let mut ledger = self.ledger.borrow_mut();
        let direction = ledger.direction(number, 1 - side);
        let n = direction.heard as u64;
        assert!(direction.heard < direction.messages.len(), "never sent");
        let len = u8::try_from(heard.len() - 16).expect("short");
        assert_eq!(*heard, message(number, n, len), "not the next message");
        if let Note::Imm(imm) = heard.note() {
            assert_eq!(u64::from(imm), n);
        }
        direction.heard += 1;
        drop(ledger);
        if self.kept.len() < self.hoard {
            self.kept.push(heard.into_buffer());
        } else {
            self.kept.clear();
        }
    }

    fn completed(&mut self, _: &mut Io<'_>, conn: ConnId, completed: Completed) {
        let (number, side) = self.of(conn);
        let mut ledger = self.ledger.borrow_mut();
        let direction = ledger.direction(number, side);
        let token = usize::try_from(completed.token.0).expect("few");
        let earlier = &direction.operations[..token];
        let done = |(_, outcome): &(Kind, _)| *outcome == Some(Outcome::Done);
        assert!(
            completed.outcome != Outcome::Done || earlier.iter().all(done),
            "done, but not what was asked for earlier: {earlier:?}"
        );
        let written = earlier.iter().rev().find_map(|(kind, _)| match kind {
            Kind::Write(value) => Some(*value),
            _ => None,
        });
        let (kind, outcome) = &mut direction.operations[token];
        assert_eq!(*outcome, None, "a token came twice");
        *outcome = Some(completed.outcome);
        if *kind == Kind::Read && completed.outcome == Outcome::Done {
            let Payload::Buffer(buffer) = &completed.payload else {
                panic!("a READ brings its buffer back");
            };
            let value = u64::from_ne_bytes(buffer[..8].try_into().expect("8 bytes"));
            // Nobody else writes there, and nothing fails in front of what is done.
            assert_eq!(value, written.unwrap_or(0), "a READ saw something else");
        }
    }

    fn disconnected(&mut self, _: &mut Io<'_>, conn: ConnId, reason: CloseReason) {
        let place = self.place(conn);
        let (_, number, side) = self.conns.remove(place);
        let mut ledger = self.ledger.borrow_mut();
        let direction = ledger.direction(number, side);
        assert_eq!(direction.open_tokens(), 0, "tokens are missing");
        assert_eq!(direction.disconnected, None, "ended twice");
        direction.disconnected = Some(reason);
    }

    fn turn(&mut self, io: &mut Io<'_>) -> spinwire::worker::Turn {
        if self.hoard == 0 {
            self.kept.clear();
        }
        for (nth, order) in std::mem::take(&mut self.orders) {
            self.obey(io, nth, order);
        }
        spinwire::worker::Turn::Idle
    }
}
