//! Event mode: what wakes a worker that sleeps on a lane, and what does not.

use super::bench::{Bench, ConnId, PATIENCE, QUIET, readable};
use super::connection::{Pair, PairSpec};
use super::message::{Message, pattern};
use super::side::{Queue, SideSpec};
use super::{Case, Failure, Verdict};
use crate::fabric::{Fabric, Lane};
use crate::limits::POLL_BATCH_MAX;
use std::time::{Duration, Instant};

pub(super) fn cases<F: Fabric>() -> [Case<F>; 6] {
    [
        Case::new(
            "no_events_no_fd",
            "a lane without events has no event fd",
            no_fd,
        ),
        Case::new(
            "armed_lane_wakes",
            "an armed lane is readable after a message and not before; draining ends that",
            wakes,
        ),
        Case::new(
            "armed_once",
            "one arming gives one event: what completes unarmed wakes nobody",
            once,
        ),
        Case::new(
            "poll_again_after_arming",
            "what completed before the arming is found by polling after it",
            poll_again,
        ),
        Case::new(
            "sends_wake",
            "an armed lane is readable when a send completes",
            sends_wake,
        ),
        Case::new(
            "flush_wakes",
            "an armed lane is readable when its QP is flushed",
            flush_wakes,
        ),
    ]
}

fn sleepers<F: Fabric>(bench: &mut Bench<'_, F>) -> Result<Pair, Failure> {
    let side = SideSpec {
        events: true,
        ..SideSpec::USUAL
    };
    bench.pair(&PairSpec {
        side,
        ..PairSpec::default()
    })
}

fn wakes_within<F: Fabric>(
    bench: &mut Bench<'_, F>,
    conn: ConnId,
    wait: Duration,
) -> Result<bool, Failure> {
    let side = bench.conns[conn.0].side.map(|s| &bench.sides[s.0]);
    let fd = side.and_then(|s| s.lane.event_fd());
    let fd = fd.ok_or_else(|| Failure::new("a lane made with events has no event fd"))?;
    Ok(readable(fd, wait)?)
}

fn with_lane<F: Fabric>(bench: &mut Bench<'_, F>, conn: ConnId, call: impl FnOnce(&mut F::Lane)) {
    if let Some(side) = bench.conns[conn.0].side {
        call(&mut bench.sides[side.0].lane);
    }
}

fn arm<F: Fabric>(bench: &mut Bench<'_, F>, conn: ConnId) -> Verdict {
    let mut result = Ok(());
    with_lane(bench, conn, |lane| result = lane.arm());
    result.map_err(|errno| Failure::new(format!("arming failed with errno {errno}")))
}

/// Sends one message, of which the receiver's completion is not polled.
fn send_unseen<F: Fabric>(bench: &mut Bench<'_, F>, pair: &Pair, seed: u64) -> Verdict {
    bench.send(pair.active, &[Message::new(pattern(seed, 100))])
}

fn no_fd<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.pair(&PairSpec::default())?;
    let mut none = false;
    with_lane(bench, pair.active, |lane| none = lane.event_fd().is_none());
    ensure!(none, "a lane made without events has an event fd");
    // Draining is harmless there.
    with_lane(bench, pair.active, Lane::drain_events);
    Ok(())
}

fn wakes<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = sleepers(bench)?;
    for n in 0..3 {
        arm(bench, pair.passive)?;
        ensure!(
            !wakes_within(bench, pair.passive, QUIET)?,
            "an armed lane wakes for nothing"
        );
        send_unseen(bench, &pair, n)?;
        ensure!(
            wakes_within(bench, pair.passive, PATIENCE)?,
            "a message did not wake the lane"
        );
        with_lane(bench, pair.passive, Lane::drain_events);
        ensure!(
            !wakes_within(bench, pair.passive, Duration::ZERO)?,
            "the event fd is readable after draining"
        );
        bench.received(pair.passive, &pattern(n, 100))?;
        bench.sent(pair.active)?;
    }
    Ok(())
}

fn once<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = sleepers(bench)?;
    arm(bench, pair.passive)?;
    for n in 0..2 {
        send_unseen(bench, &pair, n)?;
        bench.received(pair.passive, &pattern(n, 100))?;
        bench.sent(pair.active)?;
        if n == 0 {
            ensure!(
                wakes_within(bench, pair.passive, PATIENCE)?,
                "a message did not wake the lane"
            );
            with_lane(bench, pair.passive, Lane::drain_events);
        }
    }
    ensure!(
        !wakes_within(bench, pair.passive, QUIET)?,
        "a lane that is not armed wakes"
    );
    // It can be armed again.
    arm(bench, pair.passive)?;
    send_unseen(bench, &pair, 2)?;
    ensure!(
        wakes_within(bench, pair.passive, PATIENCE)?,
        "a lane armed again does not wake"
    );
    bench.received(pair.passive, &pattern(2, 100)).map(drop)
}

fn poll_again<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = sleepers(bench)?;
    for n in 0..4 {
        send_unseen(bench, &pair, n)?;
        // Half of the times the message is surely there when the lane is armed.
        if n % 2 == 0 {
            std::thread::sleep(QUIET);
        }
        arm(bench, pair.passive)?;
        // As a worker does: poll, and sleep only if there is nothing.
        bench.poll_all()?;
        if bench.polled(pair.passive, Queue::Recv) == 0 {
            ensure!(
                wakes_within(bench, pair.passive, PATIENCE)?,
                "neither did a poll after arming find the message, nor did it wake the lane"
            );
        }
        with_lane(bench, pair.passive, Lane::drain_events);
        bench.received(pair.passive, &pattern(n, 100))?;
        bench.sent(pair.active)?;
    }
    Ok(())
}

fn sends_wake<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = sleepers(bench)?;
    arm(bench, pair.active)?;
    send_unseen(bench, &pair, 0)?;
    // Where there is no device, it is the peer's lane that acknowledges: it is polled, as a peer does.
    let peer = bench.side_of(pair.passive)?;
    let deadline = Instant::now() + PATIENCE;
    while !wakes_within(bench, pair.active, Duration::from_millis(1))? {
        bench.poll(peer, POLL_BATCH_MAX)?;
        ensure!(
            Instant::now() < deadline,
            "a completed send did not wake the lane"
        );
    }
    bench.sent(pair.active)?;
    bench.received(pair.passive, &pattern(0, 100)).map(drop)
}

fn flush_wakes<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = sleepers(bench)?;
    arm(bench, pair.passive)?;
    bench.set_error(pair.passive)?;
    ensure!(
        wakes_within(bench, pair.passive, PATIENCE)?,
        "a flush did not wake the lane"
    );
    Ok(())
}
