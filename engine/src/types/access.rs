//! What a NIC may do to memory.

use std::fmt;
use std::ops::BitOr;

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

    /// Let memory windows be bound to it: peers get access by those, each its own.
    pub const WINDOWS: Self = Self(16);

    /// Every right in `other` is here too.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These rights without `others`.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// A peer can reach the memory, in whatever way.
    #[must_use]
    pub const fn is_remote(self) -> bool {
        self.0 & Self::REMOTE_READ.0 != 0 || self.is_remote_writable()
    }

    /// A peer can change the memory at any moment, so no slice of it may be formed and no
    /// [`Pool`](crate::memory::Pool) may live in it.
    #[must_use]
    pub const fn is_remote_writable(self) -> bool {
        self.0 & (Self::REMOTE_WRITE.0 | Self::REMOTE_ATOMIC.0 | Self::WINDOWS.0) != 0
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
            (Self::WINDOWS, "windows"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_add_up() {
        let both = Access::LOCAL_WRITE | Access::REMOTE_READ;
        assert!(both.contains(Access::REMOTE_READ) && both.contains(Access::NONE));
        assert!(!both.contains(Access::REMOTE_READ | Access::REMOTE_WRITE));
        assert!(!both.is_remote_writable());
        assert!(both.is_remote() && Access::REMOTE_ATOMIC.is_remote());
        assert!(!Access::LOCAL_WRITE.is_remote() && !Access::NONE.is_remote());
        assert!((both | Access::REMOTE_ATOMIC).is_remote_writable());
        assert_eq!(both.to_string(), "local-write|remote-read");
        assert_eq!(Access::NONE.to_string(), "none");
    }
}
