//! The framed handshake, and listeners that decide.

use super::*;
use crate::wire::{Hello, HelloError, Refusal};

fn hello() -> Hello {
    Hello::new(64, 60, 1024).expect("valid")
}

fn listen(b: &mut Bench, welcome: impl Into<Welcome>) -> IdKey {
    let at = Endpoint::Shm("here".into());
    b.control.listen(&at, welcome.into()).expect("free");
    b.toy.last_id()
}

fn connect(b: &mut Bench) -> (Handle, IdKey) {
    let peer = Endpoint::Shm("peer".into());
    let handle = b.control.connect(&peer, Offer::framed()).expect("an id");
    let id = b.toy.last_id();
    for kind in [CmEventKind::AddrResolved, CmEventKind::RouteResolved] {
        b.cm(id, kind);
    }
    b.settle();
    (handle, id)
}

fn said(b: &Bench, id: IdKey) -> Vec<u8> {
    b.toy
        .said(id)
        .expect("it said something")
        .as_slice()
        .to_vec()
}

#[test]
fn both_sides_tell_what_they_have_posted() {
    let mut b = Bench::new(1, 4);
    let listener = listen(&mut b, Offer::framed());
    let id = b.toy.request(listener, &hello().encode());
    let orders = b.orders();
    let [Order::Adopt(conn, Some(peer))] = orders[..] else {
        panic!("{orders:?}");
    };
    assert_eq!(peer.hello, Some(hello()));
    b.say(Answer::Armed(conn));
    let ours = Hello::parse(&said(&b, id)).expect("a hello");
    assert_eq!(
        (ours.posted(), ours.recv_depth(), ours.message_bytes_max()),
        (8, 8, 256)
    );

    let (_, id) = connect(&mut b);
    assert_eq!(Hello::parse(&said(&b, id)).map(|h| h.posted()), Ok(8));
    // InfiniBand pads with zeros.
    let mut padded = hello().encode().to_vec();
    padded.resize(56, 0);
    b.toy
        .event_with(id, CmEventKind::ConnectResponse, 0, &padded);
    let orders = b.orders();
    let [Order::Established(_, peer)] = orders[..] else {
        panic!("{orders:?}");
    };
    assert_eq!(peer.hello, Some(hello()));
    // Established comes without private data, and takes nothing away.
    b.cm(id, CmEventKind::Established);
    assert!(matches!(b.notices()[..], [Notice::Connected(..)]));
    b.finish();
}

#[test]
fn strangers_are_refused_with_the_reason() {
    let mut b = Bench::new(1, 4);
    let listener = listen(&mut b, Offer::framed());
    let mut newer = hello().encode();
    newer[4] += 1;
    let cases: [(&[u8], Refusal); 3] = [
        (b"", Refusal::NoHello),
        (b"GET / HTTP/1.1", Refusal::NotSpinwire(*b"GET ")),
        (
            &newer,
            Refusal::Version {
                refuser: 1,
                refused: 2,
            },
        ),
    ];
    for (data, refusal) in cases {
        let id = b.toy.request(listener, data);
        b.turn();
        assert_eq!(b.toy.calls(id), [Call::Reject, Call::DestroyId]);
        assert_eq!(Refusal::parse(&said(&b, id)), Some(refusal));
    }
    assert_eq!(b.finish(), []);
}

#[test]
fn a_full_or_stopping_side_says_so() {
    let mut b = Bench::new(1, 1);
    let listener = listen(&mut b, Offer::framed());
    let first = b.toy.request(listener, &hello().encode());
    let second = b.toy.request(listener, &hello().encode());
    b.turn();
    assert_eq!(Refusal::parse(&said(&b, second)), Some(Refusal::Full));
    b.control.shutdown();
    b.settle();
    assert_eq!(
        Refusal::parse(&said(&b, first)),
        Some(Refusal::ShuttingDown)
    );
    b.finish();
}

#[test]
fn a_peer_that_accepts_without_a_hello_is_left() {
    let mut b = Bench::new(1, 4);
    let (handle, id) = connect(&mut b);
    b.toy.event_with(id, CmEventKind::ConnectResponse, 0, b"ok");
    b.settle();
    assert_eq!(b.control.state(handle), None);
    assert!(!b.toy.calls(id).contains(&Call::Confirm));
    let notices = b.notices();
    let [Notice::Failed(_, ConnectError::Handshake { source, .. })] = &notices[..] else {
        panic!("{notices:?}");
    };
    assert_eq!(*source, HelloError::Stranger(*b"ok\0\0"));
    assert_eq!(b.finish(), [QpEnd::Destroyed]);
}

#[test]
fn a_refusal_is_printed_by_the_side_that_was_refused() {
    let mut b = Bench::new(1, 4);
    let (_, id) = connect(&mut b);
    let data = Refusal::Full.encode();
    b.toy.event_with(id, CmEventKind::Rejected, 28, &data);
    b.settle();
    let notices = b.notices();
    let [Notice::Failed(_, error)] = &notices[..] else {
        panic!("{notices:?}");
    };
    assert!(
        error.to_string().contains(&Refusal::Full.to_string()),
        "{error}"
    );
    b.finish();
}

#[test]
fn raw_mode_says_nothing_of_ours() {
    let mut b = Bench::new(1, 1);
    let listener = b.listen();
    let first = b.toy.request(listener, b"");
    let second = b.toy.request(listener, b"");
    b.settle();
    assert_eq!((said(&b, first), said(&b, second)), (vec![], vec![]));
    b.finish();
}

#[test]
fn a_listener_decides_about_each_request() {
    let mut b = Bench::new(1, 4);
    let welcome = Welcome::each(|request| {
        assert_eq!(
            (request.responder_resources, request.initiator_depth),
            (4, 2)
        );
        match request.private_data.as_slice() {
            b"friend" => Verdict::Accept(Offer {
                private_data: PrivateData::new(b"come in").expect("short"),
                initiator_depth: 1,
                responder_resources: 0,
                ..Offer::default()
            }),
            _ => Verdict::Reject(PrivateData::new(b"go away").expect("short")),
        }
    });
    let listener = listen(&mut b, welcome);
    let foe = b.toy.request(listener, b"foe");
    let friend = b.toy.request(listener, b"friend");
    b.turn();
    assert_eq!(said(&b, foe), b"go away");
    assert_eq!(b.toy.calls(foe), [Call::Reject, Call::DestroyId]);
    let orders = b.worker().orders();
    let [Order::Adopt(conn, Some(peer))] = orders[..] else {
        panic!("{orders:?}");
    };
    assert_eq!((peer.initiator_depth, peer.responder_resources), (1, 0));
    b.say(Answer::Armed(conn));
    assert_eq!(said(&b, friend), b"come in");
    b.finish();
}
