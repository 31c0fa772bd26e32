//! The connections of one worker: queues, phase, and where a completion finds them.
//!
//! ```text
//!  Vacant ─Adopt─► Open ─close, error─► Closing ─Stop─► Stopped ─Flush─► Flushing ─► Drained
//!     ▲                     └───────────Stop──────────────┘                            │
//!     └──────────────────────────────QpGone────────────────────────────────────────────┘
//! ```
//! All memory is taken when the worker starts; a connection only fills it.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::recv_queue::RecvQueue;
use super::send_queue::SendQueue;
use super::windows::Windows;
use super::{CloseReason, ConnId, Peer};
use crate::types::{Nanos, QpNum};

/// What a worker may do with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No connection.
    Vacant,
    /// Posts and completes.
    Open,
    /// Takes no new sends; asks for its close when the last completed, or at the deadline.
    Closing(Nanos),
    /// Posts nothing; the QP may still complete.
    Stopped,
    /// The QP is in ERR: waits for flushes until the deadline.
    Flushing(Nanos),
    /// The posting half went back to control.
    Drained,
}

impl Phase {
    /// Receives are posted, and what is queued to be sent is.
    #[inline]
    pub(crate) fn is_up(self) -> bool {
        matches!(self, Self::Open | Self::Closing(_))
    }
}

/// One place for a connection.
pub(crate) struct Connection {
    pub(crate) id: ConnId,
    /// The words of its work requests but for their sequence; 0 of a vacant place.
    pub(crate) recv_key: u64,
    pub(crate) send_key: u64,
    pub(crate) lane: u8,
    /// By which completions of shared receives name it.
    pub(crate) number: QpNum,
    pub(crate) phase: Phase,
    /// The peer, once it is known; the service hears of the connection then.
    pub(crate) peer: Option<Peer>,
    /// `connected` was called, so `disconnected` is owed.
    pub(crate) announced: bool,
    /// Why it ends; the first reason stands.
    pub(crate) reason: Option<CloseReason>,
    /// Control was asked to close it.
    pub(crate) asked: bool,
    pub(crate) message_bytes_max: u32,
    pub(crate) sends: SendQueue,
    pub(crate) recvs: RecvQueue,
    pub(crate) windows: Windows,
    /// On the list of those with sends to post.
    pub(crate) dirty: bool,
    /// On the list of those with receives to post.
    pub(crate) hungry: bool,
    /// On the list of those with a deadline.
    pub(crate) timed: bool,
}

impl Connection {
    fn vacant(worker: u16, index: u16, lane: u8, depths: &LaneCapacity) -> Self {
        Self {
            // No generation is ever this large, so nothing finds a place before its first Adopt.
            id: ConnId {
                worker,
                index,
                generation: u32::MAX,
            },
            recv_key: 0,
            send_key: 0,
            lane,
            number: QpNum(0),
            phase: Phase::Vacant,
            peer: None,
            announced: false,
            reason: None,
            asked: false,
            message_bytes_max: 0,
            sends: SendQueue::new(depths.send_depth),
            recvs: if depths.shared_recv_depth > 0 {
                RecvQueue::shared(depths.recv_depth)
            } else {
                RecvQueue::new(depths.recv_depth)
            },
            windows: Windows::default(),
            dirty: false,
            hungry: false,
            timed: false,
        }
    }

    /// The first reason stands: later ones are its consequences.
    pub(crate) fn blame(&mut self, reason: CloseReason) {
        self.reason.get_or_insert(reason);
    }

    /// The QP is destroyed, and its windows with it: nothing finds the place any more, and its receives
    /// are the pool's again.
    pub(crate) fn vacate(&mut self) {
        self.recvs.reclaim();
        self.windows = Windows::default();
        (self.send_key, self.recv_key) = (0, 0);
        self.phase = Phase::Vacant;
    }

    /// Puts it on the list of those with sends to post.
    #[inline]
    pub(crate) fn wants_doorbell(&mut self, dirty: &mut Vec<u16>) {
        if !self.dirty {
            self.dirty = true;
            dirty.push(self.id.index);
        }
    }

    /// Work requests that the NIC has.
    pub(crate) fn outstanding(&self) -> u32 {
        self.sends.outstanding() + self.recvs.outstanding()
    }
}

/// Every place of a worker. Lane k has a range of its own, for its depths.
pub(crate) struct Table {
    places: Box<[Connection]>,
}

/// Places and depths of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneCapacity {
    /// Connections.
    pub connections: u32,
    /// Work requests on each send queue.
    pub send_depth: u32,
    /// Work requests on each receive queue; of a shared one each connection's share, of which the sum
    /// over all connections is at most `shared_recv_depth`.
    pub recv_depth: u32,
    /// Work requests of the lane's shared receive queue; 0 where each connection has its own.
    pub shared_recv_depth: u32,
}

impl Table {
    pub(crate) fn new(worker: u16, lanes: &[LaneCapacity]) -> Self {
        let places = lanes.iter().enumerate().flat_map(|(lane, c)| {
            (0..c.connections).map(move |_| (u8::try_from(lane).unwrap_or(u8::MAX), *c))
        });
        let places = places
            .zip(0..=u16::MAX)
            .map(|((lane, c), index)| Connection::vacant(worker, index, lane, &c))
            .collect();
        Self { places }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// The connection that `id` names, if it is still there.
    #[inline]
    pub(crate) fn get(&mut self, id: ConnId) -> Option<&mut Connection> {
        let place = self.places.get_mut(usize::from(id.index))?;
        (place.id.word() == id.word() && place.phase != Phase::Vacant).then_some(place)
    }

    /// The connection that `id` names, if the service may post on it.
    #[inline]
    pub(crate) fn open(&mut self, id: ConnId) -> Option<&mut Connection> {
        self.get(id)
            .filter(|c| c.phase == Phase::Open && c.announced)
    }

    /// The place that a completion names, if there is one; whether it is the same connection's still,
    /// its keys say.
    #[inline]
    pub(crate) fn place(&mut self, index: u16) -> Option<&mut Connection> {
        self.places.get_mut(usize::from(index))
    }

    #[inline]
    pub(crate) fn at(&mut self, index: u16) -> &mut Connection {
        &mut self.places[usize::from(index)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_have_ranges_of_their_own() {
        let lane = |connections, send_depth| LaneCapacity {
            connections,
            send_depth,
            recv_depth: 8,
            shared_recv_depth: 0,
        };
        let mut table = Table::new(0, &[lane(2, 4), lane(3, 16)]);
        assert_eq!(table.len(), 5);
        assert_eq!((table.at(1).lane, table.at(1).sends.room()), (0, 4));
        assert_eq!((table.at(2).lane, table.at(2).sends.room()), (1, 16));
    }

    #[test]
    fn an_old_name_finds_nothing() {
        let lane = LaneCapacity {
            connections: 1,
            send_depth: 4,
            recv_depth: 4,
            shared_recv_depth: 0,
        };
        let mut table = Table::new(0, &[lane]);
        let id = ConnId {
            worker: 0,
            index: 0,
            generation: 7,
        };
        assert!(table.get(id).is_none());
        let place = table.at(0);
        (place.id, place.phase) = (id, Phase::Open);
        assert!(table.get(id).is_some());
        assert!(
            table
                .get(ConnId {
                    generation: 6,
                    ..id
                })
                .is_none()
        );
        assert!(table.get(ConnId { index: 9, ..id }).is_none());
    }
}
