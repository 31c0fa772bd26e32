//! Regions offered both ways, then read and written.

use super::*;

const REGION: usize = 100_000;
/// What each side offers: memory to read, and memory to write to.
const SOURCE: u16 = 1;
const SINK: u16 = 2;

fn source_byte(side: u8, i: usize) -> u8 {
    u8::try_from(i % 251).unwrap() ^ side
}

/// Offers two regions; READs all of the peer's source, WRITEs that to the peer's sink, and says so.
struct Trader {
    /// Differs between the two sides.
    side: u8,
    source: ExposedMemory,
    sink: ExposedMemory,
    peer_source: Option<RemoteRegion>,
    peer_sink: Option<RemoteRegion>,
    next: usize,
    written: usize,
    waiting: VecDeque<(spinwire::memory::Buffer, u64)>,
    spoke: bool,
    tell: Sender<Told>,
}

impl Trader {
    fn wrong(&self, text: impl Into<String>) {
        let _ = self.tell.send(Told::Wrong(text.into()));
    }

    fn offer(&mut self, io: &mut FramedIo<'_>, conn: ConnId) {
        if !std::mem::replace(&mut self.spoke, true) {
            io.offer(conn, &self.source, RegionId(7), SOURCE).unwrap();
            io.offer(conn, &self.sink, RegionId(8), SINK).unwrap();
        }
    }

    fn go_on(&mut self, io: &mut FramedIo<'_>, conn: ConnId) {
        let (Some(source), Some(sink)) = (self.peer_source, self.peer_sink) else {
            return;
        };
        while let Some((buffer, offset)) = self.waiting.pop_front() {
            if let Err(rejected) = io.write(conn, buffer, &sink, offset, Token(offset)) {
                self.waiting.push_front((rejected.payload, offset));
                return;
            }
        }
        while self.next < REGION {
            let Ok(mut buffer) = io.alloc() else { return };
            let len = (REGION - self.next).min(5000);
            buffer.set_len(len.try_into().unwrap()).unwrap();
            let offset = self.next as u64;
            if io
                .read(conn, buffer, &source, offset, Token(offset))
                .is_err()
            {
                return;
            }
            self.next += len;
        }
    }
}

impl Service for Trader {
    fn connected(&mut self, io: &mut FramedIo<'_>, conn: ConnId, peer: &Peer) {
        // The passive side waits for a word of the other, as iWARP wants it.
        if peer.role == spinwire::worker::Role::Active {
            self.offer(io, conn);
        }
    }
    fn offered(&mut self, io: &mut FramedIo<'_>, conn: ConnId, offer: &RegionOffer) {
        self.offer(io, conn);
        let region = offer.region();
        assert_eq!(region.len(), REGION.next_multiple_of(4096) as u64);
        match (offer.id(), offer.kind()) {
            (RegionId(7), SOURCE) => self.peer_source = Some(region),
            (RegionId(8), SINK) => self.peer_sink = Some(region),
            other => self.wrong(format!("offered {other:?}")),
        }
        self.go_on(io, conn);
    }
    fn completed(&mut self, io: &mut FramedIo<'_>, conn: ConnId, completed: Completed) {
        if completed.outcome != Outcome::Done {
            return;
        }
        let offset = completed.token.0;
        match completed.operation {
            Operation::Read(read) => {
                let buffer = read.into_buffer().unwrap();
                let first = usize::try_from(offset).unwrap();
                let mut bytes = buffer.iter().zip(first..);
                if !bytes.all(|(byte, i)| *byte == source_byte(!self.side, i)) {
                    self.wrong(format!("READ wrong bytes at {offset}"));
                }
                self.waiting.push_back((buffer, offset));
            }
            Operation::Written(written) => {
                self.written += written.into_buffer().unwrap().len();
                if self.written == REGION {
                    // Behind every WRITE, so the peer finds all of it there.
                    let frame = io.frame().unwrap();
                    io.request(conn, frame, RequestId(3), Token(0)).unwrap();
                }
            }
            Operation::Sent(frame) => drop(frame),
            Operation::Atomic(_) => unreachable!("none was asked for"),
        }
        self.go_on(io, conn);
    }
    fn writable(&mut self, io: &mut FramedIo<'_>, conn: ConnId) {
        self.go_on(io, conn);
    }
    fn request(&mut self, io: &mut FramedIo<'_>, conn: ConnId, id: RequestId, word: Payload) {
        // The peer has written everything: what it read here, back into the sink.
        let mut bytes = vec![0; REGION];
        self.sink.copy_out(0, &mut bytes).unwrap();
        let mut all = bytes.iter().zip(0..);
        if !all.all(|(byte, i)| *byte == source_byte(self.side, i)) {
            self.wrong("the peer wrote wrong bytes");
        }
        io.withdraw(conn, RegionId(8)).unwrap();
        io.reply(conn, id, word.into_frame(), Token(0)).unwrap();
    }
    fn withdrawn(&mut self, _: &mut FramedIo<'_>, _: ConnId, id: RegionId) {
        assert_eq!(id, RegionId(8));
        self.peer_sink = None;
    }
    fn reply(&mut self, _: &mut FramedIo<'_>, _: ConnId, id: RequestId, _: Payload) {
        if id != RequestId(3) || self.peer_sink.is_some() {
            self.wrong("the withdrawal did not come before the reply");
        }
        let _ = self.tell.send(Told::Done);
    }
    fn disconnected(&mut self, _: &mut FramedIo<'_>, _: ConnId, reason: CloseReason) {
        let _ = self.tell.send(Told::Ended(reason, 0));
    }
}

fn start_trader(device: &str, side: u8, core: usize) -> (Engine, Receiver<Told>) {
    let (tell, told) = mpsc::channel();
    let engine = Engine::start(&plan(device, core, IdlePolicy::Spin), move |info| {
        let expose = |access| info.expose(REGION, HugepagePolicy::Off, access).unwrap();
        let (source, sink) = (expose(Access::REMOTE_READ), expose(Access::REMOTE_WRITE));
        let bytes: Vec<u8> = (0..REGION).map(|i| source_byte(side, i)).collect();
        source.copy_in(0, &bytes).unwrap();
        Framed::new(Trader {
            side,
            source,
            sink,
            peer_source: None,
            peer_sink: None,
            next: 0,
            written: 0,
            waiting: VecDeque::new(),
            spoke: false,
            tell: tell.clone(),
        })
    });
    (engine.unwrap(), told)
}

fn regions_both_ways((device, host): (&str, &str), port: u16) {
    let witness = Witness::new();
    let offer = Offer {
        access: Access::REMOTE_READ | Access::REMOTE_WRITE,
        ..Offer::framed()
    };
    let (server, there) = start_trader(device, 0x5a, 1);
    server.listen_with(&url(host, port), offer).unwrap();
    let (client, here) = start_trader(device, !0x5a, 0);
    client.connect(&url(host, port), offer).unwrap();
    await_told(&here, |t| *t == Told::Done);
    await_told(&there, |t| *t == Told::Done);
    end(client);
    end(server);
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_framed_regions_rxe() {
    regions_both_ways(RXE, 7321);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_framed_regions_siw() {
    regions_both_ways(SIW, 7322);
}
