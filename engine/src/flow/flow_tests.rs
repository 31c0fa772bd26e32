//! The window against a model of two sides that are joined by two wires.
//!
//! ```text
//!   A: window ── messages in order ──► B: receive queue ─► held by the service ─► vacant ─┐
//!      receive queue ◄── messages in order ── window           ▲──── posted again ◄───────┘
//! ```

use super::*;
use proptest::prelude::*;
use std::collections::{HashSet, VecDeque};

fn hello(depth: u32, posted: u32) -> Hello {
    Hello::new(depth, posted, 4096).unwrap()
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Message {
    credits: bool,
    posted: u32,
}

/// One side. The receives of its queue are in it, under a service, or vacant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Side {
    window: Window,
    in_queue: u32,
    held: u32,
    vacant: u32,
    /// Messages on their way to the peer.
    wire: VecDeque<Message>,
}

impl Side {
    /// `mine` and `peer`: depth and receives posted at first.
    fn new(mine: (u32, u32), peer: (u32, u32)) -> Self {
        Self {
            window: Window::new(&hello(mine.0, mine.1), &hello(peer.0, peer.1)),
            in_queue: mine.1,
            held: 0,
            vacant: mine.0 - mine.1,
            wire: VecDeque::new(),
        }
    }

    fn depth(&self) -> u32 {
        self.in_queue + self.held + self.vacant
    }

    fn send(&mut self, credits: bool) {
        let posted = self.window.tell();
        self.window.sent();
        self.wire.push_back(Message { credits, posted });
    }

    /// False where the window forbids it.
    fn send_data(&mut self) -> bool {
        let may = self.window.may_send();
        if may {
            self.send(false);
        }
        may
    }

    /// What the worker does by itself.
    fn send_due(&mut self) -> bool {
        let may = self.window.credits_due() && self.window.may_send_credits();
        if may {
            self.send(true);
        }
        may
    }

    /// Credits when none are due, as a timer sends them.
    fn send_heartbeat(&mut self) -> bool {
        let may = self.window.may_send_credits();
        if may {
            self.send(true);
        }
        may
    }

    /// A post that fails takes its word back, and nothing else.
    fn send_in_vain(&mut self) {
        let before = self.window.told();
        self.window.tell();
        self.window.untell(before);
        assert_eq!(self.window.told(), before);
    }

    fn receive(&mut self, message: &Message) {
        assert!(self.in_queue > 0, "RNR: a message and no receive");
        self.in_queue -= 1;
        if message.credits {
            self.vacant += 1;
        } else {
            self.held += 1;
        }
        let before = self.window.available();
        let more = self.window.heard(message.posted).expect("the truth");
        assert_eq!(more, self.window.available() > before);
    }

    fn consume(&mut self, most: u32) -> bool {
        let n = most.min(self.held);
        self.held -= n;
        self.vacant += n;
        n > 0
    }

    fn repost(&mut self, most: u32) -> bool {
        let n = most.min(self.vacant);
        self.vacant -= n;
        self.in_queue += n;
        self.window.posted(self.window.posted.wrapping_add(n));
        n > 0
    }
}

/// Two sides; `[0]` sends what `[1]` receives, and the other way round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Link([Side; 2]);

impl Link {
    fn new(a: (u32, u32), b: (u32, u32)) -> Self {
        Self([Side::new(a, b), Side::new(b, a)])
    }

    fn deliver(&mut self, to: usize) -> bool {
        let Some(message) = self.0[1 - to].wire.pop_front() else {
            return false;
        };
        self.0[to].receive(&message);
        true
    }

    /// Moves the counts of both directions, as if so many messages had gone before.
    fn shift(&mut self, by: [u32; 2]) {
        for (from, by) in by.into_iter().enumerate() {
            let sender = &mut self.0[from].window;
            sender.sent = sender.sent.wrapping_add(by);
            sender.heard = sender.heard.wrapping_add(by);
            let receiver = &mut self.0[1 - from];
            receiver.window.posted = receiver.window.posted.wrapping_add(by);
            receiver.window.told = receiver.window.told.wrapping_add(by);
            for message in &mut receiver.wire {
                message.posted = message.posted.wrapping_add(by);
            }
        }
    }

