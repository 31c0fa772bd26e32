//! Receives: order, reposting in batches, and a pool that runs dry.

use super::*;
use crate::limits::IDLE_TURNS_BEFORE_TOP_UP;

#[test]
fn messages_arrive_in_order_across_batches() {
    let mut b = Bench::new(Size {
        recv_depth: 64,
        slots: 128,
        ..SMALL
    });
    let (conn, qp) = b.up(0);
    let mut seen = Vec::new();
    for byte in 0..200u8 {
        assert!(b.toy.deliver(qp, &[byte]), "a receive for {byte}");
        if byte % 50 == 49 {
            // More than one poll batch waits.
            seen.extend(b.turn_seen());
            seen.extend(b.turn_seen());
        }
    }
    let all: Vec<Seen> = (0..200).map(|byte| message(conn, byte)).collect();
    assert_eq!(seen, all);
    let count = b.count();
    assert_eq!((count.messages_received, count.recv_bytes), (200, 200));
    b.end(conn, qp);
    assert_eq!(b.free(), 128);
}

#[test]
fn receives_go_back_in_batches_and_on_idle_turns() {
    let mut b = Bench::new(Size {
        recv_depth: 64,
        slots: 128,
        ..SMALL
    });
    let (conn, qp) = b.up(0);
    assert_eq!(b.toy.recv_chains(qp), [32, 32]);
    for byte in 0..15 {
        b.toy.deliver(qp, &[byte]);
        assert_eq!(b.turn(), Turn::Busy);
    }
    assert_eq!(b.toy.recv_chains(qp), [32, 32], "fifteen wait");
    b.toy.deliver(qp, &[15]);
    assert_eq!(b.turn(), Turn::Busy);
    assert_eq!(b.toy.recv_chains(qp), [32, 32, 16], "the sixteenth rings");
    b.toy.deliver(qp, &[16]);
    assert_eq!(b.turn(), Turn::Busy);
    assert_eq!(b.toy.recv_chains(qp), [32, 32, 16]);
    for _ in 1..IDLE_TURNS_BEFORE_TOP_UP {
        assert_eq!(b.turn(), Turn::Idle);
        assert_eq!(
            b.toy.recv_chains(qp),
            [32, 32, 16],
            "it may come back to work"
        );
    }
    for _ in 0..2 {
        assert_eq!(b.turn(), Turn::Idle);
        assert_eq!(b.toy.recv_chains(qp), [32, 32, 16, 1], "nothing else to do");
    }
    b.end(conn, qp);
}

#[test]
fn a_short_queue_is_refilled_at_half() {
    let mut b = Bench::new(Size {
        recv_depth: 4,
        ..SMALL
    });
    let (conn, qp) = b.up(0);
    for byte in 0..10 {
        assert!(
            b.toy.deliver(qp, &[byte]),
            "never empty while the worker is busy"
        );
        assert_eq!(b.turn(), Turn::Busy);
    }
    assert_eq!(b.toy.recv_chains(qp), [4, 2, 2, 2, 2, 2]);
    b.end(conn, qp);
}

#[test]
fn a_dry_pool_starves_one_and_all_until_buffers_come_back() {
    let mut b = Bench::new(Size { slots: 16, ..SMALL });
    let (first, first_qp) = b.up(0);
    let (second, second_qp) = b.up(1);
    assert_eq!(b.free(), 0);
    b.worker.service().kept = Some(Vec::new());
    for byte in 0..8 {
        assert!(b.toy.deliver(first_qp, &[byte]) && b.toy.deliver(second_qp, &[byte]));
    }
    b.turn();
    for _ in 0..3 {
        assert_eq!(b.turn(), Turn::Idle);
    }
    assert!(!b.toy.deliver(first_qp, &[8]) && !b.toy.deliver(second_qp, &[8]));
    assert!(b.count().pool_exhausted > 0);
    // Three come back, then the rest.
    let kept = b.worker.service().kept.replace(Vec::new());
    let mut kept = kept.expect("sixteen");
    kept.truncate(13);
    b.turn();
    let with_nic = |b: &Bench| b.toy.outstanding(first_qp).1 + b.toy.outstanding(second_qp).1;
    assert_eq!(with_nic(&b), 3);
    drop(kept);
    b.turn();
    assert_eq!(with_nic(&b), 16);
    b.seen();
    b.worker.service().kept = None;
    assert!(b.toy.deliver(first_qp, &[9]) && b.toy.deliver(second_qp, &[9]));
    assert_eq!(b.turn_seen(), [message(first, 9), message(second, 9)]);
    b.end(first, first_qp);
    b.end(second, second_qp);
    assert_eq!(b.free(), 16);
}

#[test]
fn a_refused_repost_closes_and_loses_no_slot() {
    let mut b = Bench::new(SMALL);
    let (conn, qp) = b.up(0);
    for byte in 0..4 {
        b.toy.deliver(qp, &[byte]);
    }
    b.toy.refuse_recvs(qp, 3, 22);
    let asked = Answer::CloseRequested(conn, CloseReason::PostRefused(22));
    assert_eq!(b.turn_answers(), [asked]);
    assert_eq!(b.toy.outstanding(qp), (0, 7));
    assert_eq!(b.free(), 64 - 7);
    b.seen();
    b.end(conn, qp);
    assert_eq!(b.free(), 64);
}
