//! Data that arrives before ESTABLISHED is served. The order is forced: the test drives control and
//! worker itself, and lets control have no turn between accept and the first message.

use crate::support::*;
use spinwire::control::{Control, LaneLink, Notice, Offer, Timing, WorkerLink};
use spinwire::fabric::verbs::Verbs;
use spinwire::fabric::{Endpoint, Fabric, LaneSpec, QpSpec};
use spinwire::memory::{Exposures, HugepagePolicy, Pool, Region, Registrar};
use spinwire::sys::clock::Clock;
use spinwire::sys::eventfd::EventFd;
use spinwire::types::{Access, IdlePolicy};
use spinwire::worker::{
    ConnId, Io, LaneCapacity, LaneSetup, Message, Peer, Service, Token, Worker, WorkerSetup,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

const DEPTH: u32 = 16;

/// Echoes, and counts what it saw.
#[derive(Default)]
struct Early {
    connected: u32,
    messages: u32,
}

impl Service for Early {
    fn connected(&mut self, _: &mut Io<'_>, _: ConnId, _: &Peer) {
        self.connected += 1;
    }
    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        self.messages += 1;
        io.send(conn, message.into_buffer(), Token(0)).unwrap();
    }
}

/// A server without threads: whoever has it says who has a turn.
struct Server {
    worker: Worker<Verbs, Early>,
    control: Control<Verbs>,
    clock: Clock,
}

impl Server {
    fn new(name: &str) -> Self {
        let mut fabric = Verbs::open().unwrap();
        let devices = fabric.devices();
        let device = devices.iter().find(|d| Verbs::limits(d).name == name);
        let device = device.unwrap().clone();
        let region = Arc::new(Region::allocate(64 * 1024, HugepagePolicy::Off).unwrap());
        let registration = device
            .register(Arc::clone(&region), Access::LOCAL_WRITE)
            .unwrap();
        let spec = LaneSpec {
            shared_recv_depth: 0,
            cq_depth: 2 * DEPTH,
            events: false,
        };
        let (cq, lane, grant) = fabric.create_lane(&device, &spec).unwrap();
        let (control_end, worker_end) = spinwire::worker::mailbox();
        let (writer, reader) = spinwire::metrics::counters();
        let link = WorkerLink {
            end: control_end,
            wake: Arc::new(EventFd::new().unwrap()),
            lanes: vec![LaneLink {
                device: name.into(),
                cq: Some(cq),
                device_handle: None,
                spec: QpSpec {
                    shared_receives: false,
                    windows: 0,
                    send_depth: DEPTH,
                    recv_depth: DEPTH,
                    inline_bytes: 0,
                    access: Access::NONE,
                },
                connections_max: 1,
                buffer_bytes: 1024,
                grant,
            }],
            counters: reader,
            growth: None,
        };
        let timing = Timing {
            resolve: Duration::from_secs(2),
            connect: Duration::from_secs(5),
            drain: Duration::from_secs(2),
            retry_count: 7,
            rnr_retry_count: 7,
        };
        let setup = WorkerSetup {
            read_sinks: Vec::new(),
            number: 0,
            core: None,
            lanes: vec![LaneSetup {
                lane,
                registration,
                capacity: LaneCapacity {
                    connections: 1,
                    send_depth: DEPTH,
                    recv_depth: DEPTH,
                    shared_recv_depth: 0,
                },
            }],
            pool: Pool::new(region, 64, 1024).unwrap(),
            mailbox: worker_end,
            counters: writer,
            idle: IdlePolicy::Spin,
            close_deadline: Duration::from_secs(1),
            exposures: Exposures::new(vec![device]),
        };
        Self {
            worker: Worker::new(setup, Early::default()),
            control: Control::new(fabric, vec![link], timing).unwrap(),
            clock: Clock::calibrated(),
        }
    }

    fn turn_control(&mut self) {
        self.control.turn(self.clock.now());
    }

    fn turn_worker(&mut self) {
        self.worker.turn(self.clock.now());
    }

    fn until(&mut self, what: &str, mut step: impl FnMut(&mut Self) -> bool) {
        let until = Instant::now() + LONG;
        while !step(self) {
            assert!(Instant::now() < until, "{what}");
            std::thread::park_timeout(Duration::from_micros(200));
        }
    }
}

fn served_before_established((device, host): (&str, &str), port: u16) {
    let witness = Witness::new();
    let mut server = Server::new(device);
    let at = Endpoint::Rdma(format!("{host}:{port}").parse().unwrap());
    server.control.listen(&at, Offer::default().into()).unwrap();

    let (client, told) = start_pinger(&plan(device, 0, IdlePolicy::Yield), 100, 3, 1);
    let to = url(host, port);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| client.connect(&to, Offer::default()).unwrap());
        // Until control has accepted: Adopt, Armed, accept.
        server.until("a request", |s| {
            s.turn_control();
            s.control.connections() > 0
        });
        server.turn_worker();
        server.turn_control();
        // From here on control has no turn, so ESTABLISHED waits in its channel.
        server.until("three messages served", |s| {
            s.turn_worker();
            s.worker.service().messages == 3
        });
        assert_eq!(server.worker.service().connected, 1);
        assert!(
            server.control.take_notice().is_none(),
            "control knows nothing yet"
        );
        connecting.join().unwrap();
    });
    server.until("answers", |s| {
        s.turn_worker();
        told.try_iter().any(|t| t == Told::Done)
    });
    // Only now does control read ESTABLISHED, and nothing happens twice.
    server.until("the notice", |s| {
        s.turn_control();
        s.turn_worker();
        matches!(s.control.take_notice(), Some(Notice::Accepted(_)))
    });
    assert_eq!(server.worker.service().connected, 1);

    server.control.shutdown();
    let ending = std::thread::spawn(move || end(client));
    server.until("the end", |s| {
        s.turn_control();
        s.turn_worker();
        s.control.connections() == 0
    });
    ending.join().unwrap();
    drop(server);
    witness.assert_unchanged();
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_data_before_established_is_served_rxe() {
    served_before_established(RXE, 7601);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_data_before_established_is_served_siw() {
    served_before_established(SIW, 7602);
}
