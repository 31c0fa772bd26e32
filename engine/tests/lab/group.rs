//! A group of four connections over two workers: everything arrives, and by hash each key in order.

use crate::quiet::allocations;
use crate::support::*;
use spinwire::config::Plan;
use spinwire::memory::Buffer;
use spinwire::ring::spsc::{self, Consumer, Producer};
use spinwire::types::IdlePolicy;
use spinwire::worker::{
    CloseReason, Completed, ConnId, Group, Io, Message, NoPick, Peer, Policy, Service, Token, Turn,
};
use spinwire::{Engine, GroupError, GroupSpec};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};

const KEYS: u64 = 64;
/// Messages of a connection that the server has not answered yet; it has 64 receives.
const WINDOW: u32 = 16;

fn two_workers(device: &str) -> Plan {
    // Four threads share two cores, so they yield and none is pinned.
    let mut plan = plan(device, 0, IdlePolicy::Yield);
    plan.workers[0].core = None;
    plan.workers.push(plan.workers[0].clone());
    plan
}

/// A message: its key, and how many of that key were sent before.
type Work = (u64, u64);

/// How messages choose a member.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    InTurn,
    ByKey,
    ByLoad,
}

/// What the client's services tell.
#[derive(Debug, PartialEq)]
enum Said {
    Formed(u16),
    Left(u16),
    Wrong(String),
}

/// The client's service: makes messages of its half of the keys, and hands those of members on the other
/// worker over to that.
struct Sharder {
    way: Way,
    group: Option<Group>,
    /// Messages of each key to be made by now.
    goal: Arc<AtomicU64>,
    made: u64,
    queue: VecDeque<Work>,
    kept: Option<ConnId>,
    to_other: Producer<Work>,
    from_other: Consumer<Work>,
    unanswered: HashMap<ConnId, u32>,
    tell: Sender<Said>,
}

impl Sharder {
    /// Sends what is first in the queue, or hands it over; false when that must wait.
    fn work_off(&mut self, io: &mut Io<'_>) -> bool {
        let Some(group) = &mut self.group else {
            return false;
        };
        if group.awaited() > 0 {
            return false;
        }
        let Some((key, n)) = self.queue.front().copied() else {
            return false;
        };
        let policy = match self.way {
            Way::InTurn => Policy::RoundRobin,
            Way::ByKey => Policy::ByHash(key),
            Way::ByLoad => Policy::LeastOutstanding,
        };
        let unanswered = &mut self.unanswered;
        // One that has to wait keeps its turn.
        let kept = self.kept.take().map(Ok);
        let pick = || group.pick(policy, |conn| io.outstanding(conn) + unanswered[&conn]);
        let before = allocations();
        let picked = kept.unwrap_or_else(pick);
        assert_eq!(allocations(), before, "a pick allocates nothing");
        match picked {
            Ok(conn) => {
                self.kept = (self.way == Way::InTurn).then_some(conn);
                if unanswered[&conn] == WINDOW {
                    return false;
                }
                let Ok(mut buffer) = io.alloc() else {
                    return false;
                };
                let bytes = [key.to_le_bytes(), n.to_le_bytes()].concat();
                buffer.copy_from(&bytes).unwrap();
                if io.send(conn, buffer, Token(key)).is_err() {
                    return false;
                }
                self.kept = None;
                *unanswered.get_mut(&conn).unwrap() += 1;
            }
            Err(NoPick::OnWorker(other)) if other == 1 - io.worker() => {
                if self.to_other.push((key, n)).is_err() {
                    return false;
                }
            }
            Err(other) => {
                let _ = self.tell.send(Said::Wrong(other.to_string()));
                return false;
            }
        }
        self.queue.pop_front();
        true
    }
}

impl Service for Sharder {
    fn connected(&mut self, io: &mut Io<'_>, conn: ConnId, peer: &Peer) {
        let membership = peer.membership.expect("of a group");
        assert_eq!(membership.worker(), io.worker());
        match &mut self.group {
            None => self.group = Some(Group::of(conn, &membership)),
            Some(group) => group.joined(conn, peer).unwrap(),
        }
        self.unanswered.insert(conn, 0);
        if self.group.as_ref().unwrap().awaited() == 0 {
            let _ = self.tell.send(Said::Formed(io.worker()));
        }
    }
    fn message(&mut self, _: &mut Io<'_>, conn: ConnId, _: Message) {
        *self.unanswered.get_mut(&conn).unwrap() -= 1;
    }
    fn disconnected(&mut self, _: &mut Io<'_>, conn: ConnId, _: CloseReason) {
        let number = self.group.as_mut().and_then(|g| g.left(conn));
        let _ = self.tell.send(Said::Left(number.unwrap()));
    }
    fn turn(&mut self, io: &mut Io<'_>) -> Turn {
        let mine = (0..KEYS).filter(|key| key % 2 == u64::from(io.worker()));
        if self.made < self.goal.load(Ordering::Acquire) {
            self.queue.extend(mine.map(|key| (key, self.made)));
            self.made += 1;
        }
        let queue = &mut self.queue;
        self.from_other.pop_batch(64, |work| queue.push_back(work));
        let mut turn = Turn::Idle;
        while self.work_off(io) {
            turn = Turn::Busy;
        }
        turn
    }
}

