//! What must hold: of each completion, when all is quiet, when a connection has ended, and in the end.

use crate::history::{AREA, Bad, Op, bounds, replay};
use crate::world::{End, FRESH, LATE, Life, POOL_SLOTS, SLOTS, Side, World};
use spinwire::fabric::{CmEventKind, Fabric, Note, WcOpcode, WcStatus, WorkCompletion};
use spinwire::memory::Buffer;

impl<F: Fabric> World<F> {
    /// Polls until nothing that is only late is left.
    fn until_quiet(&mut self) {
        let mut quiet = 0;
        while quiet < LATE {
            let n = self.poll(0, 16) + self.poll(1, 16);
            quiet = if n == 0 { quiet + 1 } else { 0 };
            // Control has its part where there is no device.
            self.ends.iter_mut().for_each(End::pump);
        }
    }

    /// Polls until nothing that is only late is left, and checks that nothing else is.
    pub(crate) fn settle_all(&mut self) {
        self.until_quiet();
        if !self.rules.lively {
            return;
        }
        for life in self.lives.iter().filter(|l| !l.over) {
            let well = |side: &Side<F>| {
                !side.in_error && !side.send_failed && !side.recv_failed && !side.cut_off
            };
            if !life.sides.iter().all(well) {
                continue;
            }
            for end in [0, 1] {
                let waits = life.sides[end].sends.iter().any(|s| s.signalled);
                let receives = if life.spec.shared {
                    self.ends[1 - end].shared.len()
                } else {
                    life.sides[1 - end].recvs.len()
                };
                assert!(
                    !waits || receives == 0,
                    "a send waits although the peer has {receives} receives"
                );
            }
        }
    }

    pub(crate) fn finish(&mut self, at: usize) {
        if let Some(left) = self.lives[at].left {
            let peer = 1 - left;
            let key = self.lives[at].sides[peer].key;
            if self.lives[at].sides[peer].id.is_some() {
                let told = std::iter::from_fn(|| self.event(peer, key));
                let told = told.map(|(kind, _)| kind).collect::<Vec<_>>();
                assert!(told.contains(&CmEventKind::Disconnected), "{told:?}");
            }
        }
        self.fail(at, 0);
        self.fail(at, 1);
        self.until_quiet();
        for end in [0, 1] {
            self.bury(at, end);
        }
        // What destroyed QPs still complete.
        while self.poll(0, 16) + self.poll(1, 16) > 0 {}
        let life = &mut self.lives[at];
        life.over = true;
        for end in [0, 1] {
            let (side, peer) = (&life.sides[end], &life.sides[1 - end]);
            if !side.cut_off {
                // Nobody asked after the last ones, and nothing came of them but what was to.
                assert!(side.sends.iter().all(|s| !s.signalled), "sends are missing");
                assert!(side.recvs.is_empty(), "receives are missing");
                assert!(!side.send_failed || side.sends.is_empty());
            }
            let (least, most) = bounds(&side.records, self.rules.faulty, self.rules.taken);
            let messages = |n: usize| {
                let head = side.records[..n].iter();
                head.filter(|r| r.op.takes_receive()).count()
            };
            assert!(
                peer.heard <= messages(most) && (peer.cut_off || peer.heard >= messages(least)),
                "{} messages were heard of {} to {}",
                peer.heard,
                messages(least),
                messages(most)
            );
            let area = self.ends[1 - end].area(life.slot);
            let fits = |n| replay(&side.before, &side.records[..n]).0 == area;
            assert!(
                (least..=most).any(fits),
                "memory is that of no head of {least} to {most}: {:?}",
                side.records
            );
            let (_, answers) = replay(&side.before, &side.records[..least]);
            for (record, answer) in side.records.iter().zip(answers) {
                if record.op != Op::Count && record.op.fetches() {
                    assert_eq!(record.answer, answer, "{record:?}");
                }
            }
        }
        for side in &mut self.lives[at].sides {
            side.sends.clear();
            side.recvs.clear();
        }
    }

