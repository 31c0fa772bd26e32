//! Connections come to be, or do not.

use super::*;
use crate::types::{GroupId, GroupShape, Membership};

fn peer(role: Role, data: &[u8], tag: u64, id: IdKey) -> Peer {
    let _ = id;
    Peer {
        role,
        address: None,
        private_data: PrivateData::received(data),
        initiator_depth: 2,
        responder_resources: 4,
        tag,
        membership: None,
        hello: None,
    }
}

#[test]
fn the_active_way_up() {
    let mut b = Bench::new(1, 4);
    let (handle, id) = b.connect();
    assert_eq!(b.control.state(handle), Some(State::Idle));
    b.cm(id, CmEventKind::AddrResolved);
    assert_eq!(b.control.state(handle), Some(State::AddressResolved));
    b.cm(id, CmEventKind::RouteResolved);
    assert_eq!(b.control.state(handle), Some(State::RouteResolved));
    let orders = b.orders();
    let [Order::Adopt(conn, None)] = orders[..] else {
        panic!("{orders:?}");
    };
    // Nothing goes to the peer before receives are posted.
    assert!(!b.toy.calls(id).contains(&Call::Connect));
    b.say(Answer::Armed(conn));
    assert_eq!(b.control.state(handle), Some(State::Connecting));
    b.toy.event_with(id, CmEventKind::ConnectResponse, 0, b"hi");
    let us = peer(Role::Active, b"hi", 42, id);
    assert_eq!(b.orders(), [Order::Established(conn, us)]);
    assert_eq!(b.control.state(handle), Some(State::Established));
    let notices = b.notices();
    assert!(matches!(notices[..], [Notice::Connected(h, c)] if (h, c) == (handle, conn)));
    let up = [
        Call::ResolveAddress,
        Call::ResolveRoute,
        Call::CreateQp,
        Call::Connect,
        Call::Confirm,
    ];
    assert_eq!(b.toy.calls(id), up);
    // An id that confirms by itself says Established afterwards: no second announcement.
    b.cm(id, CmEventKind::Established);
    assert_eq!(b.worker().orders(), []);
    assert!(b.notices().is_empty());
    assert_eq!(b.finish(), [QpEnd::Destroyed]);
}

#[test]
fn the_passive_way_up() {
    let mut b = Bench::new(1, 4);
    let listener = b.listen();
    let id = b.toy.request(listener, b"hello");
    let mut them = peer(Role::Passive, b"hello", 0, id);
    let orders = b.orders();
    let [Order::Adopt(conn, Some(early))] = orders[..] else {
        panic!("{orders:?}");
    };
    // The worker knows the peer at once, for data that overtakes Established.
    assert_eq!(early, them);
    assert_eq!(b.toy.calls(id), [Call::CreateQp]);
    b.say(Answer::Armed(conn));
    assert_eq!(b.toy.calls(id), [Call::CreateQp, Call::Accept]);
    assert!(b.notices().is_empty());
    b.toy.event(id, CmEventKind::Established, 0);
    them.tag = 0;
    assert_eq!(b.orders(), [Order::Established(conn, them)]);
    let notices = b.notices();
    assert!(matches!(notices[..], [Notice::Accepted(c)] if c == conn));
    assert_eq!(b.finish(), [QpEnd::Destroyed]);
}

#[test]
fn a_request_without_room_is_rejected() {
    let mut b = Bench::new(1, 1);
    let listener = b.listen();
    let first = b.toy.request(listener, b"");
    let second = b.toy.request(listener, b"");
    b.settle();
    assert_eq!(b.toy.calls(first), [Call::CreateQp, Call::Accept]);
    assert_eq!(b.toy.calls(second), [Call::Reject, Call::DestroyId]);
    assert!(b.notices().is_empty(), "nobody waits for it");
    assert_eq!(b.finish(), [QpEnd::Destroyed]);
}

