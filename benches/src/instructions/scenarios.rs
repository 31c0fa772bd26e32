//! What is counted: for each scenario a service as small as it can be, and rounds of turns.
//!
//! A round is the peer's part, which is not counted, and one turn of the near worker, which is. Rounds
//! come in a multiple of every batch of the engine's, so that what is amortised comes out whole.

use crate::lane::count_replies_of;
use crate::rig::{Counted, Fallible, Field, PAYLOAD, Rig, Size};
use crate::valgrind::{start_instrumentation, stop_instrumentation, toggle_counting};
use crate::wire::Wire;
use spinwire::fabric::shm::Shm;
use spinwire::types::RemoteRegion;
use spinwire::worker::{Completed, ConnId, Io, Message, Peer, Service, Token, Turn};

/// Rounds before the count begins: rings, queues and batches have gone round by then.
const WARM_UP: u32 = 1024;
/// Lane of the near worker: it is made first.
const NEAR_LANE: usize = 0;
/// As the engine's defaults have it.
const DEPTH: u32 = 128;
/// Sends behind one doorbell, and messages in one batch.
const BURST: u32 = 16;

/// A scenario, and what it may cost.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// What one operation is.
    pub(crate) what: &'static str,
    /// Instructions an operation.
    pub(crate) target: Option<f64>,
    /// Of them, in a lane of the engine's own.
    pub(crate) lane_target: Option<f64>,
    run: fn(u32) -> Fallible<u64>,
}

/// In the order of the table.
pub(crate) const SCENARIOS: [Scenario; 18] = [
    Scenario {
        name: "idle",
        what: "a turn that finds nothing, 1 connection",
        target: Some(60.0),
        lane_target: None,
        run: |rounds| idle::<Wire>(1, rounds),
    },
    Scenario {
        name: "idle-1024",
        what: "the same, 1,024 connections on one CQ",
        target: Some(60.0),
        lane_target: None,
        run: |rounds| idle::<Wire>(1024, rounds),
    },
    Scenario {
        name: "reply",
        what: "from a polled message to the doorbell of its answer",
        target: Some(150.0),
        lane_target: None,
        run: reply::<Wire>,
    },
    Scenario {
        name: "echo",
        what: "message, answer, last answer's completion, receives reposted",
        target: None,
        lane_target: None,
        run: |rounds| echo::<Wire>(1, rounds),
    },
    Scenario {
        name: "echo-16",
        what: "the same for each of 16 messages in a batch",
        target: None,
        lane_target: None,
        run: |rounds| echo::<Wire>(BURST, rounds),
    },
    Scenario {
        name: "receive",
        what: "a message to the handler that drops it, receives reposted",
        target: None,
        lane_target: None,
        run: |rounds| receive::<Wire>(1, rounds),
    },
    Scenario {
        name: "send",
        what: "8 B: buffer, send, doorbell, completion, buffer back",
        target: Some(250.0),
        lane_target: None,
        run: |rounds| post::<Wire>(1, None, rounds),
    },
    Scenario {
        name: "write",
        what: "the same with an RDMA WRITE of 8 B",
        target: None,
        lane_target: None,
        run: |rounds| post::<Wire>(1, Some(Write), rounds),
    },
    Scenario {
        name: "send-16",
        what: "8 B, each of 16 behind one doorbell",
        target: None,
        lane_target: None,
        run: |rounds| post::<Wire>(BURST, None, rounds),
    },
    Scenario {
        name: "shm-idle",
        what: "over shared memory: a turn that finds nothing, 1 connection, 1 ring read",
        target: Some(64.0),
        lane_target: None,
        run: |rounds| idle::<Shm>(1, rounds),
    },
    Scenario {
        name: "shm-idle-1024",
        what: "the same, 1,024 connections, of which 80 rings are read",
        target: Some(60.0 + 4.0 * 80.0),
        lane_target: None,
        run: |rounds| idle::<Shm>(1024, rounds),
    },
    Scenario {
        name: "shm-reply",
        what: "from a message in the inbox to its answer in the peer's",
        target: None,
        lane_target: None,
        run: reply_by_turn::<Shm>,
    },
    Scenario {
        name: "shm-echo",
        what: "message, answer, last answer's completion, receives reposted",
        target: None,
        lane_target: None,
        run: |rounds| echo::<Shm>(1, rounds),
    },
    Scenario {
        name: "shm-receive",
        what: "a message to the handler that drops it, receives reposted",
        target: None,
        lane_target: None,
        run: |rounds| receive::<Shm>(1, rounds),
    },
    Scenario {
        name: "shm-receive-16",
        what: "8 B, each of 16 in a batch",
        target: None,
        lane_target: Some(100.0),
        run: |rounds| receive::<Shm>(BURST, rounds),
    },
    Scenario {
        name: "shm-send",
        what: "8 B: buffer, send, in the peer's inbox, completion, buffer back",
        target: None,
        lane_target: None,
        run: |rounds| post::<Shm>(1, None, rounds),
    },
    Scenario {
        name: "shm-send-16",
        what: "8 B, each of 16 in one post",
        target: None,
        lane_target: Some(100.0),
        run: |rounds| post::<Shm>(BURST, None, rounds),
    },
    Scenario {
        name: "shm-write",
        what: "8 B: buffer, RDMA WRITE, completion, buffer back",
        target: None,
        lane_target: None,
        run: |rounds| post::<Shm>(1, Some(Write), rounds),
    },
];

