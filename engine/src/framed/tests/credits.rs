//! Credits: who waits, who is told when, and what is kept for telling.

use super::*;

fn messages(numbers: std::ops::Range<u32>) -> Vec<Seen> {
    numbers.map(|n| Seen::Message(numbered(n))).collect()
}

#[test]
fn a_refused_sender_is_told_once_when_it_may_go_on() {
    let mut p = Pair::new(SMALL, SMALL);
    for token in 0..9 {
        p.a.order(Order::Message(token, vec![1]));
    }
    // Of seven receives one is kept for credits.
    let blocked = SendError::WouldBlock;
    assert_eq!(p.a.refused(), [6, 7, 8].map(|token| (token, blocked)));
    assert_eq!(p.a.counters.snapshot().would_block, 3);
    p.carry(Way::AToB, usize::MAX);
    p.a.turn();
    let done: Vec<Seen> = (0..6).map(|t| Seen::Sent(t, Outcome::Done)).collect();
    assert_eq!(p.a.seen(), done, "room alone does not help");
    p.settle();
    assert_eq!(p.a.seen(), [Seen::Writable]);
    assert_eq!(p.b.seen().len(), 6);
    p.settle();
    assert_eq!(p.a.seen(), [], "once");
    // It says the truth.
    p.a.order(Order::Message(9, vec![1]));
    assert_eq!(p.a.refused(), []);
    p.settle();
    assert!(!p.a.seen().contains(&Seen::Writable), "nobody waits");
    p.end();
}

#[test]
fn answers_carry_the_credits() {
    let mut p = Pair::new(SMALL, SMALL);
    p.b.probe().answer = true;
    for id in 0..100 {
        p.a.order(Order::Request(id, vec![0; 20]));
        p.settle();
    }
    assert_eq!((p.a.refused(), p.b.refused()), (vec![], vec![]));
    assert_eq!(p.kinds(&p.a), [Kind::Request; 100]);
    assert_eq!(p.kinds(&p.b), [Kind::Reply; 100]);
    p.end();
}

#[test]
fn one_way_traffic_is_answered_with_credits_alone() {
    let mut p = Pair::new(SMALL, SMALL);
    p.a.probe().to_send = 400;
    p.settle();
    assert_eq!(
        p.b.seen(),
        messages(0..400),
        "all, in order, and nothing else"
    );
    let told = p.credits(&p.b);
    assert_eq!(told, p.kinds(&p.b).len(), "the receiver sent only credits");
    // At a depth of 8 it tells of 2 or more; the sender uses up to 7.
    assert!((400 / 8..=400 / 2).contains(&told), "{told}");
    assert_eq!(p.credits(&p.a), 0, "nobody answers credits");
    let seen = p.a.seen();
    let expected = |s: &Seen| matches!(s, Seen::Sent(_, Outcome::Done) | Seen::Writable);
    assert!(seen.iter().all(expected), "{seen:?}");
    p.end();
}

#[test]
fn a_receiver_that_keeps_its_buffers_is_waited_for() {
    let small = Size { slots: 20, ..SMALL };
    let mut p = Pair::new(SMALL, small);
    p.b.probe().kept = Some(VecDeque::new());
    p.a.probe().to_send = 100;
    p.settle();
    let kept = p.b.probe().kept.as_ref().map(VecDeque::len);
    assert!(p.a.probe().to_send > 60, "the sender is stopped");
    assert!(kept.is_some_and(|n| n >= 12), "{kept:?} of 20 slots kept");
    // Buffers come back one by one, and the sender goes on until all has arrived.
    for _ in 0..100 {
        let freed = p.b.probe().kept.as_mut().and_then(VecDeque::pop_front);
        drop(freed);
        p.settle();
    }
    assert_eq!(p.b.seen(), messages(0..100));
    p.end();
}

/// As many slots as receives: were none kept for credits, the receiver could never tell.
#[test]
fn a_dry_pool_still_tells() {
    let tight = Size { slots: 8, ..SMALL };
    let mut p = Pair::new(SMALL, tight);
    p.a.probe().to_send = 200;
    p.settle();
    assert_eq!(p.b.seen(), messages(0..200));
    p.end();
}

/// The pool is dry when the connection comes up, so the hello tells of few receives. Later there are
/// more, which the peer must hear of.
#[test]
fn receives_that_came_after_the_hello_are_told() {
    let mut toy = Toy::new();
    let b = Side::new(&mut toy, SMALL);
    let mut a = Side::new(&mut toy, SMALL);
    let posted = a.arm(&mut toy);
    let mut p = Pair { toy, a, b };
    assert_eq!((p.b.arm(&mut p.toy), posted), (8, 8));
    // As if two had been posted when it was written: the first word leaves one, for credits.
    let few = Hello::new(8, 2, 256).expect("a hello");
    p.a.establish(Role::Active, Some(few));
    p.b.establish(Role::Passive, Some(p.a.hello(posted)));
    p.a.turn();
    p.a.order(Order::Message(1, vec![]));
    assert_eq!(p.a.refused(), [(1, SendError::WouldBlock)]);
    p.settle();
    assert_eq!(p.credits(&p.b), 1);
    assert!(p.a.seen().contains(&Seen::Writable));
    for token in 2..8 {
        p.a.order(Order::Message(token, vec![]));
    }
    assert_eq!(p.a.refused(), []);
    p.settle();
    p.end();
}

