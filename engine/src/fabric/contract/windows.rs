//! Memory windows: a part of memory for the peer of one connection, and back at will.

use super::bench::{Bench, ConnId};
use super::completions::quiet;
use super::connection::{Pair, PairSpec};
use super::denied::ends;
use super::errors::{learns, unheard};
use super::memory::{MemoryId, Place};
use super::message::{Message, pattern};
use super::onesided::tell;
use super::side::{Posted, Queue};
use super::{Case, Failure, Need, Verdict};
use crate::fabric::{Fabric, Lane, Note, PostFailure, SendOp, SendWr, WcOpcode};
use crate::types::{Access, RemoteSpan, Rkey};

pub(super) fn cases<F: Fabric>() -> [Case<F>; 7] {
    [
        Case::new(
            "window_opens",
            "a window gives the peer the part of memory that it was bound to, by a key of its own",
            opens,
        )
        .needs(&[Need::Windows]),
        Case::new(
            "window_has_edges",
            "outside a window the memory is closed, although it is registered",
            edges,
        )
        .needs(&[Need::Windows]),
        Case::new(
            "window_limits_access",
            "a window takes only what it was bound for",
            access,
        )
        .needs(&[Need::Windows]),
        Case::new(
            "window_is_one_peers",
            "the key of a window is of no use on another connection",
            one_peers,
        )
        .needs(&[Need::Windows]),
        Case::new(
            "window_closes",
            "a window whose key was invalidated here is closed, and can be bound again",
            closes,
        )
        .needs(&[Need::Windows]),
        Case::new(
            "peer_closes_window",
            "a SEND with invalidate arrives with the key, whose window is closed then",
            peer_closes,
        )
        .needs(&[Need::Windows, Need::SendInvalidate]),
        Case::new(
            "bind_in_chain_is_refused",
            "a bind is posted by itself: a chain with one is refused, and nothing of it is posted",
            in_chain,
        ),
    ]
}

/// Bytes of the window, and where it begins in its memory.
const LEN: usize = 1000;
const AT: usize = 500;

/// A connection of which the passive end has one window on memory of its own.
struct Windowed {
    pair: Pair,
    memory: MemoryId,
    sink: MemoryId,
    key: Rkey,
}

impl Windowed {
    fn new<F: Fabric>(bench: &mut Bench<'_, F>) -> Result<Self, Failure> {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let pair = bench.greeted(&PairSpec {
            access,
            windows: 1,
            ..PairSpec::default()
        })?;
        let memory = bench.memory(pair.passive, 4096, Access::WINDOWS)?;
        let sink = bench.sink(pair.active, 4096)?;
        let keys = bench.conns[pair.passive.0]
            .qp
            .as_ref()
            .map_or_else(Vec::new, |(_, qp)| F::window_keys(qp));
        ensure!(
            keys.len() == 1,
            "a QP made with one window has keys {keys:?}"
        );
        Ok(Self {
            pair,
            memory,
            sink,
            key: keys[0],
        })
    }

    /// Binds the window anew.
    fn open<F: Fabric>(&mut self, bench: &mut Bench<'_, F>, access: Access) -> Verdict {
        // The low 8 bits are the owner's to choose (IBTA 10.6.6.2.4).
        self.key = Rkey((self.key.0 & !0xff) | (self.key.0.wrapping_add(1) & 0xff));
        let place = bench.place(self.memory, AT, LEN);
        bind(bench, self.pair.passive, self.key, access, place)?;
        bench.sent(self.pair.passive).map(drop)
    }

    /// How the peer names byte `offset` of the memory by the window.
    fn span<F: Fabric>(&self, bench: &Bench<'_, F>, offset: usize) -> Result<RemoteSpan, Failure> {
        let mut span = bench.span(self.memory, offset)?;
        span.rkey = self.key;
        Ok(span)
    }

    /// WRITEs and READs all of the window.
    fn used<F: Fabric>(&self, bench: &mut Bench<'_, F>, seed: u64) -> Verdict {
        let at = self.span(bench, AT)?;
        let data = pattern(seed, LEN);
        bench.want(self.memory, AT, &data);
        bench.want(self.sink, 9, &data);
        let place = bench.place(self.sink, 9, LEN);
        let chain = [
            Message::of(SendOp::Write(at), data),
            Message::fetch(SendOp::Read(at), &[place]),
        ];
        bench.send(self.pair.active, &chain)?;
        bench.sent(self.pair.active)?;
        bench.sent(self.pair.active)?;
        bench.check(self.memory)?;
        bench.check(self.sink)
    }

    /// An operation of an end must fail and end its connection.
    fn refused<F: Fabric>(
        &self,
        bench: &mut Bench<'_, F>,
        (from, to): (ConnId, ConnId),
        message: Message,
    ) -> Verdict {
        let op = message.op;
        bench.send(from, &[message])?;
        let failed = learns(bench, from, Queue::Send)?;
        ensure!(
            failed.is_some() || !bench.is_rc(from)?,
            "{op:?} did not fail"
        );
        if failed.is_none() {
            bench.set_error(from)?;
            bench.set_error(to)?;
        }
        ends(bench, from)?;
        ends(bench, to)?;
        unheard(bench, to)?;
        bench.check(self.memory)?;
        bench.check(self.sink)
    }

    fn both(&self) -> (ConnId, ConnId) {
        (self.pair.active, self.pair.passive)
    }

    fn write<F: Fabric>(&self, bench: &Bench<'_, F>, offset: usize) -> Result<Message, Failure> {
        let at = self.span(bench, offset)?;
        Ok(Message::of(SendOp::Write(at), pattern(8, 40)))
    }
}

