//! Requests, replies, messages, offers: what arrives, and what is told of it.

use super::*;

#[test]
fn a_request_is_answered_in_its_buffer() {
    let mut p = Pair::new(SMALL, SMALL);
    p.b.probe().answer = true;
    p.a.order(Order::Request(7, b"what?".into()));
    p.settle();
    let done = |id| Seen::Sent(id, Outcome::Done);
    assert_eq!(p.b.seen(), [Seen::Request(7, b"what?".into()), done(7)]);
    assert_eq!(p.a.seen(), [done(7), Seen::Reply(7, b"what?".into())]);
    assert_eq!(p.kinds(&p.a), [Kind::Request]);
    assert_eq!(p.kinds(&p.b), [Kind::Reply]);
    p.end();
}

#[test]
fn empty_and_full_payloads_travel() {
    let mut p = Pair::new(SMALL, SMALL);
    // The toy takes messages up to 200 B.
    let longest = vec![3; 200 - HEADER_BYTES];
    p.a.order(Order::Message(1, Vec::new()));
    p.a.order(Order::Message(2, longest.clone()));
    p.a.order(Order::Message(3, vec![3; 200 - HEADER_BYTES + 1]));
    assert_eq!(p.a.refused(), [(3, SendError::TooLong)]);
    p.settle();
    let came = [Seen::Message(Vec::new()), Seen::Message(longest)];
    assert_eq!(p.b.seen(), came);
    p.end();
}

/// The refusal of the device does not count as told: the peer still hears of every receive.
#[test]
fn what_the_device_refuses_tells_nothing() {
    let mut p = Pair::new(SMALL, SMALL);
    for _ in 0..20 {
        p.a.order(Order::Message(1, vec![]));
        p.b.order(Order::Message(3, vec![3; 200]));
        p.settle();
    }
    assert!(p.b.refused().iter().all(|r| *r == (3, SendError::TooLong)));
    assert_eq!(p.a.refused(), []);
    p.end();
}

#[test]
fn a_frame_longer_than_the_peer_takes_is_refused() {
    let mut toy = Toy::new();
    let (a, b) = (Side::new(&mut toy, SMALL), Side::new(&mut toy, SMALL));
    let mut p = Pair { toy, a, b };
    let posted = p.a.arm(&mut p.toy);
    p.b.arm(&mut p.toy);
    let short = Hello::new(8, 8, 48).expect("a hello");
    p.a.establish(Role::Active, Some(short));
    p.b.establish(Role::Passive, Some(p.a.hello(posted)));
    p.a.order(Order::Message(1, vec![0; 33]));
    assert_eq!(p.a.refused(), [(1, SendError::TooLong)]);
    p.a.order(Order::Message(1, vec![0; 32]));
    assert_eq!(p.a.refused(), []);
    p.settle();
    p.end();
}

#[test]
fn a_frame_keeps_room_for_its_header() {
    let region = Region::allocate(4096, HugepagePolicy::Off).expect("memory");
    let pool = Pool::new(Arc::new(region), 4, 64).expect("a pool");
    let mut frame = Frame::new(pool.alloc().expect("a slot"));
    assert_eq!((frame.len(), frame.capacity()), (0, 48));
    assert!(frame.copy_from(&[1; 48]).is_ok());
    let long = frame.copy_from(&[1; 49]).unwrap_err();
    assert_eq!((long.asked, long.capacity), (49, 48));
    assert!(frame.set_len(u32::MAX).is_err());
    assert!(frame.set_len(2).is_ok());
    frame[1] = 9;
    assert_eq!((&frame[..], frame.len_bytes()), (&[1, 9][..], 2));
}

#[test]
fn offers_and_withdrawals_arrive_and_nothing_completes() {
    let mut p = Pair::new(SMALL, SMALL);
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let expose = |side: &Side, access| side.exposures.expose(4096, HugepagePolicy::Off, access);
    p.a.probe().memory = Some(expose(&p.a, access).expect("memory"));
    p.a.order(Order::Offer(RegionId(4), 77));
    p.a.order(Order::Withdraw(RegionId(4)));
    p.settle();
    let seen = p.b.seen();
    let [Seen::Offered(offer), Seen::Withdrawn(RegionId(4))] = &seen[..] else {
        panic!("{seen:?}")
    };
    assert_eq!((offer.id(), offer.kind()), (RegionId(4), 77));
    assert_eq!(offer.region().len(), 4096);
    assert!(offer.region().access().contains(access));
    assert_eq!(p.a.seen(), [], "the offering service hears nothing of it");

    p.a.probe().memory = Some(expose(&p.a, Access::NONE).expect("memory"));
    p.a.order(Order::Offer(RegionId(5), 0));
    assert_eq!(p.a.probe().refused_offers, [OfferRefused::NoRight]);
    // Any number, as long as the peer has receives.
    for id in 0..10 {
        p.a.order(Order::Withdraw(RegionId(id)));
    }
    assert_eq!(
        p.a.probe().refused_offers[1..],
        [OfferRefused::WouldBlock; 6]
    );
    p.settle();
    assert_eq!(p.a.seen(), [Seen::Writable]);
    assert_eq!(p.b.seen().len(), 4);
    p.a.probe().memory = None;
    p.end();
}
