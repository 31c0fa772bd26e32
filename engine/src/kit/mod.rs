//! Words of a peer's memory that several connections share: a counter, and a lock with a lease.
//!
//! ```text
//!  RemoteCounter ── FAA ──┐                              Fence, at whoever owns what
//!  RemoteLock ───── CAS ──┴─► 8 bytes at the peer        the lock protects: older epochs
//!       │ epoch                                          are refused
//!       └──────────── in every message to it ──────────────────▲
//! ```
//! Examples of FAA and CAS that are fit for use, and state machines, not threads: a call posts one
//! operation, the service gives its completion back, nothing blocks and nothing allocates. They work
//! with [`Io`] and [`FramedIo`] alike, and with whatever else implements [`Atomics`].
//!
//! **What atomic means.** Operations are atomic among the RDMA atomics of the one device that serves
//! them. They are not atomic with the peer's CPU, nor with atomics that come to the same memory by
//! another device, nor with RDMA WRITEs. So the peer writes the word before it offers the memory, and
//! leaves it alone; what it reads there may be old. On a device without atomics (iWARP) every call gives
//! [`PostError::Unsupported`].
//!
//! The memory must be [exposed](crate::WorkerInfo::expose) for REMOTE_ATOMIC, and the
//! [`Offer`](crate::control::Offer) of its side must allow that access.
//!
//! Imports worker, framed, types. Imported by programs.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod counter;
mod fence;
mod lock;
#[cfg(all(test, not(loom)))]
mod lock_sim;
#[cfg(all(test, not(loom)))]
mod lock_tests;
mod lock_word;

pub use counter::RemoteCounter;
pub use fence::{Fence, Stale};
pub use lock::{LockError, LockEvent, LockTerms, RemoteLock, TermsError};
pub use lock_word::{EPOCH_MAX, Epoch, OWNER_MAX, Owner};

use crate::framed::{self, FramedIo, Operation};
use crate::types::RemoteRegion;
use crate::worker::{self, ConnId, Io, Outcome, PostError, Token, word_of};

/// Hands that can post atomics.
pub trait Atomics {
    /// As [`Io::compare_swap`].
    ///
    /// # Errors
    /// Nothing was posted.
    fn compare_swap(
        &mut self,
        at: &RemoteWord,
        expect: u64,
        swap: u64,
        token: Token,
    ) -> Result<(), PostError>;

    /// As [`Io::fetch_add`].
    ///
    /// # Errors
    /// Nothing was posted.
    fn fetch_add(&mut self, at: &RemoteWord, add: u64, token: Token) -> Result<(), PostError>;
}

macro_rules! atomics_of {
    ($hands:ident) => {
        impl Atomics for $hands<'_> {
            fn compare_swap(
                &mut self,
                at: &RemoteWord,
                expect: u64,
                swap: u64,
                token: Token,
            ) -> Result<(), PostError> {
                $hands::compare_swap(self, at.conn, &at.region, at.offset, expect, swap, token)
            }

            fn fetch_add(
                &mut self,
                at: &RemoteWord,
                add: u64,
                token: Token,
            ) -> Result<(), PostError> {
                $hands::fetch_add(self, at.conn, &at.region, at.offset, add, token)
            }
        }
    };
}
atomics_of!(Io);
atomics_of!(FramedIo);

/// 8 bytes at a peer, by a connection to it. Holding one proves: they lie in a region that the peer
/// offered for atomics, and 8 divides their address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteWord {
    conn: ConnId,
    region: RemoteRegion,
    offset: u64,
}

impl RemoteWord {
    /// The 8 bytes at `offset` of a region that the peer of `conn` offered.
    ///
    /// # Errors
    /// [`PostError::NotAllowed`], [`PostError::OutOfRegion`] or [`PostError::Misaligned`].
    pub fn new(conn: ConnId, region: &RemoteRegion, offset: u64) -> Result<Self, PostError> {
        word_of(region, offset)?;
        Ok(Self {
            conn,
            region: *region,
            offset,
        })
    }

    /// The connection that it is reached by.
    #[must_use]
    pub fn conn(&self) -> ConnId {
        self.conn
    }
}

/// How an atomic ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It was executed, and the word was this before.
    Was(u64),
    /// The NIC never had it: it may be asked for again.
    NeverPosted,
    /// It may have been executed, or not, and the connection is ending.
    Unknown,
}

impl Answer {
    fn of(outcome: Outcome, old: Option<u64>) -> Self {
        match (outcome, old) {
            (Outcome::Done, Some(old)) => Self::Was(old),
            (Outcome::NeverPosted, _) => Self::NeverPosted,
            // Done without a value was no atomic, so nothing is known of one.
            (Outcome::Unknown(_) | Outcome::Done, _) => Self::Unknown,
        }
    }
}

impl From<&worker::Completed> for Answer {
    fn from(completed: &worker::Completed) -> Self {
        Self::of(completed.outcome, completed.old_value())
    }
}

impl From<&framed::Completed> for Answer {
    fn from(completed: &framed::Completed) -> Self {
        let old = match completed.operation {
            Operation::Atomic(old) => old,
            Operation::Sent(_) | Operation::Written(_) | Operation::Read(_) => None,
        };
        Self::of(completed.outcome, old)
    }
}
