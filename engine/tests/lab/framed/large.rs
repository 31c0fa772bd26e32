//! Messages larger than a buffer, on real devices: every byte checked, slow services.

pub(crate) mod hostile;
mod quiet;

use super::*;
use spinwire::framed::{
    Chunk, Incoming, LargeOutcome, LargeReceived, LargeSendError, LargeSent, ReceiveOutcome,
};
use spinwire::wire::LargeId;
use std::num::NonZeroU32;
use std::time::Instant;

const BLOCK: usize = 1 << 20;
/// An emulated machine that others use too moves a few MiB in a second.
const PATIENCE: Duration = Duration::from_secs(240);
/// What memory holds ends anywhere.
const ODD: u32 = 12_345;

/// Bytes of which no two blocks are alike: each is a window of one pattern.
struct Pattern(Vec<u8>);

impl Pattern {
    fn new() -> Self {
        let mut word = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word.to_le_bytes()
        };
        let words = (BLOCK + 8192) / 8;
        Self((0..words).flat_map(|_| next()).collect())
    }

    /// `len` bytes from `offset` on, all of one block.
    fn at(&self, offset: usize, len: usize) -> &[u8] {
        let first = (offset / BLOCK) * 7 % 8192 + offset % BLOCK;
        assert!(offset % BLOCK + len <= BLOCK);
        &self.0[first..first + len]
    }

    fn blocks(len: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..len)
            .step_by(BLOCK)
            .map(move |at| (at, BLOCK.min(len - at)))
    }

    fn fill(&self, memory: &ExposedMemory, first: usize, len: usize) {
        for (at, n) in Self::blocks(len) {
            memory.copy_in(first + at, self.at(at, n)).unwrap();
        }
    }

    /// The first block that is not as it should be.
    fn wrong_in(&self, memory: &ExposedMemory, first: usize, len: usize) -> Option<usize> {
        let mut bytes = vec![0; BLOCK];
        Self::blocks(len)
            .map(|(at, n)| {
                memory.copy_out(first + at, &mut bytes[..n]).unwrap();
                (at, bytes[..n] == *self.at(at, n))
            })
            .find_map(|(at, right)| (!right).then_some(at))
    }
}

#[derive(Debug, PartialEq)]
enum Word {
    Up { largest: u32 },
    Sent(LargeOutcome),
    Chunk(u32),
    Received(ReceiveOutcome),
    Paused(u32),
    Wrong(String),
    Ended(CloseReason),
}

/// Waits for what `want` accepts.
fn await_word(words: &Receiver<Word>, want: impl Fn(&Word) -> bool) -> Word {
    let until = Instant::now() + PATIENCE;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let word = words.recv_timeout(left).expect("told in time");
        if want(&word) {
            return word;
        }
        assert!(!matches!(word, Word::Wrong(_) | Word::Ended(_)), "{word:?}");
    }
}

/// Sends one message of `len` bytes again and again, `count` times.
struct Giver {
    memory: ExposedMemory,
    len: u32,
    count: u64,
    sent: u64,
    tell: Sender<Word>,
}

impl Giver {
    fn give(&mut self, io: &mut FramedIo<'_>, conn: ConnId) {
        while self.sent < self.count {
            let span = self.memory.span(3, self.len).unwrap();
            match io.send_large(conn, span, self.sent, Token(self.sent)) {
                Ok(()) => self.sent += 1,
                Err(refused) => {
                    assert_eq!(refused.reason, LargeSendError::WouldBlock);
                    return;
                }
            }
        }
    }
}

