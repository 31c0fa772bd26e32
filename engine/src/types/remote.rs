//! Memory of a peer that this side may name in a READ or WRITE.

use super::Rkey;
use crate::types::Access;

/// A region that a peer offered. Holding one proves: `len > 0`, and `addr + len` does not wrap. Whether
/// the peer still allows the access is for its device to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    addr: u64,
    len: u64,
    rkey: Rkey,
    access: Access,
}

/// A part of a [`RemoteRegion`], as a work request names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteSpan {
    /// Address at the peer.
    pub addr: u64,
    /// Key that the peer's device gave.
    pub rkey: Rkey,
}

impl RemoteRegion {
    /// `None` for an empty region or one that wraps around.
    #[must_use]
    pub fn parse(addr: u64, len: u64, rkey: Rkey, access: Access) -> Option<Self> {
        (len > 0).then_some(())?;
        addr.checked_add(len)?;
        Some(Self {
            addr,
            len,
            rkey,
            access,
        })
    }

    /// First byte, as the peer's device counts.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Bytes; never 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Key for work requests.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// What the peer allows.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// `len` bytes from `offset` on; `None` where they are not all in the region.
    #[inline]
    #[must_use]
    pub fn span(&self, offset: u64, len: u32) -> Option<RemoteSpan> {
        let end = offset.checked_add(u64::from(len))?;
        (end <= self.len).then_some(RemoteSpan {
            addr: self.addr + offset,
            rkey: self.rkey,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_addressed_is_a_region() {
        let parse = |addr, len| RemoteRegion::parse(addr, len, Rkey(7), Access::REMOTE_READ);
        assert_eq!(parse(4096, 0), None);
        assert_eq!(parse(u64::MAX - 1, 2), None);
        let last = parse(u64::MAX - 2, 2).expect("ends at the last address");
        assert_eq!(last.span(0, 2).map(|s| s.addr), Some(u64::MAX - 2));
    }

    #[test]
    fn spans_stay_inside() {
        let region = RemoteRegion::parse(1000, 100, Rkey(7), Access::REMOTE_READ).expect("valid");
        let span = |offset, len| region.span(offset, len).map(|s| s.addr);
        assert_eq!(span(0, 100), Some(1000));
        assert_eq!(span(99, 1), Some(1099));
        assert_eq!(span(100, 0), Some(1100));
        assert_eq!(span(99, 2), None);
        assert_eq!(span(u64::MAX, 2), None);
    }
}
