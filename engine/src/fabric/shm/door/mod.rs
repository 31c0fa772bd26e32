//! The connection manager of shared memory: two processes find each other by a name, check each other, and
//! exchange the memory that their messages go through. Events come as those of rdma_cm on IB.
//!
//! ```text
//!  listen(NAME) ─► DIR/NAME ◄─ connect ─ dial(NAME)            calls.rs   what the embedder does
//!       └─ accept, SO_PEERCRED ─┐   ┌─ SO_PEERCRED             hear.rs    what arrives, and when time is up
//!                          link.rs: which frame may come when
//!  frames.rs: the frames    ends.rs: what they bring           dir.rs, listener.rs: names and files
//!
//!  one epoll ─┬ sockets, one a connection
//!             ├ timer: deadlines                  (alarms.rs)
//!             └ bell: an event waits              next() ─► DoorEvent
//! ```
//! A peer is hostile until checked, and after that as well: descriptors are counted, memory is what it is
//! said to be and sealed before it is touched, frames come in one order, and what waits for the peer is
//! bounded in number and time. A peer that breaks a rule loses its connection; others are none the worse.
//!
//! Everything is done inside `next` and the calls, which never wait for a peer. Imports sys, types, limits
//! and the geometry of an inbox. Imported by the fabric of this folder.

mod alarms;
mod calls;
mod dir;
mod ends;
mod frames;
mod hear;
mod link;
mod listener;

pub(super) use ends::{CmNews, DoorEvent, Grant, GrantedRegion, Offer, PeerEnd};
#[doc(hidden)]
pub use frames::fuzz_frame;

use crate::sys::epoll::Epoll;
use crate::sys::eventfd::EventFd;
use alarms::Alarms;
use dir::Places;
use link::Link;
use listener::Listener;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Tokens of the epoll that are no key.
const TIMER: u64 = 0;
const BELL: u64 = u64::MAX;
/// Frames that one call of `next` handles before it comes back, with an event or without.
const FRAMES_A_CALL: usize = 64;
/// A peer that does not answer within this time does not answer.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// Where names are, and whom to talk to.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The directory of sockets; `None`: that of `SPINWIRE_SHM_DIR`, or the usual ones.
    pub(super) dir: Option<PathBuf>,
    /// Users whose processes may connect to us and be connected to. Whoever they let in can use up threads and
    /// descriptors that are kept for closing what takes long to close, such as a file of a file system of its
    /// own (FUSE): others are not kept waiting, but new ones may be turned away.
    pub(super) uids: Vec<u32>,
    /// How long each side waits for the other in a handshake, and for the answer to a disconnect.
    pub(super) timeout: Duration,
}

impl Default for Settings {
    /// The usual directories, our own user and root, five seconds.
    fn default() -> Self {
        Self {
            dir: None,
            uids: vec![rustix::process::geteuid().as_raw(), 0],
            timeout: TIMEOUT_DEFAULT,
        }
    }
}

/// The connection manager of one fabric. Ends and listeners are known by keys, which are never used again.
#[derive(Debug)]
pub(super) struct Door {
    settings: Settings,
    places: Places,
    epoll: Epoll,
    bell: EventFd,
    /// The bell was rung, and not drained since.
    rung: bool,
    alarms: Alarms,
    listeners: BTreeMap<u64, Listener>,
    links: BTreeMap<u64, Link>,
    events: VecDeque<DoorEvent>,
    last_key: u64,
}

impl Door {
    /// A door that nobody knows yet.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn open(settings: Settings) -> io::Result<Self> {
        let (epoll, bell, alarms) = (Epoll::new()?, EventFd::new()?, Alarms::new()?);
        epoll.add(&bell, BELL)?;
        epoll.add(alarms.timer(), TIMER)?;
        Ok(Self {
            places: Places::new(settings.dir.clone()),
            settings,
            epoll,
            bell,
            rung: false,
            alarms,
            listeners: BTreeMap::new(),
            links: BTreeMap::new(),
            events: VecDeque::new(),
            last_key: TIMER,
        })
    }

    /// Readable when [`next`](Self::next) has something to tell or to do. Level-triggered.
    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        self.epoll.fd()
    }

    /// The next event. Handles what has arrived if none waits, a bounded part of it: `None` means that
    /// there is nothing to tell now, and the descriptor is readable if there is more to handle.
    ///
    /// # Errors
    /// The epoll or the timer failed, which none of ours is known to do.
    pub(super) fn next(&mut self) -> io::Result<Option<DoorEvent>> {
        let mut frames = FRAMES_A_CALL;
        while self.events.is_empty() && frames > 0 && self.look(&mut frames)? {}
        let event = self.events.pop_front();
        self.settle()?;
        Ok(event)
    }

    /// The name that a listener is at, or what an end calls itself.
    pub(super) fn local(&self, key: u64) -> Option<String> {
        let listener = || self.listeners.get(&key).map(|l| l.name.clone());
        let link = self.links.get(&key).map(|link| link.local.clone());
        link.or_else(listener)
    }

    /// What the peer of an end calls itself.
    pub(super) fn peer(&self, key: u64) -> Option<String> {
        self.links.get(&key).map(|link| link.remote.clone())
    }

    /// A key that nothing else of this door ever had.
    fn number(&mut self) -> u64 {
        self.last_key += 1;
        self.last_key
    }

    fn raise(&mut self, event: DoorEvent) {
        self.events.push_back(event);
    }

    /// The descriptor says what is so. Called at the end of whatever changes it.
    fn settle(&mut self) -> io::Result<()> {
        let waits = !self.events.is_empty();
        if waits && !self.rung {
            self.bell.signal()?;
        } else if !waits && self.rung {
            self.bell.drain()?;
        }
        self.rung = waits;
        self.alarms.settle()
    }

    /// When the phase that an end is about to enter ends for want of an answer.
    fn deadline(&self) -> Option<Instant> {
        Instant::now().checked_add(self.settings.timeout)
    }
}

fn wrong_state() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

fn peer_gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ECONNRESET)
}

#[cfg(test)]
mod tests;