#[test]
fn a_request_that_the_worker_refuses_is_rejected() {
    let mut b = Bench::new(1, 1);
    let listener = b.listen();
    for _ in 0..2 {
        // The second time round the place is free again.
        let id = b.toy.request(listener, b"");
        let orders = b.orders();
        let [Order::Adopt(conn, _)] = orders[..] else {
            panic!("{orders:?}");
        };
        b.say(Answer::Refused(conn));
        let calls = [
            Call::CreateQp,
            Call::DestroyQp,
            Call::Reject,
            Call::DestroyId,
        ];
        assert_eq!(b.toy.calls(id), calls);
    }
    assert_eq!(b.finish(), [QpEnd::Destroyed; 2]);
}

#[test]
fn a_request_on_a_device_without_a_worker_or_none_is_rejected() {
    let mut b = Bench::new(1, 1);
    let listener = b.listen();
    for device in [Some("toy9"), None] {
        let id = b.toy.request(listener, b"");
        b.toy.bind(id, device);
        b.turn();
        assert_eq!(b.toy.calls(id), [Call::Reject, Call::DestroyId]);
    }
    assert_eq!(b.finish(), []);
}

#[test]
fn a_call_that_fails_ends_the_attempt_with_its_error() {
    for call in [
        Call::ResolveRoute,
        Call::CreateQp,
        Call::Connect,
        Call::Confirm,
    ] {
        let mut b = Bench::new(1, 1);
        let (handle, id) = b.connect();
        b.toy.refuse(call, libc::ENOMEM);
        for kind in [
            CmEventKind::AddrResolved,
            CmEventKind::RouteResolved,
            CmEventKind::ConnectResponse,
        ] {
            b.cm(id, kind);
            b.settle();
        }
        b.wait(TIMING.drain);
        b.settle();
        assert_eq!(b.control.state(handle), None, "{call:?}");
        let notices = b.notices();
        let [Notice::Failed(failed, ConnectError::Fabric(error))] = &notices[..] else {
            panic!("{call:?}: {notices:?}");
        };
        assert_eq!(*failed, handle);
        assert_eq!(error.source.raw_os_error(), Some(libc::ENOMEM));
        // The only place is free again.
        b.up();
        b.finish();
    }
}

#[test]
fn an_address_that_cannot_be_resolved_fails_at_once() {
    let mut b = Bench::new(1, 1);
    b.toy.refuse(Call::ResolveAddress, libc::ENODEV);
    let to = Endpoint::Shm("peer".into());
    assert!(b.control.connect(&to, Offer::default()).is_err());
    assert_eq!(b.control.connections(), 0);
    assert_eq!(b.finish(), []);
}

#[test]
fn what_the_peer_says_becomes_the_error() {
    use CmEventKind as Kind;
    for (state, kind, status) in [
        (State::Idle, Kind::AddrError, -libc::ENETUNREACH),
        (State::AddressResolved, Kind::RouteError, -libc::ETIMEDOUT),
        (State::Connecting, Kind::Rejected, 28),
        (State::Connecting, Kind::Unreachable, -libc::ETIMEDOUT),
    ] {
        let mut b = Bench::new(1, 1);
        let (_, id) = b.active_at(state);
        b.toy.event_with(id, kind, status, b"why");
        b.settle();
        let notices = b.notices();
        let [Notice::Failed(_, error)] = &notices[..] else {
            panic!("{kind:?}: {notices:?}");
        };
        match (kind, error) {
            (Kind::AddrError | Kind::RouteError, ConnectError::NoRoute { .. })
            | (Kind::Unreachable, ConnectError::Unreachable { .. }) => {}
            (
                _,
                ConnectError::Rejected {
                    reason,
                    private_data,
                    ..
                },
            ) => {
                assert_eq!((*reason, private_data.as_slice()), (28, &b"why"[..]));
            }
            _ => panic!("{kind:?}: {error}"),
        }
        b.finish();
    }
}