    /// Ends everything and balances the books. Gives every completion that there was.
    pub(crate) fn close(mut self) -> Vec<(usize, u64, WcStatus)> {
        for slot in 0..SLOTS {
            self.end(slot);
        }
        for end in [0, 1] {
            let mut word = [0; 8];
            let e = &mut self.ends[end];
            e.exposed.copy_out(SLOTS * AREA, &mut word).expect("inside");
            let asked = self.lives.iter().flat_map(|l| &l.sides[1 - end].records);
            let asked = asked.filter(|r| r.op == Op::Count && r.bad.is_none());
            let (done, asked) = (e.counted.len() as u64, asked.count() as u64);
            let count = u64::from_ne_bytes(word);
            assert!(
                (done..=asked).contains(&count),
                "{count} of {done} to {asked} were counted"
            );
            e.counted.sort_unstable();
            e.counted.dedup();
            assert_eq!(e.counted.len() as u64, done, "two got the same number");
            assert!(e.counted.last().is_none_or(|last| *last < count));
            let shared = u32::try_from(e.shared.len()).expect("few");
            assert_eq!(e.pool.free() + shared, POOL_SLOTS, "slots are missing");
            if let Some(listener) = e.listener.take() {
                e.fabric.destroy_id(listener);
            }
        }
        self.seen
    }
}

impl<F: Fabric> Life<F> {
    /// A receive completed.
    pub(crate) fn heard<W: WorkCompletion>(&mut self, end: usize, wc: &W, buffer: Buffer) {
        let [first, second] = &mut self.sides;
        let (side, peer) = if end == 0 {
            (first, second)
        } else {
            (second, first)
        };
        let mut messages = peer.records.iter().filter(|r| r.op.takes_receive());
        let next = messages.nth(side.heard);
        if !wc.is_success() {
            side.recv_failed = true;
            let status = wc.status();
            let too_long = next.is_some_and(|r| r.bad == Some(Bad::TooLong));
            assert!(
                status == WcStatus::Flushed || (status == WcStatus::LocalLength && too_long),
                "a receive ended as {status}"
            );
            return;
        }
        assert!(!side.recv_failed, "a message came behind a flushed receive");
        let record = next.expect("a message that was sent");
        assert_eq!(record.bad, None, "a message came that could not");
        side.heard += 1;
        let (opcode, note, written) = match record.op {
            Op::Message(note) => (WcOpcode::Recv, note, record.payload.len()),
            Op::WriteImm(_, imm) => (WcOpcode::RecvWriteImm, Note::Imm(imm), 0),
            op => unreachable!("{op:?} takes no receive"),
        };
        assert_eq!((wc.opcode(), wc.note()), (opcode, note));
        assert_eq!(wc.byte_len() as usize, record.payload.len());
        assert_eq!(buffer[..written], record.payload[..written]);
        assert!(buffer[written..].iter().all(|b| *b == FRESH));
    }
}

impl<F: Fabric> Side<F> {
    /// A send completed, and all before it. Gives what [`Op::Count`]s brought.
    pub(crate) fn sent<W: WorkCompletion>(&mut self, wc: &W, faulty: bool) -> Option<Vec<u64>> {
        let place = self.sends.iter().position(|s| s.wr_id == wc.wr_id());
        let place = place.expect("a completion of something outstanding");
        let mut counted = Vec::new();
        for n in 0..=place {
            let done = self.sends.pop_front()?;
            let record = &mut self.records[done.record];
            let status = if n == place {
                wc.status()
            } else {
                assert!(!done.signalled, "a signalled send was passed over");
                WcStatus::Success
            };
            record.outcome = Some(status);
            if status != WcStatus::Success {
                let first = !self.send_failed;
                self.send_failed = true;
                match record.bad {
                    // Nothing else can become of it while the QP is well.
                    Some(bad) if first && status != WcStatus::Flushed => {
                        let died = [WcStatus::RetryExceeded, WcStatus::RnrRetryExceeded];
                        assert!(
                            status == bad.status() || died.contains(&status) || faulty,
                            "{bad:?} ended as {status}"
                        );
                    }
                    _ => assert!(
                        status == WcStatus::Flushed || first,
                        "{status} behind a failure"
                    ),
                }
                continue;
            }
            assert!(!self.send_failed, "a success behind a failure");
            assert_eq!(record.bad, None, "{record:?} was done");
            if n == place {
                assert!(done.signalled, "a success that nobody asked for");
                assert_eq!(wc.opcode(), record.op.opcode());
            }
            if record.op.fetches() {
                let answer: Vec<u8> = done.buffers.iter().flat_map(|b| b.to_vec()).collect();
                if record.op == Op::Count {
                    let word = answer[..8].try_into().expect("8 bytes");
                    counted.push(u64::from_ne_bytes(word));
                }
                record.answer = Some(answer);
            }
        }
        Some(counted)
    }
}
