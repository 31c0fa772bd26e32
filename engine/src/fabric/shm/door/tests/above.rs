//! Peers that are no fabrics, at one that is: whatever they do with the memory that they were given, and
//! with what they give, costs their own connection at most.
//!
//! ```text
//!  Victim { Shm, lane, QPs }   ◄─ socket, inbox, board, regions ─►   Intruder { Rogue, both inboxes raw }
//! ```
#![allow(unsafe_code, reason = "plays a peer that writes where it can")]

use super::super::frames::{EndWords, FRAME_BYTES, Frame, GrantWords};
use super::hostile::{Rogue, holed, memory, sealed};
use super::{Geometry, PATIENCE, Scratch, params, scratch};
use crate::fabric::shm::inbox::{Inlet, Outlet};
use crate::fabric::shm::registry::{BOARD_BYTES, slot_of};
use crate::fabric::shm::{
    Settings, Shm, ShmCq, ShmId, ShmLane, ShmQp, ShmQpControl, ShmRegistration, maps,
};
use crate::fabric::{
    CmEvent, CmEventKind, Endpoint, Fabric, Lane, LaneSpec, Note, PlainWc, QpSpec, RecvWr, SendOp,
    SendWr, WcOpcode, WcStatus, WorkCompletion,
};
use crate::memory::{Region, Registrar, Registration};
use crate::sys::closing::Foreign;
use crate::sys::memfd::{Memfd, SharedMap};
use crate::sys::seqpacket::{Received, Seqpacket};
use crate::types::{Access, QpNum, RemoteSpan, Rkey};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

const SMALL: Geometry = Geometry {
    cells: 16,
    data_bytes: 4096,
};
const BYTES: usize = 8192;
const DEPTH: u32 = 8;

fn all() -> Access {
    Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC
}

/// A word of memory that is mapped somewhere, by atomics.
fn word(base: NonNull<u8>, bytes: usize, index: usize) -> &'static AtomicU64 {
    assert!(index < bytes / 8);
    // SAFETY: `add` requires that the result stays in the mapping: the index is below its words.
    let at = unsafe { base.add(index * 8) };
    // SAFETY: `from_ptr` requires 8 aligned bytes, used by atomics alone, as long as the reference: the
    // callers keep the map, and whoever else uses the memory does it by atomics or behind the compiler's back.
    unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }
}

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 20).unwrap() % below
    }
}

type Qp = (ShmId, ShmQpControl, ShmQp);

/// A fabric that listens, and whoever comes is let in.
struct Victim {
    fabric: Shm,
    lane: ShmLane,
    cq: ShmCq,
    region: Arc<Region>,
    registration: ShmRegistration,
    _listener: ShmId,
    /// What its QPs allow.
    access: Access,
    events: Vec<CmEvent<ShmId>>,
    done: Vec<PlainWc>,
    dir: Scratch,
}

impl Victim {
    fn new(name: &str) -> Self {
        let dir = scratch(name);
        let settings = Settings {
            dir: Some(dir.to_path_buf()),
            uids: Vec::new(),
        };
        let mut fabric = Shm::open(settings).unwrap();
        let device = fabric.devices().remove(0);
        let spec = LaneSpec {
            cq_depth: 256,
            events: true,
            shared_recv_depth: 0,
        };
        let (cq, lane, _) = fabric.create_lane(&device, &spec).unwrap();
        let region = Arc::new(Region::shared(BYTES).unwrap());
        let rights = all() | Access::LOCAL_WRITE;
        let registration = device.register(Arc::clone(&region), rights).unwrap();
        let listener = fabric.listen(&Endpoint::Shm("name".into()), 8).unwrap();
        Self {
            fabric,
            lane,
            cq,
            region,
            registration,
            _listener: listener,
            access: all(),
            events: Vec::new(),
            done: Vec::new(),
            dir,
        }
    }

