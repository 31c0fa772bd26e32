//! What each side says of itself in the handshake: private data of the request and of the accept.
//!
//! ```text
//!   0       4         5     6      8          12       16         20           24       len
//!   ├───────┼─────────┼─────┼──────┼──────────┼────────┼──────────┼────────────┼─ ─ ─ ─ ─┤─ ─ ─
//!   │ magic │ version │ len │ 0    │ features │ posted │ message  │ recv depth │ not yet │ not
//!   │ SPWH  │ 1       │ u8  │ u16  │ u32      │ u32    │ max, u32 │ u32        │ known   │ ours
//! ```
//! `len` counts from the magic on, because the length that comes with private data means little:
//! InfiniBand pads with zeros. A later hello may be longer. What it has behind the fields known
//! here is skipped, and so is whatever lies behind `len`.
//!
//! Magic and version stay where they are in every version, so that two versions can at least tell
//! each other why they do not get on.
//!
//! Imports nothing but wire's own numbers. Imported by refusal, flow, framed and control.

use super::{MESSAGE_BYTES_MIN, POSTED_MIN, RECV_DEPTH_MAX, RECV_DEPTH_MIN, VERSION, at, put};
use std::fmt;

const MAGIC: [u8; 4] = *b"SPWH";
/// [`Hello::BYTES`] as it is written into the hello.
const LEN: u8 = 24;

const _: () = assert!(LEN as usize == Hello::BYTES);

/// Optional parts of the format that a side can speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features(u32);

impl Features {
    /// No optional part.
    pub const NONE: Self = Self(0);
    /// Messages larger than a buffer: [`Kind::Large`](super::Kind::Large) and
    /// [`Kind::Finish`](super::Kind::Finish).
    pub const LARGE: Self = Self(1);
    /// What this crate speaks.
    pub const OURS: Self = Self::LARGE;

    /// Bits as a peer sent them. Those that mean nothing here are kept: [`common`](Self::common)
    /// drops them.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The bits as they travel.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// What both sides can speak, and therefore do: both compute the same.
    #[must_use]
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether every feature of `wanted` is here.
    #[must_use]
    pub const fn contains(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

/// A field of the [`Hello`] that can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HelloField {
    /// The hello's own length.
    Len,
    /// The two bytes that must be zero.
    Reserved,
    /// Receives posted.
    Posted,
    /// The largest message.
    MessageBytesMax,
    /// The depth of the receive queue.
    RecvDepth,
}

impl HelloField {
    /// Every field.
    pub const ALL: [Self; 5] = [
        Self::Len,
        Self::Reserved,
        Self::Posted,
        Self::MessageBytesMax,
        Self::RecvDepth,
    ];

    /// Its number in a refusal.
    pub(super) const fn number(self) -> u32 {
        match self {
            Self::Len => 1,
            Self::Reserved => 2,
            Self::Posted => 3,
            Self::MessageBytesMax => 4,
            Self::RecvDepth => 5,
        }
    }

    pub(super) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.number() == number)
    }
}

/// The field's name, and what it must be.
impl fmt::Display for HelloField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Len => write!(f, "len (at least {LEN}, and all of it there)"),
            Self::Reserved => write!(f, "reserved (0)"),
            Self::Posted => write!(f, "posted ({POSTED_MIN} to recv_depth)"),
            Self::MessageBytesMax => write!(f, "message_bytes_max ({MESSAGE_BYTES_MIN} or more)"),
            Self::RecvDepth => write!(f, "recv_depth ({RECV_DEPTH_MIN} to {RECV_DEPTH_MAX})"),
        }
    }
}

/// Private data that is not a hello which this version can work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// No private data, or zeros only.
    #[error(
        "the peer sent no hello: it does not speak framed mode. Start it in framed mode, or this \
         side in raw mode"
    )]
    Silent,
    /// Private data of something else; its first four bytes.
    #[error(
        "the peer's private data begins with {0:02x?}, which is no hello: it speaks another \
         protocol. Look for the right port, or use raw mode and speak that protocol"
    )]
    Stranger([u8; 4]),
    /// The peer speaks another version.
    #[error(
        "the peer speaks version {theirs} of the wire format, this side version {ours}. Run \
         releases of spinwire that have the same on both sides"
    )]
    Version {
        /// What this side speaks.
        ours: u8,
        /// What the peer speaks.
        theirs: u8,
    },
    /// A field has a value that cannot be worked with.
    #[error("the hello has {value} for its {field}")]
    Field {
        /// Which field.
        field: HelloField,
        /// The value seen.
        value: u32,
    },
}

