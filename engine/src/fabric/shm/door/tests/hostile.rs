//! Peers that are no doors: they lie about their memory, speak out of turn, flood, and say nothing.

use super::super::frames::{EndWords, FRAME_BYTES, Frame, GrantWords, Reason};
use super::super::link::ASKS_MAX;
use super::*;
use crate::sys::bell::Bell;
use crate::sys::seqpacket::{FDS_MAX, Received, Seqpacket};
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::{AsFd, OwnedFd};

/// A socket and the will to misuse it.
pub(super) struct Rogue(pub(super) Seqpacket);

impl Rogue {
    pub(super) fn says(&self, frame: &Frame, fds: &[&OwnedFd]) {
        self.says_bytes(&frame.encode(), fds);
    }

    pub(super) fn says_bytes(&self, bytes: &[u8], fds: &[&OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        // The door may have hung up.
        let _ = self.0.send(bytes, &fds);
    }

    /// What the door says next; `None` when it hangs up.
    fn hears(&self, m: &mut Meeting) -> Option<Frame> {
        let deadline = Instant::now() + PATIENCE;
        let mut bytes = [0; FRAME_BYTES];
        loop {
            m.pump();
            match self.0.recv(&mut bytes).unwrap() {
                Received::Frame { len, .. } => return Some(Frame::parse(&bytes[..len]).unwrap()),
                Received::Closed => return None,
                Received::Nothing => sleep(Duration::from_micros(200)),
                Received::Cut => panic!("the door sent too much"),
            }
            assert!(Instant::now() < deadline, "the door says nothing");
        }
    }

    /// The door refuses and hangs up.
    fn is_turned_away(&self, m: &mut Meeting, reason: Reason) {
        let reject = Frame::Reject(reason, PrivateData::EMPTY);
        assert_eq!(self.hears(m), Some(reject));
        assert_eq!(self.hears(m), None);
    }
}

fn end() -> EndWords {
    EndWords {
        qp: QpNum(1),
        access: Access::NONE,
        geometry: SMALL,
        board_bytes: BOARD_BYTES,
        bell: false,
        id: 1,
        params: params(b"rogue"),
    }
}

/// Memory as it should be, or not.
pub(super) fn memory(bytes: usize, flags: MemfdFlags, seals: SealFlags) -> OwnedFd {
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("rogue", flags).unwrap();
    rustix::fs::ftruncate(&fd, bytes as u64).unwrap();
    if bytes > 0 {
        let whole = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&fd, whole, 0, bytes as u64).unwrap();
    }
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// Takes a page out of it.
pub(super) fn holed(fd: OwnedFd) -> OwnedFd {
    use rustix::fs::FallocateFlags;
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&fd, hole, 0, 4096).unwrap();
    fd
}

pub(super) fn sealed(bytes: usize) -> OwnedFd {
    memory(
        bytes,
        MemfdFlags::empty(),
        SealFlags::SHRINK | SealFlags::GROW,
    )
}

fn read_only(fd: &OwnedFd) -> OwnedFd {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    std::fs::File::open(path).unwrap().into()
}

fn inbox() -> OwnedFd {
    sealed(SMALL.bytes())
}

fn board() -> OwnedFd {
    sealed(BOARD_BYTES)
}

/// Connects to the listener.
fn caller(m: &Meeting) -> Rogue {
    Rogue(Seqpacket::connect(&m.dir.join("name")).unwrap())
}

/// A rogue that a door has asked for a connection, and may answer.
fn callee(m: &mut Meeting, name: &str) -> Rogue {
    let listener = Seqpacket::listen(&m.dir.join(name), 4).unwrap();
    let door = m.door(Side::Active);
    let key = door.dial(name).unwrap();
    door.route(key).unwrap();
    door.connect(key, offer(), &params(b"")).unwrap();
    m.keys[0] = key;
    m.hears(Side::Active, CmEventKind::AddrResolved, 0);
    m.hears(Side::Active, CmEventKind::RouteResolved, 0);
    let rogue = Rogue(listener.accept().unwrap().expect("the door has called"));
    assert!(matches!(rogue.hears(m), Some(Frame::Request(_))));
    std::fs::remove_file(m.dir.join(name)).unwrap();
    rogue
}

/// A rogue that is connected to the passive door as if it were honest.
fn connected(m: &mut Meeting) -> Rogue {
    let rogue = caller(m);
    rogue.says(&Frame::Request(end()), &[&inbox(), &board()]);
    m.asked();
    m.accept(offer());
    assert!(matches!(rogue.hears(m), Some(Frame::Accept(_))));
    rogue.says(&Frame::Mapped, &[]);
    assert_eq!(rogue.hears(m), Some(Frame::Sealed));
    rogue.says(&Frame::Confirm, &[]);
    m.established();
    rogue
}