    fn pump(&mut self) {
        while let Some(event) = self.fabric.next_event().unwrap() {
            self.events.push(event);
        }
        self.lane.drain_events();
        let mut wcs = [ShmLane::blank(); 16];
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
            sleep(Duration::from_micros(50));
        }
    }

    fn event(&mut self, kind: CmEventKind) -> CmEvent<ShmId> {
        let event = self.until(&format!("{kind:?}"), |v| {
            (!v.events.is_empty()).then(|| v.events.remove(0))
        });
        assert_eq!(event.kind, kind, "status {}", event.status);
        event
    }

    fn completion(&mut self) -> PlainWc {
        self.until("a completion", |v| {
            (!v.done.is_empty()).then(|| v.done.remove(0))
        })
    }

    fn statuses(&mut self, count: usize) -> Vec<WcStatus> {
        (0..count).map(|_| self.completion().status()).collect()
    }

    fn addr(&self) -> u64 {
        self.region.base().addr().get() as u64
    }

    fn receive(&mut self, qp: &mut Qp, len: u32) {
        let wr = RecvWr {
            wr_id: 1,
            addr: self.addr(),
            len,
            lkey: self.registration.lkey(),
        };
        self.lane.post_recv(&mut qp.2, &[wr]).unwrap();
    }

    fn post(&mut self, qp: &mut Qp, op: SendOp, len: u32) {
        let wr = SendWr {
            wr_id: 2,
            addr: self.addr(),
            len,
            lkey: self.registration.lkey(),
            op,
            signalled: true,
            inline: false,
            more: 0,
        };
        self.lane.post_send(&mut qp.2, &[wr], &[]).unwrap();
    }

    fn admit(&mut self) -> Qp {
        let event = self.event(CmEventKind::ConnectRequest);
        let mut id = event.request.expect("an id");
        let spec = QpSpec {
            send_depth: DEPTH,
            recv_depth: DEPTH,
            shared_receives: false,
            inline_bytes: 0,
            access: self.access,
            windows: 0,
        };
        let made = self.fabric.create_qp(&mut id, &self.cq, &spec).unwrap();
        let (mut control, qp, _) = made;
        let accepted = self.fabric.accept(&mut id, &mut control, &params(b""));
        accepted.unwrap();
        (id, control, qp)
    }

    /// Ends a connection, and gives what was on its queues.
    fn end(&mut self, (mut id, mut control, qp): Qp) {
        self.fabric.set_error(&mut id, &mut control).unwrap();
        (0..20).for_each(|_| self.pump());
        self.fabric.destroy_qp(&mut id, control, qp);
        self.fabric.destroy_id(id);
        self.pump();
    }
}

/// A peer with its hands on everything that it was given.
struct Intruder {
    rogue: Rogue,
    /// Where the victim puts its messages.
    ours: Arc<Memfd>,
    inlet: Inlet,
    board: Memfd,
    /// The victim's inbox, for who is honest and for who is not.
    outlet: Outlet,
    inbox: SharedMap,
    inbox_fd: OwnedFd,
}

impl Intruder {
    fn enter(v: &mut Victim) -> (Self, Qp) {
        let rogue = Rogue(Seqpacket::connect(&v.dir.join("name")).unwrap());
        let ours = Arc::new(Memfd::create("rogue", SMALL.bytes()).unwrap());
        let board = Memfd::create("rogue", BOARD_BYTES).unwrap();
        let end = EndWords {
            qp: QpNum(1),
            access: all(),
            geometry: SMALL,
            board_bytes: BOARD_BYTES,
            bell: false,
            id: 1,
            params: params(b"rogue"),
        };
        let fds = [ours.fd(), board.fd()];
        rogue.0.send(&Frame::Request(end).encode(), &fds).unwrap();
        let qp = v.admit();
        let (frame, fds) = hears(&rogue, v).expect("an answer");
        let Frame::Accept(end) = frame else {
            panic!("{frame:?}");
        };
        let mut fds = fds.into_iter().map(Foreign::trusted);
        let inbox_fd = fds.next().expect("an inbox");
        // Before it is sealed, it can be full of holes.
        punch(&inbox_fd, end.geometry.bytes()).unwrap();
        let map = || {
            let fd = inbox_fd.try_clone().unwrap();
            whole(&fd, end.geometry.bytes());
            SharedMap::of(fd, end.geometry.bytes(), true).unwrap()
        };
        let (inbox, outlet) = (map(), maps::theirs(map(), end.geometry).unwrap());
        rogue.says(&Frame::Mapped, &[]);
        let sealed = hears(&rogue, v).expect("an answer");
        assert_eq!(sealed.0, Frame::Sealed);
        rogue.says(&Frame::Confirm, &[]);
        v.event(CmEventKind::Established);
        let inlet = Inlet::new(maps::ours(&ours, SMALL).unwrap());
        let intruder = Self {
            rogue,
            ours,
            inlet,
            board,
            outlet: Outlet::new(outlet),
            inbox,
            inbox_fd,
        };
        (intruder, qp)
    }