#[test]
fn every_step_has_its_time() {
    for (state, time) in [
        (State::Idle, TIMING.resolve + Duration::from_secs(1)),
        (
            State::AddressResolved,
            TIMING.resolve + Duration::from_secs(1),
        ),
        (State::RouteResolved, TIMING.connect),
        (State::Connecting, TIMING.connect),
    ] {
        let mut b = Bench::new(1, 1);
        b.turn();
        let (handle, _) = b.active_at(state);
        b.turn();
        b.wait(time - MS);
        assert_eq!(b.control.state(handle), Some(state));
        b.wait(MS);
        assert_ne!(b.control.state(handle), Some(state));
        b.settle();
        let notices = b.notices();
        let [Notice::Failed(_, ConnectError::TimedOut { step, after, .. })] = &notices[..] else {
            panic!("{state:?}: {notices:?}");
        };
        assert_eq!((*step, *after), (state, time));
        b.finish();
    }
}

/// Control may have slept for hours when its caller asks for a connection.
#[test]
fn the_time_of_an_attempt_begins_with_the_attempt() {
    let mut b = Bench::new(1, 1);
    b.turn();
    b.now = b.now + Duration::from_secs(3600);
    let (handle, id) = b.connect();
    b.turn();
    assert_eq!(b.control.state(handle), Some(State::Idle));
    assert!(b.control.wait_hint(b.now).is_some());
    b.wait(TIMING.resolve);
    b.cm(id, CmEventKind::AddrResolved);
    assert_eq!(b.control.state(handle), Some(State::AddressResolved));
    b.finish();
}

#[test]
fn the_worker_with_most_room_is_taken() {
    let mut b = Bench::new(2, 2);
    let workers: Vec<u16> = (0..4).map(|_| b.up().2.worker).collect();
    assert_eq!(workers, [0, 1, 0, 1]);
    let (handle, id) = b.connect();
    b.cm(id, CmEventKind::AddrResolved);
    b.cm(id, CmEventKind::RouteResolved);
    assert_eq!(b.control.state(handle), None);
    let notices = b.notices();
    assert!(
        matches!(&notices[..], [Notice::Failed(h, _)] if *h == handle),
        "{notices:?}"
    );
    assert_eq!(b.finish(), [QpEnd::Destroyed; 4]);
}

#[test]
fn a_worker_that_is_asked_for_gets_the_connection_and_its_membership() {
    let mut b = Bench::new(3, 2);
    let to = Endpoint::Shm("peer".into());
    let shape = GroupShape::new(4, 1, 2).expect("a shape");
    let ask = |number, worker| {
        let group = GroupId(5);
        Offer {
            worker: Some(worker),
            membership: Some(Membership {
                group,
                number,
                shape,
            }),
            ..Offer::default()
        }
    };
    for number in 0..4 {
        let worker = shape.worker_of(number);
        let offer = ask(number, worker);
        b.control.connect(&to, offer).expect("an id");
        let id = b.toy.last_id();
        b.cm(id, CmEventKind::AddrResolved);
        b.cm(id, CmEventKind::RouteResolved);
        let there = b.workers[usize::from(worker)].as_mut().expect("alive");
        let orders = there.orders();
        let [Order::Adopt(conn, None)] = orders[..] else {
            panic!("{orders:?}");
        };
        assert_eq!(conn.worker, worker);
        there.say(Answer::Armed(conn));
        b.turn();
        b.cm(id, CmEventKind::ConnectResponse);
        let there = b.workers[usize::from(worker)].as_mut().expect("alive");
        let mut us = peer(Role::Active, b"", 0, id);
        us.membership = offer.membership;
        assert_eq!(there.orders(), [Order::Established(conn, us)]);
    }
    b.notices();
    // Full, or not there: another worker with room is no answer.
    for worker in [1, 3] {
        let handle = b.control.connect(&to, ask(0, worker)).expect("an id");
        let id = b.toy.last_id();
        b.cm(id, CmEventKind::AddrResolved);
        b.cm(id, CmEventKind::RouteResolved);
        let notices = b.notices();
        let [Notice::Failed(failed, error)] = &notices[..] else {
            panic!("{notices:?}");
        };
        assert_eq!(*failed, handle);
        let text = error.to_string();
        assert!(
            text.contains(&format!("Worker {worker}")) && text.contains("of 3"),
            "{text}"
        );
    }
    assert_eq!(b.finish(), [QpEnd::Destroyed; 4]);
}
