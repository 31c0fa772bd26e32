//! Two processes over shared memory: the test starts itself as the passive end. Every operation is
//! exchanged, a key is taken out of use, and a process that is killed is heard of.

#![allow(unsafe_code, reason = "looks at memory that a peer writes")]

mod shm_common;

use shm_common::{Place, open};
use spinwire::fabric::shm::{Shm, ShmLane, ShmQp, ShmQpControl, ShmRegistration};
use spinwire::fabric::{
    CmEvent, CmEventKind, ConnParams, Endpoint, Fabric, Lane, LaneSpec, Note, PlainWc, PrivateData,
    QpSpec, RecvWr, SendOp, SendWr, WcOpcode, WcStatus, WorkCompletion,
};
use spinwire::memory::{Region, Registrar, Registration};
use spinwire::types::{Access, Lkey, RemoteSpan, Rkey};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
/// Says to the child where names are.
const DIR: &str = "SPINWIRE_TEST_CHILD_DIR";
const MEMORY: usize = 512 << 10;
const LONG: usize = 400_000;

const PARAMS: ConnParams = ConnParams {
    private_data: PrivateData::EMPTY,
    responder_resources: 4,
    initiator_depth: 4,
    retry_count: 7,
    rnr_retry_count: 7,
};

/// One end, with memory of which all is for everybody.
struct End {
    fabric: Shm,
    id: Option<<Shm as Fabric>::Id>,
    lane: ShmLane,
    qp: Option<(ShmQpControl, ShmQp)>,
    cq: <Shm as Fabric>::Cq,
    region: Arc<Region>,
    registration: ShmRegistration,
    events: Vec<CmEvent<<Shm as Fabric>::Id>>,
    done: Vec<PlainWc>,
}

impl End {
    fn new(dir: &Path) -> Self {
        let mut fabric = open(dir);
        let device = fabric.devices().remove(0);
        let spec = LaneSpec {
            cq_depth: 256,
            events: true,
            shared_recv_depth: 0,
        };
        let (cq, lane, _) = fabric.create_lane(&device, &spec).expect("a lane");
        let region = Arc::new(Region::shared(MEMORY).expect("memory"));
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let registration = device.register(Arc::clone(&region), Access::LOCAL_WRITE | remote);
        Self {
            fabric,
            id: None,
            lane,
            qp: None,
            cq,
            region,
            registration: registration.expect("registered"),
            events: Vec::new(),
            done: Vec::new(),
        }
    }

    fn pump(&mut self) {
        while let Some(event) = self.fabric.next_event().expect("works") {
            self.events.push(event);
        }
        let mut wcs = [ShmLane::blank(); 8];
        let n = self.lane.poll(&mut wcs);
        self.done.extend(&wcs[..n]);
    }

