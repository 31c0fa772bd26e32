//! What a peer may do to an inbox, done by writing to the same memory; and what it may ask for.

#![allow(unsafe_code, reason = "scribbles over inboxes as a hostile peer would")]

use super::*;
use crate::fabric::shm::events::REFUSED_MAX;
use std::sync::atomic::{AtomicU64, Ordering};

/// The same numbers for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.roll() % n as u64).expect("small")
    }
}

/// As a peer that has the inbox mapped: anything, or what looks like the next cells.
fn scribble(dice: &mut Dice, inbox: &Memfd, near: u64) {
    let word = |at: usize, value: u64| {
        assert!(at + 8 <= inbox.bytes() && at.is_multiple_of(8));
        // SAFETY: `add` requires that the result stays in the mapping: seen above.
        let at = unsafe { inbox.base().add(at) };
        // SAFETY: `from_ptr` requires 8 aligned, mapped bytes, which others access by atomics or by the
        // copy routines: the offset is a multiple of 8, and the lanes do no other.
        unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }.store(value, Ordering::Relaxed);
    };
    match dice.below(4) {
        0 => {
            // The header: progress, refusal, waits, and beyond.
            let value = if dice.below(2) == 0 {
                dice.roll()
            } else {
                dice.roll() % 8
            };
            word(dice.below(24) * 8, value);
        }
        1 => word(dice.below(inbox.bytes() / 8) * 8, dice.roll()),
        _ => {
            // A cell that is due, of some kind and length.
            let sequence = near + dice.roll() % 4;
            let about = match dice.below(3) {
                0 => dice.roll() >> 32,
                1 => (dice.roll() % 6) << 24 | (dice.roll() % 64),
                _ => (dice.roll() % 6) << 24 | (dice.roll() % 20_000) | (dice.roll() % 2) << 27,
            };
            let cell = 4096 + usize::try_from((sequence.wrapping_sub(1)) % 256).unwrap() * 64;
            word(cell + 8, dice.roll());
            word(cell + 16, dice.roll());
            word(cell, about << 32 | (sequence & 0xffff_ffff));
        }
    }
}

#[test]
fn a_peer_that_scribbles_ends_its_connection_and_no_other() {
    let mut rig = Rig::new("scribble", 0);
    let mut honest = rig.connect(false);
    for seed in 1..=120_u64 {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut ends = rig.connect(false);
        let numbers = [0, 1].map(|n: usize| ends[n].control.handle.number);
        // By end: sends and receives that were posted, and those that came back.
        let (mut posted, mut done) = ([0, 0], [0, 0]);
        for step in 0..60 {
            let at = dice.below(2);
            match dice.below(4) {
                0 => {
                    let recv = rig.recv(7, dice.below(100) * 4096);
                    let taken = rig.lanes[at].post_recv(&mut ends[at].qp, &[recv]);
                    posted[at] += u32::from(taken.is_ok());
                }
                1 => {
                    let span = RemoteSpan {
                        addr: rig.addr(0),
                        rkey: rig.registration.rkey(),
                    };
                    let op = match dice.below(4) {
                        0 => SendOp::Write(span),
                        1 => SendOp::Read(span),
                        2 => SendOp::WriteImm(span, 3),
                        _ => SendOp::Send,
                    };
                    let wr = rig.send(op, 8192, dice.below(6000));
                    let taken = rig.lanes[at].post_send(&mut ends[at].qp, &[wr], &[]);
                    posted[at] += u32::from(taken.is_ok());
                }
                2 => scribble(&mut dice, &ends[at].inbox, step / 8 + 1),
                _ => {
                    for wc in rig.poll(at) {
                        assert_eq!(wc.qp_num(), numbers[at]);
                        done[at] += 1;
                    }
                }
            }
        }
        let _ = rig.fabric.next_event();
        for at in [0, 1] {
            let end = &mut ends[at];
            let fabric = &mut rig.fabric;
            fabric.set_error(&mut end.id, &mut end.control).unwrap();
            loop {
                let all = rig.poll(at);
                if all.is_empty() {
                    break;
                }
                done[at] += u32::try_from(all.len()).unwrap();
            }
        }
        assert_eq!(
            posted, done,
            "seed {seed}: each work request completes once"
        );
        for end in ends {
            rig.destroy(end);
        }
        while rig.fabric.next_event().unwrap().is_some() {}
        while rig.fabric.next_async_event().is_some() {}
        // The other connection of the same lanes is none the worse.
        let recv = rig.recv(seed, 0);
        rig.lanes[1].post_recv(&mut honest[1].qp, &[recv]).unwrap();
        let wr = rig.send(SendOp::Send, 8192, 3000);
        rig.lanes[0]
            .post_send(&mut honest[0].qp, &[wr], &[])
            .unwrap();
        let came = rig.poll(1);
        assert_eq!(came.len(), 1);
        assert_eq!((came[0].wr_id(), came[0].byte_len()), (seed, 3000));
        assert!(rig.poll(1).is_empty());
        assert_eq!(rig.poll(0).len(), 1);
    }
    for end in honest {
        rig.destroy(end);
    }
    assert_eq!(rig.fabric.alive(), (0, 1));
}

/// A key names a region of any connection, but gives no more than the QP that it is asked through.
#[test]
fn a_grant_is_what_registration_and_qp_both_allow() {
    let mut rig = Rig::new("grants", 0);
    let ends = rig.connect(false);
    let rkey = rig.registration.rkey();
    let key = ends[0].id.key;
    let grant = rig.fabric.grant(key, rkey).unwrap();
    assert_eq!(grant.access, Access::REMOTE_READ | Access::REMOTE_WRITE);
    assert!(!grant.seal, "it is for writing");
    rig.fabric.links.get_mut(&key).unwrap().access = Access::REMOTE_READ;
    let grant = rig.fabric.grant(key, rkey).unwrap();
    assert_eq!(grant.access, Access::REMOTE_READ);
    assert!(!grant.seal, "others write it");
    rig.fabric.links.get_mut(&key).unwrap().access = Access::REMOTE_ATOMIC;
    assert!(rig.fabric.grant(key, rkey).is_none());
    assert!(rig.fabric.grant(key, Rkey(rkey.0 ^ 1 << 20)).is_none());
    let [active, passive] = ends;
    rig.destroy(active);
    rig.destroy(passive);
}

#[test]
fn a_peer_that_guesses_keys_is_left() {
    let mut rig = Rig::new("guesses", 0);
    let [active, passive] = rig.connect(false);
    for n in 0..=REFUSED_MAX {
        let guess = Rkey(0x8000_0000 | n << 12);
        let asked = rig.fabric.door.lock().ask_region(active.id.key, guess);
        asked.unwrap();
    }
    rig.event(CmEventKind::Disconnected);
    rig.destroy(active);
    rig.destroy(passive);
}