impl Scenario {
    pub(crate) fn named(name: &str) -> Fallible<&'static Self> {
        let found = SCENARIOS.iter().find(|s| s.name == name);
        found.ok_or_else(|| {
            let names: Vec<_> = SCENARIOS.iter().map(|s| s.name).collect();
            format!("no scenario {name}: there are {}", names.join(", ")).into()
        })
    }

    /// Runs it for so many rounds; gives the number of operations that were counted.
    pub(crate) fn run(&self, rounds: u32) -> Fallible<u64> {
        (self.run)(rounds)
    }
}

/// Warms up, then runs the rounds of which some turns are counted.
fn rounds<F: Field, S: Counted>(
    rig: &mut Rig<F, S>,
    rounds: u32,
    mut round: impl FnMut(&mut Rig<F, S>, fn(&mut Rig<F, S>)),
) {
    for _ in 0..WARM_UP {
        round(rig, Rig::turn);
    }
    start_instrumentation();
    for _ in 0..WARM_UP {
        round(rig, Rig::turn);
    }
    for _ in 0..rounds {
        round(rig, Rig::turn_counted);
    }
    stop_instrumentation();
}

/// What happened is what was to happen.
fn expect(what: &str, happened: u64, wanted: u64) -> Fallible<()> {
    if happened == wanted {
        return Ok(());
    }
    Err(format!("{happened} {what}, not {wanted}").into())
}

/// Echoes, sinks, or does nothing at all.
#[derive(Debug, Default)]
struct Answering<const ECHO: bool> {
    connections: usize,
    /// The count ends when the messages of a turn are answered.
    counts_answer: bool,
}

impl<const ECHO: bool> Counted for Answering<ECHO> {
    fn connections(&self) -> usize {
        self.connections
    }
}

impl<const ECHO: bool> Service for Answering<ECHO> {
    fn connected(&mut self, _: &mut Io<'_>, _: ConnId, _: &Peer) {
        self.connections += 1;
    }
    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        if ECHO {
            let sent = io.send(conn, message.into_buffer(), Token::default());
            assert!(sent.is_ok(), "the queue has room");
        }
    }
    fn turn(&mut self, _: &mut Io<'_>) -> Turn {
        if std::mem::take(&mut self.counts_answer) {
            toggle_counting();
        }
        Turn::Idle
    }
}

fn idle<F: Field>(connections: u32, count: u32) -> Fallible<u64> {
    let depth = 4;
    let mut rig = Rig::<F, _>::new(Size { connections, depth }, Answering::<false>::default())?;
    rounds(&mut rig, count, |rig, turn| turn(rig));
    rig.end()?;
    Ok(count.into())
}

const ONE: Size = Size {
    connections: 1,
    depth: DEPTH,
};

fn echo<F: Field>(burst: u32, count: u32) -> Fallible<u64> {
    let mut rig = Rig::<F, _>::new(ONE, Answering::<true>::default())?;
    rounds(&mut rig, count, |rig, turn| {
        rig.far().to_send = burst;
        rig.turn_far();
        turn(rig);
    });
    rig.turn_far();
    let all = u64::from(burst) * u64::from(count + 2 * WARM_UP);
    expect("answers came", rig.far().received, all)?;
    rig.end()?;
    Ok(u64::from(burst) * u64::from(count))
}

fn reply<F: Field>(count: u32) -> Fallible<u64> {
    let mut rig = Rig::<F, _>::new(ONE, Answering::<true>::default())?;
    let mut left = count + 2 * WARM_UP;
    rounds(&mut rig, count, |rig, _| {
        rig.far().to_send = 1;
        rig.turn_far();
        // Between poll and post the lane itself switches the count on and off.
        count_replies_of((left <= count).then_some(NEAR_LANE));
        rig.turn();
        count_replies_of(None);
        left -= 1;
        // The answer's completion is out of the way before the next message.
        rig.turn();
    });
    rig.turn_far();
    let all = u64::from(count + 2 * WARM_UP);
    expect("answers came", rig.far().received, all)?;
    rig.end()?;
    Ok(count.into())
}

