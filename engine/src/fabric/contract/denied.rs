//! What a peer must not do to memory fails at the peer, ends the connection, and leaves no trace.

use super::bench::{Bench, ConnId, SideId};
use super::connection::PairSpec;
use super::errors::{learns, unheard};
use super::memory::Place;
use super::message::{Message, pattern};
use super::side::{Queue, SideSpec};
use super::{Case, Failure, Need, Verdict};
use crate::fabric::{Fabric, SendOp, WcStatus};
use crate::types::{Access, Lkey, RemoteSpan, Rkey};

pub(super) fn cases<F: Fabric>() -> [Case<F>; 9] {
    [
        Case::new(
            "outside_is_refused",
            "what is not wholly inside the memory that a key stands for is refused",
            outside,
        ),
        Case::new(
            "wrong_rkey_is_refused",
            "a key that the peer did not give is refused",
            wrong_rkey,
        ),
        Case::new(
            "registration_limits_writes",
            "memory that is not registered for it takes no WRITE and no atomic",
            changes,
        ),
        Case::new(
            "registration_limits_reads",
            "memory that is not registered for it is not read",
            reads,
        ),
        Case::new(
            "qp_decides",
            "a QP takes only what it was made for, although the key is right",
            qp,
        )
        .needs(&[Need::QpAccess]),
        Case::new(
            "misaligned_atomic",
            "an atomic on a word that is not aligned is refused by the post or by the peer",
            misaligned,
        )
        .needs(&[Need::Atomics]),
        Case::new(
            "denied_is_named",
            "what the memory forbids fails as RemoteAccess, what the QP forbids as \
             RemoteInvalidRequest",
            named,
        )
        .needs(&[Need::Names, Need::QpAccess]),
        Case::new(
            "read_to_wrong_key",
            "a READ into memory of no known key fails and writes nothing",
            wrong_sink,
        ),
        Case::new(
            "invalidates_nothing",
            "a message that takes a key out of use which the receiver never had does not succeed there",
            invalidates_nothing,
        )
        .needs(&[Need::SendInvalidate]),
    ]
}

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Try {
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
}

impl Try {
    /// Access that it needs.
    fn needs(self) -> Access {
        match self {
            Self::Write | Self::WriteImm => Access::REMOTE_WRITE,
            Self::Read => Access::REMOTE_READ,
            Self::CompareSwap | Self::FetchAdd => Access::REMOTE_ATOMIC,
        }
    }

    fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }
}

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It begins before the memory.
    Before,
    /// It begins inside and ends behind the memory.
    Across,
    /// It begins behind the memory.
    Behind,
    /// The key's index is not the device's.
    Key,
    /// The key is an old one of the same index.
    OldKey,
    /// The memory is registered for everything else.
    Registration,
    /// The QP was made for everything else.
    Qp,
    /// The word is not aligned.
    Misaligned,
}

/// Tries of this device; each on a connection of its own, for it does not outlive them.
struct Tries {
    all: Vec<Try>,
    sides: Option<(SideId, SideId)>,
}

impl Tries {
    fn new<F: Fabric>(bench: &mut Bench<'_, F>) -> Result<Self, Failure> {
        let can = bench.probe()?.abilities;
        let mut all = vec![Try::Write, Try::Read];
        if can.immediate {
            all.push(Try::WriteImm);
        }
        if can.atomics {
            all.extend([Try::CompareSwap, Try::FetchAdd]);
        }
        Ok(Self { all, sides: None })
    }

    /// Everything that the device's peers can do, but not what `without` needs.
    fn access(&self, without: Option<Try>) -> Access {
        let mut access = Access::NONE;
        for kind in &self.all {
            if without.is_none_or(|w| w.needs() != kind.needs()) {
                access = access | kind.needs();
            }
        }
        access
    }

    /// Every kind with each of the faults.
    fn run<F: Fabric>(&mut self, bench: &mut Bench<'_, F>, faults: &[Fault]) -> Verdict {
        for kind in self.all.clone() {
            for &fault in faults {
                if fault == Fault::Across && kind.is_atomic() {
                    // An aligned word cannot.
                    continue;
                }
                self.one(bench, kind, fault)
                    .map_err(|f| f.during(&format!("{kind:?} with the fault {fault:?}")))?;
            }
        }
        Ok(())
    }

