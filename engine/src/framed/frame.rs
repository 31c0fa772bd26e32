//! Buffers with room for a header: frames to send, payloads that came.
//!
//! ```text
//!   0           16                     16 + len          slot
//!   │ header    │ payload              │                 │
//!   │ ours      │ Frame, Payload deref │                 │
//! ```
//! Both hold a [`Buffer`] of at least [`HEADER_BYTES`]; that is what holding one proves. The header is
//! written when the frame is queued, so a payload becomes a frame without a copy.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use crate::limits::SLOT_BYTES_MIN;
use crate::memory::{Buffer, TooLong};
use crate::wire::{HEADER_BYTES, Header};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// [`HEADER_BYTES`] as lengths of buffers count.
const HEADER: u32 = 16;

const _: () = assert!(HEADER as usize == HEADER_BYTES && HEADER <= SLOT_BYTES_MIN);

/// A payload to send, in a buffer with room for its header. It derefs to the payload, and returns to
/// its pool when dropped.
#[must_use = "dropping a frame gives its slot back"]
pub struct Frame(Buffer);

impl Frame {
    /// A frame of no payload.
    #[inline]
    pub(super) fn new(mut buffer: Buffer) -> Self {
        let fits = buffer.set_len(HEADER);
        debug_assert!(fits.is_ok(), "every slot has room for a header");
        Self(buffer)
    }

    /// A frame that was sent, with its payload.
    #[inline]
    pub(super) fn again(buffer: Buffer) -> Self {
        debug_assert!(buffer.len_bytes() >= HEADER);
        Self(buffer)
    }

    /// The whole of it, header written.
    #[inline]
    pub(super) fn with_header(mut self, header: &Header) -> Buffer {
        if let Some(head) = self.0.first_chunk_mut() {
            header.encode(head);
        }
        self.0
    }

    /// Bytes that travel, header included.
    #[inline]
    pub(super) fn frame_bytes(&self) -> u32 {
        self.0.len_bytes()
    }

    /// Bytes of the payload.
    #[inline]
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        self.0.len_bytes() - HEADER
    }

    /// The longest payload that fits the slot. A peer may take less.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.0.capacity() - HEADER
    }

    /// Says how many bytes the payload has. Bytes that become visible by this hold what an earlier
    /// use of the slot left there: fill them before sending them.
    ///
    /// # Errors
    /// [`TooLong`] above [`capacity`](Self::capacity); the length stays as it was.
    #[inline]
    pub fn set_len(&mut self, len_bytes: u32) -> Result<(), TooLong> {
        let set = self.0.set_len(HEADER.saturating_add(len_bytes));
        set.map_err(|_| self.too_long(len_bytes as usize))
    }

    /// Replaces the payload with `bytes`.
    ///
    /// # Errors
    /// [`TooLong`] if they do not fit; the payload stays as it was.
    #[inline]
    pub fn copy_from(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        let len = u32::try_from(bytes.len()).map_err(|_| self.too_long(bytes.len()))?;
        self.set_len(len)?;
        self.copy_from_slice(bytes);
        Ok(())
    }

    #[cold]
    fn too_long(&self, asked: usize) -> TooLong {
        TooLong {
            asked,
            capacity: self.capacity(),
        }
    }
}

impl Deref for Frame {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0[HEADER_BYTES..]
    }
}

impl DerefMut for Frame {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0[HEADER_BYTES..]
    }
}

/// Without the contents, which may be secret and long.
impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} of {} B)", self.len_bytes(), self.capacity())
    }
}

/// What a peer sent, in the buffer that the NIC wrote it to. It derefs to the bytes behind the
/// header. Dropping it gives the buffer back for the next receive; a service that keeps many slows
/// its peers down, for the pool has none to receive with.
#[must_use = "dropping a payload gives its slot back"]
pub struct Payload(Buffer);

impl Payload {
    /// Of a message whose header was parsed.
    #[inline]
    pub(super) fn new(buffer: Buffer) -> Self {
        debug_assert!(buffer.len_bytes() >= HEADER);
        Self(buffer)
    }

    /// The same bytes as a frame, to be sent on, or overwritten by the answer.
    #[inline]
    pub fn into_frame(self) -> Frame {
        Frame(self.0)
    }
}

impl Deref for Payload {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0[HEADER_BYTES..]
    }
}

/// Without the contents, which may be secret and long.
impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} B)", self.len())
    }
}
