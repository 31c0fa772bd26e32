//! What framed mode puts on the wire: codecs, and nothing else.
//!
//! ```text
//!   connection request ─── Hello ───►          private data of the handshake,
//!   ◄── Hello ── accept, or Refusal ── reject  at most 56 bytes
//!
//!   every message after that:
//!   ┌───────────────┬──────────────────────────────────────────────┐
//!   │ Header, 16 B  │ payload: the embedder's, a RegionOffer, a    │
//!   │               │ RegionId, a LargeOffer, a Finish; or none    │
//!   └───────────────┴──────────────────────────────────────────────┘
//! ```
//! All numbers are little-endian and lie at fixed offsets; each type draws its own layout. A codec
//! does no I/O, allocates nothing and takes any bytes: what it cannot read is an error, never a
//! panic. Bytes go in as a slice, so memory that a peer may still write must be copied out first.
//!
//! **Versions.** The byte behind the magic is the version, and both sides must have the same one.
//! What is added without a new version goes to the end of the [`Hello`], whose length byte grows,
//! or is a [`Features`] bit, of which only those count that both sides have.
//!
//! Imports limits and types. Imported by flow, framed and control.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod header;
mod hello;
mod large;
mod refusal;
mod region;

pub use header::{HEADER_BYTES, Header, HeaderError, Kind};
pub use hello::{Features, Hello, HelloError, HelloField};
pub use large::{Finish, FinishStatus, LargeError, LargeId, LargeOffer};
pub use refusal::Refusal;
pub use region::{OfferError, RegionId, RegionOffer};

#[cfg(test)]
mod wire_tests;

use crate::limits::{
    PRIVATE_DATA_MAX, QUEUE_DEPTH_MAX, SHARED_RECV_DEPTH_MAX, SHARED_RECV_SHARE_MIN, SLOT_BYTES_MIN,
};

/// Version of the wire format that this crate speaks.
pub const VERSION: u8 = 1;
/// Least receive queue of a side that speaks framed: below it the credit window of
/// [`flow`](crate::flow) could stand still.
pub const RECV_DEPTH_MIN: u32 = 4;
/// Most receives that a [`Hello`] may claim: more than any device has, and few enough that counts
/// modulo 2^32 cannot be mistaken.
pub const RECV_DEPTH_MAX: u32 = 1 << 30;
/// Receives that must be posted before the [`Hello`] goes out: one for a message, one for credits.
pub const POSTED_MIN: u32 = 2;
/// Least message, header included, that a side which speaks framed must take: all that the engine
/// itself sends fits.
pub const MESSAGE_BYTES_MIN: u32 = 48;

const _: () = assert!(MESSAGE_BYTES_MIN as usize == HEADER_BYTES + RegionOffer::BYTES);
const _: () =
    assert!(LargeOffer::BYTES <= RegionOffer::BYTES && Finish::BYTES <= RegionOffer::BYTES);
const _: () = assert!(MESSAGE_BYTES_MIN <= SLOT_BYTES_MIN);
const _: () = assert!(Hello::BYTES <= PRIVATE_DATA_MAX && Refusal::BYTES <= PRIVATE_DATA_MAX);
const _: () = assert!(POSTED_MIN <= RECV_DEPTH_MIN && RECV_DEPTH_MIN <= QUEUE_DEPTH_MAX);
const _: () = assert!(QUEUE_DEPTH_MAX <= RECV_DEPTH_MAX);
// A share of a shared queue is a depth to the peer.
const _: () =
    assert!(SHARED_RECV_SHARE_MIN >= RECV_DEPTH_MIN && SHARED_RECV_DEPTH_MAX <= RECV_DEPTH_MAX);

/// `N` bytes at a fixed place of a fixed layout. The place is a constant at every call, so the
/// tests of exact bytes would find one outside.
#[inline]
fn at<const N: usize, const ALL: usize>(bytes: &[u8; ALL], offset: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[offset..offset + N]);
    field
}

/// Writes a field to a fixed place of a fixed layout.
#[inline]
fn put<const N: usize, const ALL: usize>(bytes: &mut [u8; ALL], offset: usize, field: [u8; N]) {
    bytes[offset..offset + N].copy_from_slice(&field);
}
