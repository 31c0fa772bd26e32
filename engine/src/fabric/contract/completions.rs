//! Completions: how many, of what, and what is in them.

use super::bench::{Bench, ConnId, PATIENCE, QUIET, SideId};
use super::connection::PairSpec;
use super::message::{Message, pattern};
use super::side::Queue;
use super::{Case, Failure, Verdict};
use crate::fabric::{Fabric, Lane, WcStatus};
use crate::limits::{POLL_BATCH_MAX, POST_CHAIN_MAX};
use std::time::Instant;

pub(super) fn cases<F: Fabric>() -> [Case<F>; 7] {
    [
        Case::new(
            "chain_completes_once",
            "a chain whose last post alone is signalled gives one completion, and all arrives",
            chain,
        ),
        Case::new(
            "unsignalled_then_signalled",
            "what is not signalled completes silently, and is retired by what follows",
            unsignalled,
        ),
        Case::new(
            "wr_id_untouched",
            "all 64 bits of a wr_id come back",
            wr_ids,
        ),
        Case::new(
            "byte_len",
            "byte_len is the length of the message, not of the buffer",
            byte_len,
        ),
        Case::new(
            "poll_takes_no_more",
            "a poll takes no more than asked, and loses none",
            poll,
        ),
        Case::new(
            "full_queue_refuses",
            "a full receive queue says how many posts of a chain it took",
            full_queue,
        ),
        Case::new("empty_chain", "an empty chain is no post", empty_chain),
    ]
}

/// Takes the completions of a chain of `count` sends, of which the last is signalled.
fn one_completion<F: Fabric>(
    bench: &mut Bench<'_, F>,
    from: ConnId,
    to: ConnId,
    data: &[Vec<u8>],
    last: u64,
) -> Verdict {
    for want in data {
        bench.received(to, want)?;
    }
    let done = bench.sent(from)?;
    ensure!(
        done.wr_id == last,
        "the completion is of {:#x}, not of the last",
        done.wr_id
    );
    quiet(bench, from, Queue::Send)
}

/// Nothing more completes on a queue.
pub(super) fn quiet<F: Fabric>(bench: &mut Bench<'_, F>, conn: ConnId, queue: Queue) -> Verdict {
    let until = Instant::now() + QUIET;
    while Instant::now() < until {
        bench.poll_all()?;
        std::thread::yield_now();
    }
    let more = bench.polled(conn, queue);
    ensure!(more == 0, "{more} completions more than were due");
    Ok(())
}

fn chain<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let count = u32::try_from(POST_CHAIN_MAX).unwrap_or(1);
    let pair = bench.pair(&PairSpec {
        receives: count + 1,
        ..PairSpec::default()
    })?;
    bench.send(pair.active, &[Message::new(vec![1])])?;
    bench.received(pair.passive, &[1])?;
    bench.sent(pair.active)?;
    let data: Vec<_> = (0..POST_CHAIN_MAX)
        .map(|n| pattern(n as u64, 10 * n))
        .collect();
    for (from, to) in [(pair.active, pair.passive), (pair.passive, pair.active)] {
        let last = bench.wr_id();
        let mut chain: Vec<_> = data
            .iter()
            .map(|d| Message::new(d.clone()).unsignalled())
            .collect();
        if let Some(message) = chain.last_mut() {
            message.signalled = true;
            message.wr_id = Some(last);
        }
        bench.send(from, &chain)?;
        one_completion(bench, from, to, &data, last)?;
    }
    Ok(())
}

fn unsignalled<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.pair(&PairSpec::default())?;
    let data: Vec<_> = (0..4).map(|n| pattern(n, 200)).collect();
    for d in &data[..3] {
        bench.send(pair.active, &[Message::new(d.clone()).unsignalled()])?;
    }
    for d in &data[..3] {
        bench.received(pair.passive, d)?;
    }
    quiet(bench, pair.active, Queue::Send)?;
    let last = bench.wr_id();
    let message = Message {
        wr_id: Some(last),
        ..Message::new(data[3].clone())
    };
    bench.send(pair.active, &[message])?;
    one_completion(bench, pair.active, pair.passive, &data[3..], last)?;
    let left = bench.conns[pair.active.0].sends.len();
    ensure!(left == 0, "{left} sends were not retired");
    Ok(())
}

fn wr_ids<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.pair(&PairSpec {
        receives: 0,
        ..PairSpec::default()
    })?;
    let alternating = [
        0,
        u64::MAX,
        0x5555_5555_5555_5555,
        0xaaaa_aaaa_aaaa_aaaa,
        1,
        u64::MAX - 1,
    ];
    let single = (1..64).map(|bit| 1u64 << bit);
    let all: Vec<u64> = alternating.into_iter().chain(single).collect();
    for part in all.chunks(32) {
        for &wr_id in part {
            bench.receive_as(pair.passive, wr_id, None)?;
        }
        for &wr_id in part {
            let message = Message {
                wr_id: Some(wr_id),
                ..Message::new(wr_id.to_le_bytes().into())
            };
            bench.send(pair.active, &[message])?;
        }
        for &wr_id in part {
            // That the word was outstanding is checked by `settle`; that it is this one, here.
            let done = bench.received(pair.passive, &wr_id.to_le_bytes())?;
            ensure!(
                done.wr_id == wr_id,
                "{wr_id:#x} came back from a receive as {:#x}",
                done.wr_id
            );
            let done = bench.sent(pair.active)?;
            ensure!(
                done.wr_id == wr_id,
                "{wr_id:#x} came back from a send as {:#x}",
                done.wr_id
            );
        }
    }
    Ok(())
}

