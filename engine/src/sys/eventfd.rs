//! A counter in the kernel that wakes whoever waits for it.
//!
//! ```text
//!  signal (+1) ─► [ count ] ─► readable while > 0 ─► epoll ─► drain (= 0)
//! ```
//! It counts, so a signal that comes before the wait is not lost; [`crate::ring::sleep`] decides when
//! one is needed. Imports nothing of ours. Imported by worker, fabric and control.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A non-blocking, close-on-exec eventfd.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Makes one that nobody has signalled.
    ///
    /// # Errors
    ///
    /// As `eventfd(2)`: mostly `EMFILE`, when `ulimit -n` is too low.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self(fd))
    }

    /// Another descriptor of the same counter, for another owner.
    ///
    /// # Errors
    ///
    /// As `dup(2)`.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    /// Makes it readable. One system call, so ask [`crate::ring::sleep::Waker::wake_needed`] first.
    ///
    /// # Errors
    ///
    /// As `write(2)`, though none is known for an eventfd of ours: a full counter is readable already,
    /// so it counts as success.
    pub fn signal(&self) -> io::Result<()> {
        loop {
            match rustix::io::write(&self.0, &1_u64.to_ne_bytes()) {
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Makes it unreadable until the next signal. Returns how many there were, 0 if none.
    ///
    /// # Errors
    ///
    /// As `read(2)`, though none is known for an eventfd of ours.
    pub fn drain(&self) -> io::Result<u64> {
        let mut count = [0; 8];
        loop {
            match rustix::io::read(&self.0, &mut count) {
                Ok(_) => return Ok(u64::from_ne_bytes(count)),
                Err(Errno::AGAIN) => return Ok(0),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The descriptor, to be waited for.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

#[cfg(test)]
mod tests {
    use super::EventFd;

    #[test]
    fn counts_and_drains_without_blocking() {
        let event = EventFd::new().unwrap();
        assert_eq!(event.drain().unwrap(), 0);
        event.signal().unwrap();
        event.try_clone().unwrap().signal().unwrap();
        assert_eq!(event.drain().unwrap(), 2);
        assert_eq!(event.drain().unwrap(), 0);
    }

    #[test]
    fn a_full_counter_is_no_error() {
        let event = EventFd::new().unwrap();
        rustix::io::write(event.fd(), &(u64::MAX - 1).to_ne_bytes()).unwrap();
        event.signal().unwrap();
        assert_eq!(event.drain().unwrap(), u64::MAX - 1);
    }
}
