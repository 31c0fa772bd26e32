//! One direction of a connection between processes: a ring in the memory of whoever receives.
//!
//! ```text
//!  sender: Outlet                                                  receiver: Inlet
//!  push ── payload up to 48 B ───────────────► cell ─┐
//!     └─── more ──► data, then its length in a cell ─┴─► peek ─► Head ─► copied out once ─► consume
//!  note_ack ◄──────────── in the cells of the other direction ◄─ ack
//!  look ◄──────────────── header line, now and then ◄─────────── publish, waits, refuse
//!  peer_sleeps ◄───────── header line ◄───────────────────────── arm, disarm
//! ```
//! **A cell is one cache line**: its first word carries the sequence number and is written last, so one
//! line crosses for a message. Longer payloads go into the data ring, contiguous, and longer ones than
//! a fragment ([`Geometry::fragment_bytes`](super::Geometry::fragment_bytes)) in several cells. Where in
//! the data a fragment lies is never said: both ends compute it from the lengths before it.
//!
//! **Acknowledgements count cells**, and ride in the cells of the other direction. Where nothing goes that
//! way the receiver [publishes](Inlet::publish) them in a line of the header. [`Outlet::sent`] after a
//! push is the number that [`Outlet::is_acked`] asks for.
//!
//! **The peer is hostile.** Both ends can write all of the memory at any instant. So each keeps its own
//! positions privately, never reads back what it wrote, reads every word once, and holds what it read
//! against what it knows: a number that no honest peer writes is [`Broken`], a lie within bounds harms
//! its teller alone. Nothing here forms a reference to the bytes but to atomics.
//!
//! Rings of raw shared memory are out of loom's sight: the order (payload, then first word by Release;
//! copied out, then progress by Release) is that of `ring::spsc`, which loom runs; here two threads on
//! two maps are tested instead.
//!
//! Imports geometry, memory (the copy routine), types, datapath's note. Imported by shm.

mod due;
mod inlet;
mod layout;
#[cfg(all(test, not(loom)))]
mod model_tests;
mod outlet;
#[doc(hidden)]
pub mod rig;
#[cfg(all(test, not(loom)))]
mod scribble_tests;
#[cfg(all(test, not(loom)))]
mod tests;

pub use due::Due;
pub use inlet::{Head, Inlet, Short};
pub use layout::{INLINE_BYTES, InboxMemory};
pub use outlet::{Full, Look, Outlet};

use crate::fabric::Note;

/// What a cell brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A fragment of a message, of which the last one's note counts.
    Message(Note),
    /// The peer wrote `len` bytes into memory of ours, and this is to consume a receive.
    Written {
        /// The 32 bits beside it.
        imm: u32,
        /// Bytes written, as the peer says.
        len: u32,
    },
    /// The peer found that its request is not to be had, and both ends are in error.
    Fault(u32),
}

/// The peer wrote what none of ours writes: the connection is over, nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A cell of a kind that there is not, or not at this place.
    #[error("the peer sent a cell of an unknown kind, or out of order")]
    Kind,
    /// A fragment's length is none.
    #[error("the peer sent a fragment of an impossible length")]
    Length,
    /// More was acknowledged than sent.
    #[error("the peer acknowledged more than it was sent")]
    Ack,
    /// More room was given back than taken.
    #[error("the peer gave back more room than was taken")]
    Room,
    /// A refusal with a code that there is not.
    #[error("the peer refused a message with an unknown code")]
    Refusal,
}
