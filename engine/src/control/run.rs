//! The blocking loop around control's turn.

use super::{Control, Notice};
use crate::fabric::Fabric;
use crate::sys::clock::Clock;
use crate::sys::epoll::Events;
use crate::types::Nanos;
use std::io;
use std::time::Duration;

/// While a worker owes an answer: workers make no system call to tell, so control looks.
const AWAITING: Duration = Duration::from_millis(1);
/// While connections are up: a worker's own request to close one is seen this late.
const TICK: Duration = Duration::from_millis(50);

impl<F: Fabric> Control<F> {
    /// How long a caller may wait on [`Control::fd`] before the next turn; `None`: until it is
    /// readable.
    #[must_use]
    pub fn wait_hint(&self, now: Nanos) -> Option<Duration> {
        // What a caller asked for between turns is done in the next.
        if !self.todo.is_empty() || (self.stopping && !self.exit_sent && self.conns.is_empty()) {
            return Some(Duration::ZERO);
        }
        let awaiting = self.conns.values().any(|c| c.machine.awaits_worker())
            || self.posts.iter().any(super::links::Post::has_unsent)
            || (self.exit_sent && !self.is_done());
        if awaiting {
            return Some(AWAITING);
        }
        let nearest = self.conns.values().map(|c| c.deadline).min();
        match nearest {
            Some(nearest) => Some(TICK.min(nearest - now)),
            // The kernel says nothing when the last of a device is gone: control looks.
            None if !self.removals.is_empty() => Some(TICK),
            None => None,
        }
    }

    /// Turns until [`Control::is_done`]. `each` is called after every turn, to give notices to
    /// whoever waits for them and to take requests.
    ///
    /// # Errors
    /// Waiting failed.
    pub fn run(
        &mut self,
        clock: Clock,
        mut each: impl FnMut(&mut Self, Vec<Notice>),
    ) -> io::Result<()> {
        let mut events = Events::new();
        loop {
            self.turn(clock.now());
            let notices = std::mem::take(&mut self.notices).into();
            each(self, notices);
            if self.is_done() {
                return Ok(());
            }
            let hint = self.wait_hint(clock.now());
            drop(self.epoll.wait(hint, &mut events)?);
        }
    }
}
