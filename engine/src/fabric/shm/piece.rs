//! Bytes that a key was held against, and the copies between them.
//!
//! ```text
//!  [Piece, Piece…] ─► Reader: so many at a time, from where it stopped ─► cell, data, another list
//! ```
//! Every copy is made by the routine for memory that others may be writing. Imports memory. Imported by
//! registry, regions, send and receive.

#![allow(unsafe_code, reason = "plays the NIC: copies by address")]

use crate::memory::{copy_arrived, copy_message};
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that may be read, or written where that was asked. Good as long as whatever it was made from
/// says so; it is never kept beyond a call of the lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    at: NonNull<u8>,
    len: usize,
}

impl Piece {
    /// No bytes.
    pub(super) const EMPTY: Self = Self {
        at: NonNull::dangling(),
        len: 0,
    };

    /// Bytes that are the fabric's own, for as long as the caller has them.
    pub(super) fn of(bytes: &mut [u8]) -> Self {
        Self {
            at: NonNull::from(&mut *bytes).cast(),
            len: bytes.len(),
        }
    }

    /// `len` bytes at `addr` of this process.
    ///
    /// # Safety
    /// They are readable as long as the piece is used, which is for reading only.
    #[inline]
    pub(super) unsafe fn posted(addr: u64, len: u32) -> Self {
        let at = with_exposed_provenance_mut::<u8>(usize::try_from(addr).unwrap_or(0));
        NonNull::new(at).map_or(Self::EMPTY, |at| Self {
            at,
            len: len as usize,
        })
    }

    /// `len` bytes at `addr`, where `bytes` at `base` are called `named` and on.
    ///
    /// # Safety
    /// `bytes` at `base` are mapped, and stay so as long as the piece is used.
    #[inline]
    pub(super) unsafe fn within(
        base: NonNull<u8>,
        bytes: u64,
        named: u64,
        addr: u64,
        len: u32,
    ) -> Option<Self> {
        // Below `named` it wraps, and is far behind the end.
        let offset = addr.wrapping_sub(named);
        (offset <= bytes && u64::from(len) <= bytes - offset).then_some(())?;
        let offset = usize::try_from(offset).ok()?;
        // SAFETY: `add` requires that the result stays in the mapping or at its end:
        // `offset <= bytes`, which the caller promises to be mapped.
        let at = unsafe { base.add(offset) };
        Some(Self {
            at,
            len: len as usize,
        })
    }

    /// What lies behind the first `n` bytes; nothing where there are no more.
    fn rest(self, n: usize) -> Self {
        let n = n.min(self.len);
        Self {
            // SAFETY: `add` requires that the result stays within the piece or at its end: `n <= len`.
            at: unsafe { self.at.add(n) },
            len: self.len - n,
        }
    }

    /// Copies the first `len` bytes of the piece to `to`, or fewer if it has fewer.
    ///
    /// # Safety
    /// As many bytes can be written at `to`, no reference to them is used meanwhile, and they are none of
    /// the piece's.
    #[inline]
    pub(super) unsafe fn copy_to(self, to: *mut u8, len: usize) {
        let len = len.min(self.len);
        // SAFETY: `copy_message` requires
        // - `len` bytes to read: the piece has them;
        // - `len` bytes to write, to which nobody uses a reference, and which are others: the caller
        //   promises.
        unsafe { copy_message(self.at.as_ptr(), to, len) };
    }

    /// Fills the piece with as many bytes as it has, which a peer has just written.
    ///
    /// # Safety
    /// As many bytes can be read at `from`, which are none of the piece's, and nobody uses a reference to
    /// those.
    #[inline]
    pub(super) unsafe fn fill_from(self, from: *const u8) {
        // SAFETY: `copy_arrived` requires
        // - bytes to read: the caller promises;
        // - as many to write: they are the piece's; nobody has a reference to them.
        unsafe { copy_arrived(from, self.at.as_ptr(), self.len) };
    }

    /// The 8 bytes at an aligned address, for atomics with the CPUs of this host.
    pub(super) fn as_atomic(&self, operate: impl FnOnce(&AtomicU64, Ordering) -> u64) -> u64 {
        debug_assert!(self.len == 8 && self.at.addr().get().is_multiple_of(8));
        // SAFETY: `from_ptr` requires
        // - 8 readable and writable bytes, aligned: the caller checked the address, the mapping is of
        //   pages on both sides, and the piece was held against its grant;
        // - that others access them by atomics only, or not at the same time: exposed memory is
        //   touched by this and by the copy routines, whose instructions the compiler knows nothing of.
        let word = unsafe { AtomicU64::from_ptr(self.at.as_ptr().cast()) };
        operate(word, Ordering::SeqCst)
    }
}

