//! Memory that was registered, and the copies between what two ends have registered.
//!
//! ```text
//!  Device::register ─► Registered { domain, keys, access, Arc<Region> } ◄─ PairRegistration, until dropped
//!  key, address, length, right ─► Piece ─► gather, scatter, atomics
//! ```
//! A look-up and the copy that follows it are under one lock, and deregistering takes the same lock:
//! a region that is not registered any more is never touched. Every copy is made by the routine for
//! memory that others may be writing. Imports memory. Imported by execute and handles.

#![allow(unsafe_code, reason = "plays the NIC: copies by address")]

use super::net::{Hub, Net};
use crate::fabric::{Sge, WcStatus};
use crate::memory::{Region, Registration, copy_shared};
use crate::types::{Access, Lkey, RemoteSpan, Rkey};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rkeys have this bit, lkeys have not: one taken for the other is unknown.
const REMOTE: u32 = 1 << 31;
/// Bits of a key that find the entry; those above tell its uses apart.
const INDEX_BITS: u32 = 16;

/// A region that a domain's device knows.
pub(super) struct Registered {
    domain: u64,
    lkey: u32,
    access: Access,
    /// A peer took the rkey out of use.
    invalidated: bool,
    region: Arc<Region>,
}

/// Memory of the pair fabric's device; it is forgotten when this is dropped.
#[derive(Debug)]
pub struct PairRegistration {
    hub: Hub,
    index: usize,
    lkey: u32,
}

impl Registration for PairRegistration {
    fn lkey(&self) -> Lkey {
        Lkey(self.lkey)
    }
    fn rkey(&self) -> Rkey {
        Rkey(self.lkey | REMOTE)
    }
}

impl Drop for PairRegistration {
    fn drop(&mut self) {
        let gone = self.hub.lock().regions.remove(self.index);
        // Unmapping, if this was the last holder, needs no lock.
        drop(gone);
    }
}

/// Enters a region. `None` when the keys are used up.
pub(super) fn register(
    hub: &Hub,
    domain: u64,
    region: Arc<Region>,
    access: Access,
) -> Option<PairRegistration> {
    let mut net = hub.lock();
    let use_ = net.number();
    let index = net.regions.insert(Registered {
        domain,
        lkey: 0,
        access,
        invalidated: false,
        region,
    });
    let low = u32::try_from(index)
        .ok()
        .filter(|low| *low < 1 << INDEX_BITS);
    let Some((low, entry)) = low.zip(net.regions.get_mut(index)) else {
        net.regions.remove(index);
        return None;
    };
    let high = u32::try_from(use_ & 0x7fff).unwrap_or(0);
    let lkey = (high << INDEX_BITS) | low;
    entry.lkey = lkey;
    drop(net);
    Some(PairRegistration {
        hub: hub.clone(),
        index,
        lkey,
    })
}

/// Bytes that a key was held against. Good while the lock is held under which it was made.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    at: NonNull<u8>,
    pub(super) len: usize,
}

impl Piece {
    /// Bytes that are the fabric's own.
    pub(super) fn of(bytes: &mut [u8]) -> Self {
        Self {
            at: NonNull::from(&mut *bytes).cast(),
            len: bytes.len(),
        }
    }

    pub(super) const EMPTY: Self = Self {
        at: NonNull::dangling(),
        len: 0,
    };
}

impl Registered {
    fn piece(&self, addr: u64, len: u32) -> Option<Piece> {
        let base = self.region.base();
        let offset = usize::try_from(addr).ok()?.checked_sub(base.addr().get())?;
        let len = len as usize;
        let end = offset.checked_add(len)?;
        (end <= self.region.len()).then_some(())?;
        // SAFETY: `add` requires that the result stays in the mapping: `offset <= end <= len()`.
        let at = unsafe { base.add(offset) };
        Some(Piece { at, len })
    }
}

