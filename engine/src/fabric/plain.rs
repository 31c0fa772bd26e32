//! What the fabrics made of software have in common: a completion as a plain struct, and what they do
//! with a chain before it is posted.
//!
//! ```text
//!  post_send ─► refuse_binds ─► gather_inline        poll ─► PlainWc
//! ```
//! Imported by pair, shm, fault and toy.

#![allow(unsafe_code, reason = "copies inline payloads by address")]

use super::{MoreSges, Note, PostFailure, SendOp, SendWr, WcOpcode, WcStatus, WorkCompletion};
use crate::memory::copy_shared;
use crate::types::QpNum;
use std::ptr::with_exposed_provenance;

/// A completion. Of a failed one, what `ibv_poll_cq(3)` does not define is junk, and a build with debug
/// assertions panics over whoever looks at it.
#[derive(Clone, Copy, Debug)]
pub struct PlainWc {
    pub(super) wr_id: u64,
    pub(super) status: WcStatus,
    pub(super) opcode: WcOpcode,
    pub(super) len: u32,
    pub(super) note: Note,
    pub(super) qp: QpNum,
    pub(super) vendor: u32,
}

impl PlainWc {
    /// To fill arrays with.
    pub(super) const BLANK: Self = Self::ended(0, QpNum(0), WcStatus::Success);

    /// A work request that ended so. Of a success, what it was and brought is still to be told.
    pub(super) const fn ended(wr_id: u64, qp: QpNum, status: WcStatus) -> Self {
        Self {
            wr_id,
            status,
            opcode: WcOpcode::Other(u32::MAX),
            len: u32::MAX,
            note: Note::Imm(u32::MAX),
            qp,
            vendor: 0,
        }
    }

    /// A work request that succeeded.
    #[inline(always)]
    pub(super) const fn succeeded(
        wr_id: u64,
        qp: QpNum,
        (opcode, len, note): (WcOpcode, u32, Note),
    ) -> Self {
        Self {
            wr_id,
            status: WcStatus::Success,
            opcode,
            len,
            note,
            qp,
            vendor: 0,
        }
    }

    #[inline]
    fn defined<T>(&self, value: T) -> T {
        debug_assert!(
            self.is_success(),
            "it ended as {}: this is not defined",
            self.status
        );
        value
    }
}

impl WorkCompletion for PlainWc {
    #[inline]
    fn wr_id(&self) -> u64 {
        self.wr_id
    }
    #[inline]
    fn status(&self) -> WcStatus {
        self.status
    }
    #[inline]
    fn is_success(&self) -> bool {
        self.status == WcStatus::Success
    }
    #[inline]
    fn opcode(&self) -> WcOpcode {
        self.defined(self.opcode)
    }
    #[inline]
    fn byte_len(&self) -> u32 {
        self.defined(self.len)
    }
    #[inline]
    fn note(&self) -> Note {
        self.defined(self.note)
    }
    #[inline]
    fn qp_num(&self) -> QpNum {
        self.qp
    }
    #[inline]
    fn vendor_err(&self) -> u32 {
        self.vendor
    }
}

/// A bind is posted by itself ([`Lane::post_bind`](super::Lane::post_bind)): a chain with one is refused whole.
pub(super) fn refuse_binds(chain: &[SendWr]) -> Result<(), PostFailure> {
    let binds = |wr: &SendWr| matches!(wr.op, SendOp::Bind { .. });
    if chain.iter().any(binds) {
        return Err(PostFailure {
            posted: 0,
            errno: libc::EINVAL,
        });
    }
    Ok(())
}

/// Address and length of the pieces of an operation; none behind the first where there are fewer than
/// it says.
fn pieces(wr: &SendWr, more: Option<&MoreSges>) -> impl Iterator<Item = (u64, u32)> {
    let behind = more.and_then(|more| more.get(..usize::from(wr.more)));
    let behind = behind.unwrap_or(&[]).iter().map(|sge| (sge.addr, sge.len));
    std::iter::once((wr.addr, wr.len)).chain(behind)
}

/// Bytes of the payload of an operation.
#[inline]
pub(super) fn payload_bytes(wr: &SendWr, more: Option<&MoreSges>) -> usize {
    pieces(wr, more).map(|(_, len)| len as usize).sum()
}

/// Copies an inline payload together, as far as whole pieces fit.
///
/// # Safety
/// The pieces of `wr` are readable.
pub(super) unsafe fn gather_inline(wr: &SendWr, more: Option<&MoreSges>, mut into: &mut [u8]) {
    for (addr, len) in pieces(wr, more) {
        let Some((here, rest)) = into.split_at_mut_checked(len as usize) else {
            return;
        };
        let from = with_exposed_provenance::<u8>(usize::try_from(addr).unwrap_or(0));
        // SAFETY: `copy_shared` requires
        // - `len` bytes to read: the caller promises;
        // - as many to write, and no other reference to them: `here` has just those.
        unsafe { copy_shared(from, here.as_mut_ptr(), here.len()) };
        into = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::Sge;
    use crate::types::Lkey;

    #[test]
    fn an_inline_payload_is_of_whole_pieces_and_no_more_than_there_are() {
        let (first, second) = ([1u8; 3], [2u8; 2]);
        let sge = |bytes: &[u8]| Sge {
            addr: bytes.as_ptr().expose_provenance() as u64,
            len: u32::try_from(bytes.len()).expect("short"),
            lkey: Lkey(0),
        };
        let mut more = MoreSges::default();
        more[0] = sge(&second);
        let Sge { addr, len, lkey } = sge(&first);
        let wr = |more| SendWr {
            wr_id: 0,
            addr,
            len,
            lkey,
            op: SendOp::Send,
            signalled: true,
            inline: true,
            more,
        };
        let gathered = |wr: &SendWr, more, room| {
            let mut into = vec![0; room];
            // SAFETY: `gather_inline` requires readable pieces: they are arrays of this test.
            unsafe { gather_inline(wr, more, &mut into) };
            into
        };
        assert_eq!(payload_bytes(&wr(1), Some(&more)), 5);
        assert_eq!(gathered(&wr(1), Some(&more), 6), [1, 1, 1, 2, 2, 0]);
        assert_eq!(gathered(&wr(1), Some(&more), 4), [1, 1, 1, 0]);
        // More pieces than there can be, or than were given.
        for (wr, more) in [(wr(u8::MAX), Some(&more)), (wr(1), None)] {
            assert_eq!(payload_bytes(&wr, more), 3);
            assert_eq!(gathered(&wr, more, 4), [1, 1, 1, 0]);
        }
    }
}
