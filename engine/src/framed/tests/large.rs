//! Large messages: offered, read in pieces, finished, given back.

use super::large_rig::{expose, in_chunks, into_region, message, offered, pattern, reads, send};
use super::*;
use crate::limits::LARGE_READS_MAX;

/// The toy's largest message, at which READs are split.
const PIECE: usize = 200;

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

/// No more READs at once than the handshake, the engine's limit and the send queue allow.
#[test]
fn reads_under_way_are_bounded() {
    let roomy = Size {
        send_depth: 64,
        ..SMALL
    };
    let tight = Size {
        send_depth: 4,
        ..SMALL
    };
    let engine = LARGE_READS_MAX as usize;
    // The last place of a send queue is left to credits.
    for (size, initiator_depth, most) in [(SMALL, 4, 4), (roomy, 200, engine), (tight, 4, 3)] {
        let mut p = Pair::prepared(SMALL, size, |p| p.b.reads = initiator_depth);
        p.b.probe().on_large = Some(in_chunks);
        let span = message(&p.a, 1, 5000);
        assert_eq!(send(&mut p.a, span, 1), None);
        p.carry(Way::AToB, usize::MAX);
        for _ in 0..5 {
            p.b.turn();
        }
        assert_eq!(reads(&p, &p.b).len(), most);
        // Of a chain of short ones the last alone is signalled.
        assert_eq!(p.carry(Way::BToA, most - 1), most - 1);
        p.b.turn();
        assert_eq!(reads(&p, &p.b).len(), most);
        assert_eq!(p.carry(Way::BToA, 1), 1);
        p.b.turn();
        assert_eq!(reads(&p, &p.b).len(), 2 * most);
        p.settle();
        assert_eq!(p.a.seen(), [Seen::LargeSent(1, LargeOutcome::Done)]);
        p.end();
    }
}

#[test]
fn a_read_is_no_longer_than_the_service_says() {
    for on_large in [in_chunks, into_region] {
        let mut p = Pair::prepared(SMALL, SMALL, |p| {
            let bytes = NonZeroU32::new(70).expect("some");
            *p.b.worker.service() = Framed::new(Probe::default()).large_read_bytes(bytes);
        });
        p.b.probe().memory = Some(expose(&p.b, 4000, Access::LOCAL_WRITE));
        p.b.probe().on_large = Some(on_large);
        let span = message(&p.a, 1, 300);
        assert_eq!(send(&mut p.a, span, 1), None);
        p.settle();
        assert_eq!(reads(&p, &p.b), [70, 70, 70, 70, 20]);
        p.end();
    }
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