/// Reads through a list of pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    pieces: &'a [Piece],
    now: Piece,
}

impl<'a> Reader<'a> {
    /// From byte `offset` of the list on.
    pub(super) fn at(pieces: &'a [Piece], mut offset: usize) -> Self {
        let mut reader = Self {
            pieces,
            now: Piece::EMPTY,
        };
        while reader.turn() && offset > 0 {
            let n = offset.min(reader.now.len);
            reader.now = reader.now.rest(n);
            offset -= n;
        }
        reader
    }

    /// Goes on to the next piece that has bytes, if this one has none left.
    fn turn(&mut self) -> bool {
        while self.now.len == 0 {
            let Some((first, behind)) = self.pieces.split_first() else {
                return false;
            };
            (self.now, self.pieces) = (*first, behind);
        }
        true
    }

    /// Copies the next `len` bytes to `to`, as far as there are any.
    ///
    /// # Safety
    /// `len` bytes can be written at `to`, no reference to them is used meanwhile, and they are of none of
    /// the pieces.
    pub(super) unsafe fn copy_to(mut self, mut to: *mut u8, mut len: usize) {
        while len > 0 && self.turn() {
            let n = len.min(self.now.len);
            // SAFETY: `copy_to` requires `n` writable bytes at `to`: they are of the `len` that the
            // caller promises, of which those before are written.
            unsafe { self.now.copy_to(to, n) };
            // SAFETY: `add` requires that the result stays within the `len` bytes or at their end.
            to = unsafe { to.add(n) };
            self.now = self.now.rest(n);
            len -= n;
        }
    }
}

/// Copies `len` bytes of one list, from byte `at` of it on, into the same bytes of another, as far as both
/// go.
pub(super) fn copy_pieces(from: &[Piece], to: &[Piece], at: usize, mut len: usize) {
    let (mut source, mut sink) = (Reader::at(from, at), Reader::at(to, at));
    while len > 0 && source.turn() && sink.turn() {
        let n = len.min(source.now.len).min(sink.now.len);
        // SAFETY: `copy_to` requires `n` writable bytes that nobody has a reference to: those of a sink
        // are memory that was posted, which its owner keeps out of reach, or exposed memory, of which no
        // reference is formed; and other bytes than the source's, which is on the other side of a map.
        unsafe { source.now.copy_to(sink.now.at.as_ptr(), n) };
        source.now = source.now.rest(n);
        sink.now = sink.now.rest(n);
        len -= n;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_from_any_byte_on() {
        let (mut first, mut second) = ([1u8, 2, 3], [4u8, 5]);
        let pieces = [Piece::of(&mut first), Piece::EMPTY, Piece::of(&mut second)];
        let read = |offset, len| {
            let mut into = [0u8; 6];
            // SAFETY: `copy_to` requires `len` writable bytes: no test asks for more than 6.
            unsafe { Reader::at(&pieces, offset).copy_to(into.as_mut_ptr(), len) };
            into
        };
        assert_eq!(read(0, 5), [1, 2, 3, 4, 5, 0]);
        assert_eq!(read(2, 2), [3, 4, 0, 0, 0, 0]);
        assert_eq!(read(3, 6), [4, 5, 0, 0, 0, 0]);
        assert_eq!(read(5, 1), [0; 6]);
        assert_eq!(read(9, 1), [0; 6]);
    }

    #[test]
    fn lists_are_copied_into_lists() {
        let (mut first, mut second) = ([1u8, 2, 3], [4u8, 5]);
        let (mut a, mut b) = ([0u8; 1], [0u8; 5]);
        copy_pieces(
            &[Piece::of(&mut first), Piece::of(&mut second)],
            &[Piece::of(&mut a), Piece::of(&mut b)],
            0,
            9,
        );
        assert_eq!((a, b), ([1], [2, 3, 4, 5, 0]));
        let (from, mut c) = ([Piece::of(&mut first), Piece::of(&mut second)], [0u8; 5]);
        copy_pieces(&from, &[Piece::of(&mut c)], 2, 2);
        assert_eq!(c, [0, 0, 3, 4, 0]);
    }
}
