//! A wake-up between processes that do not trust each other.
//!
//! ```text
//!  sleeper  Bell ◄──────── socket pair ────────► Ringer  peer
//!             │ fd: epoll                          ring(): one byte, never waits
//!             └ drain(): all bytes, never waits
//! ```
//! No eventfd: its two holders share one open file, so a peer could take our signals out of it, or make
//! it blocking under us. The two ends of a socket pair share nothing but what is sent.
//!
//! Cold but for [`Ringer::ring`], a system call that only a sleeping peer costs. Imports nothing of ours.
//! Imported by fabric.

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Reads of one [`Bell::drain`], so that a peer that rings without end holds nobody.
const READS_MAX: usize = 16;

/// The sleeper's end.
#[derive(Debug)]
pub struct Bell(OwnedFd);

/// The end of who wakes.
#[derive(Debug)]
pub struct Ringer(OwnedFd);

/// What [`Bell::drain`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// Nothing.
    No,
    /// It was rung.
    Yes,
    /// Nobody can ring it any more. The descriptor stays readable: take it out of the epoll.
    Gone,
}

impl Bell {
    /// A bell, and the descriptor for the peer, who makes a [`Ringer`] of it.
    ///
    /// # Errors
    /// As `socketpair(2)`: mostly `EMFILE`, when `ulimit -n` is too low.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::STREAM;
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
        Ok((Self(ours), theirs))
    }

    /// Makes it unreadable until it is rung again.
    ///
    /// # Errors
    /// As `recv(2)`, though none is known here: a reset counts as gone.
    pub fn drain(&self) -> io::Result<Rung> {
        let mut found = Rung::No;
        let mut bytes = [0_u8; 256];
        for _ in 0..READS_MAX {
            match rustix::net::recv(&self.0, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Ok(Rung::Gone),
                Ok(_) => found = Rung::Yes,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(found)
    }

    /// The descriptor, to be waited for.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

impl Ringer {
    /// The bell that a peer sent a descriptor of, if it can be one: a Unix stream socket, which never
    /// makes who rings wait.
    ///
    /// # Errors
    /// `InvalidData` or `ENOTSOCK`: it is something else.
    pub fn of(fd: OwnedFd) -> io::Result<Self> {
        let unix = rustix::net::sockopt::socket_domain(&fd)? == AddressFamily::UNIX;
        let stream = rustix::net::sockopt::socket_type(&fd)? == SocketType::STREAM;
        if unix && stream {
            return Ok(Self(fd));
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the peer's bell is no Unix stream socket",
        ))
    }

    /// Wakes the peer. A bell that is full of rings is rung.
    ///
    /// # Errors
    /// As `send(2)`: `EPIPE` when the sleeper is gone.
    pub fn ring(&self) -> io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match rustix::net::send(&self.0, &[1], flags) {
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_drained_without_waiting() {
        let (bell, fd) = Bell::new().unwrap();
        let ringer = Ringer::of(fd).unwrap();
        assert_eq!(bell.drain().unwrap(), Rung::No);
        ringer.ring().unwrap();
        ringer.ring().unwrap();
        assert_eq!(bell.drain().unwrap(), Rung::Yes);
        assert_eq!(bell.drain().unwrap(), Rung::No);
        drop(ringer);
        assert_eq!(bell.drain().unwrap(), Rung::Gone);
    }

    #[test]
    fn a_full_bell_is_no_error_and_holds_nobody() {
        let (bell, fd) = Bell::new().unwrap();
        let ringer = Ringer::of(fd).unwrap();
        for _ in 0..5_000 {
            ringer.ring().unwrap();
        }
        while bell.drain().unwrap() == Rung::Yes {}
        ringer.ring().unwrap();
        assert_eq!(bell.drain().unwrap(), Rung::Yes);
        drop(bell);
        assert!(ringer.ring().is_err()); // and no SIGPIPE
    }

    #[test]
    fn a_peer_cannot_make_our_end_wait() {
        let (bell, theirs) = Bell::new().unwrap();
        rustix::fs::fcntl_setfl(&theirs, rustix::fs::OFlags::empty()).unwrap();
        assert_eq!(bell.drain().unwrap(), Rung::No);
    }

    #[test]
    fn what_is_no_bell_is_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Ringer::of(file.into()).is_err());
        let (datagram, _other) = std::os::unix::net::UnixDatagram::pair().unwrap();
        assert!(Ringer::of(datagram.into()).is_err());
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(Ringer::of(tcp.into()).is_err());
    }
}