    /// Sends as an honest peer does.
    fn push(&mut self, bytes: &[u8]) {
        let len = u32::try_from(bytes.len()).unwrap();
        let ack = self.inlet.ack();
        let fill = |to: *mut u8, len: usize| {
            // SAFETY: `push` gives a place for `len` bytes, which is not more than there are.
            unsafe { to.copy_from(bytes.as_ptr(), len) };
        };
        assert_eq!(self.outlet.push(Note::None, ack, len, fill), Ok(len));
    }

    /// Takes all that has come, as an honest peer does.
    fn take(&mut self) -> usize {
        let mut taken = 0;
        while let Ok(Some(head)) = self.inlet.peek() {
            self.inlet.consume(head);
            taken += 1;
        }
        self.inlet.publish();
        taken
    }

    /// Asks for a region of the victim's.
    fn ask(&self, v: &mut Victim, rkey: Rkey) -> Option<(GrantWords, OwnedFd)> {
        self.rogue.says(&Frame::Ask(rkey), &[]);
        let (frame, fds) = hears(&self.rogue, v).expect("an answer");
        let Frame::Grant(of, words) = frame else {
            panic!("{frame:?}");
        };
        assert_eq!(of, rkey);
        Some((words?, fds.into_iter().next().expect("one").trusted()))
    }

    /// Marks a key as in use, or not.
    fn marks(&self, rkey: Rkey, mark: u32) {
        let slot = slot_of(rkey.0);
        let word = word(self.board.base(), BOARD_BYTES, slot / 2);
        let mark = u64::from(mark);
        word.store(mark << 32 | mark, Ordering::Release);
    }

    /// Is asked for a region, and grants it.
    fn grants(&self, v: &mut Victim, rkey: Rkey, bytes: usize, access: Access, fd: &OwnedFd) {
        let (frame, _) = hears(&self.rogue, v).expect("a question");
        assert_eq!(frame, Frame::Ask(rkey));
        let words = GrantWords {
            base: 0,
            len: bytes as u64,
            map_bytes: bytes,
            access,
        };
        self.rogue.says(&Frame::Grant(rkey, Some(words)), &[fd]);
    }
}

/// What the victim says next; `None` when it hangs up.
fn hears(rogue: &Rogue, v: &mut Victim) -> Option<(Frame, Vec<Foreign>)> {
    v.until("a frame", |_| {
        let mut bytes = [0; FRAME_BYTES];
        match rogue.0.recv(&mut bytes).unwrap() {
            Received::Frame { len, fds } => Some(Some((Frame::parse(&bytes[..len]).unwrap(), fds))),
            Received::Closed => Some(None),
            Received::Nothing => None,
            Received::Cut => panic!("the fabric sent too much"),
        }
    })
}

fn punch(fd: impl AsFd, bytes: usize) -> rustix::io::Result<()> {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(fd, hole, 0, bytes as u64)
}

fn whole(fd: impl AsFd, bytes: usize) {
    rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, bytes as u64).unwrap();
}

fn flushed(count: usize) -> Vec<WcStatus> {
    vec![WcStatus::Flushed; count]
}

