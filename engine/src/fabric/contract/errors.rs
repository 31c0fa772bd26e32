//! What goes wrong, and what is left then: everything comes back, nothing is invented.

use super::bench::{Bench, ConnId, PATIENCE, QUIET};
use super::connection::{Pair, PairSpec};
use super::message::{Message, pattern};
use super::side::{Done, Queue};
use super::{Case, Failure, Need, Verdict};
use crate::fabric::{CmEventKind, Fabric, WcStatus};
use std::time::{Duration, Instant};

pub(super) fn cases<F: Fabric>() -> [Case<F>; 7] {
    [
        Case::new(
            "error_flushes_receives",
            "the error state gives back every posted receive as flushed",
            flushes_receives,
        ),
        Case::new(
            "error_flushes_sends",
            "the error state gives back every send that waits, signalled or not",
            flushes_sends,
        )
        .needs(&[Need::Rnr]),
        Case::new(
            "send_after_error",
            "a send after the error state is refused or flushed",
            send_after_error,
        ),
        Case::new(
            "receive_after_error",
            "a receive after the error state is refused or flushed",
            receive_after_error,
        ),
        Case::new(
            "send_waits_for_receive",
            "a message to a peer without receives waits (RNR) until one is posted",
            rnr_waits,
        )
        .needs(&[Need::Rnr]),
        Case::new(
            "rnr_retries_end",
            "with finite RNR retries a send to a peer without receives fails with RnrRetryExceeded",
            rnr_ends,
        )
        .needs(&[Need::Rnr]),
        Case::new(
            "error_of_one_end",
            "a peer in the error state makes a send fail with RetryExceeded; on iWARP the connection ends",
            one_end,
        ),
    ]
}

/// All that is outstanding on a queue, and nothing else, comes back as flushed; gives the number.
pub(super) fn flushed<F: Fabric>(
    bench: &mut Bench<'_, F>,
    conn: ConnId,
    queue: Queue,
) -> Result<usize, Failure> {
    let mut n = 0;
    loop {
        let end = &bench.conns[conn.0];
        let outstanding = if queue == Queue::Send {
            end.sends.len()
        } else {
            end.recvs.len()
        };
        if outstanding + bench.polled(conn, queue) == 0 {
            return Ok(n);
        }
        let done = bench.done(conn, queue, "a flushed work request")?;
        ensure!(
            done.status == WcStatus::Flushed,
            "{queue:?} {n} came back as {}, not flushed",
            done.status
        );
        n += 1;
    }
}

/// Awaits that an end learns of the end: a failed completion on a queue, or Disconnected.
pub(super) fn learns<F: Fabric>(
    bench: &mut Bench<'_, F>,
    conn: ConnId,
    queue: Queue,
) -> Result<Option<Done>, Failure> {
    let key = bench.conns[conn.0].key;
    let deadline = Instant::now() + PATIENCE;
    loop {
        bench.poll_all()?;
        while let Some(done) = bench.take(conn, queue) {
            if done.status != WcStatus::Success {
                return Ok(Some(done));
            }
        }
        bench.pump(Instant::now() + Duration::from_millis(1))?;
        if bench
            .events
            .iter()
            .any(|e| e.id == key && e.kind == CmEventKind::Disconnected)
        {
            return Ok(None);
        }
        ensure!(
            Instant::now() < deadline,
            "no failed completion and no Disconnected within {} s",
            PATIENCE.as_secs()
        );
    }
}

fn flushes_receives<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.greeted(&PairSpec {
        receives: 20,
        ..PairSpec::default()
    })?;
    for (end, want) in [(pair.passive, 19), (pair.active, 20)] {
        bench.set_error(end)?;
        let n = flushed(bench, end, Queue::Recv)?;
        ensure!(
            n == want,
            "{n} receives were flushed where {want} were posted"
        );
    }
    Ok(())
}

