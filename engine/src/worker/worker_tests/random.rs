//! Random scripts against what must hold whatever happens.
//!
//! Each place goes through life after life; the device executes, fails, refuses and falls silent at
//! random. At the end everything is driven to Released and the books are balanced: every token that was
//! taken came back once and with an outcome that the device's own record allows, messages came in
//! order, `connected` and `disconnected` pair up, answers come once and in order, no slot is missing.
//!
//! The same with receives that the places share. Where peers keep to what they are told, and the device
//! loses nothing, each message also finds a receive.

use super::*;
use crate::fabric::WcStatus;
use proptest::prelude::*;
use std::collections::HashMap;

const PLACES: u16 = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Next step of a place's life as control takes it; `gently`: the flushes come.
    Advance {
        place: u16,
        passive: bool,
        gently: bool,
    },
    Establish(u16),
    Deliver(u16, u8),
    Send(u16, u8),
    Execute(u16, usize),
    Fail(u16, WcStatus),
    Close(u16),
    RefuseSends(u16, usize),
    RefuseRecvs(u16, usize),
    /// The QP dies in the middle of a message that has a shared receive.
    Lose(u16),
    Hold(u8),
    Free,
    Keep(bool),
    Wait(u64),
    /// An idle worker polls between turns.
    Peek,
    Turn,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = 0..PLACES;
    let status = prop_oneof![
        Just(WcStatus::RetryExceeded),
        Just(WcStatus::Flushed),
        Just(WcStatus::Other(40)),
    ];
    let step = prop_oneof![
        3 => (place.clone(), any::<bool>(), prop::bool::weighted(0.7))
            .prop_map(|(place, passive, gently)| Step::Advance { place, passive, gently }),
        2 => place.clone().prop_map(Step::Establish),
        5 => (place.clone(), 1..6u8).prop_map(|(p, n)| Step::Deliver(p, n)),
        5 => (place.clone(), 1..6u8).prop_map(|(p, n)| Step::Send(p, n)),
        5 => (place.clone(), 1..9usize).prop_map(|(p, n)| Step::Execute(p, n)),
        1 => (place.clone(), status).prop_map(|(p, s)| Step::Fail(p, s)),
        1 => place.clone().prop_map(Step::Close),
        1 => (place.clone(), 0..6usize).prop_map(|(p, n)| Step::RefuseSends(p, n)),
        1 => place.clone().prop_map(Step::Lose),
        1 => (place, 0..12usize).prop_map(|(p, n)| Step::RefuseRecvs(p, n)),
        1 => (1..20u8).prop_map(Step::Hold),
        1 => Just(Step::Free),
        1 => any::<bool>().prop_map(Step::Keep),
        1 => (0..8_000_000u64).prop_map(Step::Wait),
        2 => Just(Step::Peek),
        10 => Just(Step::Turn),
    ];
    prop::collection::vec(step, 0..250)
}

/// How far control has taken a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Adopting,
    Open,
    Stopping,
    Stopped,
    Flushing,
    Drained,
    Releasing,
}

#[derive(Clone, Copy)]
struct Life {
    conn: ConnId,
    qp: QpNum,
    stage: Stage,
}

/// What a life is to be judged by.
struct Past {
    conn: ConnId,
    qp: QpNum,
    delivered: Vec<u8>,
    answers: Vec<Answer>,
}

/// Whose the receives are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receives {
    Own,
    /// The places', and peers send as much as they can.
    Shared,
    /// The places', and peers send as much as they are told; the device loses and refuses nothing.
    Fair,
}

struct Script {
    receives: Receives,
    /// Shared receives that are used up and never complete.
    lost: usize,
    bench: Bench,
    lives: [Option<Life>; PLACES as usize],
    past: Vec<Past>,
    held: Vec<Buffer>,
    next_token: u64,
    next_byte: u8,
}

impl Script {
    fn new(receives: Receives) -> Self {
        let shared = receives != Receives::Own;
        let size = Size {
            slots: 40,
            shared_recv_depth: if shared { 24 } else { 0 },
            ..SMALL
        };
        Self {
            receives,
            lost: 0,
            bench: Bench::new(size),
            lives: [None; PLACES as usize],
            past: Vec::new(),
            held: Vec::new(),
            next_token: 1,
            next_byte: 0,
        }
    }

