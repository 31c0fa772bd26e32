//! The splitting, up to 1 GiB and without the memory; the order; what a peer cannot do.

use super::*;
use crate::limits::LARGE_BYTES_MAX;
use crate::types::Rkey;
use proptest::prelude::*;

fn offer(id: u32, len: u32) -> LargeOffer {
    LargeOffer::new(LargeId(id), 7, 1 << 40, len, Rkey(9)).expect("a valid offer")
}

/// A table with one message that is accepted in chunks.
fn accepted(len: u32) -> Incomings {
    let mut all = Incomings::default();
    all.hear(offer(0, len)).expect("the first");
    assert_eq!(all.offered(LargeId(0)), Ok(len));
    all.accept(LargeId(0), None);
    all
}

/// Reads everything with READs of `piece` bytes, up to `depth` under way; gives how many there were.
fn read_all(len: u32, piece: u32, depth: u32) -> u32 {
    let mut all = accepted(len);
    let (mut posted, mut reads, mut done) = (0_u32, 0, 0);
    let mut under_way = std::collections::VecDeque::new();
    while done < len {
        while let Some(read) = all.next_read(depth, 1, piece) {
            let (offset, n) = (read.offset, read.len);
            assert_eq!(offset, posted, "no gap, no overlap");
            assert!((1..=piece).contains(&n));
            let last = u64::from(offset) + u64::from(n);
            assert!(last <= u64::from(len));
            assert!(read.offer.region().span(offset.into(), n).is_some());
            all.posted(LargeId(0), n);
            (posted, reads) = (posted + n, reads + 1);
            under_way.push_back((offset, n));
            assert!(under_way.len() <= depth.min(LARGE_READS_MAX) as usize);
        }
        assert!(all.take_ended().is_none());
        let (offset, n) = under_way.pop_front().expect("a READ is under way");
        done += n;
        let is_last = done == len;
        let wanted = true;
        let expected = ReadDone {
            offset,
            is_last,
            wanted,
        };
        assert_eq!(all.read_done(LargeId(0), n), Some(expected));
    }
    let Some(received) = all.take_ended() else {
        panic!("it is done")
    };
    assert_eq!(received.outcome, ReceiveOutcome::Done);
    assert!(all.take_ended().is_none(), "once");
    reads
}

#[test]
fn a_gibibyte_is_split_at_the_largest_message() {
    assert_eq!(read_all(LARGE_BYTES_MAX, 8 << 20, 16), 128);
    assert_eq!(read_all(LARGE_BYTES_MAX, (8 << 20) - 1, 4), 129);
    assert_eq!(read_all(LARGE_BYTES_MAX, u32::MAX, 1), 1);
    assert_eq!(read_all(LARGE_BYTES_MAX - 1, 1 << 20, 8), 1024);
    assert_eq!(read_all(LARGE_BYTES_MAX, 16_384, 8), 65_536);
}

proptest! {
    #[test]
    fn any_message_is_read_once_and_whole(len in 1..100_000_u32, piece in 1..70_000_u32, depth in 1..20_u32) {
        prop_assume!(len / piece < 10_000);
        prop_assert_eq!(read_all(len, piece, depth), len.div_ceil(piece));
    }
}

#[test]
fn the_first_accepted_is_read_first_and_a_paused_one_passed_over() {
    let mut all = Incomings::default();
    for id in 0..3 {
        all.hear(offer(id, 10)).expect("room");
    }
    assert!(all.next_read(8, 4, 4).is_none(), "nothing is accepted");
    for id in [2, 0] {
        all.accept(LargeId(id), None);
    }
    let next = |all: &mut Incomings| {
        let read = all.next_read(8, 4, 4)?;
        let (id, len) = (read.offer.id(), read.len);
        all.posted(id, len);
        Some((id.0, len))
    };
    assert_eq!(next(&mut all), Some((2, 4)));
    assert!(all.pause(LargeId(2), true));
    assert_eq!(next(&mut all), Some((0, 4)));
    assert!(all.pause(LargeId(2), false));
    assert_eq!(next(&mut all), Some((2, 4)));
    assert_eq!(next(&mut all), Some((2, 2)));
    assert_eq!(next(&mut all), Some((0, 4)));
    assert!(!all.pause(LargeId(1), true), "it is not accepted");
    assert!(!all.pause(LargeId(9), true));
}

#[test]
fn a_refused_message_ends_when_no_read_is_under_way() {
    let mut all = accepted(10);
    assert!(all.next_read(8, 4, 4).is_some());
    all.posted(LargeId(0), 4);
    assert!(all.refuse(LargeId(0)));
    assert!(all.next_read(8, 4, 4).is_none());
    assert!(all.take_ended().is_none(), "a READ may still write");
    assert_eq!(all.finish_owed(), None);
    let done = all.read_done(LargeId(0), 4).expect("it was posted");
    assert!(!done.wanted);
    let Some(received) = all.take_ended() else {
        panic!("nothing is under way")
    };
    assert_eq!(received.outcome, ReceiveOutcome::Refused);
    let (id, status) = (LargeId(0), FinishStatus::Refused);
    assert_eq!(all.finish_owed(), Some(Finish { id, status }));
    assert!(!all.refuse(id), "its end is on its way");
    all.finished(id);
    assert_eq!(all.finish_owed(), None);
    assert!(all.take_lost().is_none());
    assert_eq!(all.read_done(id, 4), None);
}

#[test]
fn a_message_is_accepted_once() {
    let mut all = accepted(10);
    let none = Err(AcceptError::NoSuchMessage);
    assert_eq!(all.offered(LargeId(0)), none);
    assert_eq!(all.offered(LargeId(1)), none);
    assert!(!all.refuse(LargeId(1)));
}

#[test]
fn ids_count_and_places_are_few() {
    let mut all = Incomings::default();
    let order = |seen, must| {
        let (seen, must) = (LargeId(seen), LargeId(must));
        Err(Violation::LargeOrder { seen, must })
    };
    assert_eq!(all.hear(offer(1, 1)), order(1, 0));
    let most = u32::try_from(LARGE_IN_FLIGHT_MAX).expect("few");
    for id in 0..most {
        assert!(all.hear(offer(id, 1)).is_ok());
        assert_eq!(all.hear(offer(id, 1)), order(id, id + 1), "used before");
    }
    assert_eq!(all.hear(offer(most, 1)), Err(Violation::LargeTooMany));
    // A place is free once the end goes to the peer, and not before.
    assert!(all.refuse(LargeId(3)));
    assert_eq!(all.hear(offer(most, 1)), Err(Violation::LargeTooMany));
    all.finished(LargeId(3));
    assert!(all.hear(offer(most, 1)).is_ok());
}

#[test]
fn ids_wrap() {
    let mut all = Incomings {
        next: LargeId(u32::MAX),
        ..Incomings::default()
    };
    assert!(all.hear(offer(u32::MAX, 1)).is_ok());
    assert!(all.hear(offer(0, 1)).is_ok());
}
