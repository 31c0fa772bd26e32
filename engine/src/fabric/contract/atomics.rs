//! CAS and FAA: one word, all or nothing, and the value that was there comes back.

use super::bench::{Bench, ConnId};
use super::connection::PairSpec;
use super::memory::MemoryId;
use super::message::Message;
use super::onesided::{both_ways, depth};
use super::{Case, Failure, Need, Verdict};
use crate::fabric::{Fabric, SendOp};
use crate::types::{Access, RemoteSpan};
use std::collections::BTreeSet;

pub(super) fn cases<F: Fabric>() -> [Case<F>; 4] {
    [
        Case::new(
            "cas_swaps_if_equal",
            "a CAS puts its value only where the expected one is, and brings what was there",
            cas,
        )
        .needs(&[Need::Atomics]),
        Case::new(
            "faa_wraps",
            "an FAA adds, wrapping, and brings what was there",
            faa,
        )
        .needs(&[Need::Atomics]),
        Case::new(
            "fetches_mix",
            "READs, CASs and FAAs that fill the depth happen and complete in order",
            mix,
        )
        .needs(&[Need::Atomics]),
        Case::new(
            "no_update_is_lost",
            "FAAs of several connections on one word bring every value once",
            shared_word,
        )
        .needs(&[Need::Atomics]),
    ]
}

/// Puts `start` into a word, does `op`, which must leave `end` there and bring `start`. Nothing but
/// the word and the place of the answer may change.
fn word<F: Fabric>(
    bench: &mut Bench<'_, F>,
    from: ConnId,
    (memory, offset): (MemoryId, usize),
    sink: MemoryId,
    start: u64,
    end: u64,
    op: SendOp,
) -> Verdict {
    bench.fill(memory, offset, &start.to_ne_bytes())?;
    bench.want(memory, offset, &end.to_ne_bytes());
    let here = 40 + offset % 64;
    bench.want(sink, here, &start.to_ne_bytes());
    let place = bench.place(sink, here, 8);
    bench.send(from, &[Message::fetch(op, &[place])])?;
    bench.sent(from)?;
    let what = |f: Failure| f.during(&format!("{op:?} on {start:#x}"));
    bench.check(sink).map_err(what)?;
    bench.check(memory).map_err(what)
}

/// Tries each of `tries` on words all over a memory, both ways: what is there, what must be there
/// then, and the operation.
fn everywhere<F: Fabric>(
    bench: &mut Bench<'_, F>,
    tries: &[(u64, u64, impl Fn(RemoteSpan) -> SendOp)],
) -> Verdict {
    let pair = bench.greeted(&PairSpec {
        access: Access::REMOTE_ATOMIC,
        ..PairSpec::default()
    })?;
    for (from, to) in both_ways(&pair) {
        let memory = bench.memory(to, 4096, Access::REMOTE_ATOMIC)?;
        let sink = bench.sink(from, 4096)?;
        let last = bench.size_of(memory) - 8;
        for (start, end, op) in tries {
            for offset in [0, 8, 24, 2048, last] {
                let op = op(bench.span(memory, offset)?);
                word(bench, from, (memory, offset), sink, *start, *end, op)?;
            }
        }
    }
    Ok(())
}

fn cas<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let tries = [
        (5, 5, 9),
        (5, 4, 9),
        (0, 0, u64::MAX),
        (u64::MAX, u64::MAX, 0),
        (u64::MAX, 0, 7),
        (
            0x0102_0304_0506_0708,
            0x0102_0304_0506_0708,
            0x1112_1314_1516_1718,
        ),
        // They differ in one bit only, of either half.
        (0x8000_0000_0000_0000, 0, 3),
        (1, 0, 3),
    ];
    let tries = tries.map(|(start, expect, swap)| {
        let end = if start == expect { swap } else { start };
        (start, end, move |at| SendOp::CompareSwap {
            at,
            expect,
            swap,
        })
    });
    everywhere(bench, &tries)
}