    fn until<T>(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.pump();
            if let Some(found) = look(self) {
                return found;
            }
            assert!(Instant::now() < deadline, "awaited {what}");
            std::thread::yield_now();
        }
    }

    fn event(&mut self, kind: CmEventKind) -> CmEvent<<Shm as Fabric>::Id> {
        let event = self.until(&format!("{kind:?}"), |end| {
            (!end.events.is_empty()).then(|| end.events.remove(0))
        });
        assert_eq!(event.kind, kind, "status {}", event.status);
        event
    }

    fn equip(&mut self) {
        let spec = QpSpec {
            send_depth: 16,
            recv_depth: 16,
            shared_receives: false,
            inline_bytes: 64,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            windows: 0,
        };
        let id = self.id.as_mut().expect("an id");
        let (control, qp, _) = self.fabric.create_qp(id, &self.cq, &spec).expect("a QP");
        self.qp = Some((control, qp));
    }

    fn connect(&mut self, name: &str) {
        let to = Endpoint::Shm(name.into());
        let id = self.fabric.resolve_address(&to, PATIENCE).expect("a name");
        self.id = Some(id);
        self.event(CmEventKind::AddrResolved);
        let id = self.id.as_mut().expect("an id");
        self.fabric.resolve_route(id, PATIENCE).expect("resolves");
        self.event(CmEventKind::RouteResolved);
        self.equip();
        self.with(|fabric, id, qp| fabric.connect(id, qp, &PARAMS).expect("asks"));
        self.event(CmEventKind::ConnectResponse);
        self.with(|fabric, id, qp| fabric.confirm(id, qp).expect("is there"));
    }

    fn accept(&mut self) {
        self.id = self.event(CmEventKind::ConnectRequest).request;
        self.equip();
        for n in 0..8 {
            self.receive(n, n * 1000, 1000);
        }
        self.with(|fabric, id, qp| fabric.accept(id, qp, &PARAMS).expect("accepts"));
        self.event(CmEventKind::Established);
    }

    fn with<T>(
        &mut self,
        call: impl FnOnce(&mut Shm, &mut <Shm as Fabric>::Id, &mut ShmQpControl) -> T,
    ) -> T {
        let (control, _) = self.qp.as_mut().expect("a QP");
        call(&mut self.fabric, self.id.as_mut().expect("an id"), control)
    }

    fn addr(&self, offset: usize) -> u64 {
        self.region.base().addr().get() as u64 + offset as u64
    }

    fn lkey(&self) -> Lkey {
        self.registration.lkey()
    }

    fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= MEMORY);
        for (n, byte) in bytes.iter().enumerate() {
            // SAFETY: the offset is within the region, which is writable.
            unsafe { self.region.base().add(offset + n).write_volatile(*byte) };
        }
    }

    fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= MEMORY);
        // SAFETY: the offset is within the region.
        let byte = |n| unsafe { self.region.base().add(offset + n).read_volatile() };
        (0..len).map(byte).collect()
    }

    fn word(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.get(offset, 8).try_into().expect("eight"))
    }

    fn receive(&mut self, wr_id: usize, offset: usize, len: u32) {
        let wr = RecvWr {
            wr_id: wr_id as u64,
            addr: self.addr(offset),
            len,
            lkey: self.lkey(),
        };
        let (_, qp) = self.qp.as_mut().expect("a QP");
        self.lane.post_recv(qp, &[wr]).expect("room");
    }

    fn post(&mut self, op: SendOp, offset: usize, len: usize) {
        let wr = SendWr {
            wr_id: 99,
            addr: self.addr(offset),
            len: u32::try_from(len).expect("short"),
            lkey: self.lkey(),
            op,
            signalled: true,
            inline: false,
            more: 0,
        };
        let (_, qp) = self.qp.as_mut().expect("a QP");
        self.lane.post_send(qp, &[wr], &[]).expect("room");
    }

    fn completion(&mut self) -> PlainWc {
        self.until("a completion", |end| {
            (!end.done.is_empty()).then(|| end.done.remove(0))
        })
    }

    /// Posts an operation, which must succeed.
    fn do_(&mut self, op: SendOp, offset: usize, len: usize) {
        self.post(op, offset, len);
        let wc = self.completion();
        assert_eq!((wc.status(), wc.wr_id()), (WcStatus::Success, 99), "{op:?}");
        assert_eq!(wc.opcode(), op.completes_as());
    }

    /// The next receive.
    fn heard(&mut self) -> (u64, WcOpcode, u32, Note) {
        let wc = self.completion();
        assert_eq!(wc.status(), WcStatus::Success);
        (wc.wr_id(), wc.opcode(), wc.byte_len(), wc.note())
    }
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let byte = |n: usize| u8::try_from((n * 7 + seed + n / 251) % 256).expect("small");
    (0..len).map(byte).collect()
}

/// A passive end, and what it prints, which it must be able to.
fn child(dir: &Path, what: &str) -> (Child, impl Sized) {
    let mut child = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", what, "--nocapture", "--include-ignored"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut ready = lines.by_ref().map_while(Result::ok);
    assert!(
        ready.any(|line| line.contains("listens")),
        "the child listens"
    );
    (child, lines)
}

fn passive() -> Option<(End, <Shm as Fabric>::Id)> {
    let dir = std::env::var_os(DIR)?;
    let mut end = End::new(Path::new(&dir));
    let listener = end.fabric.listen(&Endpoint::Shm("child".into()), 4);
    println!("\nlistens");
    Some((end, listener.expect("free")))
}

