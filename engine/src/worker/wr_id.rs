//! The 64-bit word of a work request: on an error completion it is nearly all that is valid, so it
//! carries everything that finds the operation again.
//!
//! ```text
//!  63..60 kind │ 59..44 connection index │ 43..24 generation │ 23..0 sequence or slot
//! ```
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

/// Which queue an operation is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Recv,
}

/// What a completion names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrId {
    pub(crate) kind: Kind,
    pub(crate) index: u16,
    pub(crate) generation: u32,
    /// Send: low 24 bits of its number on the queue. Receive: its slot.
    pub(crate) sequence: u32,
}

impl WrId {
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

    /// `None` for a word that is not ours.
    #[inline]
    pub(crate) fn parse(word: u64) -> Option<Self> {
        let kind = match word >> KIND_SHIFT {
            1 => Kind::Send,
            2 => Kind::Recv,
            _ => return None,
        };
        Some(Self {
            kind,
            index: low16(word >> INDEX_SHIFT),
            generation: low32(word >> GENERATION_SHIFT) & (GENERATIONS - 1),
            sequence: low32(word) & SEQUENCE_MASK,
        })
    }
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
            let kind = if send { Kind::Send } else { Kind::Recv };
            let conn = ConnId { worker: 3, index, generation };
            let word = with_sequence(WrId::base(kind, conn), sequence);
            let want = WrId { kind, index, generation, sequence: sequence & SEQUENCE_MASK };
            prop_assert_eq!(WrId::parse(word), Some(want));
        }

        #[test]
        fn span_counts_across_the_wrap(from: u32, ahead in 0u32..8_000_000) {
            prop_assert_eq!(span(from, from.wrapping_add(ahead) & SEQUENCE_MASK), Some(ahead + 1));
            prop_assert_eq!(span(from.wrapping_add(1), from & SEQUENCE_MASK), None);
        }

        #[test]
        fn any_word_parses_or_not(word: u64) {
            let _ = WrId::parse(word);
        }
    }
}
