//! Control, turn by turn, between the toy fabric and workers in the test's hands.
//!
//! ```text
//!  test ── event, request, refuse ─► Toy ◄─ calls ── Control ◄─► mailbox ◄─► Scripted worker ◄── test
//! ```
//! Time moves only as a test says. Each bench can tell at its end that every id and QP was destroyed
//! once, and each QP only when nobody could post to it.

mod connecting;
mod ending;
mod greeting;
mod growing;
mod losing;
mod random;

use super::*;
use crate::fabric::toy::{Call, DEVICE, QpEnd, Toy};
use crate::fabric::{CmEventKind, LaneSpec, QpSpec};
use crate::worker::scripted::{Answer, Order, Scripted};
use crate::worker::{Peer, Role, Turn};

const TIMING: Timing = Timing {
    resolve: Duration::from_millis(200),
    connect: Duration::from_millis(300),
    drain: Duration::from_millis(50),
    retry_count: 7,
    rnr_retry_count: 7,
};
const MS: Duration = Duration::from_millis(1);

struct Bench {
    toy: Toy,
    control: Control<Toy>,
    workers: Vec<Option<Scripted<Toy>>>,
    now: Nanos,
}

impl Bench {
    /// Workers with one lane and this many places each.
    fn new(workers: usize, places: u32) -> Self {
        let mut toy = Toy::new();
        let device = toy.devices().remove(0);
        let mut links = Vec::new();
        let mut ends = Vec::new();
        for _ in 0..workers {
            let spec = LaneSpec {
                shared_recv_depth: 0,
                cq_depth: 64,
                events: false,
            };
            let (cq, _, grant) = toy.create_lane(&device, &spec).expect("a lane");
            let (end, theirs) = crate::worker::mailbox();
            let lane = LaneLink {
                device: DEVICE.into(),
                cq: Some(cq),
                device_handle: Some(device.clone()),
                spec: QpSpec {
                    shared_receives: false,
                    windows: 0,
                    send_depth: 8,
                    recv_depth: 8,
                    inline_bytes: 0,
                    access: crate::types::Access::NONE,
                },
                connections_max: places,
                buffer_bytes: 256,
                grant,
            };
            links.push(WorkerLink {
                end,
                wake: Arc::new(EventFd::new().expect("a descriptor")),
                lanes: vec![lane],
                counters: crate::metrics::counters().1,
                growth: None,
            });
            ends.push(Some(Scripted::new(theirs)));
        }
        let control = Control::new(toy.clone(), links, TIMING).expect("descriptors");
        Self {
            toy,
            control,
            workers: ends,
            now: Nanos(1_000_000_000),
        }
    }

    fn turn(&mut self) -> Turn {
        self.control.turn(self.now)
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        self.turn();
    }

    fn worker(&mut self) -> &mut Scripted<Toy> {
        self.workers[0].as_mut().expect("alive")
    }

    /// A turn, and what the first worker was told by it.
    fn orders(&mut self) -> Vec<Order> {
        self.turn();
        self.worker().orders()
    }

    fn say(&mut self, answer: Answer) {
        self.worker().say(answer);
        self.turn();
    }

    fn cm(&mut self, id: IdKey, kind: CmEventKind) {
        self.toy.event(id, kind, 0);
        self.turn();
    }

    /// Well-behaved workers and control, until nothing happens; no time passes.
    fn settle(&mut self) {
        loop {
            let mut work = self.turn() == Turn::Busy;
            for worker in self.workers.iter_mut().flatten() {
                while worker.obey_one() {
                    work = true;
                }
            }
            for end in &mut self.workers {
                if end.as_ref().is_some_and(|w| w.told_to_exit) {
                    *end = None;
                    work = true;
                }
            }
            if !work {
                return;
            }
        }
    }

    fn connect(&mut self) -> (Handle, IdKey) {
        let peer = Endpoint::Shm("peer".into());
        let offer = Offer {
            tag: 42,
            ..Offer::default()
        };
        let handle = self.control.connect(&peer, offer).expect("an id");
        (handle, self.toy.last_id())
    }

    fn listen(&mut self) -> IdKey {
        let at = Endpoint::Shm("here".into());
        self.control
            .listen(&at, Offer::default().into())
            .expect("free");
        self.toy.last_id()
    }

    /// An active connection in `state`, whose worker obeys.
    fn active_at(&mut self, state: State) -> (Handle, IdKey) {
        use CmEventKind as Kind;
        let (handle, id) = self.connect();
        for kind in [Kind::AddrResolved, Kind::RouteResolved] {
            if self.control.state(handle) == Some(state) {
                return (handle, id);
            }
            self.cm(id, kind);
        }
        if self.control.state(handle) != Some(state) {
            self.settle();
        }
        if self.control.state(handle) != Some(state) {
            self.cm(id, Kind::ConnectResponse);
        }
        assert_eq!(self.control.state(handle), Some(state));
        (handle, id)
    }

    /// A connection that is up; its notice is taken.
    fn up(&mut self) -> (Handle, IdKey, ConnId) {
        let (handle, id) = self.active_at(State::Established);
        self.settle();
        let Some(Notice::Connected(_, conn)) = self.control.take_notice() else {
            panic!("connected");
        };
        (handle, id, conn)
    }

    fn notices(&mut self) -> Vec<Notice> {
        std::iter::from_fn(|| self.control.take_notice()).collect()
    }

    /// Everything ends, and the books balance. Gives how the QPs ended.
    fn finish(mut self) -> Vec<QpEnd> {
        self.control.shutdown();
        self.settle();
        for _ in 0..3 {
            self.wait(TIMING.drain);
            self.settle();
        }
        assert!(self.control.is_done());
        assert_eq!(self.control.connections(), 0);
        self.finish_anyhow()
    }

    /// The same without a farewell.
    fn finish_anyhow(self) -> Vec<QpEnd> {
        let Self {
            toy,
            control,
            workers,
            ..
        } = self;
        drop(workers);
        assert_eq!(toy.ids(), [], "ids are left");
        assert!(control.by_id.is_empty() && control.by_conn.is_empty());
        drop(control);
        let ends = toy.qp_ends();
        assert!(!ends.contains(&QpEnd::Alive), "{ends:?}");
        for id in (0..toy.made()).map(IdKey) {
            let calls = toy.calls(id);
            let count = |call| calls.iter().filter(|c| **c == call).count();
            assert_eq!(count(Call::DestroyId), 1, "{calls:?}");
            assert!(count(Call::DestroyQp) <= 1, "{calls:?}");
            assert_eq!(calls.last(), Some(&Call::DestroyId));
        }
        ends
    }
}
