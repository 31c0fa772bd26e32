//! A peer that writes anything anywhere, at every step: nothing panics, nothing reaches outside.
//!
//! ```text
//!  us: Inlet, Outlet ── each step: push, look, peek, copy, consume …
//!  the peer's maps of both ── before each step: any word, a cell that looks due, a header that looks right
//! ```
//! What our ends make of it is open, but for where they read and write. They are used on after they
//! found the peer broken, which a connection does not do.

#![allow(unsafe_code, reason = "copies messages")]

use super::layout::{InboxMemory, KIND_SHIFT, word};
use super::{Inlet, Outlet, rig};
use crate::fabric::Note;
use crate::fabric::shm::Geometry;
use crate::memory::copy_message;
use std::num::NonZeroU8;
use std::sync::atomic::Ordering;

const GEOMETRY: Geometry = Geometry {
    cells: 16,
    data_bytes: 4096,
};
const FRAGMENT: usize = 256;

/// xorshift64*: the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn word(&mut self) -> u32 {
        u32::try_from(self.roll() >> 32).expect("32 bits")
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.word() % bound
    }

    fn one_of<const N: usize>(&mut self, choices: [u32; N]) -> u32 {
        choices[self.below(16) as usize % N]
    }
}

/// Writes to a peer's inbox, as whoever maps it can. `due` is the position of its owner.
fn scribble(memory: &InboxMemory, due: u32, dice: &mut Dice) {
    match dice.below(6) {
        0 => {
            let (at, value) = (dice.word() as usize, dice.roll());
            memory.word_at(at).store(value, Ordering::Relaxed);
        }
        1 => {
            let (cells, units) = (dice.below(40), dice.below(200));
            let cells = due.wrapping_add(cells).wrapping_sub(20);
            memory
                .progress()
                .store(word(units, cells), Ordering::Relaxed);
        }
        2 => {
            let value = u64::from(dice.one_of([0, 1, 255, 256, u32::MAX]));
            memory.refusal().store(value, Ordering::Relaxed);
            let value = word(dice.word(), due);
            memory.waits().store(value, Ordering::Relaxed);
        }
        _ => {
            let any = dice.word();
            let len = dice.one_of([0, 1, 8, 47, 48, 49, 255, 256, 257, any & 0x00ff_ffff]);
            let more = dice.one_of([0, 0, 1 << 27, any & 0xf800_0000]);
            let about = dice.below(8) << KIND_SHIFT | len | more;
            let position = due.wrapping_add(dice.one_of([0, 0, 0, 1, 2]));
            let cell = memory.cell(position);
            cell.second().store(dice.roll(), Ordering::Relaxed);
            cell.third()
                .store(u64::from(any) << dice.below(8), Ordering::Relaxed);
            cell.first()
                .store(word(about, position.wrapping_add(1)), Ordering::Release);
        }
    }
}

fn use_inlet(inlet: &mut Inlet, outlet: &mut Outlet, taken: &mut Vec<u8>, dice: &mut Dice) {
    match dice.below(8) {
        0 => inlet.publish(),
        1 => inlet.waits(dice.word()),
        2 => inlet.arm(),
        3 if dice.below(50) == 0 => inlet.refuse(NonZeroU8::MIN),
        _ => {
            let Ok(Some(head)) = inlet.peek() else { return };
            let _ = outlet.note_ack(head.ack());
            let len = head.len() as usize;
            assert!(len <= FRAGMENT && inlet.memory().holds(head.payload(), len));
            taken.resize(len, 0);
            // SAFETY: the head has `len` bytes, as was just asserted, and so has the vector.
            unsafe { copy_message(head.payload(), taken.as_mut_ptr(), len) };
            inlet.consume(head);
        }
    }
}

fn use_outlet(outlet: &mut Outlet, inlet: &mut Inlet, bytes: &[u8], dice: &mut Dice) {
    match dice.below(8) {
        0 | 1 => {
            let _ = outlet.look();
        }
        2 => {
            let _ = outlet.push_written(dice.word(), inlet.ack(), dice.word());
        }
        3 if dice.below(50) == 0 => outlet.push_fault(dice.word(), inlet.ack()),
        4 => {
            let _ = outlet.peer_sleeps();
            inlet.told();
        }
        _ => {
            let left = dice.one_of([0, 8, 48, 49, 256, 1000]);
            let places = std::cell::Cell::new((std::ptr::null(), 0));
            let _ = outlet.push(Note::Imm(1), inlet.ack(), left, |to, len| {
                assert!(len <= FRAGMENT);
                places.set((to.cast_const(), len));
                // SAFETY: `bytes` has a fragment's, and `push` gives the place for `len`.
                unsafe { copy_message(bytes.as_ptr(), to, len) }
            });
            let (at, len) = places.get();
            assert!(at.is_null() || outlet.memory().holds(at, len));
        }
    }
    assert!(outlet.under_way() <= GEOMETRY.cells);
}

#[test]
fn a_scribbling_peer_harms_itself_alone() {
    for seed in 1..=60_u64 {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (mut far_out, mut inlet) = rig::pair(GEOMETRY).expect("a memfd");
        let (mut outlet, far_in) = rig::pair(GEOMETRY).expect("a memfd");
        let begin = dice.one_of([0, u32::MAX - 50, 1 << 31]);
        for end in [&mut far_out, &mut outlet] {
            end.begin_at(begin, begin);
        }
        inlet.begin_at(begin, begin);
        let (mut taken, bytes) = (Vec::new(), [7; FRAGMENT]);
        for _ in 0..3_000 {
            if dice.below(3) == 0 {
                scribble(far_out.memory(), inlet.ack(), &mut dice);
            } else if dice.below(3) == 0 {
                scribble(far_in.memory(), outlet.sent(), &mut dice);
            }
            use_inlet(&mut inlet, &mut outlet, &mut taken, &mut dice);
            use_outlet(&mut outlet, &mut inlet, &bytes, &mut dice);
        }
    }
}