    /// Tries one; gives how it failed, or on iWARP perhaps nothing.
    fn one<F: Fabric>(
        &mut self,
        bench: &mut Bench<'_, F>,
        kind: Try,
        fault: Fault,
    ) -> Result<Option<WcStatus>, Failure> {
        let but = |f: Fault| (fault == f).then_some(kind);
        let pair = bench.greeted(&PairSpec {
            side: SideSpec {
                slots: 32,
                slot_bytes: 4096,
                ..SideSpec::USUAL
            },
            receives: 4,
            access: self.access(but(Fault::Qp)),
            sides: self.sides,
            ..PairSpec::default()
        })?;
        self.sides = Some((bench.side_of(pair.active)?, bench.side_of(pair.passive)?));
        let memory = bench.memory(pair.passive, 8192, self.access(but(Fault::Registration)))?;
        let sink = bench.sink(pair.active, 4096)?;
        let len = if kind.is_atomic() { 8 } else { 64 };
        let size = bench.size_of(memory);
        let offset = match fault {
            Fault::Before => 0usize.wrapping_sub(8),
            Fault::Across => size - len / 2,
            Fault::Behind => size,
            Fault::Misaligned => 36,
            Fault::Key | Fault::OldKey | Fault::Registration | Fault::Qp => 64,
        };
        let mut at = bench.span(memory, offset)?;
        match fault {
            Fault::Key => at.rkey = Rkey(at.rkey.0 ^ 0x00ff_ff00),
            Fault::OldKey => at.rkey = Rkey(at.rkey.0 ^ 0x01),
            _ => {}
        }
        let wr_id = bench.wr_id();
        let place = bench.place(sink, 128, len);
        let message = Message {
            wr_id: Some(wr_id),
            ..operation(kind, at, pattern(3, len), place)
        };
        let mut chain = vec![message];
        let loose = bench.conns[pair.active.0].grant.is_some_and(|g| g.loose);
        if !(loose && chain[0].op.is_fetch()) {
            // This must not arrive.
            chain.push(Message::new(vec![4; 40]));
        }
        let posted = bench.try_send(pair.active, &chain, None)?;
        if let Err(refused) = posted {
            // Only the alignment can be seen without the peer.
            ensure!(
                fault == Fault::Misaligned && refused.posted == 0,
                "the post was refused: {refused:?}"
            );
            bench.check(memory)?;
            return Ok(None);
        }
        let failed = learns(bench, pair.active, Queue::Send)?;
        if bench.is_rc(pair.active)? {
            ensure!(
                failed.as_ref().is_some_and(|d| d.wr_id == wr_id),
                "it did not fail, but {failed:?}"
            );
        } else {
            // The QPs are on their way there.
            bench.set_error(pair.active)?;
            bench.set_error(pair.passive)?;
        }
        for end in [pair.active, pair.passive] {
            ends(bench, end)?;
        }
        unheard(bench, pair.passive)?;
        bench.check(memory)?;
        bench.check(sink)?;
        bench.destroy(pair.active);
        bench.destroy(pair.passive);
        Ok(failed.map(|d| d.status))
    }
}

fn operation(kind: Try, at: RemoteSpan, data: Vec<u8>, place: Place) -> Message {
    match kind {
        Try::Write => Message::of(SendOp::Write(at), data),
        Try::WriteImm => Message::of(SendOp::WriteImm(at, 77), data),
        Try::Read => Message::fetch(SendOp::Read(at), &[place]),
        Try::CompareSwap => {
            let (expect, swap) = (1, 2);
            Message::fetch(SendOp::CompareSwap { at, expect, swap }, &[place])
        }
        Try::FetchAdd => Message::fetch(SendOp::FetchAdd { at, add: 1 }, &[place]),
    }
}

