//! 32 bits beside a SEND or a WRITE.

use super::bench::{Bench, QUIET};
use super::completions::quiet;
use super::connection::PairSpec;
use super::message::{Message, pattern};
use super::onesided::both_ways;
use super::side::Queue;
use super::{Case, Need, Verdict};
use crate::fabric::{Fabric, Note, SendOp};
use crate::types::Access;

pub(super) fn cases<F: Fabric>() -> [Case<F>; 4] {
    [
        Case::new(
            "send_with_immediate",
            "a SEND with immediate brings its 32 bits beside its bytes",
            send_imm,
        )
        .needs(&[Need::Immediate]),
        Case::new(
            "write_with_immediate",
            "a WRITE with immediate consumes one receive, leaves its memory alone, and tells of its \
             bytes and 32 bits",
            write_imm,
        )
        .needs(&[Need::Immediate]),
        Case::new(
            "notes_keep_their_place",
            "operations with and without immediate keep their order, and none gets another's note",
            mixed,
        )
        .needs(&[Need::Immediate]),
        Case::new(
            "write_immediate_waits",
            "a WRITE with immediate to a peer without receives waits (RNR) until one is posted",
            rnr_waits,
        )
        .needs(&[Need::Immediate, Need::Rnr]),
    ]
}

/// All bytes of the word differ in most of them, so a swapped one is seen.
const WORDS: [u32; 6] = [0, 1, 0x0102_0304, 0xdead_beef, 0x8000_0000, u32::MAX];

fn send_imm<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.greeted(&PairSpec {
        receives: 48,
        ..PairSpec::default()
    })?;
    for (from, to) in both_ways(&pair) {
        for (n, word) in WORDS.into_iter().enumerate() {
            for (len, inline) in [(0, false), (5, false), (5, true), (4500, false)] {
                if inline && len > bench.inline_bytes(from) {
                    continue;
                }
                let data = pattern(n as u64, len);
                let message = Message {
                    inline,
                    ..Message::of(SendOp::SendImm(word), data.clone())
                };
                bench.send(from, &[message])?;
                bench.received_with(to, &data, Note::Imm(word))?;
                bench.sent(from)?;
            }
        }
    }
    Ok(())
}

fn write_imm<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let count = 24;
    // Just as many receives as are consumed.
    let pair = bench.greeted(&PairSpec {
        receives: count + 1,
        access: Access::REMOTE_WRITE,
        ..PairSpec::default()
    })?;
    for (from, to) in both_ways(&pair) {
        let memory = bench.memory(to, 16_384, Access::REMOTE_WRITE)?;
        let mut left = bench.owed(to, Queue::Recv);
        for n in 0..u64::from(count) {
            let index = usize::try_from(n).unwrap_or(0);
            let word = WORDS[index % WORDS.len()];
            let len = [0, 1, 33, 9000][index % 4];
            let data = pattern(n, len);
            let offset = 5 + 100 * index;
            bench.want(memory, offset, &data);
            let message = Message {
                inline: index % 3 == 0 && len <= bench.inline_bytes(from),
                ..Message::of(SendOp::WriteImm(bench.span(memory, offset)?, word), data)
            };
            bench.send(from, &[message])?;
            bench.notified(to, len, word)?;
            // The notice comes behind the bytes.
            bench
                .check(memory)
                .map_err(|f| f.during(&format!("a WRITE of {len} B with {word:#x}")))?;
            bench.sent(from)?;
            left -= 1;
            let now = bench.owed(to, Queue::Recv);
            ensure!(now == left, "{now} receives are left, not {left}");
        }
        quiet(bench, to, Queue::Recv)?;
    }
    Ok(())
}

fn mixed<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.greeted(&PairSpec {
        receives: 32,
        access: Access::REMOTE_WRITE,
        ..PairSpec::default()
    })?;
    let memory = bench.memory(pair.passive, 8192, Access::REMOTE_WRITE)?;
    // The order differs from round to round, so each place of a chain has each kind.
    for round in 0..4u32 {
        let mut chain = Vec::new();
        for n in 0..8u32 {
            let data = pattern(u64::from(round * 8 + n), 200);
            let offset = usize::try_from(n).unwrap_or(0) * 300;
            let op = match (n + round) % 4 {
                0 => SendOp::Send,
                1 => SendOp::SendImm(n + 1),
                2 => SendOp::Write(bench.span(memory, offset)?),
                _ => SendOp::WriteImm(bench.span(memory, offset)?, n + 100),
            };
            if matches!(op, SendOp::Write(_) | SendOp::WriteImm(..)) {
                bench.want(memory, offset, &data);
            }
            chain.push(Message::of(op, data));
        }
        bench.send(pair.active, &chain)?;
        for message in &chain {
            let data = &message.pieces[0];
            match message.op {
                SendOp::Send => bench.received(pair.passive, data).map(drop)?,
                SendOp::SendImm(word) => {
                    bench.received_with(pair.passive, data, Note::Imm(word))?;
                }
                SendOp::WriteImm(_, word) => bench.notified(pair.passive, data.len(), word)?,
                _ => {}
            }
            bench.sent(pair.active)?;
        }
        bench.receive(pair.passive, 6)?;
    }
    bench.check(memory)
}

fn rnr_waits<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.pair(&PairSpec {
        receives: 0,
        access: Access::REMOTE_WRITE,
        ..PairSpec::default()
    })?;
    let memory = bench.memory(pair.passive, 16_384, Access::REMOTE_WRITE)?;
    for (n, len) in [(1, 10), (2, 9000)] {
        let data = pattern(u64::from(n), len);
        let op = SendOp::WriteImm(bench.span(memory, 9)?, n);
        bench.send(pair.active, &[Message::of(op, data.clone())])?;
        std::thread::sleep(QUIET);
        bench.poll_all()?;
        let early = bench.polled(pair.active, Queue::Send);
        ensure!(
            early == 0,
            "the WRITE of {len} B completed although no receive was posted"
        );
        bench.want(memory, 9, &data);
        bench.receive(pair.passive, 1)?;
        bench.notified(pair.passive, len, n)?;
        bench.sent(pair.active)?;
        bench.check(memory)?;
    }
    Ok(())
}
