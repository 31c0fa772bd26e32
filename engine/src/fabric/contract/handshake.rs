//! How connections come to be, or do not.

use super::bench::Bench;
use super::connection::PairSpec;
use super::message::{Message, pattern};
use super::{Case, Failure, Need, Verdict};
use crate::fabric::{CmEventKind, Endpoint, Fabric, PrivateData};
use crate::limits::PRIVATE_DATA_MAX;
use std::time::{Duration, Instant};

pub(super) fn cases<F: Fabric>() -> [Case<F>; 9] {
    [
        Case::new(
            "private_data",
            "private data of the request and of the answer reaches the other end",
            private_data,
        ),
        Case::new(
            "no_private_data",
            "a handshake without private data brings none, or zeros",
            no_private_data,
        ),
        Case::new(
            "reject_brings_data",
            "a rejection ends the attempt and brings its private data",
            reject,
        ),
        Case::new(
            "nobody_listens",
            "a connection to nobody fails soon: by an event, or on iWARP at the call",
            nobody,
        ),
        Case::new(
            "address_taken",
            "two listeners cannot have one address",
            taken,
        ),
        Case::new(
            "port_zero",
            "port 0 listens at a real port, and both ends know it",
            port_zero,
        )
        .needs(&[Need::Ports]),
        Case::new(
            "first_receive",
            "a receive posted before the handshake takes the first message, even before Established",
            first_receive,
        ),
        Case::new(
            "destroyed_before_connect",
            "an id and its QP can be destroyed at every step of the handshake",
            given_up,
        ),
        Case::new(
            "destroyed_unanswered",
            "destroying an end does not wait for the answer of its peer",
            unanswered,
        ),
    ]
}

/// IB pads private data with zeros; iWARP does not.
fn same_data(what: &str, got: &PrivateData, want: &[u8]) -> Verdict {
    let got = got.as_slice();
    ensure!(
        got.get(..want.len()) == Some(want),
        "{what}: {} B were sent, {got:02x?} arrived",
        want.len()
    );
    ensure!(
        got[want.len()..].iter().all(|&b| b == 0),
        "{what}: something other than zeros follows the private data: {got:02x?}"
    );
    Ok(())
}

fn private_data<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    for len in [1, 32, PRIVATE_DATA_MAX] {
        let (request, answer) = (pattern(1, len), pattern(2, len));
        let spec = PairSpec {
            request: request.clone(),
            answer: answer.clone(),
            ..PairSpec::default()
        };
        let pair = bench.pair(&spec)?;
        same_data("request", &pair.request, &request)?;
        same_data("answer", &pair.answer, &answer)?;
    }
    Ok(())
}

fn no_private_data<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.pair(&PairSpec::default())?;
    same_data("request", &pair.request, &[])?;
    same_data("answer", &pair.answer, &[])
}

fn reject<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let spec = PairSpec::default();
    let (listener, to) = bench.listen()?;
    let active = bench.resolve(&to)?;
    bench.equip(active, &spec, None)?;
    bench.connect(active, &spec)?;
    let event = bench.request(listener)?;
    let passive = bench.adopt(event)?;
    let why = pattern(3, 24);
    let data = PrivateData::new(&why).map_err(|e| Failure::new(e.to_string()))?;
    if let Some(id) = &mut bench.conns[passive.0].id {
        bench.fabric.reject(id, &data)?;
    }
    bench.destroy(passive);
    let key = bench.conns[active.0].key;
    let event = bench.event(key, "Rejected at the active end", &[CmEventKind::Rejected])?;
    same_data("rejection", &event.private_data, &why)?;
    // The listener is none the worse.
    bench.destroy(active);
    let again = bench.resolve(&to)?;
    bench.equip(again, &spec, None)?;
    bench.connect(again, &spec)?;
    let event = bench.request(listener)?;
    bench.adopt(event).map(drop)
}

