//! The service of `bench`: greets the server, lets the mode measure, and tells the program.
//!
//! ```text
//!  connected ─► ask ─► answer ─► Latency | Stream ─► result, close
//! ```

use super::job::Job;
use super::latency::{Awaits, Latency, Progress};
use super::poster::{self, Poster};
use super::stream::Stream;
use crate::cli::{Mode, Op};
use crate::greeting::{Answer, Ask};
use crate::stats::Times;
use crate::writes::WritePair;
use spinwire::WorkerInfo;
use spinwire::memory::ExposedMemory;
use spinwire::sys::clock::Clock;
use spinwire::worker::{CloseReason, Completed, ConnId, Io, Message, Peer, Service, Token, Turn};
use std::sync::mpsc::Sender;

pub(super) struct Measured {
    pub(super) operations: u64,
    pub(super) seconds: f64,
    /// Where latency was measured.
    pub(super) times: Option<Times>,
}

/// Which mode measures.
enum Run {
    /// The server has not answered yet.
    Greeting,
    Latency(Box<Latency>),
    Stream(Box<Stream>),
    /// The result is out.
    Over,
}

pub(super) struct Client {
    job: Job,
    clock: Clock,
    memory: Result<ExposedMemory, String>,
    conn: Option<ConnId>,
    run: Run,
    result: Sender<Result<Measured, String>>,
}

impl Client {
    pub(super) fn new(
        job: Job,
        worker: &WorkerInfo,
        result: Sender<Result<Measured, String>>,
    ) -> Self {
        let memory = poster::memory(worker, &job);
        Self {
            job,
            clock: worker.clock,
            memory: memory.map_err(|error| error.to_string()),
            conn: None,
            run: Run::Greeting,
            result,
        }
    }

    fn ask(&mut self, io: &mut Io<'_>, conn: ConnId) -> Result<Progress, String> {
        let can = io.abilities(conn);
        if matches!(self.job.op, Op::Cas | Op::Faa) && !can.is_some_and(|can| can.atomics) {
            return Err(
                "the device of this side has no atomics, as `spinwire devices --json` shows".into(),
            );
        }
        let memory = self.memory.as_ref().map_err(Clone::clone)?;
        let (op, mode, size) = (self.job.op, self.job.mode, self.job.size);
        let writes_back = (op, mode) == (Op::Write, Mode::Latency);
        let memory = if writes_back {
            io.exposed(conn, memory)
        } else {
            None
        };
        let ask = Ask {
            op,
            mode,
            size,
            span: self.job.span,
            memory,
        };
        let mut buffer = io.alloc().map_err(|e| e.to_string())?;
        buffer
            .copy_from(&ask.to_bytes())
            .map_err(|e| e.to_string())?;
        let sent = io.send(conn, buffer, Token::default());
        sent.map_err(|rejected| format!("a send was not taken: {}", rejected.reason))?;
        Ok(Progress::Going)
    }

    fn answered(
        &mut self,
        io: &mut Io<'_>,
        conn: ConnId,
        message: Message,
    ) -> Result<Progress, String> {
        let (op, size) = (self.job.op, self.job.size);
        let (theirs, receives) = match Answer::parse(&message, op) {
            Some(Answer::Ready { memory, receives }) => (memory, receives),
            Some(Answer::TooLong(most)) => {
                return Err(format!(
                    "the server takes messages of up to {most} B: start it with --size-max {size}"
                ));
            }
            Some(Answer::NoMemory) => {
                return Err(
                    "the server's device does not offer its memory for this operation".into(),
                );
            }
            None => {
                return Err(
                    "the answer is not understood: is the peer `spinwire serve` of this version?"
                        .into(),
                );
            }
        };
        let memory = self.memory.as_ref().map_err(Clone::clone)?;
        let pair = || WritePair::new(memory.clone(), theirs?, size);
        let poster = || Poster::new(&self.job, memory, theirs);
        let none = "the server's memory is too small";
        match self.job.mode {
            Mode::Latency => {
                let awaits = match op {
                    Op::Send => Awaits::Message,
                    Op::Write => Awaits::Write(pair().ok_or(none)?),
                    Op::Read | Op::Cas | Op::Faa => Awaits::Completion(poster().ok_or(none)?),
                };
                let mut latency = Latency::new(self.job, self.clock, awaits);
                let progress = latency.start(io, conn, message.into_buffer());
                self.run = Run::Latency(Box::new(latency));
                progress
            }
            Mode::Rate | Mode::Bandwidth => {
                let poster = poster().ok_or(none)?;
                let stream = Stream::new(self.job, self.clock, poster, receives);
                self.run = Run::Stream(Box::new(stream));
                Ok(Progress::Going)
            }
        }
    }

