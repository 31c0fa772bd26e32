//! A worker's end of the mailbox in the hands of a test: it says what it is told to.
//!
//! ```text
//!  control under test ─ commands ─► Scripted::orders ─► the test
//!                     ◄─ events ── Scripted::say     ◄─┘        (Scripted::obey does as a worker does)
//! ```
//! Keeps the posting halves it was given. For unit tests of control.

use super::{CloseReason, Command, ConnId, Event, Peer, WorkerEnd};
use crate::fabric::Fabric;
use std::collections::HashMap;

/// A command as a test compares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Adopt(ConnId, Option<Peer>),
    Established(ConnId, Peer),
    Stop(ConnId, CloseReason),
    Flush(ConnId),
    QpGone(ConnId),
    DropLane(u8),
    /// Bytes, and lanes that the memory is registered for.
    Grow(usize, Vec<bool>),
    NotGrown(bool),
    Exit,
}

/// An event as a test says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Armed(ConnId),
    Refused(ConnId),
    CloseRequested(ConnId, CloseReason),
    Stopped(ConnId),
    Drained(ConnId),
    Released(ConnId),
    LaneDropped(u8),
    PoolLow,
}

/// The worker's end; dropping it is the death of the worker.
pub(crate) struct Scripted<F: Fabric> {
    end: WorkerEnd<F>,
    qps: HashMap<ConnId, F::Qp>,
    /// An Exit was read.
    pub(crate) told_to_exit: bool,
}

impl<F: Fabric> Scripted<F> {
    pub(crate) fn new(end: WorkerEnd<F>) -> Self {
        let qps = HashMap::new();
        Self {
            end,
            qps,
            told_to_exit: false,
        }
    }

    /// The next command.
    pub(crate) fn order(&mut self) -> Option<Order> {
        Some(match self.end.commands.pop().ok()? {
            Command::Adopt(handover) => {
                let old = self.qps.insert(handover.conn, handover.qp);
                assert!(old.is_none(), "a name is used twice");
                Order::Adopt(handover.conn, handover.peer)
            }
            Command::Established(conn, peer) => Order::Established(conn, peer),
            Command::Stop(conn, reason) => Order::Stop(conn, reason),
            Command::Flush(conn, _) => Order::Flush(conn),
            Command::QpGone(conn) => {
                assert!(!self.qps.contains_key(&conn), "the QP is still here");
                Order::QpGone(conn)
            }
            Command::DropLane(lane) => Order::DropLane(lane),
            Command::Grow(chunk) => {
                let registered = chunk.registrations.iter().map(Option::is_some);
                Order::Grow(chunk.region.len(), registered.collect())
            }
            Command::NotGrown { again } => Order::NotGrown(again),
            Command::Exit => {
                self.told_to_exit = true;
                Order::Exit
            }
        })
    }

    /// Every command that waits.
    pub(crate) fn orders(&mut self) -> Vec<Order> {
        std::iter::from_fn(|| self.order()).collect()
    }

    /// Says something to control. Where a posting half belongs to it, the worker has it.
    pub(crate) fn say(&mut self, answer: Answer) {
        let mut half = |conn| self.qps.remove(&conn).expect("the worker has the QP");
        let event = match answer {
            Answer::Armed(conn) => Event::Armed(conn, 8),
            Answer::Refused(conn) => Event::Refused(conn, half(conn)),
            Answer::CloseRequested(conn, reason) => Event::CloseRequested(conn, reason),
            Answer::Stopped(conn) => Event::Stopped(conn),
            Answer::Drained(conn) => {
                let (qp, missing) = (half(conn), 0);
                Event::Drained { conn, qp, missing }
            }
            Answer::Released(conn) => Event::Released(conn),
            Answer::LaneDropped(lane) => Event::LaneDropped(lane),
            Answer::PoolLow => Event::PoolLow,
        };
        assert!(self.end.events.push(event).is_ok(), "room for an event");
    }

    /// Answers the next command as a worker that has nothing outstanding does. False: none waits.
    pub(crate) fn obey_one(&mut self) -> bool {
        match self.order() {
            Some(Order::Adopt(conn, _)) => self.say(Answer::Armed(conn)),
            Some(Order::Stop(conn, _)) if self.qps.contains_key(&conn) => {
                self.say(Answer::Stopped(conn));
            }
            Some(Order::Flush(conn)) => self.say(Answer::Drained(conn)),
            Some(Order::QpGone(conn)) => self.say(Answer::Released(conn)),
            Some(Order::DropLane(lane)) => self.say(Answer::LaneDropped(lane)),
            Some(
                Order::Stop(..)
                | Order::Established(..)
                | Order::Grow(..)
                | Order::NotGrown(_)
                | Order::Exit,
            ) => {}
            None => return false,
        }
        true
    }
}
