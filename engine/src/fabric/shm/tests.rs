//! Lanes against hostile peers, many connections, and threads.
//!
//! ```text
//!  Rig: one fabric, two lanes, connections between them ─► scribbled inboxes, sixteen and more, threads
//! ```
//! What a peer may do to an inbox is done here by writing to the same memory. Run in the unit tests only.

#![allow(unsafe_code, reason = "scribbles over inboxes as a hostile peer would")]

use super::*;
use crate::fabric::{CmEventKind, Lane, PlainWc, RecvWr, SendOp, SendWr, WcStatus, WorkCompletion};
use crate::memory::{Region, Registrar, Registration};
use crate::types::{Lkey, RemoteSpan};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

const PATIENCE: Duration = Duration::from_secs(20);
const BYTES: usize = 1 << 20;

/// The same numbers for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.roll() % n as u64).expect("small")
    }
}

/// One end of a connection.
struct End {
    id: ShmId,
    control: ShmQpControl,
    qp: ShmQp,
    inbox: Arc<Memfd>,
}

struct Rig {
    fabric: Shm,
    lanes: [ShmLane; 2],
    cqs: [ShmCq; 2],
    region: Arc<Region>,
    registration: ShmRegistration,
    _listener: ShmId,
    dir: PathBuf,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Rig {
    fn new(what: &str, shared: u32) -> Self {
        let dir = format!("spinwire-unit-{}-{what}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        let settings = Settings {
            dir: Some(dir.clone()),
            uids: Vec::new(),
        };
        let mut fabric = Shm::open(settings).unwrap();
        let device = fabric.devices().remove(0);
        let spec = LaneSpec {
            cq_depth: 8192,
            events: true,
            shared_recv_depth: shared,
        };
        let mut made = || fabric.create_lane(&device, &spec).unwrap();
        let ((here, here_lane, _), (there, there_lane, _)) = (made(), made());
        let region = Arc::new(Region::shared(BYTES).unwrap());
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let registration = device.register(Arc::clone(&region), access).unwrap();
        let listener = fabric.listen(&Endpoint::Shm("rig".into()), 64).unwrap();
        Self {
            fabric,
            lanes: [here_lane, there_lane],
            cqs: [here, there],
            region,
            registration,
            _listener: listener,
            dir,
        }
    }

    fn event(&mut self, kind: CmEventKind) -> Option<ShmId> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(event) = self.fabric.next_event().unwrap() {
                assert_eq!(event.kind, kind);
                return event.request;
            }
            assert!(Instant::now() < deadline, "awaited {kind:?}");
        }
    }

    fn equip(&mut self, mut id: ShmId, lane: usize, shared: bool) -> End {
        let spec = QpSpec {
            send_depth: 32,
            recv_depth: 32,
            shared_receives: shared,
            inline_bytes: 64,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE,
            windows: 0,
        };
        let made = self.fabric.create_qp(&mut id, &self.cqs[lane], &spec);
        let (control, qp, _) = made.unwrap();
        let inbox = Arc::clone(&control.offer.as_ref().unwrap().inbox);
        End {
            id,
            control,
            qp,
            inbox,
        }
    }

    /// Two ends, each on its lane.
    fn connect(&mut self, shared: bool) -> [End; 2] {
        let params = ConnParams {
            private_data: PrivateData::EMPTY,
            responder_resources: 4,
            initiator_depth: 4,
            retry_count: 7,
            rnr_retry_count: 7,
        };
        let to = Endpoint::Shm("rig".into());
        let id = self.fabric.resolve_address(&to, PATIENCE).unwrap();
        self.event(CmEventKind::AddrResolved);
        let mut active = self.equip(id, 0, shared);
        self.fabric.resolve_route(&mut active.id, PATIENCE).unwrap();
        self.event(CmEventKind::RouteResolved);
        let fabric = &mut self.fabric;
        let asked = fabric.connect(&mut active.id, &mut active.control, &params);
        asked.unwrap();
        let id = self.event(CmEventKind::ConnectRequest).unwrap();
        let mut passive = self.equip(id, 1, shared);
        let fabric = &mut self.fabric;
        let accepted = fabric.accept(&mut passive.id, &mut passive.control, &params);
        accepted.unwrap();
        self.event(CmEventKind::ConnectResponse);
        let fabric = &mut self.fabric;
        let stands = fabric.confirm(&mut active.id, &mut active.control);
        stands.unwrap();
        self.event(CmEventKind::Established);
        [active, passive]
    }

    fn destroy(&mut self, end: End) {
        let mut id = end.id;
        self.fabric.destroy_qp(&mut id, end.control, end.qp);
        self.fabric.destroy_id(id);
    }

    fn addr(&self, offset: usize) -> u64 {
        assert!(offset < BYTES);
        self.region.base().addr().get() as u64 + offset as u64
    }

    fn send(&self, op: SendOp, offset: usize, len: usize) -> SendWr {
        send(self.registration.lkey(), self.addr(offset), op, len)
    }

    fn recv(&self, wr_id: u64, offset: usize) -> RecvWr {
        RecvWr {
            wr_id,
            addr: self.addr(offset),
            len: 4096,
            lkey: self.registration.lkey(),
        }
    }

    fn poll(&mut self, lane: usize) -> Vec<PlainWc> {
        let mut wcs = [ShmLane::blank(); 32];
        let n = self.lanes[lane].poll(&mut wcs);
        wcs[..n].to_vec()
    }
}

