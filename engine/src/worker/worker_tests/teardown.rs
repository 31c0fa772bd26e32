//! Ends: close and its deadline, stop, flush, release, and the next life of the place.

use super::*;
use crate::fabric::WcStatus;
use crate::fabric::toy::QpEnd;

const LOCAL: CloseReason = CloseReason::Local;

#[test]
fn close_waits_for_the_sends_then_asks() {
    let mut b = Bench::new(SMALL);
    let (conn, qp) = b.up(0);
    b.send(conn, 0..2);
    b.order(Order::Close(conn));
    assert_eq!(b.turn_answers(), []);
    assert_eq!(b.toy.outstanding(qp).0, 2, "what was queued is posted");
    b.now = b.now + CLOSE_DEADLINE / 2;
    assert_eq!(b.turn_answers(), []);
    // Messages are served meanwhile, and their receives reposted.
    assert!(b.toy.deliver(qp, &[5]));
    assert_eq!(b.turn_seen(), [message(conn, 5)]);
    b.toy.execute(qp, 2);
    assert_eq!(b.turn_answers(), [Answer::CloseRequested(conn, LOCAL)]);
    assert_eq!(b.turn_answers(), []);
    b.seen();
    b.end(conn, qp);
    // The first reason stands, not that of Stop.
    assert_eq!(b.seen(), [Seen::Disconnected(conn, LOCAL)]);
}

#[test]
fn close_without_sends_asks_at_once_and_once() {
    let mut b = Bench::new(SMALL);
    let (conn, qp) = b.up(0);
    b.order(Order::Close(conn));
    b.order(Order::Close(conn));
    assert_eq!(b.turn_answers(), [Answer::CloseRequested(conn, LOCAL)]);
    b.order(Order::Close(conn));
    assert_eq!(b.turn_answers(), []);
    b.end(conn, qp);
}

#[test]
fn close_gives_up_waiting_at_its_deadline() {
    let mut b = Bench::new(SMALL);
    let (conn, qp) = b.up(0);
    b.send(conn, 0..1);
    b.order(Order::Close(conn));
    b.turn();
    b.now = b.now + (CLOSE_DEADLINE - Duration::from_nanos(1));
    assert_eq!(b.turn_answers(), []);
    b.now = b.now + Duration::from_nanos(1);
    assert_eq!(b.turn_answers(), [Answer::CloseRequested(conn, LOCAL)]);
    // What completes later still counts.
    b.toy.execute(qp, 1);
    assert_eq!(b.turn_seen(), [Seen::Completed(conn, 0, Outcome::Done)]);
    assert_eq!(b.answers(), []);
    b.end(conn, qp);
    assert_eq!(b.free(), 64);
}

#[test]
fn flush_waits_for_the_last_completion() {
    let mut b = Bench::new(SMALL);
    let (conn, qp) = b.up(0);
    b.send(conn, 0..3);
    b.turn();
    b.tell(Command::Stop(conn, CloseReason::Shutdown));
    b.tell(Command::Flush(conn, DRAIN));
    assert_eq!(b.turn_answers(), [Answer::Stopped(conn)]);
    // A message that was under way, and a send that did get through.
    assert!(b.toy.deliver(qp, &[1]));
    b.toy.execute(qp, 3);
    b.toy.flush(qp);
    assert_eq!(b.turn_answers(), [Answer::Drained(conn, 0)]);
    let done = [0, 1, 2].map(|t| Seen::Completed(conn, t, Outcome::Done));
    let seen = b.seen();
    assert_eq!((&seen[0], &seen[1..]), (&message(conn, 1), &done[..]));
    assert_eq!(b.toy.outstanding(qp), (0, 0), "nothing is reposted");
    b.release(conn);
    assert_eq!(b.seen(), [Seen::Disconnected(conn, CloseReason::Shutdown)]);
    assert_eq!(b.free(), 64);
}

#[test]
fn flush_of_an_idle_connection_with_no_receives_drains_at_once() {
    let mut b = Bench::new(SMALL);
    let (conn, qp) = b.up(0);
    b.toy.flush(qp);
    b.turn();
    assert_eq!(
        b.answers(),
        [Answer::CloseRequested(conn, CloseReason::Peer)]
    );
    b.tell(Command::Stop(conn, CloseReason::Peer));
    b.tell(Command::Flush(conn, DRAIN));
    assert_eq!(
        b.turn_answers(),
        [Answer::Stopped(conn), Answer::Drained(conn, 0)]
    );
    b.release(conn);
}