/// What one side says of itself. Holding one proves: [`RECV_DEPTH_MIN`] ≤ `recv_depth` ≤
/// [`RECV_DEPTH_MAX`], [`POSTED_MIN`] ≤ `posted` ≤ `recv_depth`, and `message_bytes_max` ≥
/// [`MESSAGE_BYTES_MIN`].
///
/// ```
/// use spinwire::fabric::PrivateData;
/// use spinwire::wire::Hello;
/// let hello = Hello::new(128, 128, 16 * 1024)?;
/// let sent = PrivateData::new(&hello.encode())?;
/// assert_eq!(Hello::parse(sent.as_slice()), Ok(hello));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hello {
    features: Features,
    posted: u32,
    message_bytes_max: u32,
    recv_depth: u32,
}

impl Hello {
    /// Bytes of an encoded hello.
    pub const BYTES: usize = 24;

    /// A hello without features, of a side whose receive queue holds `recv_depth`, that has
    /// `posted` of those posted by now, and takes messages up to `message_bytes_max`, header
    /// included.
    ///
    /// # Errors
    /// [`HelloError::Field`]: a number that no peer would take.
    pub const fn new(
        recv_depth: u32,
        posted: u32,
        message_bytes_max: u32,
    ) -> Result<Self, HelloError> {
        let (field, value) = if recv_depth < RECV_DEPTH_MIN || recv_depth > RECV_DEPTH_MAX {
            (HelloField::RecvDepth, recv_depth)
        } else if posted < POSTED_MIN || posted > recv_depth {
            (HelloField::Posted, posted)
        } else if message_bytes_max < MESSAGE_BYTES_MIN {
            (HelloField::MessageBytesMax, message_bytes_max)
        } else {
            return Ok(Self {
                features: Features::NONE,
                posted,
                message_bytes_max,
                recv_depth,
            });
        };
        Err(HelloError::Field { field, value })
    }

    /// The same with these features.
    #[must_use]
    pub const fn with_features(self, features: Features) -> Self {
        Self { features, ..self }
    }

    /// The private data to send.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, MAGIC);
        bytes[4] = VERSION;
        bytes[5] = LEN;
        put(&mut bytes, 8, self.features.bits().to_le_bytes());
        put(&mut bytes, 12, self.posted.to_le_bytes());
        put(&mut bytes, 16, self.message_bytes_max.to_le_bytes());
        put(&mut bytes, 20, self.recv_depth.to_le_bytes());
        bytes
    }

    /// Reads private data as it came, zeros behind it or not.
    ///
    /// # Errors
    /// No hello, not ours, of another version, or with a field that cannot be worked with. Make a
    /// [`Refusal`](super::Refusal) of it to tell the peer.
    pub fn parse(data: &[u8]) -> Result<Self, HelloError> {
        if data.iter().all(|&byte| byte == 0) {
            return Err(HelloError::Silent);
        }
        // Shorter data is read as if it had been padded, and found out by `len`.
        let mut bytes = [0; Self::BYTES];
        let known = data.len().min(Self::BYTES);
        bytes[..known].copy_from_slice(&data[..known]);

        let magic = at(&bytes, 0);
        if magic != MAGIC {
            return Err(HelloError::Stranger(magic));
        }
        let [version, len] = at(&bytes, 4);
        if version != VERSION {
            return Err(HelloError::Version {
                ours: VERSION,
                theirs: version,
            });
        }
        if len < LEN || usize::from(len) > data.len() {
            return Err(HelloError::Field {
                field: HelloField::Len,
                value: u32::from(len),
            });
        }
        let reserved = u16::from_le_bytes(at(&bytes, 6));
        if reserved != 0 {
            return Err(HelloError::Field {
                field: HelloField::Reserved,
                value: u32::from(reserved),
            });
        }
        let posted = u32::from_le_bytes(at(&bytes, 12));
        let message_bytes_max = u32::from_le_bytes(at(&bytes, 16));
        let recv_depth = u32::from_le_bytes(at(&bytes, 20));
        let features = Features::from_bits(u32::from_le_bytes(at(&bytes, 8)));
        Ok(Self::new(recv_depth, posted, message_bytes_max)?.with_features(features))
    }

    /// Optional parts that this side can speak.
    #[must_use]
    pub const fn features(&self) -> Features {
        self.features
    }

    /// Receives posted when the hello was written: the first credits.
    #[must_use]
    pub const fn posted(&self) -> u32 {
        self.posted
    }

    /// The largest message that this side takes, header included.
    #[must_use]
    pub const fn message_bytes_max(&self) -> u32 {
        self.message_bytes_max
    }

    /// Receives that this side's queue holds.
    #[must_use]
    pub const fn recv_depth(&self) -> u32 {
        self.recv_depth
    }
}
