//! What a case posts, and what it holds a receive against.
//!
//! ```text
//!  Message: op ─┬─ pieces, taken from slots of the pool    (SEND, WRITE)
//!               └─ into, places of registered memory       (READ, CAS, FAA)
//! ```

use super::Failure;
use super::memory::Place;
use super::side::Done;
use crate::fabric::{Note, SendOp, WcOpcode, WcStatus};

/// What receives hold before a message comes.
pub(super) const BLANK: u8 = 0x5a;

/// An operation to post.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) op: SendOp,
    /// The payload; each piece is in a slot of its own.
    pub(super) pieces: Vec<Vec<u8>>,
    /// Where an operation that fetches puts what it gets.
    pub(super) into: Vec<Place>,
    pub(super) signalled: bool,
    pub(super) inline: bool,
    /// `None` takes a new one.
    pub(super) wr_id: Option<u64>,
}

impl Message {
    /// A signalled SEND from registered memory.
    pub(super) fn new(data: Vec<u8>) -> Self {
        Self::of(SendOp::Send, data)
    }

    /// A signalled operation with a payload of one piece.
    pub(super) fn of(op: SendOp, data: Vec<u8>) -> Self {
        Self::gather(op, vec![data])
    }

    /// A signalled operation with a payload of several pieces.
    pub(super) fn gather(op: SendOp, pieces: Vec<Vec<u8>>) -> Self {
        Self {
            op,
            pieces,
            into: Vec::new(),
            signalled: true,
            inline: false,
            wr_id: None,
        }
    }

    /// A signalled READ, CAS or FAA.
    pub(super) fn fetch(op: SendOp, into: &[Place]) -> Self {
        Self {
            into: into.to_vec(),
            ..Self::gather(op, Vec::new())
        }
    }

    pub(super) fn unsignalled(mut self) -> Self {
        self.signalled = false;
        self
    }

    pub(super) fn inline(mut self) -> Self {
        self.inline = true;
        self
    }
}

/// Bytes that no other seed gives (xorshift).
pub(super) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes.extend_from_slice(&x.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A receive that completed well must hold exactly `want`, and bring nothing beside it.
pub(super) fn check_message(done: &Done, want: &[u8]) -> Result<(), Failure> {
    check_noted(done, want, Note::None)
}

/// A receive that completed well must hold exactly `want`, and bring `note`.
pub(super) fn check_noted(done: &Done, want: &[u8], note: Note) -> Result<(), Failure> {
    check_receive(done, WcOpcode::Recv, want.len(), note)?;
    let got = done.buffer.as_deref().unwrap_or(&[]);
    let wrong = want.iter().zip(got).position(|(a, b)| a != b);
    ensure!(
        wrong.is_none() && got.len() >= want.len(),
        "a message of {} B differs from byte {}",
        want.len(),
        wrong.unwrap_or(got.len())
    );
    blank_from(got, want.len())
}

/// A receive that a WRITE with immediate consumed must tell of `len` bytes and be as it was.
pub(super) fn check_notified(done: &Done, len: usize, imm: u32) -> Result<(), Failure> {
    check_receive(done, WcOpcode::RecvWriteImm, len, Note::Imm(imm))?;
    blank_from(done.buffer.as_deref().unwrap_or(&[]), 0)
}

fn check_receive(done: &Done, opcode: WcOpcode, len: usize, note: Note) -> Result<(), Failure> {
    ensure!(
        done.status == WcStatus::Success,
        "a receive completed with: {}",
        done.status
    );
    ensure!(
        done.opcode == Some(opcode),
        "a receive completed as {:?}, not as {opcode:?}",
        done.opcode
    );
    ensure!(
        done.len as usize == len,
        "a message of {len} B arrived with byte_len {}",
        done.len
    );
    ensure!(
        done.note == note,
        "a message that should bring {note:?} brought {:?}",
        done.note
    );
    Ok(())
}

fn blank_from(slot: &[u8], from: usize) -> Result<(), Failure> {
    let written = slot[from..].iter().position(|&b| b != BLANK);
    ensure!(
        written.is_none(),
        "byte {} of a receive's slot was written, behind the {from} B of the message",
        from + written.unwrap_or(0)
    );
    Ok(())
}
