//! What is admitted: by the device's abilities, the peer's region and the memory at hand.

use super::*;
use crate::fabric::{QpGrant, SendOp};
use crate::memory::{ExposedMemory, Parts, Piece, span_for_tests};
use crate::types::{Abilities, Lkey, RemoteRegion, Rkey};
use crate::worker::sinks::Sinks;

const EVERYTHING: Abilities = Abilities {
    immediate: true,
    send_invalidate: true,
    atomics: true,
    windows: true,
    sges: 3,
    read_sges: 2,
    read_sink_is_exposed: false,
};

fn region(access: Access) -> RemoteRegion {
    RemoteRegion::parse(4096, 64, Rkey(9), access).expect("valid")
}

/// A connection whose device has these abilities, and takes one fetch at a time.
fn up(abilities: Abilities) -> (Bench, ConnId) {
    let mut b = Bench::new(SMALL);
    let (conn, number) = b.up(0);
    let grant = QpGrant {
        number,
        inline_bytes: 0,
        message_bytes_max: MESSAGE_BYTES_MAX,
        loose: false,
        abilities,
    };
    let sends = &mut b.worker.core.table.at(conn.index).sends;
    sends.open(0, Lkey(1), &grant);
    sends.allow_fetches(1);
    (b, conn)
}

impl Bench {
    fn io(&mut self) -> Io<'_> {
        Io::new(&mut self.worker.core)
    }

    fn buffer(&mut self, len: u32) -> Buffer {
        let mut buffer = self.io().alloc().expect("a slot");
        buffer.set_len(len).expect("fits");
        buffer
    }

    fn ops(&mut self, conn: ConnId) -> Vec<SendOp> {
        let chain = self.worker.core.table.at(conn.index).sends.chain();
        chain.0.iter().map(|wr| wr.op).collect()
    }
}

#[test]
fn what_the_device_cannot_do_is_refused_before_the_post() {
    let (mut b, conn) = up(Abilities::LEAST);
    let all = region(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    let (x, y, z) = (b.buffer(8), b.buffer(8), b.buffer(8));
    let mut io = b.io();
    let mut refused = Vec::new();
    let mut note = |r: Result<(), Rejected>| refused.push(r.expect_err("refused").reason);
    note(io.send_imm(conn, x, 1, Token(0)));
    note(io.send_invalidate(conn, y, Rkey(1), Token(0)));
    note(io.write_imm(conn, z, &all, 0, 1, Token(0)));
    refused.push(
        io.fetch_add(conn, &all, 0, 1, Token(0))
            .expect_err("refused"),
    );
    refused.push(
        io.compare_swap(conn, &all, 0, 1, 2, Token(0))
            .expect_err("refused"),
    );
    let span = span_for_tests(4096);
    let bound = io.bind(conn, span, Access::REMOTE_READ, Token(0));
    refused.push(bound.expect_err("refused").reason);
    assert_eq!(refused, [PostError::Unsupported; 6]);
    assert_eq!(b.free(), 64 - 8, "only the receives have slots");
    assert!(b.ops(conn).is_empty());
}

#[test]
fn every_operation_stands_in_the_queue_as_it_was_asked_for() {
    let (mut b, conn) = up(EVERYTHING);
    let all = region(Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC);
    let buffers: Vec<_> = (0..4).map(|_| b.buffer(8)).collect();
    let mut io = b.io();
    let mut next = buffers.into_iter();
    let mut take = || next.next().expect("four");
    io.send_imm(conn, take(), 5, Token(0)).expect("taken");
    io.send_invalidate(conn, take(), Rkey(3), Token(1))
        .expect("taken");
    io.write_imm(conn, take(), &all, 8, 6, Token(2))
        .expect("taken");
    io.fetch_add(conn, &all, 16, 7, Token(3)).expect("taken");
    io.compare_swap(conn, &all, 56, 8, 9, Token(4))
        .expect("taken");
    let at = |offset| all.span(offset, 8).expect("inside");
    // The CAS waits for the FAA: one fetch at a time.
    let wanted = [
        SendOp::SendImm(5),
        SendOp::SendInvalidate(Rkey(3)),
        SendOp::WriteImm(at(8), 6),
        SendOp::FetchAdd { at: at(16), add: 7 },
    ];
    assert_eq!(b.ops(conn), wanted);
}

#[test]
fn regions_bound_what_is_asked_of_the_peer() {
    let (mut b, conn) = up(EVERYTHING);
    let plain = region(Access::REMOTE_READ);
    let atomic = region(Access::REMOTE_ATOMIC);
    let mut io = b.io();
    let add = |io: &mut Io<'_>, region: &RemoteRegion, offset| {
        io.fetch_add(conn, region, offset, 1, Token(0))
    };
    assert_eq!(add(&mut io, &plain, 0), Err(PostError::NotAllowed));
    assert_eq!(add(&mut io, &atomic, 57), Err(PostError::OutOfRegion));
    assert_eq!(add(&mut io, &atomic, 4), Err(PostError::Misaligned));
    assert_eq!(add(&mut io, &atomic, u64::MAX), Err(PostError::OutOfRegion));
    let none = io.revoke(conn, Rkey(1), Token(0));
    assert_eq!(none, Err(PostError::NoSuchKey));
    let span = span_for_tests(4096);
    let bound = io.bind(conn, span, Access::LOCAL_WRITE, Token(0));
    assert_eq!(bound.expect_err("no right").reason, PostError::NotAllowed);
    assert_eq!(b.free(), 64 - 8);
}

