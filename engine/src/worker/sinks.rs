//! Where READs put their bytes on a device that wants the sink open to peers (iWARP).
//!
//! ```text
//!  Io::read(buffer) ─► Sinks::take ─► READ into exposed memory ─► completed: copied to the buffer
//!                                            ▲ a peer may write here at any instant
//! ```
//! An iWARP peer answers a READ with a write to the sink, so the sink's key is on the wire and allows
//! remote writes. A pool's buffer, of which slices are formed, must never be that: such READs go to an
//! arena of their own, and their bytes are copied once. Imports memory. Imported by io and completion.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use crate::fabric::Sge;
use crate::memory::{ExposedMemory, Payload, Piece};

/// A place in the arena.
#[derive(Debug)]
pub(crate) struct Sink(u32);

/// The arena of one lane.
pub(crate) struct Sinks {
    memory: ExposedMemory,
    slot_bytes: u32,
    free: Vec<u32>,
}

impl Sinks {
    /// Cuts `memory` into slots.
    pub(crate) fn new(memory: ExposedMemory, slot_bytes: u32) -> Self {
        let slots = memory.len() / slot_bytes.max(1) as usize;
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        Self {
            memory,
            slot_bytes,
            free: (0..slots).rev().collect(),
        }
    }

    /// A place for `len` bytes, and how a device of lane `lane` is told of it.
    pub(crate) fn take(&mut self, lane: usize, len: u32) -> Option<(Sink, Sge)> {
        if len > self.slot_bytes {
            return None;
        }
        let lkey = self.memory.lkey(lane)?;
        let slot = self.free.pop()?;
        let addr = self.memory.addr() + u64::from(slot) * u64::from(self.slot_bytes);
        Some((Sink(slot), Sge { addr, len, lkey }))
    }

    /// Copies what was read to the payload and frees the place.
    pub(crate) fn settle(&mut self, sink: Sink, into: Option<&mut Payload>) {
        let mut offset = sink.0 as usize * self.slot_bytes as usize;
        match into {
            Some(Payload::Buffer(buffer)) => self.copy(&mut offset, buffer),
            Some(Payload::Parts(parts)) => {
                for piece in parts.pieces_mut() {
                    match piece {
                        Piece::Buffer(buffer) => self.copy(&mut offset, buffer),
                        // A span of exposed memory is no sink of the arena's: see `Io::read`.
                        Piece::Memory(_) => {}
                    }
                }
            }
            Some(Payload::Memory(_) | Payload::Nothing) | None => {}
        }
        self.free.push(sink.0);
    }

    fn copy(&self, offset: &mut usize, into: &mut [u8]) {
        let copied = self.memory.copy_out(*offset, into);
        debug_assert!(copied.is_ok());
        *offset += into.len();
    }
}
