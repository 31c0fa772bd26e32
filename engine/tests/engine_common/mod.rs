//! Two engines in one process, over a fabric of the test's choice: one pings, the other echoes.
#![allow(dead_code, reason = "each test uses a part of it")]

use spinwire::config::{
    ConnectionPlan, ControlPlan, LanePlan, Plan, PoolPlan, ShmPlan, WorkerPlan,
};
use spinwire::control::{ConnectError, Offer};
use spinwire::fabric::fault::{Fault, Profile};
use spinwire::fabric::{Fabric, Url};
use spinwire::memory::{Buffer, HugepagePolicy};
use spinwire::types::IdlePolicy;
use spinwire::worker::{
    CloseReason, Completed, ConnId, Io, Message, Outcome, Peer, PostError, Service, Token,
};
use spinwire::{Engine, Leftovers};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

fn plan<F: Fabric>(fabric: &F, idle: IdlePolicy) -> Plan {
    let device = F::limits(&fabric.devices()[0]).name.clone();
    let lane = LanePlan {
        device,
        cq_depth: 4 * 32,
        send_depth: 16,
        recv_depth: 16,
        shared_recv_depth: 0,
        inline_bytes: 64,
        connections_max: 4,
    };
    Plan {
        control: ControlPlan { core: None },
        workers: vec![WorkerPlan {
            core: None,
            idle,
            lanes: vec![lane],
        }],
        pool: PoolPlan {
            slots: 128,
            slots_max: 128,
            slot_bytes: 4096,
            hugepages: HugepagePolicy::Off,
        },
        connection: ConnectionPlan {
            resolve_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(5),
            drain_deadline: Duration::from_secs(2),
            retry_count: 7,
            rnr_retry_count: 7,
        },
        shm: ShmPlan::default(),
    }
}

/// Sends; one message at a time fits the queue, but the connection may be ending.
fn send(io: &mut Io<'_>, conn: ConnId, buffer: Buffer, token: u32) {
    if let Err(rejected) = io.send(conn, buffer, Token(token.into())) {
        assert_eq!(rejected.reason, PostError::NotConnected);
    }
}

/// Gives every message back.
struct Echo(Sender<CloseReason>);

impl Service for Echo {
    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        send(io, conn, message.into_buffer(), 0);
    }
    fn disconnected(&mut self, _: &mut Io<'_>, _: ConnId, reason: CloseReason) {
        let _ = self.0.send(reason);
    }
}

/// Sends one message after the other, each when the one before came back.
struct Ping {
    rounds: u32,
    sent: u32,
    done: u32,
    end: Sender<(CloseReason, u32)>,
}

impl Ping {
    fn next(&mut self, io: &mut Io<'_>, conn: ConnId) {
        if self.sent == self.rounds {
            return io.close(conn);
        }
        let mut buffer = io.alloc().expect("a slot");
        // Inline and not, and the empty message.
        let bytes = vec![u8::try_from(self.sent % 251).expect("small"); self.sent as usize % 200];
        buffer.copy_from(&bytes).expect("short");
        send(io, conn, buffer, self.sent);
        self.sent += 1;
    }
}

impl Service for Ping {
    fn connected(&mut self, io: &mut Io<'_>, conn: ConnId, _: &Peer) {
        self.next(io, conn);
    }
    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        let last = self.sent - 1;
        assert_eq!(message.len(), last as usize % 200);
        assert!(message.iter().all(|b| u32::from(*b) == last % 251));
        drop(message);
        self.next(io, conn);
    }
    fn completed(&mut self, _: &mut Io<'_>, _: ConnId, completed: Completed) {
        self.done += u32::from(completed.outcome == Outcome::Done);
    }
    fn disconnected(&mut self, _: &mut Io<'_>, _: ConnId, reason: CloseReason) {
        let _ = self.end.send((reason, self.done));
    }
}

fn url() -> Url {
    "shm://node".parse().expect("a name")
}

fn server<F: Fabric>(fabric: F, idle: IdlePolicy) -> (Engine, Receiver<CloseReason>) {
    let (plan, (tell, told)) = (plan(&fabric, idle), channel());
    let engine = Engine::start_on(fabric, &plan, move |_| Echo(tell.clone()));
    let engine = engine.expect("it starts");
    engine.listen(&url()).expect("the name is free");
    (engine, told)
}

fn client<F: Fabric>(
    fabric: F,
    idle: IdlePolicy,
    rounds: u32,
) -> (Engine, Receiver<(CloseReason, u32)>) {
    let (plan, (tell, told)) = (plan(&fabric, idle), channel());
    let engine = Engine::start_on(fabric, &plan, move |_| Ping {
        rounds,
        sent: 0,
        done: 0,
        end: tell.clone(),
    });
    (engine.expect("it starts"), told)
}

pub(crate) fn ping_pong<F: Fabric>(fabric: impl Fn() -> F, idle: IdlePolicy, rounds: u32) {
    let (server, gone) = server(fabric(), idle);
    let (client, end) = client(fabric(), idle, rounds);
    client.connect(&url(), Offer::default()).expect("connects");
    let (reason, done) = end.recv_timeout(PATIENCE).expect("it ends");
    assert_eq!((reason, done), (CloseReason::Local, rounds));
    let reason = gone.recv_timeout(PATIENCE).expect("the server hears of it");
    assert_eq!(reason, CloseReason::Peer);
    assert_eq!(client.shutdown().expect("ends"), Leftovers::default());
    assert_eq!(server.shutdown().expect("ends"), Leftovers::default());
}

/// No worker sleeps over something that only another poll would bring.
pub(crate) fn ping_pong_though_all_is_late<F: Fabric>(fabric: impl Fn() -> F) {
    let profile = Profile {
        wait: 300,
        ..Profile::harmless()
    };
    let late = || Fault::new(fabric(), 5, profile).expect("descriptors");
    ping_pong(late, IdlePolicy::Event, 300);
}

pub(crate) fn an_end_is_heard_of<F: Fabric>(fabric: impl Fn() -> F) {
    let (server, _) = server(fabric(), IdlePolicy::Event);
    let (client, end) = client(fabric(), IdlePolicy::Event, u32::MAX);
    client.connect(&url(), Offer::default()).expect("connects");
    assert_eq!(server.shutdown().expect("ends"), Leftovers::default());
    let (reason, _) = end.recv_timeout(PATIENCE).expect("it ends");
    // Whichever is heard of first: the disconnect, or a message that nobody answers.
    assert!(
        matches!(reason, CloseReason::Peer | CloseReason::Failed(_)),
        "{reason}"
    );
    assert_eq!(client.shutdown().expect("ends"), Leftovers::default());
}

pub(crate) fn a_name_without_a_listener_is_told<F: Fabric>(fabric: F) {
    let (client, _) = client(fabric, IdlePolicy::Event, 1);
    let error = client.connect(&url(), Offer::default());
    assert!(
        matches!(error, Err(ConnectError::NothingListens { .. })),
        "{error:?}"
    );
    let far: Url = "rdma://127.0.0.1:7471".parse().expect("an address");
    let error = client
        .connect(&far, Offer::default())
        .expect_err("of verbs");
    assert!(format!("{error:?}").contains("shm://NAME"), "{error:?}");
    assert_eq!(client.shutdown().expect("ends"), Leftovers::default());
}
