//! As many as one thread sends and another receives.

use crate::Fallible;
use crate::link::{link, read};
use crate::threads::both;
use spinwire::fabric::shm::Geometry;
use spinwire::sys::affinity::pin_current_thread;
use spinwire::sys::clock::Clock;
use spinwire::types::CoreId;
use std::hint::black_box;
use std::time::Duration;

/// What the receiving thread does with a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receiver {
    /// Copies it out and reads it.
    Copies,
    /// Lets it go.
    Skips,
}

/// Messages a round: about 60 ms.
fn count(bytes: usize) -> u32 {
    if bytes <= 256 { 3_000_000 } else { 200_000 }
}

/// Millions a second.
fn rate(count: u32, nanos: u64) -> f64 {
    f64::from(count) / Duration::from_nanos(nanos).as_secs_f64() / 1e6
}

/// Messages of so many bytes one way, until the last is acknowledged.
pub(crate) fn ring(
    cores: [CoreId; 2],
    geometry: Geometry,
    bytes: usize,
    receiver: Receiver,
) -> Fallible<f64> {
    let (mut here, mut there) = link(geometry)?;
    let (message, mut slots) = (vec![7; bytes], vec![0; bytes * SLOTS]);
    let clock = Clock::calibrated();
    let count = count(bytes);
    let warm_up = count / 10;
    both(
        cores,
        move || {
            for _ in 0..warm_up {
                here.send(black_box(&message))?;
            }
            here.drain()?;
            let began = clock.now();
            for _ in 0..count {
                here.send(black_box(&message))?;
            }
            here.drain()?;
            Ok(rate(count, clock.now().since(began)))
        },
        move || {
            let mut left = warm_up + count;
            while left > 0 {
                let got = match receiver {
                    Receiver::Copies => {
                        // Receives of a queue: one slot after the other.
                        let at = left as usize % SLOTS * bytes;
                        there.receive(&mut slots[at..at + bytes])?
                    }
                    Receiver::Skips => there.skip()?,
                };
                if got {
                    left -= 1;
                } else {
                    there.idle();
                }
            }
            there.idle();
            Ok(())
        },
    )
}

/// Receives that messages are copied to in turn.
const SLOTS: usize = 64;

/// Copies by one thread between warm buffers, as many as a ring has fragments of.
pub(crate) fn copies(cores: [CoreId; 2], bytes: usize) -> Fallible<f64> {
    pin_current_thread(cores[0])?;
    let (message, mut slots) = (vec![7; bytes], vec![0; bytes * SLOTS]);
    let clock = Clock::calibrated();
    let count = count(bytes);
    let began = clock.now();
    for number in 0..count {
        let at = number as usize % SLOTS * bytes;
        slots[at..at + bytes].copy_from_slice(black_box(&message));
        read(&slots[at..at + bytes]);
    }
    Ok(rate(count, clock.now().since(began)))
}

/// Memory on either side of [`far_copies`]: what no cache holds.
const FAR_BYTES: usize = 64 << 20;

/// Copies by one thread from and to memory that is in no cache, place by place.
pub(crate) fn far_copies(cores: [CoreId; 2], bytes: usize) -> Fallible<f64> {
    pin_current_thread(cores[0])?;
    let (from, mut to) = (vec![7_u8; FAR_BYTES], vec![1_u8; FAR_BYTES]);
    let clock = Clock::calibrated();
    let mut copied = 0;
    let began = clock.now();
    for _ in 0..2 {
        for (from, to) in from.chunks_exact(bytes).zip(to.chunks_exact_mut(bytes)) {
            to.copy_from_slice(black_box(from));
            copied += 1;
        }
    }
    let took = clock.now().since(began);
    read(&to);
    Ok(rate(copied, took))
}
