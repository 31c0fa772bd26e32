//! A device that goes away: its connections end, its lanes are dropped by their workers, and the
//! connection manager closes it. The kernel waits for that.
//!
//! ```text
//!  DEVICE_REMOVAL of an id, or the fabric's own look at its devices
//!   └► listeners and connections closed ─► DropLane to each worker ─► LaneDropped
//!                                             CQ, pool registration        │
//!                                    fabric.forget_device, until closed ◄──┘
//! ```

use super::machine::Input;
use super::{Control, Handle};
use crate::fabric::Fabric;
use crate::worker::{CloseReason, Command};

impl<F: Fabric> Control<F> {
    /// Takes no more connections on the device and ends those that it has.
    pub(super) fn begin_removal(&mut self, device: String) {
        if self.removals.contains(&device) {
            return;
        }
        tracing::warn!(%device, "the device is being removed: everything on it ends");
        for post in &mut self.posts {
            post.close_lane(&device);
        }
        self.unlisten_on(&device);
        let handles: Vec<Handle> = self.on_device(&device);
        self.removals.push(device);
        for handle in handles {
            self.feed(handle, Input::Close(CloseReason::DeviceRemoved));
        }
    }

    fn unlisten_on(&mut self, device: &str) {
        let bound = |id| self.fabric.device_name(id).as_deref() == Some(device);
        let on_it = self.listeners.iter().filter(|(_, l)| bound(&l.id));
        let handles: Vec<Handle> = on_it.map(|(handle, _)| *handle).collect();
        for handle in handles {
            self.unlisten(handle);
        }
    }

    /// Ends a listener whose device goes away, if the handle is one.
    pub(super) fn unlisten(&mut self, handle: Handle) {
        if let Some(listener) = self.listeners.remove(&handle) {
            tracing::warn!(at = %listener.at, "the device of a listener was removed");
            self.by_id.remove(&F::key(&listener.id));
            self.fabric.destroy_id(listener.id);
        }
    }

    fn on_device(&self, device: &str) -> Vec<Handle> {
        self.conns
            .values()
            .filter(|c| {
                let id = c.id.as_ref();
                c.device == device
                    || id.and_then(|id| self.fabric.device_name(id)).as_deref() == Some(device)
            })
            .map(|c| c.handle)
            .collect()
    }

    /// Takes every removal as far as it goes now.
    pub(super) fn advance_removals(&mut self) {
        if self.removals.is_empty() {
            return;
        }
        for device in std::mem::take(&mut self.removals) {
            if !self.removed(&device) {
                self.removals.push(device);
            }
        }
    }

    fn removed(&mut self, device: &str) -> bool {
        if !self.on_device(device).is_empty() {
            return false;
        }
        let mut lanes = 0;
        for post in &mut self.posts {
            if let Some(lane) = post.lane_to_drop(device) {
                lanes += 1;
                if post.ask_to_drop(lane) {
                    post.send(Command::DropLane(u8::try_from(lane).unwrap_or(u8::MAX)));
                }
            }
        }
        if lanes > 0 || !self.fabric.forget_device(device) {
            return false;
        }
        tracing::warn!(%device, "the device is given back");
        true
    }
}