#[test]
fn a_window_is_revoked_once() {
    let (mut b, conn) = up(EVERYTHING);
    b.worker.core.table.at(conn.index).windows = vec![Rkey(0x100)].into();
    let exposures = &b.worker.exposures;
    let memory = exposures.expose(4096, HugepagePolicy::Off, Access::WINDOWS);
    let memory = memory.expect("memory");
    let bind = |b: &mut Bench| {
        let span = memory.span(64, 128).expect("inside");
        let bound = b.io().bind(conn, span, Access::REMOTE_READ, Token(0));
        bound.map_err(|r| r.reason)
    };
    let region = bind(&mut b).expect("a window");
    assert_eq!((region.len(), region.rkey()), (128, Rkey(0x101)));
    assert_eq!(bind(&mut b), Err(PostError::NoWindow));
    let revoke = |b: &mut Bench| b.io().revoke(conn, region.rkey(), Token(1));
    assert_eq!(revoke(&mut b), Ok(()));
    assert_eq!(
        revoke(&mut b),
        Err(PostError::NoSuchKey),
        "a device takes it once"
    );
    assert_eq!(
        bind(&mut b),
        Err(PostError::NoWindow),
        "not free before it is done"
    );
    for outcome in [Outcome::Done, Outcome::Done] {
        let sends = &mut b.worker.core.table.at(conn.index).sends;
        let (entry, special) = sends.take_unposted().expect("bind, then revoke");
        b.worker.give_back(conn.index, entry, special, outcome);
    }
    let again = bind(&mut b).expect("the window is free");
    assert_eq!(again.rkey(), Rkey(0x102));
}

#[test]
fn pieces_are_counted_against_what_the_device_takes() {
    let (mut b, conn) = up(EVERYTHING);
    let readable = region(Access::REMOTE_READ);
    let mut parts = Parts::new();
    for _ in 0..4 {
        parts.push(b.buffer(4)).expect("room");
    }
    assert!(parts.push(b.buffer(4)).is_err(), "four is the most");
    let rejected = b.io().send(conn, parts, Token(0)).expect_err("too many");
    assert_eq!(rejected.reason, PostError::TooManyPieces);
    let mut parts = rejected.payload;
    let last = parts.drain().last().and_then(Piece::into_buffer);
    drop(last.expect("a buffer"));
    for _ in 0..3 {
        parts.push(b.buffer(4)).expect("room");
    }
    let rejected = b.io().read(conn, parts, &readable, 0, Token(0));
    let parts = rejected.expect_err("a READ takes two").payload;
    b.io().send(conn, parts, Token(0)).expect("three are fine");
    let (chain, more) = b.worker.core.table.at(conn.index).sends.chain();
    assert_eq!((chain[0].more, chain[0].len, more.len()), (2, 4, 1));
    let entry = b.worker.core.table.at(conn.index).sends.take_unposted();
    let Some(Payload::Parts(mut parts)) = entry.map(|(e, _)| e.payload) else {
        panic!("the list comes back");
    };
    parts.drain().for_each(drop);
    assert_eq!(b.free(), 64 - 8);
}