    /// The same with counts that begin at 0: what follows does not depend on where they began.
    fn normal(mut self) -> Self {
        self.shift([0, 1].map(|from| 0u32.wrapping_sub(self.0[from].window.sent)));
        self
    }

    fn check(&self) {
        for (from, sender) in self.0.iter().enumerate() {
            let receiver = &self.0[1 - from];
            let under_way = u32::try_from(sender.wire.len()).unwrap();
            // What the sender may still send and what is under way have a receive each.
            assert!(sender.window.available() + under_way <= receiver.in_queue);
            assert!(sender.window.available() <= receiver.depth());
        }
    }

    /// Both services consume everything and nobody sends but what is due. Returns how many Credits
    /// went from each side.
    fn settle(&mut self) -> [u32; 2] {
        let mut credits = [0, 0];
        loop {
            let mut busy = false;
            for (side, sent) in credits.iter_mut().enumerate() {
                busy |= self.0[side].consume(u32::MAX);
                busy |= self.0[side].repost(u32::MAX);
                busy |= self.deliver(side);
                let due = self.0[side].send_due();
                *sent += u32::from(due);
                busy |= due;
                self.check();
            }
            if !busy {
                return credits;
            }
            assert!(credits[0] + credits[1] < 1000, "Credits answer Credits");
        }
    }

    /// What must hold when nothing is under way and all receives are posted again.
    fn check_settled(&self) {
        for (from, sender) in self.0.iter().enumerate() {
            let depth = self.0[1 - from].depth();
            assert!(sender.window.may_send(), "stands still: {self:?}");
            assert!(sender.window.available() > depth - threshold(depth));
        }
    }

    /// Receives of each side that its peer was not told of, or soon will not be told of.
    fn debt(&self) -> [u32; 2] {
        [0, 1].map(|side| {
            let me = &self.0[side];
            let to_me = u32::try_from(self.0[1 - side].wire.len()).unwrap();
            me.window.owes() + me.vacant + me.held + to_me
        })
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Data(u32),
    Due,
    Heartbeat,
    InVain,
    Deliver(u32),
    Consume(u32),
    Repost(u32),
}

fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let step = prop_oneof![
        6 => (1u32..24).prop_map(Step::Data),
        4 => Just(Step::Due),
        1 => Just(Step::Heartbeat),
        1 => Just(Step::InVain),
        6 => (1u32..24).prop_map(Step::Deliver),
        4 => (1u32..24).prop_map(Step::Consume),
        5 => (1u32..24).prop_map(Step::Repost),
    ];
    proptest::collection::vec((0usize..2, step), 0..400)
}

/// A depth and how many of it are posted at first.
fn queue() -> impl Strategy<Value = (u32, u32)> {
    (RECV_DEPTH_MIN..=64).prop_flat_map(|depth| (Just(depth), POSTED_MIN..=depth))
}

