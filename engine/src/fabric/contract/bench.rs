//! What a case works on: the fabric, the events that wait, and all that the case made.
//!
//! Everything made is kept in tables here and named by index, so that [`clean`](super::clean) can
//! destroy it after a case that failed half way. Imports side, connection, memory, clean.

use super::Failure;
use super::connection::Conn;
use super::memory::Memory;
use super::side::Side;
use crate::fabric::{CmEvent, CmEventKind, Endpoint, Fabric, IdKey};
use crate::types::DeviceLimits;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// What must happen happens within this. A device in an emulated machine is slow.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// What must not happen is waited for so long.
pub(super) const QUIET: Duration = Duration::from_millis(60);

/// An end's lane and memory, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SideId(pub(super) usize);
/// One end of a connection, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnId(pub(super) usize);
/// A listener, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListenerId(usize);

/// The table on which one case works. Its fields are open to the files of this folder.
pub(super) struct Bench<'a, F: Fabric> {
    pub(super) fabric: &'a mut F,
    pub(super) at: Endpoint,
    // QPs go before lanes and memory, should a case panic.
    pub(super) conns: Vec<Conn<F>>,
    pub(super) sides: Vec<Side<F>>,
    pub(super) memories: Vec<Memory>,
    pub(super) listeners: Vec<Option<F::Id>>,
    pub(super) events: VecDeque<CmEvent<F::Id>>,
    /// Names of device events that came during the case.
    pub(super) async_events: Vec<String>,
    next_wr_id: u64,
}

impl<'a, F: Fabric> Bench<'a, F> {
    pub(super) fn new(fabric: &'a mut F, at: Endpoint) -> Self {
        Self {
            fabric,
            at,
            sides: Vec::new(),
            memories: Vec::new(),
            conns: Vec::new(),
            listeners: Vec::new(),
            events: VecDeque::new(),
            async_events: Vec::new(),
            // High bits that a fabric might be tempted to use.
            next_wr_id: 0xa5c3_0000_0000_0000,
        }
    }

    /// Runs `work`, then destroys all that it made. Both must succeed.
    pub(super) fn finish<T>(
        mut self,
        work: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let result = work(&mut self);
        let cleaned = self.clean();
        let events = std::mem::take(&mut self.async_events);
        match (result, cleaned) {
            (Ok(value), Ok(())) => Ok(value),
            (Ok(_), Err(failure)) => Err(failure.during("cleaning up")),
            (Err(failure), _) if events.is_empty() => Err(failure),
            (Err(failure), _) => Err(Failure::new(format!(
                "{failure}; device events: {}",
                events.join(", ")
            ))),
        }
    }

    /// Limits of the device by which the target is reached.
    pub(super) fn probe(&mut self) -> Result<DeviceLimits, Failure> {
        let (_, to) = self.listen()?;
        let conn = self.resolve(&to)?;
        let device = self.device_of(conn)?;
        Ok(F::limits(&device).clone())
    }

    /// A wr_id that no other work request has.
    pub(super) fn wr_id(&mut self) -> u64 {
        self.next_wr_id += 1;
        self.next_wr_id
    }

    /// Listens where the target says; where that is a name, each listener of a case has one of its
    /// own. Gives the address to connect to.
    pub(super) fn listen(&mut self) -> Result<(ListenerId, Endpoint), Failure> {
        let at = match &self.at {
            Endpoint::Shm(name) => Endpoint::Shm(format!("{name}.{}", self.listeners.len())),
            Endpoint::Rdma(_) => self.at.clone(),
        };
        let id = self.fabric.listen(&at, 16)?;
        let listener = ListenerId(self.listeners.len());
        let to = self.fabric.local_endpoint(&id);
        self.listeners.push(Some(id));
        let to = to.ok_or_else(|| Failure::new("a listener has no local endpoint"))?;
        Ok((listener, to))
    }

    /// Stops listening.
    pub(super) fn unlisten(&mut self, listener: ListenerId) {
        if let Some(id) = self.listeners[listener.0].take() {
            self.fabric.destroy_id(id);
        }
    }

    /// Takes the next request at a listener. The caller owns its id.
    pub(super) fn request(&mut self, at: ListenerId) -> Result<CmEvent<F::Id>, Failure> {
        let key = self.listeners[at.0].as_ref().map(F::key);
        let key = key.ok_or_else(|| Failure::new("the case does not listen there"))?;
        self.event(key, "a connection request", &[CmEventKind::ConnectRequest])
    }

    /// Takes the next event of an id, which must be one of `kinds`. TimewaitExit is passed over.
    pub(super) fn event(
        &mut self,
        key: IdKey,
        what: &str,
        kinds: &[CmEventKind],
    ) -> Result<CmEvent<F::Id>, Failure> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let next = self.events.iter().position(|e| e.id == key);
            if let Some(event) = next.and_then(|at| self.events.remove(at)) {
                if kinds.contains(&event.kind) {
                    return Ok(event);
                }
                if event.kind == CmEventKind::TimewaitExit {
                    continue;
                }
                let seen = format!("{:?} (status {})", event.kind, event.status);
                self.discard(event);
                return Err(Failure::new(format!("awaited {what}, but {seen} came")));
            }
            if !self.pump(deadline)? {
                let waiting: Vec<_> = self.events.iter().map(|e| e.kind).collect();
                return Err(Failure::new(format!(
                    "awaited {what} for {} s; events of other ids: {waiting:?}",
                    PATIENCE.as_secs()
                )));
            }
        }
    }

    /// Reads events once the event fd is readable, and never before. False after the deadline.
    pub(super) fn pump(&mut self, deadline: Instant) -> Result<bool, Failure> {
        self.note_async_events();
        let left = deadline.saturating_duration_since(Instant::now());
        if !readable(self.fabric.event_fd(), left)? {
            return Ok(false);
        }
        while let Some(event) = self.fabric.next_event()? {
            self.events.push_back(event);
        }
        Ok(true)
    }

    pub(super) fn note_async_events(&mut self) {
        while let Some(event) = self.fabric.next_async_event() {
            self.async_events
                .push(format!("{} on {}", event.name, event.device));
        }
    }

    /// Drops an event; a request's id is destroyed.
    pub(super) fn discard(&mut self, event: CmEvent<F::Id>) {
        if let Some(id) = event.request {
            self.fabric.destroy_id(id);
        }
    }
}

/// Whether a file descriptor becomes readable within `wait`.
pub(super) fn readable(fd: BorrowedFd<'_>, wait: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(wait).map_err(|_| io::ErrorKind::InvalidInput)?;
    loop {
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(n) => return Ok(n > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
