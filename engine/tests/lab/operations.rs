//! Every operation through `Io`, with contents checked at both ends.
//!
//! ```text
//!  client ─ Ask byte ─► owner of the memory ─ region, or a word ─► client ─ one-sided ─► memory
//! ```

use crate::support::*;
use spinwire::control::{Offer, Welcome};
use spinwire::fabric::{Note, WcStatus};
use spinwire::memory::{ExposedMemory, HugepagePolicy, Parts, Payload, Piece};
use spinwire::types::{Access, IdlePolicy, RemoteRegion, Rkey};
use spinwire::worker::{
    CloseReason, Completed, ConnId, Io, Message, Outcome, Peer, PostError, Rejected, Service, Token,
};
use spinwire::{Engine, WorkerInfo};
use std::sync::mpsc::{self, Receiver, Sender};

const BYTES: usize = 32_768;
/// The word that atomics work on, at the start of the memory.
const START: u64 = 40;
/// Part of the memory that a window is bound to.
const WINDOW: (usize, u32) = (4096, 8192);
const IMM: u32 = 0xfeed_beef;

/// What a peer may do with the memory by its key.
fn by_key() -> Access {
    Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC
}

fn everything() -> Access {
    by_key() | Access::WINDOWS
}

fn byte(i: usize) -> u8 {
    u8::try_from(i * 7 % 251).unwrap()
}

/// What a client wants of the owner, by the first byte of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Ask {
    Region,
    Window,
    Revoke,
}

fn encode(region: &RemoteRegion) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&region.addr().to_le_bytes());
    bytes[8..16].copy_from_slice(&region.len().to_le_bytes());
    bytes[16..].copy_from_slice(&region.rkey().0.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> RemoteRegion {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let rkey = u32::from_le_bytes(bytes[16..20].try_into().unwrap());
    RemoteRegion::parse(word(0), word(8), Rkey(rkey), by_key()).unwrap()
}

fn say(io: &mut Io<'_>, conn: ConnId, bytes: &[u8], imm: Option<u32>) {
    let mut buffer = io.alloc().unwrap();
    buffer.copy_from(bytes).unwrap();
    let said = match imm {
        Some(imm) => io.send_imm(conn, buffer, imm, Token(0)),
        None => io.send(conn, buffer, Token(0)),
    };
    said.unwrap();
}

/// Owns the memory. Tells what it saw beside plain messages.
struct Owner {
    memory: ExposedMemory,
    bound: Option<Rkey>,
    tell: Sender<String>,
}

const REVOKED: Token = Token(77);

impl Owner {
    fn window(&mut self, io: &mut Io<'_>, conn: ConnId) {
        let span = self.memory.span(WINDOW.0, WINDOW.1).unwrap();
        let refused = io.bind(conn, span.clone(), Access::NONE, Token(1));
        assert_eq!(refused.unwrap_err().reason, PostError::NotAllowed);
        let region = io.bind(conn, span, Access::REMOTE_READ, Token(1)).unwrap();
        self.bound = Some(region.rkey());
        let again = self.memory.span(0, 8).unwrap();
        let refused = io.bind(conn, again, Access::REMOTE_READ, Token(1));
        assert_eq!(refused.unwrap_err().reason, PostError::NoWindow);
        // Behind the bind, so the peer finds it done.
        say(io, conn, &encode(&region), None);
    }
}

impl Service for Owner {
    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        if let Some(written) = message.written() {
            let told = format!("written {written} {:?} {}", message.note(), message.len());
            return self.tell.send(told).unwrap();
        }
        if let Note::Invalidated(rkey) = message.note() {
            let ours = self.bound.take() == Some(rkey);
            self.tell.send(format!("invalidated {ours}")).unwrap();
        }
        match message[0] {
            ask if ask == Ask::Region as u8 => {
                let region = io.exposed(conn, &self.memory).unwrap();
                let imm = io.abilities(conn).unwrap().immediate.then_some(IMM);
                say(io, conn, &encode(&region), imm);
            }
            ask if ask == Ask::Window as u8 => self.window(io, conn),
            ask if ask == Ask::Revoke as u8 => {
                let rkey = self.bound.take().unwrap();
                let stranger = io.revoke(conn, Rkey(rkey.0 ^ 1), Token(0));
                assert_eq!(stranger, Err(PostError::NoSuchKey));
                io.revoke(conn, rkey, REVOKED).unwrap();
            }
            other => panic!("asked for {other}"),
        }
    }
    fn completed(&mut self, io: &mut Io<'_>, conn: ConnId, completed: Completed) {
        if completed.token == REVOKED && completed.outcome == Outcome::Done {
            say(io, conn, b"revoked", None);
        }
    }
}