    fn take(&mut self, step: Step) {
        let life = |place: u16| self.lives[usize::from(place)];
        let toy = &self.bench.toy;
        match step {
            Step::Advance {
                place,
                passive,
                gently,
            } => self.advance(place, passive, gently),
            Step::Establish(place) => {
                if let Some(life) = life(place).filter(|l| l.stage == Stage::Open) {
                    self.bench.establish(life.conn);
                }
            }
            Step::Deliver(place, n) => {
                // Nothing comes in before the handshake, which comes behind Armed.
                let Some(life) = life(place).filter(|l| l.stage != Stage::Adopting) else {
                    return;
                };
                let past = self.past.iter_mut().find(|p| p.conn == life.conn);
                let delivered = &mut past.expect("a life").delivered;
                for _ in 0..n {
                    let fair = self.receives == Receives::Fair;
                    let recvs = &self.bench.worker.core.table.at(place).recvs;
                    if fair && recvs.posted_total() as usize <= delivered.len() {
                        return;
                    }
                    let alive = !toy.is_in_error(life.qp);
                    let found = toy.deliver(life.qp, &[self.next_byte]);
                    assert!(
                        found || !fair || !alive,
                        "told of a receive that is not there"
                    );
                    if found {
                        delivered.push(self.next_byte);
                        self.next_byte = self.next_byte.wrapping_add(1);
                    }
                }
            }
            Step::Lose(place) if self.receives == Receives::Shared => {
                if let Some(life) = life(place).filter(|l| l.stage != Stage::Adopting) {
                    self.lost += usize::from(toy.lose_shared(life.qp));
                    toy.fail(life.qp, WcStatus::Flushed);
                }
            }
            Step::Lose(_) => {}
            Step::Send(place, n) => {
                let Some(life) = life(place) else { return };
                for _ in 0..n {
                    let token = self.next_token;
                    let bytes = [&token.to_le_bytes()[..], &[0; 10]].concat();
                    self.bench.order(Order::Send(life.conn, bytes, token));
                    self.next_token += 1;
                }
            }
            Step::Execute(place, n) => drop(life(place).map(|l| toy.execute(l.qp, n))),
            Step::Fail(place, status) => drop(life(place).map(|l| toy.fail(l.qp, status))),
            Step::Close(place) => {
                if let Some(life) = life(place) {
                    self.bench.order(Order::Close(life.conn));
                }
            }
            Step::RefuseSends(place, n) => drop(life(place).map(|l| toy.refuse_sends(l.qp, n, 12))),
            Step::RefuseRecvs(place, n) => match self.receives {
                Receives::Own => drop(life(place).map(|l| toy.refuse_recvs(l.qp, n, 12))),
                Receives::Shared => toy.refuse_shared(0, n, 12),
                Receives::Fair => {}
            },
            Step::Hold(n) => {
                let pool = &self.bench.worker.core.pool;
                self.held.extend((0..n).filter_map(|_| pool.alloc().ok()));
            }
            Step::Free => self.held.clear(),
            Step::Keep(on) => self.bench.worker.service().kept = on.then(Vec::new),
            Step::Wait(nanos) => self.bench.now = self.bench.now + Duration::from_nanos(nanos),
            Step::Peek => drop(self.bench.worker.peek(2)),
            Step::Turn => self.turn(),
        }
    }

    fn advance(&mut self, place: u16, passive: bool, gently: bool) {
        let Some(life) = &mut self.lives[usize::from(place)] else {
            let role = if passive { Role::Passive } else { Role::Active };
            let (conn, qp) = self.bench.hand_over(place, 0, role);
            let stage = Stage::Adopting;
            self.lives[usize::from(place)] = Some(Life { conn, qp, stage });
            let (delivered, answers) = (Vec::new(), Vec::new());
            return self.past.push(Past {
                conn,
                qp,
                delivered,
                answers,
            });
        };
        match life.stage {
            Stage::Open => {
                life.stage = Stage::Stopping;
                self.bench
                    .tell(Command::Stop(life.conn, CloseReason::Shutdown));
            }
            Stage::Stopped => {
                if gently {
                    self.bench.toy.flush(life.qp);
                }
                life.stage = Stage::Flushing;
                self.bench.tell(Command::Flush(life.conn, DRAIN));
            }
            Stage::Drained => {
                life.stage = Stage::Releasing;
                let conn = life.conn;
                self.bench.destroy_qp(conn);
                self.bench.tell(Command::QpGone(conn));
            }
            Stage::Adopting | Stage::Stopping | Stage::Flushing | Stage::Releasing => {}
        }
    }

    fn turn(&mut self) {
        for answer in self.bench.turn_answers() {
            let (conn, stage) = match answer {
                Answer::Armed(conn) => (conn, Some(Stage::Open)),
                Answer::Refused(conn) => {
                    self.bench.destroy_qp(conn);
                    (conn, None)
                }
                Answer::CloseRequested(conn, _) => (conn, Some(Stage::Open)),
                Answer::Stopped(conn) => (conn, Some(Stage::Stopped)),
                Answer::Drained(conn, _) => (conn, Some(Stage::Drained)),
                Answer::Released(conn) => (conn, None),
                Answer::LaneDropped(_) | Answer::PoolLow => {
                    unreachable!("no device goes away here, and no pool grows")
                }
            };
            let past = self.past.iter_mut().find(|p| p.conn == conn);
            past.expect("a life").answers.push(answer);
            let place = &mut self.lives[usize::from(conn.index)];
            let life = place.as_mut().expect("an answer of the life that is here");
            assert_eq!(life.conn, conn);
            match (answer, stage) {
                // May cross with a Stop.
                (Answer::CloseRequested(..), _) => {}
                (_, Some(stage)) => life.stage = stage,
                (_, None) => *place = None,
            }
        }
    }

