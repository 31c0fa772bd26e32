//! Each promise of an inbox by itself, and two threads on two maps.

#![allow(unsafe_code, reason = "copies messages")]

use super::layout::{KIND_SHIFT, MORE, kind, word};
use super::rig;
use super::{Broken, Full, Head, Inlet, Outlet, What};
use crate::fabric::Note;
use crate::fabric::shm::Geometry;
use crate::memory::copy_message;
use std::num::NonZeroU8;
use std::sync::atomic::Ordering;
use std::thread;

/// The smallest: fragments of 256 B.
pub(super) const SMALL: Geometry = Geometry {
    cells: 16,
    data_bytes: 4096,
};

pub(super) fn ends(geometry: Geometry) -> (Outlet, Inlet) {
    rig::pair(geometry).expect("a memfd")
}

pub(super) fn push(outlet: &mut Outlet, note: Note, ack: u32, bytes: &[u8]) -> Result<u32, Full> {
    let left = u32::try_from(bytes.len()).expect("a short message");
    outlet.push(note, ack, left, |to, len| {
        assert!(len <= bytes.len());
        // SAFETY: `len` bytes are in `bytes`, and `push` gives the place for as many.
        unsafe { copy_message(bytes.as_ptr(), to, len) }
    })
}

pub(super) fn copy_out(head: &Head, into: &mut Vec<u8>) {
    let mut bytes = vec![0; head.len() as usize];
    // SAFETY: the head has so many bytes, and so has the vector.
    unsafe { copy_message(head.payload(), bytes.as_mut_ptr(), bytes.len()) };
    into.extend(bytes);
}

pub(super) fn bytes_of(len: usize, seed: u32) -> Vec<u8> {
    let salt = seed.wrapping_mul(2_654_435_761) >> 13;
    let byte = |i: u32| (i.wrapping_mul(31) ^ salt).to_le_bytes()[0];
    (0..).map(byte).take(len).collect()
}

#[test]
fn one_cell_is_kept_for_a_fault() {
    let (mut outlet, mut inlet) = ends(SMALL);
    let pushed = std::iter::from_fn(|| push(&mut outlet, Note::None, 0, b"x").ok()).count();
    assert_eq!(pushed, 15);
    assert_eq!(outlet.push_written(1, 0, 1), Err(Full));
    outlet.push_fault(9, 0);
    outlet.push_fault(10, 0); // No room, and nobody misses it.
    assert_eq!(outlet.under_way(), 16);
    let mut last = None;
    while let Some(head) = inlet.peek().expect("an honest peer") {
        last = Some(head.what());
        inlet.consume(head);
    }
    assert_eq!(last, Some(What::Fault(9)));
}

#[test]
fn data_runs_out_before_cells() {
    let (mut outlet, mut inlet) = ends(SMALL);
    let message = [3; 256];
    let pushed = std::iter::from_fn(|| push(&mut outlet, Note::None, 0, &message).ok()).count();
    assert_eq!(pushed, 15, "the last sixteenth has no cell");
    let head = inlet.peek().expect("honest").expect("there");
    inlet.consume(head);
    outlet.note_ack(1).expect("true");
    assert_eq!(push(&mut outlet, Note::None, 0, &message), Ok(256));
    // A cell is free, but no data that we know of: acks give back cells alone.
    let head = inlet.peek().expect("honest").expect("there");
    inlet.consume(head);
    outlet.note_ack(2).expect("true");
    assert_eq!(push(&mut outlet, Note::None, 0, &message), Err(Full));
    inlet.publish();
    outlet.look().expect("honest");
    assert_eq!(push(&mut outlet, Note::None, 0, &message), Ok(256));
}

#[test]
fn acks_that_lie_are_found_out() {
    let (mut outlet, inlet) = ends(SMALL);
    for _ in 0..5 {
        push(&mut outlet, Note::None, 0, b"x").expect("room");
    }
    assert_eq!(outlet.note_ack(6), Err(Broken::Ack));
    assert_eq!(outlet.note_ack(3), Ok(()));
    assert_eq!(outlet.note_ack(1), Ok(()), "the other way is slower");
    assert_eq!(outlet.under_way(), 2);
    assert_eq!(outlet.note_ack(3_u32.wrapping_sub(17)), Err(Broken::Ack));
    let progress = inlet.memory().progress();
    progress.store(word(0, 6), Ordering::Release);
    assert_eq!(outlet.look(), Err(Broken::Ack));
    progress.store(word(1, 5), Ordering::Release);
    assert_eq!(outlet.look(), Err(Broken::Room));
    progress.store(word(0, 5), Ordering::Release);
    inlet.memory().refusal().store(256, Ordering::Release);
    assert_eq!(outlet.look(), Err(Broken::Refusal));
}

#[test]
fn cells_that_no_peer_writes_are_refused() {
    let message = |len| kind::SEND << KIND_SHIFT | len;
    let cases = [
        (0, 0, Broken::Kind),
        (6 << KIND_SHIFT, 0, Broken::Kind),
        (7 << KIND_SHIFT, 0, Broken::Kind),
        (message(8) | MORE << 1, 0, Broken::Kind),
        (message(8) | 1 << 31, 0, Broken::Kind),
        (message(257), 0, Broken::Length),
        (message((1 << 24) - 1), 0, Broken::Length),
        (message(0) | MORE, 0, Broken::Length),
        (message(255) | MORE, 0, Broken::Length),
        (kind::WRITTEN << KIND_SHIFT | 8, 0, Broken::Length),
        (kind::WRITTEN << KIND_SHIFT, 1 << 32, Broken::Length),
        (kind::WRITTEN << KIND_SHIFT | MORE, 0, Broken::Length),
        (kind::FAULT << KIND_SHIFT | MORE, 0, Broken::Length),
    ];
    for (about, third, error) in cases {
        let (outlet, mut inlet) = ends(SMALL);
        let cell = outlet.memory().cell(0);
        cell.third().store(third, Ordering::Relaxed);
        cell.first().store(word(about, 1), Ordering::Release);
        assert_eq!(inlet.peek().expect_err("refused"), error, "{about:#x}");
    }
}

