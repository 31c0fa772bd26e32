//! An inbox without a peer process: both its ends here, each on a map of its own of one memfd.
//!
//! For tests and for `benches/shm-ring`; a connection gets its maps from the door.
//! Imports inlet, outlet.

#![allow(unsafe_code, reason = "maps a memfd twice, and copies messages")]

use super::super::Geometry;
use super::{Broken, Full, InboxMemory, Inlet, Outlet, What};
use crate::fabric::Note;
use crate::memory::{copy_arrived, copy_message};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// One map of the memfd.
#[derive(Debug)]
struct Map {
    base: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: `Send` and `Sync` want that any thread may hold and drop it: nothing is reached through it.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    fn of(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: `mmap` requires that a fixed address replaces nothing in use: the address is null.
        let base = unsafe { mmap(ptr::null_mut(), bytes, rights, flags, fd, 0) }?;
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: `munmap` requires that nobody uses the range: who does holds us.
        let result = unsafe { munmap(self.base.as_ptr(), self.bytes) };
        debug_assert!(result.is_ok(), "munmap of our own map: {result:?}");
    }
}

/// The two ends of a new inbox.
///
/// # Errors
/// The geometry is none, or there is no memory.
pub fn pair(geometry: Geometry) -> io::Result<(Outlet, Inlet)> {
    let geometry = geometry
        .check()
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
    let bytes = geometry.bytes();
    let fd = memfd_create("spinwire-inbox", MemfdFlags::CLOEXEC)?;
    ftruncate(&fd, bytes as u64)?;
    let end = || {
        let map = Map::of(fd.as_fd(), bytes)?;
        let base = map.base.cast();
        // SAFETY: `new` requires `bytes` mapped while the owner lives: the owner is the map, of a memfd
        // that nobody else has and that has that size; no reference to them is formed here.
        let memory = unsafe { InboxMemory::new(base, bytes, geometry, Arc::new(map)) };
        memory.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
    };
    Ok((Outlet::new(end()?), Inlet::new(end()?)))
}

/// Sends a message of one fragment, or the first fragment of a longer one. Says how much that was.
///
/// # Errors
/// There is no room.
#[inline(always)]
pub fn send(outlet: &mut Outlet, ack: u32, bytes: &[u8]) -> Result<u32, Full> {
    let left = u32::try_from(bytes.len()).map_err(|_| Full)?;
    outlet.push(Note::None, ack, left, |to, len| {
        // SAFETY: `copy_message` requires `len` bytes on both sides, apart: `push` gives the place for
        // them and asks for no more than `left`; the place is in a map, which no slice lies in.
        unsafe { copy_message(bytes.as_ptr(), to, len) }
    })
}

/// Receives a fragment, as far as `into` has room for it. Says how many bytes it had and what ack it
/// brought, or that none has come.
///
/// # Errors
/// The peer is broken.
#[inline(always)]
pub fn receive(inlet: &mut Inlet, into: &mut [u8]) -> Result<Option<(u32, u32)>, Broken> {
    let Some(head) = inlet.peek()? else {
        return Ok(None);
    };
    let (len, ack) = (head.len(), head.ack());
    if matches!(head.what(), What::Message(_)) {
        let fits = into.len().min(len as usize);
        // SAFETY: `copy_arrived` requires `fits` bytes on both sides, apart: the head has `len`, and
        // `into` is unique and holds as many.
        unsafe { copy_arrived(head.payload(), into.as_mut_ptr(), fits) };
    }
    inlet.consume(head);
    Ok(Some((len, ack)))
}

/// Receives a fragment where it lies, unread.
///
/// # Errors
/// The peer is broken.
#[inline(always)]
pub fn skip(inlet: &mut Inlet) -> Result<Option<u32>, Broken> {
    let Some(head) = inlet.peek()? else {
        return Ok(None);
    };
    let ack = head.ack();
    inlet.consume(head);
    Ok(Some(ack))
}
