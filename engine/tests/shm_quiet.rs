//! What busy turns of a lane over shared memory do not do: allocate, or make system calls. The second is
//! seen to by the kernel: a process that may do nothing but end is killed by any other call.

#![allow(unsafe_code, reason = "forbids this process its system calls")]

mod counting;
mod shm_common;

use counting::allocations;
use shm_common::Place;
use spinwire::fabric::shm::{Shm, ShmLane, ShmQp};
use spinwire::fabric::{
    CmEventKind, ConnParams, Endpoint, Fabric, IdKey, Lane, LaneSpec, PrivateData, QpSpec, RecvWr,
    SendOp, SendWr, WorkCompletion,
};
use spinwire::memory::{Region, Registrar, Registration};
use spinwire::types::{Access, RemoteSpan};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Says to the child that it is one.
const CHILD: &str = "SPINWIRE_TEST_QUIET_CHILD";

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
    access: Access::REMOTE_READ,
    windows: 0,
};

fn event(fabric: &mut Shm, id: IdKey, kind: CmEventKind) -> Option<<Shm as Fabric>::Id> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        if let Some(event) = fabric.next_event().expect("works") {
            assert_eq!((event.id, event.kind), (id, kind));
            return event.request;
        }
        assert!(Instant::now() < deadline, "awaited {kind:?}");
    }
}

/// Polls until one completion has come.
fn one(lanes: &mut [ShmLane; 2], at: usize, mut idle: impl FnMut()) {
    let mut wc = [ShmLane::blank(); 4];
    for _ in 0..1_000_000 {
        let n = lanes[at].poll(&mut wc);
        if n > 0 {
            assert!(n == 1 && wc[0].is_success());
            return;
        }
        assert_eq!(lanes[1 - at].poll(&mut []), 0);
        idle();
    }
    panic!("nothing completed");
}

/// Both ends of a connection, with what they post.
struct Ends {
    lanes: [ShmLane; 2],
    qps: [ShmQp; 2],
    send: SendWr,
    recv: RecvWr,
    read: SendWr,
}

impl Ends {
    /// One message each way of so many as there are, of which the first finds no receive; and a READ.
    fn rounds(&mut self, n: u32, mut idle: impl FnMut()) {
        for round in 0..n {
            for (from, to) in [(0, 1), (1, 0)] {
                let wr = SendWr {
                    inline: round % 2 == 0,
                    len: if round % 2 == 0 { 32 } else { 4000 },
                    ..self.send
                };
                let posted = self.lanes[from].post_send(&mut self.qps[from], &[wr], &[]);
                posted.expect("there is room");
                assert_eq!(self.lanes[from].poll(&mut [ShmLane::blank()]), 0);
                assert_eq!(self.lanes[to].poll(&mut [ShmLane::blank()]), 0);
                let posted = self.lanes[to].post_recv(&mut self.qps[to], &[self.recv]);
                posted.expect("there is room");
                one(&mut self.lanes, to, &mut idle);
                let mut wc = [ShmLane::blank()];
                while self.lanes[from].poll(&mut wc) == 0 {
                    assert_eq!(self.lanes[to].poll(&mut [ShmLane::blank()]), 0);
                }
            }
            let posted = self.lanes[0].post_send(&mut self.qps[0], &[self.read], &[]);
            posted.expect("there is room");
            one(&mut self.lanes, 0, &mut idle);
        }
    }
}

