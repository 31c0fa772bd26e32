//! The service behind `spinwire serve`: a session for each connection that measures, an echo for all
//! others.

use super::echo::Echo;
use crate::cli::{Mode, Op};
use crate::greeting::{Answer, Ask, SPAN_UNIT_BYTES};
use crate::writes::WritePair;
use spinwire::WorkerInfo;
use spinwire::memory::{ExposedMemory, HugepagePolicy};
use spinwire::worker::{CloseReason, Completed, ConnId, Io, Message, Peer, Service, Token, Turn};

/// What one `bench` measures here.
#[derive(Debug)]
enum Session {
    /// Connected; the ask is to come.
    Greeted(Op),
    /// Messages go back.
    Echo,
    /// Messages are counted by the engine, and the client is told of receives posted again.
    Sink(Credits),
    /// WRITEs are answered by WRITEs.
    Pong(WritePair),
    /// The client's operations need nobody here; the memory is theirs until the end.
    Memory { _exposed: ExposedMemory },
    /// The client asked for what cannot be.
    Refused,
}

/// Receives of this side as the client knows of them.
#[derive(Debug)]
struct Credits {
    told: u32,
    /// So many more are worth a message.
    step: u32,
}

impl Credits {
    /// Tells how many receives were posted, when they are enough.
    #[inline]
    fn tell(&mut self, io: &mut Io<'_>, conn: ConnId) {
        let posted = io.receives_posted(conn);
        if posted.wrapping_sub(self.told) < self.step {
            return;
        }
        let Ok(mut buffer) = io.alloc() else { return };
        if buffer.copy_from(&posted.to_le_bytes()).is_ok()
            && io.send(conn, buffer, Token::default()).is_ok()
        {
            self.told = posted;
        }
    }
}

pub(crate) struct Server {
    worker: WorkerInfo,
    echo: Echo,
    /// Few: a look from the front is the quickest.
    sessions: Vec<(ConnId, Session)>,
    /// Sessions that want a turn.
    turning: usize,
}

impl Server {
    pub(crate) fn new(worker: WorkerInfo) -> Self {
        Self {
            worker,
            echo: Echo::default(),
            sessions: Vec::new(),
            turning: 0,
        }
    }

    fn count_turning(&mut self) {
        let turns = |s: &&(ConnId, Session)| matches!(s.1, Session::Sink(_) | Session::Pong(_));
        self.turning = self.sessions.iter().filter(turns).count();
    }

    /// What is asked for, or why not.
    fn open(&self, io: &mut Io<'_>, conn: ConnId, marked: Op, ask: &Ask) -> (Session, Answer) {
        let receives = io.receives_posted(conn);
        let most = io.buffer_bytes();
        if ask.size > most {
            return (Session::Refused, Answer::TooLong(most));
        }
        let ready = |memory| Answer::Ready { memory, receives };
        if marked != ask.op {
            return (Session::Refused, Answer::NoMemory);
        }
        if ask.op == Op::Send {
            let session = match ask.mode {
                Mode::Latency => Session::Echo,
                Mode::Rate | Mode::Bandwidth => Session::Sink(Credits {
                    told: receives,
                    step: (receives / 4).max(1),
                }),
            };
            return (session, ready(None));
        }
        // The 8 bytes of an atomic lie at the front, as memory is aligned to pages.
        let span = u32::from(ask.span) * SPAN_UNIT_BYTES;
        let bytes = ask.size.max(span).max(8) as usize;
        let exposed = self
            .worker
            .expose(bytes, HugepagePolicy::Off, ask.op.access());
        let exposed = match exposed {
            Ok(exposed) => exposed,
            Err(error) => {
                tracing::warn!(%conn, %error, "no memory for a client");
                return (Session::Refused, Answer::NoMemory);
            }
        };
        let Some(region) = io.exposed(conn, &exposed) else {
            return (Session::Refused, Answer::NoMemory);
        };
        let session = match (ask.op, ask.mode, ask.memory) {
            (Op::Write, Mode::Latency, Some(theirs)) => {
                match WritePair::new(exposed, theirs, ask.size) {
                    Some(pair) => Session::Pong(pair),
                    None => return (Session::Refused, Answer::NoMemory),
                }
            }
            _ => Session::Memory { _exposed: exposed },
        };
        (session, ready(Some(region)))
    }

    fn greet(&mut self, io: &mut Io<'_>, conn: ConnId, at: usize, op: Op, message: Message) {
        let Some(ask) = Ask::parse(&message) else {
            tracing::warn!(%conn, "a client that says it measures asks for nothing known");
            return io.close(conn);
        };
        let (session, answer) = self.open(io, conn, op, &ask);
        tracing::info!(%conn, ?ask, ?answer, "a client measures");
        self.sessions[at].1 = session;
        self.count_turning();
        let mut buffer = message.into_buffer();
        let sent = buffer
            .copy_from(&answer.to_bytes())
            .is_ok_and(|()| io.send(conn, buffer, Token::default()).is_ok());
        if !sent {
            io.close(conn);
        }
    }

    #[inline(never)]
    fn other_message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        let Some(at) = self.sessions.iter().position(|(of, _)| *of == conn) else {
            return;
        };
        // Of any other the message is dropped: the buffer is for the next receive.
        if let Session::Greeted(op) = self.sessions[at].1 {
            self.greet(io, conn, at, op, message);
        }
    }
}

impl Service for Server {
    fn connected(&mut self, _: &mut Io<'_>, conn: ConnId, peer: &Peer) {
        if let Some(op) = Op::marked(&peer.private_data) {
            self.sessions.push((conn, Session::Greeted(op)));
        }
    }

    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        let mut sessions = self.sessions.iter();
        let session = sessions.find(|(of, _)| *of == conn).map(|(_, s)| s);
        // By itself: whoever measures the time of an answer waits for it.
        if let None | Some(Session::Echo) = session {
            return self.echo.message(io, conn, message);
        }
        self.other_message(io, conn, message);
    }

    fn completed(&mut self, io: &mut Io<'_>, conn: ConnId, completed: Completed) {
        self.echo.completed(io, conn, completed);
    }

    fn disconnected(&mut self, _: &mut Io<'_>, conn: ConnId, reason: CloseReason) {
        self.sessions.retain(|(of, _)| *of != conn);
        self.count_turning();
        tracing::debug!(%conn, %reason, "a client left");
    }

    fn turn(&mut self, io: &mut Io<'_>) -> Turn {
        if self.turning == 0 {
            return Turn::Idle;
        }
        let mut turn = Turn::Idle;
        for (conn, session) in &mut self.sessions {
            match session {
                Session::Sink(credits) => credits.tell(io, *conn),
                Session::Pong(pair) => {
                    // Nothing but a look at the memory tells of a WRITE: no time to idle.
                    turn = Turn::Busy;
                    // A full queue has room in a later turn; any other refusal is followed by the end.
                    if pair.has_come() && pair.write(io, *conn).is_ok() {
                        pair.advance();
                    }
                }
                Session::Greeted(_) | Session::Echo | Session::Memory { .. } | Session::Refused => {
                }
            }
        }
        turn
    }
}