/// On iWARP what the accepting side sends first is lost, or ends the connection.
#[test]
fn who_was_connected_to_waits_for_a_word() {
    let mut toy = Toy::new();
    let (a, b) = (Side::new(&mut toy, SMALL), Side::new(&mut toy, SMALL));
    let mut p = Pair { toy, a, b };
    let posted = (p.a.arm(&mut p.toy), p.b.arm(&mut p.toy));
    let hellos = (p.a.hello(posted.0), p.b.hello(posted.1));
    p.b.establish(Role::Passive, Some(hellos.0));
    p.b.order(Order::Message(1, vec![]));
    p.b.order(Order::Write(2));
    let blocked = SendError::WouldBlock;
    assert_eq!(p.b.refused(), [(1, blocked), (2, blocked)]);
    for _ in 0..10 {
        p.b.turn();
    }
    assert_eq!(p.b.seen(), [Seen::Connected]);
    assert_eq!(p.toy.sent(p.b.qp).0.len(), 0);
    // The other side's service is silent, so its word is credits.
    p.a.establish(Role::Active, Some(hellos.1));
    p.settle();
    assert_eq!(p.kinds(&p.a), [Kind::Credits]);
    assert_eq!(p.b.seen(), [Seen::Writable]);
    p.b.order(Order::Message(1, vec![]));
    p.b.order(Order::Write(2));
    assert_eq!(p.b.refused(), []);
    p.settle();
    p.end();
}

#[test]
fn a_first_message_is_word_enough() {
    let mut toy = Toy::new();
    let (a, b) = (Side::new(&mut toy, SMALL), Side::new(&mut toy, SMALL));
    let mut p = Pair { toy, a, b };
    let posted = (p.a.arm(&mut p.toy), p.b.arm(&mut p.toy));
    let hellos = (p.a.hello(posted.0), p.b.hello(posted.1));
    p.a.probe().to_send = 1;
    p.a.establish(Role::Active, Some(hellos.1));
    p.b.establish(Role::Passive, Some(hellos.0));
    p.settle();
    assert_eq!(p.kinds(&p.a), [Kind::Message]);
    p.end();
}

#[test]
fn the_last_place_of_the_send_queue_is_for_credits() {
    let narrow = Size {
        send_depth: 4,
        ..SMALL
    };
    let mut p = Pair::new(SMALL, narrow);
    // Three of four places, by frames and WRITEs alike.
    p.b.order(Order::Write(0));
    p.b.order(Order::Message(1, vec![]));
    p.b.order(Order::Write(2));
    p.b.order(Order::Write(3));
    p.b.order(Order::Message(4, vec![]));
    let blocked = SendError::WouldBlock;
    assert_eq!(p.b.refused(), [(3, blocked), (4, blocked)]);
    for token in 0..5 {
        p.a.order(Order::Message(token, vec![]));
    }
    p.carry(Way::AToB, usize::MAX);
    for _ in 0..4 {
        p.b.turn();
    }
    assert_eq!(p.credits(&p.b), 1, "credits go though the service may not");
    p.settle();
    let seen = p.b.seen();
    let count = |what: &Seen| seen.iter().filter(|s| *s == what).count();
    assert_eq!(count(&Seen::Writable), 1);
    assert_eq!(count(&Seen::OneSided(0, Outcome::Done)), 1);
    assert_eq!(count(&Seen::Sent(1, Outcome::Done)), 1);
    assert_eq!(count(&Seen::OneSided(2, Outcome::Done)), 1);
    p.end();
}

/// A WRITE needs no receive, so it does not wait for credits.
#[test]
fn a_write_goes_without_credits() {
    let mut p = Pair::new(SMALL, SMALL);
    for token in 0..8 {
        p.a.order(Order::Message(token, vec![]));
    }
    assert_eq!(p.a.refused().len(), 2);
    p.a.order(Order::Write(8));
    assert_eq!(p.a.refused(), []);
    p.settle();
    assert!(p.a.seen().contains(&Seen::OneSided(8, Outcome::Done)));
    p.end();
}

#[test]
fn a_connection_at_rest_is_not_looked_at() {
    let mut p = Pair::new(SMALL, SMALL);
    p.b.probe().answer = true;
    for id in 0..30 {
        p.a.order(Order::Request(id, vec![1]));
        p.settle();
    }
    assert_eq!(p.a.worker.service().conns.awake(0), None);
    assert_eq!(p.b.worker.service().conns.awake(0), None);
    p.end();
}
