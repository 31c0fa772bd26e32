//! The server: reads each ping, checks it, and writes it back.
//!
//! ```text
//!            advert ─► READ ─► check ─► go-ahead          advert ─► WRITE, go-ahead
//!  Source ────────────► Reading ───────────────► Sink ──────────────────────────► Answered ─┐
//!     ▲                                                                                      │
//!     └────────────── the go-ahead is acknowledged, or the next advert or an end follows it ─┘
//! ```
//! What comes from the peer is hostile until it is checked. Whatever is wrong ends that connection and
//! no other.

use super::advert::{Advert, AdvertError, GO_AHEAD};
use super::ping::{self, POISON};
use spinwire::fabric::WcStatus;
use spinwire::memory::Buffer;
use spinwire::types::{Access, Nanos, RemoteRegion};
use spinwire::worker::{
    CloseReason, Completed, ConnId, Io, Message, Outcome, Peer, PostError, Rejected, Service,
    Token, Turn,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::time::Duration;

/// A connection on which nothing happens for so long is ended: a client's advert follows a go-ahead at
/// once. Longer than all retries of a lossy link.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Between two looks for silent connections.
const LOOK: Duration = Duration::from_secs(1);

/// What all workers have done together.
#[derive(Debug)]
pub(super) struct Tally {
    /// Exchanges to serve.
    count: u64,
    /// Those that began and did not fail.
    begun: AtomicU64,
    pub(super) exchanges: AtomicU64,
    /// Bytes of them, each read and written back.
    pub(super) bytes: AtomicU64,
    /// Bytes that were read and found right.
    pub(super) verified: AtomicU64,
    first: AtomicU64,
    last: AtomicU64,
}

impl Tally {
    pub(super) fn new(count: Option<u64>) -> Self {
        Self {
            count: count.unwrap_or(u64::MAX),
            begun: AtomicU64::new(0),
            exchanges: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            verified: AtomicU64::new(0),
            first: AtomicU64::new(u64::MAX),
            last: AtomicU64::new(0),
        }
    }

    /// From the first advert to the end of the last exchange.
    pub(super) fn took(&self) -> Duration {
        Nanos(self.last.load(Relaxed)) - Nanos(self.first.load(Relaxed))
    }

    /// False when there are enough.
    fn begin(&self, now: Nanos) -> bool {
        self.first.fetch_min(now.0, Relaxed);
        let more = |begun: u64| (begun < self.count).then_some(begun + 1);
        self.begun.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    fn give_up(&self) {
        self.begun.fetch_sub(1, Relaxed);
    }

    /// True when it was the last.
    fn finish(&self, bytes: u32, now: Nanos) -> bool {
        self.last.fetch_max(now.0, Relaxed);
        self.bytes.fetch_add(u64::from(bytes), Relaxed);
        self.exchanges.fetch_add(1, Relaxed) + 1 == self.count
    }
}

/// What the program is told.
#[derive(Debug)]
pub(super) enum Told {
    Opened,
    Closed,
    /// Something was wrong with one connection.
    Failed(String),
    /// As many exchanges as were asked for are done.
    Enough,
}

/// An operation under way, as its token says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Read = 0,
    GoAhead = 1,
    Write = 2,
    LastGoAhead = 3,
}

#[derive(Debug)]
enum Step {
    /// The advert of a source is to come.
    Source,
    Reading(Advert),
    /// The advert of a sink is to come, for this ping.
    Sink(Buffer),
    /// The ping was written back there.
    Answered(Advert, u32),
    /// The ping was to be written back there, and surely was not.
    Cut(Advert),
    /// Nothing more is taken on it.
    Over,
}

struct Link {
    peer: String,
    step: Step,
    /// Of the exchange that is under way, or comes next.
    number: u64,
    /// The last thing that happened.
    since: Nanos,
}

impl Link {
    fn is_in_exchange(&self) -> bool {
        matches!(
            self.step,
            Step::Reading(_) | Step::Sink(_) | Step::Answered(..) | Step::Cut(_)
        )
    }

    fn token(&self, op: Op) -> Token {
        Token((self.number << 2) | op as u64)
    }

    /// What is under way, for an error.
    fn doing(&self) -> String {
        match &self.step {
            Step::Source => "before an advert of a source".into(),
            Step::Reading(source) => format!("in the READ of {source}"),
            Step::Sink(ping) => {
                let len = ping.len_bytes();
                format!("before an advert of a sink for the {len} B that were read")
            }
            Step::Answered(sink, _) | Step::Cut(sink) => format!("in the WRITE to {sink}"),
            Step::Over => "at the end".into(),
        }
    }
}

pub(super) struct Server {
    tally: Arc<Tally>,
    tell: Sender<Told>,
    links: HashMap<ConnId, Link>,
    /// Bytes of a ping, at most.
    most: u32,
    /// A ping as it should be.
    expected: Box<[u8]>,
    next_look: Nanos,
}

impl Server {
    pub(super) fn new(most: u32, tally: Arc<Tally>, tell: Sender<Told>) -> Self {
        Self {
            tally,
            tell,
            links: HashMap::new(),
            most,
            expected: vec![0; most as usize].into_boxed_slice(),
            next_look: Nanos(0),
        }
    }

    fn tell(&self, told: Told) {
        // Nobody listens any more when the program ends.
        let _ = self.tell.send(told);
    }

    /// Ends a connection that did something wrong.
    fn fail(&mut self, io: &mut Io<'_>, conn: ConnId, error: &str) {
        self.complain(conn, error);
        io.close(conn);
    }

    fn complain(&mut self, conn: ConnId, error: &str) {
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        if link.is_in_exchange() {
            self.tally.give_up();
        }
        link.step = Step::Over;
        let text = format!("{}, exchange {}: {error}", link.peer, link.number);
        self.tell(Told::Failed(text));
    }

    fn finish(&mut self, conn: ConnId, now: Nanos) {
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        if let Step::Answered(_, bytes) = link.step {
            link.step = Step::Source;
            link.number += 1;
            if self.tally.finish(bytes, now) {
                self.tell(Told::Enough);
            }
        }
    }

    /// A message came: an advert, unless the peer is no rping client.
    fn advert(&mut self, io: &mut Io<'_>, conn: ConnId, buffer: Buffer) -> Result<(), String> {
        let now = io.now();
        // The next advert says as well as an acknowledgement that the peer had the go-ahead. If it lies,
        // and the WRITE fails, the connection fails with it.
        self.finish(conn, now);
        let Some(link) = self.links.get_mut(&conn) else {
            return Ok(());
        };
        link.since = now;
        let text = |error: AdvertError| error.to_string();
        match std::mem::replace(&mut link.step, Step::Over) {
            Step::Over => Ok(()),
            Step::Source => {
                let source = Advert::parse(&buffer).map_err(text)?;
                let region = source
                    .region(Access::REMOTE_READ, self.most)
                    .map_err(text)?;
                if !self.tally.begin(now) {
                    io.close(conn);
                    return Ok(());
                }
                link.step = Step::Reading(source);
                let token = link.token(Op::Read);
                read(io, conn, region, buffer, token)
            }
            Step::Sink(ping) => match sink_for(&ping, &buffer, self.most) {
                Ok((sink, region)) => {
                    link.step = Step::Answered(sink, ping.len_bytes());
                    let tokens = (link.token(Op::Write), link.token(Op::LastGoAhead));
                    if !write_back(io, conn, region, ping, buffer, tokens)? {
                        link.step = Step::Cut(sink);
                    }
                    Ok(())
                }
                Err(error) => {
                    // In the exchange still.
                    link.step = Step::Sink(ping);
                    Err(error)
                }
            },
            step @ (Step::Reading(_) | Step::Answered(..)) => {
                link.step = step;
                Err(format!(
                    "a message came {}: a client waits for the go-ahead",
                    link.doing()
                ))
            }
            cut @ Step::Cut(_) => {
                link.step = cut;
                Ok(())
            }
        }
    }

    /// The ping is here: it must be right.
    fn check(&mut self, io: &mut Io<'_>, conn: ConnId, ping: Buffer) -> Result<(), String> {
        let Some(link) = self.links.get_mut(&conn) else {
            return Ok(());
        };
        link.since = io.now();
        let expected = &mut self.expected[..ping.len()];
        ping::fill(link.number, expected);
        ping::compare(&ping, expected).map_err(|wrong| format!("what was read: {wrong}"))?;
        self.tally
            .verified
            .fetch_add(u64::from(ping.len_bytes()), Relaxed);
        link.step = Step::Sink(ping);
        let token = link.token(Op::GoAhead);
        let buffer = io.alloc().map_err(|e| e.to_string())?;
        go_ahead(io, conn, buffer, token)?;
        Ok(())
    }
}

/// The advert of a sink that has room for the ping.
fn sink_for(ping: &Buffer, message: &[u8], most: u32) -> Result<(Advert, RemoteRegion), String> {
    let text = |error: AdvertError| error.to_string();
    let sink = Advert::parse(message).map_err(text)?;
    let region = sink.region(Access::REMOTE_WRITE, most).map_err(text)?;
    let (has, needs) = (sink.len, ping.len_bytes());
    if has < needs {
        return Err(format!(
            "an advert of a sink of {has} B for a ping of {needs} B"
        ));
    }
    Ok((sink, region))
}

/// Reads the ping into the buffer that its advert came in.
fn read(
    io: &mut Io<'_>,
    conn: ConnId,
    source: RemoteRegion,
    mut buffer: Buffer,
    token: Token,
) -> Result<(), String> {
    let len = u32::try_from(source.len()).map_err(|e| e.to_string())?;
    buffer.set_len(len).map_err(|e| e.to_string())?;
    // Only a READ can make it right.
    buffer.fill(POISON);
    is_taken("the READ", io.read(conn, buffer, &source, 0, token))?;
    Ok(())
}

/// Writes the ping back, and says so in the buffer that the sink's advert came in; false when the
/// connection is ending.
fn write_back(
    io: &mut Io<'_>,
    conn: ConnId,
    sink: RemoteRegion,
    ping: Buffer,
    buffer: Buffer,
    (write, last): (Token, Token),
) -> Result<bool, String> {
    let written = is_taken("the WRITE", io.write(conn, ping, &sink, 0, write))?;
    // Executed in order: whoever has the go-ahead finds the ping written.
    Ok(written && go_ahead(io, conn, buffer, last)?)
}

fn go_ahead(
    io: &mut Io<'_>,
    conn: ConnId,
    mut buffer: Buffer,
    token: Token,
) -> Result<bool, String> {
    buffer.copy_from(&GO_AHEAD).map_err(|e| e.to_string())?;
    is_taken("a go-ahead", io.send(conn, buffer, token))
}

/// False when the connection is ending: `disconnected` will say why.
fn is_taken(what: &str, posted: Result<(), Rejected>) -> Result<bool, String> {
    match posted.map_err(|rejected| rejected.reason) {
        Ok(()) => Ok(true),
        Err(PostError::NotConnected) => Ok(false),
        Err(reason) => Err(format!("{what} was not taken: {reason}")),
    }
}

impl Service for Server {
    fn connected(&mut self, io: &mut Io<'_>, conn: ConnId, peer: &Peer) {
        let link = Link {
            peer: peer
                .address
                .map_or_else(|| conn.to_string(), |a| a.to_string()),
            step: Step::Source,
            number: 0,
            since: io.now(),
        };
        self.links.insert(conn, link);
        self.tell(Told::Opened);
    }

    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        if let Err(error) = self.advert(io, conn, message.into_buffer()) {
            self.fail(io, conn, &error);
        }
    }

    fn completed(&mut self, io: &mut Io<'_>, conn: ConnId, completed: Completed) {
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        let is = |op| completed.token == link.token(op);
        match (completed.outcome, &link.step) {
            (Outcome::Done, Step::Reading(_)) if is(Op::Read) => {
                let checked = completed.payload.into_buffer();
                let checked = checked.map(|read| self.check(io, conn, read));
                if let Some(Err(error)) = checked {
                    self.fail(io, conn, &error);
                }
            }
            (Outcome::Done, _) if is(Op::LastGoAhead) => self.finish(conn, io.now()),
            // A client that leaves at once flushes what it did not acknowledge: it may have had that.
            (Outcome::Done | Outcome::Unknown(WcStatus::Flushed), _) => {}
            // `disconnected` says why.
            (Outcome::NeverPosted | Outcome::Unknown(_), Step::Answered(sink, _))
                if is(Op::Write) || is(Op::LastGoAhead) =>
            {
                link.step = Step::Cut(*sink);
            }
            (Outcome::NeverPosted | Outcome::Unknown(_), _) => {}
        }
    }

    fn disconnected(&mut self, io: &mut Io<'_>, conn: ConnId, reason: CloseReason) {
        let now = io.now();
        if reason == CloseReason::Peer {
            // A client may leave before it acknowledged the last go-ahead.
            self.finish(conn, now);
        }
        if let Some(link) = self.links.get(&conn) {
            let over = matches!(link.step, Step::Over);
            let between = matches!(link.step, Step::Source) && reason == CloseReason::Peer;
            // Ours to end, at any time.
            let ended = matches!(reason, CloseReason::Local | CloseReason::Shutdown);
            if !(over || between || ended) {
                let text = format!("the connection ended {}: {reason}", link.doing());
                self.complain(conn, &text);
            }
        }
        self.links.remove(&conn);
        self.tell(Told::Closed);
    }

    fn turn(&mut self, io: &mut Io<'_>) -> Turn {
        if io.now() >= self.next_look {
            self.next_look = io.now() + LOOK;
            self.end_silent(io);
        }
        Turn::Idle
    }
}

impl Server {
    #[cold]
    fn end_silent(&mut self, io: &mut Io<'_>) {
        let now = io.now();
        let is_silent =
            |link: &Link| !matches!(link.step, Step::Over) && now - link.since > SILENCE_MAX;
        while let Some((conn, link)) = self.links.iter().find(|(_, link)| is_silent(link)) {
            let (conn, doing) = (*conn, link.doing());
            let seconds = SILENCE_MAX.as_secs();
            self.fail(
                io,
                conn,
                &format!("nothing happened for {seconds} s {doing}"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_exchanges_begin_than_were_asked_for() {
        let tally = Tally::new(Some(2));
        assert!(tally.begin(Nanos(10)) && tally.begin(Nanos(20)));
        assert!(!tally.begin(Nanos(30)));
        // One that fails makes room for another.
        tally.give_up();
        assert!(tally.begin(Nanos(40)));
        assert!(!tally.finish(64, Nanos(50)));
        assert!(tally.finish(36, Nanos(60)));
        assert_eq!(tally.bytes.load(Relaxed), 100);
        assert_eq!(tally.took(), Duration::from_nanos(50));
        // Nothing was done, which took no time.
        assert_eq!(Tally::new(None).took(), Duration::ZERO);
    }
}
