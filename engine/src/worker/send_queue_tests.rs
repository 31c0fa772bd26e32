//! The send queue against a model: three lists of tokens.

use super::*;
use crate::memory::{Buffer, HugepagePolicy, Pool, Region};
use crate::types::{QpNum, Rkey};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;

fn pool(slots: u32) -> Pool {
    let bytes = slots as usize * 64;
    let region = Region::allocate(bytes, HugepagePolicy::Off).expect("memory");
    Pool::new(Arc::new(region), slots, 64).expect("a pool")
}

fn grant(inline_bytes: u32, loose: bool) -> QpGrant {
    QpGrant {
        number: QpNum(1),
        inline_bytes,
        message_bytes_max: 1 << 20,
        loose,
        abilities: Abilities::LEAST,
    }
}

fn entry(buffer: Buffer, token: Token) -> Entry {
    Entry {
        token,
        payload: buffer.into(),
        mark: 0,
    }
}

fn push(queue: &mut SendQueue, buffer: Buffer, op: SendOp, token: Token) {
    let (len, addr, lkey) = (buffer.len_bytes(), buffer.addr(), Lkey(1));
    let first = Sge { addr, len, lkey };
    let entry = entry(buffer, token);
    if op.is_special() {
        let special = Special { op, sink: None };
        queue.push_special(entry, special, first, &[], len);
    } else {
        queue.push(entry, op, first);
    }
}

/// The oldest that was posted, and what it was if it is special.
fn pop(queue: &mut SendQueue) -> Option<(Token, Option<SendOp>)> {
    if queue.has_specials() {
        let popped = queue.pop_special();
        return popped.map(|(entry, special)| (entry.token, Some(special.op)));
    }
    queue.pop().map(|entry| (entry.token, None))
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Push,
    Post(usize),
    Retire(u32),
    GiveUp,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Push),
        2 => (0usize..40).prop_map(Step::Post),
        2 => (0u32..40).prop_map(Step::Retire),
        1 => Just(Step::GiveUp),
    ];
    proptest::collection::vec(step, 0..400)
}

proptest! {
    #[test]
    fn behaves_like_two_lists(depth in 1u32..70, steps in steps()) {
        let pool = pool(128);
        let mut queue = SendQueue::new(depth);
        queue.open(7 << 60, Lkey(5), &grant(16, false));
        let (mut posted, mut waiting) = (VecDeque::new(), VecDeque::new());
        // Numbers of the sends that were pushed and not given up, as the queue counts them.
        let (mut head, mut tail) = (0u32, 0u32);
        let mut token = 0u64;
        for step in steps {
            match step {
                Step::Push if queue.room() > 0 => {
                    let buffer = pool.alloc().expect("a slot for each send");
                    push(&mut queue, buffer, SendOp::Send, Token(token));
                    waiting.push_back(token);
                    token += 1;
                    tail += 1;
                }
                Step::Push => prop_assert_eq!(posted.len() + waiting.len(), depth as usize),
                Step::Post(most) => {
                    let chain = queue.chain().0;
                    prop_assert!(chain.len() <= waiting.len());
                    prop_assert_eq!(chain.is_empty(), waiting.is_empty());
                    if let Some(last) = chain.last() {
                        prop_assert!(last.signalled);
                    }
                    let n = most.min(chain.len());
                    queue.mark_posted(n);
                    posted.extend(waiting.drain(..n));
                }
                Step::Retire(ahead) => {
                    let sequence = head.wrapping_add(ahead) & 0xff_ffff;
                    match queue.retires(sequence) {
                        None => prop_assert!(ahead as usize >= posted.len()),
                        Some(n) => {
                            prop_assert_eq!(n, ahead + 1);
                            for _ in 0..n {
                                let t = queue.pop().expect("as many as it said").token;
                                prop_assert_eq!(Some(t.0), posted.pop_front());
                                head += 1;
                            }
                        }
                    }
                }
                Step::GiveUp => {
                    while let Some((Entry { token: t, .. }, _)) = queue.take_unposted() {
                        prop_assert_eq!(Some(t.0), waiting.pop_front());
                        tail -= 1;
                    }
                    prop_assert!(waiting.is_empty());
                }
            }
            prop_assert_eq!(queue.outstanding() as usize, posted.len());
            prop_assert_eq!(queue.room() as usize, depth as usize - posted.len() - waiting.len());
            prop_assert_eq!(queue.is_empty(), posted.is_empty() && waiting.is_empty());
            prop_assert_eq!(tail - head, queue.tail.wrapping_sub(queue.head));
            prop_assert_eq!(pool.free() as usize, 128 - posted.len() - waiting.len());
        }
    }
}

