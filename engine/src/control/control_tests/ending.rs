//! Connections end: closed here, by the peer, by an error, by the engine's own end.

use super::*;
use crate::fabric::{AsyncEvent, AsyncSubject};
use crate::types::QpNum;

#[test]
fn close_takes_every_step_in_order() {
    let mut b = Bench::new(1, 1);
    let (handle, id, conn) = b.up();
    b.control.close(conn);
    assert_eq!(b.orders(), [Order::Stop(conn, CloseReason::Local)]);
    assert!(
        !b.toy.calls(id).contains(&Call::Disconnect),
        "the worker still posts"
    );
    b.say(Answer::Stopped(conn));
    assert!(
        b.toy
            .calls(id)
            .ends_with(&[Call::Disconnect, Call::SetError])
    );
    assert_eq!(b.worker().orders(), [Order::Flush(conn)]);
    assert_eq!(b.toy.qp_ends(), [QpEnd::Alive]);
    b.say(Answer::Drained(conn));
    assert_eq!(b.toy.qp_ends(), [QpEnd::Destroyed]);
    assert_eq!(b.worker().orders(), [Order::QpGone(conn)]);
    b.say(Answer::Released(conn));
    // DISCONNECTED is owed, and the id lives until then.
    assert_eq!(
        b.control.state(handle),
        Some(State::Draining(Drain::Parting))
    );
    assert_eq!(b.toy.calls(id).last(), Some(&Call::DestroyQp));
    assert!(b.notices().is_empty());
    b.cm(id, CmEventKind::Disconnected);
    assert_eq!(b.control.state(handle), None);
    let notices = b.notices();
    assert!(matches!(notices[..], [Notice::Closed(c, CloseReason::Local)] if c == conn));
    // Nothing names it any more.
    b.control.close(conn);
    b.cm(id, CmEventKind::TimewaitExit);
    assert_eq!(b.worker().orders(), []);
    assert_eq!(b.finish(), [QpEnd::Destroyed]);
}

#[test]
fn a_peer_that_never_answers_a_disconnect_is_waited_for_so_long() {
    let mut b = Bench::new(1, 1);
    let (handle, _, conn) = b.up();
    b.control.close(conn);
    b.settle();
    assert_eq!(
        b.control.state(handle),
        Some(State::Draining(Drain::Parting))
    );
    b.wait(TIMING.drain - MS);
    assert!(b.control.state(handle).is_some());
    b.wait(MS);
    assert_eq!(b.control.state(handle), None);
    b.finish();
}

#[test]
fn a_late_worker_is_waited_for() {
    let mut b = Bench::new(1, 1);
    let (handle, _, conn) = b.up();
    b.control.close(conn);
    for _ in 0..10 {
        b.wait(TIMING.drain * 3);
    }
    assert_eq!(
        b.control.state(handle),
        Some(State::Draining(Drain::Stopping))
    );
    assert_eq!(b.toy.qp_ends(), [QpEnd::Alive]);
    b.finish();
}

#[test]
fn the_peer_may_leave_in_every_phase() {
    for state in [
        State::Idle,
        State::AddressResolved,
        State::RouteResolved,
        State::Connecting,
        State::Established,
    ] {
        let mut b = Bench::new(1, 1);
        let (handle, id) = b.active_at(state);
        b.notices();
        b.cm(id, CmEventKind::Disconnected);
        b.settle();
        assert_eq!(b.control.state(handle), None, "{state}");
        let notices = b.notices();
        match &notices[..] {
            [Notice::Closed(_, CloseReason::Peer)] if state == State::Established => {}
            [
                Notice::Failed(
                    h,
                    ConnectError::Ended {
                        reason: CloseReason::Peer,
                        ..
                    },
                ),
            ] => {
                assert_eq!(*h, handle);
            }
            _ => panic!("{state}: {notices:?}"),
        }
        b.up();
        b.finish();
    }
}

#[test]
fn the_peer_may_leave_in_every_step_of_an_end() {
    for steps in 0..4 {
        let mut b = Bench::new(1, 1);
        let (handle, id, conn) = b.up();
        b.control.close(conn);
        b.turn();
        for _ in 0..steps {
            assert!(b.worker().obey_one());
            b.turn();
        }
        b.cm(id, CmEventKind::Disconnected);
        b.settle();
        assert_eq!(b.control.state(handle), None, "after {steps} steps");
        let notices = b.notices();
        assert!(matches!(
            notices[..],
            [Notice::Closed(_, CloseReason::Local)]
        ));
        assert_eq!(b.finish(), [QpEnd::Destroyed]);
    }
}