/// What the client waits for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Region,
    Write,
    Scatter,
    Direct,
    Add,
    Swap,
    NoSwap,
    WriteImm,
    Window,
    ThroughWindow,
    SecondWindow,
    ThroughSecond,
    Revoked,
    Locked,
}

struct Client {
    own: ExposedMemory,
    step: Step,
    region: Option<RemoteRegion>,
    window: Option<RemoteRegion>,
    parts: Option<Parts>,
    tell: Sender<String>,
}

impl Client {
    fn done(&self, text: impl Into<String>) {
        let _ = self.tell.send(text.into());
    }

    /// A buffer and a span of the client's memory.
    fn pieces(&mut self, io: &mut Io<'_>) -> Parts {
        let mut parts = self.parts.take().unwrap_or_default();
        let mut buffer = io.alloc().unwrap();
        buffer.set_len(3000).unwrap();
        for (i, b) in buffer.iter_mut().enumerate() {
            *b = byte(i);
        }
        parts.push(buffer).unwrap();
        parts.push(self.own.span(3000, 2000).unwrap()).unwrap();
        parts
    }

    fn write(&mut self, io: &mut Io<'_>, conn: ConnId) {
        let region = self.region.unwrap();
        let parts = self.pieces(io);
        let outside = io.write(conn, parts, &region, BYTES as u64 - 4999, Token(0));
        let Err(Rejected { payload, reason }) = outside else {
            panic!("one byte too many");
        };
        assert_eq!(reason, PostError::OutOfRegion);
        self.step = Step::Write;
        io.write(conn, payload, &region, 8, Token(1)).unwrap();
    }

    fn scatter(&mut self, io: &mut Io<'_>, conn: ConnId) {
        let mut parts = self.parts.take().unwrap();
        for len in [1, 4000, 999] {
            let mut buffer = io.alloc().unwrap();
            buffer.set_len(len).unwrap();
            parts.push(buffer).unwrap();
        }
        self.step = Step::Scatter;
        io.read(conn, parts, &self.region.unwrap(), 8, Token(2))
            .unwrap();
    }

    fn direct(&mut self, io: &mut Io<'_>, conn: ConnId) {
        let sink = self.own.span(20_000, 5000).unwrap();
        self.step = Step::Direct;
        io.read(conn, sink, &self.region.unwrap(), 8, Token(3))
            .unwrap();
    }

    /// Atomics, or what is said where there are none.
    fn atomics(&mut self, io: &mut Io<'_>, conn: ConnId) {
        let region = self.region.unwrap();
        let can = io.abilities(conn).unwrap();
        let added = io.fetch_add(conn, &region, 0, 5, Token(4));
        if can.atomics {
            let odd = io.fetch_add(conn, &region, 4, 5, Token(4));
            assert_eq!(odd, Err(PostError::Misaligned));
            added.unwrap();
            self.step = Step::Add;
            return;
        }
        assert_eq!(added, Err(PostError::Unsupported));
        let buffer = io_buffer(io);
        let imm = io.send_imm(conn, buffer, 1, Token(0));
        assert_eq!(imm.unwrap_err().reason, PostError::Unsupported);
        let buffer = io_buffer(io);
        let imm = io.write_imm(conn, buffer, &region, 0, 1, Token(0));
        assert_eq!(imm.unwrap_err().reason, PostError::Unsupported);
        let bound = io.bind(
            conn,
            self.own.span(0, 8).unwrap(),
            Access::REMOTE_READ,
            Token(0),
        );
        assert!(!can.windows);
        assert_eq!(bound.unwrap_err().reason, PostError::NotBindable);
        self.done("no atomics, no immediates, no windows");
    }