/// A connection on a device whose READs need sinks that are open to peers, with an arena of two places.
fn up_with_arena() -> (Bench, ConnId, ExposedMemory) {
    let (mut b, conn) = up(Abilities {
        read_sink_is_exposed: true,
        ..Abilities::LEAST
    });
    let exposed = b
        .worker
        .exposures
        .expose(128, HugepagePolicy::Off, Access::REMOTE_WRITE);
    let arena = exposed.expect("memory");
    let slot_bytes = u32::try_from(arena.len() / 2).expect("small");
    b.worker.core.sinks = Box::new([Some(Sinks::new(arena.clone(), slot_bytes))]);
    (b, conn, arena)
}

#[test]
fn a_read_on_iwarp_lands_in_the_arena_and_is_copied() {
    let (mut b, conn, arena) = up_with_arena();
    let readable = region(Access::REMOTE_READ);
    let (mut parts, mut lens) = (Parts::new(), Vec::new());
    for len in [5, 11] {
        let buffer = b.buffer(len);
        parts.push(buffer).expect("room");
        lens.push(len as usize);
    }
    b.io()
        .read(conn, parts, &readable, 0, Token(0))
        .expect("taken");
    let (chain, more) = b.worker.core.table.at(conn.index).sends.chain();
    let (wr, pieces) = (chain[0], more.iter().map(|_| chain[0].more).max());
    assert_eq!(
        (wr.len, pieces),
        (16, Some(0)),
        "one piece, whatever it scatters to"
    );
    assert_eq!(Some(wr.lkey), arena.lkey(0), "not the pool's key");
    let offset = usize::try_from(wr.addr - arena.addr()).expect("in the arena");
    // What the peer answers with.
    let bytes: Vec<u8> = (0..16).collect();
    arena.copy_in(offset, &bytes).expect("inside");
    let sends = &mut b.worker.core.table.at(conn.index).sends;
    sends.mark_posted(1);
    let (entry, special) = sends.pop_special().expect("the READ");
    b.worker.service.carried = Some(Vec::new());
    b.worker
        .give_back(conn.index, entry, special, Outcome::Done);
    let carried = b.worker.service.carried.take();
    let Some(Payload::Parts(mut parts)) = carried.and_then(|mut c| c.pop()) else {
        panic!("the list comes back");
    };
    let back: Vec<Vec<u8>> = parts
        .drain()
        .filter_map(Piece::into_buffer)
        .map(|b| b.to_vec())
        .collect();
    assert_eq!(back, [&bytes[..5], &bytes[5..]]);
}

#[test]
fn places_of_the_arena_come_back_and_a_full_one_is_told() {
    let (mut b, conn, _) = up_with_arena();
    let readable = region(Access::REMOTE_READ);
    let read = |b: &mut Bench| {
        let buffer = b.buffer(16);
        let read = b.io().read(conn, buffer, &readable, 0, Token(0));
        read.map_err(|r| r.reason)
    };
    assert_eq!(read(&mut b), Ok(()));
    assert_eq!(read(&mut b), Ok(()));
    assert_eq!(read(&mut b), Err(PostError::WouldBlock));
    let sends = &mut b.worker.core.table.at(conn.index).sends;
    let (entry, special) = sends.take_unposted().expect("one");
    b.worker
        .give_back(conn.index, entry, special, Outcome::NeverPosted);
    assert_eq!(
        read(&mut b),
        Ok(()),
        "what was never posted gives its place back"
    );
}

#[test]
fn a_read_on_iwarp_goes_straight_to_memory_that_is_open() {
    let (mut b, conn, open) = up_with_arena();
    let readable = region(Access::REMOTE_READ);
    let span = open.span(8, 16).expect("inside");
    b.io()
        .read(conn, span, &readable, 0, Token(0))
        .expect("taken");
    let (chain, _) = b.worker.core.table.at(conn.index).sends.chain();
    assert_eq!(chain[0].addr, open.addr() + 8);
    let closed = b
        .io()
        .read(conn, span_for_tests(64), &readable, 0, Token(0));
    let reason = closed.expect_err("peers may not write it").reason;
    assert_eq!(reason, PostError::SinkNotWritable);
}