#[test]
fn a_worker_can_ask_and_its_reason_is_told() {
    let mut b = Bench::new(1, 1);
    let (_, id, conn) = b.up();
    let reason = CloseReason::PostRefused(12);
    b.say(Answer::CloseRequested(conn, reason));
    assert_eq!(b.worker().orders(), [Order::Stop(conn, reason)]);
    // Asking twice, or late, changes nothing.
    b.say(Answer::CloseRequested(conn, CloseReason::Peer));
    assert_eq!(b.worker().orders(), []);
    b.say(Answer::Stopped(conn));
    b.settle();
    b.cm(id, CmEventKind::Disconnected);
    let notices = b.notices();
    assert!(matches!(notices[..], [Notice::Closed(c, r)] if (c, r) == (conn, reason)));
    b.finish();
}

#[test]
fn a_place_is_used_again_under_another_name() {
    let mut b = Bench::new(1, 1);
    let mut names = Vec::new();
    for _ in 0..3 {
        let (_, id, conn) = b.up();
        assert_eq!(conn.index, 0);
        assert!(!names.contains(&conn));
        names.push(conn);
        b.cm(id, CmEventKind::Disconnected);
        b.settle();
        b.notices();
        // Late words about the old name find nobody.
        b.say(Answer::Stopped(conn));
        b.say(Answer::CloseRequested(conn, CloseReason::Peer));
        b.say(Answer::Released(conn));
    }
    assert_eq!(b.finish(), [QpEnd::Destroyed; 3]);
}

fn fatal(subject: AsyncSubject) -> AsyncEvent {
    AsyncEvent {
        device: DEVICE.into(),
        subject,
        name: "toy event".into(),
        comm_est: false,
        fatal: true,
        removed: false,
    }
}

#[test]
fn a_fatal_event_of_a_qp_closes_its_connection_only() {
    let mut b = Bench::new(1, 3);
    let ups = [b.up(), b.up(), b.up()];
    let elsewhere = AsyncEvent {
        device: "toy9".into(),
        ..fatal(AsyncSubject::Qp(QpNum(1)))
    };
    b.toy.async_event(elsewhere);
    b.toy.async_event(fatal(AsyncSubject::Port(1)));
    b.turn();
    assert_eq!(b.worker().orders(), []);
    b.toy.async_event(fatal(AsyncSubject::Qp(QpNum(1))));
    let stop = Order::Stop(ups[1].2, CloseReason::DeviceError);
    assert_eq!(b.orders(), [stop]);
    b.say(Answer::Stopped(ups[1].2));
    b.settle();
    assert_eq!(b.control.state(ups[0].0), Some(State::Established));
    assert_eq!(b.control.state(ups[2].0), Some(State::Established));
    // The device as a whole takes the rest.
    b.toy.async_event(fatal(AsyncSubject::Device));
    b.settle();
    b.wait(TIMING.drain);
    let closed = |n: &&Notice| matches!(n, Notice::Closed(_, CloseReason::DeviceError));
    assert_eq!(b.notices().iter().filter(closed).count(), 3);
    assert_eq!(b.control.connections(), 0);
    b.finish();
}

#[test]
fn data_before_established_is_told_to_the_connection_manager() {
    let mut b = Bench::new(1, 1);
    let listener = b.listen();
    let id = b.toy.request(listener, b"");
    b.settle();
    b.toy.async_event(AsyncEvent {
        comm_est: true,
        fatal: false,
        ..fatal(AsyncSubject::Qp(b.toy.last_qp()))
    });
    b.turn();
    assert_eq!(b.toy.calls(id).last(), Some(&Call::Notify));
    b.finish();
}

#[test]
fn a_removed_device_takes_listeners_and_connections() {
    let mut b = Bench::new(1, 1);
    let listener = b.listen();
    let (handle, id, _) = b.up();
    b.cm(listener, CmEventKind::DeviceRemoval);
    assert_eq!(b.toy.calls(listener), [Call::Listen, Call::DestroyId]);
    b.cm(id, CmEventKind::DeviceRemoval);
    b.settle();
    assert_eq!(b.control.state(handle), None);
    let notices = b.notices();
    assert!(matches!(
        notices[..],
        [Notice::Closed(_, CloseReason::DeviceRemoved)]
    ));
    assert_eq!(b.toy.forgotten(), [DEVICE]);
    // Nothing connects there any more.
    let (handle, id) = b.connect();
    b.cm(id, CmEventKind::AddrResolved);
    b.cm(id, CmEventKind::RouteResolved);
    assert_eq!(b.control.state(handle), None);
    b.finish();
}

