//! SIGINT and SIGTERM as something to wait for.
#![allow(unsafe_code, reason = "signalfd is not wrapped by rustix")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// SIGINT and SIGTERM, blocked and collected in a descriptor. To be installed before other threads
/// start: they inherit the mask.
#[derive(Debug)]
pub struct StopSignal(OwnedFd);

impl StopSignal {
    /// Blocks both signals for this thread and those that it starts from here on.
    ///
    /// # Errors
    /// The system has no descriptor to spare.
    pub fn install() -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset and sigaddset require room for a set; pthread_sigmask an initialised
        // set; signalfd the same, and -1 for a new descriptor.
        let fd = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
            libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
            let failed = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            if failed != 0 {
                return Err(io::Error::from_raw_os_error(failed));
            }
            libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was made just now and is owned by nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Waits for a signal; true when one came.
    #[must_use]
    pub fn wait(&self, at_most: Duration) -> bool {
        let timeout = rustix::event::Timespec {
            tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(at_most.subsec_nanos()),
        };
        let mut fds = [rustix::event::PollFd::new(
            &self.0,
            rustix::event::PollFlags::IN,
        )];
        matches!(rustix::event::poll(&mut fds, Some(&timeout)), Ok(n) if n > 0)
    }
}

impl AsFd for StopSignal {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
