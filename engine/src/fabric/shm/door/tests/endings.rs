//! How connections end: by a word, by destruction, by the death of a peer.

use super::*;

#[test]
fn a_disconnect_that_is_answered_is_heard_at_both_ends() {
    for first in SIDES {
        let mut m = Meeting::at("disconnect", Stage::Up);
        m.disconnect(first).unwrap();
        assert!(m.disconnect(first).is_err());
        m.hears(first.other(), CmEventKind::Disconnected, 0);
        m.silence(); // The first waits for the answer.
        m.disconnect(first.other()).unwrap();
        m.hears(first, CmEventKind::Disconnected, 0);
        m.silence();
        assert!(SIDES.iter().all(|side| m.disconnect(*side).is_err()));
    }
}

#[test]
fn both_can_disconnect_at_once() {
    let mut m = Meeting::at("at-once", Stage::Up);
    for side in SIDES {
        m.disconnect(side).unwrap();
    }
    for side in SIDES {
        m.hears(side, CmEventKind::Disconnected, 0);
    }
    m.silence();
}

#[test]
fn a_confirmed_end_can_leave_before_the_other_knows() {
    let mut m = Meeting::at("early", Stage::Confirmed);
    m.disconnect(Side::Active).unwrap();
    m.established();
    m.hears(Side::Passive, CmEventKind::Disconnected, 0);
    m.destroy(Side::Passive);
    m.hears(Side::Active, CmEventKind::Disconnected, 0);
    m.silence();
}

#[test]
fn a_peer_that_does_not_answer_a_disconnect_is_not_waited_for() {
    let mut m = Meeting::with_timeout("unanswered", Duration::from_millis(40));
    m.reach(Stage::Up);
    m.disconnect(Side::Passive).unwrap();
    m.hears(Side::Active, CmEventKind::Disconnected, 0);
    m.hears(Side::Passive, CmEventKind::Disconnected, -libc::ETIMEDOUT);
    m.disconnect(Side::Active).unwrap();
    m.silence();
}

/// What the end that stays hears, when the other is destroyed (`true`) or dies.
fn last_word(stage: Stage, stays: Side, destroyed: bool) -> Option<CmEventKind> {
    let refused = if destroyed {
        CmEventKind::Rejected
    } else {
        CmEventKind::ConnectError
    };
    match (stage, stays) {
        (Stage::Asked, Side::Passive) => None,
        (Stage::Asked | Stage::Accepted | Stage::Answered, _) => Some(refused),
        (Stage::Confirmed | Stage::Up, _) => Some(CmEventKind::Disconnected),
    }
}

#[test]
fn destruction_and_death_are_heard_in_every_state() {
    for stage in STAGES {
        for goes in SIDES {
            for destroyed in [true, false] {
                let what = format!("{stage:?} {goes:?} destroyed: {destroyed}");
                let mut m = Meeting::at("ends", stage);
                // As far as they have come without a look at what was sent last.
                let stays = goes.other();
                if destroyed {
                    m.destroy(goes);
                } else {
                    m.doors[goes as usize] = None;
                }
                let mut kinds = Vec::new();
                let began = Instant::now();
                let want = last_word(stage, stays, destroyed);
                while began.elapsed() < Duration::from_millis(15)
                    || kinds.is_empty() && want.is_some() && began.elapsed() < PATIENCE
                {
                    m.pump();
                    for event in m.heard[stays as usize].drain(..) {
                        match event {
                            DoorEvent::Cm(news) => kinds.push(news.kind),
                            DoorEvent::Ready { .. } => {}
                            other => panic!("{other:?}"),
                        }
                    }
                    sleep(Duration::from_micros(200));
                }
                match (stage, goes) {
                    // The last thing that the active end said was that it is up.
                    (Stage::Confirmed, Side::Active) => {
                        let both = [CmEventKind::Established, CmEventKind::Disconnected];
                        assert_eq!(kinds, both, "{what}");
                    }
                    _ => assert_eq!(kinds.as_slice(), want.as_slice(), "{what}"),
                }
                m.destroy(stays);
                m.silence();
            }
        }
    }
}

#[test]
fn the_end_that_was_left_can_disconnect_in_peace() {
    for goes in SIDES {
        let mut m = Meeting::at("left", Stage::Up);
        m.doors[goes as usize] = None;
        m.hears(goes.other(), CmEventKind::Disconnected, 0);
        m.disconnect(goes.other()).unwrap();
        m.silence();
    }
}

#[test]
fn a_peer_that_dies_while_it_is_asked_to_leave_has_left() {
    for goes in SIDES {
        let mut m = Meeting::at("leaving", Stage::Up);
        m.disconnect(goes.other()).unwrap();
        m.doors[goes as usize] = None;
        m.hears(goes.other(), CmEventKind::Disconnected, 0);
        m.silence();
    }
}

#[test]
fn no_event_names_what_was_destroyed() {
    let mut m = Meeting::at("no-event", Stage::Up);
    m.disconnect(Side::Active).unwrap();
    // The event has arrived, and nobody has taken it.
    let key = m.key(Side::Passive);
    let door = m.door(Side::Passive);
    let mut frames = 8;
    while door.look(&mut frames).unwrap() {}
    assert_eq!(door.events.len(), 1);
    door.destroy(key);
    assert!(door.next().unwrap().is_none());
    m.hears(Side::Active, CmEventKind::Disconnected, 0);
    m.silence();
}

#[test]
fn requests_that_nobody_took_go_with_the_listener() {
    let mut m = Meeting::new("untaken");
    m.connect(offer());
    let listener = m.listener;
    let door = m.door(Side::Passive);
    let mut frames = 8;
    while door.look(&mut frames).unwrap() {}
    assert_eq!((door.events.len(), door.links.len()), (1, 1));
    door.destroy(listener);
    assert_eq!((door.events.len(), door.links.len()), (0, 0));
    m.hears(Side::Active, CmEventKind::Rejected, 28);
    m.silence();
}

#[test]
fn nothing_is_kept_of_what_is_gone() {
    let mut m = Meeting::new("kept");
    for round in 0..8 {
        m.reach(Stage::Up);
        let weak: Vec<_> = m.inboxes.iter().flatten().map(Arc::downgrade).collect();
        m.inboxes = [None, None];
        m.peers = [None, None];
        let (first, second) = if round % 2 == 0 {
            (Side::Active, Side::Passive)
        } else {
            (Side::Passive, Side::Active)
        };
        m.disconnect(first).unwrap();
        m.hears(second, CmEventKind::Disconnected, 0);
        m.destroy(second);
        m.hears(first, CmEventKind::Disconnected, 0);
        m.destroy(first);
        assert!(weak.iter().all(|inbox| inbox.strong_count() == 0));
    }
    for side in SIDES {
        assert!(m.door(side).links.is_empty());
    }
    assert!(m.door(Side::Passive).listeners.len() == 1);
}
