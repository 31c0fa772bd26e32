//! The lock: a value that is read and written under it, and holders that are stopped and killed.

use super::*;
use crate::quiet::allocations;
use rustix::process::Signal;
use spinwire::framed::{Completed, Operation, RegionOffer};
use spinwire::kit::{Answer, LockEvent};
use spinwire::types::Nanos;
use spinwire::worker::{CloseReason, Outcome, Peer, Turn};

pub(super) const LOCK_TOKEN: Token = Token(1);
const READ: Token = Token(2);
const WRITE: Token = Token(3);
/// Rounds of each connection.
const ROUNDS: u64 = 40;
/// Nobody is stopped so long by chance: WRITEs are not fenced.
const LONG_LEASE: Duration = Duration::from_secs(5);
const SHORT_LEASE: Duration = Duration::from_secs(1);

#[derive(Debug, PartialEq)]
enum Said {
    /// Ready for orders.
    Ready,
    /// All rounds are over; the value that the last of them wrote.
    Done(u64),
    Acquired(u64, Option<u16>),
    Released,
    Wrong(String),
}

/// One connection's lock.
struct Holder {
    conn: ConnId,
    region: RemoteRegion,
    lock: RemoteLock,
    left: u64,
    wrote: u64,
}

/// Acquires, READs the value, WRITEs one more, releases: so many times on each connection.
struct Rounds {
    first_owner: u16,
    holders: Vec<Holder>,
    owners: Vec<(ConnId, u16)>,
    tell: Sender<Said>,
}

impl Rounds {
    fn wrong(&self, what: impl std::fmt::Debug) {
        let _ = self.tell.send(Said::Wrong(format!("{what:?}")));
    }
}

