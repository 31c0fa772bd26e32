//! Receives that the QPs of a lane share.

use super::bench::{Bench, ConnId, PATIENCE, QUIET, SideId};
use super::completions::quiet;
use super::connection::{Pair, PairSpec};
use super::errors::unheard;
use super::message::{Message, check_message, pattern};
use super::side::{Queue, SideSpec};
use super::{Case, Failure, Need, Verdict};
use crate::fabric::Fabric;
use crate::limits::POST_CHAIN_MAX;
use std::time::Instant;

pub(super) fn cases<F: Fabric>() -> [Case<F>; 6] {
    [
        Case::new(
            "no_shared_queue",
            "a lane made without a shared receive queue refuses shared receives",
            no_queue,
        ),
        Case::new(
            "shared_by_all",
            "QPs of a lane take from one queue; each message is on its own QP, in order",
            by_all,
        )
        .needs(&[Need::SharedReceives]),
        Case::new(
            "shared_waits_for_receive",
            "a message to an empty shared queue waits (RNR) until a receive is posted",
            waits,
        )
        .needs(&[Need::SharedReceives, Need::Rnr]),
        Case::new(
            "shared_not_flushed",
            "the error state of a QP gives back no shared receive",
            not_flushed,
        )
        .needs(&[Need::SharedReceives]),
        Case::new(
            "shared_outlives_qps",
            "destroying a QP leaves the shared queue to the others, and to those that come",
            outlives,
        )
        .needs(&[Need::SharedReceives]),
        Case::new(
            "full_shared_queue_refuses",
            "a full shared queue says how many posts of a chain it took, and uses just those",
            full,
        )
        .needs(&[Need::SharedReceives]),
    ]
}

/// Connections of which the passive ends, and the active ones, share a lane and its receives.
struct Shared {
    pairs: Vec<Pair>,
    active: SideId,
    passive: SideId,
    spec: PairSpec,
}

impl Shared {
    fn new<F: Fabric>(bench: &mut Bench<'_, F>, count: usize, depth: u32) -> Result<Self, Failure> {
        let mut spec = PairSpec {
            side: SideSpec {
                shared: depth,
                ..SideSpec::USUAL
            },
            ..PairSpec::default()
        };
        let mut pairs = Vec::new();
        for _ in 0..count {
            pairs.push(bench.pair(&spec)?);
            let first: &Pair = &pairs[0];
            spec.sides = Some((bench.side_of(first.active)?, bench.side_of(first.passive)?));
        }
        let (active, passive) = spec
            .sides
            .ok_or_else(|| Failure::new("there are no connections"))?;
        Ok(Self {
            pairs,
            active,
            passive,
            spec,
        })
    }
}

/// Bytes of message `n` of a connection.
fn words(which: usize, n: u64) -> Vec<u8> {
    let len = [30, 0, 2500, 64][usize::try_from(n % 4).unwrap_or(0)] + which;
    pattern(which as u64 * 1000 + n, len)
}

fn say<F: Fabric>(
    bench: &mut Bench<'_, F>,
    (from, to): (ConnId, ConnId),
    which: usize,
    n: u64,
) -> Verdict {
    bench.send(from, &[Message::new(words(which, n))])?;
    bench.received(to, &words(which, n))?;
    bench.sent(from).map(drop)
}

fn no_queue<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.pair(&PairSpec::default())?;
    let side = bench.side_of(pair.passive)?;
    let granted = bench.sides[side.0].grant.shared_recv_depth;
    ensure!(
        granted == 0,
        "a queue of {granted} that nobody asked for was granted"
    );
    let wr_id = bench.wr_id();
    match bench.try_share(side, &[wr_id])? {
        Ok(()) => Err(Failure::new("a shared receive was taken")),
        Err(refused) => {
            ensure!(
                refused.posted == 0 && refused.errno > 0,
                "the refusal says {refused:?}"
            );
            Ok(())
        }
    }
}

