//! Messages: sizes, contents, boundaries, order, memory.

use super::bench::Bench;
use super::connection::PairSpec;
use super::message::{Message, pattern};
use super::side::SideSpec;
use super::{Case, Failure, Verdict};
use crate::fabric::{Fabric, Lane};
use crate::limits::SLOT_BYTES_MIN;

pub(super) fn cases<F: Fabric>() -> [Case<F>; 8] {
    [
        Case::new(
            "sizes_both_ways",
            "messages of every size arrive unchanged, both ways",
            sizes,
        ),
        Case::new(
            "long_message",
            "a message of many packets arrives unchanged",
            long,
        ),
        Case::new(
            "thousand_in_order",
            "boundaries and order are kept through a short queue",
            thousand,
        ),
        Case::new("both_ways_at_once", "both ends can send at once", duplex),
        Case::new(
            "inline_memory_is_free",
            "memory sent inline may be overwritten when the post is back",
            inline_memory,
        ),
        Case::new(
            "inline_of_no_key",
            "an inline payload needs no registered memory",
            inline_unregistered,
        ),
        Case::new(
            "two_connections_one_cq",
            "completions of two QPs on one CQ are told apart by qp_num",
            two_connections,
        ),
        Case::new(
            "lane_made_known",
            "a lane says what it got: at least the depth asked for, on the device asked for",
            grant,
        ),
    ]
}

fn sizes<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let spec = PairSpec::default();
    let pair = bench.pair(&spec)?;
    let limit = bench.inline_bytes(pair.active);
    let mut sizes = vec![0, 1, limit, limit + 1, 4096, spec.side.slot_bytes as usize];
    sizes.dedup();
    for (n, size) in sizes.into_iter().enumerate() {
        for inline in [false, true] {
            if inline && size > limit {
                continue;
            }
            let what = format!("{size} B{}", if inline { " inline" } else { "" });
            for (from, to, seed) in [
                (pair.active, pair.passive, 0),
                (pair.passive, pair.active, 1),
            ] {
                let data = pattern(n as u64 * 4 + seed + 2 * u64::from(inline), size);
                let message = Message {
                    inline,
                    ..Message::new(data.clone())
                };
                bench.send(from, &[message])?;
                bench.received(to, &data).map_err(|f| f.during(&what))?;
                bench.sent(from).map_err(|f| f.during(&what))?;
                bench.receive(to, 1)?;
            }
        }
    }
    Ok(())
}

fn long<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let side = SideSpec::LONG;
    let pair = bench.pair(&PairSpec {
        side,
        receives: 1,
        ..PairSpec::default()
    })?;
    let grant = bench.conns[pair.active.0].grant;
    let max = grant.map_or(0, |g| g.message_bytes_max);
    ensure!(
        max >= SLOT_BYTES_MIN,
        "the device says that its longest message has {max} B"
    );
    // Not a multiple of any packet size.
    let size = max.min(side.slot_bytes) as usize - 7;
    for (from, to) in [(pair.active, pair.passive), (pair.passive, pair.active)] {
        let data = pattern(3, size);
        bench.send(from, &[Message::new(data.clone())])?;
        bench.received(to, &data)?;
        bench.sent(from)?;
    }
    Ok(())
}

fn thousand<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let spec = PairSpec {
        depth: 8,
        receives: 8,
        ..PairSpec::default()
    };
    let pair = bench.pair(&spec)?;
    // From empty to several packets, never twice the same in a row.
    let length = |n: u64| [0, 64, 1, 2000, 33, 4097, 7][usize::try_from(n % 7).unwrap_or(0)];
    bench.stream([pair.active, pair.passive], false, 1000, length)
}

fn duplex<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let spec = PairSpec {
        depth: 16,
        receives: 16,
        ..PairSpec::default()
    };
    let pair = bench.pair(&spec)?;
    let length = |n: u64| usize::try_from(n * 37 % 1500).unwrap_or(0);
    bench.stream([pair.active, pair.passive], true, 300, length)
}