#[test]
fn an_honest_intruder_is_served() {
    let mut v = Victim::new("above");
    let (mut peer, mut qp) = Intruder::enter(&mut v);
    for len in [1, 48, 200] {
        v.receive(&mut qp, 300);
        peer.push(&vec![9; len]);
        let wc = v.completion();
        assert_eq!(wc.status(), WcStatus::Success);
        assert_eq!(wc.byte_len() as usize, len);
        v.post(&mut qp, SendOp::Send, 100);
        v.pump();
        assert_eq!(peer.take(), 1);
        assert_eq!(v.completion().status(), WcStatus::Success);
    }
    // Sealed, the inbox has no more holes punched into it, and ends where it did.
    assert!(punch(&peer.inbox_fd, 4096).is_err());
    assert!(rustix::fs::ftruncate(&peer.inbox_fd, 0).is_err());
    v.end(qp);
}

#[test]
fn scribbles_cost_the_connection_alone() {
    let mut v = Victim::new("scribbles");
    let (mut honest, mut good) = Intruder::enter(&mut v);
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for round in 0..40 {
        let (peer, mut qp) = Intruder::enter(&mut v);
        let mut posted = 0;
        for step in 0..200 {
            if step < 4 {
                v.receive(&mut qp, 1000);
                v.post(&mut qp, SendOp::Send, 100);
                posted += 2;
            }
            for _ in 0..dice.roll(4) {
                // Where the victim reads, near the heads of both rings most of the time.
                let (base, bytes) = if dice.roll(2) == 0 {
                    (peer.inbox.base(), peer.inbox.bytes())
                } else {
                    (peer.ours.base(), peer.ours.bytes())
                };
                let index = match dice.roll(3) {
                    0 => dice.roll(bytes / 8),
                    1 => dice.roll(20),
                    _ => 512 + dice.roll(64),
                };
                let value = match dice.roll(4) {
                    0 => u64::MAX,
                    1 => dice.0,
                    2 => (dice.roll(16) as u64) | 1 << 56 | (dice.roll(5000) as u64) << 32,
                    _ => dice.roll(20) as u64,
                };
                word(base, bytes, index).store(value, Ordering::Release);
            }
            v.pump();
        }
        // Others are served meanwhile.
        let before = v.done.len();
        v.receive(&mut good, 100);
        honest.push(&[1; 10]);
        v.until("a message of the honest one", |v| {
            let of = |wc: &PlainWc| wc.status() == WcStatus::Success && wc.byte_len() == 10;
            v.done.iter().any(of).then_some(())
        });
        assert!(v.done.len() > before, "round {round}");
        v.end(qp);
        // What was posted completed once, by a lie or by a flush.
        assert_eq!(v.done.len(), posted + 1, "round {round}");
        v.done.clear();
        v.events.clear();
    }
    v.end(good);
    assert_eq!(v.fabric.alive(), (0, 1));
}

#[test]
fn lengths_that_lie_end_the_connection() {
    let mut v = Victim::new("lengths");
    let kind = |kind: u64, len: u64, more: u64| (kind << 56 | more << 59 | len << 32) | 1;
    let fragment = u64::from(Geometry::DEFAULT.fragment_bytes());
    let lies = [
        (kind(1, fragment + 1, 0), 0),
        (kind(1, (1 << 24) - 1, 0), 0),
        (kind(1, 100, 1), 0),
        (kind(0, 0, 0), 0),
        (kind(7, 0, 0), 0),
        (kind(4, 5, 0), 0),
        (kind(4, 0, 0), 1 << 40),
        (u64::MAX << 32 | 1, 0),
    ];
    for (first, third) in lies {
        let (peer, mut qp) = Intruder::enter(&mut v);
        (0..3).for_each(|_| v.receive(&mut qp, 1000));
        let cell = |n: usize| word(peer.inbox.base(), peer.inbox.bytes(), 512 + n);
        cell(2).store(third, Ordering::Relaxed);
        cell(0).store(first, Ordering::Release);
        assert_eq!(v.statuses(3), flushed(3), "{first:x}");
        let told = v.fabric.next_async_event().expect("an event");
        assert!(told.fatal);
        v.end(qp);
    }
    // One that is longer than its receive, and says so in pieces that are as they must be.
    let (peer, mut qp) = Intruder::enter(&mut v);
    (0..2).for_each(|_| v.receive(&mut qp, 1000));
    let cell = word(peer.inbox.base(), peer.inbox.bytes(), 512);
    cell.store(kind(1, fragment, 1), Ordering::Release);
    let statuses = v.statuses(2);
    assert_eq!(statuses, [WcStatus::LocalLength, WcStatus::Flushed]);
    v.end(qp);
}