#[test]
fn flush_ends_at_its_deadline_with_what_is_missing() {
    let mut b = Bench::new(SMALL);
    let (conn, qp) = b.up(0);
    b.send(conn, 0..2);
    b.turn();
    b.tell(Command::Stop(conn, CloseReason::Peer));
    b.tell(Command::Flush(conn, DRAIN));
    assert_eq!(b.turn_answers(), [Answer::Stopped(conn)]);
    b.now = b.now + (DRAIN - Duration::from_nanos(1));
    assert_eq!(b.turn_answers(), []);
    b.now = b.now + Duration::from_nanos(1);
    assert_eq!(b.turn_answers(), [Answer::Drained(conn, 2 + 8)]);
    // The slots stay away from everyone until the QP is destroyed.
    assert_eq!(b.free(), 64 - 10);
    assert_eq!(b.seen(), []);
    // One more comes in before that, and is the service's.
    b.toy.execute(qp, 2);
    b.turn();
    assert_eq!(b.answers(), []);
    b.release(conn);
    let done = |t| Seen::Completed(conn, t, Outcome::Done);
    let last = Seen::Disconnected(conn, CloseReason::Peer);
    assert_eq!(b.seen(), [done(0), done(1), last]);
    assert_eq!(b.free(), 64);
}

#[test]
fn what_never_completed_is_unknown_and_disconnected_comes_last() {
    let mut b = Bench::new(SMALL);
    let (conn, qp) = b.up(0);
    b.send(conn, 0..2);
    b.turn();
    b.tell(Command::Stop(conn, CloseReason::DeviceRemoved));
    b.tell(Command::Flush(conn, Duration::ZERO));
    assert_eq!(
        b.turn_answers(),
        [Answer::Stopped(conn), Answer::Drained(conn, 10)]
    );
    let _ = qp;
    b.release(conn);
    let lost = Outcome::Unknown(WcStatus::Flushed);
    let lost = |t| Seen::Completed(conn, t, lost);
    let last = Seen::Disconnected(conn, CloseReason::DeviceRemoved);
    assert_eq!(b.seen(), [lost(0), lost(1), last]);
    assert_eq!(b.free(), 64);
    // Nothing names it afterwards.
    b.send(conn, 5..6);
    b.order(Order::Close(conn));
    b.establish(conn);
    b.tell(Command::Stop(conn, CloseReason::Peer));
    assert_eq!(b.turn_answers(), []);
    assert_eq!(b.seen(), []);
    assert_eq!(b.worker.service().rejected, [(5, PostError::NotConnected)]);
}

#[test]
fn late_completions_of_an_old_life_change_nothing() {
    let mut b = Bench::new(SMALL);
    let (old, old_qp) = b.up(0);
    b.send(old, 0..1);
    b.turn();
    let send = b.toy.send_chains(old_qp)[0][0].wr_id;
    let recvs = b.toy.recv_words(old_qp);
    b.tell(Command::Stop(old, CloseReason::Peer));
    b.tell(Command::Flush(old, Duration::ZERO));
    b.turn();
    b.answers();
    b.release(old);
    b.seen();
    let (new, qp) = b.up(0);
    assert_eq!(new.index, old.index);
    b.send(new, 7..8);
    b.turn();
    for word in recvs.into_iter().chain([send]) {
        b.toy.complete(old_qp, word, WcStatus::Success, 3);
        b.toy.complete(old_qp, word, WcStatus::Flushed, 0);
    }
    b.turn();
    assert_eq!((b.answers(), b.seen()), (vec![], vec![]));
    assert_eq!(b.free(), 64 - 9);
    b.toy.execute(qp, 1);
    assert!(b.toy.deliver(qp, &[4]));
    let done = Seen::Completed(new, 7, Outcome::Done);
    assert_eq!(b.turn_seen(), [done, message(new, 4)]);
    b.end(new, qp);
    assert_eq!(b.free(), 64);
}

#[test]
fn others_are_served_while_one_drains() {
    let mut b = Bench::new(SMALL);
    let (dying, _) = b.up(0);
    let (living, qp) = b.up(1);
    b.tell(Command::Stop(dying, CloseReason::Peer));
    b.tell(Command::Flush(dying, DRAIN));
    b.turn();
    for byte in 0..20 {
        assert!(b.toy.deliver(qp, &[byte]));
        b.send(living, byte..byte + 1);
        assert_eq!(b.turn_seen(), [message(living, byte)]);
        b.toy.execute(qp, 1);
        let done = Seen::Completed(living, byte.into(), Outcome::Done);
        assert_eq!(b.turn_seen(), [done]);
    }
    assert_eq!(b.answers(), [Answer::Stopped(dying)]);
}

#[test]
fn a_lane_is_dropped_when_its_device_goes_away() {
    let mut b = Bench::new(SMALL);
    let (conn, qp) = b.up(0);
    b.end(conn, qp);
    let Bench {
        toy,
        mut worker,
        mut control,
        now,
        ..
    } = b;
    assert!(control.commands.push(Command::DropLane(0)).is_ok());
    worker.turn(now);
    assert!(matches!(control.events.pop(), Ok(Event::LaneDropped(0))));
    assert!(worker.lanes[0].lane.is_none() && worker.lanes[0].registration.is_none());
    // Turns go on, and the pool is whole.
    worker.turn(now);
    assert_eq!(worker.core.pool.free(), SMALL.slots);
    assert_eq!(toy.qp_ends(), [QpEnd::Destroyed]);
}