    #[inline(never)]
    fn other_message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        let step = match &mut self.run {
            Run::Stream(stream) => stream.message(&message),
            Run::Greeting => self.answered(io, conn, message),
            Run::Latency(_) | Run::Over => return,
        };
        self.settle(io, conn, step);
    }

    /// Ends when a step says so.
    #[inline]
    fn settle(&mut self, io: &mut Io<'_>, conn: ConnId, step: Result<Progress, String>) {
        match step {
            Ok(Progress::Going) => {}
            Ok(Progress::Over) => self.end(io, conn, Ok(())),
            Err(error) => self.end(io, conn, Err(error)),
        }
    }

    #[cold]
    fn end(&mut self, io: &mut Io<'_>, conn: ConnId, result: Result<(), String>) {
        let measured = match &mut self.run {
            Run::Over => return,
            Run::Greeting => None,
            Run::Latency(latency) => {
                let (times, seconds) = latency.finish();
                Some(Measured {
                    operations: times.count(),
                    seconds,
                    times: Some(times),
                })
            }
            Run::Stream(stream) => {
                let (operations, seconds) = stream.finish();
                Some(Measured {
                    operations,
                    seconds,
                    times: None,
                })
            }
        };
        self.run = Run::Over;
        let result = result.and_then(|()| measured.ok_or_else(|| "nothing was measured".into()));
        // The program may have given up on the result.
        let _ = self.result.send(result);
        io.close(conn);
    }
}

impl Service for Client {
    fn connected(&mut self, io: &mut Io<'_>, conn: ConnId, _peer: &Peer) {
        self.conn = Some(conn);
        let step = self.ask(io, conn);
        self.settle(io, conn, step);
    }

    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        // First and by itself: it is the time to the next post that is measured.
        if let Run::Latency(latency) = &mut self.run {
            let step = latency.message(io, conn, message);
            return self.settle(io, conn, step);
        }
        self.other_message(io, conn, message);
    }

    fn completed(&mut self, io: &mut Io<'_>, conn: ConnId, completed: Completed) {
        let step = match &mut self.run {
            Run::Latency(latency) => latency.completed(io, conn, &completed),
            Run::Stream(stream) => stream.completed(io, &completed),
            Run::Greeting | Run::Over => return,
        };
        self.settle(io, conn, step);
    }

    fn disconnected(&mut self, io: &mut Io<'_>, conn: ConnId, reason: CloseReason) {
        self.end(
            io,
            conn,
            Err(format!("the connection ended early: {reason}")),
        );
    }

    fn turn(&mut self, io: &mut Io<'_>) -> Turn {
        let Some(conn) = self.conn else {
            return Turn::Idle;
        };
        match &mut self.run {
            Run::Latency(latency) => match latency.turn(io, conn) {
                Some(step) => {
                    self.settle(io, conn, step);
                    // Nothing but a look at the memory tells of a WRITE: no time to idle.
                    Turn::Busy
                }
                None => Turn::Idle,
            },
            Run::Stream(stream) => match stream.turn(io, conn) {
                Ok(true) => Turn::Busy,
                Ok(false) => Turn::Idle,
                Err(error) => {
                    self.end(io, conn, Err(error));
                    Turn::Busy
                }
            },
            Run::Greeting | Run::Over => Turn::Idle,
        }
    }
}