    fn through(&mut self, io: &mut Io<'_>, conn: ConnId, step: Step) {
        let window = self.window.unwrap();
        assert_eq!(window.len(), u64::from(WINDOW.1));
        let buffer = io_buffer(io);
        self.step = step;
        io.read(conn, buffer, &window, 100, Token(9)).unwrap();
    }

    fn swap(&mut self, io: &mut Io<'_>, conn: ConnId, expect: u64, step: Step) {
        self.step = step;
        let region = self.region.unwrap();
        io.compare_swap(conn, &region, 0, expect, 7, Token(5))
            .unwrap();
    }
}

/// 64 bytes.
fn io_buffer(io: &mut Io<'_>) -> spinwire::memory::Buffer {
    let mut buffer = io.alloc().unwrap();
    buffer.set_len(64).unwrap();
    buffer
}

impl Service for Client {
    fn connected(&mut self, io: &mut Io<'_>, conn: ConnId, _: &Peer) {
        say(io, conn, &[Ask::Region as u8], None);
    }

    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        match self.step {
            Step::Region => {
                let can = io.abilities(conn).unwrap();
                let note = if can.immediate {
                    Note::Imm(IMM)
                } else {
                    Note::None
                };
                assert_eq!(message.note(), note);
                self.region = Some(decode(&message));
                self.write(io, conn);
            }
            Step::Window => {
                self.window = Some(decode(&message));
                self.through(io, conn, Step::ThroughWindow);
            }
            Step::SecondWindow => {
                let new = decode(&message);
                assert_ne!(Some(new.rkey()), self.window.map(|w| w.rkey()));
                self.window = Some(new);
                self.through(io, conn, Step::ThroughSecond);
            }
            Step::Revoked => {
                assert_eq!(&message[..], b"revoked");
                self.through(io, conn, Step::Locked);
            }
            step => panic!("a message at {step:?}"),
        }
    }

    fn completed(&mut self, io: &mut Io<'_>, conn: ConnId, completed: Completed) {
        if completed.token == Token(0) {
            return;
        }
        if self.step == Step::Locked {
            let refused = Outcome::Unknown(WcStatus::RemoteAccess);
            assert_eq!(completed.outcome, refused, "the key is out of use");
            return self.done("locked out");
        }
        assert_eq!(completed.outcome, Outcome::Done, "{:?}", self.step);
        let old = completed.old_value();
        match (self.step, completed.payload) {
            (Step::Write, Payload::Parts(mut parts)) => {
                assert_eq!(parts.drain().count(), 2);
                self.parts = Some(parts);
                self.scatter(io, conn);
            }
            (Step::Scatter, Payload::Parts(mut parts)) => {
                let bytes: Vec<u8> = parts
                    .drain()
                    .filter_map(Piece::into_buffer)
                    .flat_map(|b| b.to_vec())
                    .collect();
                assert!(bytes.iter().enumerate().all(|(i, b)| *b == byte(i)));
                assert_eq!(bytes.len(), 5000);
                self.direct(io, conn);
            }
            (Step::Direct, Payload::Memory(span)) => {
                let mut bytes = vec![0; 5000];
                span.memory().copy_out(span.offset(), &mut bytes).unwrap();
                assert!(bytes.iter().enumerate().all(|(i, b)| *b == byte(i)));
                self.atomics(io, conn);
            }
            (Step::Add, _) => {
                assert_eq!(old, Some(START));
                self.swap(io, conn, START + 5, Step::Swap);
            }
            (Step::Swap, _) => {
                assert_eq!(old, Some(START + 5));
                self.swap(io, conn, START + 5, Step::NoSwap);
            }
            (Step::NoSwap, _) => {
                assert_eq!(old, Some(7), "it was swapped once, and not again");
                self.step = Step::WriteImm;
                let region = self.region.unwrap();
                let buffer = io_buffer(io);
                io.write_imm(conn, buffer, &region, 30_000, 5, Token(6))
                    .unwrap();
            }
            (Step::WriteImm, _) => {
                self.step = Step::Window;
                say(io, conn, &[Ask::Window as u8], None);
            }
            (Step::ThroughWindow, Payload::Buffer(mut read)) => {
                let first = WINDOW.0 + 100 - 8;
                let wanted = (first..first + 64).map(|i| if i < 5000 { byte(i) } else { 0 });
                assert!(read.iter().copied().eq(wanted), "{:?}", &read[..]);
                self.step = Step::SecondWindow;
                read.copy_from(&[Ask::Window as u8]).unwrap();
                let rkey = self.window.unwrap().rkey();
                io.send_invalidate(conn, read, rkey, Token(0)).unwrap();
            }
            (Step::ThroughSecond, _) => {
                self.step = Step::Revoked;
                say(io, conn, &[Ask::Revoke as u8], None);
            }
            (step, payload) => panic!("{payload:?} at {step:?}"),
        }
    }

    fn disconnected(&mut self, _: &mut Io<'_>, _: ConnId, reason: CloseReason) {
        self.done(format!("ended: {reason}"));
    }
}

