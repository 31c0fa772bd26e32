//! Closing descriptors that strangers have a hand in, which may take as long as they like.
//!
//! ```text
//!  Foreign ─ drop ─► queue ─► a few threads, made when needed, gone when idle ─► close
//! ```
//! The last close of a TCP socket waits for its `SO_LINGER`, one of a file of FUSE for whoever serves it,
//! and one of a Unix socket for all descriptors that were sent to it and never received, however deep. A
//! peer that sends such a descriptor, or leaves it in our socket, would stop the thread that closes.
//!
//! Cold. Imports nothing of ours. Imported by the other files of this folder that talk to peers.

#![allow(unsafe_code, reason = "takes a descriptor out of what drops")]

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, Shutdown};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Closes that may hang before others have to wait for them.
const THREADS_MAX: usize = 16;
/// A thread that has had nothing to close for so long ends.
const IDLE: Duration = Duration::from_millis(500);
/// They call close and nothing else.
const STACK_BYTES: usize = 64 << 10;

/// A descriptor that came from a peer, or that a peer can leave something in. Dropping it never waits.
#[derive(Debug)]
pub struct Foreign(ManuallyDrop<OwnedFd>);

impl Foreign {
    /// For who knows by now that closing it does not wait.
    #[must_use]
    pub fn trusted(self) -> OwnedFd {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `take` requires that it is not used again: `this` is never dropped, and goes here.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
}

impl From<OwnedFd> for Foreign {
    fn from(fd: OwnedFd) -> Self {
        Self(ManuallyDrop::new(fd))
    }
}

impl AsFd for Foreign {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: `take` requires that it is not used again: this is the drop.
        let fd = unsafe { ManuallyDrop::take(&mut self.0) };
        CLOSERS.close(fd);
    }
}

/// A socket with a peer at its other end. Who is there hears of the drop at once, though the closing may
/// take its time.
#[derive(Debug)]
pub(super) struct ForeignSocket(Foreign);

impl<T: Into<Foreign>> From<T> for ForeignSocket {
    fn from(fd: T) -> Self {
        Self(fd.into())
    }
}

impl AsFd for ForeignSocket {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for ForeignSocket {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.0, Shutdown::Both);
    }
}

/// Descriptors that the kernel lets one message bring. There is room for all wherever a peer's are received,
/// though none of ours brings so many: what finds no room the kernel closes at once, and that may wait.
pub(super) const SENT_MAX: usize = 253;

/// Owns the descriptors that a message brought. `None` if it brought nothing beside its bytes.
pub(super) fn brought(control: &mut RecvAncillaryBuffer<'_>) -> Option<Vec<Foreign>> {
    let mut fds = None;
    for message in control.drain() {
        let fds = fds.get_or_insert_with(Vec::new);
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights.map(Foreign::from));
        }
    }
    fds
}

#[derive(Debug)]
struct Work {
    queue: VecDeque<OwnedFd>,
    threads: usize,
    idle: usize,
}

#[derive(Debug)]
struct Closers {
    work: Mutex<Work>,
    came: Condvar,
}

static CLOSERS: Closers = Closers {
    work: Mutex::new(Work {
        queue: VecDeque::new(),
        threads: 0,
        idle: 0,
    }),
    came: Condvar::new(),
};

impl Closers {
    fn work(&self) -> MutexGuard<'_, Work> {
        // Nothing under the lock panics.
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&'static self, fd: OwnedFd) {
        let mut work = self.work();
        work.queue.push_back(fd);
        if work.queue.len() <= work.idle {
            self.came.notify_one();
            return;
        }
        if work.threads == THREADS_MAX {
            return;
        }
        let thread = thread::Builder::new()
            .name("spinwire-close".into())
            .stack_size(STACK_BYTES);
        if thread.spawn(|| self.run()).is_ok() {
            work.threads += 1;
        } else if work.threads == 0 {
            // No thread is to be had: better here than never.
            let queue = std::mem::take(&mut work.queue);
            drop(work);
            drop(queue);
        }
    }

    fn run(&self) {
        let mut work = self.work();
        loop {
            if let Some(fd) = work.queue.pop_front() {
                drop(work);
                // Of a socket that is to wait before it closes, the common case. Even this may wait, for
                // whoever holds the socket's lock.
                let _ = rustix::net::sockopt::set_socket_linger(&fd, None);
                drop(fd);
                work = self.work();
                continue;
            }
            work.idle += 1;
            let waited = self.came.wait_timeout(work, IDLE);
            let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            work = again;
            work.idle -= 1;
            if timeout.timed_out() && work.queue.is_empty() {
                work.threads -= 1;
                return;
            }
        }
    }
}

/// Descriptors whose close waits, for tests.
#[cfg(test)]
pub(crate) mod slow {
    use std::io::{ErrorKind, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::time::{Duration, Instant};

    /// How long closing one takes.
    pub(crate) const LINGERS: Duration = Duration::from_secs(5);

    /// A TCP socket full of what nobody reads, and what keeps it so.
    pub(crate) fn descriptor() -> (OwnedFd, impl Sized) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        loop {
            match socket.write(&[0; 65_536]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        rustix::net::sockopt::set_socket_linger(&socket, Some(LINGERS)).unwrap();
        (socket.into(), (listener, other))
    }

    /// Fails where it takes long.
    pub(crate) fn is_quick<T>(does: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let result = does();
        let took = begin.elapsed();
        assert!(took < LINGERS / 2, "it took {took:?}");
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn who_drops_does_not_wait_and_what_is_dropped_is_closed() {
        let (fd, _kept) = slow::descriptor();
        slow::is_quick(|| drop(Foreign::from(fd)));
        // Others are not kept either, by however many.
        let slow: Vec<_> = (0..2 * THREADS_MAX).map(|_| slow::descriptor()).collect();
        let (fds, _kept): (Vec<_>, Vec<_>) = slow.into_iter().unzip();
        slow::is_quick(|| fds.into_iter().map(Foreign::from).for_each(drop));
        for _ in 0..100 {
            let (one, mut other) = UnixStream::pair().unwrap();
            drop(Foreign::from(OwnedFd::from(one)));
            assert_eq!(slow::is_quick(|| other.read(&mut [0]).unwrap()), 0);
        }
    }

    #[test]
    fn a_trusted_one_is_closed_by_its_owner() {
        let (one, mut other) = UnixStream::pair().unwrap();
        drop(Foreign::from(OwnedFd::from(one)).trusted());
        other.set_nonblocking(true).unwrap();
        assert_eq!(other.read(&mut [0]).unwrap(), 0);
    }
}
