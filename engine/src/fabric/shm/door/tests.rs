//! Two doors in one thread: who hears what, and when.
//!
//! ```text
//!  Meeting { active: Door ─ its events, passive: Door ─ its events }   pump: both, until somebody hears
//! ```
//! hostile.rs has peers that are no doors, above.rs those at a whole fabric.

mod above;
mod endings;
mod handshake;
mod hostile;
mod regions;

use super::*;
use crate::fabric::shm::geometry::Geometry;
use crate::fabric::{CmEventKind, ConnParams, PrivateData};
use crate::sys::memfd::Memfd;
use crate::types::{Access, QpNum, Rkey};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;

/// A folder of the test's own, empty, gone afterwards.
pub(super) struct Scratch(PathBuf);

pub(super) fn scratch(name: &str) -> Scratch {
    let path = std::env::temp_dir().join(format!("spinwire-door-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    Scratch(path)
}

impl Deref for Scratch {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const SMALL: Geometry = Geometry {
    cells: 16,
    data_bytes: 4096,
};
const BOARD_BYTES: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(10);

fn door_with(dir: &Path, uids: Vec<u32>, timeout: Duration) -> Door {
    Door::open(Settings {
        dir: Some(dir.into()),
        uids,
        timeout,
    })
    .unwrap()
}

fn door(dir: &Path) -> Door {
    door_with(dir, Settings::default().uids, PATIENCE)
}

fn offer() -> Offer {
    Offer {
        qp: QpNum(7),
        access: Access::REMOTE_READ,
        geometry: SMALL,
        inbox: Arc::new(Memfd::create("inbox", SMALL.bytes()).unwrap()),
        board: Arc::new(Memfd::create("board", BOARD_BYTES).unwrap()),
        bell: None,
    }
}

fn params(text: &[u8]) -> ConnParams {
    ConnParams {
        private_data: PrivateData::new(text).unwrap(),
        responder_resources: 4,
        initiator_depth: 3,
        retry_count: 7,
        rnr_retry_count: 6,
    }
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Active,
    Passive,
}

const SIDES: [Side; 2] = [Side::Active, Side::Passive];

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Active => Self::Passive,
            Self::Passive => Self::Active,
        }
    }
}

/// How far the two have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Asked,
    Accepted,
    Answered,
    Confirmed,
    Up,
}

const STAGES: [Stage; 5] = [
    Stage::Asked,
    Stage::Accepted,
    Stage::Answered,
    Stage::Confirmed,
    Stage::Up,
];

struct Meeting {
    doors: [Option<Door>; 2],
    heard: [VecDeque<DoorEvent>; 2],
    keys: [u64; 2],
    listener: u64,
    inboxes: [Option<Arc<Memfd>>; 2],
    peers: [Option<Box<PeerEnd>>; 2],
    dir: Scratch,
}

impl Meeting {
    /// A listener, and nobody else.
    fn new(name: &str) -> Self {
        Self::with_timeout(name, PATIENCE)
    }

    fn with_timeout(name: &str, timeout: Duration) -> Self {
        let dir = scratch(name);
        let uids = Settings::default().uids;
        let mut passive = door_with(&dir, uids.clone(), timeout);
        let listener = passive.listen("name", 4).unwrap();
        let active = door_with(&dir, uids, timeout);
        Self {
            doors: [Some(active), Some(passive)],
            heard: Default::default(),
            keys: [0, 0],
            listener,
            inboxes: [None, None],
            peers: [None, None],
            dir,
        }
    }

    fn at(name: &str, stage: Stage) -> Self {
        let mut meeting = Self::new(name);
        meeting.reach(stage);
        meeting
    }

    fn door(&mut self, side: Side) -> &mut Door {
        self.doors[side as usize]
            .as_mut()
            .expect("the door is here")
    }

    fn key(&self, side: Side) -> u64 {
        self.keys[side as usize]
    }