#[test]
fn who_may_not_write_does_not_say_that_it_wrote() {
    let mut v = Victim::new("notices");
    for allowed in [true, false] {
        if !allowed {
            v.access = all().without(Access::REMOTE_WRITE);
        }
        let (mut peer, mut qp) = Intruder::enter(&mut v);
        (0..2).for_each(|_| v.receive(&mut qp, 1000));
        let ack = peer.inlet.ack();
        assert_eq!(peer.outlet.push_written(7, ack, 5), Ok(()));
        if allowed {
            let wc = v.completion();
            assert_eq!(
                (wc.opcode(), wc.note()),
                (WcOpcode::RecvWriteImm, Note::Imm(7))
            );
        } else {
            assert_eq!(v.statuses(2), flushed(2));
            assert!(v.fabric.next_async_event().expect("an event").fatal);
        }
        v.end(qp);
        v.done.clear();
    }
}

#[test]
fn a_key_that_is_stale_opens_nothing() {
    let mut v = Victim::new("stale-key");
    let (peer, qp) = Intruder::enter(&mut v);
    let rkey = v.registration.rkey();
    let (words, fd) = peer.ask(&mut v, rkey).expect("granted");
    let map = SharedMap::of(fd, words.map_bytes, true).unwrap();
    // The board names the keys of nobody.
    let (_, board) = {
        let (other, other_qp) = Intruder::enter(&mut v);
        v.end(other_qp);
        (other, v.fabric.registry.board().base())
    };
    for slot in 0..BOARD_BYTES / 8 {
        let pair = word(board, BOARD_BYTES, slot).load(Ordering::Acquire);
        let halves = [pair >> 32, pair & u64::from(u32::MAX)];
        assert!(!halves.contains(&u64::from(rkey.0)));
    }
    // Its memory goes to nobody else, whatever a peer holds of it.
    let device = v.fabric.devices().remove(0);
    let fresh = Arc::new(Region::shared(BYTES).unwrap());
    let rights = all() | Access::LOCAL_WRITE;
    let next = device.register(Arc::clone(&fresh), rights).unwrap();
    let old = std::mem::replace(&mut v.registration, next);
    drop(old);
    v.region = fresh;
    assert!(peer.ask(&mut v, rkey).is_none());
    word(map.base(), map.bytes(), 0).store(0x0bad, Ordering::Release);
    let now = word(v.region.base(), BYTES, 0).load(Ordering::Acquire);
    assert_eq!(now, 0);
    v.end(qp);
}

#[test]
fn a_key_that_the_peer_took_back_is_not_used() {
    let mut v = Victim::new("taken-back");
    let (peer, mut qp) = Intruder::enter(&mut v);
    let theirs = sealed(BYTES);
    let rkey = Rkey(5);
    let span = RemoteSpan { addr: 0, rkey };
    peer.marks(rkey, 7);
    v.post(&mut qp, SendOp::Write(span), 8);
    peer.grants(&mut v, rkey, BYTES, all(), &theirs);
    assert_eq!(v.completion().status(), WcStatus::Success);
    let map = SharedMap::of(theirs, BYTES, false).unwrap();
    peer.marks(rkey, 0);
    word(v.region.base(), BYTES, 0).store(77, Ordering::Release);
    v.post(&mut qp, SendOp::Write(span), 8);
    assert_eq!(v.completion().status(), WcStatus::RemoteAccess);
    assert_eq!(word(map.base(), BYTES, 0).load(Ordering::Acquire), 0);
    v.end(qp);
}

