//! The loop around the turn: what an idle worker does, by policy.
//!
//! Event mode announces the sleep, arms the CQs, takes one more turn, and only then waits: whatever
//! comes after the announcement writes the eventfd or the completion channel.

use super::{Service, Turn, Worker};
use crate::fabric::{Fabric, Lane};
use crate::sys::clock::Clock;
use crate::sys::epoll::{Epoll, Events};
use crate::sys::eventfd::EventFd;
use crate::types::IdlePolicy;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Polls of each CQ between two turns of an idle worker: the mailbox, deadlines and the service's own
/// devices wait this long, some hundred nanoseconds, and a completion is seen at once.
const PEEKS: u32 = 16;
/// Idle turns before an event-mode worker sleeps: work that comes in a burst is not worth a sleep.
const SPINS_BEFORE_SLEEP: u32 = 256;
/// Longest sleep: a service that polls devices of its own gets a turn this often.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Longest sleep while a deadline runs.
const SLEEP_TIMED_MAX: Duration = Duration::from_millis(5);

impl<F: Fabric, S: Service> Worker<F, S> {
    /// Turns until control says to end. `wake` is what control signals.
    ///
    /// # Errors
    /// Event mode could not set up or wait; the other policies make no call that can fail.
    pub fn run(&mut self, clock: Clock, wake: &Arc<EventFd>) -> io::Result<()> {
        match self.idle {
            // No PAUSE: the core is this worker's own, and a pause delays what is waited for.
            IdlePolicy::Spin => self.spin(clock, || {}),
            IdlePolicy::Yield => self.spin(clock, std::thread::yield_now),
            IdlePolicy::Event => return self.run_events(clock, wake),
        }
        Ok(())
    }

    fn spin(&mut self, clock: Clock, idle: impl Fn()) {
        let mut now = clock.now();
        while !self.done {
            let turn = self.turn(now);
            // The stamp is taken before the look at the CQs: it does not delay what they show.
            now = clock.now();
            if turn == Turn::Idle && !self.peek(PEEKS) {
                idle();
            }
        }
    }

    fn run_events(&mut self, clock: Clock, wake: &EventFd) -> io::Result<()> {
        let epoll = Epoll::new()?;
        let mut events = Events::new();
        epoll.add(wake.fd(), 0)?;
        for (lane, token) in self.lanes.iter().zip(1..) {
            if let Some(fd) = lane.lane.as_ref().and_then(Lane::event_fd) {
                epoll.add(fd, token)?;
            }
        }
        let mut idle_turns = 0;
        while !self.done {
            if self.turn(clock.now()) == Turn::Busy {
                idle_turns = 0;
                continue;
            }
            idle_turns += 1;
            if idle_turns > SPINS_BEFORE_SLEEP {
                self.sleep(clock, wake, &epoll, &mut events)?;
                idle_turns = 0;
            }
        }
        Ok(())
    }

    fn sleep(
        &mut self,
        clock: Clock,
        wake: &EventFd,
        epoll: &Epoll,
        events: &mut Events,
    ) -> io::Result<()> {
        self.mailbox.sleeper.prepare();
        for lane in self.lanes.iter_mut().filter_map(|l| l.lane.as_mut()) {
            lane.arm().map_err(io::Error::from_raw_os_error)?;
        }
        if self.turn(clock.now()) == Turn::Busy || self.done {
            self.mailbox.sleeper.cancel();
            return Ok(());
        }
        let most = if self.is_waiting() {
            SLEEP_TIMED_MAX
        } else {
            SLEEP_MAX
        };
        self.core.counters.sleeps.add(1);
        let woken = epoll.wait(Some(most), events).map(drop);
        self.mailbox.sleeper.woke();
        wake.drain()?;
        for lane in self.lanes.iter_mut().filter_map(|l| l.lane.as_mut()) {
            lane.drain_events();
        }
        woken
    }
}