#[test]
fn an_honest_rogue_is_served() {
    let mut m = Meeting::new("honest");
    let rogue = connected(&mut m);
    m.disconnect(Side::Passive).unwrap();
    assert_eq!(rogue.hears(&mut m), Some(Frame::Disconnect));
    rogue.says(&Frame::Disconnect, &[]);
    m.hears(Side::Passive, CmEventKind::Disconnected, 0);
}

/// Every lie about the memory of an end: the descriptors, and whether a bell is promised.
fn lies() -> Vec<(&'static str, bool, Vec<OwnedFd>)> {
    let none = MemfdFlags::empty();
    let (shrink, grow) = (SealFlags::SHRINK, SealFlags::GROW);
    let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let (_bell, bell) = Bell::new().unwrap();
    let future = shrink | grow | SealFlags::FUTURE_WRITE;
    let mut lies = vec![
        ("no descriptors", false, vec![]),
        ("one descriptor", false, vec![inbox()]),
        ("three descriptors", false, vec![inbox(), board(), board()]),
        ("no bell", true, vec![inbox(), board()]),
        ("a bell that is none", true, vec![inbox(), board(), file()]),
        ("in another order", true, vec![bell, inbox(), board()]),
        ("swapped", false, vec![board(), inbox()]),
        ("a file", false, vec![file(), board()]),
        ("no board", false, vec![inbox(), file()]),
        (
            "a short inbox",
            false,
            vec![sealed(SMALL.bytes() - 1), board()],
        ),
        (
            "a long inbox",
            false,
            vec![sealed(SMALL.bytes() + 4096), board()],
        ),
        ("an empty board", false, vec![inbox(), sealed(0)]),
        (
            "an unsealed inbox",
            false,
            vec![memory(SMALL.bytes(), none, SealFlags::empty()), board()],
        ),
        (
            "one that grows",
            false,
            vec![memory(SMALL.bytes(), none, shrink), board()],
        ),
        (
            "one that shrinks",
            false,
            vec![memory(SMALL.bytes(), none, grow), board()],
        ),
        ("an inbox with a hole", false, vec![holed(inbox()), board()]),
        ("a board of nothing", false, vec![inbox(), holed(board())]),
        (
            "a board that shrinks",
            false,
            vec![inbox(), memory(BOARD_BYTES, none, grow)],
        ),
        (
            "an inbox for reading",
            false,
            vec![read_only(&inbox()), board()],
        ),
        (
            "an inbox sealed too early",
            false,
            vec![memory(SMALL.bytes(), none, future), board()],
        ),
    ];
    // What the largest pages cannot be, the others may be; where the host has none, the kind is the same.
    let huge = MemfdFlags::HUGETLB | MemfdFlags::ALLOW_SEALING;
    if let Ok(fd) = rustix::fs::memfd_create("huge", huge)
        && rustix::fs::ftruncate(&fd, 2 << 20).is_ok()
        && rustix::fs::fcntl_add_seals(&fd, shrink | grow).is_ok()
    {
        lies.push(("huge pages", false, vec![fd, board()]));
    }
    lies
}

#[test]
fn requests_that_lie_are_turned_away() {
    let mut m = Meeting::new("lies");
    for (what, bell, fds) in lies() {
        let rogue = caller(&m);
        let fds: Vec<_> = fds.iter().collect();
        rogue.says(&Frame::Request(EndWords { bell, ..end() }), &fds);
        println!("{what}");
        rogue.is_turned_away(&mut m, Reason::Unsupported);
    }
    m.silence();
    assert!(m.door(Side::Passive).links.is_empty());
    m.reach(Stage::Up);
}

#[test]
fn answers_that_lie_end_the_attempt() {
    let mut m = Meeting::new("lying-answers");
    for (what, bell, fds) in lies() {
        let rogue = callee(&mut m, "rogue");
        let fds: Vec<_> = fds.iter().collect();
        rogue.says(&Frame::Accept(EndWords { bell, ..end() }), &fds);
        println!("{what}");
        m.hears(Side::Active, CmEventKind::ConnectError, -libc::EPROTO);
        rogue.is_turned_away(&mut m, Reason::Unsupported);
        m.destroy(Side::Active);
    }
    m.silence();
}