#[test]
fn a_grant_for_reading_is_not_written_by_any_way() {
    let mut v = Victim::new("read-only");
    let (peer, qp) = Intruder::enter(&mut v);
    let region = Arc::new(Region::shared(BYTES).unwrap());
    let device = v.fabric.devices().remove(0);
    let registered = device.register(Arc::clone(&region), Access::REMOTE_READ);
    let registered = registered.unwrap();
    let (words, fd) = peer.ask(&mut v, registered.rkey()).expect("granted");
    assert_eq!(words.access, Access::REMOTE_READ);
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let refuses = |fd: OwnedFd| {
        assert!(rustix::io::pwrite(&fd, &[1], 0).is_err());
        assert!(punch(&fd, 4096).is_err());
        assert!(rustix::fs::ftruncate(&fd, 0).is_err());
        assert!(SharedMap::of(fd, words.map_bytes, true).is_err());
    };
    refuses(fd.try_clone().unwrap());
    // Its owner may change the mode, and root needs not; then the seals hold.
    for mode in [Mode::RUSR, Mode::RUSR | Mode::WUSR] {
        let _ = rustix::fs::chmod(&path, mode);
        for flags in [OFlags::RDWR, OFlags::WRONLY, OFlags::RDWR | OFlags::TRUNC] {
            if let Ok(again) = rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty()) {
                refuses(again);
            }
        }
    }
    assert_eq!(word(region.base(), BYTES, 0).load(Ordering::Acquire), 0);
    v.end(qp);
}

#[test]
fn holes_in_memory_that_a_peer_may_write_read_as_zeros() {
    let mut v = Victim::new("holes");
    let (mut peer, mut qp) = Intruder::enter(&mut v);
    let rkey = v.registration.rkey();
    let (words, fd) = peer.ask(&mut v, rkey).expect("granted");
    word(v.region.base(), BYTES, 0).store(77, Ordering::Release);
    punch(&fd, words.map_bytes).unwrap();
    assert_eq!(word(v.region.base(), BYTES, 0).load(Ordering::Acquire), 0);
    for bytes in [0, 4096, 1 << 20] {
        assert!(rustix::fs::ftruncate(&fd, bytes).is_err());
    }
    for seal in [SealFlags::WRITE, SealFlags::FUTURE_WRITE, SealFlags::SEAL] {
        assert!(rustix::fs::fcntl_add_seals(&fd, seal).is_err());
    }
    // It is used as before, by the lane too.
    v.receive(&mut qp, 100);
    peer.push(&[5; 8]);
    assert_eq!(v.completion().status(), WcStatus::Success);
    // In the peer's own memory as well, in plain pages.
    let theirs = sealed(BYTES);
    let (rkey, addr) = (Rkey(5), 0);
    peer.marks(rkey, 7);
    v.post(&mut qp, SendOp::Write(RemoteSpan { addr, rkey }), 8);
    peer.grants(&mut v, rkey, BYTES, all(), &theirs);
    assert_eq!(v.completion().status(), WcStatus::Success);
    punch(&theirs, BYTES).unwrap();
    v.post(&mut qp, SendOp::Read(RemoteSpan { addr, rkey }), 8);
    assert_eq!(v.completion().status(), WcStatus::Success);
    assert_eq!(word(v.region.base(), BYTES, 0).load(Ordering::Acquire), 0);
    v.end(qp);
}