proptest! {
    #[test]
    fn two_sides_neither_overrun_nor_stand_still(
        a in queue(),
        b in queue(),
        before: [u32; 2],
        steps in steps(),
    ) {
        let mut link = Link::new(a, b);
        link.shift(before);
        for (side, step) in steps {
            let me = &mut link.0[side];
            match step {
                Step::Data(n) => {
                    for _ in 0..n {
                        me.send_data();
                    }
                }
                Step::Due => {
                    me.send_due();
                }
                Step::Heartbeat => {
                    me.send_heartbeat();
                }
                Step::InVain => me.send_in_vain(),
                Step::Deliver(n) => {
                    for _ in 0..n {
                        link.deliver(side);
                    }
                }
                Step::Consume(n) => {
                    me.consume(n);
                }
                Step::Repost(n) => {
                    me.repost(n);
                }
            }
            link.check();
        }
        // No ping-pong: Credits pay off a debt, and only those of the peer add to it.
        let debt = link.debt();
        let credits = link.settle();
        for side in 0..2 {
            let due_at = link.0[side].window.due_at;
            prop_assert!(due_at * credits[side] <= debt[side] + credits[1 - side]);
        }
        prop_assert!(credits[0] + credits[1] <= debt[0] + debt[1]);
        link.check_settled();
        prop_assert_eq!(link.settle(), [0, 0]);
    }

    /// One side sends as fast as it may, the other only consumes.
    #[test]
    fn one_way_traffic_costs_few_credits(a in queue(), b in queue(), batch in 1u32..40) {
        let mut link = Link::new(a, b);
        let (mut data, mut credits) = (0u32, [0, 0]);
        for _ in 0..200 {
            for _ in 0..batch {
                data += u32::from(link.0[0].send_data());
            }
            let more = link.settle();
            credits = [credits[0] + more[0], credits[1] + more[1]];
            prop_assert!(link.0[0].window.may_send());
        }
        let due_at = [0, 1].map(|side| link.0[side].window.due_at);
        // What was not posted at first is a debt too.
        let first = [a.0 - a.1, b.0 - b.1];
        prop_assert!(due_at[1] * credits[1] <= first[1] + data + credits[0]);
        prop_assert!(due_at[0] * credits[0] <= first[0] + credits[1]);
    }

    /// A service may hold all but a threshold of its receives, and its peer goes on.
    #[test]
    fn a_service_may_hold_some(depth in RECV_DEPTH_MIN..=64, messages in 1u32..300) {
        let mut link = Link::new((depth, depth), (depth, depth));
        let keeps = depth - threshold(depth) - 1;
        for n in 0..messages {
            prop_assert!(link.0[0].send_data(), "stopped after {n} messages");
            loop {
                link.deliver(0);
                let held = link.0[1].held;
                let mut busy = link.0[1].consume(held.saturating_sub(keeps));
                for side in 0..2 {
                    busy |= link.deliver(side);
                    busy |= link.0[side].repost(u32::MAX);
                    busy |= link.0[side].send_due();
                }
                if !busy {
                    break;
                }
            }
        }
    }

    #[test]
    fn any_count_is_taken_or_called_a_lie(
        depth in RECV_DEPTH_MIN..=RECV_DEPTH_MAX,
        posted: prop::sample::Index,
        sent: prop::sample::Index,
        before: u32,
        count: u32,
    ) {
        let first = POSTED_MIN + u32::try_from(posted.index((depth - POSTED_MIN) as usize + 1)).unwrap();
        let mut window = Window::new(&hello(4, 4), &hello(depth, first));
        window.sent = before.wrapping_add(u32::try_from(sent.index(first as usize + 1)).unwrap());
        window.heard = before.wrapping_add(first);
        let was = window.clone();
        let more = count.wrapping_sub(was.heard);
        match window.heard(count) {
            Ok(news) => {
                prop_assert_eq!(news, more > 0);
                prop_assert_eq!(window.available(), was.available() + more);
                prop_assert!(window.available() <= depth);
            }
            Err(Lie::Backwards { before, now }) => {
                prop_assert_eq!((before, now), (was.heard, count));
                prop_assert!(more > u32::MAX / 2);
                prop_assert_eq!(window, was);
            }
            Err(Lie::TooMany { unused, depth: said }) => {
                prop_assert_eq!((unused, said), (was.available() + more, depth));
                prop_assert!(unused > depth);
                prop_assert_eq!(window, was);
            }
        }
    }
}

