//! What a device says it has not got is not done, nor half done.

use super::bench::Bench;
use super::connection::PairSpec;
use super::errors::{learns, unheard};
use super::message::{Message, pattern};
use super::side::Queue;
use super::{Case, Failure, Verdict};
use crate::fabric::{Fabric, SendOp};
use crate::types::{Abilities, Access, RemoteSpan};

pub(super) fn cases<F: Fabric>() -> [Case<F>; 1] {
    [Case::new(
        "missing_is_refused",
        "an operation that the device says it has not got is refused by the post, or fails",
        refused,
    )]
}

/// Operations that a device without some ability cannot do.
fn missing(can: &Abilities, at: RemoteSpan) -> Vec<SendOp> {
    let mut ops = Vec::new();
    if !can.immediate {
        ops.extend([SendOp::SendImm(1), SendOp::WriteImm(at, 1)]);
    }
    if !can.send_invalidate {
        ops.push(SendOp::SendInvalidate(at.rkey));
    }
    if !can.atomics {
        let (expect, swap) = (1, 2);
        ops.push(SendOp::CompareSwap { at, expect, swap });
        ops.push(SendOp::FetchAdd { at, add: 1 });
    }
    ops
}

fn refused<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let can = bench.probe()?.abilities;
    // Nothing but the missing ability may stand in the way.
    let usual = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let access = usual | Access::REMOTE_ATOMIC;
    let count = missing(&can, RemoteSpan::default()).len();
    for n in 0..count {
        let pair = bench.greeted(&PairSpec {
            receives: 4,
            access,
            ..PairSpec::default()
        })?;
        // A device without atomics may refuse such memory.
        let memory = bench
            .memory(pair.passive, 4096, access)
            .or_else(|_| bench.memory(pair.passive, 4096, usual))?;
        let sink = bench.sink(pair.active, 4096)?;
        let op = missing(&can, bench.span(memory, 64)?)[n];
        let message = if op.is_fetch() {
            Message::fetch(op, &[bench.place(sink, 64, 8)])
        } else {
            Message::of(op, pattern(1, 60))
        };
        let what = |f: Failure| f.during(&format!("{op:?}"));
        if bench.try_send(pair.active, &[message], None)?.is_ok() {
            learns(bench, pair.active, Queue::Send).map_err(what)?;
        }
        unheard(bench, pair.passive).map_err(what)?;
        bench.check(memory).map_err(what)?;
        bench.check(sink).map_err(what)?;
    }
    Ok(())
}
