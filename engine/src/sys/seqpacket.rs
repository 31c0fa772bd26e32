//! Unix sockets that carry whole messages, and descriptors with them.
//!
//! ```text
//!  Seqpacket::listen(path) ─accept─► Seqpacket ◄─ frames and descriptors ─► Seqpacket::connect(path)
//!                                       └ peer(): pid and uid as the kernel knows them ┘
//! ```
//! Nothing here waits. A frame goes out whole or not at all, so there is no half-sent state. What comes
//! in is bounded by the buffer and by [`FDS_MAX`]; more of either is told apart, never cut in silence.
//! Whatever a peer sends is closed without waiting, and so is a socket in which it left something.
//! Cold. Imports closing. Imported by fabric.

#![allow(
    unsafe_code,
    reason = "rustix takes no pid 0 from SO_PEERCRED, and has no TIOCOUTQ"
)]

use super::closing::{Foreign, ForeignSocket, SENT_MAX, brought};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

/// Descriptors that one frame can bring.
pub const FDS_MAX: usize = 3;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// A socket: a listener, or one end of a connection.
#[derive(Debug)]
pub struct Seqpacket(ForeignSocket);

/// Who is at the other end, as it was when it called connect or listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its process; 0 where it has no number in our namespace.
    pub pid: i32,
    /// Its effective user.
    pub uid: u32,
}

/// What [`Seqpacket::recv`] found.
#[derive(Debug)]
pub enum Received {
    /// Nothing yet.
    Nothing,
    /// The peer is gone, and all it sent was read. An empty message counts as this.
    Closed,
    /// A whole frame.
    Frame {
        /// Bytes of it, at the front of the buffer.
        len: usize,
        /// The descriptors that came with it, closed on exec.
        fds: Vec<Foreign>,
    },
    /// A message that was longer than the buffer, or had more than [`FDS_MAX`] descriptors, or that we were
    /// out of descriptors for. It is lost.
    Cut,
}

impl Seqpacket {
    /// Listens at a path that is free.
    ///
    /// # Errors
    /// `EADDRINUSE` where the path exists, otherwise as `bind(2)` and `listen(2)`.
    pub fn listen(path: &Path, backlog: u32) -> io::Result<Self> {
        let socket = open()?;
        rustix::net::bind(&socket.0, &SocketAddrUnix::new(path)?)?;
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        rustix::net::listen(&socket.0, backlog.max(1))?;
        Ok(socket)
    }

    /// Takes the next connection, `None` when there is none.
    ///
    /// # Errors
    /// As `accept(2)`: mostly `EMFILE`, when `ulimit -n` is too low.
    pub fn accept(&self) -> io::Result<Option<Self>> {
        loop {
            match rustix::net::accept_with(&self.0, FLAGS) {
                Ok(fd) => return Ok(Some(Self(fd.into()))),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Connects to a listener, at once or not at all.
    ///
    /// # Errors
    /// `ENOENT` and `ECONNREFUSED` when nobody listens, `EAGAIN` when the listener's backlog is full,
    /// otherwise as `connect(2)`.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = open()?;
        rustix::net::connect(&socket.0, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    }

    /// Who is at the other end.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn peer(&self) -> io::Result<Peer> {
        let mut found = libc::ucred {
            pid: 0,
            uid: u32::MAX,
            gid: u32::MAX,
        };
        let mut len = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
        // SAFETY: `getsockopt` requires an option buffer of `len` writable bytes and a length to update:
        // both are locals, `len` is the buffer's size, and any bytes make a `ucred`.
        let result = unsafe {
            libc::getsockopt(
                self.0.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut len,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Peer {
            pid: found.pid,
            uid: found.uid,
        })
    }

    /// Sends a frame with descriptors, at most [`FDS_MAX`].
    ///
    /// # Errors
    /// `EAGAIN` when the peer has left too much unread, `EPIPE` or `ECONNRESET` when it is gone,
    /// `ETOOMANYREFS` when too many descriptors of ours are on their way.
    pub fn send(&self, frame: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if fds.len() > FDS_MAX
            || !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds))
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match rustix::net::sendmsg(&self.0, &[IoSlice::new(frame)], &mut control, flags) {
                Ok(sent) if sent == frame.len() => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Bytes of kernel memory that frames take which were sent and not read yet: several hundred a frame.
    ///
    /// # Errors
    /// As `ioctl(2)`, though none is known for a socket of ours.
    pub fn unread(&self) -> io::Result<usize> {
        let mut bytes: libc::c_int = 0;
        // SAFETY: TIOCOUTQ requires an int to write: it is a local.
        let result =
            unsafe { libc::ioctl(self.0.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(usize::try_from(bytes).unwrap_or(0))
    }

    /// Takes the next frame.
    ///
    /// # Errors
    /// As `recvmsg(2)`, but for a reset: what was sent before it is read, then it is [`Received::Closed`].
    pub fn recv(&self, into: &mut [u8]) -> io::Result<Received> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT_MAX))];
        // A reset is told once; the second try finds what is left, or the end.
        let mut resets = 0;
        loop {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let buffer = &mut [IoSliceMut::new(into)];
            let got = match rustix::net::recvmsg(&self.0, buffer, &mut control, flags) {
                Ok(got) => got,
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(Errno::INTR) => continue,
                Err(Errno::CONNRESET) if resets == 0 => {
                    resets += 1;
                    continue;
                }
                Err(Errno::CONNRESET) => return Ok(Received::Closed),
                Err(errno) => return Err(errno.into()),
            };
            // Owned before anything is decided, so that they are closed whatever comes.
            let fds = brought(&mut control).unwrap_or_default();
            let cut = ReturnFlags::TRUNC | ReturnFlags::CTRUNC;
            return Ok(if got.flags.intersects(cut) || fds.len() > FDS_MAX {
                Received::Cut
            } else if got.bytes == 0 {
                Received::Closed
            } else {
                Received::Frame {
                    len: got.bytes.min(into.len()),
                    fds,
                }
            });
        }
    }

    /// Two ends of one connection, for tests.
    #[cfg(test)]
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let kind = SocketType::SEQPACKET;
        let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, kind, FLAGS, None)?;
        Ok((Self(one.into()), Self(other.into())))
    }
}

