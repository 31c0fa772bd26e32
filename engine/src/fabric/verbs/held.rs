//! Which devices this process still has objects on: PDs, and what belongs to them.
//!
//! `rdma_get_devices` makes librdmacm look for devices, and close those that are gone. It counts its own
//! ids as users, not our PDs, CQs and registrations, so another engine of the process could have a
//! device closed under ours. Whoever is about to call it asks here first. Between the answer and the
//! call a device may still go; its ids are all destroyed before the kernel takes it from the list, so
//! that is a matter of microseconds.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Names of devices, one entry for each [`Device`](super::Device) that lives.
static HELD: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn held() -> MutexGuard<'static, Vec<String>> {
    // A list of names is whole after every step.
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn hold(name: &str) {
    held().push(name.into());
}

pub(super) fn release(name: &str) {
    let mut held = held();
    if let Some(i) = held.iter().position(|h| h == name) {
        held.swap_remove(i);
    }
}

/// A device that this process has objects on, and that user space can no longer open.
pub(super) fn held_but_gone() -> Option<String> {
    let held = held();
    if held.is_empty() {
        return None;
    }
    let here = openable();
    held.iter().find(|name| !here.contains(name)).cloned()
}

/// Devices that have a uverbs node, which is what libibverbs lists.
fn openable() -> Vec<String> {
    let nodes = fs::read_dir("/sys/class/infiniband_verbs");
    nodes.map_or_else(
        |_| Vec::new(),
        |nodes| {
            nodes
                .flatten()
                .filter_map(|node| fs::read_to_string(node.path().join("ibdev")).ok())
                .map(|name| name.trim().into())
                .collect()
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_held_as_often_as_it_was_opened() {
        let name = "no_such_device_0";
        assert_ne!(held_but_gone().as_deref(), Some(name));
        hold(name);
        hold(name);
        release(name);
        assert_eq!(held_but_gone().as_deref(), Some(name));
        release(name);
        release(name);
        assert_ne!(held_but_gone().as_deref(), Some(name));
    }
}
