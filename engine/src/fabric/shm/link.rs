//! What control tells a lane, and how a lane that sleeps is woken.
//!
//! ```text
//!  control ─► tell(Change) ─► queue, a flag ─► the lane's next call adopts them, in order
//!                               └─ armed: event ─► epoll ◄─ bells of the QPs, rung by peers
//!  lane ─► dead QPs ─► graveyard ─► sweep, by control: unmapping is nothing for a worker
//! ```
//! The lane takes the lock only when the flag says so. Imports peer, qp. Imported by all of this
//! folder but the door.

use super::peer::{Mapped, Peer};
use super::qp::QpState;
use crate::sys::epoll::{Epoll, Events};
use crate::sys::eventfd::EventFd;
use crate::types::{QpNum, Rkey};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Token of the lane's own event; bells have the index of their QP.
const OWN: u64 = u64::MAX;
/// Rounds of 64 bells that one drain takes care of. What rings on is drained the next time.
const DRAIN_ROUNDS: usize = 64;

/// What a lane is to do with one of its QPs.
#[derive(Debug)]
pub(super) enum Step {
    /// It is here from now on.
    New(Box<QpState>),
    /// Sends are taken, though the peer may not be there yet.
    Accepted,
    /// The peer is there.
    Ready(Box<Peer>),
    /// The error state.
    Error,
    /// What the peer says of a key of its.
    Region(Rkey, Option<Box<Mapped>>),
    /// The peer can be asked for nothing any more.
    Lost,
    /// Both halves are gone.
    Gone,
}

/// A step of the QP with that place and number.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) index: usize,
    pub(super) number: QpNum,
    pub(super) step: Step,
}

/// What is only to be dropped.
#[derive(Debug)]
pub(super) enum Grave {
    /// A QP with all its maps.
    Qp(Box<QpState>),
    /// A peer's region.
    Region(#[allow(dead_code, reason = "dropping it unmaps")] Mapped),
}

#[derive(Debug, Default)]
struct Desk {
    changes: Vec<Change>,
    free: Vec<usize>,
    places: usize,
    graves: Vec<Grave>,
}

/// The descriptors of a lane that can sleep.
#[derive(Debug)]
struct Alarm {
    event: EventFd,
    epoll: Epoll,
}

/// What both halves of a lane hold.
#[derive(Debug)]
pub(super) struct LaneLink {
    changed: AtomicBool,
    armed: AtomicBool,
    desk: Mutex<Desk>,
    alarm: Option<Alarm>,
}

impl LaneLink {
    pub(super) fn new(events: bool) -> io::Result<Self> {
        let alarm = if events {
            let (event, epoll) = (EventFd::new()?, Epoll::new()?);
            epoll.add(&event, OWN)?;
            Some(Alarm { event, epoll })
        } else {
            None
        };
        Ok(Self {
            changed: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            desk: Mutex::default(),
            alarm,
        })
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        // Nothing under the lock panics.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lane can sleep.
    pub(super) fn has_events(&self) -> bool {
        self.alarm.is_some()
    }

    /// A place for a QP, which is free again when the lane has buried it.
    pub(super) fn place(&self) -> usize {
        let mut desk = self.desk();
        desk.free.pop().unwrap_or_else(|| {
            desk.places += 1;
            // There is room for every QP to die in one call of the lane.
            let (places, buried, free) = (desk.places, desk.graves.len(), desk.free.len());
            desk.graves.reserve(places.saturating_sub(buried));
            desk.free.reserve(places - free);
            places - 1
        })
    }

    /// Tells the lane.
    pub(super) fn tell(&self, index: usize, number: QpNum, step: Step) {
        self.desk().changes.push(Change {
            index,
            number,
            step,
        });
        self.changed.store(true, Ordering::Release);
        // Orders the flag before the look at `armed`; pairs with `arm`.
        fence(Ordering::SeqCst);
        if self.is_armed() {
            self.wake();
        }
    }

    /// Control has told something that was not taken yet.
    #[inline]
    pub(super) fn has_changes(&self) -> bool {
        self.changed.load(Ordering::Acquire)
    }

    /// What control has told, in its order. `into` is empty.
    pub(super) fn take_changes(&self, into: &mut Vec<Change>) {
        let mut desk = self.desk();
        self.changed.store(false, Ordering::Relaxed);
        std::mem::swap(&mut desk.changes, into);
    }

    /// A QP or region is no longer the lane's; the place of a QP is free.
    pub(super) fn bury(&self, grave: Grave, place: Option<usize>) {
        if let (Some(alarm), Grave::Qp(qp)) = (&self.alarm, &grave)
            && let Some(bell) = &qp.bell
        {
            // It is out already where the peer has gone.
            let _ = alarm.epoll.remove(bell);
        }
        let mut desk = self.desk();
        desk.graves.push(grave);
        desk.free.extend(place);
    }

    /// Control lets go of what lanes have buried.
    pub(super) fn sweep(&self) {
        let mut desk = self.desk();
        if desk.graves.is_empty() {
            return;
        }
        // The lane buries without allocating.
        let fresh = Vec::with_capacity(desk.places);
        let graves = std::mem::replace(&mut desk.graves, fresh);
        drop(desk);
        // Unmapping needs no lock.
        drop(graves);
    }

    /// A bell to wait for.
    pub(super) fn hear(&self, index: usize, bell: &crate::sys::bell::Bell) -> io::Result<()> {
        match &self.alarm {
            Some(alarm) => alarm.epoll.add(bell, index as u64),
            None => Ok(()),
        }
    }

    pub(super) fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.alarm.as_ref().map(|alarm| alarm.epoll.fd())
    }

    #[inline]
    pub(super) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// The next completion or change is to wake the lane. The caller looks for both once more.
    pub(super) fn arm(&self) {
        if self.alarm.is_some() {
            self.armed.store(true, Ordering::Relaxed);
            // Orders the store before the caller's look at the flag; pairs with `tell`.
            fence(Ordering::SeqCst);
        }
    }

    /// Wakes the lane if it is armed; one arming gives one wake-up.
    pub(super) fn wake(&self) {
        if let Some(alarm) = &self.alarm
            && self.armed.swap(false, Ordering::Relaxed)
        {
            // An eventfd of ours cannot fail.
            let _ = alarm.event.signal();
        }
    }

    /// Takes what woke the lane: `rung` is asked for the bell of a QP, and says whether it may ring
    /// again. What was there ends the arming.
    pub(super) fn drain(&self, events: &mut Events, mut rung: impl FnMut(usize, &Epoll)) {
        let Some(alarm) = &self.alarm else { return };
        for _ in 0..DRAIN_ROUNDS {
            let Ok(tokens) = alarm.epoll.wait(Some(Duration::ZERO), events) else {
                return;
            };
            let mut any = false;
            for token in tokens {
                any = true;
                match usize::try_from(token) {
                    Ok(index) if token != OWN => rung(index, &alarm.epoll),
                    // An eventfd of ours cannot fail.
                    _ => drop(alarm.event.drain()),
                }
            }
            if !any {
                return;
            }
            self.armed.store(false, Ordering::Relaxed);
        }
    }
}
