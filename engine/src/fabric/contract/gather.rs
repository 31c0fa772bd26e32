//! Payloads in pieces: gathered by SEND and WRITE, scattered by READ.

use super::bench::Bench;
use super::connection::PairSpec;
use super::message::{Message, pattern};
use super::onesided::both_ways;
use super::{Case, Failure, Need, Verdict};
use crate::fabric::{Fabric, SendOp};
use crate::limits::SGE_MAX;
use crate::types::Access;

pub(super) fn cases<F: Fabric>() -> [Case<F>; 5] {
    [
        Case::new(
            "send_gathers",
            "a SEND of several pieces, empty ones among them, arrives as one message",
            sends,
        )
        .needs(&[Need::Gather]),
        Case::new(
            "write_gathers",
            "a WRITE of several pieces puts them one behind the other",
            writes,
        )
        .needs(&[Need::Gather]),
        Case::new(
            "inline_gathers",
            "pieces sent inline may be overwritten when the post is back",
            inline,
        )
        .needs(&[Need::Gather]),
        Case::new(
            "pieces_keep_to_their_own",
            "operations of a chain have their own pieces, however many",
            chain,
        )
        .needs(&[Need::Gather]),
        Case::new(
            "read_scatters",
            "a READ fills several places one after the other, empty ones among them",
            reads,
        )
        .needs(&[Need::Scatter]),
    ]
}

/// Lengths of pieces. Packets of 1024 and 4096 B begin and end within, at and between pieces.
const LENGTHS: [&[usize]; 14] = [
    &[1, 2],
    &[0, 700],
    &[700, 0],
    &[0, 0],
    &[1024, 1024],
    &[4096, 1],
    &[3, 5000, 7],
    &[0, 64, 1023],
    &[513, 0, 511],
    &[4000, 0, 0],
    &[1, 2, 3, 4],
    &[0, 1000, 0, 1001],
    &[2049, 2047, 4097, 1],
    &[0, 0, 0, 9],
];

/// Those of at most `most` pieces, each piece with bytes of its own.
fn payloads(most: u8) -> Vec<Vec<Vec<u8>>> {
    let few = LENGTHS.iter().filter(|l| l.len() <= usize::from(most));
    few.enumerate()
        .map(|(n, lengths)| {
            let pieces = lengths.iter().enumerate();
            pieces
                .map(|(i, &len)| pattern((n * SGE_MAX + i) as u64, len))
                .collect()
        })
        .collect()
}

fn pieces_of<F: Fabric>(bench: &mut Bench<'_, F>) -> Result<(u8, u8), Failure> {
    let can = bench.probe()?.abilities;
    Ok((can.sges, can.read_sges))
}

fn of(pieces: &[Vec<u8>], f: Failure) -> Failure {
    let lengths: Vec<_> = pieces.iter().map(Vec::len).collect();
    f.during(&format!("pieces of {lengths:?} B"))
}

fn sends<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let (sges, _) = pieces_of(bench)?;
    let pair = bench.greeted(&PairSpec::default())?;
    for (from, to) in both_ways(&pair) {
        for pieces in payloads(sges) {
            bench.send(from, &[Message::gather(SendOp::Send, pieces.clone())])?;
            bench
                .received(to, &pieces.concat())
                .map_err(|f| of(&pieces, f))?;
            bench.sent(from)?;
            bench.receive(to, 1)?;
        }
    }
    Ok(())
}

fn writes<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let (sges, _) = pieces_of(bench)?;
    let pair = bench.greeted(&PairSpec {
        access: Access::REMOTE_WRITE,
        ..PairSpec::default()
    })?;
    for (from, to) in both_ways(&pair) {
        let memory = bench.memory(to, 16_384, Access::REMOTE_WRITE)?;
        for (n, pieces) in payloads(sges).into_iter().enumerate() {
            let offset = 1 + 100 * n;
            bench.want(memory, offset, &pieces.concat());
            let op = SendOp::Write(bench.span(memory, offset)?);
            // The message behind it says when it is done.
            let chain = [
                Message::gather(op, pieces.clone()),
                Message::new(vec![1; 3]),
            ];
            bench.send(from, &chain)?;
            bench.received(to, &[1; 3])?;
            bench.check(memory).map_err(|f| of(&pieces, f))?;
            bench.sent(from)?;
            bench.sent(from)?;
            bench.receive(to, 1)?;
        }
    }
    Ok(())
}

