//! Receives that connections share: whose message it is, refills, shares, ends.

use super::*;
use crate::fabric::WcStatus;
use crate::limits::{IDLE_TURNS_BEFORE_TOP_UP, SHARED_EARLY_MAX};

/// Three places with a share of 8 each; refilled when 6 are used, or 4 by one of them.
const SHARED: Size = Size {
    shared_recv_depth: 24,
    ..SMALL
};

fn ready(b: &mut Bench, conn: ConnId) -> u32 {
    b.worker.core.table.at(conn.index).recvs.posted_total()
}

#[test]
fn the_queue_is_full_before_anybody_connects() {
    let mut b = Bench::new(SHARED);
    assert_eq!(b.toy.shared_chains(0), [24]);
    assert_eq!((b.free(), b.count().recvs_posted), (64 - 24, 24));
    let (conn, qp) = b.up(0);
    assert_eq!(ready(&mut b, conn), 8, "its share");
    assert_eq!(b.toy.outstanding(qp), (0, 0), "nothing of its own");
    assert_eq!(b.toy.shared_chains(0), [24]);
    b.end(conn, qp);
    assert_eq!(b.toy.shared_outstanding(0), 24);
    assert_eq!(b.free(), 64 - 24);
}

#[test]
fn each_message_goes_to_the_connection_of_its_qp() {
    let mut b = Bench::new(SHARED);
    let ends = [b.up(0), b.up(1), b.up(2)];
    let mut want = Vec::new();
    for byte in 0..200u8 {
        let (conn, qp) = ends[usize::from(byte) * 7 % 5 % 3];
        assert!(b.toy.deliver(qp, &[byte]));
        want.push(message(conn, byte));
        if byte % 5 == 4 {
            b.turn();
        }
    }
    assert_eq!(b.seen(), want);
    assert_eq!(b.count().messages_received, 200);
    for (conn, qp) in ends {
        b.end(conn, qp);
    }
    assert_eq!(b.free() as usize + b.toy.shared_outstanding(0), 64);
}

#[test]
fn it_is_refilled_at_the_mark_of_the_queue_or_of_a_share() {
    let mut b = Bench::new(SHARED);
    let ends = [b.up(0), b.up(1), b.up(2)];
    for (byte, (_, qp)) in (0..5).zip(ends.iter().cycle()) {
        b.toy.deliver(*qp, &[byte]);
        b.turn();
    }
    assert_eq!(b.toy.shared_chains(0), [24], "five of three wait");
    b.toy.deliver(ends[2].1, &[5]);
    b.turn();
    assert_eq!(b.toy.shared_chains(0), [24, 6], "the sixth is the mark");
    for byte in 6..9 {
        b.toy.deliver(ends[0].1, &[byte]);
        b.turn();
    }
    assert_eq!(b.toy.shared_chains(0), [24, 6]);
    assert_eq!(ready(&mut b, ends[0].0), 8 + 2);
    b.toy.deliver(ends[0].1, &[9]);
    b.turn();
    assert_eq!(b.toy.shared_chains(0), [24, 6, 4], "half a share is used");
    assert_eq!(ready(&mut b, ends[0].0), 8 + 2 + 4);
    // What is less is posted when there is nothing else to do.
    b.toy.deliver(ends[1].1, &[10]);
    for _ in 0..=IDLE_TURNS_BEFORE_TOP_UP {
        b.turn();
    }
    assert_eq!(b.toy.shared_chains(0), [24, 6, 4, 1]);
    for (conn, qp) in ends {
        b.end(conn, qp);
    }
}

