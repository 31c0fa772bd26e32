//! Events of the connection manager: some turned into errors, Established sometimes late.
//!
//! ```text
//!  F::next_event ─► dice ─┬─► as it is, or as an error of the same step
//!                         └─► held, with all that follows for the same id, for some looks ─► out
//! ```
//! While something is held the descriptor is readable, so that whoever waits for it looks again.
//! Imported by mod.

use super::both;
use super::profile::{Dice, Profile};
use crate::fabric::{CmEvent, CmEventKind, Fabric, FabricError, IdKey, PrivateData};
use crate::sys::epoll::Epoll;
use crate::sys::eventfd::EventFd;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

/// Events that are held back.
pub(super) struct Held<I> {
    events: VecDeque<(CmEvent<I>, u64)>,
    /// Times that somebody looked for an event.
    looks: u64,
    dice: Dice,
    profile: Profile,
    bell: EventFd,
    wait: Epoll,
}

impl<I> Held<I> {
    pub(super) fn new(inner: BorrowedFd<'_>, dice: Dice, profile: Profile) -> io::Result<Self> {
        let bell = EventFd::new()?;
        Ok(Self {
            events: VecDeque::new(),
            looks: 0,
            dice,
            profile,
            wait: both(inner, &bell)?,
            bell,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wait.fd()
    }

    /// Readable just as long as something is held; an eventfd of ours cannot fail.
    fn settle(&self) {
        let _ = if self.events.is_empty() {
            self.bell.drain().map(drop)
        } else {
            self.bell.signal()
        };
    }

    pub(super) fn next<F>(&mut self, inner: &mut F) -> Result<Option<CmEvent<I>>, FabricError>
    where
        F: Fabric<Id = I>,
    {
        self.looks += 1;
        if let Some(place) = self.events.iter().position(|(_, due)| *due <= self.looks) {
            let event = self.events.remove(place);
            self.settle();
            return Ok(event.map(|(event, _)| event));
        }
        while let Some(mut event) = inner.next_event()? {
            self.spoil(&mut event);
            let behind = self.events.iter().rev().find(|(e, _)| e.id == event.id);
            let due = match behind {
                Some((_, due)) => *due,
                None if event.kind == CmEventKind::Established
                    && self.dice.hit(self.profile.late) =>
                {
                    self.looks + self.dice.some_of(self.profile.polls_max)
                }
                None => return Ok(Some(event)),
            };
            self.events.push_back((event, due));
            self.settle();
        }
        Ok(None)
    }

    /// Turns a step of the handshake into its failure.
    fn spoil(&mut self, event: &mut CmEvent<I>) {
        let failure = match event.kind {
            CmEventKind::AddrResolved => CmEventKind::AddrError,
            CmEventKind::RouteResolved => CmEventKind::RouteError,
            CmEventKind::ConnectResponse | CmEventKind::Established => CmEventKind::Unreachable,
            _ => return,
        };
        if self.dice.hit(self.profile.unreachable) {
            event.kind = failure;
            event.status = -libc::ETIMEDOUT;
            event.private_data = PrivateData::EMPTY;
        }
    }

    /// What is held for an id is due.
    pub(super) fn release(&mut self, id: IdKey) {
        for (event, due) in &mut self.events {
            if event.id == id {
                *due = 0;
            }
        }
    }

    /// An id is destroyed, and its events with it.
    pub(super) fn forget(&mut self, id: IdKey) {
        self.events.retain(|(event, _)| event.id != id);
        self.settle();
    }
}
