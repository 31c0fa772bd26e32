//! What the tests of large messages share: memory with a pattern, and services that take it.

use super::*;

pub(super) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let byte = |i: usize| u8::try_from((i * 7 + i / 251 + seed * 31) % 256).expect("a byte");
    (0..len).map(byte).collect()
}

pub(super) fn expose(side: &Side, bytes: usize, access: Access) -> ExposedMemory {
    let memory = side.exposures.expose(bytes, HugepagePolicy::Off, access);
    memory.expect("memory")
}

/// Memory with a pattern, as a message of `len` bytes that begins at an odd place.
pub(super) fn message(side: &Side, seed: usize, len: usize) -> MemorySpan {
    let memory = expose(side, len + 100, Access::REMOTE_READ);
    memory.copy_in(77, &pattern(seed, len)).expect("room");
    let len = u32::try_from(len).expect("short");
    memory.span(77, len).expect("in the memory")
}

/// Sends it with a token; a test that wants a refusal looks at `refusals`.
pub(super) fn send(side: &mut Side, span: MemorySpan, token: u64) -> Option<LargeSendError> {
    let (tell, told) = std::sync::mpsc::channel();
    side.order(act(move |_, io, conn| {
        let refused = io.send_large(conn, span, 1000 + token, Token(token)).err();
        let _ = tell.send(refused.map(|r| r.reason));
    }));
    told.recv().expect("the order was carried out")
}

/// Accepts into the memory of the probe, which is as long as it needs.
pub(super) fn into_region(
    probe: &mut Probe,
    io: &mut FramedIo<'_>,
    conn: ConnId,
    incoming: Incoming,
) {
    let memory = probe.memory.clone().expect("memory");
    let span = memory.span(5, incoming.len_bytes + 9).expect("room");
    io.accept_large(conn, incoming.id, span).expect("accepted");
}

pub(super) fn in_chunks(_: &mut Probe, io: &mut FramedIo<'_>, conn: ConnId, incoming: Incoming) {
    let accepted = io.accept_large_in_chunks(conn, incoming.id);
    accepted.expect("accepted");
}

pub(super) fn offered(id: u32, len: usize, token: u64) -> Seen {
    Seen::Large(Incoming {
        id: LargeId(id),
        len_bytes: u32::try_from(len).expect("short"),
        tag: 1000 + token,
    })
}

/// Lengths of the READs that a side has posted.
pub(super) fn reads(p: &Pair, side: &Side) -> Vec<u32> {
    let chains = p.toy.send_chains(side.qp);
    let all = chains.iter().flatten();
    let reads = all.filter(|wr| matches!(wr.op, SendOp::Read(_)));
    reads.map(|wr| wr.len).collect()
}
