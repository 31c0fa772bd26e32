//! Random scripts: whatever the connection manager, the workers and the clock do, every id and QP is
//! destroyed once, every attempt is answered once, and no place is lost.

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

const PLACES: u32 = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    Connect,
    Request,
    /// The kind, by number, about one of the ids that live.
    Cm(usize, usize, i32),
    /// The usual next word about one of the ids.
    Forward(usize, usize),
    Obey(usize),
    Refuse(usize),
    Close(usize),
    AskClose(usize),
    FailNext(Call),
    Wait(u64),
    Die(usize),
    Turn,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let calls = vec![
        Call::ResolveRoute,
        Call::CreateQp,
        Call::Connect,
        Call::Confirm,
        Call::Accept,
        Call::Reject,
        Call::Disconnect,
        Call::SetError,
    ];
    let step = prop_oneof![
        4 => Just(Step::Connect),
        4 => Just(Step::Request),
        2 => (0..CmEventKind::ALL.len(), any::<usize>(), -120..30i32)
            .prop_map(|(k, id, s)| Step::Cm(k, id, s)),
        12 => (0..4usize, any::<usize>()).prop_map(|(k, id)| Step::Forward(k, id)),
        12 => (0..2usize).prop_map(Step::Obey),
        1 => (0..2usize).prop_map(Step::Refuse),
        2 => any::<usize>().prop_map(Step::Close),
        1 => any::<usize>().prop_map(Step::AskClose),
        1 => prop::sample::select(calls).prop_map(Step::FailNext),
        2 => (0..400u64).prop_map(Step::Wait),
        10 => Just(Step::Turn),
    ];
    // A worker dies in one script of four.
    let death = prop::option::weighted(0.25, (0..120usize, 0..2usize));
    (prop::collection::vec(step, 0..120), death).prop_map(|(mut steps, death)| {
        if let Some((at, worker)) = death {
            steps.insert(at.min(steps.len()), Step::Die(worker));
        }
        steps
    })
}

struct Script {
    bench: Bench,
    listener: IdKey,
    asked: HashSet<Handle>,
    up: HashSet<ConnId>,
    names: Vec<ConnId>,
}

impl Script {
    fn new() -> Self {
        let mut bench = Bench::new(2, PLACES);
        let listener = bench.listen();
        Self {
            bench,
            listener,
            asked: HashSet::new(),
            up: HashSet::new(),
            names: Vec::new(),
        }
    }

    fn take(&mut self, step: Step) {
        use CmEventKind as Kind;
        let b = &mut self.bench;
        let ids: Vec<IdKey> = b.toy.ids();
        match step {
            Step::Connect => drop(self.asked.insert(b.connect().0)),
            // The listener goes with its device.
            Step::Request if !ids.contains(&self.listener) => {}
            Step::Cm(..) | Step::Forward(..) if ids.is_empty() => {}
            Step::Request => drop(b.toy.request(self.listener, b"")),
            Step::Cm(kind, id, status) => {
                let (kind, id) = (Kind::ALL[kind], ids[id % ids.len()]);
                // A listener hears of requests only with their ids.
                if id != self.listener && kind != Kind::ConnectRequest {
                    b.toy.event(id, kind, status);
                }
            }
            Step::Forward(kind, id) => {
                let id = ids[id % ids.len()];
                let way = [
                    Kind::AddrResolved,
                    Kind::RouteResolved,
                    Kind::ConnectResponse,
                    Kind::Established,
                ];
                b.toy.event(id, way[kind], 0);
            }
            Step::Obey(worker) => drop(b.workers[worker].as_mut().map(Scripted::obey_one)),
            Step::Refuse(worker) => {
                let Some(worker) = &mut b.workers[worker] else {
                    return;
                };
                match worker.order() {
                    Some(Order::Adopt(conn, _)) => worker.say(Answer::Refused(conn)),
                    Some(Order::Stop(conn, _)) => worker.say(Answer::Stopped(conn)),
                    Some(Order::Flush(conn)) => worker.say(Answer::Drained(conn)),
                    Some(Order::QpGone(conn)) => worker.say(Answer::Released(conn)),
                    Some(Order::DropLane(lane)) => worker.say(Answer::LaneDropped(lane)),
                    Some(
                        Order::Established(..) | Order::Grow(..) | Order::NotGrown(_) | Order::Exit,
                    )
                    | None => {}
                }
            }
            Step::Close(n) if !self.names.is_empty() => {
                b.control.close(self.names[n % self.names.len()]);
            }
            Step::AskClose(n) if !self.names.is_empty() => {
                let conn = self.names[n % self.names.len()];
                let reason = CloseReason::Peer;
                if let Some(worker) = &mut b.workers[usize::from(conn.worker)] {
                    worker.say(Answer::CloseRequested(conn, reason));
                }
            }
            Step::Close(_) | Step::AskClose(_) => {}
            Step::FailNext(call) => b.toy.refuse(call, libc::EINVAL),
            Step::Wait(ms) => b.now = b.now + MS * u32::try_from(ms).unwrap_or(0),
            Step::Die(worker) => b.workers[worker] = None,
            Step::Turn => drop(b.turn()),
        }
        self.read_notices();
    }

    fn read_notices(&mut self) {
        for notice in self.bench.notices() {
            match notice {
                Notice::Connected(handle, conn) => {
                    assert!(self.asked.remove(&handle), "answered twice");
                    assert!(self.up.insert(conn));
                    self.names.push(conn);
                }
                Notice::Failed(handle, _) => assert!(self.asked.remove(&handle)),
                Notice::Accepted(conn) => {
                    assert!(self.up.insert(conn));
                    self.names.push(conn);
                }
                Notice::Closed(conn, _) => assert!(self.up.remove(&conn), "closed twice"),
            }
        }
        assert!(self.bench.control.connections() <= self.bench.toy.ids().len());
    }

    fn end(mut self) {
        let died = self.bench.workers.iter().any(Option::is_none);
        self.bench.control.shutdown();
        for _ in 0..4 {
            self.bench.settle();
            self.bench.now = self.bench.now + TIMING.drain;
        }
        self.read_notices();
        assert!(self.asked.is_empty() && self.up.is_empty());
        assert!(self.bench.control.is_done());
        let ends = self.bench.finish_anyhow();
        assert!(
            died || ends.iter().all(|end| *end == QpEnd::Destroyed),
            "{ends:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn everything_is_given_back_once(steps in steps()) {
        let mut script = Script::new();
        for step in steps {
            script.take(step);
        }
        script.end();
    }
}
