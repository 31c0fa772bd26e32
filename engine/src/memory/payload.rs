//! What an operation carries: a pool's buffer, a span of exposed memory, or several pieces of either.
//!
//! ```text
//!  Buffer ──────────┐
//!  MemorySpan ──────┼─► Payload ── Io::send, write, read ─► in flight ─► Completed.payload
//!  Parts (several) ─┘
//! ```
//! A payload moves with its operation, so nothing in it can be touched, freed or unregistered while a
//! NIC uses it. Imports buffer, exposed. Imported by worker.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::{Buffer, ExposedMemory};
use crate::limits::SGE_MAX;
use crate::types::{Access, Lkey};

/// A part of [`ExposedMemory`]. It keeps all of the memory registered.
#[derive(Clone, Debug)]
pub struct MemorySpan {
    memory: ExposedMemory,
    offset: usize,
    len: u32,
}

impl MemorySpan {
    pub(super) fn new(memory: ExposedMemory, offset: usize, len: u32) -> Self {
        Self {
            memory,
            offset,
            len,
        }
    }

    /// The memory that it is a part of.
    #[must_use]
    pub fn memory(&self) -> &ExposedMemory {
        &self.memory
    }

    /// First byte in the memory.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        self.len
    }
}

/// One piece of a payload.
#[derive(Debug)]
pub enum Piece {
    /// A buffer of the worker's pool.
    Buffer(Buffer),
    /// Memory that the service exposed.
    Memory(MemorySpan),
}

impl Piece {
    /// Bytes.
    #[inline]
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        match self {
            Self::Buffer(b) => b.len_bytes(),
            Self::Memory(m) => m.len,
        }
    }

    /// The buffer, if it is one.
    #[must_use]
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Buffer(b) => Some(b),
            Self::Memory(_) => None,
        }
    }
}

impl From<Buffer> for Piece {
    fn from(buffer: Buffer) -> Self {
        Self::Buffer(buffer)
    }
}

impl From<MemorySpan> for Piece {
    fn from(span: MemorySpan) -> Self {
        Self::Memory(span)
    }
}

/// Up to [`SGE_MAX`] pieces that one operation gathers from, or scatters to, in order. It takes memory
/// when it is made and none later: a service that wants no allocation keeps it, and fills it again when
/// it comes back.
#[derive(Debug)]
pub struct Parts {
    pieces: Vec<Piece>,
    len: u32,
}

impl Default for Parts {
    fn default() -> Self {
        Self::new()
    }
}

impl Parts {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self {
            pieces: Vec::with_capacity(SGE_MAX),
            len: 0,
        }
    }

    /// Adds a piece behind the others.
    ///
    /// # Errors
    /// The list is full, or the sum of bytes does not fit 32 bits; the piece comes back.
    pub fn push(&mut self, piece: impl Into<Piece>) -> Result<(), Piece> {
        let piece = piece.into();
        match self.len.checked_add(piece.len_bytes()) {
            Some(len) if self.pieces.len() < SGE_MAX => {
                self.len = len;
                self.pieces.push(piece);
                Ok(())
            }
            _ => Err(piece),
        }
    }

    /// The pieces, in order.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    pub(crate) fn pieces_mut(&mut self) -> &mut [Piece] {
        &mut self.pieces
    }

    /// Bytes of all pieces.
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        self.len
    }

    /// Takes the pieces out, first to last; the list can be filled again.
    pub fn drain(&mut self) -> impl Iterator<Item = Piece> + '_ {
        self.len = 0;
        self.pieces.drain(..)
    }
}

/// What an operation carries.
#[derive(Debug)]
pub enum Payload {
    /// A buffer of the worker's pool.
    Buffer(Buffer),
    /// Memory that the service exposed.
    Memory(MemorySpan),
    /// Several pieces.
    Parts(Parts),
    /// Nothing: the operation has no bytes of this side's.
    Nothing,
}

impl Payload {
    /// The buffer, if it is one.
    #[inline]
    #[must_use]
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Buffer(b) => Some(b),
            Self::Memory(_) | Self::Parts(_) | Self::Nothing => None,
        }
    }
}

/// A piece as a device is told of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Key; `None` for that of the first region of the worker's pool.
    pub lkey: Option<Lkey>,
}

mod sealed {
    /// Only what this module knows to be registered can be posted.
    pub trait Sealed {}
    impl Sealed for super::Buffer {}
    impl Sealed for super::MemorySpan {}
    impl Sealed for super::Piece {}
    impl Sealed for super::Parts {}
    impl Sealed for super::Payload {}
}

/// What can be posted. Sealed: a device must know all memory that is named.
pub trait Postable: Into<Payload> + sealed::Sealed {
    /// Bytes in all.
    fn len_bytes(&self) -> u32;

    /// Pieces; a payload without any is a message of no bytes.
    fn piece_count(&self) -> usize {
        1
    }