fn byte_len<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.pair(&PairSpec {
        receives: 0,
        ..PairSpec::default()
    })?;
    // The exact fit, the empty message, and lengths about words and packets.
    for (room, len) in [
        (64, 64),
        (64, 0),
        (64, 63),
        (4096, 1023),
        (4096, 1024),
        (4096, 1025),
        (8192, 4097),
    ] {
        let wr_id = bench.wr_id();
        bench.receive_as(pair.passive, wr_id, Some(room))?;
        let data = pattern(u64::from(room), len);
        bench.send(pair.active, &[Message::new(data.clone())])?;
        bench
            .received(pair.passive, &data)
            .map_err(|f| f.during(&format!("{len} B into {room} B")))?;
        bench.sent(pair.active)?;
    }
    Ok(())
}

fn poll<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let count = 24;
    let pair = bench.pair(&PairSpec {
        receives: count,
        ..PairSpec::default()
    })?;
    for n in 0..u64::from(count) {
        bench.send(pair.active, &[Message::new(pattern(n, 20))])?;
    }
    let (Some(active), Some(passive)) = (
        bench.conns[pair.active.0].side,
        bench.conns[pair.passive.0].side,
    ) else {
        return Err(Failure::new("the ends have no lanes"));
    };
    let none = bench.sides[passive.0].lane.poll(&mut []);
    ensure!(none == 0, "a poll for nothing gave {none}");
    // `Bench::poll` fails if it gets more than it asks for; all must come, by ones, twos and so on.
    let deadline = Instant::now() + PATIENCE;
    let mut most = 0;
    while bench.polled(pair.passive, Queue::Recv) < count as usize
        || bench.polled(pair.active, Queue::Send) < count as usize
    {
        most = most % 5 + 1;
        let n = bench.poll(passive, most)? + bench.poll(active, most)?;
        ensure!(
            n > 0 || Instant::now() < deadline,
            "completions are missing"
        );
    }
    for n in 0..u64::from(count) {
        bench.received(pair.passive, &pattern(n, 20))?;
        bench.sent(pair.active)?;
    }
    for side in [active, passive] {
        let n = bench.poll(SideId(side.0), POLL_BATCH_MAX)?;
        ensure!(n == 0, "{n} completions more than work requests");
    }
    Ok(())
}

fn full_queue<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    // A device may grant more than was asked, but this is far more.
    let tries = 3;
    let spec = PairSpec {
        depth: 8,
        receives: 0,
        ..PairSpec::default()
    };
    let pair = bench.pair(&spec)?;
    let mut taken = 0;
    for _ in 0..tries {
        let wr_ids: Vec<_> = (0..POST_CHAIN_MAX).map(|_| bench.wr_id()).collect();
        match bench.try_receive(pair.passive, &wr_ids, None)? {
            Ok(()) => taken += POST_CHAIN_MAX,
            Err(refused) => {
                ensure!(
                    refused.posted < POST_CHAIN_MAX,
                    "a refused chain claims that all {} were posted",
                    refused.posted
                );
                ensure!(refused.errno > 0, "errno is {}", refused.errno);
                taken += refused.posted;
                break;
            }
        }
    }
    ensure!(taken >= 8, "a queue of 8 took only {taken}");
    if taken == tries * POST_CHAIN_MAX {
        // The queue is longer than the test.
        return Ok(());
    }
    // Those and no others are flushed: a refused one would be unknown to `settle`, a missing one
    // fails `flush`.
    bench.set_error(pair.passive)?;
    bench.flush()?;
    for n in 0..taken {
        let done = bench.take(pair.passive, Queue::Recv);
        let status = done.map(|d| d.status);
        ensure!(
            status == Some(WcStatus::Flushed),
            "receive {n} of {taken} ended as {status:?}"
        );
    }
    quiet(bench, pair.passive, Queue::Recv)
}

fn empty_chain<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.pair(&PairSpec::default())?;
    bench.send(pair.active, &[])?;
    let receives = bench.try_receive(pair.active, &[], None)?;
    ensure!(receives.is_ok(), "an empty chain of receives was refused");
    // The templates of the chain before must not leak into the next.
    bench.send(pair.active, &[Message::new(vec![9; 300])])?;
    bench.received(pair.passive, &[9; 300])?;
    bench.sent(pair.active)?;
    quiet(bench, pair.passive, Queue::Recv)
}