/// Visits every state that two sides can get into, by any order of events, and checks each. States
/// in which nothing is left to do but send must let both sides send. Returns their number.
fn visit(a: u32, b: u32) -> usize {
    let start = Link::new((a, a), (b, b)).normal();
    let mut seen = HashSet::from([start.clone()]);
    let mut left = vec![start];
    while let Some(link) = left.pop() {
        link.check();
        let mut next = Vec::with_capacity(10);
        let mut attempt = |act: &dyn Fn(&mut Link) -> bool| {
            let mut to = link.clone();
            let done = act(&mut to);
            if done {
                next.push(to.normal());
            }
            done
        };
        let mut settled = true;
        for side in 0..2 {
            attempt(&|link| link.0[side].send_data());
            attempt(&|link| link.0[side].send_heartbeat());
            settled &= !attempt(&|link| link.0[side].send_due());
            settled &= !attempt(&|link| link.deliver(side));
            // A receive is posted again at once: the property test lets it wait.
            settled &= !attempt(&|link| link.0[side].consume(1) && link.0[side].repost(1));
            settled &= !attempt(&|link| link.0[side].repost(1));
        }
        if settled {
            link.check_settled();
        }
        for link in next {
            if seen.insert(link.clone()) {
                left.push(link);
            }
        }
    }
    seen.len()
}

/// Two small pairs: with the depth the number of states grows fast.
#[test]
fn every_state_of_small_queues_is_sound() {
    for (a, b) in [(4, 4), (4, 5)] {
        let states = visit(a, b);
        assert!(states > 10_000, "only {states} states");
    }
}

#[test]
fn a_new_window_is_as_the_hellos_say() {
    let window = Window::new(&hello(64, 60), &hello(32, 30));
    assert_eq!((window.available(), window.owes()), (30, 0));
    assert_eq!(
        (window.told(), window.due_at, window.peer_depth),
        (60, 16, 32)
    );
    assert!(window.may_send() && window.may_send_credits() && !window.credits_due());
}

#[test]
fn thresholds() {
    for (depth, due_at) in [(4, 2), (8, 2), (11, 2), (12, 3), (64, 16), (128, 32)] {
        assert_eq!(threshold(depth), due_at);
    }
}

#[test]
fn the_last_receive_is_for_credits_that_bring_some() {
    let mut window = Window::new(&hello(4, 4), &hello(4, 4));
    for _ in 0..3 {
        assert!(window.may_send());
        window.sent();
    }
    assert_eq!(window.available(), 1);
    assert!(!window.may_send() && !window.may_send_credits());
    window.posted(5);
    assert!(!window.may_send_credits() && !window.credits_due());
    window.posted(6);
    assert!(window.may_send_credits() && window.credits_due());
    assert_eq!(window.tell(), 6);
    window.sent();
    assert_eq!((window.available(), window.owes()), (0, 0));
    window.posted(8);
    assert!(window.credits_due() && !window.may_send_credits());
}

#[test]
fn lies_are_told_apart() {
    let mut window = Window::new(&hello(4, 4), &hello(8, 6));
    assert_eq!(window.heard(6), Ok(false));
    assert_eq!(window.heard(8), Ok(true));
    let back = Lie::Backwards { before: 8, now: 7 };
    assert_eq!(window.heard(7), Err(back));
    let many = Lie::TooMany {
        unused: 9,
        depth: 8,
    };
    assert_eq!(window.heard(9), Err(many));
    window.sent();
    assert_eq!(window.heard(9), Ok(true));
    assert_eq!(
        back.to_string(),
        "the peer counts its receives backwards: 7 after 8"
    );
    assert_eq!(
        many.to_string(),
        "the peer claims 9 unused receives, and its queue holds 8"
    );
}

#[test]
fn words_are_taken_back_in_any_order() {
    for order in [[4, 6], [6, 4]] {
        let mut window = Window::new(&hello(8, 4), &hello(8, 8));
        window.posted(6);
        assert_eq!((window.told(), window.tell()), (4, 6));
        window.posted(8);
        assert_eq!((window.told(), window.tell()), (6, 8));
        for previous in order {
            window.untell(previous);
        }
        assert_eq!((window.told(), window.owes()), (4, 4));
    }
}
