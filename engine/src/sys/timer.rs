//! A descriptor that becomes readable at a point in time, for loops that wait for descriptors only.
//!
//! Cold. Imports nothing of ours. Imported by fabric.

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// A non-blocking, close-on-exec timerfd of the monotonic clock.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// One that is not set.
    ///
    /// # Errors
    /// As `timerfd_create(2)`: mostly `EMFILE`, when `ulimit -n` is too low.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Unreadable now, and readable when `after` is over; `None`: never. Replaces what was set.
    ///
    /// # Errors
    /// As `timerfd_settime(2)`, though none is known for a timer of ours.
    pub fn set(&self, after: Option<Duration>) -> io::Result<()> {
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let it_value = after.map_or(zero, |after| {
            // Zero would unset it. More than a lifetime is a lifetime.
            let after = after.clamp(
                Duration::from_nanos(1),
                Duration::from_secs(u32::MAX.into()),
            );
            Timespec {
                tv_sec: after.as_secs().cast_signed(),
                tv_nsec: after.subsec_nanos().into(),
            }
        });
        let timer = Itimerspec {
            it_interval: zero,
            it_value,
        };
        // Setting it also forgets what has run out.
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &timer)?;
        Ok(())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::epoll::{Epoll, Events};

    #[test]
    fn it_is_readable_when_time_is_up() {
        let (timer, epoll) = (Timer::new().unwrap(), Epoll::new().unwrap());
        epoll.add(&timer, 1).unwrap();
        let ready = |wait| {
            let mut events = Events::new();
            epoll.wait(Some(wait), &mut events).unwrap().count()
        };
        let (none, long) = (Duration::ZERO, Duration::from_secs(10));
        assert_eq!(ready(none), 0);
        for after in [Duration::ZERO, Duration::from_millis(2)] {
            timer.set(Some(after)).unwrap();
            assert_eq!(ready(long), 1);
        }
        timer.set(Some(Duration::MAX)).unwrap();
        assert_eq!(ready(none), 0);
        timer.set(Some(Duration::ZERO)).unwrap();
        assert_eq!(ready(long), 1);
        timer.set(None).unwrap();
        assert_eq!(ready(none), 0);
    }
}