/// As [`reply`], where the lane does not tell when a message has come and an answer goes: the turn is
/// counted as far as its answers are posted.
fn reply_by_turn<F: Field>(count: u32) -> Fallible<u64> {
    let mut rig = Rig::<F, _>::new(ONE, Answering::<true>::default())?;
    let mut left = count + 2 * WARM_UP;
    rounds(&mut rig, count, |rig, _| {
        rig.far().to_send = 1;
        rig.turn_far();
        if left <= count {
            rig.near().counts_answer = true;
            rig.turn_counted_to_service();
        } else {
            rig.turn();
        }
        left -= 1;
        // The answer is taken, and its completion is out of the way before the next message.
        rig.turn_far();
        rig.turn_far();
        rig.turn();
    });
    let all = u64::from(count + 2 * WARM_UP);
    expect("answers came", rig.far().received, all)?;
    rig.end()?;
    Ok(count.into())
}

fn receive<F: Field>(burst: u32, count: u32) -> Fallible<u64> {
    let mut rig = Rig::<F, _>::new(ONE, Answering::<false>::default())?;
    rounds(&mut rig, count, |rig, turn| {
        rig.far().to_send = burst;
        rig.turn_far();
        turn(rig);
    });
    rig.end()?;
    Ok(u64::from(burst) * u64::from(count))
}

/// Marks the scenario that writes.
struct Write;

/// Posts `burst` operations, and the next `burst` when all are done.
#[derive(Debug)]
struct Posting {
    conn: Option<ConnId>,
    burst: u32,
    under_way: u32,
    completed: u64,
    to: Option<RemoteRegion>,
}

impl Posting {
    #[inline]
    fn post(&mut self, io: &mut Io<'_>, conn: ConnId) {
        for _ in 0..self.burst {
            let mut buffer = io.alloc().expect("the pool is large enough");
            buffer.copy_from(&PAYLOAD).expect("it fits");
            let posted = match &self.to {
                Some(region) => io.write(conn, buffer, region, 0, Token(1)),
                None => io.send(conn, buffer, Token(1)),
            };
            assert!(posted.is_ok(), "the queue has room");
        }
        self.under_way = self.burst;
    }
}

impl Counted for Posting {
    fn connections(&self) -> usize {
        self.conn.is_some().into()
    }
}

impl Service for Posting {
    fn connected(&mut self, _: &mut Io<'_>, conn: ConnId, _: &Peer) {
        self.conn = Some(conn);
    }
    fn message(&mut self, _: &mut Io<'_>, _: ConnId, _: Message) {}
    fn completed(&mut self, io: &mut Io<'_>, conn: ConnId, completed: Completed) {
        drop(completed);
        self.completed += 1;
        self.under_way -= 1;
        if self.under_way == 0 {
            self.post(io, conn);
        }
    }
    fn turn(&mut self, io: &mut Io<'_>) -> Turn {
        // The first ones; afterwards there is always something under way, until the end.
        if self.under_way == 0
            && self.completed == 0
            && let Some(conn) = self.conn
        {
            self.post(io, conn);
            return Turn::Busy;
        }
        Turn::Idle
    }
}

fn post<F: Field>(burst: u32, write: Option<Write>, count: u32) -> Fallible<u64> {
    let service = Posting {
        conn: None,
        burst: 0,
        under_way: 0,
        completed: 0,
        to: None,
    };
    let mut rig = Rig::<F, _>::new(ONE, service)?;
    let memory = rig.expose(PAYLOAD.len())?;
    if write.is_some() {
        rig.near().to = memory.remote_region(0);
    }
    rig.near().burst = burst;
    rig.turn();
    // The peer may have to be asked for its memory.
    rig.turn_until("post", |rig| rig.near().completed > 0)?;
    rig.turn_far();
    rig.turn_far();
    let before = rig.near().completed;
    rounds(&mut rig, count, |rig, turn| {
        turn(rig);
        // It takes what has come, and tells so.
        rig.turn_far();
        rig.turn_far();
    });
    let all = u64::from(burst) * u64::from(count + 2 * WARM_UP);
    expect("operations were done", rig.near().completed - before, all)?;
    if write.is_some() {
        let mut bytes = [0; PAYLOAD.len()];
        memory.copy_out(0, &mut bytes)?;
        assert_eq!(bytes, PAYLOAD, "the WRITE arrived");
    }
    // Nothing more is posted.
    rig.near().burst = 0;
    rig.end()?;
    Ok(u64::from(burst) * u64::from(count))
}