fn inline_memory<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.pair(&PairSpec {
        receives: 32,
        ..PairSpec::default()
    })?;
    let limit = bench.inline_bytes(pair.active);
    if limit == 0 {
        return Ok(());
    }
    // One slot serves all posts: the pool gives out the slot that was used last, and `send`
    // overwrites it after each.
    let data: Vec<_> = (0..32).map(|n| pattern(n, limit)).collect();
    for part in data.chunks(4) {
        let chain: Vec<_> = part
            .iter()
            .map(|d| Message::new(d.clone()).inline())
            .collect();
        bench.send(pair.active, &chain)?;
    }
    for want in &data {
        bench.received(pair.passive, want)?;
    }
    for _ in &data {
        bench.sent(pair.active)?;
    }
    Ok(())
}

fn inline_unregistered<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.pair(&PairSpec::default())?;
    let data = pattern(5, bench.inline_bytes(pair.active));
    let (number, wr_id) = (bench.inline_bytes(pair.active), bench.wr_id());
    if number == 0 {
        return Ok(());
    }
    // Memory of the heap, which no device was told of.
    let wr = crate::fabric::SendWr {
        wr_id,
        addr: data.as_ptr().expose_provenance() as u64,
        len: u32::try_from(data.len()).map_err(|e| Failure::new(e.to_string()))?,
        lkey: crate::types::Lkey(0),
        op: crate::fabric::SendOp::Send,
        signalled: true,
        inline: true,
        more: 0,
    };
    let end = &mut bench.conns[pair.active.0];
    let (Some(side), Some((_, qp))) = (end.side, &mut end.qp) else {
        return Err(Failure::new("the end has no QP"));
    };
    let result = bench.sides[side.0].lane.post_send(qp, &[wr], &[]);
    ensure!(result.is_ok(), "the post was refused: {result:?}");
    end.sends.push_back(super::side::Posted {
        wr_id,
        signalled: true,
        opcode: crate::fabric::WcOpcode::Send,
        buffers: Vec::new(),
    });
    bench.received(pair.passive, &data)?;
    bench.sent(pair.active)?;
    Ok(())
}

fn two_connections<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let first = bench.pair(&PairSpec::default())?;
    let sides = bench.conns[first.active.0]
        .side
        .zip(bench.conns[first.passive.0].side);
    let second = bench.pair(&PairSpec {
        sides,
        ..PairSpec::default()
    })?;
    let number = |bench: &Bench<'_, F>, end: usize| bench.conns[end].grant.map(|g| g.number);
    ensure!(
        number(bench, first.active.0) != number(bench, second.active.0),
        "two QPs of one lane have one number"
    );
    // All sends go out before any completion is taken, so that they mix on the CQs.
    let pairs = [&first, &second];
    for n in 0..8 {
        for (which, pair) in pairs.iter().enumerate() {
            bench.send(
                pair.active,
                &[Message::new(pattern(n * 2 + which as u64, 100))],
            )?;
        }
    }
    for n in 0..8 {
        for (which, pair) in pairs.iter().enumerate() {
            bench.received(pair.passive, &pattern(n * 2 + which as u64, 100))?;
            bench.sent(pair.active)?;
        }
    }
    // The end of one is no end of the other.
    bench.disconnect(first.active)?;
    bench.disconnected(first.passive, "Disconnected at the passive end")?;
    bench.set_error(first.active)?;
    bench.set_error(first.passive)?;
    bench.destroy(first.active);
    bench.destroy(first.passive);
    let data = pattern(77, 500);
    bench.send(second.active, &[Message::new(data.clone())])?;
    bench.received(second.passive, &data)?;
    bench.sent(second.active)?;
    Ok(())
}

fn grant<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    for device in bench.fabric.devices() {
        let limits = F::limits(&device).clone();
        let side = bench.side(&device, &SideSpec::USUAL)?;
        let side = &mut bench.sides[side.0];
        let want = 1024.min(limits.cq_depth_max);
        ensure!(
            side.grant.cq_depth >= want,
            "a CQ on {} has {} entries where {want} were asked for",
            limits.name,
            side.grant.cq_depth
        );
        ensure!(
            side.grant.device == limits.name,
            "the lane is on {}",
            side.grant.device
        );
        ensure!(
            side.lane.poll(&mut [F::Lane::blank(); 4]) == 0,
            "a new CQ has completions"
        );
    }
    Ok(())
}