#[test]
fn numbers_wrap() {
    let pool = pool(4);
    let mut queue = SendQueue::new(4);
    queue.open(0, Lkey(1), &grant(0, false));
    let start = u32::MAX - 2;
    (queue.head, queue.posted, queue.tail) = (start, start, start);
    for i in 0..8u64 {
        push(
            &mut queue,
            pool.alloc().expect("a slot"),
            SendOp::Send,
            Token(i),
        );
        let sequence = u32::try_from(queue.chain().0[0].wr_id & 0xff_ffff).expect("24 bits");
        queue.mark_posted(1);
        assert_eq!(queue.retires(sequence), Some(1));
        assert_eq!(queue.pop().expect("one").token, Token(i));
    }
    assert!(queue.is_empty());
}

#[test]
fn short_messages_are_inline_where_the_device_allows() {
    let pool = pool(4);
    let mut queue = SendQueue::new(4);
    queue.open(0, Lkey(1), &grant(16, false));
    for len in [0, 16, 17] {
        let mut buffer = pool.alloc().expect("a slot");
        buffer.set_len(len).expect("fits");
        push(&mut queue, buffer, SendOp::Send, Token(0));
    }
    let inline: Vec<bool> = queue.chain().0.iter().map(|wr| wr.inline).collect();
    assert_eq!(inline, [true, true, false]);
}

fn read(buffer: Buffer, queue: &mut SendQueue, token: u64) {
    let at = crate::types::RemoteSpan::default();
    push(queue, buffer, SendOp::Read(at), Token(token));
}

#[test]
fn reads_beyond_the_depth_wait_in_their_place() {
    let pool = pool(8);
    let mut queue = SendQueue::new(8);
    queue.open(0, Lkey(1), &grant(0, false));
    queue.allow_fetches(2);
    for token in 0..3 {
        read(pool.alloc().expect("a slot"), &mut queue, token);
    }
    push(
        &mut queue,
        pool.alloc().expect("a slot"),
        SendOp::Send,
        Token(3),
    );
    assert_eq!(queue.chain().0.len(), 2);
    queue.mark_posted(2);
    assert_eq!(
        queue.chain().0.len(),
        0,
        "the third READ waits, and the SEND behind it"
    );
    assert_eq!(pop(&mut queue).map(|(t, _)| t), Some(Token(0)));
    assert_eq!(queue.chain().0.len(), 2);
    queue.mark_posted(2);
    assert_eq!((queue.specials, queue.fetches_posted), (2, 2));
    while pop(&mut queue).is_some() {}
    assert_eq!((queue.specials, queue.fetches_posted), (0, 0));
}

#[test]
fn on_a_loose_device_only_reads_follow_reads_and_long_operations_are_signalled() {
    let pool = pool(8);
    let mut queue = SendQueue::new(8);
    queue.open(0, Lkey(1), &grant(0, true));
    queue.allow_fetches(4);
    push(
        &mut queue,
        pool.alloc().expect("a slot"),
        SendOp::Send,
        Token(0),
    );
    read(pool.alloc().expect("a slot"), &mut queue, 1);
    read(pool.alloc().expect("a slot"), &mut queue, 2);
    push(
        &mut queue,
        pool.alloc().expect("a slot"),
        SendOp::Send,
        Token(3),
    );
    assert_eq!(queue.chain().0.len(), 3);
    queue.mark_posted(3);
    for _ in 0..2 {
        assert_eq!(queue.chain().0.len(), 0, "a READ is out");
        assert!(pop(&mut queue).is_some());
    }
    assert_eq!(queue.chain().0.len(), 0);
    assert!(pop(&mut queue).is_some());
    assert_eq!(queue.chain().0.len(), 1);
    queue.mark_posted(1);
    assert!(pop(&mut queue).is_some());

    let mut long = SendQueue::new(2);
    long.open(0, Lkey(1), &grant(0, true));
    let region = Region::allocate(2 << 13, HugepagePolicy::Off);
    let pages = Pool::new(Arc::new(region.expect("memory")), 2, 8192).expect("a pool");
    for len in [4096, 64] {
        let mut buffer = pages.alloc().expect("a slot");
        buffer.set_len(len).expect("fits");
        push(&mut long, buffer, SendOp::Send, Token(0));
    }
    let signalled: Vec<bool> = long.chain().0.iter().map(|wr| wr.signalled).collect();
    assert_eq!(signalled, [true, true]);
}

