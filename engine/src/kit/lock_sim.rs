//! Contenders for one lock that pause, die and lose connections, over a network that delays, with
//! clocks that disagree. All from a seed, and no time passes.
//!
//! ```text
//!  contender: RemoteLock ── CAS, delayed ──► word ── answer, delayed ──► contender
//!       │ holds: read with its epoch, then write what it read plus one
//!       └── messages, delayed, also of the dead ──► Fence ─► value
//! ```
//! At every step at most one contender believes that it holds the lock. At the end the value is the number
//! of writes that were accepted: none was lost.

use super::*;
use crate::types::{Access, Nanos, RemoteRegion, Rkey};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

const LEASE: Duration = Duration::from_micros(400);
const LEASE_NS: u64 = 400_000;
const CONTENDERS: usize = 5;
const ROUNDS: u32 = 12;
/// From here on nothing bad happens any more.
const CALM: u64 = 60 * LEASE_NS;
/// By then the living are done.
const END: u64 = 400 * LEASE_NS;

pub(super) fn word() -> RemoteWord {
    let conn = ConnId {
        worker: 0,
        index: 0,
        generation: 1,
    };
    let region = RemoteRegion::parse(4096, 64, Rkey(1), Access::REMOTE_ATOMIC);
    RemoteWord::new(conn, &region.expect("a region"), 8).expect("aligned")
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A CAS as it was posted.
#[derive(Clone, Copy)]
struct Cas {
    expect: u64,
    swap: u64,
}

/// Keeps what a lock posts.
#[derive(Default)]
pub(super) struct Posts {
    cas: VecDeque<Cas>,
    pub(super) refuse: Option<PostError>,
}

impl Posts {
    /// What was posted, if anything: what it expects, and what it puts there.
    pub(super) fn take(&mut self) -> Option<(u64, u64)> {
        self.cas.pop_front().map(|cas| (cas.expect, cas.swap))
    }
}

impl Atomics for Posts {
    fn compare_swap(
        &mut self,
        _: &RemoteWord,
        expect: u64,
        swap: u64,
        _: Token,
    ) -> Result<(), PostError> {
        if let Some(reason) = self.refuse {
            return Err(reason);
        }
        self.cas.push_back(Cas { expect, swap });
        Ok(())
    }
    fn fetch_add(&mut self, _: &RemoteWord, _: u64, _: Token) -> Result<(), PostError> {
        unreachable!("a lock adds nothing")
    }
}

/// A message to what the lock protects, with the sender's epoch.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Read,
    Write(u64),
}

enum Event {
    /// A turn begins: the contender looks at its clock.
    Wake(usize),
    /// The same turn goes on, maybe much later: completions are polled, handlers run.
    Go(usize, Nanos),
    Execute(usize, u32, Cas),
    Answer(usize, u32, Answer),
    /// At what is protected.
    Arrive(usize, Epoch, Ask),
    /// `None`: the fence refused it.
    Reply(usize, Epoch, Option<u64>),
}

#[derive(Clone, Copy, PartialEq)]
enum Work {
    Nothing,
    /// A read or write of this epoch is under way.
    Busy(Epoch),
}

struct Contender {
    lock: RemoteLock,
    /// Its clock: an offset, and parts per thousand of the true rate.
    offset: u64,
    rate: u64,
    /// Connections that it has had.
    life: u32,
    inbox: VecDeque<Answer>,
    work: Work,
    /// Replies that it has not looked at.
    replies: VecDeque<(Epoch, Option<u64>)>,
    /// What its next write rests on.
    read: Option<(Epoch, u64)>,
    rounds: u32,
    dead: bool,
}

/// What happened in a run, to know that it put anything to the test.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) acquired: u64,
    pub(super) taken_over: u64,
    pub(super) lost: u64,
    pub(super) broken: u64,
    pub(super) died: u64,
    pub(super) refused: u64,
    pub(super) accepted: u64,
    pub(super) value: u64,
}

struct Sim {
    seed: u64,
    random: Random,
    now: u64,
    word: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    stored: HashMap<u64, Event>,
    next_event: u64,
    contenders: Vec<Contender>,
    holders: HashMap<Epoch, usize>,
    fence: Fence,
    reads_are_fenced: bool,
    last_accepted: Epoch,
    tally: Tally,
}