    /// Where piece number `piece` is, in the words of a lane's device; `None` when that is gone. `grown`:
    /// the worker's pool has grown, so that its buffers are to be asked for their keys.
    fn place(&self, lane: usize, piece: usize, grown: bool) -> Option<Place>;

    /// Peers may write to all of it.
    fn is_exposed(&self) -> bool;

    /// It is all buffers of the worker's pool.
    fn is_pooled(&self) -> bool;

    /// The device may write to all of it.
    fn is_writable(&self) -> bool;
}

impl Postable for Buffer {
    #[inline]
    fn len_bytes(&self) -> u32 {
        Buffer::len_bytes(self)
    }
    #[inline]
    fn place(&self, lane: usize, _: usize, grown: bool) -> Option<Place> {
        Some(Place {
            addr: self.addr(),
            len: self.len_bytes(),
            lkey: if grown { self.lkey(lane) } else { None },
        })
    }
    #[inline]
    fn is_exposed(&self) -> bool {
        false
    }
    #[inline]
    fn is_pooled(&self) -> bool {
        true
    }
    #[inline]
    fn is_writable(&self) -> bool {
        true
    }
}

impl Postable for MemorySpan {
    fn len_bytes(&self) -> u32 {
        self.len
    }
    fn place(&self, lane: usize, _: usize, _: bool) -> Option<Place> {
        Some(Place {
            addr: self.memory.addr() + self.offset as u64,
            len: self.len,
            lkey: Some(self.memory.lkey(lane)?),
        })
    }
    fn is_exposed(&self) -> bool {
        self.memory.access().contains(Access::REMOTE_WRITE)
    }
    fn is_pooled(&self) -> bool {
        false
    }
    fn is_writable(&self) -> bool {
        self.memory.is_locally_writable()
    }
}

impl Postable for Piece {
    fn len_bytes(&self) -> u32 {
        Piece::len_bytes(self)
    }
    fn place(&self, lane: usize, piece: usize, grown: bool) -> Option<Place> {
        match self {
            Self::Buffer(b) => b.place(lane, piece, grown),
            Self::Memory(m) => m.place(lane, piece, grown),
        }
    }
    fn is_exposed(&self) -> bool {
        matches!(self, Self::Memory(m) if m.is_exposed())
    }
    fn is_pooled(&self) -> bool {
        matches!(self, Self::Buffer(_))
    }
    fn is_writable(&self) -> bool {
        match self {
            Self::Buffer(b) => b.is_writable(),
            Self::Memory(m) => m.is_writable(),
        }
    }
}

impl Postable for Parts {
    fn len_bytes(&self) -> u32 {
        self.len
    }
    fn piece_count(&self) -> usize {
        self.pieces.len()
    }
    fn place(&self, lane: usize, piece: usize, grown: bool) -> Option<Place> {
        let nothing = || Some(Place::default());
        let piece = self.pieces.get(piece);
        piece.map_or_else(nothing, |p| p.place(lane, 0, grown))
    }
    fn is_exposed(&self) -> bool {
        self.pieces.iter().all(Piece::is_exposed)
    }
    fn is_pooled(&self) -> bool {
        self.pieces.iter().all(Piece::is_pooled)
    }
    fn is_writable(&self) -> bool {
        self.pieces.iter().all(Piece::is_writable)
    }
}

/// `$body` for whatever the payload is.
macro_rules! each {
    ($payload:expr, $it:ident => $body:expr, $nothing:expr) => {
        match $payload {
            Payload::Nothing => $nothing,
            Payload::Buffer($it) => $body,
            Payload::Memory($it) => $body,
            Payload::Parts($it) => $body,
        }
    };
}

impl Postable for Payload {
    #[inline]
    fn len_bytes(&self) -> u32 {
        each!(self, it => it.len_bytes(), 0)
    }
    fn piece_count(&self) -> usize {
        each!(self, it => it.piece_count(), 0)
    }
    fn place(&self, lane: usize, piece: usize, grown: bool) -> Option<Place> {
        each!(self, it => it.place(lane, piece, grown), Some(Place::default()))
    }
    fn is_exposed(&self) -> bool {
        each!(self, it => it.is_exposed(), true)
    }
    fn is_pooled(&self) -> bool {
        each!(self, it => it.is_pooled(), true)
    }
    fn is_writable(&self) -> bool {
        each!(self, it => it.is_writable(), true)
    }
}

impl From<Buffer> for Payload {
    #[inline]
    fn from(buffer: Buffer) -> Self {
        Self::Buffer(buffer)
    }
}

impl From<MemorySpan> for Payload {
    fn from(span: MemorySpan) -> Self {
        Self::Memory(span)
    }
}

impl From<Piece> for Payload {
    fn from(piece: Piece) -> Self {
        match piece {
            Piece::Buffer(b) => Self::Buffer(b),
            Piece::Memory(m) => Self::Memory(m),
        }
    }
}

impl From<Parts> for Payload {
    fn from(parts: Parts) -> Self {
        Self::Parts(parts)
    }
}
