//! What `bench` and `serve` tell each other before a measurement.
//!
//! ```text
//!  bench                                                    serve
//!    │ request, private data: MARK, operation ───────────────►│ allows the access that it needs
//!    │ SEND ask: mode, size, memory of this side ────────────►│ exposes memory
//!    │ ◄──────────────── SEND answer: memory, receives posted │
//!    │                   … the measurement …                  │
//!
//!  ask    │ op u8 │ mode u8 │ span u16    │ size u32   │ addr u64 │ len u32 │ rkey u32 │  little endian
//!  answer │ status u8  │ 0 │ 0 │ ANSWER │ number u32 │ addr u64 │ len u32 │ rkey u32 │
//! ```
//! Memory of 0 bytes is none. The span, in units of 64 KiB, is memory of the server's that operations go
//! through in turn; 0 for that of one. No ask is an answer, so an echo is told from a server. A peer without the
//! mark in its request gets its messages back, as from any echo server. Imported by bench and serve.

use crate::cli::{Mode, Op};
use clap::ValueEnum;
use spinwire::fabric::PrivateData;
use spinwire::types::{Access, RemoteRegion, Rkey};

/// Begins the private data of a request; the last byte is the version.
const MARK: [u8; 8] = *b"swbench\x01";
const MARKED_BYTES: usize = MARK.len() + 1;
/// Bytes of an ask and of an answer; the smallest buffer of a pool has more.
pub(crate) const GREETING_BYTES: usize = 24;
const ANSWER: u8 = 0xa5;
/// Unit of an ask's span.
pub(crate) const SPAN_UNIT_BYTES: u32 = 64 << 10;
/// The longest span: 256 MiB.
pub(crate) const SPAN_UNITS_MAX: u16 = 4096;
const _: () = assert!(SPAN_UNITS_MAX.to_le_bytes()[1] < ANSWER);

impl Op {
    /// What the server's memory must allow.
    pub(crate) fn access(self) -> Access {
        match self {
            Self::Send => Access::NONE,
            Self::Write => Access::REMOTE_WRITE,
            Self::Read => Access::REMOTE_READ,
            Self::Cas | Self::Faa => Access::REMOTE_ATOMIC,
        }
    }

    /// Private data of a request to measure this.
    pub(crate) fn mark(self) -> PrivateData {
        let mut bytes = [self as u8; MARKED_BYTES];
        bytes[..MARK.len()].copy_from_slice(&MARK);
        PrivateData::of(&bytes)
    }

    /// The operation that a request wants to measure; `None` if it is of no `bench` of this version.
    pub(crate) fn marked(private_data: &PrivateData) -> Option<Self> {
        let rest = private_data.as_slice().strip_prefix(&MARK)?;
        numbered(*rest.first()?)
    }
}

/// What a client wants to measure. Holding one proves nothing of its size: it may be anybody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) op: Op,
    pub(crate) mode: Mode,
    pub(crate) size: u32,
    /// Memory for operations to go through in turn, in [`SPAN_UNIT_BYTES`]; 0 for that of one.
    pub(crate) span: u16,
    /// Where the server writes to, if it is to write.
    pub(crate) memory: Option<RemoteRegion>,
}

impl Ask {
    pub(crate) fn to_bytes(self) -> [u8; GREETING_BYTES] {
        let [low, high] = self.span.to_le_bytes();
        let head = [self.op as u8, self.mode as u8, low, high];
        join(head, self.size, self.memory)
    }

    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let (head, size, memory) = split(message, Access::REMOTE_WRITE)?;
        let [op, mode, low, high] = head;
        let span = u16::from_le_bytes([low, high]);
        // No ask is an answer.
        if span > SPAN_UNITS_MAX {
            return None;
        }
        Some(Self {
            span,
            op: numbered(op)?,
            mode: numbered(mode)?,
            size,
            memory,
        })
    }
}

/// What the server says to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Go on: the server's memory, if the operation needs some, and receives that it has posted since
    /// the connection began.
    Ready {
        memory: Option<RemoteRegion>,
        receives: u32,
    },
    /// It takes messages up to so many bytes.
    TooLong(u32),
    /// It has no memory to expose, or its device refused it.
    NoMemory,
}

impl Answer {
    pub(crate) fn to_bytes(self) -> [u8; GREETING_BYTES] {
        let (status, number, memory) = match self {
            Self::Ready { memory, receives } => (0, receives, memory),
            Self::TooLong(most) => (1, most, None),
            Self::NoMemory => (2, 0, None),
        };
        join([status, 0, 0, ANSWER], number, memory)
    }

