//! Waiting for many file descriptors at once.
//!
//! ```text
//!  add(fd, token) ─► [ epoll ] ─► wait(timeout, &mut events) ─► tokens of the readable ones
//! ```
//! Level-triggered and for reading only: a descriptor is reported until it is drained. An `Epoll` is a
//! descriptor too, so an embedder can put it into an epoll of its own.
//! Cold: for the control core, and for workers that sleep. Imports nothing of ours. Imported by worker
//! and control.

#![allow(
    unsafe_code,
    reason = "Events may cross threads although its data could be pointers"
)]

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Tokens that one [`Epoll::wait`] can report; what does not fit is reported by the next.
const EVENTS_MAX: usize = 64;

/// The kernel cannot wait longer in one go before Linux 5.11; 24 days are as good as any.
const TIMEOUT_MAX: Duration = Duration::from_millis(i32::MAX as u64);

/// A set of descriptors to wait for.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

/// Room for what one [`Epoll::wait`] reports. Made once, used for ever.
pub struct Events(Vec<Event>);

// SAFETY: `Send` requires that another thread may use it: an event is a bit set and 64 bits of data, which
// could be a pointer, but are a token here, as `Epoll::add` alone puts them in.
unsafe impl Send for Events {}

impl Epoll {
    /// An empty set, closed on exec.
    ///
    /// # Errors
    ///
    /// As `epoll_create1(2)`: mostly `EMFILE`, when `ulimit -n` is too low.
    pub fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Reports `token` from now on whenever `fd` is readable, has failed, or was hung up.
    ///
    /// # Errors
    ///
    /// As `epoll_ctl(2)`: `EEXIST` for a descriptor that is in already, `EPERM` for a plain file.
    pub fn add(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        let data = EventData::new_u64(token);
        Ok(epoll::add(&self.0, fd, data, EventFlags::IN)?)
    }

    /// Forgets `fd`. To be called before it is closed: closing alone forgets only if no duplicate is
    /// left.
    ///
    /// # Errors
    ///
    /// As `epoll_ctl(2)`: `ENOENT` for a descriptor that is not in.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.0, fd)?)
    }

    /// Waits until a descriptor is readable or `timeout` is over (`None`: for ever), rounded up to
    /// what the kernel can do. Reports nothing after a timeout, and nothing after a signal handler ran,
    /// so that the caller looks at its flags and clocks.
    ///
    /// # Errors
    ///
    /// As `epoll_wait(2)`.
    pub fn wait<'e>(
        &self,
        timeout: Option<Duration>,
        events: &'e mut Events,
    ) -> io::Result<impl Iterator<Item = u64> + use<'e>> {
        let timeout = timeout.map(|wanted| {
            let wanted = wanted.min(TIMEOUT_MAX);
            Timespec {
                tv_sec: wanted.as_secs().cast_signed(),
                tv_nsec: wanted.subsec_nanos().into(),
            }
        });
        events.0.clear();
        match epoll::wait(
            &self.0,
            rustix::buffer::spare_capacity(&mut events.0),
            timeout.as_ref(),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(events.0.iter().map(|event| event.data.u64()))
    }

    /// The descriptor: readable while a descriptor in the set is.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

impl Events {
    /// Room for 64 tokens.
    #[must_use]
    pub fn new() -> Self {
        Self(Vec::with_capacity(EVENTS_MAX))
    }
}

impl Default for Events {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|event| event.data.u64()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::eventfd::EventFd;

    const NOW: Option<Duration> = Some(Duration::ZERO);

    fn tokens(epoll: &Epoll, timeout: Option<Duration>) -> Vec<u64> {
        let mut events = Events::new();
        let mut tokens: Vec<_> = epoll.wait(timeout, &mut events).unwrap().collect();
        tokens.sort_unstable();
        tokens
    }

    #[test]
    fn reports_tokens_of_the_readable() {
        let epoll = Epoll::new().unwrap();
        let events = [(); 3].map(|()| EventFd::new().unwrap());
        for (event, token) in events.iter().zip([7, u64::MAX, 9]) {
            epoll.add(event, token).unwrap();
        }
        assert_eq!(tokens(&epoll, NOW), [0_u64; 0]);
        events[1].signal().unwrap();
        events[2].signal().unwrap();
        assert_eq!(tokens(&epoll, None), [9, u64::MAX]);
        assert_eq!(tokens(&epoll, None), [9, u64::MAX]); // level-triggered
        events[2].drain().unwrap();
        epoll.remove(&events[1]).unwrap();
        assert_eq!(tokens(&epoll, NOW), [0_u64; 0]);
        assert!(epoll.remove(&events[1]).is_err());
    }

    #[test]
    fn nests() {
        let (outer, inner) = (Epoll::new().unwrap(), Epoll::new().unwrap());
        let event = EventFd::new().unwrap();
        inner.add(&event, 1).unwrap();
        outer.add(&inner, 2).unwrap();
        event.signal().unwrap();
        assert_eq!(tokens(&outer, NOW), [2]);
    }

    #[test]
    fn timeouts_are_neither_cut_nor_refused() {
        let epoll = Epoll::new().unwrap();
        let start = std::time::Instant::now();
        assert_eq!(
            tokens(&epoll, Some(Duration::from_micros(1500))),
            [0_u64; 0]
        );
        assert!(start.elapsed() >= Duration::from_micros(1500));
        let event = EventFd::new().unwrap();
        event.signal().unwrap();
        epoll.add(&event, 3).unwrap();
        assert_eq!(tokens(&epoll, Some(Duration::MAX)), [3]);
    }
}
