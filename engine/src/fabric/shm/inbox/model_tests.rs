//! An inbox against a queue: whatever is sent, received, acknowledged and looked at in whatever order.
//!
//! ```text
//!  waiting ─ send ─► outlet ┄ inlet ─ receive ─► the oldest of flight, as it was
//!                    acked ⊆ received
//! ```

use super::tests::{SMALL, bytes_of, copy_out, ends, push};
use super::{Inlet, Look, Outlet, What};
use crate::fabric::Note;
use crate::types::Rkey;
use proptest::prelude::*;
use std::collections::VecDeque;

/// Both ends, and what must come out.
struct Model {
    outlet: Outlet,
    inlet: Inlet,
    /// Not sent, the first as far as `offset` says.
    waiting: VecDeque<(What, Vec<u8>)>,
    offset: usize,
    /// Sent at least in part.
    flight: VecDeque<(What, Vec<u8>)>,
    arriving: Vec<u8>,
    /// What each message's last cell was counted as, in order.
    sent: Vec<u32>,
    received: usize,
}

impl Model {
    fn new(cells: u32, units: u32) -> Self {
        let (mut outlet, mut inlet) = ends(SMALL);
        outlet.begin_at(cells, units);
        inlet.begin_at(cells, units);
        Self {
            outlet,
            inlet,
            waiting: VecDeque::new(),
            offset: 0,
            flight: VecDeque::new(),
            arriving: Vec::new(),
            sent: Vec::new(),
            received: 0,
        }
    }

    /// Sends what there is room for. True if that was something.
    fn send(&mut self) -> bool {
        let mut moved = false;
        while let Some((what, bytes)) = self.waiting.front() {
            let pushed = match what {
                What::Message(note) => push(&mut self.outlet, *note, 7, &bytes[self.offset..]),
                What::Written { imm, len } => self.outlet.push_written(*imm, 7, *len).map(|()| 0),
                What::Fault(_) => unreachable!("no step sends it"),
            };
            let Ok(pushed) = pushed else { break };
            moved = true;
            if self.offset == 0 {
                self.flight.push_back((*what, bytes.clone()));
            }
            self.offset += pushed as usize;
            if self.offset == bytes.len() {
                self.sent.push(self.outlet.sent());
                self.waiting.pop_front();
                self.offset = 0;
            }
        }
        moved
    }

    /// Receives a fragment if one is there.
    fn receive(&mut self) -> bool {
        let Some(head) = self.inlet.peek().expect("an honest peer") else {
            return false;
        };
        let (what, bytes) = self.flight.front().expect("nothing comes unsent");
        assert_eq!((head.what(), head.ack()), (*what, 7));
        assert_eq!(self.inlet.is_inside(), !self.arriving.is_empty());
        copy_out(&head, &mut self.arriving);
        assert!(bytes.starts_with(&self.arriving));
        assert_eq!(head.has_more(), self.arriving.len() < bytes.len());
        if !head.has_more() {
            self.flight.pop_front();
            self.arriving.clear();
            self.received += 1;
        }
        self.inlet.consume(head);
        true
    }

    fn look(&mut self) {
        let look = self.outlet.look().expect("an honest peer");
        assert_eq!(look, Look::default());
        self.check();
    }

    /// What is acknowledged was received, and in order.
    fn check(&self) {
        let acked = self.sent.iter().take_while(|s| self.outlet.is_acked(**s));
        let acked = acked.count();
        assert!(acked <= self.received);
        assert!(self.sent[acked..].iter().all(|s| !self.outlet.is_acked(*s)));
    }

    /// Everything comes over by sending, receiving and looking alone, and is acknowledged in the end.
    fn drain(&mut self) {
        loop {
            self.look();
            let sent = self.send();
            let received = std::iter::from_fn(|| self.receive().then_some(())).count();
            if !sent && received == 0 {
                break;
            }
        }
        assert!(self.waiting.is_empty() && self.flight.is_empty(), "stuck");
        if self.inlet.owes_ack() {
            self.inlet.publish();
        }
        self.look();
        assert_eq!(self.outlet.under_way(), 0);
        assert!(self.sent.iter().all(|s| self.outlet.is_acked(*s)));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Post(What, usize),
    Send,
    Receive(usize),
    Carry,
    Publish,
    Look,
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![
        0..60_usize,
        200..300_usize,
        0..1200_usize,
        Just(48),
        Just(256)
    ];
    let note = prop_oneof![
        Just(Note::None),
        any::<u32>().prop_map(Note::Imm),
        any::<u32>().prop_map(|k| Note::Invalidated(Rkey(k))),
    ];
    let written = (any::<u32>(), any::<u32>()).prop_map(|(imm, len)| What::Written { imm, len });
    prop_oneof![
        4 => (note, len).prop_map(|(note, len)| Step::Post(What::Message(note), len)),
        1 => written.prop_map(|what| Step::Post(what, 0)),
        3 => Just(Step::Send),
        3 => (1..20_usize).prop_map(Step::Receive),
        1 => Just(Step::Carry),
        1 => Just(Step::Publish),
        1 => Just(Step::Look),
    ]
}

proptest! {
    #[test]
    fn what_goes_in_comes_out(
        begin in prop_oneof![Just(0), u32::MAX - 90..u32::MAX - 20],
        units in prop_oneof![Just(0), any::<u32>(), u32::MAX - 70..=u32::MAX],
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut model = Model::new(begin, units);
        for (step, seed) in steps.into_iter().zip(0..) {
            match step {
                Step::Post(what, len) => model.waiting.push_back((what, bytes_of(len, seed))),
                Step::Send => {
                    model.send();
                }
                Step::Receive(most) => {
                    let _ = (0..most).take_while(|_| model.receive()).count();
                }
                Step::Carry => {
                    model.outlet.note_ack(model.inlet.ack()).expect("true");
                    model.inlet.told();
                    prop_assert!(!model.inlet.owes_ack());
                    model.check();
                }
                Step::Publish => model.inlet.publish(),
                Step::Look => model.look(),
            }
        }
        model.drain();
    }
}

#[test]
fn every_length_near_an_edge_crosses() {
    let mut model = Model::new(0, 0);
    for len in (0..=70)
        .chain(250..=260)
        .chain(505..=520)
        .chain([4095, 4096, 4097, 20_000])
    {
        model
            .waiting
            .push_back((What::Message(Note::None), bytes_of(len, 1)));
        model.drain();
    }
}
