//! Peers that lie about large messages, never finish them, or leave in the middle.

use super::large_rig::{expose, message, pattern, send};
use super::*;
use crate::fabric::WcStatus;
use crate::limits::{LARGE_BYTES_MAX, LARGE_DEADLINE_DEFAULT, LARGE_IN_FLIGHT_MAX};
use crate::wire::{Header, HeaderError, LargeError, LargeOffer};

fn frame(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; HEADER_BYTES];
    let header = Header {
        kind,
        posted: 8,
        request_id: 0,
    };
    header.encode(&mut head);
    [&head, payload].concat()
}

/// An offer with any numbers.
fn offer(id: u32, addr: u64, len: u32, reserved: u32) -> Vec<u8> {
    let valid = LargeOffer::new(LargeId(id), 0, 4096, 1, Rkey(3)).expect("valid");
    let mut payload = valid.encode();
    payload[..8].copy_from_slice(&addr.to_le_bytes());
    payload[20..24].copy_from_slice(&len.to_le_bytes());
    payload[28..].copy_from_slice(&reserved.to_le_bytes());
    frame(Kind::Large, &payload)
}

fn finish(id: u32, status: u16, reserved: u16) -> Vec<u8> {
    let words = [id.to_le_bytes(), [0; 4]].concat();
    let mut payload = words;
    payload[4..6].copy_from_slice(&status.to_le_bytes());
    payload[6..].copy_from_slice(&reserved.to_le_bytes());
    frame(Kind::Finish, &payload)
}

/// What the frames bring about, from one to all.
fn ends_with(frames: &[Vec<u8>], violation: Violation) {
    let mut p = Pair::new(SMALL, SMALL);
    for bytes in frames {
        assert_eq!(p.a.asked, None, "{bytes:?}");
        assert!(p.toy.deliver(p.a.qp, bytes));
        // More than eight frames need receives again, and a close waits for credits that were sent.
        p.a.turn();
        p.toy.execute(p.a.qp, usize::MAX);
        p.a.turn();
    }
    let reason = CloseReason::Protocol(violation);
    assert_eq!(p.a.asked, Some(reason));
    assert!(reason.to_string().contains(&violation.to_string()));
    p.end();
    let last = p.a.seen().pop();
    assert_eq!(last, Some(Seen::Disconnected(reason)));
}

#[test]
fn lies_about_large_messages_end_the_connection() {
    let region = |addr, len| LargeError::Region { addr, len };
    let order = |seen, must| {
        let (seen, must) = (LargeId(seen), LargeId(must));
        Violation::LargeOrder { seen, must }
    };
    let good = |id| offer(id, 4096, 1, 0);
    ends_with(&[offer(0, 4096, 0, 0)], region(4096, 0).into());
    ends_with(&[offer(0, u64::MAX, 1, 0)], region(u64::MAX, 1).into());
    let wraps = u64::MAX - u64::from(LARGE_BYTES_MAX) + 1;
    ends_with(
        &[offer(0, wraps, LARGE_BYTES_MAX, 0)],
        region(wraps, LARGE_BYTES_MAX).into(),
    );
    let long = LARGE_BYTES_MAX + 1;
    ends_with(&[offer(0, 0, long, 0)], LargeError::TooLong(long).into());
    ends_with(
        &[offer(0, 0, u32::MAX, 0)],
        LargeError::TooLong(u32::MAX).into(),
    );
    ends_with(&[offer(0, 4096, 1, 9)], LargeError::Reserved(9).into());
    ends_with(&[offer(1, 4096, 1, 0)], order(1, 0));
    ends_with(&[good(0), good(0)], order(0, 1));
    ends_with(&[good(0), good(2)], order(2, 1));
    let most = u32::try_from(LARGE_IN_FLIGHT_MAX).expect("few");
    let many: Vec<_> = (0..=most).map(good).collect();
    ends_with(&many, Violation::LargeTooMany);
    ends_with(&[finish(0, 1, 0)], Violation::LargeUnknown(LargeId(0)));
    ends_with(
        &[good(0), finish(0, 1, 0)],
        Violation::LargeUnknown(LargeId(0)),
    );
    ends_with(&[finish(0, 0, 0)], LargeError::Status(0).into());
    ends_with(&[finish(0, 3, 0)], LargeError::Status(3).into());
    ends_with(&[finish(0, 1, 7)], LargeError::Reserved(7).into());
    let (kind, must, seen) = (Kind::Large, 32, 31);
    let short = HeaderError::Payload { kind, must, seen };
    ends_with(&[frame(Kind::Large, &[0; 31])], short.into());
}

#[test]
fn a_message_is_finished_once() {
    let mut p = Pair::new(SMALL, SMALL);
    let span = message(&p.a, 1, 1000);
    assert_eq!(send(&mut p.a, span, 5), None);
    assert!(p.toy.deliver(p.a.qp, &finish(0, 2, 0)));
    assert!(p.toy.deliver(p.a.qp, &finish(0, 1, 0)));
    p.a.turn();
    assert_eq!(p.a.seen(), [Seen::LargeSent(5, LargeOutcome::Refused)]);
    p.toy.execute(p.a.qp, usize::MAX);
    p.a.turn();
    let unknown = Violation::LargeUnknown(LargeId(0));
    assert_eq!(p.a.asked, Some(CloseReason::Protocol(unknown)));
    p.end();
}

