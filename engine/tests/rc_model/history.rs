//! What was asked of one direction of a connection, and what its memory must then look like.
//!
//! A connection executes its operations in order, so whatever is lost at the end, the memory is that of
//! some head of the list: [`replay`] gives it, and what READs and atomics of that head answered.

use spinwire::fabric::{Note, WcOpcode, WcStatus};

/// Bytes that a connection's operations work on, at each end.
pub(crate) const AREA: usize = 256;
/// Bytes of a receive; messages have no more, unless they are to be too long.
pub(crate) const RECEIVE_BYTES: u32 = 200;

/// How an operation is made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    /// The payload's key is unknown.
    Lkey,
    /// The peer's key is unknown.
    Rkey,
    /// The bytes are not all in the peer's memory.
    Range,
    /// An atomic at an odd address.
    Misaligned,
    /// A message longer than the receive.
    TooLong,
}

impl Bad {
    pub(crate) fn status(self) -> WcStatus {
        match self {
            Self::Lkey => WcStatus::LocalProtection,
            Self::Rkey | Self::Range => WcStatus::RemoteAccess,
            Self::Misaligned | Self::TooLong => WcStatus::RemoteInvalidRequest,
        }
    }
}

/// An operation, as far as its effect goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Message(Note),
    Write(usize),
    WriteImm(usize, u32),
    Read(usize),
    Cas(usize, u64, u64),
    Faa(usize, u64),
    /// Adds one to a counter that all connections share.
    Count,
}

impl Op {
    pub(crate) fn takes_receive(self) -> bool {
        matches!(self, Self::Message(_) | Self::WriteImm(..))
    }

    pub(crate) fn fetches(self) -> bool {
        matches!(
            self,
            Self::Read(_) | Self::Cas(..) | Self::Faa(..) | Self::Count
        )
    }

    pub(crate) fn opcode(self) -> WcOpcode {
        match self {
            Self::Message(_) => WcOpcode::Send,
            Self::Write(_) | Self::WriteImm(..) => WcOpcode::Write,
            Self::Read(_) => WcOpcode::Read,
            Self::Cas(..) => WcOpcode::CompareSwap,
            Self::Faa(..) | Self::Count => WcOpcode::FetchAdd,
        }
    }
}

/// One operation that was taken, and what became of it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub op: Op,
    pub bad: Option<Bad>,
    /// Bytes sent or written; for a READ as many as were asked for.
    pub payload: Vec<u8>,
    pub outcome: Option<WcStatus>,
    /// What a READ or an atomic brought.
    pub answer: Option<Vec<u8>>,
}

fn word(area: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(area[at..at + 8].try_into().expect("8 bytes"))
}

/// The area after `records`, and the answer of each.
pub(crate) fn replay(area: &[u8], records: &[Record]) -> (Vec<u8>, Vec<Option<Vec<u8>>>) {
    let mut area = area.to_vec();
    let mut answers = Vec::new();
    for record in records {
        let len = record.payload.len();
        answers.push(match record.op {
            Op::Message(_) | Op::Count => None,
            Op::Write(at) | Op::WriteImm(at, _) => {
                area[at..at + len].copy_from_slice(&record.payload);
                None
            }
            Op::Read(at) => Some(area[at..at + len].to_vec()),
            Op::Cas(at, expect, swap) => {
                let was = word(&area, at);
                if was == expect {
                    area[at..at + 8].copy_from_slice(&swap.to_ne_bytes());
                }
                Some(was.to_ne_bytes().to_vec())
            }
            Op::Faa(at, add) => {
                let was = word(&area, at);
                area[at..at + 8].copy_from_slice(&was.wrapping_add(add).to_ne_bytes());
                Some(was.to_ne_bytes().to_vec())
            }
        });
    }
    (area, answers)
}

/// How many of the first records are known to be done, and how many may be. `lost_answers`: the
/// operation that failed may have been executed; `taken`: so may all be that were flushed.
pub(crate) fn bounds(records: &[Record], lost_answers: bool, taken: bool) -> (usize, usize) {
    let done = |r: &&Record| r.outcome == Some(WcStatus::Success);
    let least = records.iter().take_while(done).count();
    let rest = &records[least..];
    let unknown = rest.iter().take_while(|r| r.outcome.is_none()).count();
    let all = &mut rest[unknown..].iter();
    assert!(
        all.all(|r| r.outcome != Some(WcStatus::Success)),
        "something was done behind what failed: {records:?}"
    );
    let failed = rest.get(unknown);
    // Behind what never completed nothing can have failed: a failure retires all before it.
    assert!(unknown == 0 || failed.is_none(), "{records:?}");
    let extra = failed.is_some_and(|r| lost_answers && r.bad.is_none());
    let flushed = |r: &&Record| taken && r.outcome == Some(WcStatus::Flushed) && r.bad.is_none();
    let flushed = rest[unknown..].iter().take_while(flushed).count();
    (least, least + unknown + flushed.max(usize::from(extra)))
}