#[test]
fn a_service_that_keeps_everything_is_held_back_and_goes_on_afterwards() {
    let mut b = Bench::new(Size {
        slots: 26,
        ..SHARED
    });
    let ends = [b.up(0), b.up(1)];
    b.worker.service().kept = Some(Vec::new());
    let mut delivered = 0;
    for byte in 0..60 {
        delivered += u32::from(b.toy.deliver(ends[usize::from(byte % 2)].1, &[byte]));
        b.turn();
    }
    assert_eq!(delivered, 26, "the pool's every slot, and no more");
    assert_eq!(b.free(), 0);
    assert!(b.count().pool_exhausted > 0);
    // Debts are paid in the order in which they were made, fairly: one each of two.
    let before = [ready(&mut b, ends[0].0), ready(&mut b, ends[1].0)];
    let mut kept = b.worker.service().kept.take().expect("kept");
    kept.truncate(24);
    b.turn();
    assert_eq!(b.toy.shared_outstanding(0), 2);
    assert_eq!(
        [ready(&mut b, ends[0].0), ready(&mut b, ends[1].0)],
        before.map(|n| n + 1)
    );
    drop(kept);
    b.turn();
    assert_eq!(b.toy.shared_outstanding(0), 24);
    b.seen();
    for byte in 0..100 {
        let (conn, qp) = ends[usize::from(byte % 2)];
        assert!(b.toy.deliver(qp, &[byte]));
        assert_eq!(b.turn_seen(), [message(conn, byte)]);
    }
    for (conn, qp) in ends {
        b.end(conn, qp);
    }
    assert_eq!(b.free() as usize + b.toy.shared_outstanding(0), 26);
}

#[test]
fn a_place_hands_its_debts_on() {
    let mut b = Bench::new(Size {
        slots: 24 + 1,
        ..SHARED
    });
    let (first, qp) = b.up(0);
    b.worker.service().kept = Some(Vec::new());
    for byte in 0..6 {
        assert!(b.toy.deliver(qp, &[byte]));
    }
    b.turn();
    b.seen();
    b.end(first, qp);
    b.seen();
    // One slot was left, so one of six is posted again.
    let (second, qp) = b.up(0);
    assert_eq!(ready(&mut b, second), 8 - 5);
    b.worker.service().kept = None;
    b.turn();
    assert_eq!(ready(&mut b, second), 8, "and no more");
    b.end(second, qp);
    b.seen();
    // One that owes more than its share is not heard of before it has paid the excess.
    let (greedy, qp) = b.up(0);
    b.worker.service().kept = Some(Vec::new());
    for byte in 0..11 {
        assert!(b.toy.deliver(qp, &[byte]));
    }
    b.turn();
    b.end(greedy, qp);
    b.seen();
    let (late, _) = b.hand_over(0, 0, Role::Active);
    assert_eq!(
        b.turn_answers(),
        [Answer::Refused(late)],
        "no receive for it"
    );
    b.destroy_qp(late);
    b.worker.service().kept.as_mut().expect("kept").truncate(7);
    let (next, qp) = b.up(0);
    assert_eq!(ready(&mut b, next), 8 - 6, "18 of 25 slots are posted");
    b.worker.service().kept = None;
    b.turn();
    assert_eq!(ready(&mut b, next), 8);
    b.end(next, qp);
    assert_eq!(b.free(), 1);
}

#[test]
fn a_connection_ends_without_flushes_and_leaves_the_others_alone() {
    let mut b = Bench::new(SHARED);
    let (dying, dying_qp) = b.up(0);
    let (living, qp) = b.up(1);
    b.send(dying, 0..2);
    b.turn();
    b.toy.fail(dying_qp, WcStatus::RetryExceeded);
    let reason = CloseReason::Failed(WcStatus::RetryExceeded);
    assert_eq!(b.turn_answers(), [Answer::CloseRequested(dying, reason)]);
    assert!(b.toy.deliver(qp, &[1]));
    b.tell(Command::Stop(dying, CloseReason::Peer));
    b.tell(Command::Flush(dying, DRAIN));
    let answers = [Answer::Stopped(dying), Answer::Drained(dying, 0)];
    assert_eq!(b.turn_answers(), answers);
    assert!(b.toy.deliver(qp, &[2]));
    b.release(dying);
    let seen = b.seen();
    assert!(seen.contains(&message(living, 1)) && seen.contains(&message(living, 2)));
    b.end(living, qp);
    assert_eq!(b.free() as usize + b.toy.shared_outstanding(0), 64);
}