/// Posts the bind of an end's window.
fn bind<F: Fabric>(
    bench: &mut Bench<'_, F>,
    end: ConnId,
    rkey: Rkey,
    access: Access,
    place: Place,
) -> Verdict {
    let (wr_id, sge, side) = (bench.wr_id(), bench.sge(place)?, bench.side_of(end)?);
    let op = SendOp::Bind {
        window: 0,
        rkey,
        access,
    };
    let wr = SendWr {
        wr_id,
        addr: sge.addr,
        len: sge.len,
        lkey: sge.lkey,
        op,
        signalled: true,
        inline: false,
        more: 0,
    };
    let Some((_, qp)) = &mut bench.conns[end.0].qp else {
        return Err(Failure::new("the end has no QP"));
    };
    let lane = &mut bench.sides[side.0].lane;
    let posted = Bench::<F>::with_registration(&bench.memories, place, |memory| {
        lane.post_bind(qp, &wr, memory)
    })?;
    ensure!(posted.is_ok(), "the bind was refused: {posted:?}");
    bench.conns[end.0].sends.push_back(Posted {
        wr_id,
        signalled: true,
        opcode: WcOpcode::Bind,
        buffers: Vec::new(),
    });
    Ok(())
}

fn opens<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let mut windowed = Windowed::new(bench)?;
    let whole = bench.span(windowed.memory, 0)?.rkey;
    windowed.open(bench, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    ensure!(
        windowed.key != whole,
        "the window has the key of all the memory"
    );
    windowed.used(bench, 1)?;
    windowed.used(bench, 2)
}

fn edges<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    for offset in [AT - 1, AT + LEN - 39, AT + LEN] {
        let mut windowed = Windowed::new(bench)?;
        windowed.open(bench, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
        let message = windowed.write(bench, offset)?;
        windowed
            .refused(bench, windowed.both(), message)
            .map_err(|f| f.during(&format!("a WRITE from byte {offset} on")))?;
    }
    Ok(())
}

fn access<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let mut windowed = Windowed::new(bench)?;
    windowed.open(bench, Access::REMOTE_READ)?;
    let message = windowed.write(bench, AT)?;
    windowed
        .refused(bench, windowed.both(), message)
        .map_err(|f| f.during("a WRITE to a window for READs"))?;
    let mut windowed = Windowed::new(bench)?;
    windowed.open(bench, Access::REMOTE_WRITE)?;
    let place = bench.place(windowed.sink, 0, 40);
    let op = SendOp::Read(windowed.span(bench, AT)?);
    windowed
        .refused(bench, windowed.both(), Message::fetch(op, &[place]))
        .map_err(|f| f.during("a READ from a window for WRITEs"))
}

fn one_peers<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let mut windowed = Windowed::new(bench)?;
    windowed.open(bench, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    let stranger = bench.greeted(&PairSpec {
        access: Access::REMOTE_READ | Access::REMOTE_WRITE,
        sides: Some((
            bench.side_of(windowed.pair.active)?,
            bench.side_of(windowed.pair.passive)?,
        )),
        ..PairSpec::default()
    })?;
    let message = windowed.write(bench, AT)?;
    windowed.refused(bench, (stranger.active, stranger.passive), message)?;
    // It is still the other's.
    windowed.used(bench, 3)
}

fn closes<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let mut windowed = Windowed::new(bench)?;
    for seed in 0..3 {
        windowed.open(bench, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
        windowed.used(bench, seed)?;
        let op = SendOp::LocalInvalidate(windowed.key);
        bench.send(windowed.pair.passive, &[Message::fetch(op, &[])])?;
        bench.sent(windowed.pair.passive)?;
    }
    let message = windowed.write(bench, AT)?;
    windowed.refused(bench, windowed.both(), message)
}

fn peer_closes<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let mut windowed = Windowed::new(bench)?;
    let (active, passive) = windowed.both();
    for n in 0..3u64 {
        windowed.open(bench, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
        windowed.used(bench, n)?;
        let data = pattern(n + 70, 300);
        let op = SendOp::SendInvalidate(windowed.key);
        bench.send(active, &[Message::of(op, data.clone())])?;
        bench.received_with(passive, &data, Note::Invalidated(windowed.key))?;
        bench.sent(active)?;
        // The note is of that message alone.
        bench.send(active, &[Message::new(data.clone())])?;
        bench.received(passive, &data)?;
        bench.sent(active)?;
    }
    let message = windowed.write(bench, AT)?;
    windowed.refused(bench, windowed.both(), message)
}

fn in_chain<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.greeted(&PairSpec::default())?;
    let bind = SendOp::Bind {
        window: 0,
        rkey: Rkey(0x100),
        access: Access::REMOTE_READ,
    };
    let messages = [pattern(1, 60), pattern(2, 60)];
    for place in 0..=messages.len() {
        let mut chain: Vec<_> = messages.iter().cloned().map(Message::new).collect();
        chain.insert(place, Message::of(bind, pattern(3, 60)));
        let posted = bench.try_send(pair.active, &chain, None)?;
        let refusal = PostFailure {
            posted: 0,
            errno: libc::EINVAL,
        };
        ensure!(
            posted == Err(refusal),
            "a chain whose number {place} is a bind was posted: {posted:?}"
        );
    }
    // Nothing of them is on its way, and the QP is as it was.
    tell(bench, pair.active, pair.passive)?;
    quiet(bench, pair.active, Queue::Send)?;
    quiet(bench, pair.passive, Queue::Recv)
}
