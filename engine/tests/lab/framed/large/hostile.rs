//! Large messages that never end, whose sender is killed, or that are not what they say.

use super::*;
use crate::killed::peer;
use spinwire::fabric::PrivateData;
use spinwire::types::Rkey;
use spinwire::wire::{Features, HEADER_BYTES, Header, Hello, Kind, LargeOffer};
use spinwire::worker::{Completed as RawCompleted, Io, Message, Service as RawService, Violation};

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_framed_large_never_finished_ends_at_the_deadline() {
    for (device, host) in [RXE, SIW] {
        let witness = Witness::new();
        let (server, there) = start_taker(device, How::Ignore, 0, 1);
        server
            .listen_with(&url(host, 7422), Offer::framed())
            .unwrap();
        let (client, here) = start_giver(device, 1 << 20, 3, Duration::from_millis(200));
        client.connect(&url(host, 7422), readable()).unwrap();
        for _ in 0..3 {
            let sent = await_word(&here, |w| matches!(w, Word::Sent(_)));
            assert_eq!(sent, Word::Sent(LargeOutcome::Unknown));
        }
        let ended = here.recv_timeout(LONG).unwrap();
        let late = Violation::LargeLate(LargeId(0));
        assert_eq!(ended, Word::Ended(CloseReason::Protocol(late)));
        let left = |w: &Word| matches!(w, Word::Ended(CloseReason::Peer | CloseReason::Failed(_)));
        await_word(&there, left);
        end(client);
        end(server);
        witness.assert_unchanged();
    }
}

/// The body of the process that is killed: `give DEVICE HOST PORT`.
pub(crate) fn give(device: &str, to: &spinwire::fabric::Url) {
    let (client, words) = start_giver(device, 64 << 20, u64::MAX, LONG);
    client.connect(to, readable()).unwrap();
    while words.recv().is_ok() {}
}

fn sender_killed((device, host): (&str, &str), port: u16, how: How) {
    let witness = Witness::new();
    let (server, there) = start_taker(device, how, 64 << 20, 1 << 20);
    server
        .listen_with(&url(host, port), Offer::framed())
        .unwrap();
    let mut sender = peer("give", device, host, port);
    match how {
        How::Region => await_word(&there, |w| matches!(w, Word::Up { .. })),
        _ => await_word(&there, |w| matches!(w, Word::Chunk(50..))),
    };
    let killed = Instant::now();
    sender.kill();
    await_word(&there, |w| *w == Word::Received(ReceiveOutcome::Lost));
    let ends = |w: &Word| matches!(w, Word::Ended(_));
    let Word::Ended(reason) = await_word(&there, ends) else {
        unreachable!("as awaited")
    };
    println!("{device}: {:?} after the kill: {reason}", killed.elapsed());
    let right = matches!(reason, CloseReason::Peer | CloseReason::Failed(_));
    assert!(right, "{reason:?}");
    end(server);
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_framed_large_sender_killed_rxe() {
    sender_killed(RXE, 7431, How::Region);
    sender_killed(RXE, 7433, How::Chunks(u32::MAX));
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_framed_large_sender_killed_siw() {
    sender_killed(SIW, 7432, How::Region);
    sender_killed(SIW, 7434, How::Chunks(u32::MAX));
}

/// Speaks framed mode by hand, and offers memory under a key that is not its own.
struct Forger {
    memory: ExposedMemory,
    key_off: u32,
    ended: Sender<CloseReason>,
}

impl RawService for Forger {
    fn connected(&mut self, io: &mut Io<'_>, conn: ConnId, _: &Peer) {
        let region = io.exposed(conn, &self.memory).unwrap();
        let rkey = Rkey(region.rkey().0.wrapping_add(self.key_off));
        // Twice what there is.
        let len = 2 * u32::try_from(region.len()).unwrap();
        let offer = LargeOffer::new(LargeId(0), 0, region.addr(), len, rkey).unwrap();
        let mut head = [0; HEADER_BYTES];
        let header = Header {
            kind: Kind::Large,
            posted: 64,
            request_id: 0,
        };
        header.encode(&mut head);
        let mut buffer = io.alloc().unwrap();
        buffer
            .copy_from(&[&head[..], &offer.encode()].concat())
            .unwrap();
        io.send(conn, buffer, Token(0)).unwrap();
    }
    fn message(&mut self, _: &mut Io<'_>, _: ConnId, message: Message) {
        drop(message);
    }
    fn completed(&mut self, _: &mut Io<'_>, _: ConnId, completed: RawCompleted) {
        drop(completed);
    }
    fn disconnected(&mut self, _: &mut Io<'_>, _: ConnId, reason: CloseReason) {
        let _ = self.ended.send(reason);
    }
}

/// What the device of the peer does not allow fails the READ, and ends the connection, on this side
/// too.
#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_framed_large_that_cannot_be_read() {
    for (device, host) in [RXE, SIW] {
        for (key_off, how) in [(0, How::Region), (0, How::Chunks(9)), (1 << 8, How::Region)] {
            let witness = Witness::new();
            let (server, there) = start_taker(device, how, 2 << 20, 1 << 18);
            server
                .listen_with(&url(host, 7441), Offer::framed())
                .unwrap();
            let (ended, ends) = mpsc::channel();
            let forger = Engine::start(&plan(device, 0, IdlePolicy::Spin), move |info| {
                let memory = info.expose(1 << 20, HugepagePolicy::Off, Access::REMOTE_READ);
                let memory = memory.unwrap();
                Pattern::new().fill(&memory, 0, 1 << 20);
                Forger {
                    memory,
                    key_off,
                    ended: ended.clone(),
                }
            });
            let forger = forger.unwrap();
            let hello = Hello::new(64, 64, 16_384)
                .unwrap()
                .with_features(Features::OURS);
            let terms = Offer {
                private_data: PrivateData::new(&hello.encode()).unwrap(),
                access: Access::REMOTE_READ,
                ..Offer::default()
            };
            forger.connect(&url(host, 7441), terms).unwrap();
            await_word(&there, |w| *w == Word::Received(ReceiveOutcome::Lost));
            let Word::Ended(reason) = await_word(&there, |w| matches!(w, Word::Ended(_))) else {
                unreachable!("as awaited")
            };
            println!("{device}, key {key_off} off: {reason}");
            ends.recv_timeout(LONG).expect("the forger is cut off too");
            end(forger);
            end(server);
            witness.assert_unchanged();
        }
    }
}