/// More than a batch is in the CQ when the connection is flushed: it is served all the same, as destroying
/// the QP may take its completions away.
#[test]
fn what_is_in_the_cq_is_served_before_the_qp_goes() {
    let mut b = Bench::new(Size {
        shared_recv_depth: 90,
        slots: 128,
        ..SHARED
    });
    let (conn, qp) = b.up(0);
    for byte in 0..80 {
        assert!(b.toy.deliver(qp, &[byte]));
    }
    b.tell(Command::Stop(conn, CloseReason::Peer));
    b.tell(Command::Flush(conn, DRAIN));
    assert_eq!(
        b.turn_answers(),
        [Answer::Stopped(conn), Answer::Drained(conn, 0)]
    );
    let all: Vec<Seen> = (0..80).map(|byte| message(conn, byte)).collect();
    assert_eq!(b.seen(), all);
    // Nor may the next QP of this number get what this one completed last.
    for byte in 100..140 {
        assert!(b.toy.deliver(qp, &[byte]));
    }
    b.release(conn);
    let late: Vec<Seen> = (100..140).map(|byte| message(conn, byte)).collect();
    assert_eq!(b.seen()[..40], late);
}

#[test]
fn a_completion_of_a_qp_that_is_gone_gives_its_slot_back() {
    let mut b = Bench::new(SHARED);
    let (old, old_qp) = b.up(0);
    let (conn, qp) = b.up(1);
    b.end(old, old_qp);
    b.seen();
    // The toy gives no message to a dead QP, so the word is taken from one that lives.
    for status in [WcStatus::Success, WcStatus::Flushed] {
        let word = b.toy.shared_words(0)[0];
        assert!(b.toy.lose_shared(qp));
        b.toy.complete(old_qp, word, status, 3);
        assert_eq!(b.turn_seen(), []);
    }
    assert_eq!(b.answers(), []);
    assert_eq!(b.toy.shared_outstanding(0), 24, "posted again at once");
    // Words that name no place, no slot, or a slot that nobody has, change nothing.
    let word = b.toy.shared_words(0)[0];
    for word in [word | 9 << 44, word | 0xff_ffff, word + 24] {
        b.toy.complete(qp, word, WcStatus::Success, 3);
        b.toy.complete(qp, word, WcStatus::Flushed, 0);
    }
    assert_eq!((b.turn_seen(), b.answers()), (vec![], vec![]));
    b.end(conn, qp);
    assert_eq!(b.free() as usize + b.toy.shared_outstanding(0), 64);
}

#[test]
fn a_failed_receive_closes_the_connection_that_it_was_for() {
    let mut b = Bench::new(SHARED);
    let (conn, qp) = b.up(0);
    let (other, other_qp) = b.up(1);
    let word = b.toy.shared_words(0)[0];
    assert!(b.toy.lose_shared(qp));
    b.toy.complete(qp, word, WcStatus::LocalLength, 0);
    let reason = CloseReason::Failed(WcStatus::LocalLength);
    assert_eq!(b.turn_answers(), [Answer::CloseRequested(conn, reason)]);
    // A length that no buffer has is as bad.
    let word = b.toy.shared_words(0)[0];
    assert!(b.toy.lose_shared(other_qp));
    b.toy.complete(other_qp, word, WcStatus::Success, 257);
    assert_eq!(b.turn_answers(), [Answer::CloseRequested(other, reason)]);
    assert_eq!(b.seen(), []);
    b.end(conn, qp);
    b.end(other, other_qp);
    assert_eq!(b.free() as usize + b.toy.shared_outstanding(0), 64);
}

