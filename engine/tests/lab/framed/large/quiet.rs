//! Large messages both ways of taking them, and no allocation for any.

use super::*;
use crate::quiet::allocations;

/// Passes large messages and takes them, alternately into memory and in chunks, and counts what its
/// thread allocates meanwhile.
struct Shuttle {
    memory: ExposedMemory,
    gives: bool,
    done: u64,
    at_start: u64,
    made: Arc<AtomicU64>,
}

impl Shuttle {
    const LEN: u32 = 200_000;
    const WARM: u64 = 100;
    const ROUNDS: u64 = 600;

    fn give(&mut self, io: &mut FramedIo<'_>, conn: ConnId) {
        let span = self.memory.span(0, Self::LEN).unwrap();
        io.send_large(conn, span, 0, Token(0)).unwrap();
    }

    fn count(&mut self) {
        self.done += 1;
        if self.done == Self::WARM {
            self.at_start = allocations();
        } else if self.done == Self::ROUNDS {
            let made = allocations() - self.at_start;
            self.made.store(made, Ordering::Release);
        }
    }
}

impl Service for Shuttle {
    fn connected(&mut self, io: &mut FramedIo<'_>, conn: ConnId, _: &Peer) {
        if self.gives {
            for _ in 0..4 {
                self.give(io, conn);
            }
        }
    }
    fn large(&mut self, io: &mut FramedIo<'_>, conn: ConnId, incoming: Incoming) {
        if incoming.id.0.is_multiple_of(2) {
            io.accept_large_in_chunks(conn, incoming.id).unwrap();
        } else {
            let span = self.memory.span(0, Self::LEN).unwrap();
            io.accept_large(conn, incoming.id, span).unwrap();
        }
    }
    fn large_done(&mut self, _: &mut FramedIo<'_>, _: ConnId, received: LargeReceived) {
        if received.outcome == ReceiveOutcome::Done {
            self.count();
        }
    }
    fn large_sent(&mut self, io: &mut FramedIo<'_>, conn: ConnId, sent: LargeSent) {
        if sent.outcome == LargeOutcome::Done {
            self.count();
            if self.done < Self::ROUNDS {
                self.give(io, conn);
            }
        }
    }
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_framed_large_messages_allocate_nothing() {
    for (device, host) in [RXE, SIW] {
        let witness = Witness::new();
        let start = |core, gives| {
            let made = Arc::new(AtomicU64::new(u64::MAX));
            let of_service = Arc::clone(&made);
            let engine = Engine::start(&plan(device, core, IdlePolicy::Spin), move |info| {
                let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
                let bytes = Shuttle::LEN as usize;
                Framed::new(Shuttle {
                    memory: info.expose(bytes, HugepagePolicy::Off, access).unwrap(),
                    gives,
                    done: 0,
                    at_start: 0,
                    made: Arc::clone(&of_service),
                })
            });
            (engine.unwrap(), made)
        };
        let (server, there) = start(1, false);
        server
            .listen_with(&url(host, 7451), Offer::framed())
            .unwrap();
        let (client, here) = start(0, true);
        client.connect(&url(host, 7451), readable()).unwrap();
        let until = Instant::now() + LONG;
        while [&here, &there]
            .iter()
            .any(|made| made.load(Ordering::Acquire) == u64::MAX)
        {
            assert!(Instant::now() < until, "the messages stand still");
            std::thread::park_timeout(PAUSE);
        }
        let made = [&here, &there].map(|made| made.load(Ordering::Acquire));
        assert_eq!(made, [0, 0], "{device}: allocations");
        end(client);
        end(server);
        witness.assert_unchanged();
    }
}