#[test]
fn long_reads_are_all_signalled() {
    let mut queue = SendQueue::new(4);
    queue.open(0, Lkey(1), &grant(0, false));
    queue.allow_fetches(4);
    let region = Region::allocate(4 << 13, HugepagePolicy::Off);
    let pages = Pool::new(Arc::new(region.expect("memory")), 4, 8192).expect("a pool");
    let at = crate::types::RemoteSpan::default();
    let long = SIGNALLED_FROM_BYTES;
    for (len, op) in [
        (long, SendOp::Read(at)),
        (long - 1, SendOp::Read(at)),
        (long, SendOp::Write(at)),
        (64, SendOp::Read(at)),
    ] {
        let mut buffer = pages.alloc().expect("a slot");
        buffer.set_len(len).expect("fits");
        push(&mut queue, buffer, op, Token(0));
    }
    let signalled: Vec<bool> = queue.chain().0.iter().map(|wr| wr.signalled).collect();
    assert_eq!(signalled, [true, false, false, true]);
}

#[test]
fn atomics_wait_as_reads_do() {
    let pool = pool(8);
    let mut queue = SendQueue::new(8);
    queue.open(0, Lkey(1), &grant(64, false));
    queue.allow_fetches(1);
    let at = crate::types::RemoteSpan::default();
    let ops = [
        SendOp::FetchAdd { at, add: 1 },
        SendOp::CompareSwap {
            at,
            expect: 1,
            swap: 2,
        },
        SendOp::Write(at),
    ];
    for (op, token) in ops.into_iter().zip(0..) {
        push(&mut queue, pool.alloc().expect("a slot"), op, Token(token));
    }
    assert_eq!(queue.chain().0.len(), 1);
    assert!(!queue.chain().0[0].inline, "the answer goes to memory");
    queue.mark_posted(1);
    assert_eq!(queue.chain().0.len(), 0, "the CAS waits for the FAA");
    let (_, op) = pop(&mut queue).expect("the FAA");
    assert!(matches!(op, Some(SendOp::FetchAdd { .. })));
    assert_eq!(queue.chain().0.len(), 2);
}

#[test]
fn pieces_stand_beside_their_operation() {
    let pool = pool(8);
    let mut queue = SendQueue::new(4);
    queue.open(0, Lkey(1), &grant(0, false));
    push(
        &mut queue,
        pool.alloc().expect("a slot"),
        SendOp::Send,
        Token(0),
    );
    assert!(queue.chain().1.is_empty(), "nothing is copied for most");
    let piece = |addr| Sge {
        addr,
        len: 8,
        lkey: Lkey(9),
    };
    let special = Special {
        op: SendOp::Send,
        sink: None,
    };
    let entry = entry(pool.alloc().expect("a slot"), Token(1));
    queue.push_special(entry, special, piece(1), &[piece(2), piece(3)], 24);
    let (chain, more) = queue.chain();
    assert_eq!((chain[0].more, chain[1].more, more.len()), (0, 2, 2));
    assert_eq!(more[1][..2], [piece(2), piece(3)]);
}

#[test]
fn a_bind_is_posted_alone_and_in_its_place() {
    let pool = pool(8);
    let mut queue = SendQueue::new(8);
    queue.open(0, Lkey(1), &grant(64, false));
    let bind = SendOp::Bind {
        window: 0,
        rkey: Rkey(5),
        access: crate::types::Access::REMOTE_READ,
    };
    let ops = [SendOp::Send, bind, bind, SendOp::LocalInvalidate(Rkey(5))];
    for (op, token) in ops.into_iter().zip(0..) {
        push(&mut queue, pool.alloc().expect("a slot"), op, Token(token));
    }
    let mut chains = Vec::new();
    loop {
        let n = queue.chain().0.len();
        if n == 0 {
            break;
        }
        chains.push(n);
        assert!(queue.next_payload().is_some());
        queue.mark_posted(n);
    }
    assert_eq!(chains, [1, 1, 1, 1]);
    let ops: Vec<_> = std::iter::from_fn(|| pop(&mut queue)).collect();
    assert_eq!(ops[3].1, Some(SendOp::LocalInvalidate(Rkey(5))));
    assert!(!queue.has_specials());
}
