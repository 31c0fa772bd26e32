//! Why a connection was refused: private data of a reject, so that the other side can print it.
//!
//! ```text
//!   0       4         5      6     8          12         16
//!   ├───────┼─────────┼──────┼─────┼──────────┼──────────┤
//!   │ magic │ version │ code │ 0   │ detail   │ detail   │
//!   │ SPWR  │ u8      │ u8   │ u16 │ u32      │ u32      │
//!
//!   code           details
//!   1 NoHello
//!   2 NotSpinwire  the first four bytes seen
//!   3 Version      the refuser's, the refused side's
//!   4 BadHello     number of the field, value seen
//!   5 Full
//!   6 ShuttingDown
//!   7 Unwilling    the embedder's code
//! ```
//! These sixteen bytes are the same in every version, so the version in them is not compared: a
//! refusal for a wrong version must be legible. A code that is not known here is shown as a number.
//!
//! Imports hello. Imported by control.

use super::hello::{HelloError, HelloField};
use super::{VERSION, at, put};
use std::fmt;

const MAGIC: [u8; 4] = *b"SPWR";

/// Why a side refuses a connection. Prints for the side that was refused, and says what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The request had no private data.
    NoHello,
    /// The request's private data was not a hello; its first four bytes.
    NotSpinwire([u8; 4]),
    /// The two sides speak different versions.
    Version {
        /// The version of the side that refuses.
        refuser: u8,
        /// The version of the side that is refused.
        refused: u8,
    },
    /// The hello has a value that cannot be worked with.
    BadHello {
        /// Which field.
        field: HelloField,
        /// The value seen.
        value: u32,
    },
    /// No worker has a place for another connection.
    Full,
    /// The engine is about to end.
    ShuttingDown,
    /// The service does not want this connection.
    Unwilling {
        /// Why, in the embedder's own numbers.
        code: u32,
    },
    /// A refusal that this version cannot read any further. Comes only from [`Refusal::parse`].
    Unknown {
        /// The refuser's version.
        version: u8,
        /// The code that it sent.
        code: u8,
        /// What came with the code.
        details: [u32; 2],
    },
}

impl Refusal {
    /// Bytes of an encoded refusal.
    pub const BYTES: usize = 16;

    /// The private data to reject with.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let (version, code, details) = match *self {
            Self::NoHello => (VERSION, 1, [0, 0]),
            Self::NotSpinwire(first) => (VERSION, 2, [u32::from_le_bytes(first), 0]),
            Self::Version { refuser, refused } => {
                (VERSION, 3, [u32::from(refuser), u32::from(refused)])
            }
            Self::BadHello { field, value } => (VERSION, 4, [field.number(), value]),
            Self::Full => (VERSION, 5, [0, 0]),
            Self::ShuttingDown => (VERSION, 6, [0, 0]),
            Self::Unwilling { code } => (VERSION, 7, [code, 0]),
            Self::Unknown {
                version,
                code,
                details,
            } => (version, code, details),
        };
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, 0, MAGIC);
        bytes[4] = version;
        bytes[5] = code;
        put(&mut bytes, 8, details[0].to_le_bytes());
        put(&mut bytes, 12, details[1].to_le_bytes());
        bytes
    }

    /// Reads the private data of a reject. `None` for whatever a refusal of ours is not: another
    /// program, or the connection manager itself, rejects too.
    #[must_use]
    pub fn parse(data: &[u8]) -> Option<Self> {
        let (bytes, _padding) = data.split_first_chunk::<{ Self::BYTES }>()?;
        if at(bytes, 0) != MAGIC {
            return None;
        }
        let [version, code] = at(bytes, 4);
        let details = [
            u32::from_le_bytes(at(bytes, 8)),
            u32::from_le_bytes(at(bytes, 12)),
        ];
        let known = match code {
            1 => Some(Self::NoHello),
            2 => Some(Self::NotSpinwire(details[0].to_le_bytes())),
            3 => match (u8::try_from(details[0]), u8::try_from(details[1])) {
                (Ok(refuser), Ok(refused)) => Some(Self::Version { refuser, refused }),
                (Err(_), _) | (_, Err(_)) => None,
            },
            4 => HelloField::from_number(details[0]).map(|field| Self::BadHello {
                field,
                value: details[1],
            }),
            5 => Some(Self::Full),
            6 => Some(Self::ShuttingDown),
            7 => Some(Self::Unwilling { code: details[0] }),
            _ => None,
        };
        Some(known.unwrap_or(Self::Unknown {
            version,
            code,
            details,
        }))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHello => f.write_str(
                "the peer speaks framed mode, and our request carried no hello: connect in framed \
                 mode, or have the peer listen in raw mode",
            ),
            Self::NotSpinwire(first) => write!(
                f,
                "the peer speaks spinwire's framed mode, and our private data began with \
                 {first:02x?}: connect in framed mode, or to the port where that protocol is served",
            ),
            Self::Version { refuser, refused } => write!(
                f,
                "the peer speaks version {refuser} of the wire format, and we asked with version \
                 {refused}: run releases of spinwire that have the same on both sides",
            ),
            Self::BadHello { field, value } => write!(
                f,
                "the peer cannot work with our hello: {value} for its {field}",
            ),
            Self::Full => f.write_str(
                "the peer has no place for another connection: close some, raise connections_max \
                 in its core map, or give it more workers",
            ),
            Self::ShuttingDown => {
                f.write_str("the peer is shutting down: connect again when it has restarted")
            }
            Self::Unwilling { code } => write!(
                f,
                "the service at the peer refused us with its code {code}: what that means, its own \
                 documentation or log says",
            ),
            Self::Unknown {
                version,
                code,
                details: [first, second],
            } => write!(
                f,
                "the peer, which speaks version {version} of the wire format, refused with code \
                 {code} ({first}, {second}), which we do not know: a newer spinwire would",
            ),
        }
    }
}

impl From<HelloError> for Refusal {
    fn from(error: HelloError) -> Self {
        match error {
            HelloError::Silent => Self::NoHello,
            HelloError::Stranger(first) => Self::NotSpinwire(first),
            HelloError::Version { ours, theirs } => Self::Version {
                refuser: ours,
                refused: theirs,
            },
            HelloError::Field { field, value } => Self::BadHello { field, value },
        }
    }
}
