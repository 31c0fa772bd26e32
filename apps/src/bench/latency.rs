//! One operation at a time, timed by one stamp: what ends an exchange begins the next.
//!
//! ```text
//!  SEND          out ─► echoed ─► message here            half of it counts
//!  WRITE         out ─► the peer WRITEs ─► memory here    half of it counts
//!  READ, atomic  out ─► completion here                   all of it counts
//! ```

use super::job::{Job, Until};
use super::poster::Poster;
use crate::stats::Times;
use crate::writes::WritePair;
use spinwire::memory::Buffer;
use spinwire::sys::clock::Clock;
use spinwire::types::Nanos;
use spinwire::worker::{Completed, ConnId, Io, Message, Outcome, PostError, Token};

/// What an exchange waits for.
pub(super) enum Awaits {
    Message,
    Write(WritePair),
    Completion(Poster),
}

/// Whether the measurement goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Going,
    Over,
}

type Step = Result<Progress, String>;

#[cold]
fn not_taken(reason: PostError) -> String {
    format!("an operation was not taken: {reason}")
}

pub(super) struct Latency {
    job: Job,
    clock: Clock,
    awaits: Awaits,
    warmup_left: u64,
    /// When the operation that is under way was posted.
    sent: Nanos,
    began: Nanos,
    /// An exchange that is not yet in the histogram: recording waits until the next operation is out.
    pending: Option<u64>,
    times: Times,
}

impl Latency {
    pub(super) fn new(job: Job, clock: Clock, awaits: Awaits) -> Self {
        Self {
            job,
            clock,
            awaits,
            warmup_left: job.warmup,
            sent: Nanos(0),
            began: Nanos(0),
            pending: None,
            times: Times::new(),
        }
    }

    /// What was measured, and in how many seconds.
    pub(super) fn finish(&mut self) -> (Times, f64) {
        self.record_pending();
        let times = std::mem::replace(&mut self.times, Times::new());
        (times, (self.sent - self.began).as_secs_f64())
    }

    /// Posts the first; a SEND goes in `buffer`.
    pub(super) fn start(&mut self, io: &mut Io<'_>, conn: ConnId, mut buffer: Buffer) -> Step {
        buffer.set_len(self.job.size).map_err(|e| e.to_string())?;
        for (byte, value) in buffer.iter_mut().zip((0..=u8::MAX).cycle()) {
            *byte = value;
        }
        self.sent = self.clock.now();
        self.began = self.sent;
        self.post(io, conn, Some(buffer))
    }

    #[inline(always)]
    pub(super) fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) -> Step {
        let now = self.clock.now();
        let buffer = message.into_buffer();
        if !matches!(self.awaits, Awaits::Message) || buffer.len_bytes() != self.job.size {
            return Err(self.strange(buffer.len_bytes()));
        }
        self.exchanged(io, conn, now, Some(buffer))
    }

    #[cold]
    fn strange(&self, got: u32) -> String {
        let sent = self.job.size;
        format!("{sent} bytes sent, {got} came back: is the peer `spinwire serve`?")
    }

    pub(super) fn completed(
        &mut self,
        io: &mut Io<'_>,
        conn: ConnId,
        completed: &Completed,
    ) -> Step {
        if let Awaits::Completion(poster) = &mut self.awaits {
            let now = self.clock.now();
            poster.check(completed)?;
            return self.exchanged(io, conn, now, None);
        }
        match completed.outcome {
            Outcome::NeverPosted => Err("an operation was never posted".into()),
            // The end of the connection follows a failure, with its reason.
            Outcome::Done | Outcome::Unknown(_) => Ok(Progress::Going),
        }
    }

    /// Looks for the peer's WRITE; `None` when it looks for none. It comes after the doorbells of the
    /// turn, so what is recorded here delays nothing.
    #[inline]
    pub(super) fn turn(&mut self, io: &mut Io<'_>, conn: ConnId) -> Option<Step> {
        if let Awaits::Write(pair) = &mut self.awaits {
            if pair.has_come() {
                let now = self.clock.now();
                pair.advance();
                return Some(self.exchanged(io, conn, now, None));
            }
            self.record_pending();
            return Some(Ok(Progress::Going));
        }
        self.record_pending();
        None
    }

    #[inline(always)]
    fn exchanged(
        &mut self,
        io: &mut Io<'_>,
        conn: ConnId,
        now: Nanos,
        buffer: Option<Buffer>,
    ) -> Step {
        if self.warmup_left > 0 {
            self.warmup_left -= 1;
            self.began = now;
        } else {
            self.record_pending();
            self.pending = Some(now.since(self.sent));
        }
        self.sent = now;
        if self.warmup_left == 0 && self.is_over(now) {
            return Ok(Progress::Over);
        }
        self.post(io, conn, buffer)
    }

    #[inline(always)]
    fn post(&mut self, io: &mut Io<'_>, conn: ConnId, buffer: Option<Buffer>) -> Step {
        let posted = match (&mut self.awaits, buffer) {
            (Awaits::Message, Some(buffer)) => io
                .send(conn, buffer, Token::default())
                .map_err(|rejected| rejected.reason),
            (Awaits::Message, None) => return Err("no buffer to send".into()),
            (Awaits::Write(pair), _) => pair.write(io, conn),
            (Awaits::Completion(poster), _) => poster.post(io, conn),
        };
        match posted {
            Ok(()) => Ok(Progress::Going),
            Err(reason) => Err(not_taken(reason)),
        }
    }

    #[inline]
    fn record_pending(&mut self) {
        if let Some(nanos) = self.pending.take() {
            self.times.record(nanos);
        }
    }

    fn is_over(&self, now: Nanos) -> bool {
        let measured = self.times.count() + u64::from(self.pending.is_some());
        match self.job.until {
            Until::Count(n) => measured >= n,
            Until::Time(time) => now - self.began >= time,
        }
    }
}