fn send(lkey: Lkey, addr: u64, op: SendOp, len: usize) -> SendWr {
    SendWr {
        wr_id: 1 << 40,
        addr,
        len: u32::try_from(len).unwrap(),
        lkey,
        op,
        signalled: true,
        inline: false,
        more: 0,
    }
}

/// As a peer that has the inbox mapped: anything, or what looks like the next cells.
fn scribble(dice: &mut Dice, inbox: &Memfd, near: u64) {
    let word = |at: usize, value: u64| {
        assert!(at + 8 <= inbox.bytes() && at.is_multiple_of(8));
        // SAFETY: `add` requires that the result stays in the mapping: seen above.
        let at = unsafe { inbox.base().add(at) };
        // SAFETY: `from_ptr` requires 8 aligned, mapped bytes, which others access by atomics or by the
        // copy routines: the offset is a multiple of 8, and the lanes do no other.
        unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }.store(value, Ordering::Relaxed);
    };
    match dice.below(4) {
        0 => {
            // The header: progress, refusal, waits, and beyond.
            let value = if dice.below(2) == 0 {
                dice.roll()
            } else {
                dice.roll() % 8
            };
            word(dice.below(24) * 8, value);
        }
        1 => word(dice.below(inbox.bytes() / 8) * 8, dice.roll()),
        _ => {
            // A cell that is due, of some kind and length.
            let sequence = near + dice.roll() % 4;
            let about = match dice.below(3) {
                0 => dice.roll() >> 32,
                1 => (dice.roll() % 6) << 24 | (dice.roll() % 64),
                _ => (dice.roll() % 6) << 24 | (dice.roll() % 20_000) | (dice.roll() % 2) << 27,
            };
            let cell = 4096 + usize::try_from((sequence.wrapping_sub(1)) % 256).unwrap() * 64;
            word(cell + 8, dice.roll());
            word(cell + 16, dice.roll());
            word(cell, about << 32 | (sequence & 0xffff_ffff));
        }
    }
}

#[test]
fn a_peer_that_scribbles_ends_its_connection_and_no_other() {
    let mut rig = Rig::new("scribble", 0);
    let mut honest = rig.connect(false);
    for seed in 1..=120_u64 {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut ends = rig.connect(false);
        let numbers = [0, 1].map(|n: usize| ends[n].control.handle.number);
        // By end: sends and receives that were posted, and those that came back.
        let (mut posted, mut done) = ([0, 0], [0, 0]);
        for step in 0..60 {
            let at = dice.below(2);
            match dice.below(4) {
                0 => {
                    let recv = rig.recv(7, dice.below(100) * 4096);
                    let taken = rig.lanes[at].post_recv(&mut ends[at].qp, &[recv]);
                    posted[at] += u32::from(taken.is_ok());
                }
                1 => {
                    let span = RemoteSpan {
                        addr: rig.addr(0),
                        rkey: rig.registration.rkey(),
                    };
                    let op = match dice.below(4) {
                        0 => SendOp::Write(span),
                        1 => SendOp::Read(span),
                        2 => SendOp::WriteImm(span, 3),
                        _ => SendOp::Send,
                    };
                    let wr = rig.send(op, 8192, dice.below(6000));
                    let taken = rig.lanes[at].post_send(&mut ends[at].qp, &[wr], &[]);
                    posted[at] += u32::from(taken.is_ok());
                }
                2 => scribble(&mut dice, &ends[at].inbox, step / 8 + 1),
                _ => {
                    for wc in rig.poll(at) {
                        assert_eq!(wc.qp_num(), numbers[at]);
                        done[at] += 1;
                    }
                }
            }
        }
        let _ = rig.fabric.next_event();
        for at in [0, 1] {
            let end = &mut ends[at];
            let fabric = &mut rig.fabric;
            fabric.set_error(&mut end.id, &mut end.control).unwrap();
            loop {
                let all = rig.poll(at);
                if all.is_empty() {
                    break;
                }
                done[at] += u32::try_from(all.len()).unwrap();
            }
        }
        assert_eq!(
            posted, done,
            "seed {seed}: each work request completes once"
        );
        for end in ends {
            rig.destroy(end);
        }
        while rig.fabric.next_event().unwrap().is_some() {}
        while rig.fabric.next_async_event().is_some() {}
        // The other connection of the same lanes is none the worse.
        let recv = rig.recv(seed, 0);
        rig.lanes[1].post_recv(&mut honest[1].qp, &[recv]).unwrap();
        let wr = rig.send(SendOp::Send, 8192, 3000);
        rig.lanes[0]
            .post_send(&mut honest[0].qp, &[wr], &[])
            .unwrap();
        let came = rig.poll(1);
        assert_eq!(came.len(), 1);
        assert_eq!((came[0].wr_id(), came[0].byte_len()), (seed, 3000));
        assert!(rig.poll(1).is_empty());
        assert_eq!(rig.poll(0).len(), 1);
    }
    for end in honest {
        rig.destroy(end);
    }
    assert_eq!(rig.fabric.alive(), (0, 1));
}