impl Service for Rounds {
    fn connected(&mut self, io: &mut FramedIo<'_>, conn: ConnId, peer: &Peer) {
        let member = peer.membership.expect("of a group").number;
        self.owners.push((conn, self.first_owner + member));
        ask_for_offer(io, conn);
    }
    fn reply(&mut self, _: &mut FramedIo<'_>, _: ConnId, _: RequestId, _: Payload) {}
    fn offered(&mut self, io: &mut FramedIo<'_>, conn: ConnId, offer: &RegionOffer) {
        let region = offer.region();
        let (_, owner) = self.owners.iter().find(|(c, _)| *c == conn).unwrap();
        let mut lock = lock_at(conn, &region, *owner, LONG_LEASE);
        lock.acquire(io.now());
        self.holders.push(Holder {
            conn,
            region,
            lock,
            left: ROUNDS,
            wrote: 0,
        });
    }
    fn completed(&mut self, io: &mut FramedIo<'_>, conn: ConnId, completed: Completed) {
        let now = io.now();
        let Some(h) = self.holders.iter_mut().find(|h| h.conn == conn) else {
            return;
        };
        match completed.token {
            LOCK_TOKEN => match h.lock.completed(Answer::from(&completed), now) {
                Some(LockEvent::Acquired { taken_from, .. }) => {
                    assert_eq!(taken_from, None, "nobody died");
                    let mut sink = io.alloc().unwrap();
                    sink.set_len(8).unwrap();
                    io.read(conn, sink, &h.region, VALUE, READ).unwrap();
                }
                Some(LockEvent::Released) => {
                    h.left -= 1;
                    if h.left > 0 {
                        h.lock.acquire(now);
                    } else {
                        let _ = self.tell.send(Said::Done(h.wrote));
                    }
                }
                Some(event) => self.wrong(event),
                None => {}
            },
            READ => {
                let (Outcome::Done, Operation::Read(bytes)) =
                    (completed.outcome, completed.operation)
                else {
                    return self.wrong("the READ failed");
                };
                let mut buffer = bytes.into_buffer().unwrap();
                h.wrote = u64::from_le_bytes(buffer[..8].try_into().unwrap()) + 1;
                buffer.copy_from(&h.wrote.to_le_bytes()).unwrap();
                io.write(conn, buffer, &h.region, VALUE, WRITE).unwrap();
                // It follows the WRITE on the same connection, so whoever has the lock next reads that.
                h.lock.release();
            }
            _ => {}
        }
    }
    fn turn(&mut self, io: &mut FramedIo<'_>) -> Turn {
        let now = io.now();
        let before = allocations();
        for h in self.holders.iter_mut().filter(|h| h.left > 0) {
            h.lock.turn(io, now).unwrap();
        }
        assert_eq!(allocations(), before, "a lock allocates nothing");
        Turn::Idle
    }
}

/// Two connections a worker; gives the largest value that one of them wrote last.
fn rounds(at: (&str, u16), first_owner: u16, workers: u16) -> u64 {
    let (tell, told) = mpsc::channel();
    let client = Engine::start(&plan_of(workers.into()), move |_| {
        Framed::new(Rounds {
            first_owner,
            holders: Vec::new(),
            owners: Vec::new(),
            tell: tell.clone(),
        })
    });
    let client = client.unwrap();
    connect(&client, at, 2 * workers);
    let last = (0..2 * workers).map(|_| match told.recv_timeout(2 * LONG) {
        Ok(Said::Done(value)) => value,
        other => panic!("{other:?}"),
    });
    let last = last.max().unwrap();
    end(client);
    last
}

pub(super) fn rounds_from(at: (&str, u16), first_owner: u16, workers: u16) {
    rounds(at, first_owner, workers);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_atomics_lock_loses_no_update() {
    let witness = Witness::new();
    let (port, at) = (7511, (RXE.1, 7511));
    let (node, _guarded) = start_node(port);
    let other = start_child("rounds", port, 100);
    rounds(at, 1, 2);
    other.assert_success();
    // Another one's rounds come after all of these.
    let all = 6 * ROUNDS;
    assert_eq!(rounds(at, 50, 1), all + 2 * ROUNDS);
    println!("{all} rounds by 6 connections, and no update is lost");
    end(node);
    witness.assert_unchanged();
}

/// What a test has a contender do.
enum Order {
    Acquire,
    Release,
    /// An addition to what the node guards, in this epoch.
    Add(u64),
}

/// One connection that does as told; or holds the lock as long as it can, and adds all the while without
/// another look at it.
struct Contender {
    owner: u16,
    orders: Option<Receiver<Order>>,
    holder: Option<Holder>,
    /// Adds in this epoch.
    epoch: Option<u64>,
    /// Was decided upon before it was known that the lock is lost.
    late: Option<u64>,
    asked: bool,
    next_at: Nanos,
    tell: Sender<Said>,
}

impl Contender {
    fn start(
        owner: u16,
        orders: Option<Receiver<Order>>,
        at: (&str, u16),
    ) -> (Engine, Receiver<Said>) {
        let (tell, told) = mpsc::channel();
        let orders = std::sync::Mutex::new(orders);
        let engine = Engine::start(&plan_of(1), move |_| {
            Framed::new(Self {
                owner,
                orders: orders.lock().unwrap().take(),
                holder: None,
                epoch: None,
                late: None,
                asked: false,
                next_at: Nanos(0),
                tell: tell.clone(),
            })
        });
        let engine = engine.unwrap();
        connect(&engine, at, 1);
        (engine, told)
    }

    fn add(&mut self, io: &mut FramedIo<'_>, epoch: u64) {
        let conn = self.holder.as_ref().unwrap().conn;
        let mut frame = io.frame().unwrap();
        let owner = u64::from(self.owner).to_le_bytes();
        frame
            .copy_from(&[epoch.to_le_bytes(), owner].concat())
            .unwrap();
        io.request(conn, frame, GUARDED, Token(0)).unwrap();
        self.asked = true;
        self.next_at = io.now() + Duration::from_millis(1);
    }

    fn obey(&mut self, io: &mut FramedIo<'_>) {
        let now = io.now();
        let orders = self.orders.as_ref().map(|orders| orders.try_recv());
        let lock = &mut self.holder.as_mut().unwrap().lock;
        match orders {
            Some(Ok(Order::Acquire)) => lock.acquire(now),
            Some(Ok(Order::Release)) => lock.release(),
            Some(Ok(Order::Add(epoch))) => self.late = Some(epoch),
            Some(Err(_)) | None => {}
        }
    }
}

impl Service for Contender {
    fn connected(&mut self, io: &mut FramedIo<'_>, conn: ConnId, _: &Peer) {
        ask_for_offer(io, conn);
    }
    fn offered(&mut self, io: &mut FramedIo<'_>, conn: ConnId, offer: &RegionOffer) {
        let region = offer.region();
        let mut lock = lock_at(conn, &region, self.owner, SHORT_LEASE);
        if self.orders.is_none() {
            lock.acquire(io.now());
        }
        self.holder = Some(Holder {
            conn,
            region,
            lock,
            left: 0,
            wrote: 0,
        });
        let _ = self.tell.send(Said::Ready);
    }
    fn reply(&mut self, _: &mut FramedIo<'_>, _: ConnId, id: RequestId, _: Payload) {
        if id == GUARDED {
            self.asked = false;
        }
    }
    fn completed(&mut self, io: &mut FramedIo<'_>, _: ConnId, completed: Completed) {
        if completed.token != LOCK_TOKEN {
            return;
        }
        let (now, holds) = (io.now(), self.orders.is_none());
        let lock = &mut self.holder.as_mut().unwrap().lock;
        let said = match lock.completed(Answer::from(&completed), now) {
            None => return,
            Some(LockEvent::Acquired { epoch, taken_from }) => {
                self.epoch = holds.then_some(epoch.get());
                Said::Acquired(epoch.get(), taken_from.map(Owner::get))
            }
            Some(LockEvent::Released) => Said::Released,
            Some(LockEvent::Lost) if holds => {
                self.late = self.epoch.take();
                lock.acquire(now);
                return;
            }
            Some(other) => Said::Wrong(format!("{other:?}")),
        };
        let _ = self.tell.send(said);
    }
    fn disconnected(&mut self, _: &mut FramedIo<'_>, _: ConnId, _: CloseReason) {
        self.holder = None;
    }
    fn turn(&mut self, io: &mut FramedIo<'_>) -> Turn {
        if self.holder.is_none() {
            return Turn::Idle;
        }
        self.obey(io);
        let now = io.now();
        if !self.asked
            && now >= self.next_at
            && let Some(epoch) = self.late.take().or(self.epoch)
        {
            self.add(io, epoch);
        }
        let lock = &mut self.holder.as_mut().unwrap().lock;
        lock.turn(io, now).unwrap();
        Turn::Idle
    }
}

/// Holds the lock and adds, until it is killed.
pub(super) fn hold_from(at: (&str, u16), owner: u16) {
    let (_engine, told) = Contender::start(owner, None, at);
    while told.recv().is_ok() {}
}

/// Waits for what a message of `owner` comes to.
fn await_guarded(guarded: &Receiver<Guarded>, owner: u64, accepted: bool) -> Guarded {
    loop {
        let next = guarded.recv_timeout(LONG).expect("told in time");
        assert_eq!(
            next.value,
            count(&next),
            "an addition was lost or came twice"
        );
        if (next.owner, next.accepted) == (owner, accepted) {
            return next;
        }
    }
}

thread_local! {
    static ACCEPTED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Additions accepted so far, as the test counts.
fn count(next: &Guarded) -> u64 {
    ACCEPTED.set(ACCEPTED.get() + u64::from(next.accepted));
    ACCEPTED.get()
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_atomics_dead_holder_is_recovered() {
    let witness = Witness::new();
    let (port, at) = (7521, (RXE.1, 7521));
    let (node, guarded) = start_node(port);
    let (order, orders) = mpsc::channel();
    let (heir, said) = Contender::start(9, Some(orders), at);
    let hear = || said.recv_timeout(LONG).expect("told in time");
    assert_eq!(hear(), Said::Ready);
    let mut child = start_child("hold", port, 5);
    let first = await_guarded(&guarded, 5, true).epoch;

    // Stopped, it is overtaken; its late word is refused when it goes on.
    child.signal(Signal::STOP);
    order.send(Order::Acquire).unwrap();
    let Said::Acquired(second, Some(5)) = hear() else {
        panic!("not taken over from the stopped holder")
    };
    assert!(second > first);
    order.send(Order::Add(second)).unwrap();
    assert_eq!(await_guarded(&guarded, 9, true).epoch, second);
    child.signal(Signal::CONT);
    let late = await_guarded(&guarded, 5, false).epoch;
    println!("stopped in epoch {late}, overtaken in {second}, and refused");
    assert!(late < second);
    order.send(Order::Release).unwrap();
    assert_eq!(hear(), Said::Released);

    // Killed, it is overtaken too; and what may still be under way from it is refused.
    let third = await_guarded(&guarded, 5, true).epoch;
    assert!(third > second);
    child.kill();
    order.send(Order::Acquire).unwrap();
    let Said::Acquired(fourth, Some(5)) = hear() else {
        panic!("not taken over from the dead holder")
    };
    assert!(fourth > third);
    order.send(Order::Add(fourth)).unwrap();
    assert_eq!(await_guarded(&guarded, 9, true).epoch, fourth);
    order.send(Order::Add(third)).unwrap();
    assert_eq!(await_guarded(&guarded, 9, false).epoch, third);
    println!("killed in epoch {third}, overtaken in {fourth}, and its late word refused");
    end(heir);
    end(node);
    witness.assert_unchanged();
}
