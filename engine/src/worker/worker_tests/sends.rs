//! Sends: chains and doorbells, outcomes, refusals, failures.

use super::*;
use crate::fabric::WcStatus;

fn done(conn: ConnId, tokens: std::ops::Range<u8>) -> Vec<Seen> {
    tokens
        .map(|t| Seen::Completed(conn, t.into(), Outcome::Done))
        .collect()
}

#[test]
fn a_lone_send_leaves_behind_one_doorbell() {
    let mut b = Bench::new(SMALL);
    let (conn, qp) = b.up(0);
    b.send(conn, 9..10);
    b.turn();
    let chains = b.toy.send_chains(qp);
    assert_eq!(chains.len(), 1);
    assert_eq!(chains[0].len(), 1);
    assert!(chains[0][0].signalled && !chains[0][0].inline);
    assert_eq!(b.toy.sent(qp).0, [vec![9; 20]]);
    let count = b.count();
    assert_eq!(
        (count.sends_posted, count.doorbells, count.send_bytes),
        (1, 1, 20)
    );
    assert_eq!(b.turn_seen(), [], "the NIC has it");
    b.toy.execute(qp, 1);
    assert_eq!(b.turn_seen(), done(conn, 9..10));
    b.end(conn, qp);
    assert_eq!(b.free(), 64);
}

#[test]
fn a_burst_leaves_in_chains_whose_last_is_signalled() {
    let mut b = Bench::new(Size {
        send_depth: 64,
        slots: 128,
        ..SMALL
    });
    let (conn, qp) = b.up(0);
    b.send(conn, 0..40);
    b.turn();
    let chains = b.toy.send_chains(qp);
    assert_eq!(chains.iter().map(Vec::len).collect::<Vec<_>>(), [32, 8]);
    for chain in &chains {
        let (last, rest) = chain.split_last().expect("not empty");
        assert!(last.signalled && rest.iter().all(|wr| !wr.signalled));
    }
    // One completion retires all before it, in order.
    assert_eq!(b.toy.execute(qp, 31), 31);
    assert_eq!(b.turn_seen(), []);
    assert_eq!(b.toy.execute(qp, 9), 9);
    assert_eq!(b.turn_seen(), done(conn, 0..40));
    assert_eq!(b.count().completions, 2);
    b.end(conn, qp);
}

#[test]
fn an_answer_leaves_in_the_turn_of_its_question() {
    let mut b = Bench::new(SMALL);
    let (first, first_qp) = b.up(0);
    let (second, second_qp) = b.up(1);
    b.worker.service().echo = true;
    for byte in 1..=3 {
        assert!(b.toy.deliver(first_qp, &[byte]));
    }
    assert!(b.toy.deliver(second_qp, &[4]));
    b.turn();
    assert_eq!(b.toy.sent(first_qp).0, [[1], [2], [3]]);
    assert_eq!(b.toy.sent(second_qp).0, [[4]]);
    let chains = [b.toy.send_chains(first_qp), b.toy.send_chains(second_qp)];
    assert_eq!(chains.map(|c| c.len()), [1, 1]);
    b.toy.execute(first_qp, 3);
    b.toy.execute(second_qp, 1);
    b.turn();
    b.seen();
    b.end(first, first_qp);
    b.end(second, second_qp);
    assert_eq!(b.free(), 64);
}

#[test]
fn what_is_not_taken_comes_back_with_a_reason() {
    let mut b = Bench::new(SMALL);
    let (early, early_qp) = b.hand_over(1, 0, Role::Active);
    b.turn();
    b.answers();
    b.send(early, 1..2);
    b.turn();
    assert_eq!(b.worker.service().rejected, [(1, PostError::NotConnected)]);
    let (conn, qp) = b.up(0);
    b.worker.service().rejected.clear();
    b.order(Order::Send(conn, vec![0; 201], 2));
    b.send(conn, 10..19);
    b.turn();
    let full = PostError::WouldBlock;
    assert_eq!(
        b.worker.service().rejected,
        [(2, PostError::TooLong), (18, full)]
    );
    assert_eq!(b.count().would_block, 1);
    b.toy.execute(qp, 8);
    assert_eq!(b.turn_seen(), done(conn, 10..18));
    b.worker.service().rejected.clear();
    b.order(Order::Close(conn));
    b.send(conn, 3..4);
    b.turn();
    assert_eq!(b.worker.service().rejected, [(3, PostError::NotConnected)]);
    let asked = Answer::CloseRequested(conn, CloseReason::Local);
    assert_eq!(b.answers(), [asked]);
    b.end(early, early_qp);
    b.end(conn, qp);
    assert_eq!(b.free(), 64);
}

