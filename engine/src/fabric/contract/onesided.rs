//! WRITE and READ: bytes go where they are asked to, in both directions, and the peer takes no part.

use super::bench::{Bench, ConnId};
use super::completions::quiet;
use super::connection::{Pair, PairSpec};
use super::message::{Message, pattern};
use super::side::{Queue, SideSpec};
use super::{Case, Failure, Verdict};
use crate::fabric::{Fabric, SendOp};
use crate::limits::POST_CHAIN_MAX;
use crate::types::Access;

pub(super) fn cases<F: Fabric>() -> [Case<F>; 8] {
    [
        Case::new(
            "write_lands",
            "a WRITE puts its bytes where asked and nowhere else, completes once, takes no receive",
            write_lands,
        ),
        Case::new(
            "write_chain",
            "of a chain of WRITEs the last alone completes if it alone is signalled, and all land",
            write_chain,
        ),
        Case::new(
            "send_behind_write",
            "who gets a message finds the WRITEs done that were posted before it",
            send_behind_write,
        ),
        Case::new(
            "read_brings",
            "a READ brings the bytes asked for to the place asked for, and nothing else",
            read_brings,
        ),
        Case::new(
            "read_behind_write",
            "a READ behind a WRITE brings what it wrote",
            read_behind_write,
        ),
        Case::new(
            "reads_fill_the_depth",
            "as many READs as the handshake settled can be outstanding; they complete in order",
            reads_fill_the_depth,
        ),
        Case::new(
            "no_bytes",
            "a WRITE or READ of no bytes completes and changes nothing",
            no_bytes,
        ),
        Case::new(
            "long_write_and_read",
            "a WRITE and a READ of many packets move every byte",
            long,
        ),
    ]
}

/// Both directions.
pub(super) fn both_ways(pair: &Pair) -> [(ConnId, ConnId); 2] {
    [(pair.active, pair.passive), (pair.passive, pair.active)]
}

/// A message and its completions; what was posted before it is done then.
pub(super) fn tell<F: Fabric>(bench: &mut Bench<'_, F>, from: ConnId, to: ConnId) -> Verdict {
    bench.send(from, &[Message::new(vec![0xa5; 9])])?;
    bench.received(to, &[0xa5; 9])?;
    bench.sent(from).map(drop)
}

/// READs and atomics that an end of this device may have outstanding, at most 16.
pub(super) fn depth<F: Fabric>(bench: &mut Bench<'_, F>) -> Result<u8, Failure> {
    let limits = bench.probe()?;
    let most = limits
        .rd_atomic_initiator_max
        .min(limits.rd_atomic_responder_max);
    ensure!(
        most > 0,
        "the device says that it takes no READs ({limits:?})"
    );
    Ok(u8::try_from(most).unwrap_or(u8::MAX).min(16))
}

fn write_lands<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    // One receive more than messages: a WRITE that took one would be seen.
    let pair = bench.greeted(&PairSpec {
        receives: 3,
        access: Access::REMOTE_WRITE,
        ..PairSpec::default()
    })?;
    for (from, to) in both_ways(&pair) {
        let memory = bench.memory(to, 40_000, Access::REMOTE_WRITE)?;
        let limit = bench.inline_bytes(from);
        let mut offset = 3;
        for (n, len) in [1, 7, limit, limit + 1, 4096, 5001, 12_000]
            .into_iter()
            .enumerate()
        {
            for inline in [false, true] {
                if inline && len > limit {
                    continue;
                }
                let data = pattern(2 * n as u64 + u64::from(inline), len);
                bench.want(memory, offset, &data);
                let op = SendOp::Write(bench.span(memory, offset)?);
                let message = Message {
                    inline,
                    ..Message::of(op, data)
                };
                bench.send(from, &[message])?;
                bench
                    .sent(from)
                    .map_err(|f| f.during(&format!("a WRITE of {len} B")))?;
                offset += len + 5;
            }
        }
        tell(bench, from, to)?;
        bench.check(memory)?;
        quiet(bench, from, Queue::Send)?;
        quiet(bench, to, Queue::Recv)?;
    }
    Ok(())
}

fn write_chain<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.greeted(&PairSpec {
        access: Access::REMOTE_WRITE,
        ..PairSpec::default()
    })?;
    for (from, to) in both_ways(&pair) {
        let memory = bench.memory(to, POST_CHAIN_MAX * 512, Access::REMOTE_WRITE)?;
        let mut chain = Vec::new();
        for n in 0..POST_CHAIN_MAX {
            let (offset, data) = (n * 512 + n, pattern(n as u64, 10 * n + 1));
            bench.want(memory, offset, &data);
            let op = SendOp::Write(bench.span(memory, offset)?);
            chain.push(Message {
                signalled: n + 1 == POST_CHAIN_MAX,
                ..Message::of(op, data)
            });
        }
        bench.send(from, &chain)?;
        bench.sent(from)?;
        tell(bench, from, to)?;
        bench.check(memory)?;
        quiet(bench, from, Queue::Send)?;
    }
    Ok(())
}

fn send_behind_write<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let rounds = 60;
    let pair = bench.greeted(&PairSpec {
        receives: 32,
        access: Access::REMOTE_WRITE,
        ..PairSpec::default()
    })?;
    for (from, to) in both_ways(&pair) {
        let memory = bench.memory(to, 8192, Access::REMOTE_WRITE)?;
        for n in 0..rounds {
            let data = pattern(n, 3500);
            let offset = usize::try_from(n * 61 % 4000).unwrap_or(0);
            let op = SendOp::Write(bench.span(memory, offset)?);
            let word = pattern(n + 1000, 40);
            let chain = [
                Message::of(op, data.clone()).unsignalled(),
                Message::new(word.clone()),
            ];
            bench.send(from, &chain)?;
            bench.received(to, &word)?;
            bench.want(memory, offset, &data);
            bench
                .check(memory)
                .map_err(|f| f.during(&format!("round {n}")))?;
            bench.sent(from)?;
            bench.receive(to, 1)?;
        }
    }
    Ok(())
}