fn inline<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let (sges, _) = pieces_of(bench)?;
    let pair = bench.greeted(&PairSpec {
        access: Access::REMOTE_WRITE,
        ..PairSpec::default()
    })?;
    let limit = bench.inline_bytes(pair.active);
    if limit == 0 {
        return Ok(());
    }
    let memory = bench.memory(pair.passive, 4096, Access::REMOTE_WRITE)?;
    for n in 2..=usize::from(sges) {
        // All of what fits, the last piece the longest and the second empty.
        let mut lengths = vec![3; n];
        lengths[1] = 0;
        lengths[n - 1] += limit - lengths.iter().sum::<usize>();
        let pieces: Vec<_> = lengths
            .iter()
            .enumerate()
            .map(|(i, &len)| pattern((n * SGE_MAX + i) as u64, len))
            .collect();
        let whole = pieces.concat();
        bench.want(memory, 200 * n, &whole);
        let op = SendOp::Write(bench.span(memory, 200 * n)?);
        let chain = [
            Message::gather(op, pieces.clone()).inline(),
            Message::gather(SendOp::Send, pieces.clone()).inline(),
        ];
        bench.send(pair.active, &chain)?;
        bench
            .received(pair.passive, &whole)
            .map_err(|f| of(&pieces, f))?;
        bench.sent(pair.active)?;
        bench.sent(pair.active)?;
        bench.check(memory).map_err(|f| of(&pieces, f))?;
    }
    Ok(())
}

fn chain<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let (sges, _) = pieces_of(bench)?;
    let pair = bench.greeted(&PairSpec {
        receives: 33,
        ..PairSpec::default()
    })?;
    for round in 0..4 {
        let chain: Vec<_> = (0..16)
            .map(|n| {
                // From no piece with bytes to all, in another order each round.
                let count = (n * 7 + round * 3) % (usize::from(sges) + 1);
                let pieces: Vec<_> = (0..count.max(1))
                    .map(|i| pattern((n * SGE_MAX + i) as u64, count.min(1) * (40 + i)))
                    .collect();
                Message {
                    signalled: n == 15,
                    ..Message::gather(SendOp::Send, pieces)
                }
            })
            .collect();
        bench.send(pair.active, &chain)?;
        for message in &chain {
            bench
                .received(pair.passive, &message.pieces.concat())
                .map_err(|f| of(&message.pieces, f))?;
        }
        bench.sent(pair.active)?;
        bench.receive(pair.passive, 16)?;
    }
    Ok(())
}

fn reads<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let (_, sges) = pieces_of(bench)?;
    let pair = bench.greeted(&PairSpec {
        access: Access::REMOTE_READ,
        ..PairSpec::default()
    })?;
    for (from, to) in both_ways(&pair) {
        let memory = bench.memory(to, 16_384, Access::REMOTE_READ)?;
        let sink = bench.sink(from, 32_768)?;
        for (n, pieces) in payloads(sges).into_iter().enumerate() {
            let mut places = Vec::new();
            let mut there = 11 * n;
            for (i, piece) in pieces.iter().enumerate() {
                // The later a piece, the lower its place.
                let here = (SGE_MAX - 1 - i) * 8000 + 13 * n;
                let data = bench.wanted(memory, there, piece.len());
                bench.want(sink, here, &data);
                places.push(bench.place(sink, here, piece.len()));
                there += piece.len();
            }
            let op = SendOp::Read(bench.span(memory, 11 * n)?);
            bench.send(from, &[Message::fetch(op, &places)])?;
            bench.sent(from).map_err(|f| of(&pieces, f))?;
            bench.check(sink).map_err(|f| of(&pieces, f))?;
        }
        bench.check(memory)?;
    }
    Ok(())
}
