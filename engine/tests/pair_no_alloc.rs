//! The datapath of the fabric without a device allocates nothing: a count of allocations over it is one
//! of what lies above.

mod counting;

use counting::allocations;
use spinwire::fabric::pair::{Hub, Pair, PairLane, PairQp};
use spinwire::fabric::{
    CmEventKind, ConnParams, Endpoint, Fabric, IdKey, Lane, LaneSpec, PrivateData, QpSpec, RecvWr,
    SendOp, SendWr, WorkCompletion,
};
use spinwire::memory::{HugepagePolicy, Pool, Region, Registrar, Registration};
use spinwire::types::Access;
use std::sync::Arc;
use std::time::Duration;

const PARAMS: ConnParams = ConnParams {
    private_data: PrivateData::EMPTY,
    responder_resources: 1,
    initiator_depth: 1,
    retry_count: 7,
    rnr_retry_count: 7,
};
const QP: QpSpec = QpSpec {
    send_depth: 8,
    recv_depth: 8,
    shared_receives: false,
    inline_bytes: 64,
    access: Access::NONE,
    windows: 0,
};

fn event(fabric: &mut Pair, id: IdKey, kind: CmEventKind) -> Option<<Pair as Fabric>::Id> {
    let event = fabric.next_event().expect("works").expect("an event");
    assert_eq!((event.id, event.kind), (id, kind));
    event.request
}

/// Polls until one completion has come.
fn one(lane: &mut PairLane) {
    let mut wc = [PairLane::blank(); 4];
    assert_eq!(lane.poll(&mut wc), 1);
    assert!(wc[0].is_success());
}

/// One message each way of so many as there are; the first finds no receive.
fn rounds(lanes: &mut [PairLane; 2], qps: &mut [PairQp; 2], send: &SendWr, recv: &RecvWr, n: u32) {
    for round in 0..n {
        for (from, to) in [(0, 1), (1, 0)] {
            let wr = SendWr {
                inline: round % 2 == 0,
                ..*send
            };
            let posted = lanes[from].post_send(&mut qps[from], &[wr], &[]);
            posted.expect("there is room");
            assert_eq!(lanes[from].poll(&mut [PairLane::blank()]), 0);
            let posted = lanes[to].post_recv(&mut qps[to], &[*recv]);
            posted.expect("there is room");
            one(&mut lanes[to]);
            one(&mut lanes[from]);
        }
    }
}

#[test]
fn posts_and_polls_do_not_allocate() {
    let hub = Hub::new();
    let mut fabric = Pair::open(&hub).expect("descriptors");
    let device = fabric.devices().remove(0);
    let spec = LaneSpec {
        cq_depth: 64,
        events: false,
        shared_recv_depth: 0,
    };
    let mut made = || fabric.create_lane(&device, &spec).expect("a lane");
    let ((here, here_lane, _), (there, there_lane, _)) = (made(), made());
    let region = Arc::new(Region::allocate(4096, HugepagePolicy::Off).expect("memory"));
    let registration = device.register(Arc::clone(&region), Access::LOCAL_WRITE);
    let lkey = registration.as_ref().expect("registered").lkey();
    let pool = Pool::new(region, 2, 2048).expect("a pool");

    let (at, wait) = (Endpoint::Shm("here".into()), Duration::from_secs(1));
    let listener = fabric.listen(&at, 1).expect("free");
    let mut active = fabric.resolve_address(&at, wait).expect("an id");
    let key = Pair::key(&active);
    event(&mut fabric, key, CmEventKind::AddrResolved);
    fabric.resolve_route(&mut active, wait).expect("resolves");
    event(&mut fabric, key, CmEventKind::RouteResolved);
    let (mut control, qp, _) = fabric.create_qp(&mut active, &here, &QP).expect("a QP");
    let asked = fabric.connect(&mut active, &mut control, &PARAMS);
    asked.expect("asks");
    let request = event(
        &mut fabric,
        Pair::key(&listener),
        CmEventKind::ConnectRequest,
    );
    let mut passive = request.expect("an id");
    let (mut other, peer, _) = fabric.create_qp(&mut passive, &there, &QP).expect("a QP");
    let accepted = fabric.accept(&mut passive, &mut other, &PARAMS);
    accepted.expect("accepts");
    event(&mut fabric, key, CmEventKind::ConnectResponse);
    fabric.confirm(&mut active, &mut control).expect("confirms");

    let (mut from, mut to) = (pool.alloc().expect("one"), pool.alloc().expect("two"));
    from.set_len(32).expect("short");
    to.set_len(2048).expect("all of it");
    let send = SendWr {
        wr_id: 1,
        addr: from.addr(),
        len: 32,
        lkey,
        op: SendOp::Send,
        signalled: true,
        inline: false,
        more: 0,
    };
    let recv = RecvWr {
        wr_id: 2,
        addr: to.addr(),
        len: 2048,
        lkey,
    };
    let (mut lanes, mut qps) = ([here_lane, there_lane], [qp, peer]);
    rounds(&mut lanes, &mut qps, &send, &recv, 10);
    let count = allocations(|| rounds(&mut lanes, &mut qps, &send, &recv, 1000));
    assert_eq!(count, 0);
    drop((lanes, qps, registration));
}
