//! Memory that one side offers the other for one-sided operations, as the offer travels.
//!
//! ```text
//!   0          8          16         24      28       30     32
//!   ├──────────┼──────────┼──────────┼───────┼────────┼──────┤
//!   │ id       │ addr     │ len      │ rkey  │ rights │ kind │
//!   │ u64      │ u64      │ u64      │ u32   │ u16    │ u16  │
//!
//!   rights: 1 the peer may READ, 2 it may WRITE, 4 it may do atomics
//! ```
//! An offer is withdrawn by its id alone, eight bytes. The id is the offering side's to choose.
//!
//! Imports types. Imported by header and framed.

use super::{at, put};
use crate::types::{Access, RemoteRegion, Rkey};

/// The rights that travel, and their bits.
const RIGHTS: [(u16, Access); 3] = [
    (1, Access::REMOTE_READ),
    (1 << 1, Access::REMOTE_WRITE),
    (1 << 2, Access::REMOTE_ATOMIC),
];

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

/// An offer that no peer can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    /// Not as many bytes as an offer has.
    #[error("an offer of {0} B: one has {bytes} B", bytes = RegionOffer::BYTES)]
    Length(usize),
    /// The region has no bytes, or runs over the end of the address space.
    #[error("the offered region, {len} B at {addr:#x}, is empty or runs over the end of memory")]
    Region {
        /// Where it is said to begin.
        addr: u64,
        /// How many bytes it is said to have.
        len: u64,
    },
    /// No right for the peer.
    #[error("the offered region gives the peer no right")]
    NoRight,
    /// A right that this version does not know; all the bits that came.
    #[error("rights {0:#06x} of the offered region are not all known")]
    UnknownRight(u16),
}

/// A region of one side that the other may reach. Holding one proves: the region is not empty and
/// does not wrap, and the peer has at least one right to it. It does not prove that the memory is
/// registered so: the NIC of the offering side checks that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionOffer {
    id: RegionId,
    region: RemoteRegion,
    kind: u16,
}

impl RegionOffer {
    /// Bytes of an encoded offer.
    pub const BYTES: usize = 32;

    /// An offer of `len` bytes at `addr`. Of `access` only the peer's rights count. `kind` is the
    /// embedder's own number.
    ///
    /// # Errors
    /// The region is empty or wraps, or the peer would have no right.
    pub fn new(
        id: RegionId,
        addr: u64,
        len: u64,
        rkey: Rkey,
        access: Access,
        kind: u16,
    ) -> Result<Self, OfferError> {
        let peers = RIGHTS
            .into_iter()
            .filter(|&(_, right)| access.contains(right))
            .fold(Access::NONE, |all, (_, right)| all | right);
        if peers == Access::NONE {
            return Err(OfferError::NoRight);
        }
        let region = RemoteRegion::parse(addr, len, rkey, peers);
        let region = region.ok_or(OfferError::Region { addr, len })?;
        Ok(Self { id, region, kind })
    }

    /// The payload of an offer.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let rights = RIGHTS
            .into_iter()
            .filter(|&(_, right)| self.region.access().contains(right))
            .fold(0, |bits, (bit, _)| bits | bit);
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, self.id.encode());
        put(&mut bytes, 8, self.region.addr().to_le_bytes());
        put(&mut bytes, 16, self.region.len().to_le_bytes());
        put(&mut bytes, 24, self.region.rkey().0.to_le_bytes());
        put(&mut bytes, 28, rights.to_le_bytes());
        put(&mut bytes, 30, self.kind.to_le_bytes());
        bytes
    }

    /// Reads the payload of an offer.
    ///
    /// # Errors
    /// Not exactly [`BYTES`](Self::BYTES) bytes, a right that is not known, or what
    /// [`new`](Self::new) refuses.
    pub fn parse(payload: &[u8]) -> Result<Self, OfferError> {
        let Ok(bytes) = <&[u8; Self::BYTES]>::try_from(payload) else {
            return Err(OfferError::Length(payload.len()));
        };
        let rights = u16::from_le_bytes(at(bytes, 28));
        let (mut access, mut unknown) = (Access::NONE, rights);
        for (bit, right) in RIGHTS {
            if rights & bit != 0 {
                access = access | right;
                unknown &= !bit;
            }
        }
        if unknown != 0 {
            return Err(OfferError::UnknownRight(rights));
        }
        Self::new(
            RegionId(u64::from_le_bytes(at(bytes, 0))),
            u64::from_le_bytes(at(bytes, 8)),
            u64::from_le_bytes(at(bytes, 16)),
            Rkey(u32::from_le_bytes(at(bytes, 24))),
            access,
            u16::from_le_bytes(at(bytes, 30)),
        )
    }

    /// Its name, by which it is withdrawn.
    #[must_use]
    pub const fn id(&self) -> RegionId {
        self.id
    }

    /// The memory, as the receiving side may use it.
    #[must_use]
    pub const fn region(&self) -> RemoteRegion {
        self.region
    }

    /// The embedder's own number for what the region is.
    #[must_use]
    pub const fn kind(&self) -> u16 {
        self.kind
    }
}
