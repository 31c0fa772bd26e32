//! The 64-bit word of a work request: on an error completion it is nearly all that is valid, so it
//! carries everything that finds the operation again.
//!
//! ```text
//!  63..60 kind │ 59..44 connection index │ 43..24 generation │ 23..0 sequence or slot
//!  63..60 = 3  │ 59..44 a place of the lane │     0        │ 23..0 slot                shared receive
//! ```
//! A receive of a shared queue belongs to no connection when it is posted: the completion's QP number
//! says whose message it got.
//! The generation makes a late completion of an old connection harmless when its index is in use
//! again.

use super::ConnId;

const KIND_SHIFT: u32 = 60;
const INDEX_SHIFT: u32 = 44;
const GENERATION_SHIFT: u32 = 24;
const SEQUENCE_MASK: u32 = (1 << GENERATION_SHIFT) - 1;
/// Generations are counted modulo this.
pub(crate) const GENERATIONS: u32 = 1 << (INDEX_SHIFT - GENERATION_SHIFT);

const _: () = assert!(crate::limits::CONNECTIONS_MAX <= 1 << (KIND_SHIFT - INDEX_SHIFT));
const _: () = assert!(crate::limits::QUEUE_DEPTH_MAX < 1 << (GENERATION_SHIFT - 1));
const _: () = assert!(crate::limits::SHARED_RECV_DEPTH_MAX <= 1 << GENERATION_SHIFT);
/// Kind of a receive of a shared queue.
const SHARED: u64 = 3;

/// Which queue an operation is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Recv,
}

/// The word without its sequence, made once a connection; [`with_sequence`] adds that.
pub(crate) fn base(kind: Kind, conn: ConnId) -> u64 {
    let kind = match kind {
        Kind::Send => 1u64,
        Kind::Recv => 2,
    };
    (kind << KIND_SHIFT)
        | (u64::from(conn.index) << INDEX_SHIFT)
        | (u64::from(conn.generation % GENERATIONS) << GENERATION_SHIFT)
}

/// Index of the connection that a word names, if it is one of ours.
#[inline]
pub(crate) fn index_of(word: u64) -> u16 {
    low16(word >> INDEX_SHIFT)
}

/// The word but for its sequence: kind, index and generation.
#[inline]
pub(crate) fn key_of(word: u64) -> u64 {
    word >> GENERATION_SHIFT
}

/// Sequence or slot of a word.
#[inline]
pub(crate) fn sequence_of(word: u64) -> u32 {
    low32(word) & SEQUENCE_MASK
}

/// The word of a lane's shared receives without its slot; [`with_sequence`] adds that. The lane is named
/// by one of its places.
pub(crate) fn shared_base(place: u16) -> u64 {
    (SHARED << KIND_SHIFT) | (u64::from(place) << INDEX_SHIFT)
}

/// Slot of a receive of a shared queue; `None` for a word that names none.
#[inline]
pub(crate) fn shared_slot(word: u64) -> Option<u32> {
    (word >> KIND_SHIFT == SHARED).then(|| sequence_of(word))
}

/// `base` with a sequence, of which the low 24 bits count.
#[inline]
pub(crate) fn with_sequence(base: u64, sequence: u32) -> u64 {
    base | u64::from(sequence & SEQUENCE_MASK)
}

/// How far `sequence` (24 bits) lies behind or at `from`, both modulo 2^24: the number of operations
/// from `from` to `sequence` inclusive, `None` when it lies before `from`.
#[inline]
pub(crate) fn span(from: u32, sequence: u32) -> Option<u32> {
    let distance = sequence.wrapping_sub(from) & SEQUENCE_MASK;
    (distance <= SEQUENCE_MASK / 2).then_some(distance + 1)
}

#[inline]
#[allow(
    clippy::cast_possible_truncation,
    reason = "the low bits are what is wanted"
)]
fn low16(word: u64) -> u16 {
    word as u16
}

#[inline]
#[allow(
    clippy::cast_possible_truncation,
    reason = "the low bits are what is wanted"
)]
fn low32(word: u64) -> u32 {
    word as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_survive(index: u16, generation in 0..GENERATIONS, sequence: u32, send: bool) {
            let conn = ConnId { worker: 3, index, generation };
            let (this, other) = if send {
                (Kind::Send, Kind::Recv)
            } else {
                (Kind::Recv, Kind::Send)
            };
            let word = with_sequence(base(this, conn), sequence);
            prop_assert_eq!(index_of(word), index);
            prop_assert_eq!(sequence_of(word), sequence & SEQUENCE_MASK);
            prop_assert_eq!(key_of(word), key_of(base(this, conn)));
            prop_assert_ne!(key_of(word), key_of(base(other, conn)));
            let next = ConnId { generation: generation + 1, ..conn };
            prop_assert_ne!(key_of(word), key_of(base(this, next)));
            prop_assert_ne!(key_of(word), 0);
        }

        #[test]
        fn span_counts_across_the_wrap(from: u32, ahead in 0u32..8_000_000) {
            prop_assert_eq!(span(from, from.wrapping_add(ahead) & SEQUENCE_MASK), Some(ahead + 1));
            prop_assert_eq!(span(from.wrapping_add(1), from & SEQUENCE_MASK), None);
        }

        #[test]
        fn words_of_shared_receives_name_place_and_slot(place: u16, slot in 0..=SEQUENCE_MASK) {
            let word = with_sequence(shared_base(place), slot);
            prop_assert_eq!((index_of(word), shared_slot(word)), (place, Some(slot)));
        }

        /// No connection's key is that of a shared receive, nor a vacant place's.
        #[test]
        fn shared_words_have_a_kind_of_their_own(place: u16, index: u16, generation: u32) {
            let key = key_of(shared_base(place));
            let conn = ConnId { worker: 0, index, generation };
            for kind in [Kind::Send, Kind::Recv] {
                prop_assert_ne!(key_of(base(kind, conn)), key);
                prop_assert_eq!(shared_slot(base(kind, conn)), None);
            }
            prop_assert_ne!(key, 0);
        }
    }
}