#[test]
fn a_peer_cannot_make_the_door_wait_for_a_close() {
    use crate::sys::closing::slow;
    let mut m = Meeting::new("slow-close");
    let (refused, kept) = slow::descriptor();
    let (unread, kept_too) = slow::descriptor();
    let rogue = caller(&m);
    rogue.says(&Frame::Request(end()), &[&inbox(), &refused]);
    rogue.says(&Frame::Request(end()), &[&inbox(), &unread]);
    drop((refused, unread));
    slow::is_quick(|| rogue.is_turned_away(&mut m, Reason::Unsupported));
    slow::is_quick(|| m.reach(Stage::Up));
    drop((kept, kept_too));
}

#[test]
fn what_is_no_request_is_turned_away() {
    let mut m = Meeting::new("nonsense");
    let good = Frame::Request(end()).encode();
    let mut other_version = good;
    other_version[4] = 9;
    let mut other_layout = good;
    other_layout[9] ^= 1;
    let mut longer = other_version.to_vec();
    longer.resize(200, 7);
    let mut lies = good;
    lies[28] = 17; // cells
    let unsupported: [&[u8]; 6] = [
        b"GET / HTTP/1.1",
        &good[..FRAME_BYTES - 1],
        &[0; FRAME_BYTES],
        &lies,
        &[1; 1000],
        &Frame::Mapped.encode(),
    ];
    for bytes in unsupported {
        let rogue = caller(&m);
        rogue.says_bytes(bytes, &[&inbox(), &board()]);
        rogue.is_turned_away(&mut m, Reason::Unsupported);
    }
    for bytes in [&other_version[..], &other_layout[..], &longer[..]] {
        let rogue = caller(&m);
        rogue.says_bytes(bytes, &[&inbox(), &board()]);
        rogue.is_turned_away(&mut m, Reason::Version);
    }
    // An empty message is a hang-up.
    let rogue = caller(&m);
    rogue.says_bytes(&[], &[]);
    assert_eq!(rogue.hears(&mut m), None);
    m.silence();
    m.reach(Stage::Up);
}

#[test]
fn descriptors_that_do_not_fit_are_refused() {
    let mut m = Meeting::new("ctrunc");
    let rogue = caller(&m);
    let fds: Vec<_> = (0..FDS_MAX * 4).map(|_| board()).collect();
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX * 4))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
    let bytes = Frame::Request(end()).encode();
    let frame = [io::IoSlice::new(&bytes)];
    let flags = rustix::net::SendFlags::empty();
    rustix::net::sendmsg(&rogue.0, &frame, &mut control, flags).unwrap();
    rogue.is_turned_away(&mut m, Reason::Unsupported);
    m.silence();
}

#[test]
fn a_version_that_an_end_does_not_speak_is_named() {
    let mut m = Meeting::new("version");
    let rogue = callee(&mut m, "rogue");
    let mut reject = Frame::Reject(Reason::Version, PrivateData::EMPTY).encode();
    reject[4] = 9;
    rogue.says_bytes(&reject, &[]);
    m.hears(Side::Active, CmEventKind::Rejected, 31);
}

#[test]
fn frames_out_of_order_end_the_connection() {
    let frames = [
        Frame::Request(end()),
        Frame::Accept(end()),
        Frame::Mapped,
        Frame::Sealed,
        Frame::Confirm,
        Frame::Disconnect,
        Frame::Ask(Rkey(1)),
        Frame::Grant(Rkey(1), None),
    ];
    let mut m = Meeting::new("out-of-order");
    let send = |rogue: &Rogue, frame: &Frame| {
        let (inbox, board) = (inbox(), board());
        let fds = if frame.fds() == 2 {
            vec![&inbox, &board]
        } else {
            vec![]
        };
        rogue.says(frame, &fds);
    };
    for frame in frames {
        // At an end that asks.
        if !matches!(frame, Frame::Accept(_)) {
            let rogue = callee(&mut m, "rogue");
            send(&rogue, &frame);
            m.hears(Side::Active, CmEventKind::ConnectError, -libc::EPROTO);
            m.destroy(Side::Active);
        }
        // At one that has been asked: only the embedder's answer is missing.
        let rogue = caller(&m);
        rogue.says(&Frame::Request(end()), &[&inbox(), &board()]);
        m.asked();
        send(&rogue, &frame);
        assert_eq!(rogue.hears(&mut m), None);
        m.silence();
        let key = m.key(Side::Passive);
        let gone = m.door(Side::Passive).accept(key, offer(), &params(b""));
        assert_eq!(gone.unwrap_err().raw_os_error(), Some(libc::ECONNRESET));
        m.destroy(Side::Passive);
        // At one that has answered.
        if frame != Frame::Mapped {
            let rogue = caller(&m);
            rogue.says(&Frame::Request(end()), &[&inbox(), &board()]);
            m.asked();
            m.accept(offer());
            assert!(matches!(rogue.hears(&mut m), Some(Frame::Accept(_))));
            send(&rogue, &frame);
            m.hears(Side::Passive, CmEventKind::ConnectError, -libc::EPROTO);
            assert_eq!(rogue.hears(&mut m), None);
            m.destroy(Side::Passive);
        }
        // At one that is up.
        if !matches!(frame, Frame::Disconnect | Frame::Ask(_)) {
            let rogue = connected(&mut m);
            send(&rogue, &frame);
            m.hears(Side::Passive, CmEventKind::Disconnected, -libc::EPROTO);
            assert_eq!(rogue.hears(&mut m), None);
            m.destroy(Side::Passive);
        }
    }
    // Descriptors that no frame announces.
    let rogue = connected(&mut m);
    rogue.says(&Frame::Disconnect, &[&board()]);
    m.hears(Side::Passive, CmEventKind::Disconnected, -libc::EPROTO);
    m.destroy(Side::Passive);
    m.silence();
    assert!(SIDES.iter().all(|side| m.door(*side).links.is_empty()));
}

