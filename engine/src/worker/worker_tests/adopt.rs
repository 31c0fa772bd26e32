//! A connection comes to a worker: receives, the answer, and when the service hears of it.

use super::*;

#[test]
fn adopt_posts_every_receive_and_answers_armed() {
    let mut b = Bench::new(Size {
        recv_depth: 40,
        ..SMALL
    });
    let (conn, qp) = b.hand_over(1, 0, Role::Active);
    assert_eq!(b.turn(), Turn::Busy);
    assert_eq!(b.answers(), [Answer::Armed(conn)]);
    assert_eq!(b.toy.recv_chains(qp), [32, 8]);
    assert_eq!(b.free(), 64 - 40);
    let count = b.count();
    assert_eq!(
        (count.recvs_posted, count.recv_doorbells, count.handovers),
        (40, 2, 1)
    );
    // The service hears of an active connection when the handshake is done, once.
    assert_eq!(b.turn(), Turn::Idle);
    assert_eq!(b.seen(), []);
    b.establish(conn);
    b.establish(conn);
    assert_eq!(b.turn_seen(), [Seen::Connected(conn)]);
    b.end(conn, qp);
    assert_eq!(b.free(), 64);
}

#[test]
fn refused_where_there_is_no_slot() {
    let mut b = Bench::new(SMALL);
    let held: Vec<_> = std::iter::from_fn(|| b.worker.core.pool.alloc().ok()).collect();
    let (conn, qp) = b.hand_over(0, 0, Role::Passive);
    assert_eq!(b.turn_answers(), [Answer::Refused(conn)]);
    assert_eq!(b.toy.recv_chains(qp), [0; 0]);
    assert!(b.count().pool_exhausted > 0);
    b.destroy_qp(conn);
    drop(held);
    // The place was not used up.
    let (conn, qp) = b.hand_over(0, 0, Role::Passive);
    assert_eq!(b.turn_answers(), [Answer::Armed(conn)]);
    b.end(conn, qp);
    assert_eq!(b.seen(), [], "neither connected nor disconnected");
    assert_eq!(b.free(), 64);
}

#[test]
fn refused_where_lane_or_place_are_wrong() {
    let mut b = Bench::new(SMALL);
    let (unknown_lane, _) = b.hand_over(0, 1, Role::Passive);
    assert_eq!(b.turn_answers(), [Answer::Refused(unknown_lane)]);
    let (beyond, _) = b.hand_over(3, 0, Role::Passive);
    assert_eq!(b.turn_answers(), [Answer::Refused(beyond)]);
    let (first, qp) = b.up(2);
    let (second, _) = b.hand_over(2, 0, Role::Passive);
    assert_eq!(b.turn_answers(), [Answer::Refused(second)]);
    // …and whoever has the place does not notice.
    assert!(b.toy.deliver(qp, &[7]));
    assert_eq!(b.turn_seen(), [message(first, 7)]);
    for conn in [unknown_lane, beyond, second] {
        b.destroy_qp(conn);
    }
    b.end(first, qp);
}

#[test]
fn a_pool_with_some_slots_arms_and_posts_the_rest_later() {
    let mut b = Bench::new(SMALL);
    let mut held: Vec<_> = std::iter::from_fn(|| b.worker.core.pool.alloc().ok()).collect();
    held.truncate(61);
    let (conn, qp) = b.hand_over(0, 0, Role::Passive);
    assert_eq!(b.turn_answers(), [Answer::Armed(conn)]);
    assert_eq!(b.toy.outstanding(qp), (0, 3));
    drop(held);
    b.turn();
    assert_eq!(b.toy.outstanding(qp), (0, 8));
    b.end(conn, qp);
}

#[test]
fn a_post_that_is_refused_while_arming() {
    // None accepted: the QP comes straight back.
    let mut b = Bench::new(SMALL);
    let (conn, qp) = b.hand_over(0, 0, Role::Passive);
    b.toy.refuse_recvs(qp, 0, 12);
    assert_eq!(b.turn_answers(), [Answer::Refused(conn)]);
    assert_eq!(b.free(), 64);
    b.destroy_qp(conn);
    // Some accepted: they are the NIC's, so the connection is drained like any other.
    let (conn, qp) = b.hand_over(0, 0, Role::Passive);
    b.toy.refuse_recvs(qp, 5, 12);
    let refused = CloseReason::PostRefused(12);
    assert_eq!(
        b.turn_answers(),
        [Answer::Armed(conn), Answer::CloseRequested(conn, refused)]
    );
    assert_eq!((b.toy.outstanding(qp), b.free()), ((0, 5), 64 - 5));
    b.end(conn, qp);
    assert_eq!(b.free(), 64);
}

#[test]
fn a_passive_connection_is_served_before_established() {
    let mut b = Bench::new(SMALL);
    let (conn, qp) = b.hand_over(0, 0, Role::Passive);
    b.turn_answers();
    assert!(b.toy.deliver(qp, &[1]) && b.toy.deliver(qp, &[2]));
    let first = [Seen::Connected(conn), message(conn, 1), message(conn, 2)];
    assert_eq!(b.turn_seen(), first);
    b.establish(conn);
    assert!(b.toy.deliver(qp, &[3]));
    assert_eq!(b.turn_seen(), [message(conn, 3)]);
    b.end(conn, qp);
    assert_eq!(b.seen(), [Seen::Disconnected(conn, CloseReason::Peer)]);
}

#[test]
fn an_active_connection_keeps_what_is_early() {
    let mut b = Bench::new(SMALL);
    let (conn, qp) = b.hand_over(0, 0, Role::Active);
    b.turn_answers();
    assert!(b.toy.deliver(qp, &[1]) && b.toy.deliver(qp, &[2]));
    assert_eq!(b.turn_seen(), []);
    assert!(b.toy.deliver(qp, &[3]));
    b.establish(conn);
    let all = [
        Seen::Connected(conn),
        message(conn, 1),
        message(conn, 2),
        message(conn, 3),
    ];
    assert_eq!(b.turn_seen(), all);
    b.end(conn, qp);
}

/// Control may be late with Established while the peer sends as fast as receives come back.
#[test]
fn early_messages_are_bounded_by_the_queue() {
    let mut b = Bench::new(SMALL);
    let (conn, qp) = b.hand_over(0, 0, Role::Active);
    let mut taken = Vec::new();
    for byte in 0..30 {
        if b.toy.deliver(qp, &[byte]) {
            taken.push(message(conn, byte));
        }
        b.turn();
    }
    assert_eq!(taken.len(), 8, "the peer is held back by RNR, not the pool");
    assert_eq!(b.free(), 64 - 8);
    b.establish(conn);
    let seen = b.turn_seen();
    assert_eq!(b.answers(), [Answer::Armed(conn)]);
    assert_eq!(seen[0], Seen::Connected(conn));
    assert_eq!(seen[1..], taken);
    b.turn();
    assert_eq!(b.toy.outstanding(qp), (0, 8));
    b.end(conn, qp);
    assert_eq!(b.free(), 64);
}

#[test]
fn early_messages_of_a_connection_that_never_came_up_go_back() {
    let mut b = Bench::new(SMALL);
    let (conn, qp) = b.hand_over(0, 0, Role::Active);
    b.turn();
    assert!(b.toy.deliver(qp, &[1]));
    b.turn();
    b.answers();
    b.end(conn, qp);
    assert_eq!(b.seen(), []);
    assert_eq!(b.free(), 64);
}
