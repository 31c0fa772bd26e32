//! Memory for one-sided operations, and what must be in it.
//!
//! ```text
//!  remote  an end offers it: RemoteSpan ◄── WRITE, READ, CAS, FAA of the peer
//!  sink    an end keeps it:  Place      ◄── what its own READ, CAS, FAA fetch
//! ```
//! It is registered apart from the pool, with the access that the case asks for. Beside each memory
//! stands a copy of what must be in it. A check compares all of it, so a byte that was written outside
//! is found too.

use super::Failure;
use super::bench::{Bench, ConnId};
use crate::fabric::{Fabric, Sge};
use crate::memory::{ExposedMemory, Exposures, HugepagePolicy, Registration};
use crate::types::{Access, RemoteRegion, RemoteSpan};

use super::message::pattern;

/// A memory, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryId(usize);

/// A part of a memory, as its owner names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    memory: MemoryId,
    pub(super) offset: usize,
    pub(super) len: u32,
}

/// Memory that a device was told of.
pub(super) struct Memory {
    exposed: ExposedMemory,
    want: Vec<u8>,
}

impl Memory {
    fn region(&self) -> Result<RemoteRegion, Failure> {
        let region = self.exposed.remote_region(0);
        region.ok_or_else(|| Failure::new("the memory is not registered"))
    }
}

impl<F: Fabric> Bench<'_, F> {
    /// Memory of an end, at least `bytes` of it, that its peer may use as `access` says.
    pub(super) fn memory(
        &mut self,
        end: ConnId,
        bytes: usize,
        access: Access,
    ) -> Result<MemoryId, Failure> {
        let exposures = Exposures::new(vec![self.device_of(end)?]);
        let exposed = exposures
            .expose(bytes, HugepagePolicy::Off, access)
            .map_err(|e| Failure::new(e.to_string()))?;
        let id = MemoryId(self.memories.len());
        let want = pattern(0x6d65_6d00 + self.memories.len() as u64, exposed.len());
        exposed
            .copy_in(0, &want)
            .map_err(|e| Failure::new(e.to_string()))?;
        self.memories.push(Memory { exposed, want });
        Ok(id)
    }

    /// Memory of an end for what its own operations fetch. No peer is told of it.
    pub(super) fn sink(&mut self, end: ConnId, bytes: usize) -> Result<MemoryId, Failure> {
        let exposed = F::limits(&self.device_of(end)?)
            .abilities
            .read_sink_is_exposed;
        let access = if exposed {
            Access::LOCAL_WRITE | Access::REMOTE_WRITE
        } else {
            Access::LOCAL_WRITE
        };
        self.memory(end, bytes, access)
    }

    /// Bytes of a memory.
    pub(super) fn size_of(&self, memory: MemoryId) -> usize {
        self.memories[memory.0].want.len()
    }

    /// How the peer names the memory from `offset` on. It may lie outside: before it by wrapping.
    pub(super) fn span(&self, memory: MemoryId, offset: usize) -> Result<RemoteSpan, Failure> {
        let region = self.memories[memory.0].region()?;
        Ok(RemoteSpan {
            addr: region.addr().wrapping_add(offset as u64),
            rkey: region.rkey(),
        })
    }

    /// How the owner names a part of a memory.
    pub(super) fn place(&self, memory: MemoryId, offset: usize, len: usize) -> Place {
        let inside = self.memories[memory.0].want.len().min(offset + len) - offset;
        Place {
            memory,
            offset,
            len: u32::try_from(inside).unwrap_or(u32::MAX),
        }
    }

    /// What must be in a part of a memory.
    pub(super) fn wanted(&self, memory: MemoryId, offset: usize, len: usize) -> Vec<u8> {
        self.memories[memory.0].want[offset..offset + len].to_vec()
    }

    /// From now on `bytes` must be in a memory at `offset`.
    pub(super) fn want(&mut self, memory: MemoryId, offset: usize, bytes: &[u8]) {
        self.memories[memory.0].want[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Puts bytes into a memory, as its owner.
    pub(super) fn fill(
        &mut self,
        memory: MemoryId,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        self.want(memory, offset, bytes);
        self.memories[memory.0]
            .exposed
            .copy_in(offset, bytes)
            .map_err(|e| Failure::new(e.to_string()))
    }

    /// The bytes of a memory, now.
    pub(super) fn look(
        &self,
        memory: MemoryId,
        offset: usize,
        len: usize,
    ) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; len];
        self.memories[memory.0]
            .exposed
            .copy_out(offset, &mut bytes)
            .map_err(|e| Failure::new(e.to_string()))?;
        Ok(bytes)
    }

    /// All of a memory must be as it should.
    pub(super) fn check(&self, memory: MemoryId) -> Result<(), Failure> {
        let want = &self.memories[memory.0].want;
        let got = self.look(memory, 0, want.len())?;
        let wrong: Vec<_> = (0..want.len()).filter(|&i| want[i] != got[i]).collect();
        if let (Some(first), Some(last)) = (wrong.first(), wrong.last()) {
            return Err(Failure::new(format!(
                "{} of the {} B of a registered memory are not as they should be, from byte {first} \
                 to {last}: {:#04x} is there first, not {:#04x}",
                wrong.len(),
                want.len(),
                got[*first],
                want[*first]
            )));
        }
        Ok(())
    }

    /// Gives `use_it` the registration of a place's memory.
    pub(super) fn with_registration<T>(
        memories: &[Memory],
        place: Place,
        use_it: impl FnOnce(&dyn Registration) -> T,
    ) -> Result<T, Failure> {
        let exposed = &memories[place.memory.0].exposed;
        let result = exposed.with_registration(0, use_it);
        result.ok_or_else(|| Failure::new("the memory is not registered"))
    }

    /// How a work request names a place.
    pub(super) fn sge(&self, place: Place) -> Result<Sge, Failure> {
        let memory = &self.memories[place.memory.0];
        let lkey = memory.exposed.lkey(0);
        Ok(Sge {
            addr: memory.region()?.addr() + place.offset as u64,
            len: place.len,
            lkey: lkey.ok_or_else(|| Failure::new("the memory is not registered"))?,
        })
    }
}