#[test]
fn more_connections_than_are_hot_are_all_looked_after() {
    for shared in [0, 64] {
        let mut rig = Rig::new(&format!("many{shared}"), shared);
        let mut pairs: Vec<_> = (0..50).map(|_| rig.connect(shared > 0)).collect();
        let mut heard = vec![0_u32; pairs.len()];
        let numbers: Vec<_> = pairs.iter().map(|p| p[1].control.handle.number).collect();
        let rounds = 20;
        for round in 0..rounds {
            for pair in &mut pairs {
                let wr = rig.recv(round, 0);
                let taken = if shared > 0 {
                    rig.lanes[1].post_shared_recv(&[wr])
                } else {
                    rig.lanes[1].post_recv(&mut pair[1].qp, &[wr])
                };
                taken.unwrap();
                let told = SendOp::SendImm(u32::try_from(round).unwrap());
                let wr = rig.send(told, 8192, 100);
                rig.lanes[0].post_send(&mut pair[0].qp, &[wr], &[]).unwrap();
            }
            let deadline = Instant::now() + PATIENCE;
            let (mut come, mut sent) = (0, 0);
            while come < pairs.len() || sent < pairs.len() {
                for wc in rig.poll(1) {
                    let which = numbers.iter().position(|n| *n == wc.qp_num()).unwrap();
                    assert_eq!(wc.note(), crate::fabric::Note::Imm(heard[which]));
                    heard[which] += 1;
                    come += 1;
                }
                for wc in rig.poll(0) {
                    assert!(wc.is_success());
                    sent += 1;
                }
                assert!(Instant::now() < deadline, "{come} came, {sent} are done");
            }
        }
        for [active, passive] in pairs {
            rig.destroy(active);
            rig.destroy(passive);
        }
        assert_eq!(rig.fabric.alive(), (0, 1));
    }
}

/// Two threads that poll, one that registers and forgets memory meanwhile.
#[test]
fn lanes_on_threads_of_their_own() {
    let mut rig = Rig::new("threads", 0);
    let [active, passive] = rig.connect(false);
    let device = rig.fabric.devices().remove(0);
    let (count, len) = (20_000_u64, 300);
    let over = AtomicBool::new(false);
    let lkey = rig.registration.lkey();
    let addr = rig.addr(8192);
    let recv = rig.recv(0, 0);
    let [mut here, mut there] = [active.qp, passive.qp];
    let [lane, other] = &mut rig.lanes;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let region = Region::shared(4096).unwrap();
                let registered = device.register(Arc::new(region), Access::LOCAL_WRITE);
                drop(registered.unwrap());
            }
        });
        let sender = scope.spawn(move || {
            let (mut sent, mut done) = (0, 0);
            let deadline = Instant::now() + PATIENCE;
            while done < count {
                assert!(Instant::now() < deadline, "{sent} sent, {done} done");
                if sent < count {
                    let wr = send(lkey, addr, SendOp::Send, len);
                    sent += u64::from(lane.post_send(&mut here, &[wr], &[]).is_ok());
                }
                let mut wcs = [ShmLane::blank(); 8];
                let n = lane.poll(&mut wcs);
                for wc in &wcs[..n] {
                    assert_eq!(wc.status(), WcStatus::Success);
                    done += 1;
                }
            }
            here
        });
        let receiver = scope.spawn(move || {
            let (mut posted, mut come) = (0, 0);
            let deadline = Instant::now() + PATIENCE;
            while come < count {
                assert!(Instant::now() < deadline, "{posted} posted, {come} came");
                if posted < count {
                    posted += u64::from(other.post_recv(&mut there, &[recv]).is_ok());
                }
                let mut wcs = [ShmLane::blank(); 8];
                let n = other.poll(&mut wcs);
                for wc in &wcs[..n] {
                    assert_eq!((wc.status(), wc.byte_len()), (WcStatus::Success, 300));
                    come += 1;
                }
            }
            // The last are acknowledged by the poll behind them.
            assert_eq!(other.poll(&mut [ShmLane::blank()]), 0);
            there
        });
        let _here = sender.join().unwrap();
        let _there = receiver.join().unwrap();
        over.store(true, Ordering::Relaxed);
    });
}
