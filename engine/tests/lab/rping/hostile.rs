//! Peers that lie: as clients to our server, as a server to our client.

use super::*;

/// What a client says that is none.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// These bytes.
    Message(&'static [u8]),
    /// An advert of these bytes from the source on, with the key that much off.
    Advert { len: u32, key_off: u32 },
    /// The last address.
    Wraps,
}

/// Tells the lies that a connection's tag names one after another, each but the first after a
/// go-ahead. Its source is ping 0 of 32 bytes.
struct Liar {
    source: ExposedMemory,
    lies: HashMap<ConnId, &'static [Lie]>,
    ended: Sender<CloseReason>,
}

const PING: &[u8; 32] = b"rdma-ping-0: ABCDEFGHIJKLMNOPQR\0";

impl Liar {
    fn lie(&mut self, io: &mut Io<'_>, conn: ConnId) {
        let lies = self.lies.get_mut(&conn).unwrap();
        let Some((lie, rest)) = lies.split_first() else {
            return;
        };
        *lies = rest;
        let region = io.exposed(conn, &self.source).unwrap();
        let advert = |addr: u64, rkey: u32, len: u32| {
            [
                &addr.to_be_bytes()[..],
                &rkey.to_be_bytes(),
                &len.to_be_bytes(),
            ]
            .concat()
        };
        let bytes = match *lie {
            Lie::Message(bytes) => bytes.to_vec(),
            Lie::Advert { len, key_off } => {
                advert(region.addr(), region.rkey().0.wrapping_add(key_off), len)
            }
            Lie::Wraps => advert(u64::MAX, region.rkey().0, 64),
        };
        let mut buffer = io.alloc().unwrap();
        buffer.copy_from(&bytes).unwrap();
        io.send(conn, buffer, Token(0)).unwrap();
    }
}

impl Service for Liar {
    fn connected(&mut self, io: &mut Io<'_>, conn: ConnId, peer: &Peer) {
        let (lies, _) = LIES[usize::try_from(peer.tag).unwrap()];
        self.lies.insert(conn, lies);
        self.lie(io, conn);
    }
    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        drop(message);
        self.lie(io, conn);
    }
    fn completed(&mut self, _: &mut Io<'_>, _: ConnId, completed: Completed) {
        drop(completed);
    }
    fn disconnected(&mut self, _: &mut Io<'_>, _: ConnId, reason: CloseReason) {
        let _ = self.ended.send(reason);
    }
}

/// Lies, and what the server says of each. The last two are refused by a device, not by the server.
const LIES: &[(&[Lie], &str)] = &[
    (&[Lie::Message(b"")], "a message of 0 B came"),
    (
        &[Lie::Message(b"fifteen bytes..")],
        "a message of 15 B came",
    ),
    (&[Lie::Message(&[0x55; 4000])], "a message of 4000 B came"),
    (
        &[Lie::Message(&[0xff; 16])],
        "4294967295 B at 0xffffffffffffffff",
    ),
    (&[Lie::Message(&[0; 16])], "an advert of 0 B at 0x0"),
    (&[advert(65_536, 0)], "at most 65535 B are taken here"),
    (&[Lie::Wraps], "reaches past the last address"),
    // Not the 0 that ends a ping of 31 bytes.
    (
        &[advert(31, 0)],
        "byte 30 of 31 is 0x52, and 0x00 was expected",
    ),
    (
        &[advert(33, 0)],
        "byte 31 of 33 is 0x00, and 0x53 was expected",
    ),
    (
        &[advert(32, 0), advert(31, 0)],
        "a sink of 31 B for a ping of 32 B",
    ),
    (
        &[advert(32, 0), Lie::Message(b"no")],
        "a message of 2 B came",
    ),
    (&[advert(32, 77)], "in the READ of 32 B"),
    (&[advert(32, 0), advert(32, 77)], "in the WRITE to 32 B"),
];

const fn advert(len: u32, key_off: u32) -> Lie {
    Lie::Advert { len, key_off }
}