/// Tells of every message, and answers it with itself.
struct Ledger(Sender<(ConnId, Work)>, VecDeque<(ConnId, Buffer)>);

impl Service for Ledger {
    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        let word = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().unwrap());
        let _ = self.0.send((conn, (word(0), word(8))));
        self.1.push_back((conn, message.into_buffer()));
        self.answer(io);
    }
    fn completed(&mut self, io: &mut Io<'_>, _: ConnId, completed: Completed) {
        drop(completed);
        self.answer(io);
    }
}

impl Ledger {
    fn answer(&mut self, io: &mut Io<'_>) {
        while let Some((conn, buffer)) = self.1.pop_front() {
            if io.room(conn) == 0 {
                return self.1.push_front((conn, buffer));
            }
            io.send(conn, buffer, Token(0)).unwrap();
        }
    }
}

struct Lab {
    server: Engine,
    client: Engine,
    said: Receiver<Said>,
    ledger: Receiver<(ConnId, Work)>,
    goal: Arc<AtomicU64>,
}

impl Lab {
    fn start((device, host): (&str, &str), port: u16, way: Way) -> Self {
        let (write, ledger) = mpsc::channel();
        let mut one = plan(device, 0, IdlePolicy::Yield);
        one.workers[0].core = None;
        let server = Engine::start(&one, move |_| Ledger(write.clone(), VecDeque::new())).unwrap();
        server.listen(&url(host, port)).unwrap();
        let (tell, said) = mpsc::channel();
        let goal = Arc::new(AtomicU64::new(0));
        let ((to_1, from_0), (to_0, from_1)) = (spsc::channel(256), spsc::channel(256));
        let rings = Mutex::new(vec![Some((to_1, from_1)), Some((to_0, from_0))]);
        let shared = Arc::clone(&goal);
        let client = Engine::start(&two_workers(device), move |worker| {
            let mine = rings.lock().unwrap()[usize::from(worker.number)].take();
            let (to_other, from_other) = mine.unwrap();
            Sharder {
                way,
                group: None,
                goal: Arc::clone(&shared),
                made: 0,
                queue: VecDeque::new(),
                kept: None,
                to_other,
                from_other,
                unanswered: HashMap::new(),
                tell: tell.clone(),
            }
        });
        Self {
            server,
            client: client.unwrap(),
            said,
            ledger,
            goal,
        }
    }

    fn hear(&self) -> Said {
        self.said.recv_timeout(LONG).expect("told in time")
    }

    /// Has every key's next `count` messages sent, and gives what the server got, in its order.
    fn run(&self, count: u64) -> Vec<(ConnId, Work)> {
        self.goal.fetch_add(count, Ordering::AcqRel);
        let take = |_| self.ledger.recv_timeout(LONG).expect("arrives in time");
        (0..KEYS * count).map(take).collect()
    }

    fn end(self) {
        // Nothing arrives twice, and nothing went wrong unheard.
        assert_eq!(self.ledger.try_recv().ok(), None);
        end(self.client);
        let wrong = |said: &Said| matches!(said, Said::Wrong(_));
        assert!(!self.said.try_iter().any(|s| wrong(&s)));
        end(self.server);
    }
}

/// Each key came over one connection, in order from `first` on; gives which.
fn homes(arrived: &[(ConnId, Work)], first: u64) -> HashMap<u64, ConnId> {
    let mut next: HashMap<u64, (ConnId, u64)> = HashMap::new();
    for (conn, (key, n)) in arrived {
        let (home, expected) = next.entry(*key).or_insert((*conn, first));
        assert_eq!((home, *expected), (&mut conn.clone(), *n), "key {key}");
        *expected += 1;
    }
    next.into_iter()
        .map(|(key, (conn, _))| (key, conn))
        .collect()
}