#[test]
fn regions_that_are_no_memory_end_the_connection() {
    let mut v = Victim::new("no-memory");
    let size = SealFlags::SHRINK | SealFlags::GROW;
    let mut lies = vec![
        (BYTES, holed(sealed(BYTES))),
        (BYTES, sealed(BYTES - 1)),
        (BYTES, memory(BYTES, MemfdFlags::empty(), SealFlags::GROW)),
        (BYTES, std::fs::File::open("/dev/zero").unwrap().into()),
    ];
    // Where the host has huge pages, and where it has none to give.
    let huge = MemfdFlags::HUGETLB | MemfdFlags::ALLOW_SEALING;
    if let Ok(fd) = rustix::fs::memfd_create("huge", huge)
        && rustix::fs::ftruncate(&fd, 2 << 20).is_ok()
        && rustix::fs::fcntl_add_seals(&fd, size).is_ok()
    {
        lies.push((2 << 20, fd));
    }
    for (bytes, fd) in lies {
        let (peer, mut qp) = Intruder::enter(&mut v);
        let (addr, rkey) = (0, Rkey(5));
        peer.marks(rkey, 7);
        v.post(&mut qp, SendOp::Write(RemoteSpan { addr, rkey }), 8);
        peer.grants(&mut v, rkey, bytes, all(), &fd);
        let event = v.event(CmEventKind::Disconnected);
        assert_eq!(event.status, -libc::EPROTO);
        v.end(qp);
        // Nobody answers what was asked any more.
        assert_eq!(v.statuses(1), [WcStatus::RetryExceeded]);
    }
}

#[test]
fn regions_that_come_and_go_are_unmapped() {
    const NAME: &str = "rogue-come-and-go";
    let mut v = Victim::new("come-and-go");
    let (peer, mut qp) = Intruder::enter(&mut v);
    for n in 1..=300 {
        let region = Memfd::create(NAME, 4096).unwrap();
        let theirs = region.fd().try_clone_to_owned().unwrap();
        drop(region);
        let (addr, rkey) = (0, Rkey(n << 12 | 5));
        peer.marks(rkey, 7);
        v.post(&mut qp, SendOp::Write(RemoteSpan { addr, rkey }), 8);
        peer.grants(&mut v, rkey, 4096, all(), &theirs);
        assert_eq!(v.completion().status(), WcStatus::Success);
        if n % 3 == 0 {
            peer.marks(rkey, 0);
        }
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let count = maps.lines().filter(|line| line.contains(NAME)).count();
    assert!(count <= 70, "{count} maps");
    v.end(qp);
}

#[test]
fn handshakes_that_die_half_way_leave_nothing() {
    const NAME: &str = "rogue-that-dies";
    let mut v = Victim::new("half-way");
    let memory = |bytes: usize| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(NAME, flags).unwrap();
        rustix::fs::ftruncate(&fd, bytes as u64).unwrap();
        whole(&fd, bytes);
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        fd
    };
    let end = EndWords {
        qp: QpNum(1),
        access: all(),
        geometry: SMALL,
        board_bytes: BOARD_BYTES,
        bell: false,
        id: 1,
        params: params(b"rogue"),
    };
    for round in 0..40 {
        let rogue = Rogue(Seqpacket::connect(&v.dir.join("name")).unwrap());
        let fds = [&memory(SMALL.bytes()), &memory(BOARD_BYTES)];
        rogue.says(&Frame::Request(end), &fds);
        match round % 4 {
            // Before the request is looked at, and before it is answered.
            0 => drop(rogue),
            1 => {
                v.pump();
                drop(rogue);
            }
            // With the answer in its hands, before it says that it has mapped it, and after.
            stage => {
                let qp = v.admit();
                let answer = hears(&rogue, &mut v);
                assert!(matches!(answer, Some((Frame::Accept(_), _))));
                if stage == 3 {
                    rogue.says(&Frame::Mapped, &[]);
                    v.pump();
                }
                drop((answer, rogue));
                v.event(CmEventKind::ConnectError);
                v.end(qp);
                continue;
            }
        }
        let event = v.event(CmEventKind::ConnectRequest);
        let id = event.request.expect("an id");
        v.fabric.destroy_id(id);
    }
    (0..10).for_each(|_| v.pump());
    assert_eq!(v.fabric.alive(), (0, 1));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains(NAME), "still mapped");
    let kept = || {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let mut links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        links.any(|link| link.to_string_lossy().contains(NAME))
    };
    let deadline = Instant::now() + PATIENCE;
    while kept() {
        assert!(Instant::now() < deadline, "still open");
        sleep(Duration::from_millis(1));
    }
}
