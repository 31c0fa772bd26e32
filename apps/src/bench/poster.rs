//! The operation: one place that knows how each is posted, and when one is done well.

use super::job::Job;
use crate::cli::Op;
use crate::greeting::SPAN_UNIT_BYTES;
use spinwire::memory::{ExposeError, HugepagePolicy, MemorySpan};
use spinwire::types::{Access, RemoteRegion};
use spinwire::worker::{Completed, ConnId, Io, Outcome, PostError, Token};
use spinwire::{WorkerInfo, memory::ExposedMemory};

/// Memory of the client for `op`: what SENDs and WRITEs take bytes from, what READs put them in, and
/// what the peer's WRITEs go to. An operation after the other uses the same bytes, as in perftest, unless
/// the job has a span.
pub(super) fn memory(worker: &WorkerInfo, job: &Job) -> Result<ExposedMemory, ExposeError> {
    let access = match job.op {
        // iWARP wants it of a READ's sink. Nobody is told the key of one.
        Op::Write | Op::Read => Access::REMOTE_WRITE,
        Op::Send | Op::Cas | Op::Faa => Access::NONE,
    };
    let bytes = job.size.max(u32::from(job.span) * SPAN_UNIT_BYTES).max(1);
    worker.expose(bytes as usize, HugepagePolicy::Off, access)
}

/// Posts one operation after the other.
#[derive(Debug)]
pub(super) struct Poster {
    op: Op,
    /// Bytes of ours, by place: one, or as many as the span has.
    spans: Vec<MemorySpan>,
    /// The place of the next operation.
    place: usize,
    size: u32,
    /// The peer's memory; there for all but SEND.
    theirs: Option<RemoteRegion>,
    posted: u64,
    checked: u64,
}

impl Poster {
    /// `None` unless `memory` has `size` bytes.
    pub(super) fn new(
        job: &Job,
        memory: &ExposedMemory,
        theirs: Option<RemoteRegion>,
    ) -> Option<Self> {
        let (span, size) = (u32::from(job.span) * SPAN_UNIT_BYTES, job.size);
        let places = (span / size.max(1)).max(1);
        let spans: Option<_> = (0..places)
            .map(|n| memory.span(n as usize * size as usize, size))
            .collect();
        Some(Self {
            op: job.op,
            spans: spans?,
            place: 0,
            size,
            theirs,
            posted: 0,
            checked: 0,
        })
    }

    #[inline]
    pub(super) fn post(&mut self, io: &mut Io<'_>, conn: ConnId) -> Result<(), PostError> {
        let (token, n) = (Token::default(), self.posted);
        let span = &self.spans[self.place];
        let offset = self.place as u64 * u64::from(self.size);
        match (self.op, &self.theirs) {
            (Op::Send, _) => io.send(conn, span.clone(), token).map_err(|r| r.reason)?,
            (Op::Write, Some(theirs)) => io
                .write(conn, span.clone(), theirs, offset, token)
                .map_err(|r| r.reason)?,
            (Op::Read, Some(theirs)) => io
                .read(conn, span.clone(), theirs, offset, token)
                .map_err(|r| r.reason)?,
            // The word counts the atomics, so each must find how many were before it.
            (Op::Cas, Some(theirs)) => {
                io.compare_swap(conn, theirs, 0, n, n.wrapping_add(1), token)?;
            }
            (Op::Faa, Some(theirs)) => io.fetch_add(conn, theirs, 0, 1, token)?,
            (Op::Write | Op::Read | Op::Cas | Op::Faa, None) => return Err(PostError::OutOfRegion),
        }
        self.posted += 1;
        self.place += 1;
        if self.place == self.spans.len() {
            self.place = 0;
        }
        Ok(())
    }

    /// Takes note of the oldest operation that was not yet checked.
    ///
    /// # Errors
    /// It is not done, or an atomic did not find what it should.
    #[inline]
    pub(super) fn check(&mut self, completed: &Completed) -> Result<(), String> {
        if completed.outcome != Outcome::Done {
            return Err(format!(
                "an operation was not done: {:?}",
                completed.outcome
            ));
        }
        if matches!(self.op, Op::Cas | Op::Faa) && completed.old_value() != Some(self.checked) {
            let (n, found) = (self.checked, completed.old_value());
            return Err(format!(
                "atomic number {n} found {found:?} in the peer's memory"
            ));
        }
        self.checked += 1;
        Ok(())
    }
}