/// All that is outstanding at an end comes back by itself, and no receive as a success.
pub(super) fn ends<F: Fabric>(bench: &mut Bench<'_, F>, end: ConnId) -> Verdict {
    for queue in [Queue::Send, Queue::Recv] {
        while bench.owed(end, queue) + bench.polled(end, queue) > 0 {
            let done = bench.done(end, queue, "a work request of a QP that ended")?;
            ensure!(
                queue == Queue::Send || done.status != WcStatus::Success,
                "a message arrived at end {} that was never to be sent",
                end.0
            );
        }
    }
    Ok(())
}

fn outside<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    Tries::new(bench)?.run(bench, &[Fault::Before, Fault::Across, Fault::Behind])
}

fn wrong_rkey<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    Tries::new(bench)?.run(bench, &[Fault::Key, Fault::OldKey])
}

fn changes<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let mut tries = Tries::new(bench)?;
    for kind in tries.all.clone() {
        if kind != Try::Read {
            tries
                .one(bench, kind, Fault::Registration)
                .map_err(|f| f.during(&format!("{kind:?}")))?;
        }
    }
    Ok(())
}

fn reads<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let mut tries = Tries::new(bench)?;
    tries.one(bench, Try::Read, Fault::Registration).map(drop)
}

fn qp<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    Tries::new(bench)?.run(bench, &[Fault::Qp])
}

fn misaligned<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let mut tries = Tries::new(bench)?;
    for kind in [Try::CompareSwap, Try::FetchAdd] {
        tries.one(bench, kind, Fault::Misaligned)?;
    }
    Ok(())
}

fn named<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let mut tries = Tries::new(bench)?;
    for kind in tries.all.clone() {
        for (fault, want) in [
            (Fault::Behind, WcStatus::RemoteAccess),
            (Fault::Key, WcStatus::RemoteAccess),
            (Fault::Registration, WcStatus::RemoteAccess),
            (Fault::Qp, WcStatus::RemoteInvalidRequest),
            (Fault::Misaligned, WcStatus::RemoteInvalidRequest),
        ] {
            if fault == Fault::Misaligned && !kind.is_atomic() {
                continue;
            }
            let status = tries.one(bench, kind, fault)?;
            let refused_at_once = fault == Fault::Misaligned && status.is_none();
            ensure!(
                status == Some(want) || refused_at_once,
                "{kind:?} with the fault {fault:?} failed as {status:?}, not as {want:?}"
            );
        }
    }
    Ok(())
}

fn wrong_sink<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.greeted(&PairSpec {
        access: Access::REMOTE_READ,
        ..PairSpec::default()
    })?;
    let memory = bench.memory(pair.passive, 4096, Access::REMOTE_READ)?;
    let sink = bench.sink(pair.active, 4096)?;
    let place = bench.place(sink, 64, 500);
    let wrong = Lkey(bench.sge(place)?.lkey.0 ^ 0x00ff_ff00);
    let op = SendOp::Read(bench.span(memory, 8)?);
    let posted = bench.try_send(pair.active, &[Message::fetch(op, &[place])], Some(wrong))?;
    if posted.is_ok() {
        let failed = learns(bench, pair.active, Queue::Send)?;
        ensure!(
            failed.is_some() || !bench.is_rc(pair.active)?,
            "the READ did not fail"
        );
        if failed.is_none() {
            bench.set_error(pair.active)?;
        }
        ends(bench, pair.active)?;
    }
    bench.check(sink)?;
    bench.check(memory)
}

fn invalidates_nothing<F: Fabric>(bench: &mut Bench<'_, F>) -> Verdict {
    let pair = bench.greeted(&PairSpec {
        receives: 2,
        ..PairSpec::default()
    })?;
    let memory = bench.memory(pair.passive, 4096, Access::REMOTE_READ)?;
    let wrong = Rkey(bench.span(memory, 0)?.rkey.0 ^ 0x00ff_ff00);
    let op = SendOp::SendInvalidate(wrong);
    bench.send(pair.active, &[Message::of(op, vec![5; 100])])?;
    let done = bench.done(pair.passive, Queue::Recv, "the end of a receive")?;
    ensure!(
        done.status != WcStatus::Success,
        "the message arrived, with {:?}",
        done.note
    );
    Ok(())
}