impl Net {
    fn registered(&self, lkey: u32, domain: u64) -> Option<&Registered> {
        let index = (lkey & ((1 << INDEX_BITS) - 1)) as usize;
        let entry = self.regions.get(index)?;
        (entry.lkey == lkey && entry.domain == domain).then_some(entry)
    }

    /// Local bytes that allow `access`. Nothing is asked of a piece without bytes.
    pub(super) fn local(&self, domain: u64, sge: Sge, access: Access) -> Result<Piece, WcStatus> {
        if sge.len == 0 {
            return Ok(Piece::EMPTY);
        }
        let entry = self.registered(sge.lkey.0, domain);
        entry
            .filter(|entry| entry.access.contains(access))
            .and_then(|entry| entry.piece(sge.addr, sge.len))
            .ok_or(WcStatus::LocalProtection)
    }

    /// The peer's bytes; `None` where its registrations do not allow `access` to all of them. An
    /// operation of no bytes needs no key.
    pub(super) fn remote(
        &self,
        domain: u64,
        at: RemoteSpan,
        len: u32,
        access: Access,
    ) -> Option<Piece> {
        if len == 0 {
            return Some(Piece::EMPTY);
        }
        let entry = self.registered(at.rkey.0 ^ REMOTE, domain)?;
        let allowed = entry.access.contains(access) && !entry.invalidated;
        allowed.then(|| entry.piece(at.addr, len)).flatten()
    }

    /// Takes an rkey out of use; false if the domain has none such.
    pub(super) fn invalidate(&mut self, domain: u64, rkey: Rkey) -> bool {
        let lkey = rkey.0 ^ REMOTE;
        let known = self
            .registered(lkey, domain)
            .is_some_and(|r| !r.invalidated);
        let index = (lkey & ((1 << INDEX_BITS) - 1)) as usize;
        if known && let Some(entry) = self.regions.get_mut(index) {
            entry.invalidated = true;
        }
        known
    }
}

/// Copies the bytes of one list into the places of another, as far as both go.
pub(super) fn copy_pieces(from: &[Piece], to: &[Piece]) {
    let (mut from, mut to) = (from.iter().copied(), to.iter().copied());
    let (mut source, mut sink) = (Piece::EMPTY, Piece::EMPTY);
    loop {
        if source.len == 0 {
            let Some(next) = from.next() else { return };
            source = next;
        } else if sink.len == 0 {
            let Some(next) = to.next() else { return };
            sink = next;
        } else {
            let n = source.len.min(sink.len);
            // SAFETY: `copy_shared` requires
            // - `n` bytes on both sides: a piece has `len` of them, in a region that is registered
            //   (the lock is held since it was looked up) or in the fabric's own memory;
            // - nobody else to use a reference to the sink: it is memory that was posted, which its
            //   owner keeps out of reach, or exposed memory, of which no slice is formed.
            unsafe { copy_shared(source.at.as_ptr(), sink.at.as_ptr(), n) };
            source = source.rest(n);
            sink = sink.rest(n);
        }
    }
}

impl Piece {
    fn rest(self, n: usize) -> Self {
        Self {
            // SAFETY: `add` requires that the result stays within the piece or at its end: `n <= len`.
            at: unsafe { self.at.add(n) },
            len: self.len - n,
        }
    }

    /// The 8 bytes at an aligned address, for atomics with the CPUs of this host.
    pub(super) fn as_atomic(&self, operate: impl FnOnce(&AtomicU64, Ordering) -> u64) -> u64 {
        debug_assert!(self.len == 8 && self.at.addr().get().is_multiple_of(8));
        // SAFETY: `from_ptr` requires
        // - 8 readable and writable bytes, aligned: the caller checked the address, and the piece was
        //   held against its registration;
        // - that others access them by atomics only, or not at the same time: exposed memory is
        //   touched by this and by `copy_shared`, whose instruction tears nothing that is aligned.
        let word = unsafe { AtomicU64::from_ptr(self.at.as_ptr().cast()) };
        operate(word, Ordering::SeqCst)
    }
}