#[test]
#[ignore = "the passive end, which its test starts"]
fn passive_end() {
    let Some((mut end, _listener)) = passive() else {
        return;
    };
    end.put(100_000, &5u64.to_ne_bytes());
    end.accept();
    // Where our memory is.
    let mut word = end.addr(0).to_ne_bytes().to_vec();
    word.extend(end.registration.rkey().0.to_ne_bytes());
    end.put(9000, &word);
    end.do_(SendOp::Send, 9000, 12);
    // WRITE, then WRITE with immediate, which tells of both.
    assert_eq!(end.heard(), (0, WcOpcode::RecvWriteImm, 3000, Note::Imm(7)));
    assert_eq!(end.get(110_000, 100), pattern(1, 100));
    assert_eq!(end.get(120_000, 3000), pattern(2, 3000));
    // READs and atomics take no receive: the next is a message, sent inline or not.
    assert_eq!(end.heard(), (1, WcOpcode::Recv, 48, Note::Imm(8)));
    assert_eq!(end.get(1000, 48), pattern(3, 48));
    assert_eq!(end.word(100_000), 100);
    assert_eq!(end.heard(), (2, WcOpcode::Recv, 1000, Note::None));
    assert_eq!(end.get(2000, 1000), pattern(4, 1000));
    // One that is longer than the whole inbox.
    for n in 3..8 {
        assert_eq!(end.heard(), (n, WcOpcode::Recv, 0, Note::None));
    }
    end.receive(8, 8000, u32::try_from(LONG).expect("short"));
    let long = u32::try_from(LONG).expect("short");
    assert_eq!(end.heard(), (8, WcOpcode::Recv, long, Note::None));
    assert_eq!(end.get(8000, LONG), pattern(5, LONG));
    let rkey = end.registration.rkey();
    for n in 9..12 {
        end.receive(n, 0, 100);
    }
    assert_eq!(
        end.heard(),
        (9, WcOpcode::Recv, 10, Note::Invalidated(rkey))
    );
    // The peer tries the key once more.
    for n in [10, 11] {
        let wc = end.completion();
        assert_eq!((wc.status(), wc.wr_id()), (WcStatus::Flushed, n));
    }
    let lost = end.fabric.next_async_event().expect("an event");
    assert!(lost.fatal, "{lost:?}");
    end.event(CmEventKind::Disconnected);
}

#[test]
fn every_operation_between_processes() {
    let place = Place::new("processes");
    let (mut child, _output) = child(place.path(), "passive_end");
    let mut end = End::new(place.path());
    end.connect("child");
    end.receive(1, 0, 100);
    assert_eq!(end.heard(), (1, WcOpcode::Recv, 12, Note::None));
    let theirs = u64::from_ne_bytes(end.get(0, 8).try_into().expect("eight"));
    let rkey = Rkey(u32::from_ne_bytes(end.get(8, 4).try_into().expect("four")));
    let span = |offset: u64| RemoteSpan {
        addr: theirs + offset,
        rkey,
    };
    let send = |end: &mut End, op, seed, len| {
        end.put(50_000, &pattern(seed, len));
        end.do_(op, 50_000, len);
    };
    send(&mut end, SendOp::Write(span(110_000)), 1, 100);
    send(&mut end, SendOp::WriteImm(span(120_000), 7), 2, 3000);
    end.do_(SendOp::Read(span(110_000)), 0, 100);
    assert_eq!(end.get(0, 100), pattern(1, 100));
    let at = span(100_000);
    end.do_(SendOp::FetchAdd { at, add: 3 }, 0, 8);
    assert_eq!(end.word(0), 5);
    let (expect, swap) = (8, 100);
    end.do_(SendOp::CompareSwap { at, expect, swap }, 0, 8);
    assert_eq!(end.word(0), 8);
    end.do_(SendOp::Read(at), 8, 8);
    assert_eq!(end.word(8), 100);
    send(&mut end, SendOp::SendImm(8), 3, 48);
    send(&mut end, SendOp::Send, 4, 1000);
    for _ in 0..5 {
        end.do_(SendOp::Send, 0, 0);
    }
    send(&mut end, SendOp::Send, 5, LONG);
    send(&mut end, SendOp::SendInvalidate(rkey), 6, 10);
    end.post(SendOp::Write(span(110_000)), 0, 8);
    let refused = end.completion();
    assert_eq!(refused.status(), WcStatus::RemoteAccess);
    end.with(|fabric, id, _| fabric.disconnect(id).expect("is up"));
    assert!(child.wait().expect("it ends").success());
    end.event(CmEventKind::Disconnected);
}

#[test]
#[ignore = "the passive end, which its test starts"]
fn passive_end_that_is_killed() {
    let Some((mut end, _listener)) = passive() else {
        return;
    };
    end.accept();
    end.do_(SendOp::Send, 0, 4);
    loop {
        end.pump();
    }
}

#[test]
fn a_killed_process_is_heard_of() {
    let place = Place::new("killed");
    let (mut child, _output) = child(place.path(), "passive_end_that_is_killed");
    let mut end = End::new(place.path());
    end.connect("child");
    end.receive(1, 0, 100);
    assert_eq!(end.heard(), (1, WcOpcode::Recv, 4, Note::None));
    child.kill().expect("it lives");
    child.wait().expect("it ends");
    end.event(CmEventKind::Disconnected);
    // What is sent now is answered by nobody; the error state gives it back.
    end.post(SendOp::Send, 0, 4);
    end.with(|fabric, id, qp| fabric.set_error(id, qp).expect("works"));
    assert_eq!(end.completion().status(), WcStatus::Flushed);
    // The name is free again.
    let again = end.fabric.listen(&Endpoint::Shm("child".into()), 1);
    assert!(again.is_ok(), "{:?}", again.err());
}
