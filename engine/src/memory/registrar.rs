//! What a fabric does with a region before a NIC may touch it.
//!
//! ```text
//!  Arc<Region> ── Registrar::register(access) ─► Registration { lkey, rkey, the Arc }
//! ```
//! The traits are here so that pools and workers can speak of keys without naming a fabric.
//! Imports types. Implemented by fabric; imported by worker and control.

use super::Region;
use crate::types::{Lkey, Rkey};
use std::fmt;
use std::io;
use std::ops::BitOr;
use std::sync::Arc;

/// What a NIC may do to a region besides reading it for our own sends. The least that the use needs:
/// a receive pool is [`LOCAL_WRITE`](Self::LOCAL_WRITE) and no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(u8);

impl Access {
    /// Read it for our own sends and RDMA WRITEs.
    pub const NONE: Self = Self(0);
    /// Write it for our own receives, RDMA READs and atomics.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Let a peer that has the rkey read it.
    pub const REMOTE_READ: Self = Self(2);
    /// Let a peer that has the rkey write it. Verbs want `LOCAL_WRITE` with it.
    pub const REMOTE_WRITE: Self = Self(4);
    /// Let a peer that has the rkey do atomics on it. Verbs want `LOCAL_WRITE` with it.
    pub const REMOTE_ATOMIC: Self = Self(8);

    /// Every right in `other` is here too.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// A peer can change the memory at any moment, so no slice of it may be formed and no
    /// [`Pool`](super::Pool) may live in it.
    #[must_use]
    pub const fn is_remote_writable(self) -> bool {
        self.0 & (Self::REMOTE_WRITE.0 | Self::REMOTE_ATOMIC.0) != 0
    }
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::LOCAL_WRITE, "local-write"),
            (Self::REMOTE_READ, "remote-read"),
            (Self::REMOTE_WRITE, "remote-write"),
            (Self::REMOTE_ATOMIC, "remote-atomic"),
        ];
        let mut separator = "";
        for (_, name) in names.iter().filter(|(right, _)| self.contains(*right)) {
            write!(f, "{separator}{name}")?;
            separator = "|";
        }
        if separator.is_empty() {
            f.write_str("none")?;
        }
        Ok(())
    }
}

/// One device (or its like) that can be told of memory.
pub trait Registrar {
    /// What it gives for it.
    type Registration: Registration;

    /// Tells the device of all of `region`.
    ///
    /// # Errors
    ///
    /// As the device says; for verbs `ENOMEM` mostly means that `ulimit -l` is too low.
    fn register(&self, region: Arc<Region>, access: Access) -> io::Result<Self::Registration>;
}

/// A region that a device knows. It holds the `Arc<Region>`, and gives it up only after the device
/// has forgotten the region, so the memory outlives every access of the device.
pub trait Registration: Send + 'static {
    /// Names the region in our own work requests.
    fn lkey(&self) -> Lkey;
    /// Names the region in a peer's work requests.
    fn rkey(&self) -> Rkey;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_add_up() {
        let both = Access::LOCAL_WRITE | Access::REMOTE_READ;
        assert!(both.contains(Access::REMOTE_READ) && both.contains(Access::NONE));
        assert!(!both.contains(Access::REMOTE_READ | Access::REMOTE_WRITE));
        assert!(!both.is_remote_writable());
        assert!((both | Access::REMOTE_ATOMIC).is_remote_writable());
        assert_eq!(both.to_string(), "local-write|remote-read");
        assert_eq!(Access::NONE.to_string(), "none");
    }
}