#[test]
fn inside_a_message_only_its_fragments_and_a_fault_may_come() {
    for (code, refused) in [
        (kind::WRITTEN, true),
        (kind::FAULT, false),
        (kind::SEND, false),
    ] {
        let (mut outlet, mut inlet) = ends(SMALL);
        assert_eq!(push(&mut outlet, Note::None, 0, &[1; 300]), Ok(256));
        let head = inlet.peek().expect("honest").expect("there");
        assert!(head.has_more());
        inlet.consume(head);
        let first = word(code << KIND_SHIFT, 2);
        outlet
            .memory()
            .cell(1)
            .first()
            .store(first, Ordering::Release);
        assert_eq!(inlet.peek().is_err(), refused, "kind {code}");
    }
}

#[test]
fn waiting_is_told_of_the_head_alone() {
    let (mut outlet, mut inlet) = ends(SMALL);
    let look = |outlet: &mut Outlet| outlet.look().expect("honest").waited;
    assert_eq!(look(&mut outlet), 0);
    for _ in 0..2 {
        push(&mut outlet, Note::None, 0, b"x").expect("room");
    }
    let head = inlet.peek().expect("honest").expect("there");
    inlet.consume(head);
    inlet.waits(3);
    assert_eq!(look(&mut outlet), 3);
    assert_eq!(outlet.under_way(), 1, "what is before it is acknowledged");
    let head = inlet.peek().expect("honest").expect("there");
    inlet.consume(head);
    inlet.publish();
    assert_eq!(look(&mut outlet), 0);
}

#[test]
fn a_refusal_acknowledges_what_was_before() {
    let (mut outlet, mut inlet) = ends(SMALL);
    for _ in 0..3 {
        push(&mut outlet, Note::None, 0, b"x").expect("room");
    }
    for _ in 0..2 {
        let head = inlet.peek().expect("honest").expect("there");
        inlet.consume(head);
    }
    let code = NonZeroU8::new(5).expect("not zero");
    inlet.refuse(code);
    let look = outlet.look().expect("honest");
    assert_eq!((look.refusal, outlet.under_way()), (Some(code), 1));
}

#[test]
fn one_of_those_who_send_wakes_the_sleeper() {
    let (outlet, mut inlet) = ends(SMALL);
    assert!(!outlet.peer_sleeps());
    inlet.arm();
    assert!(outlet.peer_sleeps());
    assert!(!outlet.peer_sleeps());
    inlet.arm();
    inlet.disarm();
    assert!(!outlet.peer_sleeps());
}

/// A message's length and seed by its number.
fn plan(number: u32) -> usize {
    let mixed = number.wrapping_mul(0x9e37_79b9) >> 16;
    match mixed & 3 {
        0 | 1 => (mixed >> 2) as usize % 49,
        2 => (mixed >> 2) as usize % 700,
        _ => (mixed >> 2) as usize % 5000,
    }
}

#[test]
fn two_threads_on_two_maps() {
    const MESSAGES: u32 = 30_000;
    let geometry = Geometry {
        cells: 64,
        data_bytes: 1 << 14,
    };
    let (mut out, mut far_in) = ends(geometry);
    let (mut far_out, mut back) = ends(geometry);
    // Receives all, answers every fifth by an empty message that carries the ack.
    let far = thread::spawn(move || {
        let (mut number, mut bytes) = (0, Vec::new());
        while number < MESSAGES {
            let Some(head) = far_in.peek().expect("an honest peer") else {
                if far_in.owes_ack() {
                    far_in.publish();
                }
                thread::yield_now();
                continue;
            };
            copy_out(&head, &mut bytes);
            far_out.note_ack(head.ack()).expect("true");
            let more = head.has_more();
            far_in.consume(head);
            if more {
                continue;
            }
            assert_eq!(bytes, bytes_of(plan(number), number), "message {number}");
            bytes.clear();
            number += 1;
            if number % 5 == 0 && push(&mut far_out, Note::None, far_in.ack(), b"").is_ok() {
                far_in.told();
            }
        }
        far_in.publish();
    });
    let receive = |out: &mut Outlet, back: &mut Inlet| {
        while let Some(head) = back.peek().expect("an honest peer") {
            out.note_ack(head.ack()).expect("true");
            back.consume(head);
        }
        out.look().expect("an honest peer");
    };
    for number in 0..MESSAGES {
        let bytes = bytes_of(plan(number), number);
        let mut offset = 0;
        loop {
            match push(&mut out, Note::None, back.ack(), &bytes[offset..]) {
                Ok(pushed) => {
                    back.told();
                    offset += pushed as usize;
                    if offset == bytes.len() {
                        break;
                    }
                }
                Err(Full) => {
                    assert!(!far.is_finished(), "it waits for more");
                    receive(&mut out, &mut back);
                    thread::yield_now();
                }
            }
        }
    }
    while out.under_way() > 0 {
        let finished = far.is_finished();
        receive(&mut out, &mut back);
        assert!(!finished || out.under_way() == 0);
        thread::yield_now();
    }
    far.join().expect("it received all");
}
