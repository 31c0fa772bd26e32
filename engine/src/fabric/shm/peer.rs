//! The other end of a QP: where to send to, what it allows, and the regions of it that are mapped here.
//!
//! ```text
//!  rkey ─► the peer's board: in use? ─► mapped here? ─yes─► within? allowed? ─► Piece
//!              └─ no: refused               └─ no: asked of the peer's control, once; the queue waits
//! ```
//! Bounds and rights are those of the grant that control checked; the board only says whether the peer
//! still means it: by a tag, which is another with each registration of the peer's. Imports inbox, registry, piece. Imported by qp, send and link.

#![allow(
    unsafe_code,
    reason = "reads the board and names bytes of mapped regions"
)]

use super::door::GrantedRegion;
use super::inbox::Outlet;
use super::piece::Piece;
use super::registry::{BOARD_BYTES, slot_of};
use crate::sys::bell::Ringer;
use crate::sys::memfd::SharedMap;
use crate::types::{Access, RemoteSpan, Rkey};
use std::sync::atomic::{AtomicU32, Ordering};

/// Regions of one peer that are mapped at a time, by one QP.
const REGIONS_MAX: usize = 64;

/// A region of the peer's, mapped here.
#[derive(Debug)]
pub(super) struct Mapped {
    rkey: Rkey,
    /// What the board said when it was asked for, and when it was given.
    tag: u32,
    granted: GrantedRegion,
}

impl Mapped {
    /// `None` where words of the peer's would not be words of ours: atomics count on it.
    pub(super) fn new(rkey: Rkey, granted: GrantedRegion) -> Option<Self> {
        let aligned = granted.base.is_multiple_of(8);
        aligned.then_some(Self {
            rkey,
            tag: 0,
            granted,
        })
    }

    fn piece(&self, at: RemoteSpan, len: u32, access: Access) -> Option<Piece> {
        // The map is writable if a right to write was granted.
        let GrantedRegion {
            map,
            base,
            len: bytes,
            access: granted,
        } = &self.granted;
        granted.contains(access).then_some(())?;
        // SAFETY: `Piece::within` requires bytes that stay mapped as long as the piece is used: a granted
        // region's map has them, and it lives in the lane that uses the piece, within one call.
        unsafe { Piece::within(map.base(), *bytes, *base, at.addr, len) }
    }
}

/// What stands behind a key.
#[derive(Debug)]
pub(super) enum Remote {
    /// Bytes that may be used so.
    Here(Piece),
    /// The key is not known here: its owner is to be asked.
    Unknown,
    /// The peer does not allow it.
    Refused,
}

/// The other end.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) outlet: Outlet,
    board: SharedMap,
    /// What its QP takes.
    pub(super) access: Access,
    ringer: Option<Ringer>,
    /// RNR retries that it was given.
    pub(super) rnr_given: u8,
    /// READs and atomics that may be under way; 0 for none.
    pub(super) fetch_depth: u8,
    regions: Vec<Mapped>,
    last: usize,
    /// The key that it was asked for and has not given, with the tag that it had then.
    asked: Option<(Rkey, u32)>,
    denied: Option<Rkey>,
}

impl Peer {
    /// `None` where its board is none.
    pub(super) fn new(
        outlet: Outlet,
        board: SharedMap,
        access: Access,
        ringer: Option<Ringer>,
        (rnr_given, fetch_depth): (u8, u8),
    ) -> Option<Self> {
        (board.bytes() == BOARD_BYTES).then(|| Self {
            outlet,
            board,
            access,
            ringer,
            rnr_given,
            fetch_depth,
            regions: Vec::with_capacity(REGIONS_MAX),
            last: 0,
            asked: None,
            denied: None,
        })
    }

    /// Something was pushed or published: if it sleeps, it is woken.
    #[inline]
    pub(super) fn ring(&self) {
        if let Some(ringer) = &self.ringer {
            self.ring_if_asleep(ringer);
        }
    }

    #[inline(never)]
    fn ring_if_asleep(&self, ringer: &Ringer) {
        if self.outlet.peer_sleeps() {
            // Who is gone needs no waking.
            let _ = ringer.ring();
        }
    }

    /// What the peer's board says of a key's slot; 0 if none in it is in use.
    #[inline]
    fn tag(&self, rkey: Rkey) -> u32 {
        let slot = slot_of(rkey.0);
        // SAFETY: `add` requires that the result stays in the mapping: it has a word a slot, as `new` saw.
        let word = unsafe { self.board.base().cast::<u32>().add(slot) };
        // SAFETY: `from_ptr` requires
        // - an aligned pointer to 4 bytes that stay mapped: a map begins at a page, and lives in `self`;
        // - that nobody accesses them but by atomics: this process only loads, here; the map is
        //   readable, which is all that a relaxed or acquiring load wants on the targets there are.
        let word = unsafe { AtomicU32::from_ptr(word.as_ptr()) };
        word.load(Ordering::Acquire)
    }

    /// The peer's bytes, as far as it allows `access` to all of them. An operation of no bytes needs no
    /// key.
    pub(super) fn remote(&mut self, at: RemoteSpan, len: u32, access: Access) -> Remote {
        if len == 0 {
            return Remote::Here(Piece::EMPTY);
        }
        let tag = self.tag(at.rkey);
        if tag == 0 || self.denied == Some(at.rkey) {
            return Remote::Refused;
        }
        let is = |region: &Mapped| region.rkey == at.rkey;
        let found = if self.regions.get(self.last).is_some_and(is) {
            Some(self.last)
        } else {
            self.regions.iter().position(is)
        };
        let Some(found) = found else {
            return Remote::Unknown;
        };
        self.last = found;
        let region = &self.regions[found];
        match region.piece(at, len, access).filter(|_| region.tag == tag) {
            Some(piece) => Remote::Here(piece),
            None => Remote::Refused,
        }
    }

    /// It was asked for a key and has not answered.
    pub(super) fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// The peer is to be asked for a key; false if it was already.
    pub(super) fn ask(&mut self, rkey: Rkey) -> bool {
        let fresh = self.asked.is_none_or(|(asked, _)| asked != rkey);
        if fresh {
            self.asked = Some((rkey, self.tag(rkey)));
        }
        fresh
    }

    /// What the peer answered. Gives a region that is mapped no longer: one whose key is out of use, or
    /// the oldest where there is no more room.
    pub(super) fn answer(&mut self, rkey: Rkey, region: Option<Box<Mapped>>) -> Option<Mapped> {
        let (_, tag) = self.asked.take_if(|(asked, _)| *asked == rkey)?;
        let Some(mut region) = region else {
            self.denied = Some(rkey);
            return None;
        };
        if self.tag(rkey) != tag {
            // Of a registration that is gone: the next look says what is there now.
            return Some(*region);
        }
        region.tag = tag;
        let idle = self.regions.iter().position(|r| self.tag(r.rkey) != r.tag);
        let full = (self.regions.len() >= REGIONS_MAX).then_some(0);
        let gone = idle.or(full).map(|at| self.regions.remove(at));
        self.regions.push(*region);
        gone
    }
}
