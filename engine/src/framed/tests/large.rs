//! Large messages: offered, read in pieces, finished, given back.

use super::*;

/// The toy's largest message, at which READs are split.
const PIECE: usize = 200;

pub(super) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let byte = |i: usize| u8::try_from((i * 7 + i / 251 + seed * 31) % 256).expect("a byte");
    (0..len).map(byte).collect()
}

pub(super) fn act(what: impl FnOnce(&mut Probe, &mut FramedIo<'_>, ConnId) + 'static) -> Order {
    Order::Do(Act(Box::new(what)))
}

pub(super) fn expose(side: &Side, bytes: usize, access: Access) -> ExposedMemory {
    let memory = side.exposures.expose(bytes, HugepagePolicy::Off, access);
    memory.expect("memory")
}

/// Memory with a pattern, as a message of `len` bytes that begins at an odd place.
pub(super) fn message(side: &Side, seed: usize, len: usize) -> MemorySpan {
    let memory = expose(side, len + 100, Access::REMOTE_READ);
    memory.copy_in(77, &pattern(seed, len)).expect("room");
    let len = u32::try_from(len).expect("short");
    memory.span(77, len).expect("in the memory")
}

/// Sends it with a token; a test that wants a refusal looks at `refusals`.
pub(super) fn send(side: &mut Side, span: MemorySpan, token: u64) -> Option<LargeSendError> {
    let (tell, told) = std::sync::mpsc::channel();
    side.order(act(move |_, io, conn| {
        let refused = io.send_large(conn, span, 1000 + token, Token(token)).err();
        let _ = tell.send(refused.map(|r| r.reason));
    }));
    told.recv().expect("the order was carried out")
}

/// Accepts into the memory of the probe, which is as long as it needs.
fn into_region(probe: &mut Probe, io: &mut FramedIo<'_>, conn: ConnId, incoming: Incoming) {
    let memory = probe.memory.clone().expect("memory");
    let span = memory.span(5, incoming.len_bytes + 9).expect("room");
    io.accept_large(conn, incoming.id, span).expect("accepted");
}

fn in_chunks(_: &mut Probe, io: &mut FramedIo<'_>, conn: ConnId, incoming: Incoming) {
    let accepted = io.accept_large_in_chunks(conn, incoming.id);
    accepted.expect("accepted");
}

fn refuse(_: &mut Probe, io: &mut FramedIo<'_>, conn: ConnId, incoming: Incoming) {
    io.refuse_large(conn, incoming.id);
}

fn offered(id: u32, len: usize, token: u64) -> Seen {
    Seen::Large(Incoming {
        id: LargeId(id),
        len_bytes: u32::try_from(len).expect("short"),
        tag: 1000 + token,
    })
}

/// Lengths of the READs that a side has posted.
fn reads(p: &Pair, side: &Side) -> Vec<u32> {
    let chains = p.toy.send_chains(side.qp);
    let all = chains.iter().flatten();
    let reads = all.filter(|wr| matches!(wr.op, SendOp::Read(_)));
    reads.map(|wr| wr.len).collect()
}

#[test]
fn region_to_region_in_pieces_of_the_largest_message() {
    let mut p = Pair::new(SMALL, SMALL);
    p.b.probe().memory = Some(expose(&p.b, 4000, Access::LOCAL_WRITE));
    p.b.probe().on_large = Some(into_region);
    let span = message(&p.a, 1, 3001);
    p.a.order(Order::Message(1, b"before".into()));
    assert_eq!(send(&mut p.a, span, 2), None);
    p.a.order(Order::Message(3, b"behind".into()));
    p.settle();
    let before = Seen::Message(b"before".into());
    let behind = Seen::Message(b"behind".into());
    let done = Seen::LargeDone(0, ReceiveOutcome::Done, Some(pattern(1, 3001)));
    assert_eq!(p.b.seen(), [before, offered(0, 3001, 2), behind, done]);
    let sent = |token| Seen::Sent(token, Outcome::Done);
    let finished = Seen::LargeSent(2, LargeOutcome::Done);
    assert_eq!(p.a.seen(), [sent(1), sent(3), finished]);
    let whole = 3001 / PIECE;
    let mut lengths = vec![200; whole];
    lengths.push(1);
    assert_eq!(reads(&p, &p.b), lengths);
    assert_eq!(p.kinds(&p.b), [Kind::Finish]);
    assert_eq!(p.kinds(&p.a)[1], Kind::Large);
    // Nothing was written beside the message, and both spans are as they were given.
    let sink = p.b.probe().spans.remove(0);
    assert_eq!((sink.offset(), sink.len_bytes()), (5, 3010));
    let mut around = [9; 5];
    sink.memory().copy_out(0, &mut around).expect("in range");
    assert_eq!(around, [0; 5]);
    sink.memory()
        .copy_out(5 + 3001, &mut around)
        .expect("in range");
    assert_eq!(around, [0; 5]);
    let source = p.a.probe().spans.remove(0);
    assert_eq!((source.offset(), source.len_bytes()), (77, 3001));
    p.end();
}

/// No more READs at once than the handshake and the engine's limit allow.
#[test]
fn reads_under_way_are_bounded() {
    let mut p = Pair::new(SMALL, SMALL);
    p.b.probe().on_large = Some(in_chunks);
    let span = message(&p.a, 1, 5000);
    assert_eq!(send(&mut p.a, span, 1), None);
    p.carry(Way::AToB, usize::MAX);
    for _ in 0..5 {
        p.b.turn();
    }
    assert_eq!(reads(&p, &p.b).len(), 4, "initiator_depth");
    // Of a chain of short ones the last alone is signalled.
    assert_eq!(p.carry(Way::BToA, 3), 3);
    p.b.turn();
    assert_eq!(reads(&p, &p.b).len(), 4);
    assert_eq!(p.carry(Way::BToA, 1), 1);
    p.b.turn();
    assert_eq!(reads(&p, &p.b).len(), 8);
    p.settle();
    p.end();
}

#[test]
fn chunks_come_in_order_and_wait_for_a_slow_service() {
    let mut p = Pair::new(SMALL, SMALL);
    p.b.probe().on_large = Some(in_chunks);
    let span = message(&p.a, 3, 1999);
    assert_eq!(send(&mut p.a, span, 1), None);
    p.carry(Way::AToB, usize::MAX);
    p.b.turn();
    p.b.order(act(|_, io, conn| io.pause_large(conn, LargeId(0))));
    p.settle();
    let mut seen = p.b.seen();
    assert_eq!(seen.remove(0), offered(0, 1999, 1));
    assert_eq!(seen.len(), 4, "what was under way");
    assert_eq!(reads(&p, &p.b).len(), 4);
    assert_eq!(p.a.seen(), [], "not finished");
    p.b.order(act(|_, io, conn| io.resume_large(conn, LargeId(0))));
    p.settle();
    seen.extend(p.b.seen());
    assert_eq!(
        seen.pop(),
        Some(Seen::LargeDone(0, ReceiveOutcome::Done, None))
    );
    let mut all = Vec::new();
    for (number, chunk) in seen.iter().enumerate() {
        let Seen::Chunk(0, offset, bytes, is_last) = chunk else {
            panic!("{chunk:?}")
        };
        assert_eq!(*offset as usize, all.len());
        assert_eq!(*is_last, number == 9);
        all.extend_from_slice(bytes);
    }
    assert_eq!(all, pattern(3, 1999));
    assert_eq!(p.a.seen(), [Seen::LargeSent(1, LargeOutcome::Done)]);
    p.end();
}

/// A service that keeps every chunk empties the pool, and the READs wait for what it gives back.
#[test]
fn a_dry_pool_is_waited_for() {
    let tight = Size { slots: 12, ..SMALL };
    let mut p = Pair::new(SMALL, tight);
    let span = message(&p.a, 3, 777);
    assert_eq!(send(&mut p.a, span, 1), None);
    p.settle();
    assert_eq!(p.b.seen(), [offered(0, 777, 1)]);
    let hoard: Vec<_> = std::iter::from_fn(|| p.b.pool.alloc().ok()).collect();
    assert!(!hoard.is_empty());
    p.b.order(act(|_, io, conn| {
        let accepted = io.accept_large_in_chunks(conn, LargeId(0));
        accepted.expect("it waits");
    }));
    p.settle();
    assert_eq!(p.b.seen(), []);
    drop(hoard);
    p.settle();
    assert_eq!(p.b.seen().len(), 5);
    assert_eq!(p.a.seen(), [Seen::LargeSent(1, LargeOutcome::Done)]);
    p.end();
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

#[test]
fn messages_are_done_in_the_order_of_acceptance() {
    let mut p = Pair::new(SMALL, SMALL);
    for token in 0..3 {
        let span = message(&p.a, 5, 1000);
        assert_eq!(send(&mut p.a, span, token), None);
    }
    p.settle();
    p.b.seen();
    for id in [2, 0, 1] {
        p.b.order(act(move |_, io, conn| {
            let accepted = io.accept_large_in_chunks(conn, LargeId(id));
            accepted.expect("accepted");
        }));
    }
    p.settle();
    let ends: Vec<_> =
        p.b.seen()
            .into_iter()
            .filter(|s| !matches!(s, Seen::Chunk(..)))
            .collect();
    let done = |id| Seen::LargeDone(id, ReceiveOutcome::Done, None);
    assert_eq!(ends, [2, 0, 1].map(done));
    let sent = |token| Seen::LargeSent(token, LargeOutcome::Done);
    assert_eq!(p.a.seen(), [2, 0, 1].map(sent));
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

/// A handshake that left no READs leaves the service one answer.
#[test]
fn without_reads_nothing_is_accepted() {
    let mut toy = Toy::new();
    let (a, mut b) = (Side::new(&mut toy, SMALL), Side::new(&mut toy, SMALL));
    b.reads = 0;
    let mut p = Pair { toy, a, b };
    p.connect();
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
