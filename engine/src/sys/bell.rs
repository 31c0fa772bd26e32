//! A wake-up between processes that do not trust each other.
//!
//! ```text
//!  sleeper  Bell ◄──────── socket pair ────────► Ringer  peer
//!             │ fd: epoll                          ring(): one byte, never waits
//!             └ drain(): all bytes, never waits
//! ```
//! No eventfd: its two holders share one open file, so a peer could take our signals out of it, or make
//! it blocking under us. The two ends of a socket pair share nothing but what is sent. A ring brings no
//! descriptors; those of a peer that sends some are taken, as the kernel would close them here and now.
//!
//! Cold but for [`Ringer::ring`], a system call that only a sleeping peer costs. Imports closing.
//! Imported by fabric.

use super::closing::{Foreign, ForeignSocket, SENT_MAX, brought};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendFlags, SocketFlags, SocketType,
};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Reads of one [`Bell::drain`], so that a peer that rings without end holds nobody.
const READS_MAX: usize = 16;

/// The sleeper's end.
#[derive(Debug)]
pub struct Bell(ForeignSocket);

/// The end of who wakes.
#[derive(Debug)]
pub struct Ringer(ForeignSocket);

/// What [`Bell::drain`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// Nothing.
    No,
    /// It was rung.
    Yes,
    /// Nobody can ring it any more, or who can is hostile. The descriptor stays readable: take it out of the epoll.
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
        Ok((Self(ours.into()), theirs))
    }

    /// Makes it unreadable until it is rung again.
    ///
    /// # Errors
    /// As `recv(2)`, though none is known here: a reset counts as gone.
    pub fn drain(&self) -> io::Result<Rung> {
        let mut found = Rung::No;
        let mut bytes = [0_u8; 256];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT_MAX))];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        for _ in 0..READS_MAX {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let buffer = &mut [IoSliceMut::new(&mut bytes)];
            match rustix::net::recvmsg(&self.0, buffer, &mut control, flags) {
                Ok(got) => {
                    let brings = brought(&mut control).is_some();
                    if got.bytes == 0 || brings || got.flags.contains(ReturnFlags::CTRUNC) {
                        return Ok(Rung::Gone);
                    }
                    found = Rung::Yes;
                }
                Err(Errno::CONNRESET) => return Ok(Rung::Gone),
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
    pub fn of(fd: impl Into<Foreign>) -> io::Result<Self> {
        let fd = fd.into();
        let unix = rustix::net::sockopt::socket_domain(&fd)? == AddressFamily::UNIX;
        let stream = rustix::net::sockopt::socket_type(&fd)? == SocketType::STREAM;
        if unix && stream {
            return Ok(Self(fd.into()));
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
        assert!(Ringer::of(OwnedFd::from(file)).is_err());
        let (datagram, _other) = std::os::unix::net::UnixDatagram::pair().unwrap();
        assert!(Ringer::of(OwnedFd::from(datagram)).is_err());
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(Ringer::of(OwnedFd::from(tcp)).is_err());
    }

    #[test]
    fn a_peer_cannot_make_us_wait_for_a_close() {
        use crate::sys::closing::slow;
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage};
        let ring_with = |theirs: &OwnedFd| {
            let (fd, kept) = slow::descriptor();
            let fds = [fd.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            let byte = [io::IoSlice::new(b"x")];
            rustix::net::sendmsg(theirs, &byte, &mut control, SendFlags::empty()).unwrap();
            kept
        };
        let (bell, theirs) = Bell::new().unwrap();
        let _kept = (ring_with(&theirs), ring_with(&theirs));
        assert_eq!(slow::is_quick(|| bell.drain().unwrap()), Rung::Gone);
        slow::is_quick(|| drop(bell));
        // What it gives us for a bell may hold some as well.
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let _kept = ring_with(&theirs.into());
        let ringer = Ringer::of(OwnedFd::from(ours)).unwrap();
        slow::is_quick(|| drop(ringer));
    }
}