#[test]
fn a_refused_post_splits_the_chain() {
    let mut b = Bench::new(SMALL);
    let (conn, qp) = b.up(0);
    b.toy.refuse_sends(qp, 2, 12);
    b.send(conn, 0..5);
    let asked = Answer::CloseRequested(conn, CloseReason::PostRefused(12));
    assert_eq!(b.turn_answers(), [asked]);
    assert_eq!(b.toy.outstanding(qp).0, 2);
    assert_eq!(b.count().sends_posted, 2);
    assert_eq!(b.turn_answers(), [], "once");
    assert_eq!(
        b.seen(),
        [],
        "the prefix is in flight, the rest waits for Stop"
    );
    b.tell(Command::Stop(conn, CloseReason::Peer));
    assert_eq!(b.turn_answers(), [Answer::Stopped(conn)]);
    let never = |t| Seen::Completed(conn, t, Outcome::NeverPosted);
    assert_eq!(b.seen(), [never(2), never(3), never(4)]);
    b.toy.flush(qp);
    b.tell(Command::Flush(conn, DRAIN));
    let mut answers = b.turn_answers();
    answers.extend(b.turn_answers());
    assert_eq!(answers, [Answer::Drained(conn, 0)]);
    let lost = Outcome::Unknown(WcStatus::Flushed);
    let lost = |t| Seen::Completed(conn, t, lost);
    assert_eq!(b.seen(), [lost(0), lost(1)]);
    b.release(conn);
    let refused = CloseReason::PostRefused(12);
    assert_eq!(b.seen(), [Seen::Disconnected(conn, refused)]);
    assert_eq!(b.free(), 64);
}

/// The tail that the NIC did take was not signalled: it may execute without a word.
#[test]
fn a_prefix_that_executes_in_silence_is_unknown_at_the_end() {
    let mut b = Bench::new(SMALL);
    let (conn, qp) = b.up(0);
    b.toy.refuse_sends(qp, 2, 12);
    b.send(conn, 0..3);
    b.turn();
    b.answers();
    assert_eq!(b.toy.execute(qp, 2), 2);
    b.tell(Command::Stop(conn, CloseReason::Peer));
    b.turn();
    b.toy.flush(qp);
    b.tell(Command::Flush(conn, DRAIN));
    b.turn();
    b.now = b.now + DRAIN;
    b.turn();
    assert_eq!(
        b.answers(),
        [Answer::Stopped(conn), Answer::Drained(conn, 2)]
    );
    b.release(conn);
    let unknown = Outcome::Unknown(WcStatus::Flushed);
    let seen = b.seen();
    assert_eq!(
        seen[1..3],
        [0, 1].map(|t| Seen::Completed(conn, t, unknown))
    );
    assert_eq!(b.free(), 64);
}

#[test]
fn a_failure_closes_once_with_its_reason() {
    for (status, reason) in [
        (
            WcStatus::RetryExceeded,
            CloseReason::Failed(WcStatus::RetryExceeded),
        ),
        (
            WcStatus::RemoteInvalidRequest,
            CloseReason::Failed(WcStatus::RemoteInvalidRequest),
        ),
        (
            WcStatus::Other(99),
            CloseReason::Failed(WcStatus::Other(99)),
        ),
        // A flush that no failure came before: the peer went.
        (WcStatus::Flushed, CloseReason::Peer),
    ] {
        let mut b = Bench::new(SMALL);
        let (conn, qp) = b.up(0);
        b.send(conn, 0..3);
        b.turn();
        b.send(conn, 3..5);
        b.turn();
        b.toy.execute(qp, 1);
        b.toy.fail(qp, status);
        assert_eq!(b.turn_answers(), [Answer::CloseRequested(conn, reason)]);
        let seen = b.seen();
        // Errors complete in any case, so the one before the failure was done.
        let lost = |t, status| Seen::Completed(conn, t, Outcome::Unknown(status));
        let flushed = |t| lost(t, WcStatus::Flushed);
        assert_eq!(seen[..2], [done(conn, 0..1).remove(0), lost(1, status)]);
        assert_eq!(seen[2..], [flushed(2), flushed(3), flushed(4)]);
        assert_eq!(b.count().completions_failed, 4 + 8);
        b.end(conn, qp);
        assert_eq!(b.seen(), [Seen::Disconnected(conn, reason)]);
        assert_eq!(b.free(), 64);
    }
}

#[test]
fn a_length_beyond_the_buffer_is_a_failure() {
    let mut b = Bench::new(SMALL);
    let (conn, qp) = b.up(0);
    let word = b.toy.recv_words(qp)[0];
    b.toy.complete(qp, word, WcStatus::Success, 257);
    let reason = CloseReason::Failed(WcStatus::LocalLength);
    assert_eq!(b.turn_answers(), [Answer::CloseRequested(conn, reason)]);
    assert_eq!(b.seen(), []);
    assert_eq!(b.free(), 64 - 7);
}

#[test]
fn completions_that_name_nothing_change_nothing() {
    let mut b = Bench::new(SMALL);
    let (conn, qp) = b.up(0);
    b.send(conn, 0..2);
    b.turn();
    let sends: Vec<u64> = b.toy.send_chains(qp)[0].iter().map(|wr| wr.wr_id).collect();
    let recv = b.toy.recv_words(qp)[0];
    let ahead = sends[1] + 1;
    for word in [
        0,
        u64::MAX,
        ahead,
        recv + 8,
        recv | 0xff_ffff,
        9 << 44 | sends[0],
    ] {
        for status in [WcStatus::Success, WcStatus::Flushed] {
            if word == ahead && status == WcStatus::Flushed {
                continue; // names this life: a failure of the QP, whatever the number
            }
            if word & !0xff_ffff == recv & !0xff_ffff && status == WcStatus::Flushed {
                continue;
            }
            b.toy.complete(qp, word, status, 5);
        }
    }
    assert_eq!(b.turn_answers(), []);
    assert_eq!(b.seen(), []);
    // The one that is there completes once, however often it is said.
    for _ in 0..3 {
        b.toy.complete(qp, sends[1], WcStatus::Success, 0);
    }
    assert_eq!(b.turn_seen(), done(conn, 0..2));
}
