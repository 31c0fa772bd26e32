//! Messages that do not fit and memory of no known key: the connection ends, the memory is unharmed.

use super::bench::Bench;
use super::connection::{Pair, PairSpec};
use super::errors::{flushed, learns, unheard};
use super::message::{Message, pattern};
use super::side::{Done, Queue};
use super::{Case, Failure, Need, Verdict};
use crate::fabric::{Fabric, WcStatus};
use crate::types::Lkey;

pub(super) fn cases<F: Fabric>() -> [Case<F>; 4] {
    [
        Case::new(
            "too_long_ends_it",
            "a message longer than its receive buffer ends the connection, and nothing is \
             written behind the buffer",
            too_long,
        ),
        Case::new(
            "too_long_is_named",
            "the receiver of such a message sees LocalLength, the sender RemoteInvalidRequest",
            too_long_status,
        )
        .needs(&[Need::Names]),
        Case::new(
            "wrong_key",
            "a send from memory of no known key fails, and ends the QP",
            wrong_key,
        ),
        Case::new(
            "wrong_key_is_named",
            "such a send fails as LocalProtection",
            wrong_key_status,
        )
        .needs(&[Need::Names]),
    ]
}

/// Sends 1000 B into a buffer of 512 B, behind which the slot is full of sentinels. Gives how the
/// receive ended, if it was completed by itself, and how the send did.
fn overrun<F: Fabric>(
    bench: &mut Bench<'_, F>,
    pair: &Pair,
) -> Result<(Option<Done>, Option<Done>), Failure> {
    let wr_id = bench.wr_id();
    bench.receive_as(pair.passive, wr_id, Some(512))?;
    bench.receive(pair.passive, 3)?;
    bench.receive(pair.active, 4)?;
    let chain: Vec<_> = (0..3).map(|n| Message::new(pattern(n, 1000))).collect();
    bench.send(pair.active, &chain)?;
    let receiver = learns(bench, pair.passive, Queue::Recv)?;
    let sender = learns(bench, pair.active, Queue::Send)?;
    Ok((receiver, sender))
}

fn too_long<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.pair(&PairSpec {
        receives: 0,
        ..PairSpec::default()
    })?;
    let (mut receiver, sender) = overrun(bench, &pair)?;
    let ib = bench.is_rc(pair.active)?;
    if ib {
        ensure!(
            receiver.is_some(),
            "the connection ended without a failed receive"
        );
        ensure!(
            sender.is_some(),
            "the connection ended without a failed send"
        );
    } else {
        // Either end may only have heard that the connection is over.
        bench.set_error(pair.passive)?;
        bench.set_error(pair.active)?;
    }
    if receiver.is_none() {
        receiver = Some(bench.done(pair.passive, Queue::Recv, "the short receive")?);
    }
    flushed(bench, pair.passive, Queue::Recv)?;
    flushed(bench, pair.active, Queue::Recv)?;
    bench.flush()?;
    let mut buffer = receiver.and_then(|d| d.buffer);
    let Some(buffer) = &mut buffer else {
        return Err(Failure::new("no buffer came back"));
    };
    buffer.set_len(buffer.capacity())?;
    let behind = buffer[512..].iter().position(|&b| b != 0x5a);
    ensure!(
        behind.is_none(),
        "byte {behind:?} behind the receive buffer was written"
    );
    Ok(())
}

fn too_long_status<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.pair(&PairSpec {
        receives: 0,
        ..PairSpec::default()
    })?;
    let (receiver, sender) = overrun(bench, &pair)?;
    let status = receiver.map(|d| d.status);
    ensure!(
        status == Some(WcStatus::LocalLength),
        "the receive ended as {status:?}"
    );
    let status = sender.map(|d| d.status);
    ensure!(
        status == Some(WcStatus::RemoteInvalidRequest),
        "the send ended as {status:?}"
    );
    Ok(())
}

/// Sends from memory of no known key. Gives how that ended; `None` if the post was refused.
fn send_unknown<F: Fabric>(
    bench: &mut Bench<'_, F>,
    pair: &Pair,
) -> Result<Option<WcStatus>, Failure> {
    bench.greet(pair)?;
    let side = bench.conns[pair.active.0].side;
    let right = side.map_or(0, |s| bench.sides[s.0].lkey.0);
    let wrong = Lkey(right ^ 0x00ff_ff00);
    let posted = bench.try_send(pair.active, &[Message::new(vec![8; 500])], Some(wrong))?;
    if posted.is_err() {
        return Ok(None);
    }
    let done = bench.done(pair.active, Queue::Send, "the failure of a send")?;
    Ok(Some(done.status))
}

fn wrong_key<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.pair(&PairSpec::default())?;
    if let Some(status) = send_unknown(bench, &pair)? {
        ensure!(
            status != WcStatus::Success,
            "memory of no known key was sent"
        );
        if !bench.is_rc(pair.active)? {
            // The QP is on its way there.
            bench.set_error(pair.active)?;
        }
        flushed(bench, pair.active, Queue::Recv)?;
    }
    unheard(bench, pair.passive)
}

fn wrong_key_status<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.pair(&PairSpec::default())?;
    let status = send_unknown(bench, &pair)?;
    ensure!(
        status.is_none_or(|s| s == WcStatus::LocalProtection),
        "the send ended as {status:?}"
    );
    Ok(())
}