/// A QP that dies in the middle of a message takes a receive with it. The device may still write there,
/// so the slot stays away until the queue is gone.
#[test]
fn a_receive_that_never_completes_is_kept_until_the_queue_is_gone() {
    let mut b = Bench::new(SHARED);
    let (conn, qp) = b.up(0);
    for _ in 0..3 {
        assert!(b.toy.lose_shared(qp));
    }
    b.end(conn, qp);
    b.seen();
    assert_eq!((b.toy.shared_outstanding(0), b.free()), (21, 64 - 24));
    // Life goes on with what there is.
    let (next, qp) = b.up(0);
    for byte in 0..100 {
        assert!(b.toy.deliver(qp, &[byte]));
        b.turn();
    }
    assert_eq!(b.seen().len(), 100);
    b.end(next, qp);
    let (with_nic, lost) = (b.toy.shared_outstanding(0), 3);
    assert_eq!(b.free() as usize + with_nic + lost, 64);
    b.tell(Command::DropLane(0));
    assert_eq!(b.turn_answers(), [Answer::LaneDropped(0)]);
    assert_eq!(b.free(), 64);
}

#[test]
fn a_queue_goes_with_its_worker_and_gives_all_back() {
    let b = Bench::new(SHARED);
    let pool = b.worker.core.pool.clone();
    assert_eq!(pool.free(), 64 - 24);
    drop(b);
    assert_eq!(pool.free(), 64);
}

#[test]
fn early_messages_wait_in_order_and_a_flood_of_them_ends_its_connection_alone() {
    let mut b = Bench::new(Size {
        shared_recv_depth: 100,
        slots: 256,
        ..SHARED
    });
    let (early, early_qp) = b.hand_over(0, 0, Role::Active);
    b.turn_answers();
    let (living, qp) = b.up(1);
    for byte in 0..3 {
        assert!(b.toy.deliver(early_qp, &[byte]));
    }
    assert_eq!(b.turn_seen(), []);
    b.establish(early);
    b.turn();
    let seen = b.seen();
    assert_eq!(seen[0], Seen::Connected(early));
    assert_eq!(seen[1..], [0, 1, 2].map(|byte| message(early, byte)));

    let (flooded, flood_qp) = b.hand_over(2, 0, Role::Active);
    b.turn_answers();
    let most = u8::try_from(SHARED_EARLY_MAX).expect("few");
    for byte in 0..most {
        assert!(b.toy.deliver(flood_qp, &[byte]));
        assert_eq!(b.turn_answers(), []);
    }
    assert!(b.toy.deliver(flood_qp, &[most]));
    let asked = Answer::CloseRequested(flooded, CloseReason::EarlyFlood);
    assert_eq!(b.turn_answers(), [asked]);
    assert!(b.toy.deliver(qp, &[7]));
    assert_eq!(b.turn_seen(), [message(living, 7)]);
    b.end(flooded, flood_qp);
    assert_eq!(b.seen(), [], "nobody heard of it");
    b.end(early, early_qp);
    b.end(living, qp);
    assert_eq!(b.free() as usize + b.toy.shared_outstanding(0), 256);
}

#[test]
fn a_refused_refill_closes_the_lane_and_loses_no_slot() {
    let mut b = Bench::new(SHARED);
    let (first, first_qp) = b.up(0);
    let (second, second_qp) = b.up(1);
    b.toy.refuse_shared(0, 2, 12);
    for byte in 0..6 {
        assert!(b.toy.deliver(first_qp, &[byte]));
    }
    let reason = CloseReason::PostRefused(12);
    let asked = [first, second].map(|c| Answer::CloseRequested(c, reason));
    let mut answers = b.turn_answers();
    answers.extend(b.turn_answers());
    assert_eq!(answers, asked);
    assert_eq!((b.toy.shared_outstanding(0), b.free()), (20, 64 - 20));
    b.seen();
    let (late, _) = b.hand_over(2, 0, Role::Passive);
    assert_eq!(b.turn_answers(), [Answer::Refused(late)]);
    b.destroy_qp(late);
    b.end(first, first_qp);
    b.end(second, second_qp);
    assert_eq!(b.free(), 64 - 20);
}