    /// What all peers together may still send, as they were told, finds a receive.
    fn check_promises(&mut self) {
        let mut promised = 0;
        let lives = self.lives.iter().flatten();
        for life in lives.filter(|l| l.stage != Stage::Adopting) {
            let past = self.past.iter().find(|p| p.conn == life.conn);
            let recvs = &self.bench.worker.core.table.at(life.conn.index).recvs;
            let told = recvs.posted_total() as usize;
            promised += told - past.expect("a life").delivered.len();
        }
        let posted = self.bench.toy.shared_outstanding(0);
        assert!(promised <= posted, "{promised} promised, {posted} posted");
    }

    fn drive_to_the_end(&mut self) {
        for _ in 0..200 {
            if self.lives.iter().all(Option::is_none) {
                break;
            }
            for place in 0..PLACES {
                if self.lives[usize::from(place)].is_some() {
                    self.advance(place, true, false);
                }
            }
            self.bench.now = self.bench.now + DRAIN;
            self.turn();
        }
        assert!(self.lives.iter().all(Option::is_none), "everything ends");
        self.held.clear();
        self.bench.worker.service().kept = None;
        if self.receives != Receives::Own {
            self.bench.toy.refuse_shared(0, 1000, 0);
            assert!(self.bench.worker.is_shared_ready(0), "the pool is free");
        }
        self.turn();
    }

    fn check(mut self) {
        let with_nic = self.bench.toy.shared_outstanding(0) + self.lost;
        let shared = self.bench.size.shared_recv_depth as usize;
        assert_eq!(with_nic, shared, "a shared receive is missing");
        assert_eq!(
            self.bench.free() as usize + with_nic,
            40,
            "a slot is missing"
        );
        let seen = self.bench.seen();
        let rejected = std::mem::take(&mut self.bench.worker.service().rejected);
        let mut outcomes = HashMap::new();
        for seen in &seen {
            if let Seen::Completed(_, token, outcome) = seen {
                assert!(outcomes.insert(*token, *outcome).is_none(), "{token} twice");
                assert!(rejected.iter().all(|(t, _)| t != token));
            }
        }
        for past in &self.past {
            self.check_life(past, &seen, &mut outcomes);
        }
        // Those that no device ever saw.
        assert!(outcomes.into_values().all(|o| o == Outcome::NeverPosted));
    }

    fn check_life(&self, past: &Past, seen: &[Seen], outcomes: &mut HashMap<u64, Outcome>) {
        let (sent, executed) = self.bench.toy.sent(past.qp);
        for (number, payload) in sent.iter().enumerate() {
            let token = payload
                .first_chunk()
                .map_or(0, |token| u64::from_le_bytes(*token));
            let outcome = outcomes.remove(&token).expect("posted, so completed");
            match outcome {
                Outcome::Done => assert!(number < executed),
                Outcome::NeverPosted => panic!("the device had {token}"),
                Outcome::Unknown(_) => {}
            }
        }
        let of_it = |s: &&Seen| match s {
            Seen::Connected(c) | Seen::Message(c, _) => *c == past.conn,
            Seen::Completed(c, ..) | Seen::Disconnected(c, _) => *c == past.conn,
        };
        let mine: Vec<&Seen> = seen.iter().filter(of_it).collect();
        let messages = mine.iter().filter_map(|s| match s {
            Seen::Message(_, bytes) => Some(bytes[0]),
            Seen::Connected(_) | Seen::Completed(..) | Seen::Disconnected(..) => None,
        });
        let messages: Vec<u8> = messages.collect();
        if let [first, .., last] = &mine[..] {
            assert!(matches!(first, Seen::Connected(_)) && matches!(last, Seen::Disconnected(..)));
            let ends = |s: &&&Seen| matches!(s, Seen::Connected(_) | Seen::Disconnected(..));
            assert_eq!(mine.iter().filter(ends).count(), 2);
            // What came in after the worker had given up waiting may not be served.
            assert!(past.delivered.starts_with(&messages));
            let complete = past.answers.contains(&Answer::Drained(past.conn, 0));
            assert!(!complete || messages == past.delivered);
        } else {
            assert!(mine.is_empty());
        }
        self.check_answers(past);
    }

    fn check_answers(&self, past: &Past) {
        let asked = |a: &&Answer| matches!(a, Answer::CloseRequested(..));
        assert!(past.answers.iter().filter(asked).count() <= 1);
        let steps: Vec<&Answer> = past.answers.iter().filter(|a| !asked(a)).collect();
        match steps[..] {
            [Answer::Refused(_)] => {}
            [
                Answer::Armed(_),
                Answer::Stopped(_),
                Answer::Drained(..),
                Answer::Released(_),
            ] => {}
            _ => panic!("{:?}", past.answers),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn whatever_happens_the_books_balance(
        steps in steps(),
        receives in prop_oneof![
            Just(Receives::Own), Just(Receives::Shared), Just(Receives::Fair),
        ],
    ) {
        let mut script = Script::new(receives);
        for step in steps {
            script.take(step);
            if receives == Receives::Fair {
                script.check_promises();
            }
        }
        script.drive_to_the_end();
        script.check();
    }
}
