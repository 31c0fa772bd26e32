//! What refuses a holder that was overtaken.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::Epoch;

/// It comes from a holder whose lease was taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{offered} is over: {newest} has been here. The lock was taken over; acquire it again")]
pub struct Stale {
    /// The epoch that it carries.
    pub offered: Epoch,
    /// The newest that has been seen.
    pub newest: Epoch,
}

/// Stands before what a [`RemoteLock`](super::RemoteLock) protects, at whoever owns that: every
/// message to it carries the sender's epoch, and one that is older than any before is refused.
///
/// Let **reads** pass it too, where a write will rest on them: they raise it, so that a late write of
/// the holder before cannot come between the new holder's read and its write, and be lost.
///
/// It guards what goes through it. RDMA WRITEs do not: a holder that was paused can still write memory
/// that it has the key of. Memory that needs fencing is written by messages to its owner,
/// or by windows that the owner takes back ([`Io::revoke`](crate::worker::Io::revoke)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fence {
    newest: Epoch,
}

impl Fence {
    /// Lets an epoch pass, and none older from here on.
    ///
    /// # Errors
    /// A newer one has been here: do nothing of what was asked.
    #[inline]
    pub fn admit(&mut self, offered: Epoch) -> Result<(), Stale> {
        if offered < self.newest {
            return Err(Stale {
                offered,
                newest: self.newest,
            });
        }
        self.newest = offered;
        Ok(())
    }

    /// The newest epoch that has passed.
    #[must_use]
    pub fn newest(&self) -> Epoch {
        self.newest
    }
}
