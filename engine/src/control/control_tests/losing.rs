//! A worker's thread dies: its half of the mailbox and its halves of QPs are gone.

use super::*;

#[test]
fn its_connections_end_in_every_phase() {
    for state in [State::RouteResolved, State::Connecting, State::Established] {
        let mut b = Bench::new(2, 4);
        let (handle, id) = b.active_at(state);
        b.notices();
        b.workers[0] = None;
        b.turn();
        assert_eq!(b.control.state(handle), None, "{state}");
        let calls = b.toy.calls(id);
        assert_eq!(calls.last(), Some(&Call::DestroyId));
        assert_eq!(
            calls.contains(&Call::Disconnect),
            state != State::RouteResolved
        );
        assert!(!calls.contains(&Call::DestroyQp), "there are no two halves");
        let notices = b.notices();
        match &notices[..] {
            [Notice::Closed(_, CloseReason::Shutdown)] if state == State::Established => {}
            [Notice::Failed(h, ConnectError::Ended { .. })] => assert_eq!(*h, handle),
            _ => panic!("{state}: {notices:?}"),
        }
        // The other worker takes the next.
        assert_eq!(b.up().2.worker, 1);
        assert_eq!(b.finish(), [QpEnd::Orphaned, QpEnd::Destroyed]);
    }
}

#[test]
fn its_connections_end_in_every_step_of_an_end() {
    for steps in 0..4 {
        let mut b = Bench::new(1, 1);
        let (handle, id, conn) = b.up();
        b.control.close(conn);
        b.turn();
        for _ in 0..steps {
            assert!(b.worker().obey_one());
            b.turn();
        }
        b.workers[0] = None;
        b.turn();
        b.wait(TIMING.drain);
        assert_eq!(b.control.state(handle), None, "after {steps} steps");
        let notices = b.notices();
        assert!(matches!(
            notices[..],
            [Notice::Closed(_, CloseReason::Local)]
        ));
        let destroyed = b.toy.calls(id).contains(&Call::DestroyQp);
        assert_eq!(destroyed, steps >= 2);
        let end = if destroyed {
            QpEnd::Destroyed
        } else {
            QpEnd::Orphaned
        };
        assert_eq!(b.finish(), [end]);
    }
}

/// Its last words are read before its death is noticed.
#[test]
fn what_it_said_last_counts() {
    let mut b = Bench::new(1, 1);
    let (_, id, conn) = b.up();
    b.control.close(conn);
    b.turn();
    assert!(b.worker().obey_one());
    b.turn();
    assert!(b.worker().obey_one(), "Drained");
    b.workers[0] = None;
    b.turn();
    assert!(b.toy.calls(id).contains(&Call::DestroyQp));
    assert_eq!(b.finish(), [QpEnd::Destroyed]);
}

#[test]
fn without_workers_nothing_connects_and_control_still_ends() {
    let mut b = Bench::new(1, 4);
    let listener = b.listen();
    b.workers[0] = None;
    b.turn();
    let request = b.toy.request(listener, b"");
    b.turn();
    assert_eq!(b.toy.calls(request), [Call::Reject, Call::DestroyId]);
    let (handle, id) = b.connect();
    b.cm(id, CmEventKind::AddrResolved);
    b.cm(id, CmEventKind::RouteResolved);
    assert_eq!(b.control.state(handle), None);
    assert_eq!(b.finish(), []);
}
