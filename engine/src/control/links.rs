//! Workers as control sees them: mailboxes, lanes, and which places are free (placement).

use super::growing::PoolGrowth;
use crate::fabric::{Fabric, LaneGrant, QpSpec};
use crate::limits::MAILBOX_DEPTH;
use crate::metrics::CounterReader;
use crate::ring::spsc::PushError;
use crate::sys::eventfd::EventFd;
use crate::worker::{Command, ConnId, ControlEnd, GENERATIONS};
use std::collections::VecDeque;
use std::sync::Arc;

/// Control's half of one lane.
pub struct LaneLink<F: Fabric> {
    /// Device it is on.
    pub device: String,
    /// The CQ, for creating QPs; `None` once the device is removed.
    pub cq: Option<F::Cq>,
    /// The device, to register memory that the pool grows by; `None` where that does not grow, or once the
    /// device is removed.
    pub device_handle: Option<F::Device>,
    /// What QPs are created with.
    pub spec: QpSpec,
    /// Connections that it may have.
    pub connections_max: u32,
    /// Bytes of one receive.
    pub buffer_bytes: u32,
    /// What the provider granted.
    pub grant: LaneGrant,
}

/// Control's half of one worker.
pub struct WorkerLink<F: Fabric> {
    /// The mailbox.
    pub end: ControlEnd<F>,
    /// Wakes an event-mode worker.
    pub wake: Arc<EventFd>,
    /// Lanes, in the worker's order.
    pub lanes: Vec<LaneLink<F>>,
    /// What the worker counts.
    pub counters: CounterReader,
    /// Memory that its pool may grow by.
    pub growth: Option<PoolGrowth>,
}

impl<F: Fabric> LaneLink<F> {
    /// The device is removed: nothing here may keep it.
    pub(super) fn forget(&mut self) {
        (self.cq, self.device_handle) = (None, None);
    }
}

impl<F: Fabric> std::fmt::Debug for LaneLink<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaneLink")
            .field("grant", &self.grant)
            .finish_non_exhaustive()
    }
}

impl<F: Fabric> std::fmt::Debug for WorkerLink<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerLink")
            .field("lanes", &self.lanes)
            .finish_non_exhaustive()
    }
}

/// A worker with its free places and the commands that wait for room.
pub(super) struct Post<F: Fabric> {
    pub(super) link: WorkerLink<F>,
    outbox: VecDeque<Command<F>>,
    places: Vec<Places>,
    /// How far each lane is from being dropped.
    lanes: Vec<LaneState>,
    pub(super) lost: bool,
}

/// Whether a lane is in use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LaneState {
    Open,
    /// Takes no more connections.
    Closed,
    /// The worker was told to drop it.
    Asked,
}

/// Free places of one lane. Indices count through all lanes of a worker, as its table does.
struct Places {
    free: Vec<u16>,
    generations: Vec<u32>,
    first: u16,
}

impl Places {
    fn new(first: u16, count: u32) -> Self {
        let indices = (first..=u16::MAX).take(count as usize);
        let free: Vec<u16> = indices.rev().collect();
        Self {
            generations: vec![0; free.len()],
            free,
            first,
        }
    }

    fn take(&mut self) -> Option<(u16, u32)> {
        let index = self.free.pop()?;
        let generation = &mut self.generations[usize::from(index - self.first)];
        *generation = (*generation + 1) % GENERATIONS;
        Some((index, *generation))
    }

    fn give_back(&mut self, index: u16) {
        debug_assert!(!self.free.contains(&index));
        self.free.push(index);
    }
}

impl<F: Fabric> Post<F> {
    pub(super) fn new(link: WorkerLink<F>) -> Self {
        let mut first = 0u32;
        let places = link
            .lanes
            .iter()
            .map(|lane| {
                let places = Places::new(
                    u16::try_from(first).unwrap_or(u16::MAX),
                    lane.connections_max,
                );
                first += lane.connections_max;
                places
            })
            .collect();
        Self {
            lanes: vec![LaneState::Open; link.lanes.len()],
            link,
            outbox: VecDeque::with_capacity(MAILBOX_DEPTH),
            places,
            lost: false,
        }
    }

