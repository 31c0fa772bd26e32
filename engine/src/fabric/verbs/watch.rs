//! Learns that a device goes away when no id of ours is on it: rdma_cm sends DEVICE_REMOVAL to ids
//! only, and the kernel's removal waits until this process has closed the device.
//!
//! A removal takes the device's node from `/dev/infiniband` first (devtmpfs), so that is watched
//! (`inotify(7)`). Where the nodes are not the kernel's own, as in a container that was given
//! copies, nothing is seen, and a device without an id stays held.
#![allow(
    unsafe_code,
    reason = "the node's name is read from libibverbs' device"
)]

use super::device::Device;
use crate::fabric::{AsyncEvent, AsyncSubject};
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use std::collections::VecDeque;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

const NODES: &str = "/dev/infiniband";

/// Watches the nodes of devices.
#[derive(Debug)]
pub(super) struct Watch {
    inotify: Option<OwnedFd>,
    dir: PathBuf,
    /// Devices seen to be gone, to be told of.
    gone: VecDeque<String>,
    told: Vec<String>,
}

impl Watch {
    /// To be called before the devices are opened, so that none goes unseen.
    pub(super) fn open() -> Self {
        Self::of(Path::new(NODES))
    }

    fn of(dir: &Path) -> Self {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).and_then(|fd| {
            inotify::add_watch(&fd, dir, WatchFlags::DELETE)?;
            Ok(fd)
        });
        if let Err(error) = &inotify {
            let dir = dir.display();
            tracing::warn!(%dir, %error, "is not watched: a device that is removed while it has no connection stays held");
        }
        Self {
            inotify: inotify.ok(),
            dir: dir.into(),
            gone: VecDeque::new(),
            told: Vec::new(),
        }
    }

    /// Readable when [`Watch::next`] has something.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    /// A device whose node is gone, each once.
    pub(super) fn next(&mut self, devices: &[Device]) -> Option<AsyncEvent> {
        if self.has_deletions() {
            let nodes = devices.iter().map(|d| (d.limits().name.clone(), node(d)));
            self.look_for(nodes);
        }
        let device = self.gone.pop_front()?;
        Some(AsyncEvent {
            device,
            subject: AsyncSubject::Device,
            name: "device removed".into(),
            comm_est: false,
            fatal: true,
            removed: true,
        })
    }

    /// Reads until there are none. Which they are does not matter: a number may be another device's
    /// by now, so the nodes are looked at.
    fn has_deletions(&self) -> bool {
        let Some(fd) = &self.inotify else {
            return false;
        };
        let mut bytes = [MaybeUninit::uninit(); 1024];
        let mut deletions = Reader::new(fd, &mut bytes);
        let mut any = false;
        while deletions.next().is_ok() {
            any = true;
        }
        any
    }

    fn look_for(&mut self, nodes: impl Iterator<Item = (String, String)>) {
        for (device, node) in nodes {
            if !self.told.contains(&device) && !self.dir.join(node).exists() {
                self.told.push(device.clone());
                self.gone.push_back(device);
            }
        }
    }
}

/// Name of a device's node, such as `uverbs0`.
fn node(device: &Device) -> String {
    // SAFETY: the context is open for as long as the Device lives, and so is its ibv_device, whose
    // name libibverbs ends with a zero within the array.
    let name = unsafe { CStr::from_ptr((*(*device.context()).device).dev_name.as_ptr()) };
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_node_that_goes_is_seen_once_and_others_are_not() {
        let dir = std::env::temp_dir().join(format!("spinwire-watch-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let put = |name: &str| fs::write(dir.join(name), "").unwrap();
        put("uverbs0");
        put("uverbs1");
        put("stranger");
        let nodes = || {
            let pair = |d: &str, n: &str| (d.to_owned(), n.to_owned());
            [pair("rxe0", "uverbs0"), pair("rxe1", "uverbs1")].into_iter()
        };
        let mut watch = Watch::of(&dir);
        assert!(watch.fd().is_some());
        assert!(!watch.has_deletions());

        fs::remove_file(dir.join("stranger")).unwrap();
        assert!(watch.has_deletions());
        watch.look_for(nodes());
        assert!(watch.gone.is_empty(), "{watch:?}");

        fs::remove_file(dir.join("uverbs1")).unwrap();
        assert!(watch.has_deletions() && !watch.has_deletions());
        watch.look_for(nodes());
        watch.look_for(nodes());
        assert_eq!(watch.gone, ["rxe1"]);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn without_the_directory_nothing_is_seen() {
        let mut watch = Watch::of(Path::new("/nonexistent/infiniband"));
        assert!(watch.fd().is_none());
        assert_eq!(watch.next(&[]), None);
    }
}