impl AsFd for Seqpacket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn open() -> io::Result<Seqpacket> {
    let kind = SocketType::SEQPACKET;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, kind, FLAGS, None)?;
    Ok(Seqpacket(fd.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recv(socket: &Seqpacket) -> Received {
        socket.recv(&mut [0; 16]).unwrap()
    }

    #[test]
    fn frames_stay_whole_and_bring_descriptors() {
        let (one, other) = Seqpacket::pair().unwrap();
        assert!(matches!(recv(&other), Received::Nothing));
        one.send(b"first", &[]).unwrap();
        one.send(b"second", &[one.as_fd(), other.as_fd()]).unwrap();
        let mut bytes = [0; 16];
        let Received::Frame { len, fds } = other.recv(&mut bytes).unwrap() else {
            panic!("no frame");
        };
        assert_eq!((&bytes[..len], fds.len()), (&b"first"[..], 0));
        let Received::Frame { len, fds } = other.recv(&mut bytes).unwrap() else {
            panic!("no frame");
        };
        assert_eq!((&bytes[..len], fds.len()), (&b"second"[..], 2));
        for fd in fds {
            let flags = rustix::io::fcntl_getfd(&fd).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
    }

    #[test]
    fn too_much_is_cut_and_told() {
        let (one, other) = Seqpacket::pair().unwrap();
        one.send(&[1; 17], &[]).unwrap();
        assert!(matches!(recv(&other), Received::Cut));
        assert!(one.send(b"x", &[one.as_fd(); FDS_MAX + 1]).is_err());
        // Past our own send.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(12))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [one.as_fd(); 12];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let frame = [IoSlice::new(b"x")];
        rustix::net::sendmsg(&one, &frame, &mut control, SendFlags::empty()).unwrap();
        assert!(matches!(recv(&other), Received::Cut));
        one.send(b"after", &[]).unwrap();
        assert!(matches!(recv(&other), Received::Frame { len: 5, .. }));
    }

    #[test]
    fn the_last_words_of_a_peer_are_heard() {
        let (one, other) = Seqpacket::pair().unwrap();
        one.send(b"bye", &[]).unwrap();
        other.send(b"never read", &[]).unwrap();
        drop(one);
        assert!(matches!(recv(&other), Received::Frame { len: 3, .. }));
        assert!(matches!(recv(&other), Received::Closed));
        assert!(other.send(b"?", &[]).is_err()); // and no SIGPIPE
    }

    #[test]
    fn who_does_not_read_is_not_waited_for() {
        let (one, _other) = Seqpacket::pair().unwrap();
        assert_eq!(one.unread().unwrap(), 0);
        let refused = (0..100_000).find_map(|_| one.send(&[0; 16], &[]).err());
        assert!(one.unread().unwrap() > 16_384);
        let kind = refused.map(|error| error.kind());
        assert_eq!(kind, Some(io::ErrorKind::WouldBlock));
    }

    #[test]
    fn a_peer_cannot_make_us_wait_for_a_close() {
        use crate::sys::closing::slow;
        // One that is received, and one that never is.
        let (one, other) = Seqpacket::pair().unwrap();
        let kept: Vec<_> = (0..2)
            .map(|_| {
                let (fd, kept) = slow::descriptor();
                one.send(b"x", &[fd.as_fd()]).unwrap();
                kept
            })
            .collect();
        slow::is_quick(|| assert!(matches!(recv(&other), Received::Frame { len: 1, .. })));
        slow::is_quick(|| drop(other));
        assert!(one.send(b"?", &[]).is_err());
        drop(kept);
        // More of them than any frame brings.
        let (one, other) = Seqpacket::pair().unwrap();
        let (fd, _kept) = slow::descriptor();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [fd.as_fd(); SENT_MAX];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let frame = [IoSlice::new(b"x")];
        rustix::net::sendmsg(&one, &frame, &mut control, SendFlags::empty()).unwrap();
        drop(fd);
        slow::is_quick(|| assert!(matches!(recv(&other), Received::Cut)));
    }

    #[test]
    fn the_kernel_says_who_it_is() {
        let (one, _other) = Seqpacket::pair().unwrap();
        let peer = one.peer().unwrap();
        assert_eq!(peer.pid.unsigned_abs(), std::process::id());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    }
}
