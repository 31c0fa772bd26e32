//! Receives that the connections of a lane share: the queue, the shares, and the pool that they need.
//!
//! ```text
//!  connections_max × SHARED_RECV_SHARE_MIN ≤ shared_recv_depth ≤ device
//!  connections_max × send_depth + shared_recv_depth ≤ CQ
//!  devices × shared_recv_depth < [pool] slots
//! ```

use super::lanes::Load;
use super::{Check, Share, part};
use crate::config::parse::Receives;
use crate::config::plan::LanePlan;
use crate::limits::{
    POOL_SLOTS_DEFAULT, SEND_DEPTH_DEFAULT, SHARED_RECV_DEPTH_DEFAULT, SHARED_RECV_SHARE_MIN,
};
use crate::types::DeviceLimits;

impl Check<'_> {
    /// Whose the receives are; `None` if that has a fault, or a key that does not belong to it.
    pub(super) fn receives(&mut self) -> Option<Receives> {
        let queues = &self.config.queues;
        let receives = queues.receives.or(Receives::Own)?;
        let (place, stray, allowed) = match receives {
            Receives::Own => (
                "[queues] shared_recv_depth",
                &queues.shared_recv_depth,
                "nothing, or with it receives = \"shared\": each connection has recv_depth receives \
                 of its own",
            ),
            Receives::Shared => (
                "[queues] recv_depth",
                &queues.recv_depth,
                "nothing, as receives = \"shared\": the share of a connection is \
                 shared_recv_depth / connections_max",
            ),
        };
        let Some(at) = stray.at() else {
            return Some(receives);
        };
        self.faults.push(at, place, || allowed.to_owned());
        None
    }

    /// A lane whose connections share their receives; `None` if there is a fault.
    pub(super) fn shared_lane(&mut self, device: &DeviceLimits, share: Share) -> Option<LanePlan> {
        let queues = &self.config.queues;
        let cq_room = self.cq_room(device);
        let depth = self.shared_depth(device, share, cq_room.unwrap_or(u32::MAX));
        let room = cq_room.unwrap_or(u32::MAX);
        let send_default = SEND_DEPTH_DEFAULT.min(room.saturating_sub(depth.unwrap_or(0)));
        let send = self.depth(
            "[queues] send_depth",
            &queues.send_depth,
            device,
            send_default,
        );
        let (cq_room, depth, send) = (cq_room?, depth?, send?);

        let load = Load {
            send,
            receives: Receives::Shared,
            recv: depth,
        };
        let most = load.fit(cq_room).min(depth / SHARED_RECV_SHARE_MIN);
        let connections = self.connections(device, share, most)?;
        self.shares_suffice(connections, depth)?;
        Some(LanePlan {
            device: device.name.clone(),
            cq_depth: self.cq_depth(device, cq_room, &load, connections)?,
            send_depth: send,
            recv_depth: depth / connections,
            shared_recv_depth: depth,
            inline_bytes: self.inline_bytes(),
            connections_max: connections,
        })
    }

    /// The depth of the shared queue, which the device has and the pool can fill.
    fn shared_depth(&mut self, device: &DeviceLimits, share: Share, room: u32) -> Option<u32> {
        let field = &self.config.queues.shared_recv_depth;
        let most = device.shared_recv_depth_max;
        if most < SHARED_RECV_SHARE_MIN {
            let at = self.config.queues.receives.at()?;
            self.faults.push(at, "[queues] receives", || {
                format!("\"own\": {} has no shared receive queues", device.name)
            });
            return None;
        }
        let slots = self.config.pool.slots.or(POOL_SLOTS_DEFAULT);
        let default = SHARED_RECV_DEPTH_DEFAULT
            .min(part(most))
            .min(room / 2)
            .min(slots.map_or(u32::MAX, |slots| slots / 2 / share.lanes))
            .max(SHARED_RECV_SHARE_MIN);
        let depth = field.or(default)?;
        if depth > most {
            let (place, at) = self.blame(&[("[queues] shared_recv_depth", field, depth)]);
            self.faults.push(&at, place, || {
                format!(
                    "at most {most}, the depth of a shared receive queue on {} (`ibv_devinfo -v \
                     -d {}`)",
                    device.name, device.name
                )
            });
            return None;
        }
        let slots = slots?;
        let filled = u64::from(depth) * u64::from(share.lanes);
        if filled >= u64::from(slots) {
            let (place, at) = self.blame(&[
                ("[queues] shared_recv_depth", field, depth),
                ("[pool] slots", &self.config.pool.slots, slots),
            ]);
            let lanes = share.lanes;
            self.faults.push(&at, place, || {
                format!(
                    "at most {} for shared_recv_depth, or [pool] slots = {} and more, now {slots}: a \
                     pool holds the shared receives of {lanes} devices and one send",
                    (slots - 1) / lanes,
                    filled + 1
                )
            });
            return None;
        }
        Some(depth)
    }

    /// Each connection has a share that it can live on.
    fn shares_suffice(&mut self, connections: u32, depth: u32) -> Option<()> {
        if depth / connections >= SHARED_RECV_SHARE_MIN {
            return Some(());
        }
        let queues = &self.config.queues;
        let (place, at) = self.blame(&[
            (
                "[queues] connections_max",
                &queues.connections_max,
                connections,
            ),
            (
                "[queues] shared_recv_depth",
                &queues.shared_recv_depth,
                depth,
            ),
        ]);
        self.faults.push(&at, place, || {
            format!(
                "{connections} connections share {depth} receives, and each needs \
                 {SHARED_RECV_SHARE_MIN}: at most {} connections, or shared_recv_depth = {}",
                depth / SHARED_RECV_SHARE_MIN,
                u64::from(connections) * u64::from(SHARED_RECV_SHARE_MIN)
            )
        });
        None
    }
}