fn by_all<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let (depth, count) = (16, 40);
    let shared = Shared::new(bench, 3, depth)?;
    bench.share(shared.passive, depth)?;
    bench.share(shared.active, depth)?;
    // First one way, then the other: the connecting sides speak first.
    for back in [false, true] {
        let mut sent = [0u64; 3];
        let mut heard = [0u64; 3];
        let mut progress = Instant::now();
        let goal = [count, count, count];
        while heard != goal {
            let mut idle = true;
            for (which, pair) in shared.pairs.iter().enumerate() {
                let (from, to) = if back {
                    (pair.passive, pair.active)
                } else {
                    (pair.active, pair.passive)
                };
                // Together never more than receives: the queue is never empty.
                if sent[which] < count && sent[which] - heard[which] < u64::from(depth / 3) {
                    bench.send(from, &[Message::new(words(which, sent[which]))])?;
                    sent[which] += 1;
                    idle = false;
                }
                while let Some(done) = bench.take(to, Queue::Recv) {
                    check_message(&done, &words(which, heard[which])).map_err(|f| {
                        f.during(&format!("message {} of connection {which}", heard[which]))
                    })?;
                    heard[which] += 1;
                    drop(done);
                    bench.share(if back { shared.active } else { shared.passive }, 1)?;
                    idle = false;
                }
                while bench.polled(from, Queue::Send) > 0 {
                    bench.sent(from)?;
                }
            }
            if bench.poll_all()? > 0 || !idle {
                progress = Instant::now();
            }
            ensure!(
                progress.elapsed() < PATIENCE,
                "{sent:?} were sent and {heard:?} heard, then nothing"
            );
        }
        for (which, pair) in shared.pairs.iter().enumerate() {
            let from = if back { pair.passive } else { pair.active };
            while bench.owed(from, Queue::Send) + bench.polled(from, Queue::Send) > 0 {
                bench
                    .sent(from)
                    .map_err(|f| f.during(&format!("connection {which}")))?;
            }
        }
    }
    for side in [shared.active, shared.passive] {
        let left = bench.sides[side.0].shared.len();
        ensure!(
            left == depth as usize,
            "{left} receives are posted where {depth} should be"
        );
    }
    Ok(())
}

fn waits<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let shared = Shared::new(bench, 2, 8)?;
    for (which, pair) in shared.pairs.iter().enumerate() {
        bench.send(pair.active, &[Message::new(words(which, 0))])?;
    }
    std::thread::sleep(QUIET);
    bench.poll_all()?;
    for pair in &shared.pairs {
        let early = bench.polled(pair.active, Queue::Send);
        ensure!(
            early == 0,
            "a send completed although no receive was posted"
        );
    }
    bench.share(shared.passive, 2)?;
    for (which, pair) in shared.pairs.iter().enumerate() {
        bench.received(pair.passive, &words(which, 0))?;
        bench.sent(pair.active)?;
    }
    Ok(())
}

fn not_flushed<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let shared = Shared::new(bench, 2, 12)?;
    bench.share(shared.passive, 12)?;
    let [first, second] = &shared.pairs[..] else {
        return Err(Failure::new("there should be two connections"));
    };
    for (which, pair) in shared.pairs.iter().enumerate() {
        say(bench, (pair.active, pair.passive), which, 0)?;
    }
    bench.set_error(first.passive)?;
    quiet(bench, first.passive, Queue::Recv)?;
    unheard(bench, first.passive)?;
    // All ten that are left are the other's.
    for n in 1..=10 {
        say(bench, (second.active, second.passive), 1, n)?;
    }
    let left = bench.sides[shared.passive.0].shared.len();
    ensure!(left == 0, "{left} receives are left");
    Ok(())
}

fn outlives<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let mut shared = Shared::new(bench, 3, 16)?;
    bench.share(shared.passive, 16)?;
    for (which, pair) in shared.pairs.iter().enumerate() {
        say(bench, (pair.active, pair.passive), which, 0)?;
    }
    let gone = shared.pairs.remove(0);
    bench.disconnect(gone.active)?;
    bench.disconnected(gone.passive, "Disconnected at the passive end")?;
    bench.set_error(gone.active)?;
    bench.set_error(gone.passive)?;
    bench.destroy(gone.active);
    bench.destroy(gone.passive);
    // One that comes later takes its place.
    shared.pairs.push(bench.pair(&shared.spec)?);
    for n in 1..4 {
        for (which, pair) in shared.pairs.iter().enumerate() {
            say(bench, (pair.active, pair.passive), which, n)?;
        }
    }
    let left = bench.sides[shared.passive.0].shared.len();
    ensure!(
        left == 4,
        "{left} of 16 receives are left after 12 messages"
    );
    Ok(())
}

fn full<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let tries = 2;
    let shared = Shared::new(bench, 1, 8)?;
    let mut taken = 0;
    for _ in 0..tries {
        let wr_ids: Vec<_> = (0..POST_CHAIN_MAX).map(|_| bench.wr_id()).collect();
        match bench.try_share(shared.passive, &wr_ids)? {
            Ok(()) => taken += POST_CHAIN_MAX,
            Err(refused) => {
                ensure!(
                    refused.posted < POST_CHAIN_MAX && refused.errno > 0,
                    "the refusal says {refused:?}"
                );
                taken += refused.posted;
                break;
            }
        }
    }
    ensure!(taken >= 8, "a queue of 8 took only {taken}");
    let pair = &shared.pairs[0];
    for n in 0..taken as u64 {
        say(bench, (pair.active, pair.passive), 0, n)?;
    }
    let left = bench.sides[shared.passive.0].shared.len();
    ensure!(left == 0, "{left} of {taken} receives are left");
    quiet(bench, pair.passive, Queue::Recv)?;
    // The queue is as long again.
    bench.share(shared.passive, 8)?;
    say(bench, (pair.active, pair.passive), 0, 99)
}
