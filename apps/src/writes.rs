//! WRITEs answered by WRITEs: the last byte of the memory tells that one came, as in perftest's
//! `ib_write_lat`.
//!
//! ```text
//!  client:  WRITE … 1 ─► ┐ last byte of pong's memory     server
//!           ◄─ 1 … WRITE ┘ last byte of the client's      (2, 3, … 255, 0, 1 …)
//! ```
//! Both sides use it: what is awaited here is what the next own WRITE ends with on the server, and the
//! byte after it on the client. It holds where a NIC writes a message's last byte last, which is so
//! unless relaxed ordering was asked for, and the engine does not ask.

use spinwire::memory::ExposedMemory;
use spinwire::types::RemoteRegion;
use spinwire::worker::{ConnId, Io, PostError, Token};

/// Memory that the peer writes to, and the peer's.
#[derive(Debug)]
pub(crate) struct WritePair {
    memory: ExposedMemory,
    theirs: RemoteRegion,
    size: u32,
    /// What the last byte is when the next WRITE is here.
    awaited: u8,
}

impl WritePair {
    /// `None` unless both have `size` bytes, and that is at least one.
    pub(crate) fn new(memory: ExposedMemory, theirs: RemoteRegion, size: u32) -> Option<Self> {
        let fits = size > 0 && memory.len() >= size as usize && theirs.len() >= u64::from(size);
        fits.then_some(Self {
            memory,
            theirs,
            size,
            awaited: 1,
        })
    }

    /// The peer's next WRITE is here.
    #[inline]
    pub(crate) fn has_come(&self) -> bool {
        let mut last = [0];
        let read = self.memory.copy_out(self.size as usize - 1, &mut last);
        debug_assert!(read.is_ok());
        last[0] == self.awaited
    }

    /// Writes to the peer what this side awaits next; a server calls it when one has come, and a
    /// client before.
    pub(crate) fn write(&self, io: &mut Io<'_>, conn: ConnId) -> Result<(), PostError> {
        let mut buffer = io.alloc().map_err(|_| PostError::Exhausted)?;
        let fits = buffer.set_len(self.size);
        debug_assert!(fits.is_ok());
        if let Some(last) = buffer.last_mut() {
            *last = self.awaited;
        }
        io.write(conn, buffer, &self.theirs, 0, Token::default())
            .map_err(|rejected| rejected.reason)
    }

    /// From here on the WRITE after it is awaited.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.awaited = self.awaited.wrapping_add(1);
    }
}