fn read_brings<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.greeted(&PairSpec {
        receives: 2,
        access: Access::REMOTE_READ,
        ..PairSpec::default()
    })?;
    for (from, to) in both_ways(&pair) {
        let memory = bench.memory(to, 40_000, Access::REMOTE_READ)?;
        let sink = bench.sink(from, 40_000)?;
        for (there, here, len) in [
            (0, 0, 1),
            (1, 2, 7),
            (4095, 17, 64),
            (8191, 8190, 4096),
            (13, 20_001, 5001),
            (20_003, 3, 12_000),
        ] {
            let data = bench.wanted(memory, there, len);
            bench.want(sink, here, &data);
            let op = SendOp::Read(bench.span(memory, there)?);
            let place = bench.place(sink, here, len);
            bench.send(from, &[Message::fetch(op, &[place])])?;
            bench.sent(from)?;
            bench
                .check(sink)
                .map_err(|f| f.during(&format!("a READ of {len} B from {there} to {here}")))?;
        }
        bench.check(memory)?;
        quiet(bench, to, Queue::Recv)?;
    }
    Ok(())
}

fn read_behind_write<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.greeted(&PairSpec {
        access: Access::REMOTE_READ | Access::REMOTE_WRITE,
        ..PairSpec::default()
    })?;
    let memory = bench.memory(
        pair.passive,
        8192,
        Access::REMOTE_READ | Access::REMOTE_WRITE,
    )?;
    let sink = bench.sink(pair.active, 8192)?;
    let at = bench.span(memory, 100)?;
    for n in 0..40 {
        let data = pattern(n, 3000);
        bench.want(memory, 100, &data);
        bench.want(sink, 5, &data);
        let place = bench.place(sink, 5, data.len());
        let chain = [
            Message::of(SendOp::Write(at), data).unsignalled(),
            Message::fetch(SendOp::Read(at), &[place]),
        ];
        bench.send(pair.active, &chain)?;
        bench.sent(pair.active)?;
        bench
            .check(sink)
            .map_err(|f| f.during(&format!("round {n}")))?;
    }
    bench.check(memory)
}

fn reads_fill_the_depth<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let depth = depth(bench)?;
    let pair = bench.greeted(&PairSpec {
        access: Access::REMOTE_READ,
        fetches: depth,
        ..PairSpec::default()
    })?;
    let count = usize::from(depth);
    for (from, to) in both_ways(&pair) {
        let memory = bench.memory(to, count * 3000, Access::REMOTE_READ)?;
        let sink = bench.sink(from, count * 3000)?;
        for round in 0..6 {
            let mut chain = Vec::new();
            for n in 0..count {
                // Places go through the sink backwards, and lengths differ.
                let (there, len) = (n * 3000 + round, 2000 + 37 * ((n + round) % 20));
                let here = (count - 1 - n) * 3000 + 7 * round;
                let data = bench.wanted(memory, there, len);
                bench.want(sink, here, &data);
                let op = SendOp::Read(bench.span(memory, there)?);
                chain.push(Message::fetch(op, &[bench.place(sink, here, len)]));
            }
            bench.send(from, &chain)?;
            for _ in 0..count {
                bench.sent(from)?;
            }
            bench.check(sink)?;
        }
        bench.check(memory)?;
    }
    Ok(())
}

fn no_bytes<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let pair = bench.greeted(&PairSpec {
        access,
        ..PairSpec::default()
    })?;
    let memory = bench.memory(pair.passive, 4096, access)?;
    let sink = bench.sink(pair.active, 4096)?;
    let at = bench.span(memory, 64)?;
    bench.send(pair.active, &[Message::of(SendOp::Write(at), Vec::new())])?;
    bench
        .sent(pair.active)
        .map_err(|f| f.during("a WRITE of no bytes"))?;
    let nowhere = bench.place(sink, 64, 0);
    bench.send(pair.active, &[Message::fetch(SendOp::Read(at), &[nowhere])])?;
    bench
        .sent(pair.active)
        .map_err(|f| f.during("a READ of no bytes"))?;
    tell(bench, pair.active, pair.passive)?;
    bench.check(memory)?;
    bench.check(sink)
}

fn long<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let side = SideSpec::LONG;
    let pair = bench.greeted(&PairSpec {
        side,
        receives: 2,
        access,
        ..PairSpec::default()
    })?;
    let grant = bench.conns[pair.active.0].grant;
    let most = grant
        .map_or(0, |g| g.message_bytes_max)
        .min(side.slot_bytes);
    // Not a multiple of any packet size.
    let len = most as usize - 7;
    for (from, to) in both_ways(&pair) {
        let memory = bench.memory(to, len + 20, access)?;
        let sink = bench.sink(from, len + 20)?;
        let data = pattern(9, len);
        let at = bench.span(memory, 11)?;
        bench.want(memory, 11, &data);
        bench.send(from, &[Message::of(SendOp::Write(at), data.clone())])?;
        bench.sent(from)?;
        bench.want(sink, 1, &data);
        let place = bench.place(sink, 1, len);
        bench.send(from, &[Message::fetch(SendOp::Read(at), &[place])])?;
        bench.sent(from)?;
        bench.check(sink)?;
        bench.check(memory)?;
    }
    Ok(())
}
