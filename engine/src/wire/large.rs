//! Messages larger than a buffer: the frame that offers one, and the frame that ends it.
//!
//! ```text
//!   Large: the receiver may READ the message from the sender's memory
//!   0          8          16     20     24      28       32
//!   ├──────────┼──────────┼──────┼──────┼───────┼────────┤
//!   │ addr     │ tag      │ id   │ len  │ rkey  │ 0      │
//!   │ u64      │ u64      │ u32  │ u32  │ u32   │ u32    │
//!
//!   Finish: the receiver reads no more of it; the memory is the sender's again
//!   0      4        6      8
//!   ├──────┼────────┼──────┤
//!   │ id   │ status │ 0    │    status: 1 it has read all, 2 it does not want it
//!   │ u32  │ u16    │ u16  │
//! ```
//! Each side numbers its large messages from 0 on, one by one, modulo 2^32, so an id that comes again
//! is known for what it is. The tag is the embedder's own word. A side sends these frames only to a peer
//! whose hello has [`Features::LARGE`](super::Features::LARGE).
//!
//! Imports limits and types. Imported by header and framed.

use super::{at, put};
use crate::limits::LARGE_BYTES_MAX;
use crate::types::{Access, RemoteRegion, Rkey};
use std::fmt;

/// Names a large message among those of its sender on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LargeId(pub u32);

impl LargeId {
    /// The id behind this one.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

impl fmt::Display for LargeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// An offer or end of a large message that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LargeError {
    /// Not as many bytes as such a frame has.
    #[error("{seen} B of a large message's frame, not {must}")]
    Length {
        /// Bytes it has.
        must: usize,
        /// Bytes that came.
        seen: usize,
    },
    /// A message of no bytes, or one that runs over the end of the address space.
    #[error("a large message, {len} B at {addr:#x}, is empty or runs over the end of memory")]
    Region {
        /// Where it is said to begin.
        addr: u64,
        /// How many bytes it is said to have.
        len: u32,
    },
    /// Longer than [`LARGE_BYTES_MAX`].
    #[error("a large message of {0} B: no more than {LARGE_BYTES_MAX} B are allowed")]
    TooLong(u32),
    /// The bytes that must be zero are not.
    #[error("reserved bytes of a large message's frame are {0:#x}, not 0")]
    Reserved(u32),
    /// A status that this version does not know.
    #[error("status {0} of a finished large message is not known")]
    Status(u16),
}

/// A message to be READ. Holding one proves: 0 < `len` ≤ [`LARGE_BYTES_MAX`], and `addr + len` does not
/// wrap. Whether the memory is there and may be read is for the sender's device to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeOffer {
    id: LargeId,
    tag: u64,
    len: u32,
    region: RemoteRegion,
}

impl LargeOffer {
    /// Bytes of an encoded offer.
    pub const BYTES: usize = 32;

    /// An offer of `len` bytes at `addr`. `tag` is the embedder's own word.
    ///
    /// # Errors
    /// The message is empty, too long, or wraps.
    pub fn new(id: LargeId, tag: u64, addr: u64, len: u32, rkey: Rkey) -> Result<Self, LargeError> {
        if len > LARGE_BYTES_MAX {
            return Err(LargeError::TooLong(len));
        }
        let region = RemoteRegion::parse(addr, len.into(), rkey, Access::REMOTE_READ);
        let region = region.ok_or(LargeError::Region { addr, len })?;
        Ok(Self {
            id,
            tag,
            len,
            region,
        })
    }

    /// The payload of an offer.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, self.region.addr().to_le_bytes());
        put(&mut bytes, 8, self.tag.to_le_bytes());
        put(&mut bytes, 16, self.id.0.to_le_bytes());
        put(&mut bytes, 20, self.len.to_le_bytes());
        put(&mut bytes, 24, self.region.rkey().0.to_le_bytes());
        bytes
    }

    /// Reads the payload of an offer.
    ///
    /// # Errors
    /// Not exactly [`BYTES`](Self::BYTES) bytes, reserved ones that are not 0, or what
    /// [`new`](Self::new) refuses.
    pub fn parse(payload: &[u8]) -> Result<Self, LargeError> {
        let Ok(bytes) = <&[u8; Self::BYTES]>::try_from(payload) else {
            let (must, seen) = (Self::BYTES, payload.len());
            return Err(LargeError::Length { must, seen });
        };
        let reserved = u32::from_le_bytes(at(bytes, 28));
        if reserved != 0 {
            return Err(LargeError::Reserved(reserved));
        }
        Self::new(
            LargeId(u32::from_le_bytes(at(bytes, 16))),
            u64::from_le_bytes(at(bytes, 8)),
            u64::from_le_bytes(at(bytes, 0)),
            u32::from_le_bytes(at(bytes, 20)),
            Rkey(u32::from_le_bytes(at(bytes, 24))),
        )
    }

    /// Its name until it is finished.
    #[must_use]
    pub const fn id(&self) -> LargeId {
        self.id
    }

    /// The embedder's own word.
    #[must_use]
    pub const fn tag(&self) -> u64 {
        self.tag
    }

    /// Bytes of the message; never 0.
    #[must_use]
    pub const fn len_bytes(&self) -> u32 {
        self.len
    }

    /// Where the message is, for READs.
    #[must_use]
    pub const fn region(&self) -> &RemoteRegion {
        &self.region
    }
}

/// How the receiver ended a large message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishStatus {
    /// It has read every byte.
    Done,
    /// It does not want the message, or not the rest of it.
    Refused,
}

impl FinishStatus {
    /// Every status.
    pub const ALL: [Self; 2] = [Self::Done, Self::Refused];

    const fn number(self) -> u16 {
        match self {
            Self::Done => 1,
            Self::Refused => 2,
        }
    }
}

/// The receiver reads no more of a large message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Which message.
    pub id: LargeId,
    /// How it ended.
    pub status: FinishStatus,
}

impl Finish {
    /// Bytes of an encoded end.
    pub const BYTES: usize = 8;

    /// The payload of an end.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, self.id.0.to_le_bytes());
        put(&mut bytes, 4, self.status.number().to_le_bytes());
        bytes
    }

    /// Reads the payload of an end.
    ///
    /// # Errors
    /// Not exactly [`BYTES`](Self::BYTES) bytes, reserved ones that are not 0, or a status that is not
    /// known.
    pub fn parse(payload: &[u8]) -> Result<Self, LargeError> {
        let Ok(bytes) = <&[u8; Self::BYTES]>::try_from(payload) else {
            let (must, seen) = (Self::BYTES, payload.len());
            return Err(LargeError::Length { must, seen });
        };
        let reserved = u16::from_le_bytes(at(bytes, 6));
        if reserved != 0 {
            return Err(LargeError::Reserved(reserved.into()));
        }
        let number = u16::from_le_bytes(at(bytes, 4));
        let status = FinishStatus::ALL.into_iter().find(|s| s.number() == number);
        let status = status.ok_or(LargeError::Status(number))?;
        let id = LargeId(u32::from_le_bytes(at(bytes, 0)));
        Ok(Self { id, status })
    }
}

#[cfg(test)]
#[path = "large_tests.rs"]
mod tests;
