//! The client: offers a ping to be read, and memory to write it back to, and compares.
//!
//! ```text
//!  fill source ─► advert of source ─► (peer READs)  ─► go-ahead ┐
//!       ▲                                                       ▼
//!   compare ◄─ go-ahead ◄─ (peer WRITEs) ◄─ advert of sink ◄────┘
//! ```

use super::advert::{Advert, MESSAGE_BYTES};
use super::ping::{self, POISON};
use spinwire::WorkerInfo;
use spinwire::memory::{ExposeError, ExposedMemory, HugepagePolicy, OutOfRange};
use spinwire::types::{Access, Nanos};
use spinwire::worker::{
    CloseReason, Completed, ConnId, Io, Message, Outcome, Peer, Service, Token,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

/// Bytes that a stock server has for a ping unless it is told otherwise.
const STOCK_SERVER_BYTES: u32 = 64;

#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) size: u32,
    /// Exchanges; without a number until `stop`.
    pub(super) count: Option<u64>,
    pub(super) stop: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) exchanges: u64,
    pub(super) took: Duration,
}

/// Memory that the peer reads, and memory that it writes.
struct Offered {
    source: ExposedMemory,
    sink: ExposedMemory,
}

impl Offered {
    fn new(worker: &WorkerInfo, size: u32) -> Result<Self, ExposeError> {
        let expose = |access| worker.expose(size as usize, HugepagePolicy::Off, access);
        Ok(Self {
            source: expose(Access::REMOTE_READ)?,
            sink: expose(Access::REMOTE_WRITE)?,
        })
    }
}

/// Which go-ahead comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Read,
    Written,
}

pub(super) struct Client {
    job: Job,
    offered: Result<Offered, String>,
    awaited: Awaited,
    /// Exchanges that are done, and so the number of the ping that is under way.
    number: u64,
    /// The ping as it was offered, and as it came back.
    sent: Box<[u8]>,
    back: Box<[u8]>,
    began: Nanos,
    result: Option<Sender<Result<Done, String>>>,
}

impl Client {
    pub(super) fn new(job: Job, worker: &WorkerInfo, result: Sender<Result<Done, String>>) -> Self {
        let bytes = || vec![POISON; job.size as usize].into_boxed_slice();
        Self {
            offered: Offered::new(worker, job.size).map_err(|error| error.to_string()),
            awaited: Awaited::Read,
            number: 0,
            sent: bytes(),
            back: bytes(),
            began: Nanos(0),
            result: Some(result),
            job,
        }
    }

    fn end(&mut self, io: &mut Io<'_>, conn: ConnId, result: Result<(), String>) {
        let Some(sender) = self.result.take() else {
            return;
        };
        let done = Done {
            exchanges: self.number,
            took: io.now() - self.began,
        };
        // The program may have given up on the result.
        let _ = sender.send(result.map(|()| done));
        io.close(conn);
    }

    /// Goes on, or ends with what was wrong in the exchange that is under way.
    fn or_end(&mut self, io: &mut Io<'_>, conn: ConnId, step: Result<(), String>) {
        if let Err(error) = step {
            let text = format!("exchange {}: {error}", self.number);
            self.end(io, conn, Err(text));
        }
    }

    /// Offers the next ping, with the sink such that only a WRITE can make it right.
    fn ping(&mut self, io: &mut Io<'_>, conn: ConnId) -> Result<(), String> {
        let Offered { source, sink } = self.offered.as_ref().map_err(Clone::clone)?;
        ping::fill(self.number, &mut self.sent);
        self.back.fill(POISON);
        let copied = sink
            .copy_in(0, &self.back)
            .and_then(|()| source.copy_in(0, &self.sent));
        copied.map_err(out_of_range)?;
        self.awaited = Awaited::Read;
        let source = source.clone();
        self.advertise(io, conn, &source)
    }

    fn advertise(
        &mut self,
        io: &mut Io<'_>,
        conn: ConnId,
        memory: &ExposedMemory,
    ) -> Result<(), String> {
        let region = io.exposed(conn, memory).ok_or("the connection is gone")?;
        let advert = Advert {
            addr: region.addr(),
            rkey: region.rkey(),
            len: self.job.size,
        };
        let mut buffer = io.alloc().map_err(|e| e.to_string())?;
        let filled = buffer.copy_from(&advert.to_bytes());
        filled.map_err(|e| e.to_string())?;
        io.send(conn, buffer, Token::default())
            .map_err(|rejected| format!("an advert was not taken: {}", rejected.reason))
    }

    /// A go-ahead came.
    fn go_on(&mut self, io: &mut Io<'_>, conn: ConnId, message: &[u8]) -> Result<(), String> {
        if message.len() != MESSAGE_BYTES {
            let got = message.len();
            return Err(format!(
                "a message of {got} B came, a go-ahead has {MESSAGE_BYTES} B: is the peer an rping \
                 server?"
            ));
        }
        let sink = &self.offered.as_ref().map_err(Clone::clone)?.sink;
        match self.awaited {
            Awaited::Read => {
                self.awaited = Awaited::Written;
                let sink = sink.clone();
                self.advertise(io, conn, &sink)
            }
            Awaited::Written => {
                sink.copy_out(0, &mut self.back).map_err(out_of_range)?;
                ping::compare(&self.back, &self.sent)
                    .map_err(|wrong| format!("what came back is not what was sent: {wrong}"))?;
                self.number += 1;
                let enough = self.job.count.is_some_and(|count| self.number >= count);
                if enough || self.job.stop.load(Ordering::Relaxed) {
                    self.end(io, conn, Ok(()));
                    return Ok(());
                }
                self.ping(io, conn)
            }
        }
    }
}

fn out_of_range(error: OutOfRange) -> String {
    error.to_string()
}

impl Service for Client {
    fn connected(&mut self, io: &mut Io<'_>, conn: ConnId, _peer: &Peer) {
        self.began = io.now();
        let step = self.ping(io, conn);
        self.or_end(io, conn, step);
    }

    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        if self.result.is_some() {
            let step = self.go_on(io, conn, &message);
            self.or_end(io, conn, step);
        }
    }

    fn completed(&mut self, io: &mut Io<'_>, conn: ConnId, completed: Completed) {
        match completed.outcome {
            // What a failed one means is for `disconnected` to say.
            Outcome::Done | Outcome::Unknown(_) => {}
            Outcome::NeverPosted => {
                let step = Err("an advert was never posted: the connection is ending".into());
                self.or_end(io, conn, step);
            }
        }
    }

    fn disconnected(&mut self, io: &mut Io<'_>, conn: ConnId, reason: CloseReason) {
        let size = self.job.size;
        let hint = if reason == CloseReason::Peer && size > STOCK_SERVER_BYTES && self.number == 0 {
            format!(
                " (a stock rping server takes {STOCK_SERVER_BYTES} B without -S {size}; one of ours \
                 says why)"
            )
        } else {
            String::new()
        };
        let step = Err(format!("the connection ended early: {reason}{hint}"));
        self.or_end(io, conn, step);
    }
}
