//! A pool that grows: asked for once, taken without a word, its slots as good as the first.

use super::*;
use crate::limits::{IDLE_TURNS_BEFORE_TOP_UP, POOL_GROW_RETRY_MS};

/// One small page of slots, and room for four.
const GROWING: Size = Size {
    slots: 16,
    slots_max: 64,
    ..SMALL
};

impl Bench {
    /// What a worker with nothing to do says in the time in which it looks after its receives.
    fn idle(&mut self) -> Vec<Answer> {
        for _ in 0..=IDLE_TURNS_BEFORE_TOP_UP {
            self.turn();
        }
        self.answers()
    }

    /// The next chunk, registered as control does it.
    fn chunk(&self) -> Box<PoolChunk<Toy>> {
        let region = self
            .growth
            .next_chunk()
            .expect("memory")
            .expect("addresses");
        let region = Arc::new(region);
        let register = self
            .device
            .register(Arc::clone(&region), Access::LOCAL_WRITE);
        Box::new(PoolChunk {
            region,
            registrations: vec![Some(register.expect("a registration"))],
        })
    }
}

#[test]
fn a_low_pool_asks_once_and_goes_on_with_what_it_gets() {
    let mut b = Bench::new(GROWING);
    let (first, first_qp) = b.up(0);
    assert_eq!(b.free(), 8);
    b.worker.service().kept = Some(Vec::new());
    let mut delivered = Vec::new();
    for byte in 0..30 {
        if b.toy.deliver(first_qp, &[byte]) {
            delivered.push(message(first, byte));
        }
        b.turn();
    }
    assert_eq!(delivered.len(), 16, "all that there is");
    assert_eq!(b.answers(), [Answer::PoolLow], "once");
    let chunk = b.chunk();
    let slots = chunk.region.len() / 256;
    b.tell(Command::Grow(chunk));
    b.turn();
    // Receives are posted in the turn that brought the memory: the toy knows the key of each.
    assert_eq!(b.toy.outstanding(first_qp), (0, 8));
    assert_eq!(b.worker.core.pool.slots() as usize, 16 + slots);
    for byte in 30..34 {
        assert!(b.toy.deliver(first_qp, &[byte]));
        delivered.push(message(first, byte));
    }
    b.turn();
    assert_eq!(b.seen(), delivered);
    assert_eq!(b.count().pool_growths, 1);
    // What was kept is whole, and sends from new slots have their key too.
    let kept = b.worker.service().kept.take().expect("kept");
    let bytes: Vec<u8> = kept.iter().map(|buffer| buffer[0]).collect();
    let want = (0..16).chain(30..34).collect::<Vec<u8>>();
    assert_eq!(bytes, want);
    b.send(first, 0..4);
    b.turn();
    assert_eq!(b.toy.sent(first_qp).0.len(), 4);
    b.toy.execute(first_qp, 4);
    b.turn();
    drop(kept);
    assert_eq!(b.answers(), [Answer::PoolLow], "low again, so asked again");
    b.end(first, first_qp);
    assert_eq!(b.free(), b.worker.core.pool.slots());
}

#[test]
fn it_asks_again_when_low_again_until_there_is_no_more() {
    let mut b = Bench::new(GROWING);
    let mut held = Vec::new();
    let mut chunks = 0;
    loop {
        held.extend(std::iter::from_fn(|| b.worker.core.pool.alloc().ok()));
        assert_eq!(b.idle(), [Answer::PoolLow]);
        let left = b.growth.next_chunk().expect("memory");
        let Some(_) = left else {
            b.tell(Command::NotGrown { again: false });
            break;
        };
        drop(left);
        let chunk = b.chunk();
        b.tell(Command::Grow(chunk));
        b.turn();
        chunks += 1;
    }
    assert_eq!(b.idle(), [], "never again");
    assert!(chunks >= 2);
    assert_eq!(held.len(), 64);
    // Every slot is another's memory.
    let mut places: Vec<u64> = held.iter().map(Buffer::addr).collect();
    places.sort_unstable();
    assert!(places.windows(2).all(|w| w[1] - w[0] == 256));
    assert_eq!(b.count().pool_growth_failures, 0);
}

#[test]
fn a_failure_is_counted_and_tried_again_later() {
    let mut b = Bench::new(GROWING);
    let held: Vec<_> = std::iter::from_fn(|| b.worker.core.pool.alloc().ok()).collect();
    assert_eq!(b.idle(), [Answer::PoolLow]);
    b.tell(Command::NotGrown { again: true });
    b.turn();
    let retry = Duration::from_millis(POOL_GROW_RETRY_MS);
    b.now = b.now + (retry - Duration::from_nanos(1));
    assert_eq!(b.idle(), []);
    b.now = b.now + Duration::from_nanos(1);
    assert_eq!(b.idle(), [Answer::PoolLow]);
    assert_eq!(b.count().pool_growth_failures, 1);
    drop(held);
}

#[test]
fn a_pool_that_does_not_grow_never_asks() {
    let mut b = Bench::new(SMALL);
    let held: Vec<_> = std::iter::from_fn(|| b.worker.core.pool.alloc().ok()).collect();
    assert_eq!(b.idle(), []);
    drop(held);
}

#[test]
fn a_device_that_goes_away_keeps_no_chunk() {
    let mut b = Bench::new(GROWING);
    let chunk = b.chunk();
    b.tell(Command::Grow(chunk));
    b.turn();
    assert_eq!(b.toy.registered(), 2);
    b.tell(Command::DropLane(0));
    b.turn();
    assert_eq!(b.toy.registered(), 0);
    assert!(b.answers().contains(&Answer::LaneDropped(0)));
    assert!(
        b.worker.core.pool.free() > 16,
        "the memory is still the pool's"
    );
}

#[test]
fn a_shared_queue_takes_new_slots_too() {
    let mut b = Bench::new(Size {
        shared_recv_depth: 24,
        slots: 32,
        slots_max: 96,
        ..SMALL
    });
    let (conn, qp) = b.up(0);
    b.worker.service().kept = Some(Vec::new());
    for byte in 0..40 {
        b.toy.deliver(qp, &[byte]);
        b.turn();
    }
    assert_eq!(b.worker.service().kept.as_ref().expect("kept").len(), 32);
    let chunk = b.chunk();
    b.tell(Command::Grow(chunk));
    b.turn();
    assert_eq!(b.toy.shared_outstanding(0), 16, "one page of slots");
    assert!(b.toy.deliver(qp, &[50]));
    b.turn();
    b.worker.service().kept = None;
    assert_eq!(b.answers(), [Answer::PoolLow, Answer::PoolLow], "once each");
    b.end(conn, qp);
    let with_nic = b.toy.shared_outstanding(0);
    assert_eq!(b.free() as usize + with_nic, 48);
}

#[test]
fn nobody_is_promised_a_share_of_receives_that_were_never_posted() {
    let mut b = Bench::new(Size {
        shared_recv_depth: 24,
        slots: 20,
        slots_max: 96,
        ..SMALL
    });
    assert_eq!(b.toy.shared_outstanding(0), 20, "four short");
    let (refused, _) = b.hand_over(0, 0, Role::Active);
    let answers = b.turn_answers();
    assert!(
        answers.contains(&Answer::Refused(refused)),
        "every share could be used at once: {answers:?}"
    );
    b.destroy_qp(refused);
    let chunk = b.chunk();
    b.tell(Command::Grow(chunk));
    b.turn();
    assert_eq!(b.toy.shared_outstanding(0), 24);
    b.answers();
    let (conn, qp) = b.up(0);
    b.end(conn, qp);
}
