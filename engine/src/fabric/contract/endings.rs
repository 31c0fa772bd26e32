//! How connections end.

use super::bench::{Bench, QUIET};
use super::connection::PairSpec;
use super::message::{Message, pattern};
use super::side::{Queue, SideSpec};
use super::{Case, Verdict};
use crate::fabric::{CmEventKind, Fabric, WcStatus};
use std::time::Instant;

pub(super) fn cases<F: Fabric>() -> [Case<F>; 5] {
    [
        Case::new(
            "disconnect_reaches_both",
            "a disconnect that the peer answers raises Disconnected at both ends",
            disconnect,
        ),
        Case::new(
            "destroying_ends_the_peer",
            "destroying one end without a word raises Disconnected at the other",
            destroying,
        ),
        Case::new(
            "no_event_after_destruction",
            "events that wait for an id go with it; those of others stay",
            no_event,
        ),
        Case::new(
            "all_comes_back",
            "after a disconnect under load the error state gives back every work request once",
            under_load,
        ),
        Case::new(
            "again_and_again",
            "connections can be made and ended many times",
            again,
        ),
    ]
}

fn disconnect<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    for by_active in [true, false] {
        let pair = bench.pair(&PairSpec::default())?;
        bench.send(pair.active, &[Message::new(vec![1])])?;
        bench.received(pair.passive, &[1])?;
        bench.sent(pair.active)?;
        let mut ends = [(pair.active, "active"), (pair.passive, "passive")];
        if !by_active {
            ends.reverse();
        }
        let [(first, name), (second, peer)] = ends;
        bench.disconnect(first)?;
        bench.disconnected(second, &format!("Disconnected at the {peer} end"))?;
        // On IB the first hears of it when the second has answered. Where it was over at once, the
        // answer may be refused.
        let _ = bench.disconnect(second);
        bench.disconnected(
            first,
            &format!("Disconnected at the {name} end, which asked for it"),
        )?;
    }
    Ok(())
}

fn destroying<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    for active in [true, false] {
        let pair = bench.pair(&PairSpec::default())?;
        let (goes, stays) = if active {
            (pair.active, pair.passive)
        } else {
            (pair.passive, pair.active)
        };
        bench.destroy(goes);
        bench.disconnected(stays, "Disconnected after the peer was destroyed")?;
    }
    Ok(())
}

fn no_event<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.pair(&PairSpec::default())?;
    let gone = bench.conns[pair.passive.0].key;
    bench.disconnect(pair.active)?;
    // Long enough for the passive end's event to be on its way, unread.
    std::thread::sleep(QUIET);
    bench.destroy(pair.passive);
    bench.disconnected(pair.active, "Disconnected at the end that stays")?;
    let deadline = Instant::now() + QUIET;
    while bench.pump(deadline)? {}
    let late = bench.events.iter().find(|e| e.id == gone).map(|e| e.kind);
    ensure!(late.is_none(), "{late:?} names an id that was destroyed");
    Ok(())
}

fn under_load<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.pair(&PairSpec {
        receives: 32,
        ..PairSpec::default()
    })?;
    for n in 0..24 {
        let signalled = n % 4 == 3;
        bench.send(
            pair.active,
            &[Message {
                signalled,
                ..Message::new(pattern(n, 9000))
            }],
        )?;
    }
    bench.disconnect(pair.active)?;
    bench.set_error(pair.active)?;
    bench.set_error(pair.passive)?;
    bench.flush()?;
    // What arrived is a head of what was sent, unharmed.
    let mut heard = 0;
    let mut flushed = 0;
    while let Some(done) = bench.take(pair.passive, Queue::Recv) {
        match done.status {
            WcStatus::Success => {
                ensure!(flushed == 0, "a message came after a flushed receive");
                super::message::check_message(&done, &pattern(heard, 9000))?;
                heard += 1;
            }
            _ => flushed += 1,
        }
    }
    ensure!(
        heard + flushed == 32,
        "{heard} messages and {flushed} flushed receives of 32"
    );
    Ok(())
}

fn again<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let side = SideSpec {
        slots: 16,
        slot_bytes: 4096,
        ..SideSpec::USUAL
    };
    let mut spec = PairSpec {
        side,
        receives: 4,
        ..PairSpec::default()
    };
    for n in 0..16 {
        let pair = bench.pair(&spec)?;
        spec.sides = bench.conns[pair.active.0]
            .side
            .zip(bench.conns[pair.passive.0].side);
        let data = pattern(n, 700);
        bench.send(pair.active, &[Message::new(data.clone())])?;
        bench.received(pair.passive, &data)?;
        bench.sent(pair.active)?;
        bench.disconnect(pair.active)?;
        let key = bench.conns[pair.passive.0].key;
        bench.event(key, "Disconnected", &[CmEventKind::Disconnected])?;
        bench.set_error(pair.active)?;
        bench.set_error(pair.passive)?;
        bench.flush()?;
        while bench.take(pair.active, Queue::Recv).is_some() {}
        while bench.take(pair.passive, Queue::Recv).is_some() {}
        bench.destroy(pair.active);
        bench.destroy(pair.passive);
    }
    Ok(())
}