impl Service for Giver {
    fn connected(&mut self, io: &mut FramedIo<'_>, conn: ConnId, _: &Peer) {
        self.give(io, conn);
    }
    fn writable(&mut self, io: &mut FramedIo<'_>, conn: ConnId) {
        self.give(io, conn);
    }
    fn large_sent(&mut self, _: &mut FramedIo<'_>, _: ConnId, sent: LargeSent) {
        assert_eq!((sent.span.offset(), sent.span.len_bytes()), (3, self.len));
        let _ = self.tell.send(Word::Sent(sent.outcome));
    }
    fn disconnected(&mut self, _: &mut FramedIo<'_>, _: ConnId, reason: CloseReason) {
        let _ = self.tell.send(Word::Ended(reason));
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Region,
    /// In chunks; after every so many none for a while.
    Chunks(u32),
    Refuse,
    Ignore,
}

/// Takes large messages one way or another, and checks every byte.
struct Taker {
    how: How,
    sink: Option<ExposedMemory>,
    pattern: Pattern,
    chunks: u32,
    pauses: u32,
    /// The message that is paused, and until when.
    paused: Option<(ConnId, LargeId, Nanos)>,
    /// Chunks that came while it was paused.
    late: u32,
    tell: Sender<Word>,
}

impl Taker {
    fn wrong(&self, text: String) {
        let _ = self.tell.send(Word::Wrong(text));
    }
}

impl Service for Taker {
    fn connected(&mut self, _: &mut FramedIo<'_>, _: ConnId, _: &Peer) {
        // Whatever is not a large message is answered by nobody.
    }
    fn large(&mut self, io: &mut FramedIo<'_>, conn: ConnId, incoming: Incoming) {
        let largest = io.message_bytes_max(conn);
        let _ = self.tell.send(Word::Up { largest });
        match self.how {
            How::Region => {
                let sink = self.sink.clone().unwrap();
                let span = sink.span(5, incoming.len_bytes).unwrap();
                io.accept_large(conn, incoming.id, span).unwrap();
            }
            How::Chunks(_) => io.accept_large_in_chunks(conn, incoming.id).unwrap(),
            How::Refuse => io.refuse_large(conn, incoming.id),
            How::Ignore => {}
        }
    }
    fn large_chunk(&mut self, io: &mut FramedIo<'_>, conn: ConnId, chunk: Chunk) {
        if self.pattern.at(chunk.offset as usize, chunk.len()) != &*chunk {
            self.wrong(format!("{chunk:?}"));
        }
        self.chunks += 1;
        if let Some((_, id, _)) = self.paused {
            // The other message goes on.
            self.late += u32::from(id == chunk.id);
            if self.late > spinwire::limits::LARGE_READS_MAX {
                self.wrong("READs were posted in a pause".into());
            }
        } else if let How::Chunks(every) = self.how
            && self.chunks.is_multiple_of(every)
        {
            io.pause_large(conn, chunk.id);
            self.pauses += 1;
            self.late = 0;
            self.paused = Some((conn, chunk.id, io.now() + Duration::from_micros(300)));
        }
        let _ = self.tell.send(Word::Chunk(self.chunks));
    }
    fn large_done(&mut self, _: &mut FramedIo<'_>, _: ConnId, received: LargeReceived) {
        if let (Some(span), ReceiveOutcome::Done) = (&received.span, received.outcome) {
            let len = received.incoming.len_bytes as usize;
            if let Some(at) = self.pattern.wrong_in(span.memory(), span.offset(), len) {
                self.wrong(format!("the block at {at}"));
            }
        }
        let _ = self.tell.send(Word::Paused(self.pauses));
        let _ = self.tell.send(Word::Received(received.outcome));
    }
    fn disconnected(&mut self, _: &mut FramedIo<'_>, _: ConnId, reason: CloseReason) {
        self.paused = None;
        let _ = self.tell.send(Word::Ended(reason));
    }
    fn turn(&mut self, io: &mut FramedIo<'_>) -> Turn {
        match self.paused {
            Some((conn, id, until)) if io.now() >= until => {
                self.paused = None;
                io.resume_large(conn, id);
                Turn::Busy
            }
            Some(_) | None => Turn::Idle,
        }
    }
}

/// Terms under which a peer may READ.
fn readable() -> Offer {
    Offer {
        access: Access::REMOTE_READ,
        ..Offer::framed()
    }
}

fn start_giver(device: &str, len: u32, count: u64, deadline: Duration) -> (Engine, Receiver<Word>) {
    let (tell, words) = mpsc::channel();
    let engine = Engine::start(&plan(device, 0, IdlePolicy::Spin), move |info| {
        let bytes = len as usize + 3;
        let memory = info.expose(bytes, HugepagePolicy::Off, Access::REMOTE_READ);
        let memory = memory.unwrap();
        Pattern::new().fill(&memory, 3, len as usize);
        let giver = Giver {
            memory,
            len,
            count,
            sent: 0,
            tell: tell.clone(),
        };
        Framed::new(giver).large_deadline(deadline)
    });
    (engine.unwrap(), words)
}

/// A server; `len` bytes of memory of its own to read into, if any.
fn start_taker(device: &str, how: How, len: u32, read_bytes: u32) -> (Engine, Receiver<Word>) {
    let (tell, words) = mpsc::channel();
    let access = if device == SIW.0 {
        Access::REMOTE_WRITE
    } else {
        Access::LOCAL_WRITE
    };
    let engine = Engine::start(&plan(device, 1, IdlePolicy::Spin), move |info| {
        let expose = |len: u32| info.expose(len as usize + 5, HugepagePolicy::Off, access);
        let taker = Taker {
            how,
            sink: (len > 0).then(|| expose(len).unwrap()),
            pattern: Pattern::new(),
            chunks: 0,
            pauses: 0,
            paused: None,
            late: 0,
            tell: tell.clone(),
        };
        let read_bytes = NonZeroU32::new(read_bytes).unwrap();
        Framed::new(taker).large_read_bytes(read_bytes)
    });
    (engine.unwrap(), words)
}

fn region_to_region((device, host): (&str, &str), port: u16, len: u32, read_bytes: u32) {
    let witness = Witness::new();
    let (server, there) = start_taker(device, How::Region, len, read_bytes);
    server
        .listen_with(&url(host, port), Offer::framed())
        .unwrap();
    let (client, here) = start_giver(device, len, 1, PATIENCE);
    let began = Instant::now();
    client.connect(&url(host, port), readable()).unwrap();
    let Word::Up { largest } = await_word(&there, |w| matches!(w, Word::Up { .. })) else {
        unreachable!("as awaited")
    };
    let received = await_word(&there, |w| matches!(w, Word::Received(_)));
    assert_eq!(received, Word::Received(ReceiveOutcome::Done));
    let sent = await_word(&here, |w| matches!(w, Word::Sent(_)));
    assert_eq!(sent, Word::Sent(LargeOutcome::Done));
    let took = began.elapsed();
    let reads = u64::from(len.div_ceil(largest.min(read_bytes)));
    let posted = server.counters()[0].sends_posted;
    println!("{device}: {len} B in {reads} READs (device: {largest} B), {took:?} with the check");
    assert!(
        posted > reads,
        "{posted} operations: the READs and a finish"
    );
    end(client);
    end(server);
    witness.assert_unchanged();
}

/// The READs are as long as the device takes: 8 MiB on rxe.
#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_framed_large_rxe() {
    region_to_region(RXE, 7401, (64 << 20) + ODD, u32::MAX);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_framed_large_siw() {
    region_to_region(SIW, 7402, (64 << 20) + ODD, 8 << 20);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_framed_large_of_a_quarter_gibibyte() {
    let usual = spinwire::limits::LARGE_READ_BYTES_DEFAULT;
    region_to_region(RXE, 7403, 256 << 20, usual);
    region_to_region(SIW, 7404, 256 << 20, usual);
}

fn slow_chunks((device, host): (&str, &str), port: u16) {
    let witness = Witness::new();
    let len = (16 << 20) + ODD;
    let (server, there) = start_taker(device, How::Chunks(100), 0, u32::MAX);
    server
        .listen_with(&url(host, port), Offer::framed())
        .unwrap();
    let (client, here) = start_giver(device, len, 2, PATIENCE);
    client.connect(&url(host, port), readable()).unwrap();
    for message in 1..=2 {
        let paused = await_word(&there, |w| matches!(w, Word::Paused(_)));
        let Word::Paused(pauses) = paused else {
            unreachable!("as awaited")
        };
        println!("{device}: message {message} after {pauses} pauses");
        assert!(pauses > 1, "{pauses} pauses");
        let received = await_word(&there, |w| matches!(w, Word::Received(_)));
        assert_eq!(received, Word::Received(ReceiveOutcome::Done));
        let sent = await_word(&here, |w| matches!(w, Word::Sent(_)));
        assert_eq!(sent, Word::Sent(LargeOutcome::Done));
    }
    end(client);
    end(server);
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_framed_large_in_chunks_rxe() {
    slow_chunks(RXE, 7411);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_framed_large_in_chunks_siw() {
    slow_chunks(SIW, 7412);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_framed_large_refused() {
    for (device, host) in [RXE, SIW] {
        let witness = Witness::new();
        let (server, _there) = start_taker(device, How::Refuse, 0, 1);
        server
            .listen_with(&url(host, 7421), Offer::framed())
            .unwrap();
        let (client, here) = start_giver(device, 1 << 20, 100, LONG);
        client.connect(&url(host, 7421), readable()).unwrap();
        for _ in 0..100 {
            let sent = await_word(&here, |w| matches!(w, Word::Sent(_)));
            assert_eq!(sent, Word::Sent(LargeOutcome::Refused));
        }
        end(client);
        end(server);
        witness.assert_unchanged();
    }
}