fn nobody<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let (listener, to) = bench.listen()?;
    bench.unlisten(listener);
    let spec = PairSpec::default();
    let active = match bench.resolve(&to) {
        Ok(active) => active,
        // Where a name is the address, it does not resolve.
        Err(_) if matches!(to, Endpoint::Shm(_)) => return Ok(()),
        Err(failure) => return Err(failure),
    };
    bench.equip(active, &spec, None)?;
    if let Err(failure) = bench.connect(active, &spec) {
        ensure!(!bench.is_rc(active)?, "{failure}");
        return Ok(());
    }
    let key = bench.conns[active.0].key;
    let ends = [
        CmEventKind::Rejected,
        CmEventKind::ConnectError,
        CmEventKind::Unreachable,
    ];
    let event = bench.event(key, "the failure of a connection to nobody", &ends)?;
    ensure!(
        event.kind == CmEventKind::Rejected || event.status != 0,
        "{:?} came with status 0",
        event.kind
    );
    Ok(())
}

fn taken<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let (_, to) = bench.listen()?;
    match bench.fabric.listen(&to, 1) {
        Err(_) => Ok(()),
        Ok(id) => {
            bench.listeners.push(Some(id));
            Err(Failure::new(format!("a second listener got {to}")))
        }
    }
}

fn port_zero<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    if let Endpoint::Rdma(at) = &mut bench.at {
        at.set_port(0);
    }
    let (_, first) = bench.listen()?;
    let (_, second) = bench.listen()?;
    for to in [&first, &second] {
        let Endpoint::Rdma(addr) = to else {
            return Err(Failure::new(format!("the listener is at {to}")));
        };
        ensure!(addr.port() != 0, "the listener does not know its port");
    }
    ensure!(first != second, "two listeners have one address, {first}");
    let spec = PairSpec::default();
    let (listener, to) = bench.listen()?;
    let active = bench.resolve(&to)?;
    bench.equip(active, &spec, None)?;
    bench.connect(active, &spec)?;
    let event = bench.request(listener)?;
    let passive = bench.adopt(event)?;
    let endpoint = |bench: &Bench<'_, F>, end: usize, peer: bool| {
        let id = bench.conns[end].id.as_ref();
        id.and_then(|id| {
            if peer {
                bench.fabric.peer_endpoint(id)
            } else {
                bench.fabric.local_endpoint(id)
            }
        })
    };
    let peer = endpoint(bench, active.0, true);
    ensure!(
        peer.as_ref() == Some(&to),
        "the active end's peer is {peer:?}, not {to}"
    );
    let (here, there) = (
        endpoint(bench, active.0, false),
        endpoint(bench, passive.0, true),
    );
    ensure!(
        there.is_some() && here == there,
        "the active end is at {here:?}; the passive end takes it to be at {there:?}"
    );
    Ok(())
}

fn first_receive<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let mut pair = bench.pair_unestablished(&PairSpec {
        receives: 1,
        ..PairSpec::default()
    })?;
    let first = bench.conns[pair.passive.0].recvs.front().map(|p| p.wr_id);
    let data = pattern(4, 1000);
    bench.send(pair.active, &[Message::new(data.clone())])?;
    let done = bench.received(pair.passive, &data)?;
    ensure!(
        Some(done.wr_id) == first,
        "another receive took the first message"
    );
    bench.sent(pair.active)?;
    bench.established(&mut pair)
}

fn given_up<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let spec = PairSpec::default();
    let (listener, to) = bench.listen()?;
    for steps in 0..4 {
        let active = bench.resolve(&to)?;
        if steps > 0 {
            bench.equip(active, &spec, None)?;
        }
        if steps > 1 {
            bench.connect(active, &spec)?;
            let event = bench.request(listener)?;
            let passive = bench.adopt(event)?;
            if steps > 2 {
                bench.equip(passive, &spec, None)?;
            }
            bench.destroy(passive);
        }
        bench.destroy(active);
    }
    // What was given up leaves the listener in order.
    let active = bench.resolve(&to)?;
    bench.equip(active, &spec, None)?;
    bench.connect(active, &spec)?;
    let event = bench.request(listener)?;
    bench.adopt(event).map(drop)
}

fn unanswered<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let spec = PairSpec::default();
    let (listener, to) = bench.listen()?;
    let active = bench.resolve(&to)?;
    bench.equip(active, &spec, None)?;
    bench.connect(active, &spec)?;
    let event = bench.request(listener)?;
    bench.adopt(event)?;
    let began = Instant::now();
    bench.destroy(active);
    let took = began.elapsed();
    ensure!(
        took < Duration::from_secs(2),
        "it took {} ms",
        took.as_millis()
    );
    Ok(())
}