/// What was not agreed on in the handshake is not known.
#[test]
fn a_peer_without_the_feature_may_not_use_it() {
    for bytes in [offer(0, 4096, 1, 0), finish(0, 1, 0)] {
        let mut toy = Toy::new();
        let mut a = Side::new(&mut toy, SMALL);
        let posted = a.arm(&mut toy);
        let hello = a.hello(posted).with_features(Features::NONE);
        a.establish(Role::Active, Some(hello));
        assert!(toy.deliver(a.qp, &bytes));
        a.turn();
        a.turn();
        let unknown = Violation::Header(HeaderError::Kind(bytes[0]));
        assert_eq!(a.asked, Some(CloseReason::Protocol(unknown)));
        a.end(&mut toy);
    }
}

/// Into memory, so that there is something to give back.
fn accept(probe: &mut Probe, io: &mut FramedIo<'_>, conn: ConnId, incoming: Incoming) {
    let memory = probe.memory.clone().expect("memory");
    let span = memory.span(0, incoming.len_bytes).expect("room");
    io.accept_large(conn, incoming.id, span).expect("accepted");
}

#[test]
fn an_offer_of_what_cannot_be_read_ends_the_connection() {
    let mut p = Pair::new(SMALL, SMALL);
    p.a.probe().memory = Some(expose(&p.a, 4096, Access::LOCAL_WRITE));
    p.a.probe().on_large = Some(accept);
    // Key 3 is nobody's, and no memory is at 4096.
    assert!(p.toy.deliver(p.a.qp, &offer(0, 4096, 4096, 0)));
    p.settle();
    let failed = CloseReason::Failed(WcStatus::RemoteAccess);
    assert_eq!(p.a.asked, Some(failed));
    p.a.probe().memory = None;
    assert_eq!(p.a.seen().len(), 1);
    assert_eq!(p.a.probe().spans.len(), 0, "READs were under way");
    p.end();
    let lost = Seen::LargeDone(0, ReceiveOutcome::Lost, Some(vec![0; 4096]));
    assert_eq!(p.a.seen(), [lost, Seen::Disconnected(failed)]);
    assert_eq!(p.a.probe().spans.len(), 1);
}

/// The peer may read until the queue pair is gone, so until then the memory is registered.
#[test]
fn a_message_that_is_never_finished_ends_the_connection_at_the_deadline() {
    let mut p = Pair::new(SMALL, SMALL);
    let span = message(&p.a, 1, 1000);
    let rkey = span.memory().remote_region(0).expect("registered").rkey();
    assert_eq!(send(&mut p.a, span, 5), None);
    let later = message(&p.a, 1, 10);
    p.settle();
    let deadline = Nanos(1000) + LARGE_DEADLINE_DEFAULT;
    p.a.turn_at(Nanos(deadline.0 - 1));
    assert_eq!(p.a.asked, None);
    p.a.turn_at(deadline);
    let late = CloseReason::Protocol(Violation::LargeLate(LargeId(0)));
    assert_eq!(p.a.asked, Some(late));
    assert!(p.toy.is_registered(rkey));
    // An end that comes too late changes nothing, and nothing more goes out.
    assert!(p.toy.deliver(p.a.qp, &finish(0, 1, 0)));
    assert_eq!(send(&mut p.a, later, 6), Some(LargeSendError::NotConnected));
    assert_eq!(p.a.seen(), []);
    assert!(p.toy.is_registered(rkey));
    p.end();
    let unknown = Seen::LargeSent(5, LargeOutcome::Unknown);
    assert_eq!(p.a.seen(), [unknown, Seen::Disconnected(late)]);
    assert!(p.toy.is_registered(rkey), "the service has it again");
    p.a.probe().spans.clear();
    assert!(!p.toy.is_registered(rkey));
}

#[test]
fn each_message_has_its_own_deadline() {
    for first_is_finished in [true, false] {
        let mut p = Pair::new(SMALL, SMALL);
        let (first, second) = (message(&p.a, 1, 10), message(&p.a, 1, 10));
        assert_eq!(send(&mut p.a, first, 1), None);
        p.settle();
        let half = Nanos(1000) + LARGE_DEADLINE_DEFAULT / 2;
        p.a.probe().orders.push_back(act(move |_, io, conn| {
            io.send_large(conn, second, 0, Token(2)).expect("sent");
        }));
        p.a.turn_at(half);
        if first_is_finished {
            p.b.order(act(|_, io, conn| io.refuse_large(conn, LargeId(0))));
        }
        p.settle();
        let late = |id| Some(CloseReason::Protocol(Violation::LargeLate(LargeId(id))));
        p.a.turn_at(half + LARGE_DEADLINE_DEFAULT / 2);
        if first_is_finished {
            assert_eq!(p.a.asked, None);
            p.a.turn_at(half + LARGE_DEADLINE_DEFAULT);
            assert_eq!(p.a.asked, late(1));
        } else {
            assert_eq!(p.a.asked, late(0), "the second does not put it off");
        }
        p.end();
    }
}

