//! The atomics kit: contention from several workers and processes, and no update is lost.

mod counter;
mod lock;

use crate::child::{Child, part};
use crate::support::*;
use spinwire::control::Offer;
use spinwire::framed::{Framed, FramedIo, Payload, RegionId, RequestId, Service};
use spinwire::kit::{Epoch, Fence, LockTerms, Owner, RemoteLock, RemoteWord};
use spinwire::memory::{ExposedMemory, HugepagePolicy};
use spinwire::types::{Access, IdlePolicy, RemoteRegion};
use spinwire::worker::{ConnId, Token};
use spinwire::{Engine, GroupSpec};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

/// Where the words are.
const COUNTER: u64 = 0;
const LOCK: u64 = 8;
/// READ and written under the lock.
const VALUE: u64 = 16;

/// What is asked of the node: to offer its memory, and to add to what it guards.
const OFFER: RequestId = RequestId(0);
const GUARDED: RequestId = RequestId(1);

/// Not a test by itself: the body of the processes that the tests here start, and kill.
/// Their part: `JOB HOST PORT FIRST_OWNER`.
#[test]
#[ignore = "a child of the tests in this file"]
fn child_process() {
    let Some(words) = part() else {
        return;
    };
    let at = (&*words[1], words[2].parse().unwrap());
    let owner = words[3].parse().unwrap();
    match &*words[0] {
        "count" => counter::add_from(at, 1),
        "rounds" => lock::rounds_from(at, owner, 1),
        "hold" => lock::hold_from(at, owner),
        other => panic!("{other}"),
    }
}

fn start_child(job: &str, port: u16, owner: u16) -> Child {
    let part = format!("{job} {} {port} {owner}", RXE.1);
    Child::start("atomics::child_process", part)
}

/// An addition to what the node guards, as it came.
#[derive(Debug, PartialEq)]
struct Guarded {
    owner: u64,
    epoch: u64,
    accepted: bool,
    /// After it.
    value: u64,
}

/// Offers the words, and guards a counter of its own that only holders of the lock add to.
struct Node {
    memory: ExposedMemory,
    fence: Fence,
    value: u64,
    tell: Sender<Guarded>,
}

impl Service for Node {
    fn request(&mut self, io: &mut FramedIo<'_>, conn: ConnId, id: RequestId, question: Payload) {
        if id == OFFER {
            io.offer(conn, &self.memory, RegionId(0), 0).unwrap();
        } else {
            let word = |at: usize| u64::from_le_bytes(question[at..at + 8].try_into().unwrap());
            let epoch = Epoch::parse(word(0)).unwrap();
            let accepted = self.fence.admit(epoch).is_ok();
            self.value += u64::from(accepted);
            let _ = self.tell.send(Guarded {
                owner: word(8),
                epoch: epoch.get(),
                accepted,
                value: self.value,
            });
        }
        let answer = question.into_frame();
        io.reply(conn, id, answer, Token(0)).unwrap();
    }
}

fn plan_of(workers: usize) -> spinwire::config::Plan {
    // More threads than cores, so they yield and none is pinned.
    let mut plan = plan(RXE.0, 0, IdlePolicy::Yield);
    plan.workers[0].core = None;
    plan.workers = vec![plan.workers[0].clone(); workers];
    plan
}

/// The engine that has the words, and what it was told by those who hold the lock.
fn start_node(port: u16) -> (Engine, Receiver<Guarded>) {
    let access = Access::REMOTE_ATOMIC | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let (tell, told) = mpsc::channel();
    let node = Engine::start(&plan_of(1), move |worker| {
        let memory = worker.expose(4096, HugepagePolicy::Off, access).unwrap();
        Framed::new(Node {
            memory,
            fence: Fence::default(),
            value: 0,
            tell: tell.clone(),
        })
    });
    let node = node.unwrap();
    let terms = Offer {
        access,
        ..Offer::framed()
    };
    node.listen_with(&url(RXE.1, port), terms).unwrap();
    (node, told)
}

/// A framed group over all workers of a client.
fn connect(client: &Engine, (host, port): (&str, u16), qps: u16) {
    let spec = GroupSpec {
        offer: Offer::framed(),
        ..GroupSpec::of(qps)
    };
    client.connect_group(&url(host, port), &spec).unwrap();
}

/// Asks the node to offer its memory.
fn ask_for_offer(io: &mut FramedIo<'_>, conn: ConnId) {
    let question = io.frame().unwrap();
    io.request(conn, question, OFFER, Token(0)).unwrap();
}

fn lock_at(conn: ConnId, region: &RemoteRegion, owner: u16, lease: Duration) -> RemoteLock {
    let terms = LockTerms {
        owner: Owner::new(owner).unwrap(),
        lease,
        look_every: Duration::from_millis(1),
        token: lock::LOCK_TOKEN,
    };
    RemoteLock::new(RemoteWord::new(conn, region, LOCK).unwrap(), terms).unwrap()
}