    /// `op` is what was asked for.
    pub(crate) fn parse(message: &[u8], op: Op) -> Option<Self> {
        let (head, number, memory) = split(message, op.access())?;
        let [status, 0, 0, ANSWER] = head else {
            return None;
        };
        match status {
            0 => Some(Self::Ready {
                memory,
                receives: number,
            }),
            1 => Some(Self::TooLong(number)),
            2 => Some(Self::NoMemory),
            _ => None,
        }
    }
}

/// By the number that it has `as u8`: its place among all.
fn numbered<T: ValueEnum + Clone>(number: u8) -> Option<T> {
    T::value_variants().get(usize::from(number)).cloned()
}

fn join(head: [u8; 4], number: u32, memory: Option<RemoteRegion>) -> [u8; GREETING_BYTES] {
    let (addr, len, rkey) = memory.map_or((0, 0, 0), |m| {
        let len = u32::try_from(m.len()).unwrap_or(u32::MAX);
        (m.addr(), len, m.rkey().0)
    });
    let mut bytes = [0; GREETING_BYTES];
    bytes[..4].copy_from_slice(&head);
    bytes[4..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..16].copy_from_slice(&addr.to_le_bytes());
    bytes[16..20].copy_from_slice(&len.to_le_bytes());
    bytes[20..].copy_from_slice(&rkey.to_le_bytes());
    bytes
}

/// `None` for any other number of bytes, and for memory that wraps.
fn split(message: &[u8], access: Access) -> Option<([u8; 4], u32, Option<RemoteRegion>)> {
    let message: &[u8; GREETING_BYTES] = message.try_into().ok()?;
    let (head, rest) = message.split_first_chunk()?;
    let (number, rest) = rest.split_first_chunk()?;
    let (addr, rest) = rest.split_first_chunk()?;
    let (len, rkey) = rest.split_first_chunk()?;
    let len = u64::from(u32::from_le_bytes(*len));
    let rkey = Rkey(u32::from_le_bytes(rkey.try_into().ok()?));
    let memory = match len {
        0 => None,
        _ => Some(RemoteRegion::parse(
            u64::from_le_bytes(*addr),
            len,
            rkey,
            access,
        )?),
    };
    Some((*head, u32::from_le_bytes(*number), memory))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(access: Access) -> Option<RemoteRegion> {
        RemoteRegion::parse(0x0102_0304_0506_0708, 4096, Rkey(9), access)
    }

    #[test]
    fn what_is_said_is_understood() {
        for &op in Op::value_variants() {
            assert_eq!(Op::marked(&op.mark()), Some(op));
            for &mode in Mode::value_variants() {
                for memory in [None, region(Access::REMOTE_WRITE)] {
                    let size = 70_000;
                    let ask = Ask {
                        op,
                        mode,
                        size,
                        span: SPAN_UNITS_MAX,
                        memory,
                    };
                    assert_eq!(Ask::parse(&ask.to_bytes()), Some(ask));
                    assert_eq!(Answer::parse(&ask.to_bytes(), op), None);
                }
            }
            let memory = region(op.access());
            for answer in [
                Answer::Ready {
                    memory,
                    receives: 128,
                },
                Answer::Ready {
                    memory: None,
                    receives: u32::MAX,
                },
                Answer::TooLong(64),
                Answer::NoMemory,
            ] {
                assert_eq!(Answer::parse(&answer.to_bytes(), op), Some(answer));
            }
        }
    }

    #[test]
    fn padding_is_no_matter_and_strangers_have_no_mark() {
        let mut padded = Op::Read.mark().as_slice().to_vec();
        padded.resize(56, 0);
        assert_eq!(Op::marked(&PrivateData::received(&padded)), Some(Op::Read));
        for bytes in [
            &b""[..],
            b"swbench\x02\x00",
            b"swbench\x01",
            b"swbench\x01\x07",
        ] {
            assert_eq!(Op::marked(&PrivateData::received(bytes)), None);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let ask = Ask {
            op: Op::Faa,
            mode: Mode::Rate,
            size: 8,
            span: 0,
            memory: None,
        };
        let good = ask.to_bytes();
        for (at, value) in [(0, 5), (1, 3), (3, 17)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(Ask::parse(&bad), None, "{value} at {at}");
        }
        assert_eq!(Ask::parse(&good[1..]), None);
        let mut wraps = good;
        wraps[8..20].fill(0xff);
        assert_eq!(Ask::parse(&wraps), None);
        assert_eq!(Answer::parse(&[3; GREETING_BYTES], Op::Send), None);
    }
}