    /// Sends a command, in order, and wakes the worker if it sleeps.
    pub(super) fn send(&mut self, command: Command<F>) {
        self.outbox.push_back(command);
        self.flush();
    }

    /// Moves commands to the ring as far as it has room.
    pub(super) fn flush(&mut self) {
        let mut sent = false;
        while let Some(command) = self.outbox.pop_front() {
            match self.link.end.commands.push(command) {
                Ok(()) => sent = true,
                Err(PushError::Full(command)) => {
                    self.outbox.push_front(command);
                    break;
                }
                // The worker is gone; its events say so too.
                Err(PushError::Abandoned(command)) => drop(command),
            }
        }
        if sent && self.link.end.waker.wake_needed() {
            // It fails only when it is signalled already, beyond counting.
            let _ = self.link.wake.signal();
        }
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.outbox.is_empty()
    }

    fn lane_on(&self, device: &str) -> Option<usize> {
        self.link
            .lanes
            .iter()
            .zip(&self.lanes)
            .position(|(lane, state)| lane.device == device && *state == LaneState::Open)
    }

    /// The device's lane takes no more connections.
    pub(super) fn close_lane(&mut self, device: &str) {
        if let Some(lane) = self.lane_on(device) {
            self.lanes[lane] = LaneState::Closed;
        }
    }

    /// The device's lane, where it still has its CQ. That of a lost worker goes here.
    pub(super) fn lane_to_drop(&mut self, device: &str) -> Option<usize> {
        let lanes = &mut self.link.lanes;
        let lane = lanes
            .iter()
            .position(|lane| lane.device == device && lane.cq.is_some())?;
        if self.lost {
            lanes[lane].forget();
            return None;
        }
        Some(lane)
    }

    /// The worker has the lane, and was not told to drop it.
    pub(super) fn has_lane(&self, lane: usize) -> bool {
        self.lanes[lane] != LaneState::Asked && self.link.lanes[lane].cq.is_some()
    }

    /// True when the worker has not been asked before.
    pub(super) fn ask_to_drop(&mut self, lane: usize) -> bool {
        std::mem::replace(&mut self.lanes[lane], LaneState::Asked) != LaneState::Asked
    }

    fn free_on(&self, device: &str) -> usize {
        self.lane_on(device)
            .map_or(0, |lane| self.places[lane].free.len())
    }

    pub(super) fn give_back(&mut self, conn: ConnId, lane: usize) {
        self.places[lane].give_back(conn.index);
    }
}

/// A place that a connection was given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) conn: ConnId,
    pub(super) worker: usize,
    pub(super) lane: usize,
}

/// The worker that is wanted, or that with the most free places on the device; and a place there.
pub(super) fn place<F: Fabric>(
    posts: &mut [Post<F>],
    device: &str,
    wanted: Option<u16>,
) -> Option<Place> {
    let (worker, post) = posts
        .iter_mut()
        .enumerate()
        .filter(|(number, _)| wanted.is_none_or(|wanted| *number == usize::from(wanted)))
        .filter(|(_, p)| !p.lost && p.free_on(device) > 0)
        // Of equals the first: max_by_key would give the last.
        .min_by_key(|(_, p)| std::cmp::Reverse(p.free_on(device)))?;
    let lane = post.lane_on(device)?;
    let (index, generation) = post.places[lane].take()?;
    let conn = ConnId {
        worker: u16::try_from(worker).ok()?,
        index,
        generation,
    };
    Some(Place { conn, worker, lane })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_numbered_on_and_generations_differ() {
        let mut places = Places::new(10, 2);
        assert_eq!(places.take(), Some((10, 1)));
        assert_eq!(places.take(), Some((11, 1)));
        assert_eq!(places.take(), None);
        places.give_back(10);
        assert_eq!(places.take(), Some((10, 2)));
    }

    #[test]
    fn generations_wrap() {
        let mut places = Places::new(0, 1);
        places.generations[0] = GENERATIONS - 1;
        assert_eq!(places.take(), Some((0, 0)));
    }
}
