//! How regions come to a peer that has their keys.

#![allow(unsafe_code, reason = "looks into memory that the doors have mapped")]

use super::super::link::ASKS_MAX;
use super::*;

const BYTES: usize = 8192;

fn granted(access: Access) -> Grant {
    Grant {
        memfd: Arc::new(Memfd::create("region", BYTES).unwrap()),
        seal: !access.is_remote_writable(),
        base: 0x7000_0000,
        len: 5000,
        access,
    }
}

impl Meeting {
    /// One side asks, the other hears it.
    fn asks(&mut self, side: Side, rkey: Rkey) {
        let key = self.key(side);
        self.door(side).ask_region(key, rkey).unwrap();
        let other = self.key(side.other());
        match self.event(side.other()) {
            DoorEvent::RegionAsked { key, rkey: asked } => {
                assert_eq!((key, asked), (other, rkey));
            }
            event => panic!("{event:?}"),
        }
    }

    fn answer(&mut self, side: Side, rkey: Rkey, grant: Option<Grant>) -> io::Result<()> {
        let key = self.key(side);
        self.door(side).answer_region(key, rkey, grant)
    }

    fn gets(&mut self, side: Side, rkey: Rkey) -> Option<GrantedRegion> {
        let own = self.key(side);
        match self.event(side) {
            DoorEvent::RegionAnswer {
                key,
                rkey: about,
                grant,
            } => {
                assert_eq!((key, about), (own, rkey));
                grant
            }
            event => panic!("{event:?}"),
        }
    }
}

#[test]
fn both_ends_can_ask() {
    let mut m = Meeting::at("regions", Stage::Up);
    for side in SIDES {
        m.asks(side, Rkey(5));
        let grant = granted(Access::REMOTE_READ | Access::REMOTE_WRITE);
        let memfd = Arc::clone(&grant.memfd);
        m.answer(side.other(), Rkey(5), Some(grant)).unwrap();
        let region = m.gets(side, Rkey(5)).unwrap();
        assert_eq!((region.base, region.len), (0x7000_0000, 5000));
        assert_eq!(region.map.bytes(), BYTES);
        assert!(region.access.contains(Access::REMOTE_WRITE));
        // SAFETY: the map is writable and longer than a byte, and `region` keeps it.
        unsafe { region.map.base().write_volatile(3) };
        // SAFETY: the map is longer than a byte, and `memfd` keeps it.
        assert_eq!(unsafe { memfd.base().read_volatile() }, 3);
        // Others may come.
        assert!(!memfd.writes_sealed());
    }
}

#[test]
fn what_is_for_reading_is_sealed() {
    let mut m = Meeting::at("reading", Stage::Up);
    m.asks(Side::Active, Rkey(5));
    let grant = granted(Access::REMOTE_READ);
    let memfd = Arc::clone(&grant.memfd);
    m.answer(Side::Passive, Rkey(5), Some(grant)).unwrap();
    assert!(m.gets(Side::Active, Rkey(5)).is_some());
    assert!(memfd.writes_sealed());
    // It cannot be granted for writing any more.
    m.asks(Side::Active, Rkey(6));
    let grant = Grant {
        memfd,
        seal: false,
        base: 0,
        len: 1,
        access: Access::REMOTE_ATOMIC,
    };
    assert!(m.answer(Side::Passive, Rkey(6), Some(grant)).is_err());
    assert!(m.gets(Side::Active, Rkey(6)).is_none());
}

#[test]
fn no_is_an_answer() {
    let mut m = Meeting::at("none", Stage::Up);
    m.asks(Side::Passive, Rkey(1));
    m.answer(Side::Active, Rkey(1), None).unwrap();
    assert!(m.gets(Side::Passive, Rkey(1)).is_none());
    // It is given once, and only to who asked.
    assert!(m.answer(Side::Active, Rkey(1), None).is_err());
    assert!(m.answer(Side::Passive, Rkey(1), None).is_err());
    // A region beyond its memory is none.
    m.asks(Side::Passive, Rkey(2));
    let mut wrong = granted(Access::REMOTE_READ);
    wrong.len = BYTES as u64 + 1;
    assert!(m.answer(Side::Active, Rkey(2), Some(wrong)).is_err());
    assert!(m.gets(Side::Passive, Rkey(2)).is_none());
    m.silence();
}

#[test]
fn sixteen_questions_may_be_open() {
    let mut m = Meeting::at("sixteen", Stage::Up);
    for _ in 0..ASKS_MAX {
        m.asks(Side::Active, Rkey(4));
    }
    let key = m.key(Side::Active);
    let more = m.door(Side::Active).ask_region(key, Rkey(4));
    assert_eq!(more.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    for _ in 0..ASKS_MAX {
        let grant = granted(Access::REMOTE_READ);
        m.answer(Side::Passive, Rkey(4), Some(grant)).unwrap();
    }
    for _ in 0..ASKS_MAX {
        assert!(m.gets(Side::Active, Rkey(4)).is_some());
    }
    m.asks(Side::Active, Rkey(4));
    m.disconnect(Side::Active).unwrap();
    m.hears(Side::Passive, CmEventKind::Disconnected, 0);
    assert!(m.answer(Side::Passive, Rkey(4), None).is_err());
}

#[test]
fn a_question_crosses_a_disconnect_unharmed() {
    let mut m = Meeting::at("crossing", Stage::Up);
    let [active, passive] = m.keys;
    m.door(Side::Active).ask_region(active, Rkey(1)).unwrap();
    m.door(Side::Passive).ask_region(passive, Rkey(2)).unwrap();
    m.disconnect(Side::Active).unwrap();
    match m.event(Side::Passive) {
        DoorEvent::RegionAsked { .. } => {}
        other => panic!("{other:?}"),
    }
    m.hears(Side::Passive, CmEventKind::Disconnected, 0);
    m.disconnect(Side::Passive).unwrap();
    m.hears(Side::Active, CmEventKind::Disconnected, 0);
    m.silence();
}

#[test]
fn a_peer_that_does_not_answer_is_left() {
    let mut m = Meeting::with_timeout("unanswered-ask", Duration::from_millis(60));
    m.reach(Stage::Up);
    m.asks(Side::Active, Rkey(1));
    m.answer(Side::Passive, Rkey(1), None).unwrap();
    assert!(m.gets(Side::Active, Rkey(1)).is_none());
    sleep(Duration::from_millis(80));
    m.silence(); // The answer has taken the alarm with it.
    m.asks(Side::Active, Rkey(1));
    m.hears(Side::Active, CmEventKind::Disconnected, -libc::ETIMEDOUT);
    m.hears(Side::Passive, CmEventKind::Disconnected, 0);
}
