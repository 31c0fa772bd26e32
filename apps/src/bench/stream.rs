//! Operations one way, `depth` of them outstanding, counted as they complete.
//!
//! ```text
//!  turn: post a list ─► … ─► completed: count          the receiver of SENDs: receives posted so far
//!          ▲   room for a whole list in the depth ─┘                              │
//!          └────────────────── room in what the receiver can take ◄───────────────┘
//! ```
//! A list is one chain: one doorbell, and one signal on its last. A SEND is posted only when the peer
//! is known to have a receive for it, so neither RNR nor, on iWARP, the end of the connection is what
//! is measured.

use super::job::{Job, Until};
use super::latency::Progress;
use super::poster::Poster;
use crate::cli::Op;
use spinwire::sys::clock::Clock;
use spinwire::types::Nanos;
use spinwire::worker::{Completed, ConnId, Io, PostError};

pub(super) struct Stream {
    job: Job,
    clock: Clock,
    poster: Poster,
    posted: u64,
    done: u64,
    /// SENDs that the peer has receives for, those that are out included; `None` where none are used.
    sendable: Option<u64>,
    /// Of `receives_posted` of the peer's, as it told last.
    told: u32,
    began: Option<Nanos>,
    ended: Nanos,
}

impl Stream {
    /// `receives` is what the peer had posted when it had taken one message.
    pub(super) fn new(job: Job, clock: Clock, poster: Poster, receives: u32) -> Self {
        let sends = job.op == Op::Send;
        Self {
            job,
            clock,
            poster,
            posted: 0,
            done: 0,
            sendable: sends.then(|| u64::from(receives).saturating_sub(1)),
            told: receives,
            began: (job.warmup == 0).then(|| clock.now()),
            ended: Nanos(0),
        }
    }

    /// Operations that were measured, and in how many seconds.
    pub(super) fn finish(&self) -> (u64, f64) {
        let began = self.began.unwrap_or(self.ended);
        let seconds = (self.ended - began).as_secs_f64();
        (self.done.saturating_sub(self.job.warmup), seconds)
    }

    /// Posts a list if there is room for a whole one; true if it did.
    #[inline]
    pub(super) fn turn(&mut self, io: &mut Io<'_>, conn: ConnId) -> Result<bool, String> {
        let outstanding = self.posted - self.done;
        let left = self.job.total().map_or(u64::MAX, |n| n - self.posted);
        let list = u64::from(self.job.post_list).min(left);
        let takes = self.sendable.map_or(u64::MAX, |n| n - self.posted);
        let room = (u64::from(self.job.depth) - outstanding).min(takes);
        // A short list rather than none when nothing that is out could make room for more.
        let n = if room >= list || outstanding == 0 {
            list.min(room)
        } else {
            0
        };
        for _ in 0..n {
            match self.poster.post(io, conn) {
                Ok(()) => self.posted += 1,
                // The ask that came before may not have completed yet.
                Err(PostError::WouldBlock) => break,
                Err(reason) => return Err(format!("an operation was not taken: {reason}")),
            }
        }
        Ok(n > 0)
    }

    /// The peer tells how many receives it has posted.
    pub(super) fn message(&mut self, message: &[u8]) -> Result<Progress, String> {
        let (Ok(posted), Some(sendable)) = (message.try_into(), &mut self.sendable) else {
            return Err(
                "a message came that a receiver does not send: is the peer `spinwire serve`?"
                    .into(),
            );
        };
        let posted = u32::from_le_bytes(posted);
        *sendable += u64::from(posted.wrapping_sub(self.told));
        self.told = posted;
        Ok(Progress::Going)
    }

    #[inline]
    pub(super) fn completed(
        &mut self,
        io: &Io<'_>,
        completed: &Completed,
    ) -> Result<Progress, String> {
        self.poster.check(completed)?;
        self.done += 1;
        if self.done == self.job.warmup {
            self.began = Some(self.clock.now());
        }
        let over = match (self.job.until, self.began) {
            (Until::Count(n), Some(_)) => self.done - self.job.warmup >= n,
            // The time of the turn: a stamp for each operation would cost more than some of them.
            (Until::Time(time), Some(began)) => io.now() - began >= time,
            (Until::Count(_) | Until::Time(_), None) => false,
        };
        if over {
            self.ended = self.clock.now();
            return Ok(Progress::Over);
        }
        Ok(Progress::Going)
    }
}