#[test]
fn a_peer_that_seals_our_seals_is_left() {
    let mut m = Meeting::new("seals");
    let rogue = caller(&m);
    rogue.says(&Frame::Request(end()), &[&inbox(), &board()]);
    m.asked();
    let ours = offer();
    // What a peer can do that has the descriptor.
    rustix::fs::fcntl_add_seals(ours.inbox.fd(), SealFlags::SEAL).unwrap();
    m.accept(ours);
    rogue.says(&Frame::Mapped, &[]);
    m.hears(Side::Passive, CmEventKind::ConnectError, -libc::EPROTO);
}

#[test]
fn regions_that_lie_end_the_connection() {
    let good = GrantWords {
        base: 0x1000,
        len: 8192,
        map_bytes: 8192,
        access: Access::REMOTE_READ,
    };
    let writable = GrantWords {
        access: Access::REMOTE_WRITE,
        ..good
    };
    let loose = || memory(8192, MemfdFlags::empty(), SealFlags::GROW);
    let lies = [
        (good, vec![]),
        (good, vec![sealed(4096)]),
        (good, vec![sealed(8193)]),
        (good, vec![loose()]),
        (good, vec![holed(sealed(8192))]),
        (good, vec![sealed(8192), sealed(8192)]),
        (writable, vec![read_only(&sealed(8192))]),
    ];
    let mut m = Meeting::new("lying-regions");
    for (words, fds) in lies {
        let rogue = connected(&mut m);
        let key = m.key(Side::Passive);
        m.door(Side::Passive).ask_region(key, Rkey(5)).unwrap();
        assert_eq!(rogue.hears(&mut m), Some(Frame::Ask(Rkey(5))));
        let fds: Vec<_> = fds.iter().collect();
        rogue.says(&Frame::Grant(Rkey(5), Some(words)), &fds);
        m.hears(Side::Passive, CmEventKind::Disconnected, -libc::EPROTO);
        m.destroy(Side::Passive);
    }
    // One that was not asked for, however good.
    let rogue = connected(&mut m);
    let key = m.key(Side::Passive);
    m.door(Side::Passive).ask_region(key, Rkey(5)).unwrap();
    assert_eq!(rogue.hears(&mut m), Some(Frame::Ask(Rkey(5))));
    rogue.says(&Frame::Grant(Rkey(6), Some(good)), &[&sealed(8192)]);
    m.hears(Side::Passive, CmEventKind::Disconnected, -libc::EPROTO);
}

#[test]
fn questions_without_end_are_not_listened_to() {
    let mut m = Meeting::new("questions");
    let rogue = connected(&mut m);
    for _ in 0..=ASKS_MAX {
        rogue.says(&Frame::Ask(Rkey(1)), &[]);
    }
    for _ in 0..ASKS_MAX {
        assert!(matches!(
            m.event(Side::Passive),
            DoorEvent::RegionAsked { .. }
        ));
    }
    m.hears(Side::Passive, CmEventKind::Disconnected, -libc::EPROTO);
    assert_eq!(rogue.hears(&mut m), None);
}

