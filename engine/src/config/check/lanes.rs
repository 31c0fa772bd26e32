//! A lane: the depths of its queues, its connections, and the CQ that holds what they may complete.
//!
//! ```text
//!  send_depth, recv_depth ≤ device
//!  connections_max ≤ QPs of the device / workers
//!  connections_max × (send_depth + recv_depth) ≤ CQ ≤ device
//! ```
//! What is different where the connections share their receives is in shared.rs.

use super::{Check, Share, part};
use crate::config::parse::Receives;
use crate::config::plan::LanePlan;
use crate::config::value::Field;
use crate::limits::{
    CONNECTIONS_DEFAULT, CONNECTIONS_MAX, CQ_DEPTH_DEFAULT_MAX, INLINE_DEFAULT_BYTES,
    POOL_SLOTS_DEFAULT, RECV_DEPTH_DEFAULT, SEND_DEPTH_DEFAULT,
};
use crate::types::DeviceLimits;

/// What a lane's queues may complete.
pub(super) struct Load {
    /// Depth of each send queue.
    pub(super) send: u32,
    pub(super) receives: Receives,
    /// Depth of each receive queue, or of the one that all share.
    pub(super) recv: u32,
}

impl Load {
    /// Completions of so many connections at once.
    fn completions(&self, connections: u32) -> u64 {
        let [connections, send, recv] = [connections, self.send, self.recv].map(u64::from);
        match self.receives {
            Receives::Own => connections * (send + recv),
            Receives::Shared => connections * send + recv,
        }
    }

    /// Connections whose completions a CQ holds.
    pub(super) fn fit(&self, cq_depth: u32) -> u32 {
        match self.receives {
            Receives::Own => cq_depth / (self.send + self.recv),
            Receives::Shared => cq_depth.saturating_sub(self.recv) / self.send,
        }
    }
}

