//! Memory that a peer reads without this side's CPU: a node that offers a region, and a reader.
//!
//! ```text
//! cargo run --release --example one_sided offer rdma://0.0.0.0:7471
//! cargo run --release --example one_sided read rdma://10.0.0.1:7471
//! ```
//! The reader asks; the node offers its region, and answers with a checksum. The reader then READs the
//! region piece by piece, while the node's worker sees nothing of it, and compares.
//! Processes of one host need no device: `shm://NAME` is an address too.

use spinwire::config::{Config, Host, Side};
use spinwire::control::Offer;
use spinwire::fabric::Url;
use spinwire::framed::{
    Completed, Framed, FramedIo, Operation, Payload, RegionId, RegionOffer, RequestId, Service,
};
use spinwire::memory::{ExposeError, ExposedMemory, HugepagePolicy};
use spinwire::sys::signal::StopSignal;
use spinwire::types::{Access, RemoteRegion};
use spinwire::worker::{CloseReason, ConnId, Outcome, Peer, Token};
use spinwire::{Engine, WorkerInfo};
use std::error::Error;
use std::sync::mpsc::{self, Sender};

const REGION_BYTES: usize = 1 << 20;
/// What the node and the reader agree to call the region.
const KIND: u16 = 1;

/// FNV-1a, in steps.
fn checksum(sum: u64, bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(sum, step)
}

/// The node's service.
struct Node {
    memory: ExposedMemory,
    sum: u64,
}

impl Node {
    /// Fills memory that peers may read, and do nothing else with.
    fn open(worker: &WorkerInfo) -> Result<Self, ExposeError> {
        let memory = worker.expose(REGION_BYTES, HugepagePolicy::Prefer, Access::REMOTE_READ)?;
        let words = (0..memory.len() as u64 / 8).flat_map(|n| n.wrapping_mul(n).to_le_bytes());
        let bytes: Vec<u8> = words.collect();
        memory.copy_in(0, &bytes).expect("it is as long");
        let sum = checksum(0, &bytes);
        Ok(Self { memory, sum })
    }
}

impl Service for Node {
    fn request(&mut self, io: &mut FramedIo<'_>, conn: ConnId, id: RequestId, question: Payload) {
        let mut answer = question.into_frame();
        answer.copy_from(&self.sum.to_le_bytes()).expect("8 bytes");
        // What is sent first comes first, so the reader has the region when it gets the answer.
        if io.offer(conn, &self.memory, RegionId(0), KIND).is_err()
            || io.reply(conn, id, answer, Token::default()).is_err()
        {
            io.close(conn); // a reader that asks again and again without listening
        }
    }
}

fn offer(at: &Url) -> Result<(), Box<dyn Error>> {
    let stop = StopSignal::install()?;
    let plan = Config::default_for(&Host::probe_for(at)?, Side::Server)?;
    let engine = Engine::start(&plan, |worker| {
        Framed::new(Node::open(&worker).expect("memory to offer"))
    })?;
    // Memory and connection both have to allow it.
    let terms = Offer {
        access: Access::REMOTE_READ,
        ..Offer::framed()
    };
    println!("listening on {}", engine.listen_with(at, terms)?);
    let left = engine.run_until(&stop)?;
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

/// The reader's service.
struct Reader {
    region: Option<RemoteRegion>,
    /// The first byte that no READ was posted for.
    next: u64,
    /// Checksums: of the bytes before `read`, and the one that the node told.
    read: u64,
    sum: u64,
    told_sum: u64,
    tell: Sender<Result<u64, String>>,
}

impl Reader {
    /// Posts READs, a buffer each, until all is posted or something wants us to wait.
    fn read_on(&mut self, io: &mut FramedIo<'_>, conn: ConnId) {
        let Some(region) = self.region else { return };
        while self.next < region.len() {
            let Ok(mut piece) = io.alloc() else { return };
            let left = u32::try_from(region.len() - self.next).unwrap_or(u32::MAX);
            let len = left.min(piece.capacity());
            piece.set_len(len).expect("no more than its capacity");
            let token = Token(self.next);
            if io.read(conn, piece, &region, self.next, token).is_err() {
                return; // `writable` follows, or `disconnected`
            }
            self.next += u64::from(len);
        }
    }
}

impl Service for Reader {
    fn connected(&mut self, io: &mut FramedIo<'_>, conn: ConnId, _: &Peer) {
        let question = io.frame().expect("nothing else uses the pool yet");
        let asked = io.request(conn, question, RequestId(0), Token::default());
        asked.expect("a new connection has room");
    }
    fn offered(&mut self, _: &mut FramedIo<'_>, _: ConnId, offer: &RegionOffer) {
        if offer.kind() == KIND {
            self.region = Some(offer.region());
        }
    }
    fn reply(&mut self, io: &mut FramedIo<'_>, conn: ConnId, _: RequestId, answer: Payload) {
        self.told_sum = (*answer).try_into().map_or(0, u64::from_le_bytes);
        self.read_on(io, conn);
    }
    fn completed(&mut self, io: &mut FramedIo<'_>, conn: ConnId, completed: Completed) {
        // READs complete in the order in which they were posted.
        if let (Operation::Read(piece), Outcome::Done) = (completed.operation, completed.outcome)
            && let Some(piece) = piece.into_buffer()
        {
            self.sum = checksum(self.sum, &piece);
            self.read += piece.len() as u64;
            drop(piece);
            if self.region.is_some_and(|region| self.read == region.len()) {
                let right = self.sum == self.told_sum;
                let outcome = right.then_some(self.read).ok_or("wrong bytes".into());
                let _ = self.tell.send(outcome);
            }
            self.read_on(io, conn);
        }
    }
    fn writable(&mut self, io: &mut FramedIo<'_>, conn: ConnId) {
        self.read_on(io, conn);
    }
    fn disconnected(&mut self, _: &mut FramedIo<'_>, _: ConnId, reason: CloseReason) {
        let _ = self.tell.send(Err(reason.to_string()));
    }
}

fn read(node: &Url) -> Result<(), Box<dyn Error>> {
    let plan = Config::default_for(&Host::probe_for(node)?, Side::Client)?;
    let (tell, told) = mpsc::channel();
    let engine = Engine::start(&plan, move |_| {
        Framed::new(Reader {
            region: None,
            next: 0,
            read: 0,
            sum: 0,
            told_sum: 0,
            tell: tell.clone(),
        })
    })?;
    engine.connect(node, Offer::framed())?;
    println!("read {} B, and the checksum is right", told.recv()??);
    let left = engine.shutdown()?;
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["offer", url] => offer(&url.parse()?),
        ["read", url] => read(&url.parse()?),
        _ => Err("usage: one_sided offer URL | one_sided read URL".into()),
    }
}
