//! Memory that one side offers the other for one-sided operations, as the offer travels.
//!
//! ```text
//!   0          8          16         24      28       30     32
//!   ├──────────┼──────────┼──────────┼───────┼────────┼──────┤
//!   │ id       │ addr     │ len      │ rkey  │ access │ kind │
//!   │ u64      │ u64      │ u64      │ u32   │ u16    │ u16  │
//! ```
//! An offer is withdrawn by its id alone, eight bytes. The id is the offering side's to choose.
//!
//! Imports types. Imported by header and worker.

use super::{at, put};
use crate::types::Rkey;
use std::ops::BitOr;

/// Names one offer among those of its side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub u64);

impl RegionId {
    /// Bytes of an encoded id.
    pub const BYTES: usize = 8;

    /// The payload of a withdrawal.
    #[must_use]
    pub fn encode(self) -> [u8; Self::BYTES] {
        self.0.to_le_bytes()
    }

    /// `None` unless there are exactly [`BYTES`](Self::BYTES) bytes.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let bytes = payload.try_into().ok()?;
        Some(Self(u64::from_le_bytes(bytes)))
    }
}

/// What a peer may do with a region. Holding one proves: at least one right, and none unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access(u16);

impl Access {
    /// The peer may READ.
    pub const READ: Self = Self(1);
    /// The peer may WRITE.
    pub const WRITE: Self = Self(1 << 1);

    /// `None` for no bit at all, and for bits that this version does not know.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Option<Self> {
        if bits == 0 || bits & !(Self::READ.0 | Self::WRITE.0) != 0 {
            return None;
        }
        Some(Self(bits))
    }

    /// The bits as they travel.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// The peer may READ.
    #[must_use]
    pub const fn readable(self) -> bool {
        self.0 & Self::READ.0 != 0
    }

    /// The peer may WRITE.
    #[must_use]
    pub const fn writable(self) -> bool {
        self.0 & Self::WRITE.0 != 0
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// An offer that no peer can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    /// Not as many bytes as an offer has.
    #[error("an offer of {0} B: one has {len} B", len = RegionOffer::BYTES)]
    Length(usize),
    /// The region has no bytes.
    #[error("the offered region is empty")]
    Empty,
    /// The region runs over the end of the address space.
    #[error("the offered region, {len_bytes} B at {addr:#x}, runs over the end of memory")]
    Wraps {
        /// Where it is said to begin.
        addr: u64,
        /// How long it is said to be.
        len_bytes: u64,
    },
    /// No right, or one that this version does not know.
    #[error("access {0:#06x} of the offered region is none, or not known")]
    Access(u16),
}

/// A region of one side that the other may reach. Holding one proves: `len_bytes > 0`,
/// `addr + len_bytes` does not wrap, and at least one right is granted. It does not prove that the
/// peer registered the memory: the peer's NIC checks that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionOffer {
    id: RegionId,
    addr: u64,
    len_bytes: u64,
    rkey: Rkey,
    access: Access,
    kind: u16,
}

impl RegionOffer {
    /// Bytes of an encoded offer.
    pub const BYTES: usize = 32;

    /// An offer of `len_bytes` at `addr`. `kind` is the embedder's own number.
    ///
    /// # Errors
    /// The region is empty, or wraps.
    pub const fn new(
        id: RegionId,
        addr: u64,
        len_bytes: u64,
        rkey: Rkey,
        access: Access,
        kind: u16,
    ) -> Result<Self, OfferError> {
        if len_bytes == 0 {
            return Err(OfferError::Empty);
        }
        if addr.checked_add(len_bytes).is_none() {
            return Err(OfferError::Wraps { addr, len_bytes });
        }
        Ok(Self {
            id,
            addr,
            len_bytes,
            rkey,
            access,
            kind,
        })
    }

    /// The payload of an offer.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, self.id.encode());
        put(&mut bytes, 8, self.addr.to_le_bytes());
        put(&mut bytes, 16, self.len_bytes.to_le_bytes());
        put(&mut bytes, 24, self.rkey.0.to_le_bytes());
        put(&mut bytes, 28, self.access.bits().to_le_bytes());
        put(&mut bytes, 30, self.kind.to_le_bytes());
        bytes
    }

    /// Reads the payload of an offer.
    ///
    /// # Errors
    /// Not exactly [`BYTES`](Self::BYTES) bytes, or an offer that cannot be used.
    pub fn parse(payload: &[u8]) -> Result<Self, OfferError> {
        let Ok(bytes) = <&[u8; Self::BYTES]>::try_from(payload) else {
            return Err(OfferError::Length(payload.len()));
        };
        let access = u16::from_le_bytes(at(bytes, 28));
        Self::new(
            RegionId(u64::from_le_bytes(at(bytes, 0))),
            u64::from_le_bytes(at(bytes, 8)),
            u64::from_le_bytes(at(bytes, 16)),
            Rkey(u32::from_le_bytes(at(bytes, 24))),
            Access::from_bits(access).ok_or(OfferError::Access(access))?,
            u16::from_le_bytes(at(bytes, 30)),
        )
    }

    /// Its name, by which it is withdrawn.
    #[must_use]
    pub const fn id(&self) -> RegionId {
        self.id
    }

    /// Where it begins, in the offering side's addresses.
    #[must_use]
    pub const fn addr(&self) -> u64 {
        self.addr
    }

    /// How long it is; never 0.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The key that opens it.
    #[must_use]
    pub const fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// What the receiving side may do with it.
    #[must_use]
    pub const fn access(&self) -> Access {
        self.access
    }

    /// The embedder's own number for what the region is.
    #[must_use]
    pub const fn kind(&self) -> u16 {
        self.kind
    }
}