fn by_hash((device, host): (&str, &str), port: u16) {
    let witness = Witness::new();
    let lab = Lab::start((device, host), port, Way::ByKey);
    let group = lab
        .client
        .connect_group(&url(host, port), &GroupSpec::of(4))
        .unwrap();
    let workers: Vec<u16> = (0..4).map(|n| group.shape.worker_of(n)).collect();
    assert_eq!(workers, [0, 1, 0, 1]);
    let mut formed = [lab.hear(), lab.hear()];
    formed.sort_by_key(|said| matches!(said, Said::Formed(1)));
    assert_eq!(formed, [Said::Formed(0), Said::Formed(1)]);
    let before = homes(&lab.run(40), 0);
    assert_eq!(before.len() as u64, KEYS);
    assert_eq!(
        before.values().collect::<HashSet<_>>().len(),
        4,
        "all members are used"
    );

    // A member dies. Its keys go to the other one of its worker; no other key moves.
    lab.client.close(group.members[2]);
    assert_eq!(lab.hear(), Said::Left(2));
    let after = homes(&lab.run(20), 40);
    let moved: HashSet<u64> = (0..KEYS).filter(|k| before[k] != after[k]).collect();
    let dead: HashSet<ConnId> = moved.iter().map(|k| before[k]).collect();
    let heirs: HashSet<ConnId> = moved.iter().map(|k| after[k]).collect();
    assert_eq!((dead.len(), heirs.len()), (1, 1), "{before:?} {after:?}");
    let of_dead = |k: &u64| dead.contains(&before[k]);
    assert_eq!(
        (0..KEYS).filter(of_dead).count(),
        moved.len(),
        "all its keys moved"
    );
    println!(
        "{device}: {} of {KEYS} keys moved with the member that ended",
        moved.len()
    );
    lab.client.close_group(&group);
    lab.end();
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_group_by_hash_rxe() {
    by_hash(RXE, 7401);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_group_by_hash_siw() {
    by_hash(SIW, 7402);
}

fn unordered((device, host): (&str, &str), port: u16, way: Way) {
    let witness = Witness::new();
    let lab = Lab::start((device, host), port, way);
    let at = url(host, port);
    lab.client.connect_group(&at, &GroupSpec::of(4)).unwrap();
    let arrived = lab.run(24);
    let mut works: Vec<Work> = arrived.iter().map(|(_, work)| *work).collect();
    works.sort_unstable();
    let all = (0..KEYS).flat_map(|key| (0..24).map(move |n| (key, n)));
    assert!(
        works.into_iter().eq(all),
        "something is missing, or came twice"
    );
    let mut counts: HashMap<ConnId, usize> = HashMap::new();
    arrived
        .iter()
        .for_each(|(conn, _)| *counts.entry(*conn).or_default() += 1);
    println!("{device}: messages by member {:?}", counts.values());
    assert_eq!(counts.len(), 4);
    if way == Way::InTurn {
        // Half the keys are each worker's, and it has two members.
        assert!(
            counts.values().all(|n| *n == arrived.len() / 4),
            "{counts:?}"
        );
    }
    lab.end();
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_group_in_turn() {
    unordered(RXE, 7411, Way::InTurn);
    unordered(SIW, 7412, Way::InTurn);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_group_by_load() {
    unordered(RXE, 7421, Way::ByLoad);
    unordered(SIW, 7422, Way::ByLoad);
}

/// All or none: where one member finds no room, those that came up are closed again.
#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_group_all_or_none() {
    for ((device, host), port) in [(RXE, 7431), (SIW, 7432)] {
        let witness = Witness::new();
        let (tell, said) = mpsc::channel();
        let server = start_echo(&plan(device, 1, IdlePolicy::Yield));
        server.listen(&url(host, port)).unwrap();
        let mut small = two_workers(device);
        small.workers[1].lanes[0].connections_max = 1;
        struct Counts(Sender<bool>);
        impl Service for Counts {
            fn connected(&mut self, _: &mut Io<'_>, _: ConnId, _: &Peer) {
                let _ = self.0.send(true);
            }
            fn message(&mut self, _: &mut Io<'_>, _: ConnId, _: Message) {}
            fn disconnected(&mut self, _: &mut Io<'_>, _: ConnId, _: CloseReason) {
                let _ = self.0.send(false);
            }
        }
        let client = Engine::start(&small, move |_| Counts(tell.clone())).unwrap();
        let error = client.connect_group(&url(host, port), &GroupSpec::of(4));
        let Err(GroupError::Member {
            worker: 1, of: 4, ..
        }) = error
        else {
            panic!("{error:?}");
        };
        let text = error.unwrap_err().to_string();
        assert!(
            text.contains("connections_max") && text.contains("worker 1"),
            "{text}"
        );
        println!("{text}");
        // Three came up, and all of them went.
        let mut balance = HashMap::new();
        for _ in 0..6 {
            let up = said.recv_timeout(LONG).expect("told in time");
            *balance.entry(up).or_insert(0) += 1;
        }
        assert_eq!((balance[&true], balance[&false]), (3, 3));
        end(client);
        end(server);
        witness.assert_unchanged();
    }
}
