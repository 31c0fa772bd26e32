//! How connections come to be, or do not.

#![allow(unsafe_code, reason = "looks into memory that the doors have mapped")]

use super::*;
use crate::sys::bell::{Bell, Rung};
use crate::sys::epoll::Events;

#[test]
fn both_ends_get_each_other() {
    let mut m = Meeting::new("both");
    let (bell, fd) = Bell::new().unwrap();
    let mut sleeper = offer();
    sleeper.bell = Some(fd);
    m.connect(sleeper);
    let request = m.asked();
    assert_eq!(request.private_data.as_slice(), b"request");
    assert_eq!(
        (request.responder_resources, request.initiator_depth),
        (4, 3)
    );
    assert!(request.peer.is_none());
    m.accept(offer());
    let answer = m.hears(Side::Active, CmEventKind::ConnectResponse, 0);
    assert_eq!(answer.private_data.as_slice(), b"answer");
    // Nothing was written yet, and nobody else can any more.
    assert!(
        m.inboxes
            .iter()
            .flatten()
            .all(|inbox| inbox.writes_sealed())
    );
    m.peers[0] = answer.peer;
    m.silence(); // Established is for who knows that both agree.
    m.confirm();
    m.established();
    m.silence();
    let [active, passive] = m.peers.each_ref().map(|peer| peer.as_deref().unwrap());
    assert_eq!((active.qp, active.access), (QpNum(7), Access::REMOTE_READ));
    assert_eq!(
        (active.geometry, active.board.bytes()),
        (SMALL, BOARD_BYTES)
    );
    assert_eq!(active.params, params(b"answer"));
    assert_eq!(passive.params, params(b"request"));
    assert!(active.bell.is_none());
    passive.bell.as_ref().unwrap().ring().unwrap();
    assert_eq!(bell.drain().unwrap(), Rung::Yes);
    for (writer, owner) in [(active, 1), (passive, 0)] {
        // SAFETY: the map is writable and longer than a byte, and `writer` keeps it.
        unsafe { writer.inbox.base().write_volatile(9) };
        let inbox = m.inboxes[owner].as_ref().unwrap();
        // SAFETY: the map is longer than a byte, and `inbox` keeps it.
        assert_eq!(unsafe { inbox.base().read_volatile() }, 9);
    }
}

#[test]
fn names_agree() {
    let mut m = Meeting::at("names", Stage::Up);
    let [active, passive] = m.keys;
    let here = m.door(Side::Active).local(active).unwrap();
    assert_eq!(m.door(Side::Passive).peer(passive), Some(here));
    assert_eq!(m.door(Side::Active).peer(active).as_deref(), Some("name"));
    assert_eq!(
        m.door(Side::Passive).local(passive).as_deref(),
        Some("name")
    );
    let listener = m.listener;
    assert_eq!(
        m.door(Side::Passive).local(listener).as_deref(),
        Some("name")
    );
    assert_eq!(m.door(Side::Passive).peer(listener), None);
}