#[test]
fn a_peer_cannot_keep_others_from_memory_that_it_may_write() {
    let mut m = Meeting::new("sealing");
    let rogue = connected(&mut m);
    let memfd = Arc::new(Memfd::create("region", 8192).unwrap());
    let grant = Grant {
        memfd: Arc::clone(&memfd),
        base: 0,
        len: 8192,
        access: Access::REMOTE_WRITE,
        seal: false,
    };
    rogue.says(&Frame::Ask(Rkey(5)), &[]);
    let DoorEvent::RegionAsked { key, rkey } = m.event(Side::Passive) else {
        panic!("the door was asked");
    };
    let door = m.door(Side::Passive);
    door.answer_region(key, rkey, Some(grant)).unwrap();
    // What a peer can do that has the descriptor.
    for seal in [SealFlags::FUTURE_WRITE, SealFlags::WRITE, SealFlags::SEAL] {
        assert!(rustix::fs::fcntl_add_seals(memfd.fd(), seal).is_err());
    }
    for bytes in [0, 4096, 16_384] {
        assert!(rustix::fs::ftruncate(memfd.fd(), bytes).is_err());
    }
}

#[test]
fn a_peer_that_reads_nothing_is_left() {
    let mut m = Meeting::new("deaf");
    let rogue = connected(&mut m);
    let key = m.key(Side::Passive);
    let mut rounds = 0;
    let left = loop {
        rogue.says(&Frame::Ask(Rkey(1)), &[]);
        match m.event(Side::Passive) {
            DoorEvent::RegionAsked { rkey, .. } => {
                let _ = m.door(Side::Passive).answer_region(key, rkey, None);
            }
            DoorEvent::Cm(news) => break news.kind,
            other => panic!("{other:?}"),
        }
        rounds += 1;
        assert!(rounds < 10_000);
    };
    assert_eq!(left, CmEventKind::Disconnected);
}

/// Does something as another user, which only root can: a thread has credentials of its own.
fn as_stranger<T: Send>(does: impl FnOnce() -> T + Send) -> Option<T> {
    let stranger = rustix::process::Uid::from_raw(STRANGER);
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let changed = rustix::thread::set_thread_uid(stranger);
            changed.is_ok().then(does)
        });
        thread.join().expect("the stranger lives")
    })
}

const STRANGER: u32 = 65_534;

#[test]
fn another_user_is_known_by_the_kernel() {
    let mut m = Meeting::new("user");
    let path = m.dir.join("name");
    let call = || Seqpacket::connect(&path);
    let Some(refused) = as_stranger(call) else {
        return; // Only root can be somebody else.
    };
    assert_eq!(
        refused.map(drop).unwrap_err().kind(),
        io::ErrorKind::PermissionDenied
    );
    // Past the mode of the socket, credentials count.
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&path, everybody).unwrap();
    let rogue = Rogue(as_stranger(call).unwrap().unwrap());
    rogue.says(&Frame::Request(end()), &[&inbox(), &board()]);
    assert_eq!(rogue.hears(&mut m), None);
    m.silence();
    // One that is asked for is let in.
    let listener = m.listener;
    m.door(Side::Passive).destroy(listener);
    let uids = vec![rustix::process::geteuid().as_raw(), STRANGER];
    let mut open = door_with(&m.dir, uids, PATIENCE);
    m.listener = open.listen("name", 4).unwrap();
    m.doors[1] = Some(open);
    let rogue = Rogue(as_stranger(call).unwrap().unwrap());
    rogue.says(&Frame::Request(end()), &[&inbox(), &board()]);
    m.asked();
}

#[test]
fn silent_callers_neither_fill_the_door_nor_stay() {
    let mut m = Meeting::with_timeout("silent", Duration::from_millis(100));
    let mut rogues = Vec::new();
    for _ in 0..150 {
        rogues.push(caller(&m));
        m.pump();
    }
    assert!(m.door(Side::Passive).links.len() <= 64);
    // Who asks is served meanwhile.
    m.reach(Stage::Up);
    sleep(Duration::from_millis(120));
    (0..3).for_each(|_| m.pump());
    assert_eq!(m.door(Side::Passive).links.len(), 1);
    assert_eq!(rogues[149].hears(&mut m), None);
    m.silence();
}

#[test]
fn one_call_handles_a_bounded_part_of_a_flood() {
    let mut m = Meeting::new("flood");
    let rogue = connected(&mut m);
    m.disconnect(Side::Passive).unwrap();
    let grant = Frame::Grant(Rkey(1), None).encode();
    let mut sent = 0;
    while rogue.0.send(&grant, &[]).is_ok() {
        sent += 1;
    }
    assert!(sent > 2 * FRAMES_A_CALL);
    assert!(m.door(Side::Passive).next().unwrap().is_none());
    assert_eq!(rogue.0.send(&grant, &[]).map_err(|e| e.kind()), Ok(()));
    // Others are heard all the same.
    let other = caller(&m);
    other.says(&Frame::Request(end()), &[&inbox(), &board()]);
    m.asked();
}