#[test]
fn the_service_says_when_a_message_is_late() {
    let deadline = Duration::from_micros(7);
    let mut p = Pair::prepared(SMALL, SMALL, |p| {
        *p.a.worker.service() = Framed::new(Probe::default()).large_deadline(deadline);
    });
    let span = message(&p.a, 1, 10);
    assert_eq!(send(&mut p.a, span, 1), None);
    p.settle();
    p.a.turn_at(Nanos(7999));
    assert_eq!(p.a.asked, None);
    p.a.turn_at(Nanos(8000));
    let late = Violation::LargeLate(LargeId(0));
    assert_eq!(p.a.asked, Some(CloseReason::Protocol(late)));
    p.end();
}

/// An offer that never left: the peer has read nothing, and the message can be sent again.
#[test]
fn an_offer_that_was_not_posted_is_told_apart() {
    let mut p = Pair::new(SMALL, SMALL);
    let (sent, kept_back) = (message(&p.a, 1, 10), message(&p.a, 1, 10));
    assert_eq!(send(&mut p.a, sent, 1), None);
    // The provider refuses what comes next.
    p.toy.refuse_sends(p.a.qp, 0, 12);
    assert_eq!(send(&mut p.a, kept_back, 2), None);
    p.end();
    let seen = p.a.seen();
    let expected = [
        Seen::LargeSent(1, LargeOutcome::Unknown),
        Seen::LargeSent(2, LargeOutcome::NeverPosted),
        Seen::Disconnected(CloseReason::PostRefused(12)),
    ];
    assert_eq!(seen, expected);
}

/// Both sides get their memory back when the connection ends in the middle, and not before.
#[test]
fn an_end_in_the_middle_gives_everything_back() {
    let mut p = Pair::new(SMALL, SMALL);
    p.b.probe().memory = Some(expose(&p.b, 4096, Access::LOCAL_WRITE));
    p.b.probe().on_large = Some(accept);
    let span = message(&p.a, 1, 3000);
    assert_eq!(send(&mut p.a, span, 5), None);
    p.carry(Way::AToB, usize::MAX);
    p.b.turn();
    p.carry(Way::BToA, 2);
    p.b.turn();
    p.b.probe().memory = None;
    assert_eq!(p.b.probe().spans.len(), 0);
    p.end();
    let unknown = Seen::LargeSent(5, LargeOutcome::Unknown);
    let ended = Seen::Disconnected(CloseReason::Peer);
    assert_eq!(p.a.seen(), [unknown, ended.clone()]);
    let seen = p.b.seen();
    let [
        Seen::Large(_),
        Seen::LargeDone(0, ReceiveOutcome::Lost, Some(bytes)),
        last,
    ] = &seen[..]
    else {
        panic!("{seen:?}")
    };
    assert_eq!((&bytes[..400], last), (&pattern(1, 3000)[..400], &ended));
    // The place has a table of its own for the next connection.
    p.connect();
    p.b.probe().on_large = None;
    let span = message(&p.a, 1, 10);
    assert_eq!(send(&mut p.a, span, 6), None);
    p.settle();
    assert!(matches!(
        &p.b.seen()[..],
        [Seen::Large(Incoming { id: LargeId(0), .. })]
    ));
    p.end();
}

/// The connection ends when every byte is here, and before the service was told so.
#[test]
fn what_is_whole_at_the_end_is_done() {
    let mut p = Pair::new(SMALL, SMALL);
    p.b.probe().memory = Some(expose(&p.b, 4096, Access::LOCAL_WRITE));
    p.b.probe().on_large = Some(accept);
    let span = message(&p.a, 1, 300);
    assert_eq!(send(&mut p.a, span, 5), None);
    p.carry(Way::AToB, usize::MAX);
    p.b.turn();
    p.b.order(Order::Close);
    assert_eq!(p.carry(Way::BToA, usize::MAX), 2);
    p.settle();
    p.b.probe().memory = None;
    p.end();
    let done = Seen::LargeDone(0, ReceiveOutcome::Done, Some(pattern(1, 300)));
    let ended = Seen::Disconnected(CloseReason::Local);
    assert_eq!(p.b.seen()[1..], [done, ended]);
    // The sender was not told.
    let unknown = Seen::LargeSent(5, LargeOutcome::Unknown);
    assert_eq!(p.a.seen()[..1], [unknown]);
}

#[test]
fn statuses_on_the_wire_are_as_said() {
    for (number, outcome) in [(1, LargeOutcome::Done), (2, LargeOutcome::Refused)] {
        let mut p = Pair::new(SMALL, SMALL);
        let span = message(&p.a, 1, 1000);
        assert_eq!(send(&mut p.a, span, 5), None);
        assert!(p.toy.deliver(p.a.qp, &finish(0, number, 0)));
        p.a.turn();
        assert_eq!(p.a.seen(), [Seen::LargeSent(5, outcome)]);
        p.end();
    }
}
