//! Hostile peers, closes, and what is left when a connection ends.

use super::*;
use crate::flow::Lie;
use crate::wire::{Header, HeaderError, OfferError};

fn frame(kind: Kind, posted: u32, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; HEADER_BYTES];
    let header = Header {
        kind,
        posted,
        request_id: 0,
    };
    header.encode(&mut head);
    [&head, payload].concat()
}

fn with(mut frame: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    frame[at] = byte;
    frame
}

#[test]
fn what_is_not_framed_ends_the_connection() {
    let good = || frame(Kind::Message, 8, b"");
    let (must, seen) = (32, 31);
    let cases = [
        (vec![], HeaderError::Short(0).into()),
        (vec![0; 15], HeaderError::Short(15).into()),
        (with(good(), 0, 8), HeaderError::Kind(8).into()),
        (with(good(), 1, 1), HeaderError::Flags(1).into()),
        (with(good(), 2, 1), HeaderError::Reserved(1).into()),
        (
            frame(Kind::Credits, 8, b"x"),
            Violation::Header(HeaderError::Payload {
                kind: Kind::Credits,
                must: 0,
                seen: 1,
            }),
        ),
        (
            frame(Kind::Offer, 8, &[0; 31]),
            Violation::Header(HeaderError::Payload {
                kind: Kind::Offer,
                must,
                seen,
            }),
        ),
        (frame(Kind::Offer, 8, &[0; 32]), OfferError::NoRight.into()),
        (
            frame(Kind::Withdraw, 8, &[0; 9]),
            Violation::Header(HeaderError::Payload {
                kind: Kind::Withdraw,
                must: 8,
                seen: 9,
            }),
        ),
        (
            frame(Kind::Message, 7, b""),
            Lie::Backwards { before: 8, now: 7 }.into(),
        ),
        (
            frame(Kind::Credits, 10, b""),
            Lie::TooMany {
                unused: 9,
                depth: 8,
            }
            .into(),
        ),
    ];
    for (bytes, violation) in cases {
        let mut p = Pair::new(SMALL, SMALL);
        assert!(p.toy.deliver(p.a.qp, &bytes));
        // What comes behind it is not heard.
        assert!(p.toy.deliver(p.a.qp, &frame(Kind::Message, 8, b"behind")));
        assert!(p.toy.deliver(p.a.qp, &bytes));
        p.a.turn();
        p.a.turn();
        assert_eq!(
            p.a.asked,
            Some(CloseReason::Protocol(violation)),
            "{bytes:?}"
        );
        p.a.order(Order::Message(1, vec![]));
        assert_eq!(p.a.refused(), [(1, SendError::NotConnected)]);
        assert_eq!(p.a.seen(), []);
        let reason = CloseReason::Protocol(violation);
        p.end();
        assert_eq!(p.a.seen(), [Seen::Disconnected(reason)]);
        let text = reason.to_string();
        assert!(text.contains(&violation.to_string()), "{text}");
    }
}

#[test]
fn what_the_service_does_not_take_ends_the_connection() {
    struct Deaf;
    impl Service for Deaf {}
    let mut p = Pair::new(SMALL, SMALL);
    p.b.probe().deaf = true;
    p.a.order(Order::Message(1, b"hello?".into()));
    p.settle();
    let reason = CloseReason::Protocol(Violation::Unserved(Kind::Message));
    assert_eq!(p.b.asked, Some(reason));
    assert!(reason.to_string().contains("Message"));
    p.end();
    let _ = Framed::new(Deaf);
}

#[test]
fn a_raw_connection_is_closed_unheard() {
    let mut toy = Toy::new();
    let mut a = Side::new(&mut toy, SMALL);
    a.arm(&mut toy);
    a.establish(Role::Active, None);
    a.turn();
    assert_eq!(a.asked, Some(CloseReason::Local));
    assert!(toy.deliver(a.qp, b"raw"));
    a.turn();
    a.end(&mut toy);
    assert_eq!(a.seen(), []);
}

#[test]
fn a_send_queue_of_one_is_not_taken() {
    let one = Size {
        send_depth: 1,
        ..SMALL
    };
    let mut toy = Toy::new();
    let mut a = Side::new(&mut toy, one);
    let posted = a.arm(&mut toy);
    a.establish(Role::Active, Some(a.hello(posted)));
    a.turn();
    assert_eq!(a.asked, Some(CloseReason::Local));
    a.end(&mut toy);
    assert_eq!(a.seen(), []);
}

#[test]
fn every_token_comes_back_once_and_ours_never() {
    let mut p = Pair::new(SMALL, SMALL);
    // Credits and offers of ours lie between the service's own.
    for token in 0..5 {
        p.b.order(Order::Message(token, vec![]));
    }
    p.carry(Way::BToA, usize::MAX);
    p.a.order(Order::Message(10, vec![]));
    p.a.order(Order::Withdraw(RegionId(1)));
    p.a.order(Order::Write(11));
    for _ in 0..5 {
        p.a.turn();
    }
    p.a.order(Order::Message(12, vec![]));
    assert!(p.toy.outstanding(p.a.qp).0 >= 4);
    p.a.seen();
    p.end();
    let lost = Outcome::Unknown(crate::fabric::WcStatus::Flushed);
    let seen = p.a.seen();
    assert_eq!(
        seen,
        [
            Seen::Sent(10, lost),
            Seen::OneSided(11, lost),
            Seen::Sent(12, lost),
            Seen::Disconnected(CloseReason::Peer)
        ]
    );
}

#[test]
fn a_close_lets_what_was_sent_go_first() {
    let mut p = Pair::new(SMALL, SMALL);
    p.a.order(Order::Message(1, b"last words".into()));
    p.a.order(Order::Close);
    assert_eq!(p.a.asked, None);
    p.a.order(Order::Message(2, vec![]));
    assert_eq!(p.a.refused(), [(2, SendError::NotConnected)]);
    p.settle();
    assert_eq!(p.a.asked, Some(CloseReason::Local));
    assert_eq!(p.b.seen(), [Seen::Message(b"last words".into())]);
    p.end();
    let ends = [
        Seen::Sent(1, Outcome::Done),
        Seen::Disconnected(CloseReason::Local),
    ];
    assert_eq!(p.a.seen(), ends);
}

#[test]
fn a_place_is_used_again_with_a_window_of_its_own() {
    let mut p = Pair::new(SMALL, SMALL);
    for _ in 0..5 {
        for token in 0..8 {
            p.a.order(Order::Message(token, vec![]));
        }
        let blocked = SendError::WouldBlock;
        assert_eq!(p.a.refused(), [(6, blocked), (7, blocked)]);
        p.carry(Way::AToB, 3);
        p.end();
        p.a.seen();
        p.b.seen();
        p.connect();
    }
    assert!(p.a.worker.service().conns.awake(1).is_none());
    p.end();
}