fn lies((device, host): (&str, &str), port: u16) {
    let witness = Witness::new();
    let mut server = Process::ours(&format!("--server --listen rdma://{host}:{port} --json"));
    server.await_listening(port);
    let (ended, reasons) = mpsc::channel();
    let liar = Engine::start(&plan(device, 0, IdlePolicy::Yield), move |worker| {
        let read = Access::REMOTE_READ;
        let source = worker.expose(PING.len(), HugepagePolicy::Off, read);
        let source = source.unwrap();
        source.copy_in(0, PING).unwrap();
        Liar {
            source,
            lies: HashMap::new(),
            ended: ended.clone(),
        }
    })
    .unwrap();
    let mut told = 0;
    for (tag, (_, expected)) in (0..).zip(LIES) {
        // An iWARP sender is not told that its peer refused a WRITE.
        if device == SIW.0 && expected.contains("WRITE") {
            continue;
        }
        let offer = Offer {
            tag,
            responder_resources: 1,
            initiator_depth: 1,
            access: Access::REMOTE_READ,
            ..Offer::default()
        };
        liar.connect(&url(host, port), offer).unwrap();
        let reason = reasons.recv_timeout(LONG).expect("ended in time");
        println!("{device}: {expected}: {reason}");
        told += 1;
        // Of each exactly one line, behind the greeting.
        let until = Instant::now() + LONG;
        while server.err().lines().count() <= told {
            assert!(Instant::now() < until, "not {expected}: {}", server.said());
            std::thread::park_timeout(PAUSE);
        }
        let error = server.err();
        let last = error.lines().last().unwrap();
        assert!(last.contains(expected), "not {expected}: {last}");
    }
    end(liar);
    // Others are served as ever.
    let mut client = Process::ours(&format!("rdma://{host}:{port} --count 10 --json"));
    client.succeeds();
    client.assert_verified("client", 10, 64);
    let mut client = Process::stock(&format!("-c -a {host} -p {port} -v -V -C 10"));
    client.succeeds();
    client.assert_pings("ping data: ", 10);
    server.interrupt();
    assert_eq!(server.wait().code(), Some(1), "{}", server.said());
    let report: serde_json::Value = serde_json::from_str(&server.out()).unwrap();
    assert_eq!(report["failures"], told, "{report}");
    assert_eq!(report["connections"], told + 2, "{report}");
    assert_eq!(report["exchanges"], 20, "{report}");
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_rping_liars() {
    lies(RXE, 7631);
    lies(SIW, 7632);
}

/// A server of lies, one a connection: a go-ahead of 15 bytes, no WRITE, and a WRITE with a wrong byte.
#[derive(Default)]
struct LyingServer {
    connections: usize,
    /// The lie of each connection, and the adverts that came.
    links: HashMap<ConnId, (usize, u32)>,
}

const SERVER_LIES: [&str; 3] = [
    "a message of 15 B came, a go-ahead has 16 B",
    "byte 0 of 64 is 0xee, and 0x72 was expected",
    "byte 40 of 64 is 0x21, and 0x5c was expected",
];

impl LyingServer {
    fn write_wrong(io: &mut Io<'_>, conn: ConnId, advert: &[u8]) {
        let addr = u64::from_be_bytes(advert[..8].try_into().unwrap());
        let rkey = Rkey(u32::from_be_bytes(advert[8..12].try_into().unwrap()));
        let mut ping = b"rdma-ping-0: ".to_vec();
        ping.extend((b'A'..).take(50));
        ping.push(0);
        ping[40] = b'!';
        let sink = RemoteRegion::parse(addr, 64, rkey, Access::REMOTE_WRITE).unwrap();
        let mut buffer = io.alloc().unwrap();
        buffer.copy_from(&ping).unwrap();
        io.write(conn, buffer, &sink, 0, Token(0)).unwrap();
    }
}

impl Service for LyingServer {
    fn connected(&mut self, _: &mut Io<'_>, conn: ConnId, _: &Peer) {
        self.links.insert(conn, (self.connections, 0));
        self.connections += 1;
    }
    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        let (lie, adverts) = self.links.get_mut(&conn).unwrap();
        *adverts += 1;
        if (*lie, *adverts) == (2, 2) {
            Self::write_wrong(io, conn, &message);
        }
        let mut buffer = message.into_buffer();
        buffer.set_len(if *lie == 0 { 15 } else { 16 }).unwrap();
        io.send(conn, buffer, Token(0)).unwrap();
    }
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_rping_lying_server() {
    for ((device, host), port) in [(RXE, 7651), (SIW, 7652)] {
        let witness = Witness::new();
        let server = Engine::start(&plan(device, 1, IdlePolicy::Yield), |_| {
            LyingServer::default()
        });
        let server = server.unwrap();
        server.listen(&url(host, port)).unwrap();
        for expected in SERVER_LIES {
            let mut client = Process::ours(&format!("rdma://{host}:{port} --count 5"));
            assert_eq!(client.wait().code(), Some(1), "{}", client.said());
            assert!(client.err().contains(expected), "{}", client.said());
            assert!(client.err().contains("exchange 0: "), "{}", client.said());
        }
        end(server);
        witness.assert_unchanged();
    }
}