#[test]
fn both_ends_can_be_at_one_door() {
    let dir = scratch("one");
    let mut door = door(&dir);
    let listener = door.listen("name", 4).unwrap();
    let active = door.dial("name").unwrap();
    door.route(active).unwrap();
    door.connect(active, offer(), &params(b"")).unwrap();
    let (mut passive, mut kinds) = (0, Vec::new());
    let deadline = Instant::now() + PATIENCE;
    while kinds.last() != Some(&CmEventKind::Established) && Instant::now() < deadline {
        match door.next().unwrap() {
            Some(DoorEvent::Cm(news)) => {
                kinds.push(news.kind);
                if let Some(request) = news.request {
                    assert_eq!(news.key, listener);
                    passive = request;
                    door.accept(passive, offer(), &params(b"")).unwrap();
                } else if news.kind == CmEventKind::ConnectResponse {
                    door.confirm(active).unwrap();
                }
            }
            Some(DoorEvent::Ready { key, .. }) => assert_eq!(key, passive),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
    let want = [
        CmEventKind::AddrResolved,
        CmEventKind::RouteResolved,
        CmEventKind::ConnectRequest,
        CmEventKind::ConnectResponse,
        CmEventKind::Established,
    ];
    assert_eq!(kinds, want);
}

#[test]
fn a_rejection_brings_its_data() {
    let mut m = Meeting::at("reject", Stage::Asked);
    let key = m.key(Side::Passive);
    let why = PrivateData::of(b"not today");
    m.door(Side::Passive).reject(key, &why).unwrap();
    let news = m.hears(Side::Active, CmEventKind::Rejected, 28);
    assert_eq!(news.private_data, why);
    assert!(m.door(Side::Passive).reject(key, &why).is_err());
    m.silence();
    // The listener is none the worse.
    m.reach(Stage::Up);
}

#[test]
fn nobody_listens() {
    let mut m = Meeting::new("nobody");
    let listener = m.listener;
    m.door(Side::Passive).destroy(listener);
    m.connect(offer());
    m.hears(Side::Active, CmEventKind::Rejected, 8);
    // A socket that a process left when it was killed.
    drop(std::os::unix::net::UnixListener::bind(m.dir.join("name")).unwrap());
    m.connect(offer());
    m.hears(Side::Active, CmEventKind::Rejected, 8);
    // Something else.
    let _other = std::os::unix::net::UnixListener::bind(m.dir.join("other")).unwrap();
    std::fs::rename(m.dir.join("other"), m.dir.join("name")).unwrap();
    m.connect(offer());
    m.hears(Side::Active, CmEventKind::ConnectError, -libc::EPROTOTYPE);
}

#[test]
fn two_cannot_listen_at_one_name() {
    let mut m = Meeting::new("taken");
    for side in SIDES {
        let taken = m.door(side).listen("name", 1).unwrap_err();
        assert_eq!(taken.raw_os_error(), Some(libc::EADDRINUSE));
    }
    assert!(m.door(Side::Active).listen("../name", 1).is_err());
    assert!(m.door(Side::Active).dial("a/b").is_err());
    m.silence(); // The probe was nobody's request.
    m.reach(Stage::Up);
    let listener = m.listener;
    m.door(Side::Passive).destroy(listener);
    assert!(m.door(Side::Active).listen("name", 1).is_ok());
    // Connections outlive their listener.
    m.disconnect(Side::Active).unwrap();
    m.hears(Side::Passive, CmEventKind::Disconnected, 0);
}

#[test]
fn more_requests_than_the_backlog_are_rejected() {
    let mut m = Meeting::new("backlog");
    let mut passive = Vec::new();
    for _ in 0..4 {
        m.connect(offer());
        m.asked();
        passive.push(m.key(Side::Passive));
    }
    m.connect(offer());
    m.hears(Side::Active, CmEventKind::Rejected, 28);
    // One answered makes room for one.
    m.door(Side::Passive).destroy(passive[0]);
    let first = m.cm(Side::Active);
    assert_eq!(first.kind, CmEventKind::Rejected);
    m.connect(offer());
    m.asked();
    m.connect(offer());
    m.hears(Side::Active, CmEventKind::Rejected, 28);
}

#[test]
fn a_listener_that_is_too_busy_is_tried_again() {
    let mut m = Meeting::new("busy");
    let path = m.dir.join("name");
    let mut others = Vec::new();
    while let Ok(socket) = crate::sys::seqpacket::Seqpacket::connect(&path) {
        others.push(socket);
        assert!(others.len() < 100);
    }
    let key = {
        let door = m.door(Side::Active);
        let key = door.dial("name").unwrap();
        door.route(key).unwrap();
        door.connect(key, offer(), &params(b"")).unwrap();
        // The passive door is asleep meanwhile.
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(30) {
            while door.next().unwrap().is_some() {}
            sleep(Duration::from_millis(1));
        }
        key
    };
    m.keys[0] = key;
    m.asked();
    m.accept(offer());
    m.answered();
}

#[test]
fn who_is_not_answered_gives_up() {
    let short = Duration::from_millis(40);
    // The embedder does not answer.
    let mut m = Meeting::with_timeout("late-request", short);
    m.connect(offer());
    m.asked();
    m.hears(Side::Active, CmEventKind::Unreachable, -libc::ETIMEDOUT);
    let key = m.key(Side::Passive);
    m.silence();
    let gone = m.door(Side::Passive).accept(key, offer(), &params(b""));
    assert_eq!(gone.unwrap_err().raw_os_error(), Some(libc::ECONNRESET));
    m.door(Side::Passive)
        .reject(key, &PrivateData::EMPTY)
        .unwrap();
    m.silence();
    // The listener's process does not.
    let mut m = Meeting::with_timeout("late-door", short);
    m.connect(offer());
    let deadline = Instant::now() + PATIENCE;
    let door = m.doors[0].as_mut().unwrap();
    let news = loop {
        match door.next().unwrap() {
            Some(DoorEvent::Cm(news)) => break news,
            _ => assert!(Instant::now() < deadline),
        }
    };
    assert_eq!(news.kind, CmEventKind::Unreachable);
    // The active end does not confirm.
    let mut m = Meeting::with_timeout("late-confirm", short);
    m.reach(Stage::Answered);
    m.hears(Side::Passive, CmEventKind::Unreachable, -libc::ETIMEDOUT);
    m.hears(Side::Active, CmEventKind::ConnectError, -libc::ECONNRESET);
    let key = m.key(Side::Active);
    assert!(m.door(Side::Active).confirm(key).is_err());
    m.silence();
}

#[test]
fn strangers_are_hung_up_on() {
    let dir = scratch("strangers");
    for (listens, dials, status) in [
        (vec![], Settings::default().uids, -libc::ECONNRESET),
        (Settings::default().uids, vec![], -libc::EPERM),
    ] {
        let mut passive = door_with(&dir, listens, PATIENCE);
        let listener = passive.listen("name", 4).unwrap();
        let mut m = Meeting {
            doors: [Some(door_with(&dir, dials, PATIENCE)), Some(passive)],
            heard: Default::default(),
            keys: [0, 0],
            listener,
            inboxes: [None, None],
            peers: [None, None],
            dir: scratch("strangers-unused"),
        };
        m.connect(offer());
        m.hears(Side::Active, CmEventKind::ConnectError, status);
        m.silence();
    }
}

#[test]
fn the_descriptor_is_readable_just_when_there_is_something() {
    let mut m = Meeting::new("descriptor");
    let watch = Epoll::new().unwrap();
    for side in SIDES {
        watch.add(m.door(side).event_fd(), side as u64).unwrap();
    }
    let ready = || {
        let mut events = Events::new();
        let mut tokens: Vec<_> = watch
            .wait(Some(Duration::ZERO), &mut events)
            .unwrap()
            .collect();
        tokens.sort_unstable();
        tokens
    };
    assert!(ready().is_empty());
    let key = m.door(Side::Active).dial("name").unwrap();
    assert_eq!(ready(), [0]);
    assert!(m.door(Side::Active).next().unwrap().is_some());
    assert!(ready().is_empty());
    m.door(Side::Active).route(key).unwrap();
    assert!(m.door(Side::Active).next().unwrap().is_some());
    m.door(Side::Active)
        .connect(key, offer(), &params(b""))
        .unwrap();
    assert_eq!(ready(), [1]);
    assert!(m.door(Side::Passive).next().unwrap().is_some());
    assert!(ready().is_empty());
    // An event that goes with its end takes the signal with it.
    let key = m.door(Side::Active).dial("name").unwrap();
    m.door(Side::Active).destroy(key);
    assert!(ready().is_empty());
}

#[test]
fn steps_out_of_order_are_refused() {
    let mut m = Meeting::new("order");
    let refused = |result: io::Result<()>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINVAL));
    };
    let key = m.door(Side::Active).dial("name").unwrap();
    let door = m.door(Side::Active);
    refused(door.connect(key, offer(), &params(b"")));
    refused(door.confirm(key));
    refused(door.accept(key, offer(), &params(b"")));
    refused(door.reject(key, &PrivateData::EMPTY));
    refused(door.disconnect(key));
    refused(door.ask_region(key, Rkey(1)));
    refused(door.answer_region(key, Rkey(1), None));
    refused(door.route(99));
    door.route(key).unwrap();
    refused(door.route(key));
    // An end that no peer would take.
    let mut wrong = offer();
    wrong.geometry.cells = 32;
    assert!(door.connect(key, wrong, &params(b"")).is_err());
    let mut wrong = params(b"");
    wrong.rnr_retry_count = 8;
    assert!(door.connect(key, offer(), &wrong).is_err());
    door.connect(key, offer(), &params(b"")).unwrap();
    refused(door.connect(key, offer(), &params(b"")));
}