fn flushes_sends<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.pair(&PairSpec {
        receives: 0,
        ..PairSpec::default()
    })?;
    let chain: Vec<_> = (0..6)
        .map(|n| Message {
            signalled: n % 3 == 2,
            ..Message::new(pattern(n, 50))
        })
        .collect();
    bench.send(pair.active, &chain)?;
    bench.set_error(pair.active)?;
    let n = flushed(bench, pair.active, Queue::Send)?;
    ensure!(
        n == chain.len(),
        "{n} sends were flushed where {} waited",
        chain.len()
    );
    Ok(())
}

/// A connection of which the active end is in the error state and has nothing outstanding.
fn in_error<F: Fabric>(bench: &mut Bench<'_, F>) -> Result<Pair, Failure> {
    let pair = bench.greeted(&PairSpec {
        receives: 4,
        ..PairSpec::default()
    })?;
    bench.set_error(pair.active)?;
    flushed(bench, pair.active, Queue::Recv)?;
    Ok(pair)
}

fn send_after_error<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = in_error(bench)?;
    if bench
        .try_send(pair.active, &[Message::new(vec![7; 64])], None)?
        .is_ok()
    {
        let n = flushed(bench, pair.active, Queue::Send)?;
        ensure!(n == 1, "one send gave {n} completions");
    }
    std::thread::sleep(QUIET);
    unheard(bench, pair.passive)
}

fn receive_after_error<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = in_error(bench)?;
    let wr_id = bench.wr_id();
    if bench.try_receive(pair.active, &[wr_id], None)?.is_ok() {
        let n = flushed(bench, pair.active, Queue::Recv)?;
        ensure!(n == 1, "one receive gave {n} completions");
    }
    Ok(())
}

/// No message has come to an end.
pub(super) fn unheard<F: Fabric>(bench: &mut Bench<'_, F>, conn: ConnId) -> Verdict {
    bench.poll_all()?;
    let all = std::iter::from_fn(|| bench.take(conn, Queue::Recv));
    let heard = all.filter(|d| d.status == WcStatus::Success).count();
    ensure!(
        heard == 0,
        "the peer got a message that was never to be sent"
    );
    Ok(())
}

fn rnr_waits<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.pair(&PairSpec {
        receives: 0,
        ..PairSpec::default()
    })?;
    let data: Vec<_> = (0..3).map(|n| pattern(n, 3000)).collect();
    let chain: Vec<_> = data.iter().map(|d| Message::new(d.clone())).collect();
    bench.send(pair.active, &chain)?;
    for (n, want) in data.iter().enumerate() {
        std::thread::sleep(QUIET);
        bench.poll_all()?;
        let early = bench.polled(pair.active, Queue::Send);
        ensure!(
            early == 0,
            "send {n} completed although no receive was posted"
        );
        bench.receive(pair.passive, 1)?;
        bench.received(pair.passive, want)?;
        bench.sent(pair.active)?;
    }
    Ok(())
}

fn rnr_ends<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let spec = PairSpec {
        receives: 0,
        rnr_retry_count: 2,
        ..PairSpec::default()
    };
    let pair = bench.pair(&spec)?;
    bench.send(
        pair.active,
        &[Message::new(vec![6; 10]), Message::new(vec![7; 10])],
    )?;
    let done = bench.done(pair.active, Queue::Send, "the end of the RNR retries")?;
    ensure!(
        done.status == WcStatus::RnrRetryExceeded,
        "the send ended as {}",
        done.status
    );
    let n = flushed(bench, pair.active, Queue::Send)?;
    ensure!(n == 1, "{n} sends were flushed behind it, not 1");
    Ok(())
}

fn one_end<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.greeted(&PairSpec {
        retry_count: 1,
        ..PairSpec::default()
    })?;
    bench.set_error(pair.passive)?;
    flushed(bench, pair.passive, Queue::Recv)?;
    let rc = bench.is_rc(pair.active)?;
    if rc {
        bench.send(pair.active, &[Message::new(vec![5; 100])])?;
    }
    let failed = learns(bench, pair.active, Queue::Send)?;
    if rc {
        let status = failed.map(|d| d.status);
        ensure!(
            status == Some(WcStatus::RetryExceeded),
            "the send ended as {status:?}"
        );
    }
    Ok(())
}