fn with_ends(what: &str, test: impl FnOnce(&mut Ends)) {
    let place = Place::new(what);
    let mut fabric = place.open();
    let device = fabric.devices().remove(0);
    let spec = LaneSpec {
        cq_depth: 64,
        events: false,
        shared_recv_depth: 0,
    };
    let mut made = || fabric.create_lane(&device, &spec).expect("a lane");
    let ((here, here_lane, _), (there, there_lane, _)) = (made(), made());
    let region = Arc::new(Region::shared(16_384).expect("memory"));
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let registration = device.register(Arc::clone(&region), access).expect("room");
    let lkey = registration.lkey();
    let base = region.base().addr().get() as u64;

    let (at, wait) = (Endpoint::Shm("here".into()), Duration::from_secs(1));
    let listener = fabric.listen(&at, 1).expect("free");
    let mut active = fabric.resolve_address(&at, wait).expect("an id");
    let key = Shm::key(&active);
    event(&mut fabric, key, CmEventKind::AddrResolved);
    fabric.resolve_route(&mut active, wait).expect("resolves");
    event(&mut fabric, key, CmEventKind::RouteResolved);
    let (mut control, qp, _) = fabric.create_qp(&mut active, &here, &QP).expect("a QP");
    let asked = fabric.connect(&mut active, &mut control, &PARAMS);
    asked.expect("asks");
    let listens = Shm::key(&listener);
    let request = event(&mut fabric, listens, CmEventKind::ConnectRequest);
    let mut passive = request.expect("an id");
    let (mut other, peer, _) = fabric.create_qp(&mut passive, &there, &QP).expect("a QP");
    let accepted = fabric.accept(&mut passive, &mut other, &PARAMS);
    accepted.expect("accepts");
    event(&mut fabric, key, CmEventKind::ConnectResponse);
    fabric.confirm(&mut active, &mut control).expect("confirms");
    let key = Shm::key(&passive);
    event(&mut fabric, key, CmEventKind::Established);

    let send = SendWr {
        wr_id: 1,
        addr: base,
        len: 32,
        lkey,
        op: SendOp::Send,
        signalled: true,
        inline: false,
        more: 0,
    };
    let span = RemoteSpan {
        addr: base + 8192,
        rkey: registration.rkey(),
    };
    let mut ends = Ends {
        lanes: [here_lane, there_lane],
        qps: [qp, peer],
        send,
        recv: RecvWr {
            wr_id: 2,
            addr: base + 4096,
            len: 4096,
            lkey,
        },
        read: SendWr {
            op: SendOp::Read(span),
            len: 100,
            ..send
        },
    };
    let mut pump = || assert!(fabric.next_event().expect("works").is_none());
    ends.rounds(10, &mut pump);
    test(&mut ends);
    drop((ends, registration));
}

#[test]
fn posts_and_polls_do_not_allocate() {
    with_ends("allocate", |ends| {
        assert_eq!(allocations(|| ends.rounds(1000, || {})), 0);
    });
}

/// From now on this process ends by `exit_group`, or dies.
fn forbid_calls() {
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).expect("an opcode"),
        jt,
        jf,
        k,
    };
    let exit = u32::try_from(libc::SYS_exit_group).expect("small");
    let mut filter = [
        // The number of the call is the first word.
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, exit),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        op(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_KILL_PROCESS,
        ),
    ];
    let program = libc::sock_fprog {
        len: 4,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the two calls take numbers and a program of four instructions, which lives through them.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        let set = libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program);
        assert_eq!(set, 0, "the kernel filters calls");
    }
}

#[test]
#[ignore = "the process without system calls, which its test starts"]
fn quiet_child() {
    let Some(what) = std::env::var_os(CHILD) else {
        return;
    };
    with_ends("quiet", |ends| {
        forbid_calls();
        if what == "rounds" {
            ends.rounds(10_000, || {});
        } else {
            std::thread::yield_now();
        }
        // SAFETY: it has no precondition; nothing of the process is used any more.
        unsafe { libc::_exit(0) };
    });
}

#[test]
fn posts_and_polls_make_no_system_calls() {
    let run = |what: &str| {
        Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", "quiet_child", "--include-ignored"])
            .env(CHILD, what)
            .output()
            .expect("it starts")
            .status
    };
    assert!(!run("one call").success(), "the filter works");
    let status = run("rounds");
    assert!(status.success(), "a turn made a system call: {status}");
}
