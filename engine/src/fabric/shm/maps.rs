//! Inboxes in the memory that carries them.
//!
//! ```text
//!  ours   Arc<Memfd>  ─► InboxMemory, for an Inlet       theirs  SharedMap ─► InboxMemory, for an Outlet
//! ```
//! Imports inbox, sys. Imported by mod.

#![allow(unsafe_code, reason = "vouches for the maps that inboxes lie in")]

use super::Geometry;
use super::inbox::InboxMemory;
use crate::sys::memfd::{Memfd, SharedMap};
use std::sync::Arc;

/// The inbox that fills a memfd of ours. `None` where it does not fit.
pub(super) fn ours(memfd: &Arc<Memfd>, geometry: Geometry) -> Option<InboxMemory> {
    // SAFETY: `InboxMemory::new` requires, as long as the owner lives,
    // - `bytes()` mapped readable and writable at `base()`, without faults: a memfd of ours is mapped so
    //   and its size is sealed, and the owner is the memfd;
    // - no references to them in this process: a memfd gives none out, and this one was made for the inbox.
    unsafe { InboxMemory::new(memfd.base(), memfd.bytes(), geometry, memfd.clone()) }
}

/// The inbox that fills a peer's memory, which was mapped for writing. `None` where it does not fit.
pub(super) fn theirs(map: SharedMap, geometry: Geometry) -> Option<InboxMemory> {
    let map = Arc::new(map);
    // SAFETY: as in `ours`: the door maps a peer's inbox for writing, after it has seen that the size is
    // sealed, and nobody else has the map.
    unsafe { InboxMemory::new(map.base(), map.bytes(), geometry, map.clone()) }
}