fn new_lock(number: usize) -> RemoteLock {
    let terms = LockTerms {
        owner: Owner::new(u16::try_from(number + 1).expect("few")).expect("in range"),
        lease: LEASE,
        look_every: LEASE / 8,
        token: Token(9),
    };
    RemoteLock::new(word(), terms).expect("good terms")
}

impl Sim {
    fn new(seed: u64, reads_are_fenced: bool) -> Self {
        let mut sim = Self {
            seed,
            random: Random(seed),
            now: 0,
            word: 0,
            events: BinaryHeap::new(),
            stored: HashMap::new(),
            next_event: 0,
            contenders: Vec::new(),
            holders: HashMap::new(),
            fence: Fence::default(),
            reads_are_fenced,
            last_accepted: Epoch::default(),
            tally: Tally::default(),
        };
        for number in 0..CONTENDERS {
            let contender = Contender {
                lock: new_lock(number),
                offset: sim.random.below(1 << 40),
                rate: 980 + sim.random.below(41),
                life: 0,
                inbox: VecDeque::new(),
                work: Work::Nothing,
                replies: VecDeque::new(),
                read: None,
                rounds: 0,
                dead: false,
            };
            sim.contenders.push(contender);
            sim.after(1, Event::Wake(number));
        }
        sim
    }

    fn after(&mut self, delay: u64, event: Event) {
        let key = self.next_event;
        self.next_event += 1;
        self.stored.insert(key, event);
        self.events.push(Reverse((self.now + delay, key)));
    }

    fn is_wild(&self) -> bool {
        self.now < CALM
    }

    /// Of a packet: some microseconds, and now and then longer than any lease.
    fn delay(&mut self) -> u64 {
        let long = self.is_wild() && self.random.one_in(40);
        let bound = if long { 3 * LEASE_NS } else { 15_000 };
        1000 + self.random.below(bound)
    }

    /// Between two things that a thread does.
    fn pause(&mut self, usual: u64) -> u64 {
        let long = self.is_wild() && self.random.one_in(150);
        let bound = if long { 5 * LEASE_NS } else { usual };
        1 + self.random.below(bound)
    }

    fn clock(&self, number: usize) -> Nanos {
        let c = &self.contenders[number];
        Nanos(c.offset + self.now * c.rate / 1000)
    }

    fn run(mut self) -> Tally {
        while let Some(Reverse((at, key))) = self.events.pop() {
            assert!(at < END, "seed {}: somebody never got the lock", self.seed);
            self.now = at;
            let event = self.stored.remove(&key).expect("stored once");
            self.step(event);
            self.check();
        }
        for c in self.contenders.iter().filter(|c| !c.dead) {
            assert_eq!(c.rounds, ROUNDS, "seed {}", self.seed);
        }
        self.tally
    }