fn next(told: &Receiver<String>) -> String {
    told.recv_timeout(LONG).expect("told in time")
}

fn operations(
    (device, host): (&str, &str),
    port: u16,
) -> (Engine, Engine, Receiver<String>, Receiver<String>) {
    let expose = |info: &WorkerInfo, access| {
        let memory = info.expose(BYTES, HugepagePolicy::Off, access).unwrap();
        memory.copy_in(0, &START.to_ne_bytes()).unwrap();
        memory
    };
    let (tell, owner_told) = mpsc::channel();
    let server = Engine::start(
        &plan(device, 1, IdlePolicy::Spin),
        move |info: WorkerInfo| Owner {
            memory: expose(&info, everything()),
            bound: None,
            tell: tell.clone(),
        },
    )
    .unwrap();
    let offer = Offer {
        access: everything(),
        windows: 1,
        ..Offer::default()
    };
    server
        .listen_with(&url(host, port), Welcome::from(offer))
        .unwrap();
    let (tell, client_told) = mpsc::channel();
    let client = Engine::start(
        &plan(device, 0, IdlePolicy::Spin),
        move |info: WorkerInfo| {
            // Open to writes, as READs on iWARP want it.
            let own = expose(&info, Access::REMOTE_WRITE);
            let bytes: Vec<u8> = (0..5000).map(byte).collect();
            own.copy_in(0, &bytes).unwrap();
            Client {
                own,
                step: Step::Region,
                region: None,
                window: None,
                parts: None,
                tell: tell.clone(),
            }
        },
    )
    .unwrap();
    client.connect(&url(host, port), Offer::default()).unwrap();
    (server, client, owner_told, client_told)
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_operations_rxe() {
    let witness = Witness::new();
    let (server, client, owner, told) = operations(RXE, 7801);
    assert_eq!(next(&owner), format!("written 64 {:?} 0", Note::Imm(5)));
    assert_eq!(next(&owner), "invalidated true");
    assert_eq!(next(&told), "locked out");
    assert!(next(&told).starts_with("ended: an operation failed"));
    end(client);
    end(server);
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_operations_siw() {
    let witness = Witness::new();
    let (server, client, _owner, told) = operations(SIW, 7802);
    assert_eq!(next(&told), "no atomics, no immediates, no windows");
    end(client);
    end(server);
    witness.assert_unchanged();
}
