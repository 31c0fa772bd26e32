//! A counter and a lock in a node's memory, shared by any number of processes.
//!
//! ```text
//! cargo run --release --example remote_lock node rdma://0.0.0.0:7471
//! cargo run --release --example remote_lock work rdma://10.0.0.1:7471 OWNER ROUNDS
//! ```
//! In each round a worker takes a ticket (FAA), acquires the lock (CAS), and under it asks the node to
//! add one to a number that the node guards. The request carries the epoch of the lock; a worker that was
//! stopped for longer than the lease and then goes on is refused, and begins the round again. Give each
//! process an owner of its own, kill or stop some of them, and see the others go on.
//! Processes of one host need no device: `shm://NAME` is an address too.

use spinwire::config::{Config, Host, Side};
use spinwire::control::Offer;
use spinwire::fabric::Url;
use spinwire::framed::{
    Completed, Framed, FramedIo, Payload, RegionId, RegionOffer, RequestId, Service,
};
use spinwire::kit::{
    Answer, Epoch, Fence, LockEvent, LockTerms, Owner, RemoteCounter, RemoteLock, RemoteWord,
};
use spinwire::memory::{ExposedMemory, HugepagePolicy};
use spinwire::sys::signal::StopSignal;
use spinwire::types::Access;
use spinwire::worker::{CloseReason, ConnId, Peer, Token, Turn};
use spinwire::{Engine, WorkerInfo};
use std::error::Error;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

/// Where in the node's memory the words are: both begin as zero.
const TICKETS: u64 = 0;
const LOCK: u64 = 8;

const LEASE: Duration = Duration::from_millis(500);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What a worker asks of the node.
const OFFER: RequestId = RequestId(0);
const ADD: RequestId = RequestId(1);

const TICKET_TOKEN: Token = Token(1);
const LOCK_TOKEN: Token = Token(2);

/// The node's service. Its first worker has the words, and the number that they protect.
struct Node {
    memory: ExposedMemory,
    fence: Fence,
    number: u64,
}

impl Node {
    fn open(worker: &WorkerInfo) -> Self {
        let memory = worker.expose(4096, HugepagePolicy::Off, Access::REMOTE_ATOMIC);
        Self {
            memory: memory.expect("a page of memory"),
            fence: Fence::default(),
            number: 0,
        }
    }

    /// The number, if the epoch is not over.
    fn add(&mut self, epoch: u64) -> Option<u64> {
        self.fence.admit(Epoch::parse(epoch)?).ok()?;
        self.number += 1;
        Some(self.number)
    }
}

impl Service for Node {
    fn request(&mut self, io: &mut FramedIo<'_>, conn: ConnId, id: RequestId, question: Payload) {
        let epoch = (*question).try_into().map_or(u64::MAX, u64::from_le_bytes);
        let mut answer = question.into_frame();
        let sent = if id == OFFER {
            io.offer(conn, &self.memory, RegionId(0), 0).is_ok()
        } else {
            let number = self.add(epoch).unwrap_or(0);
            answer.copy_from(&number.to_le_bytes()).is_ok()
        };
        if !sent || io.reply(conn, id, answer, Token::default()).is_err() {
            io.close(conn); // a worker that asks again and again without listening
        }
    }
}

fn node(at: &Url) -> Result<(), Box<dyn Error>> {
    let stop = StopSignal::install()?;
    let plan = Config::default_for(&Host::probe_for(at)?, Side::Server)?;
    let engine = Engine::start(&plan, |worker| Framed::new(Node::open(&worker)))?;
    // Memory and connection both have to allow it. One worker serves all, for its memory has the words.
    let terms = Offer {
        access: Access::REMOTE_ATOMIC,
        worker: Some(0),
        ..Offer::framed()
    };
    println!("listening on {}", engine.listen_with(at, terms)?);
    let left = engine.run_until(&stop)?;
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

/// What a worker did.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    rounds: u64,
    last_ticket: u64,
    last_number: u64,
    taken_over: u64,
    refused: u64,
}

/// A worker's service: one connection, one lock.
struct Work {
    owner: Owner,
    rounds: u64,
    /// The counter and the lock, once the node has offered them.
    parts: Option<(RemoteCounter, RemoteLock)>,
    /// A request to add is under way.
    adding: bool,
    done: Done,
    tell: Sender<Result<Done, String>>,
}

impl Work {
    fn fail(&self, why: impl ToString) {
        let _ = self.tell.send(Err(why.to_string()));
    }

    /// The next round, if there is one; when nothing of the last is under way.
    fn go_on(&mut self, io: &mut FramedIo<'_>) {
        if self.done.rounds == self.rounds {
            let _ = self.tell.send(Ok(self.done));
        } else if let Some((tickets, _)) = &self.parts
            && let Err(refused) = tickets.add(io, 1, TICKET_TOKEN)
        {
            self.fail(refused);
        }
    }