#[test]
fn a_removal_that_no_id_heard_of_is_taken_up_all_the_same() {
    let mut b = Bench::new(1, 1);
    let listener = b.listen();
    let (handle, ..) = b.up();
    let removed = AsyncEvent {
        removed: true,
        ..fatal(AsyncSubject::Device)
    };
    b.toy.async_event(removed.clone());
    b.settle();
    assert_eq!(b.toy.calls(listener), [Call::Listen, Call::DestroyId]);
    // The peer's answer to the disconnect never comes.
    b.wait(TIMING.drain);
    b.settle();
    assert_eq!(b.control.state(handle), None);
    let reason = CloseReason::DeviceRemoved;
    assert!(matches!(b.notices()[..], [Notice::Closed(_, r)] if r == reason));
    assert_eq!(b.toy.forgotten(), [DEVICE]);
    b.finish();

    // Nothing is on it at all.
    let mut b = Bench::new(1, 1);
    b.toy.async_event(removed);
    b.settle();
    assert_eq!(b.toy.forgotten(), [DEVICE]);
    b.finish();
}

#[test]
fn a_removed_device_is_let_go_only_when_every_lane_is_dropped() {
    let mut b = Bench::new(2, 1);
    let (_, id, conn) = b.up();
    b.cm(id, CmEventKind::DeviceRemoval);
    let orders = b.worker().orders();
    assert_eq!(orders, [Order::Stop(conn, CloseReason::DeviceRemoved)]);
    assert_eq!(b.toy.forgotten(), [""; 0], "a connection is left");
    // The second worker has nothing on it, and is told when the first one's connection has ended.
    assert_eq!(b.workers[1].as_mut().expect("alive").orders(), []);
    b.say(Answer::Stopped(conn));
    assert_eq!(b.worker().orders(), [Order::Flush(conn)]);
    b.say(Answer::Drained(conn));
    assert_eq!(b.worker().orders(), [Order::QpGone(conn)]);
    b.say(Answer::Released(conn));
    assert_eq!(b.worker().orders(), [Order::DropLane(0)]);
    let idle = b.workers[1].as_mut().expect("alive");
    assert_eq!(idle.orders(), [Order::DropLane(0)]);
    b.say(Answer::LaneDropped(0));
    assert_eq!(b.toy.forgotten(), [""; 0], "a lane is left");
    // One that is lost takes its lane with it.
    b.workers[1] = None;
    b.turn();
    b.turn();
    assert_eq!(b.toy.forgotten(), [DEVICE]);
    b.finish();
}

#[test]
fn shutdown_ends_everything_then_the_workers() {
    let mut b = Bench::new(2, 4);
    let listener = b.listen();
    let (_, _, conn) = b.up();
    let (_, resolving) = b.active_at(State::AddressResolved);
    let request = b.toy.request(listener, b"");
    b.settle();
    // One more request is under way when the listener goes.
    let late = b.toy.request(listener, b"");
    b.control.shutdown();
    assert!(!b.control.is_done());
    assert_eq!(b.toy.calls(listener), [Call::Listen, Call::DestroyId]);
    assert_eq!(b.orders(), [Order::Stop(conn, CloseReason::Shutdown)]);
    assert_eq!(b.toy.calls(late), [Call::Reject, Call::DestroyId]);
    assert_eq!(b.toy.calls(resolving).last(), Some(&Call::DestroyId));
    assert!(b.toy.calls(request).contains(&Call::Accept));
    let to = Endpoint::Shm("peer".into());
    let refused = b.control.connect(&to, Offer::default());
    assert!(matches!(refused, Err(ConnectError::Stopped)));
    b.say(Answer::Stopped(conn));
    b.settle();
    b.wait(TIMING.drain);
    b.settle();
    assert!(b.control.is_done());
    assert!(b.workers.iter().all(Option::is_none), "Exit came last");
    assert_eq!(b.finish_anyhow(), [QpEnd::Destroyed; 2]);
}
