//! The sixteen bytes before every framed message.
//!
//! ```text
//!   0      1       2          4        8                16
//!   ├──────┼───────┼──────────┼────────┼────────────────┼─ ─ ─ ─
//!   │ kind │ flags │ reserved │ posted │ request id     │ payload
//!   │ u8   │ 0     │ 0        │ u32    │ u64            │
//! ```
//! `posted` is how credits travel. It is a count that only grows, so one that comes late or comes
//! again does no harm, and a message that goes anyway carries credits for nothing.
//!
//! Imports region and large, for the lengths of their payloads. Imported by framed.

use super::large::{Finish, LargeOffer};
use super::region::{RegionId, RegionOffer};
use super::{at, put};

/// Bytes of an encoded [`Header`].
pub const HEADER_BYTES: usize = 16;

/// What a framed message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Nothing but the header's count of receives. No payload.
    Credits,
    /// A message that asks for no answer.
    Message,
    /// A message that asks for a [`Reply`](Kind::Reply) with its request id.
    Request,
    /// The answer to the request with the same id.
    Reply,
    /// The sender offers memory of its own. The payload is a [`RegionOffer`].
    Offer,
    /// The sender takes an offer back. The payload is its [`RegionId`].
    Withdraw,
    /// A message larger than a buffer, for the receiver to READ. The payload is a [`LargeOffer`].
    Large,
    /// The receiver reads no more of a large message. The payload is a [`Finish`].
    Finish,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::Credits,
        Self::Message,
        Self::Request,
        Self::Reply,
        Self::Offer,
        Self::Withdraw,
        Self::Large,
        Self::Finish,
    ];

    /// Its number on the wire.
    #[inline]
    #[must_use]
    pub const fn byte(self) -> u8 {
        match self {
            Self::Credits => 0,
            Self::Message => 1,
            Self::Request => 2,
            Self::Reply => 3,
            Self::Offer => 4,
            Self::Withdraw => 5,
            Self::Large => 6,
            Self::Finish => 7,
        }
    }

    /// `None` for a number that no kind has.
    #[inline]
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Credits),
            1 => Some(Self::Message),
            2 => Some(Self::Request),
            3 => Some(Self::Reply),
            4 => Some(Self::Offer),
            5 => Some(Self::Withdraw),
            6 => Some(Self::Large),
            7 => Some(Self::Finish),
            _ => None,
        }
    }

    /// Bytes that the payload must have; `None` where it is the embedder's and has any length.
    #[inline]
    #[must_use]
    pub const fn payload_bytes(self) -> Option<usize> {
        match self {
            Self::Credits => Some(0),
            Self::Message | Self::Request | Self::Reply => None,
            Self::Offer => Some(RegionOffer::BYTES),
            Self::Withdraw => Some(RegionId::BYTES),
            Self::Large => Some(LargeOffer::BYTES),
            Self::Finish => Some(Finish::BYTES),
        }
    }
}

/// A message that is not framed as this version frames. The connection it came on is of no more
/// use: whatever follows would be guesswork.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Fewer bytes than a header has.
    #[error("a message of {0} B: a header alone has {HEADER_BYTES} B")]
    Short(usize),
    /// A kind that this version does not know.
    #[error("kind {0} of message is not known")]
    Kind(u8),
    /// Flags that this version does not know: it knows none.
    #[error("flags {0:#04x} of a header are not known")]
    Flags(u8),
    /// The two bytes that must be zero are not.
    #[error("reserved bytes of a header are {0:#06x}, not 0")]
    Reserved(u16),
    /// The payload has not the length that its kind demands.
    #[error("{kind:?} with {seen} B of payload, not {must}")]
    Payload {
        /// What the message says it is.
        kind: Kind,
        /// Bytes of payload such a message has.
        must: usize,
        /// Bytes of payload that came.
        seen: usize,
    },
}

/// The header of one framed message.
///
/// ```
/// use spinwire::wire::{HEADER_BYTES, Header, Kind};
/// let header = Header { kind: Kind::Request, posted: 130, request_id: 7 };
/// let mut frame = [0; HEADER_BYTES + 4];
/// let (head, payload) = frame.split_first_chunk_mut().expect("room for a header");
/// header.encode(head);
/// payload.copy_from_slice(b"read");
/// assert_eq!(Header::parse(&frame), Ok((header, &b"read"[..])));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// What the message is.
    pub kind: Kind,
    /// Receives that the sender of this header has posted on this connection so far, those of its
    /// [`Hello`](super::Hello) included, modulo 2^32. See [`flow`](crate::flow).
    pub posted: u32,
    /// Pairs a reply with its request. Other kinds send 0, and nobody looks at it.
    pub request_id: u64,
}

impl Header {
    /// Writes the header. The payload follows right behind it.
    #[inline]
    pub fn encode(&self, into: &mut [u8; HEADER_BYTES]) {
        *into = [0; HEADER_BYTES];
        into[0] = self.kind.byte();
        put(into, 4, self.posted.to_le_bytes());
        put(into, 8, self.request_id.to_le_bytes());
    }

    /// Parts a message into its header and its payload. Having both proves: the kind is known, and
    /// the payload has the length that the kind demands.
    ///
    /// # Errors
    /// The message is not framed as this version frames; see [`HeaderError`].
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8]), HeaderError> {
        let Some((head, payload)) = frame.split_first_chunk::<HEADER_BYTES>() else {
            return Err(HeaderError::Short(frame.len()));
        };
        let Some(kind) = Kind::from_byte(head[0]) else {
            return Err(HeaderError::Kind(head[0]));
        };
        if head[1] != 0 {
            return Err(HeaderError::Flags(head[1]));
        }
        let reserved = u16::from_le_bytes(at(head, 2));
        if reserved != 0 {
            return Err(HeaderError::Reserved(reserved));
        }
        if let Some(must) = kind.payload_bytes()
            && payload.len() != must
        {
            let seen = payload.len();
            return Err(HeaderError::Payload { kind, must, seen });
        }
        let header = Self {
            kind,
            posted: u32::from_le_bytes(at(head, 4)),
            request_id: u64::from_le_bytes(at(head, 8)),
        };
        Ok((header, payload))
    }
}