impl Check<'_> {
    /// A lane whose connections have receives of their own; `None` if there is a fault.
    pub(super) fn lane(&mut self, device: &DeviceLimits, share: Share) -> Option<LanePlan> {
        let queues = &self.config.queues;
        let cq_room = self.cq_room(device);

        // Defaults leave room for the other queue.
        let room = cq_room.unwrap_or(u32::MAX);
        let room_beside = |other: &Field<u32>| {
            other
                .get()
                .map_or(room / 2, |other| room.saturating_sub(other))
        };
        let slots = self.config.pool.slots.or(POOL_SLOTS_DEFAULT);
        let send_default = SEND_DEPTH_DEFAULT.min(room_beside(&queues.recv_depth));
        let recv_default = RECV_DEPTH_DEFAULT
            .min(room_beside(&queues.send_depth))
            .min(slots.map_or(u32::MAX, |slots| slots - 1));
        let send = self.depth(
            "[queues] send_depth",
            &queues.send_depth,
            device,
            send_default,
        );
        let recv = self.depth(
            "[queues] recv_depth",
            &queues.recv_depth,
            device,
            recv_default,
        );
        let (cq_room, send, recv) = (cq_room?, send?, recv?);

        let load = Load {
            send,
            receives: Receives::Own,
            recv,
        };
        let connections = self.connections(device, share, load.fit(cq_room))?;
        Some(LanePlan {
            device: device.name.clone(),
            cq_depth: self.cq_depth(device, cq_room, &load, connections)?,
            send_depth: send,
            recv_depth: recv,
            shared_recv_depth: 0,
            inline_bytes: self.inline_bytes(),
            connections_max: connections,
        })
    }

    pub(super) fn inline_bytes(&self) -> u32 {
        let given = self.config.queues.inline_bytes.get();
        given.unwrap_or(INLINE_DEFAULT_BYTES)
    }

    /// Entries that the CQ has, or may have by default.
    pub(super) fn cq_room(&mut self, device: &DeviceLimits) -> Option<u32> {
        match &self.config.queues.cq_depth {
            Field::Bad => None,
            Field::Absent => Some(part(device.cq_depth_max).min(CQ_DEPTH_DEFAULT_MAX)),
            Field::Given { value, .. } if *value <= device.cq_depth_max => Some(*value),
            Field::Given { at, .. } => {
                self.faults.push(at, "[queues] cq_depth", || {
                    format!(
                        "at most {}, the depth of a CQ on {} (`ibv_devinfo -v -d {}`)",
                        device.cq_depth_max, device.name, device.name
                    )
                });
                None
            }
        }
    }

    pub(super) fn depth(
        &mut self,
        place: &'static str,
        field: &Field<u32>,
        device: &DeviceLimits,
        default: u32,
    ) -> Option<u32> {
        let value = field.or(default.min(part(device.qp_depth_max)).max(1))?;
        if value <= device.qp_depth_max {
            return Some(value);
        }
        let (place, at) = self.blame(&[(place, field, value)]);
        self.faults.push(&at, place, || {
            format!(
                "at most {}, the depth of a queue on {} (`ibv_devinfo -v -d {}`)",
                device.qp_depth_max, device.name, device.name
            )
        });
        None
    }

    /// The connections of the lane, by default no more than `most`: the device has the QPs, and the worker
    /// the numbers for them.
    pub(super) fn connections(
        &mut self,
        device: &DeviceLimits,
        share: Share,
        most: u32,
    ) -> Option<u32> {
        let Share { lanes, workers } = share;
        let default = CONNECTIONS_DEFAULT
            .min(most)
            .min(device.qp_max / workers)
            .min(CONNECTIONS_MAX / lanes)
            .max(1);
        let field = &self.config.queues.connections_max;
        let connections = field.or(default)?;
        let on_worker = u64::from(connections) * u64::from(lanes);
        let on_device = u64::from(connections) * u64::from(workers);
        let allowed = if on_worker > u64::from(CONNECTIONS_MAX) {
            format!(
                "at most {}: {lanes} devices make {on_worker} connections of one worker, which \
                 has at most {CONNECTIONS_MAX}",
                CONNECTIONS_MAX / lanes
            )
        } else if on_device > u64::from(device.qp_max) {
            format!(
                "at most {}: {workers} workers make {on_device} connections on {}, which has {} \
                 QPs",
                device.qp_max / workers,
                device.name,
                device.qp_max
            )
        } else {
            return Some(connections);
        };
        let (place, at) = self.blame(&[("[queues] connections_max", field, connections)]);
        self.faults.push(&at, place, || allowed);
        None
    }

    /// The depth of a CQ for all that the connections may complete; `None` if there is no CQ so deep.
    pub(super) fn cq_depth(
        &mut self,
        device: &DeviceLimits,
        cq_room: u32,
        load: &Load,
        connections: u32,
    ) -> Option<u32> {
        let queues = &self.config.queues;
        let need = load.completions(connections);
        if let Some(need) = u32::try_from(need).ok().filter(|need| *need <= cq_room) {
            let rounded = need.checked_next_power_of_two();
            let rounded = rounded.filter(|&depth| depth <= cq_room);
            return Some(queues.cq_depth.get().or(rounded).unwrap_or(need));
        }
        let &Load {
            send,
            receives,
            recv,
        } = load;
        let (recv_place, recv_field) = match receives {
            Receives::Own => ("[queues] recv_depth", &queues.recv_depth),
            Receives::Shared => ("[queues] shared_recv_depth", &queues.shared_recv_depth),
        };
        let (place, at) = self.blame(&[
            (
                "[queues] connections_max",
                &queues.connections_max,
                connections,
            ),
            ("[queues] cq_depth", &queues.cq_depth, cq_room),
            ("[queues] send_depth", &queues.send_depth, send),
            (recv_place, recv_field, recv),
        ]);
        self.faults.push(&at, place, || {
            let (sum, both) = match receives {
                Receives::Own => (
                    format!("(send_depth {send} + recv_depth {recv})"),
                    "send_depth + recv_depth",
                ),
                Receives::Shared => (
                    format!("send_depth {send} + shared_recv_depth {recv}"),
                    "send_depth + shared_recv_depth",
                ),
            };
            let depth = if matches!(queues.cq_depth, Field::Absent) {
                format!("the CQ's {cq_room} that {} has by default", device.name)
            } else {
                format!("the cq_depth of {cq_room}")
            };
            let fits = match load.fit(cq_room) {
                0 => format!("at most {cq_room} for {both}"),
                fit => format!("at most {fit} connections"),
            };
            let deeper = if need <= u64::from(device.cq_depth_max) {
                format!(", or cq_depth = {need}")
            } else {
                format!("; {} has CQs up to {}", device.name, device.cq_depth_max)
            };
            format!(
                "{connections} connections × {sum} = {need} completions, above {depth}; \
                 {fits}{deeper}"
            )
        });
        None
    }
}
