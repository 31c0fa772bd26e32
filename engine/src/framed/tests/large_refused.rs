//! Large messages that one side or the other does not take, or not whole.

use super::large_rig::{expose, in_chunks, into_region, message, offered, pattern, reads, send};
use super::*;

fn refuse(_: &mut Probe, io: &mut FramedIo<'_>, conn: ConnId, incoming: Incoming) {
    io.refuse_large(conn, incoming.id);
}

#[test]
fn what_is_refused_comes_back_unread() {
    for on_large in [
        Some(refuse as fn(&mut Probe, &mut FramedIo<'_>, ConnId, Incoming)),
        None,
    ] {
        let mut p = Pair::new(SMALL, SMALL);
        p.b.probe().on_large = on_large;
        let span = message(&p.a, 1, 3000);
        assert_eq!(send(&mut p.a, span, 7), None);
        p.settle();
        assert_eq!(p.b.seen(), [offered(0, 3000, 7)]);
        if on_large.is_none() {
            assert_eq!(p.a.seen(), [], "it waits for the service's word");
            p.b.order(act(|_, io, conn| io.refuse_large(conn, LargeId(0))));
            p.settle();
        }
        assert_eq!(p.a.seen(), [Seen::LargeSent(7, LargeOutcome::Refused)]);
        assert_eq!(p.b.seen(), [], "the service has said so itself");
        assert_eq!(reads(&p, &p.b), [0; 0]);
        p.end();
    }
}

#[test]
fn a_service_without_a_handler_refuses() {
    struct Plain;
    impl Service for Plain {}
    let mut p = Pair::new(SMALL, SMALL);
    p.b.probe().on_large = Some(|_, io, conn, incoming| Plain.large(io, conn, incoming));
    let span = message(&p.a, 1, 300);
    assert_eq!(send(&mut p.a, span, 7), None);
    p.settle();
    assert_eq!(p.a.seen(), [Seen::LargeSent(7, LargeOutcome::Refused)]);
    p.end();
}

#[test]
fn the_rest_of_a_message_can_be_refused() {
    let mut p = Pair::new(SMALL, SMALL);
    p.b.probe().memory = Some(expose(&p.b, 4000, Access::LOCAL_WRITE));
    p.b.probe().on_large = Some(into_region);
    let span = message(&p.a, 1, 3000);
    assert_eq!(send(&mut p.a, span, 7), None);
    p.carry(Way::AToB, usize::MAX);
    p.b.turn();
    p.carry(Way::BToA, 2);
    p.b.order(act(|_, io, conn| io.refuse_large(conn, LargeId(0))));
    p.b.turn();
    let under_way = p.b.seen();
    assert_eq!(
        under_way,
        [offered(0, 3000, 7)],
        "READs still write to the memory"
    );
    p.settle();
    let seen = p.b.seen();
    let [Seen::LargeDone(0, ReceiveOutcome::Refused, Some(bytes))] = &seen[..] else {
        panic!("{seen:?}")
    };
    assert_eq!(bytes[..400], pattern(1, 3000)[..400]);
    assert_eq!(bytes[2000..], [0; 1000]);
    assert_eq!(p.a.seen(), [Seen::LargeSent(7, LargeOutcome::Refused)]);
    p.end();
}

/// READs that are under way still come, but nobody wants what they bring.
#[test]
fn no_chunk_comes_after_a_refusal() {
    let mut p = Pair::new(SMALL, SMALL);
    p.b.probe().on_large = Some(in_chunks);
    let span = message(&p.a, 1, 3000);
    assert_eq!(send(&mut p.a, span, 7), None);
    p.carry(Way::AToB, usize::MAX);
    p.b.turn();
    p.b.order(act(|_, io, conn| io.refuse_large(conn, LargeId(0))));
    assert_eq!(reads(&p, &p.b).len(), 4);
    p.settle();
    let done = Seen::LargeDone(0, ReceiveOutcome::Refused, None);
    assert_eq!(p.b.seen(), [offered(0, 3000, 7), done]);
    assert_eq!(reads(&p, &p.b).len(), 4);
    assert_eq!(p.a.seen(), [Seen::LargeSent(7, LargeOutcome::Refused)]);
    p.end();
}

#[test]
fn a_full_table_is_refused_until_one_is_finished() {
    let mut p = Pair::new(SMALL, SMALL);
    let most = crate::limits::LARGE_IN_FLIGHT_MAX as u64;
    for token in 0..most {
        let span = message(&p.a, 1, 300);
        assert_eq!(send(&mut p.a, span, token), None);
        p.settle();
    }
    let blocked = Some(LargeSendError::WouldBlock);
    let span = message(&p.a, 1, 300);
    assert_eq!(send(&mut p.a, span.clone(), most), blocked);
    p.settle();
    assert_eq!(p.a.seen(), [], "room for frames does not help");
    p.b.order(act(|_, io, conn| io.refuse_large(conn, LargeId(4))));
    p.settle();
    let refused = Seen::LargeSent(4, LargeOutcome::Refused);
    assert_eq!(p.a.seen(), [refused, Seen::Writable]);
    assert_eq!(send(&mut p.a, span, most), None);
    p.settle();
    let last = p.b.seen().pop();
    assert_eq!(last, Some(offered(8, 300, most)));
    // All that is unfinished comes back at the end, oldest first.
    p.end();
    let lost = |token| Seen::LargeSent(token, LargeOutcome::Unknown);
    let expected: Vec<Seen> = [0, 1, 2, 3, 5, 6, 7, 8].map(lost).into();
    let mut seen = p.a.seen();
    assert_eq!(seen.pop(), Some(Seen::Disconnected(CloseReason::Peer)));
    assert_eq!(seen, expected);
}

#[test]
fn an_offer_waits_for_credits_like_a_message() {
    let mut p = Pair::new(SMALL, SMALL);
    for token in 0..6 {
        p.a.order(Order::Message(token, vec![]));
    }
    let span = message(&p.a, 1, 300);
    assert_eq!(
        send(&mut p.a, span.clone(), 9),
        Some(LargeSendError::WouldBlock)
    );
    p.settle();
    assert!(p.a.seen().contains(&Seen::Writable));
    assert_eq!(send(&mut p.a, span, 9), None);
    // It was numbered only when it went.
    p.settle();
    assert_eq!(p.b.seen().pop(), Some(offered(0, 300, 9)));
    p.end();
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let mut p = Pair::new(SMALL, SMALL);
    let memory = expose(&p.a, 4096, Access::REMOTE_READ);
    let empty = memory.span(9, 0).expect("no bytes");
    assert_eq!(send(&mut p.a, empty, 1), Some(LargeSendError::Empty));
    let secret = expose(&p.a, 4096, Access::REMOTE_WRITE)
        .span(0, 100)
        .expect("in it");
    assert_eq!(send(&mut p.a, secret, 2), Some(LargeSendError::NotReadable));
    p.a.order(Order::Close);
    let closed = Some(LargeSendError::NotConnected);
    let span = message(&p.a, 1, 10);
    assert_eq!(send(&mut p.a, span, 3), closed);
    p.settle();
    p.end();
    let ends = [Seen::Disconnected(CloseReason::Local)];
    assert_eq!(p.a.seen(), ends);
}

/// A peer of a release that does not know them is never sent one.
#[test]
fn a_peer_that_does_not_know_them_gets_none() {
    let mut toy = Toy::new();
    let (a, b) = (Side::new(&mut toy, SMALL), Side::new(&mut toy, SMALL));
    let mut p = Pair { toy, a, b };
    let posted = (p.a.arm(&mut p.toy), p.b.arm(&mut p.toy));
    let old = p.b.hello(posted.1).with_features(Features::from_bits(!1));
    p.a.establish(Role::Active, Some(old));
    let hello = p.a.hello(posted.0);
    p.b.establish(Role::Passive, Some(hello));
    p.settle();
    let span = message(&p.a, 1, 10);
    assert_eq!(send(&mut p.a, span, 1), Some(LargeSendError::Unsupported));
    p.end();
}

#[test]
fn what_cannot_be_accepted_waits_on() {
    let mut p = Pair::new(SMALL, SMALL);
    let span = message(&p.a, 1, 300);
    assert_eq!(send(&mut p.a, span, 1), None);
    p.settle();
    p.b.seen();
    let short = expose(&p.b, 4096, Access::LOCAL_WRITE)
        .span(0, 299)
        .expect("in it");
    let closed = expose(&p.b, 4096, Access::REMOTE_READ)
        .span(0, 300)
        .expect("in it");
    p.b.order(act(move |_, io, conn| {
        let mut accept = |id, span| io.accept_large(conn, LargeId(id), span).err();
        let refused = [
            accept(1, short.clone()),
            accept(0, short),
            accept(0, closed),
        ];
        let reasons = refused.map(|r| r.map(|r| r.reason));
        let expected = [
            AcceptError::NoSuchMessage,
            AcceptError::SinkTooShort,
            AcceptError::SinkNotWritable,
        ];
        assert_eq!(reasons, expected.map(Some));
        assert_eq!(io.accept_large_in_chunks(conn, LargeId(0)), Ok(()));
        let again = io.accept_large_in_chunks(conn, LargeId(0));
        assert_eq!(again, Err(AcceptError::NoSuchMessage));
        io.close(conn);
        let late = io.accept_large_in_chunks(conn, LargeId(0));
        assert_eq!(late, Err(AcceptError::NotConnected));
    }));
    p.settle();
    p.end();
    let lost = Seen::LargeDone(0, ReceiveOutcome::Lost, None);
    assert_eq!(p.b.seen(), [lost, Seen::Disconnected(CloseReason::Local)]);
}

/// A device that has peers answer READs with writes needs memory that is open to those.
#[test]
fn a_sink_must_be_open_where_the_device_wants_it() {
    let mut p = Pair::prepared(SMALL, SMALL, |p| p.b.sinks_are_open = true);
    let span = message(&p.a, 1, 300);
    assert_eq!(send(&mut p.a, span, 1), None);
    p.settle();
    let sink = |access| {
        let memory = expose(&p.b, 4096, access);
        memory.span(0, 300).expect("in it")
    };
    let (closed, open) = (sink(Access::LOCAL_WRITE), sink(Access::REMOTE_WRITE));
    p.b.order(act(move |_, io, conn| {
        let refused = io
            .accept_large(conn, LargeId(0), closed)
            .expect_err("closed");
        assert_eq!(refused.reason, AcceptError::SinkNotWritable);
        io.accept_large(conn, LargeId(0), open).expect("accepted");
    }));
    p.settle();
    assert_eq!(p.a.seen(), [Seen::LargeSent(1, LargeOutcome::Done)]);
    p.end();
}

/// A handshake that left no READs leaves the service one answer.
#[test]
fn without_reads_nothing_is_accepted() {
    let mut p = Pair::prepared(SMALL, SMALL, |p| p.b.reads = 0);
    let span = message(&p.a, 1, 300);
    assert_eq!(send(&mut p.a, span, 1), None);
    p.settle();
    p.b.order(act(|_, io, conn| {
        let accepted = io.accept_large_in_chunks(conn, LargeId(0));
        assert_eq!(accepted, Err(AcceptError::NoReads));
        io.refuse_large(conn, LargeId(0));
    }));
    p.settle();
    assert_eq!(p.a.seen(), [Seen::LargeSent(1, LargeOutcome::Refused)]);
    p.end();
}
