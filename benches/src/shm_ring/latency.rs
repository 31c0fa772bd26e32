//! To and fro: half of the median round trip.

use crate::Fallible;
use crate::link::link;
use crate::threads::both;
use spinwire::fabric::shm::Geometry;
use spinwire::sys::clock::Clock;
use spinwire::types::CoreId;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

const WARM_UP: u32 = 20_000;
const TRIPS: u32 = 100_000;

/// A line of the cache by itself, and the one that may be fetched with it.
#[repr(align(128))]
struct Line(AtomicU64);

/// Half of the median of what `trip` takes.
fn half_trip(mut trip: impl FnMut(u64) -> Fallible<()>) -> Fallible<f64> {
    let clock = Clock::calibrated();
    let mut number = 0;
    for _ in 0..WARM_UP {
        number += 1;
        trip(number)?;
    }
    let mut trips = Vec::with_capacity(TRIPS as usize);
    let mut began = clock.now();
    for _ in 0..TRIPS {
        number += 1;
        trip(number)?;
        let ended = clock.now();
        trips.push(ended.since(began));
        began = ended;
    }
    trips.sort_unstable();
    let median = u32::try_from(trips[trips.len() / 2])?;
    Ok(f64::from(median) / 2.0)
}

const ALL: u64 = WARM_UP as u64 + TRIPS as u64;

/// Two cores write one line by turns.
pub(crate) fn one_line(cores: [CoreId; 2]) -> Fallible<f64> {
    let line = Line(AtomicU64::new(0));
    let wait = |value| while line.0.load(Ordering::Acquire) != value {};
    both(
        cores,
        || {
            half_trip(|number| {
                line.0.store(2 * number - 1, Ordering::Release);
                wait(2 * number);
                Ok(())
            })
        },
        || {
            for number in 1..=ALL {
                wait(2 * number - 1);
                line.0.store(2 * number, Ordering::Release);
            }
            Ok(())
        },
    )
}

/// Each core writes a line of its own.
pub(crate) fn two_lines(cores: [CoreId; 2]) -> Fallible<f64> {
    let (to, fro) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let wait = |line: &Line, value| while line.0.load(Ordering::Acquire) != value {};
    both(
        cores,
        || {
            half_trip(|number| {
                to.0.store(number, Ordering::Release);
                wait(&fro, number);
                Ok(())
            })
        },
        || {
            for number in 1..=ALL {
                wait(&to, number);
                fro.0.store(number, Ordering::Release);
            }
            Ok(())
        },
    )
}

/// Messages of so many bytes, copied out and read at both ends.
pub(crate) fn ring(cores: [CoreId; 2], geometry: Geometry, bytes: usize) -> Fallible<f64> {
    let (mut here, mut there) = link(geometry)?;
    let (message, mut into) = (vec![7; bytes], vec![0; bytes]);
    let (echo, mut slot) = (message.clone(), into.clone());
    both(
        cores,
        move || {
            half_trip(|_| {
                here.send(black_box(&message))?;
                while !here.receive(&mut into)? {}
                Ok(())
            })
        },
        move || {
            for _ in 0..ALL {
                while !there.receive(&mut slot)? {}
                there.send(black_box(&echo))?;
            }
            Ok(())
        },
    )
}