    fn check(&self) {
        let believes = |n: &usize| self.contenders[*n].lock.epoch(self.clock(*n)).is_some();
        let believers: Vec<usize> = (0..CONTENDERS).filter(believes).collect();
        assert!(
            believers.len() <= 1,
            "seed {} at {}: {believers:?} all believe that they hold it",
            self.seed,
            self.now
        );
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Wake(n) => {
                let (now, pause) = (self.clock(n), self.pause(500));
                self.after(pause, Event::Go(n, now));
            }
            Event::Go(n, now) => self.go(n, now),
            Event::Execute(n, life, cas) => {
                let was = self.word;
                if was == cas.expect {
                    self.word = cas.swap;
                }
                let delay = self.delay();
                self.after(delay, Event::Answer(n, life, Answer::Was(was)));
            }
            Event::Answer(n, life, answer) => {
                let c = &mut self.contenders[n];
                if c.life == life {
                    c.inbox.push_back(answer);
                }
            }
            Event::Arrive(n, epoch, ask) => self.arrive(n, epoch, ask),
            Event::Reply(n, epoch, reply) => {
                self.contenders[n].replies.push_back((epoch, reply));
            }
        }
    }

    /// What is protected by the lock.
    fn arrive(&mut self, n: usize, epoch: Epoch, ask: Ask) {
        let admitted = match ask {
            Ask::Read if !self.reads_are_fenced => Ok(()),
            Ask::Read | Ask::Write(_) => self.fence.admit(epoch),
        };
        let reply = match (admitted, ask) {
            (Err(_), _) => {
                self.tally.refused += 1;
                None
            }
            (Ok(()), Ask::Read) => Some(self.tally.value),
            (Ok(()), Ask::Write(value)) => {
                assert!(epoch >= self.last_accepted, "seed {}", self.seed);
                assert_eq!(self.holders.get(&epoch), Some(&n), "seed {}", self.seed);
                self.last_accepted = epoch;
                self.tally.accepted += 1;
                self.tally.value = value;
                Some(value)
            }
        };
        let delay = self.delay();
        self.after(delay, Event::Reply(n, epoch, reply));
    }

    fn send(&mut self, n: usize, epoch: Epoch, ask: Ask) {
        self.contenders[n].work = Work::Busy(epoch);
        let delay = self.delay();
        self.after(delay, Event::Arrive(n, epoch, ask));
    }

    /// The rest of a turn that began at `now` by the contender's clock.
    fn go(&mut self, n: usize, now: Nanos) {
        if self.is_wild() && n > 0 && self.random.one_in(1500) {
            // What it has sent arrives all the same.
            self.contenders[n].dead = true;
            self.contenders[n].lock = new_lock(n);
            self.tally.died += 1;
            return;
        }
        while let Some(answer) = self.contenders[n].inbox.pop_front() {
            let event = self.contenders[n].lock.completed(answer, now);
            self.heard(n, event);
        }
        self.work(n, now);
        let mut posts = Posts::default();
        let turned = self.contenders[n].lock.turn(&mut posts, now);
        assert_eq!(turned, Ok(()), "seed {}", self.seed);
        if let Some(cas) = posts.cas.pop_front() {
            let life = self.contenders[n].life;
            let delay = self.delay();
            if self.is_wild() && self.random.one_in(100) {
                // The connection breaks: the CAS may act, and nobody hears of it.
                if self.random.one_in(2) {
                    self.after(delay, Event::Execute(n, u32::MAX, cas));
                }
                let told = self.delay();
                self.after(told, Event::Answer(n, life, Answer::Unknown));
            } else if self.is_wild() && self.random.one_in(100) {
                self.after(delay, Event::Answer(n, life, Answer::NeverPosted));
            } else {
                self.after(delay, Event::Execute(n, life, cas));
            }
        }
        if self.contenders[n].rounds < ROUNDS || !self.contenders[n].lock.is_idle() {
            let pause = self.pause(3000);
            self.after(pause, Event::Wake(n));
        }
    }

    fn heard(&mut self, n: usize, event: Option<LockEvent>) {
        match event {
            Some(LockEvent::Acquired { epoch, taken_from }) => {
                self.tally.acquired += 1;
                self.tally.taken_over += u64::from(taken_from.is_some());
                let other = self.holders.insert(epoch, n);
                assert_eq!(other, None, "seed {}: {epoch} is two holders'", self.seed);
            }
            Some(LockEvent::Lost) => self.tally.lost += 1,
            Some(LockEvent::Broken) => {
                self.tally.broken += 1;
                self.contenders[n].life += 1;
                self.contenders[n].inbox.clear();
                self.contenders[n].lock = new_lock(n);
            }
            Some(LockEvent::Released) | None => {}
        }
    }

    /// Reads, writes what it read plus one, and gives the lock back.
    fn work(&mut self, n: usize, now: Nanos) {
        let c = &mut self.contenders[n];
        if let Some((epoch, reply)) = c.replies.pop_front() {
            c.work = Work::Nothing;
            match (c.read.take(), reply) {
                (None, Some(value)) => c.read = Some((epoch, value)),
                (Some(_), Some(_)) => {
                    c.rounds += 1;
                    c.lock.release();
                }
                // It is too late: another round.
                (_, None) => c.lock.release(),
            }
        }
        let Work::Nothing = c.work else { return };
        if let Some((epoch, value)) = c.read {
            // Without another look at the lock, as if it were paused in between.
            c.read = Some((epoch, value));
            self.send(n, epoch, Ask::Write(value + 1));
        } else if let Some(epoch) = c.lock.epoch(now) {
            self.send(n, epoch, Ask::Read);
        } else if c.rounds < ROUNDS {
            c.lock.acquire(now);
        }
    }
}

pub(super) fn run(seed: u64, reads_are_fenced: bool) -> Tally {
    Sim::new(seed, reads_are_fenced).run()
}