    /// Both doors do what they can.
    fn pump(&mut self) {
        for (door, heard) in self.doors.iter_mut().zip(&mut self.heard) {
            if let Some(door) = door {
                while let Some(event) = door.next().unwrap() {
                    heard.push_back(event);
                }
            }
        }
    }

    fn event(&mut self, side: Side) -> DoorEvent {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(event) = self.heard[side as usize].pop_front() {
                return event;
            }
            assert!(Instant::now() < deadline, "{side:?} hears nothing");
            self.pump();
            sleep(Duration::from_micros(100));
        }
    }

    fn cm(&mut self, side: Side) -> CmNews {
        match self.event(side) {
            DoorEvent::Cm(news) => news,
            other => panic!("{side:?} hears {other:?}"),
        }
    }

    /// The next event of a side, which must be this one and about its end.
    fn hears(&mut self, side: Side, kind: CmEventKind, status: i32) -> CmNews {
        let news = self.cm(side);
        let want = (self.key(side), kind, status);
        assert_eq!((news.key, news.kind, news.status), want, "{side:?}");
        news
    }

    /// Nobody hears anything more.
    fn silence(&mut self) {
        for _ in 0..20 {
            self.pump();
            sleep(Duration::from_micros(500));
        }
        assert!(
            self.heard.iter().all(VecDeque::is_empty),
            "{:?}",
            self.heard
        );
    }

    /// An end that may connect.
    fn routed(&mut self) -> u64 {
        let key = self.door(Side::Active).dial("name").unwrap();
        self.keys[0] = key;
        self.hears(Side::Active, CmEventKind::AddrResolved, 0);
        self.door(Side::Active).route(key).unwrap();
        self.hears(Side::Active, CmEventKind::RouteResolved, 0);
        key
    }

    fn connect(&mut self, offer: Offer) {
        let key = self.routed();
        self.inboxes[0] = Some(Arc::clone(&offer.inbox));
        let door = self.door(Side::Active);
        door.connect(key, offer, &params(b"request")).unwrap();
    }

    fn asked(&mut self) -> CmNews {
        let news = self.cm(Side::Passive);
        assert_eq!(
            (news.key, news.kind),
            (self.listener, CmEventKind::ConnectRequest)
        );
        self.keys[1] = news.request.expect("a key");
        news
    }

    fn accept(&mut self, offer: Offer) {
        let key = self.key(Side::Passive);
        self.inboxes[1] = Some(Arc::clone(&offer.inbox));
        let door = self.door(Side::Passive);
        door.accept(key, offer, &params(b"answer")).unwrap();
    }

    fn answered(&mut self) {
        let news = self.hears(Side::Active, CmEventKind::ConnectResponse, 0);
        self.peers[0] = news.peer;
        assert!(self.peers[0].is_some());
    }

    fn confirm(&mut self) {
        let key = self.key(Side::Active);
        self.door(Side::Active).confirm(key).unwrap();
    }

    fn established(&mut self) {
        let key = self.key(Side::Passive);
        match self.event(Side::Passive) {
            DoorEvent::Ready { key: at, peer } if at == key => self.peers[1] = Some(peer),
            other => panic!("{other:?}"),
        }
        self.hears(Side::Passive, CmEventKind::Established, 0);
    }

    fn reach(&mut self, stage: Stage) {
        self.connect(offer());
        self.asked();
        if stage >= Stage::Accepted {
            self.accept(offer());
        }
        if stage >= Stage::Answered {
            self.answered();
        }
        if stage >= Stage::Confirmed {
            self.confirm();
        }
        if stage >= Stage::Up {
            self.established();
        }
    }

    fn destroy(&mut self, side: Side) {
        let key = self.key(side);
        self.door(side).destroy(key);
    }

    fn disconnect(&mut self, side: Side) -> io::Result<()> {
        let key = self.key(side);
        self.door(side).disconnect(key)
    }
}