fn faa<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let tries = [
        (5u64, 9u64),
        (5, 0),
        (u64::MAX, 1),
        (u64::MAX - 1, u64::MAX),
        (0xffff_ffff, 1),
        (0x0102_0304_0506_0708, 0x1112_1314_1516_1718),
    ];
    let tries = tries.map(|(start, add)| {
        let end = start.wrapping_add(add);
        (start, end, move |at| SendOp::FetchAdd { at, add })
    });
    everywhere(bench, &tries)
}

fn mix<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let depth = depth(bench)?;
    let access = Access::REMOTE_ATOMIC | Access::REMOTE_READ;
    let pair = bench.greeted(&PairSpec {
        access,
        fetches: depth,
        ..PairSpec::default()
    })?;
    let memory = bench.memory(pair.passive, 4096, access)?;
    let sink = bench.sink(pair.active, 4096)?;
    let at = bench.span(memory, 512)?;
    let mut value = 1000u64;
    bench.fill(memory, 512, &value.to_ne_bytes())?;
    for _ in 0..4 {
        let mut chain = Vec::new();
        for n in 0..usize::from(depth) {
            let (op, next) = match n % 3 {
                0 => (SendOp::FetchAdd { at, add: 7 }, value + 7),
                1 => {
                    let (expect, swap) = (value, value * 3);
                    (SendOp::CompareSwap { at, expect, swap }, swap)
                }
                _ => (SendOp::Read(at), value),
            };
            let here = 16 * n;
            bench.want(sink, here, &value.to_ne_bytes());
            chain.push(Message::fetch(op, &[bench.place(sink, here, 8)]));
            value = next % 0xffff_ffff_ffff;
            if value != next {
                break;
            }
        }
        let count = chain.len();
        bench.send(pair.active, &chain)?;
        for _ in 0..count {
            bench.sent(pair.active)?;
        }
        bench.want(memory, 512, &value.to_ne_bytes());
        bench.check(sink)?;
        bench.check(memory)?;
    }
    Ok(())
}

fn shared_word<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let depth = depth(bench)?.min(8);
    let mut spec = PairSpec {
        access: Access::REMOTE_ATOMIC,
        fetches: depth,
        receives: 2,
        ..PairSpec::default()
    };
    let mut pairs = Vec::new();
    for _ in 0..4 {
        let pair = bench.greeted(&spec)?;
        spec.sides = Some((bench.side_of(pair.active)?, bench.side_of(pair.passive)?));
        pairs.push(pair);
    }
    let memory = bench.memory(pairs[0].passive, 4096, Access::REMOTE_ATOMIC)?;
    let sink = bench.sink(pairs[0].active, 4096)?;
    let start = u64::MAX - 40;
    bench.fill(memory, 8, &start.to_ne_bytes())?;
    let at = bench.span(memory, 8)?;
    let count = usize::from(depth);
    let mut seen = BTreeSet::new();
    let rounds = 10;
    for _ in 0..rounds {
        // All of them are under way before any completion is taken.
        for (which, pair) in pairs.iter().enumerate() {
            let chain: Vec<_> = (0..count)
                .map(|n| {
                    let place = bench.place(sink, (which * count + n) * 8, 8);
                    Message::fetch(SendOp::FetchAdd { at, add: 1 }, &[place])
                })
                .collect();
            bench.send(pair.active, &chain)?;
        }
        for (which, pair) in pairs.iter().enumerate() {
            let mut before = None;
            for n in 0..count {
                bench.sent(pair.active)?;
                let bytes = bench.look(sink, (which * count + n) * 8, 8)?;
                let word = <[u8; 8]>::try_from(&bytes[..]).unwrap_or_default();
                let step = u64::from_ne_bytes(word).wrapping_sub(start);
                ensure!(
                    before.is_none_or(|b| b < step),
                    "connection {which} was told of step {step} after {before:?}"
                );
                ensure!(seen.insert(step), "step {step} was told of twice");
                before = Some(step);
            }
        }
    }
    let total = (rounds * count * pairs.len()) as u64;
    ensure!(
        seen.last() == Some(&(total - 1)),
        "of {total} steps the last that was told of is {:?}",
        seen.last()
    );
    bench.want(memory, 8, &start.wrapping_add(total).to_ne_bytes());
    bench.check(memory)
}