    fn ask(&mut self, io: &mut FramedIo<'_>, conn: ConnId, id: RequestId, word: u64) {
        // One request at a time, so the peer has a receive for it and the pool a buffer.
        let mut question = io.frame().expect("nothing else uses the pool");
        question.copy_from(&word.to_le_bytes()).expect("8 bytes");
        if let Err(refused) = io.request(conn, question, id, Token::default()) {
            self.fail(refused.reason);
        }
    }
}

impl Service for Work {
    fn connected(&mut self, io: &mut FramedIo<'_>, conn: ConnId, _: &Peer) {
        self.ask(io, conn, OFFER, 0);
    }
    fn offered(&mut self, io: &mut FramedIo<'_>, conn: ConnId, offer: &RegionOffer) {
        let word = |offset| RemoteWord::new(conn, &offer.region(), offset);
        let (Ok(tickets), Ok(lock)) = (word(TICKETS), word(LOCK)) else {
            return self.fail("the node offers no memory for atomics");
        };
        let terms = LockTerms {
            owner: self.owner,
            lease: LEASE,
            look_every: LOOK_EVERY,
            token: LOCK_TOKEN,
        };
        let lock = RemoteLock::new(lock, terms).expect("looks are frequent");
        self.parts = Some((RemoteCounter::new(tickets), lock));
        self.go_on(io);
    }
    fn completed(&mut self, io: &mut FramedIo<'_>, conn: ConnId, completed: Completed) {
        let (answer, now) = (Answer::from(&completed), io.now());
        let Some((_, lock)) = &mut self.parts else {
            return;
        };
        match (completed.token, answer) {
            (TICKET_TOKEN, Answer::Was(ticket)) => {
                self.done.last_ticket = ticket;
                lock.acquire(now);
            }
            (LOCK_TOKEN, answer) => match lock.completed(answer, now) {
                Some(LockEvent::Acquired { epoch, taken_from }) => {
                    self.done.taken_over += u64::from(taken_from.is_some());
                    self.adding = true;
                    self.ask(io, conn, ADD, epoch.get());
                }
                // Lost while its request was under way: the node's answer says whether that counts.
                Some(LockEvent::Lost) if self.adding => {}
                Some(LockEvent::Released | LockEvent::Lost) => self.go_on(io),
                Some(LockEvent::Broken) | None => {}
            },
            _ => {}
        }
    }
    fn reply(&mut self, io: &mut FramedIo<'_>, _: ConnId, id: RequestId, answer: Payload) {
        let (ADD, Some((_, lock))) = (id, &mut self.parts) else {
            return;
        };
        self.adding = false;
        match (*answer).try_into().map_or(0, u64::from_le_bytes) {
            0 => self.done.refused += 1,
            number => {
                self.done.rounds += 1;
                self.done.last_number = number;
            }
        }
        lock.release();
        if lock.is_idle() {
            self.go_on(io); // it was lost meanwhile
        }
    }
    fn turn(&mut self, io: &mut FramedIo<'_>) -> Turn {
        let now = io.now();
        if let Some((_, lock)) = &mut self.parts
            && let Err(stuck) = lock.turn(io, now)
        {
            self.parts = None;
            self.fail(stuck);
        }
        Turn::Idle
    }
    fn disconnected(&mut self, _: &mut FramedIo<'_>, _: ConnId, reason: CloseReason) {
        self.parts = None;
        self.fail(reason);
    }
}

fn work(at: &Url, owner: &str, rounds: &str) -> Result<(), Box<dyn Error>> {
    let owner = Owner::new(owner.parse()?).ok_or("an owner is a number from 1 to 4095")?;
    let rounds: u64 = rounds.parse()?;
    let plan = Config::default_for(&Host::probe_for(at)?, Side::Client)?;
    let (tell, told) = mpsc::channel();
    let engine = Engine::start(&plan, move |_| {
        Framed::new(Work {
            owner,
            rounds,
            parts: None,
            adding: false,
            done: Done::default(),
            tell: tell.clone(),
        })
    })?;
    engine.connect(at, Offer::framed())?;
    let done = told.recv()??;
    println!(
        "{} rounds; the last ticket was {}, the last number {}; {} taken over, {} refused",
        done.rounds, done.last_ticket, done.last_number, done.taken_over, done.refused
    );
    let left = engine.shutdown()?;
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["node", url] => node(&url.parse()?),
        ["work", url, owner, rounds] => work(&url.parse()?, owner, rounds),
        _ => Err("usage: remote_lock node URL | remote_lock work URL OWNER ROUNDS".into()),
    }
}
