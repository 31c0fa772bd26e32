//! The datapath side of a fabric: post, poll, arm. No call here allocates, locks or sleeps.
//!
//! Who owns a buffer when: from a post that was accepted until the completion that retires it the
//! memory belongs to the device. The caller keeps the handle out of everyone's reach meanwhile.

use crate::limits::SGE_MAX;
use crate::memory::Registration;
use crate::types::{Access, Lkey, QpNum, RemoteSpan, Rkey};
use std::fmt;
use std::os::fd::BorrowedFd;

/// What a work request on the send queue does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendOp {
    /// A message, into a receive of the peer.
    #[default]
    Send,
    /// A message with 32 bits beside it.
    SendImm(u32),
    /// A message that takes a key of the peer's out of use.
    SendInvalidate(Rkey),
    /// RDMA WRITE of the payload to the peer's memory.
    Write(RemoteSpan),
    /// RDMA WRITE that also consumes a receive of the peer, and puts 32 bits into its completion.
    WriteImm(RemoteSpan, u32),
    /// RDMA READ from the peer's memory into the payload's place.
    Read(RemoteSpan),
    /// Puts `swap` into the peer's 8 bytes if they are `expect`. The payload's place, 8 bytes, gets
    /// what was there.
    CompareSwap {
        /// The peer's 8 bytes, aligned.
        at: RemoteSpan,
        /// Value that must be there.
        expect: u64,
        /// Value that is put there then.
        swap: u64,
    },
    /// Adds to the peer's 8 bytes, wrapping. The payload's place, 8 bytes, gets what was there.
    FetchAdd {
        /// The peer's 8 bytes, aligned.
        at: RemoteSpan,
        /// What to add.
        add: u64,
    },
    /// Gives the peer access to the payload's place by a window of the QP's; see
    /// [`Lane::post_bind`].
    Bind {
        /// Number of the window.
        window: u16,
        /// Key that the window gets.
        rkey: Rkey,
        /// What the peer may do.
        access: Access,
    },
    /// Takes a key of a window of this QP's out of use. It has no payload.
    LocalInvalidate(Rkey),
}

impl SendOp {
    /// The peer's answer is written to the payload's place, and the peer holds resources for it: how
    /// many may be outstanding is settled in the handshake.
    #[inline]
    #[must_use]
    pub fn is_fetch(self) -> bool {
        matches!(
            self,
            Self::Read(_) | Self::CompareSwap { .. } | Self::FetchAdd { .. }
        )
    }

    /// It works on 8 bytes of the peer's at once.
    #[inline]
    #[must_use]
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// It is no SEND or WRITE: the queue, the handshake or the end of it asks for more.
    #[inline]
    #[must_use]
    pub fn is_special(self) -> bool {
        match self {
            Self::Send
            | Self::SendImm(_)
            | Self::SendInvalidate(_)
            | Self::Write(_)
            | Self::WriteImm(..) => false,
            Self::Read(_)
            | Self::CompareSwap { .. }
            | Self::FetchAdd { .. }
            | Self::Bind { .. }
            | Self::LocalInvalidate(_) => true,
        }
    }

    /// What it completes as.
    #[must_use]
    pub fn completes_as(self) -> WcOpcode {
        match self {
            Self::Send | Self::SendImm(_) | Self::SendInvalidate(_) => WcOpcode::Send,
            Self::Write(_) | Self::WriteImm(..) => WcOpcode::Write,
            Self::Read(_) => WcOpcode::Read,
            Self::CompareSwap { .. } => WcOpcode::CompareSwap,
            Self::FetchAdd { .. } => WcOpcode::FetchAdd,
            Self::Bind { .. } => WcOpcode::Bind,
            Self::LocalInvalidate(_) => WcOpcode::LocalInvalidate,
        }
    }

    /// Its payload can be copied at the post: it has one, and the peer gets it.
    #[inline]
    #[must_use]
    pub fn may_be_inline(self) -> bool {
        !self.is_special()
    }
}

/// A piece of local memory, as a work request names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Key of the memory; not used for inline data.
    pub lkey: Lkey,
}

/// The pieces of a work request behind its first.
pub type MoreSges = [Sge; SGE_MAX - 1];

/// One operation of a send queue. Constant fields of the native work request are written once, by the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// First byte of the payload, or of its first piece.
    pub addr: u64,
    /// Bytes there; 0 is a message too.
    pub len: u32,
    /// Key of the memory; not used for inline data.
    pub lkey: Lkey,
    /// What to do.
    pub op: SendOp,
    /// Ask for a completion. Errors complete in any case.
    pub signalled: bool,
    /// Copy the payload at the post: the memory is free again when the post returns. Never of an
    /// operation that [fetches](SendOp::is_fetch).
    pub inline: bool,
    /// Pieces behind the first; see [`Lane::post_send`].
    pub more: u8,
}

/// A receive: `len` bytes at `addr` for one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWr {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// First byte of the buffer.
    pub addr: u64,
    /// Bytes of the buffer.
    pub len: u32,
    /// Key of the memory.
    pub lkey: Lkey,
}

/// A chain was cut: the first `posted` work requests are the device's, the rest never were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostFailure {
    /// Work requests of the chain that were accepted.
    pub posted: usize,
    /// The provider's errno.
    pub errno: i32,
}

/// Status of a completion (`ibv_poll_cq(3)`, IBTA 11.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcStatus {
    /// The operation succeeded.
    Success,
    /// The message was longer than the buffer posted for it.
    LocalLength,
    /// Internal QP consistency error.
    LocalQpOperation,
    /// Internal error of an end-to-end context (not RC).
    LocalEec,
    /// The memory named is not registered for the access.
    LocalProtection,
    /// The QP was in the error state: the operation was not executed, or not to our knowledge.
    Flushed,
    /// A memory window could not be bound.
    MwBind,
    /// The peer answered with something unexpected.
    BadResponse,
    /// Local access error in a remote write.
    LocalAccess,
    /// The peer refused the request: a message longer than its receive buffer, or an operation
    /// that its QP does not take.
    RemoteInvalidRequest,
    /// The peer's memory is not registered for the access.
    RemoteAccess,
    /// The peer could not complete the operation.
    RemoteOperation,
    /// The peer did not answer within the retries.
    RetryExceeded,
    /// The peer had no receive posted within the RNR retries.
    RnrRetryExceeded,
    /// Every other status, by the provider's number.
    Other(u8),
}

impl WcStatus {
    /// What failed and what mends it, for people.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Self::Success => "no error",
            // Soft-RoCE says the second for the first.
            Self::LocalLength | Self::LocalQpOperation => {
                "a message was longer than the receive buffer: raise [pool] slot_bytes here"
            }
            Self::RemoteInvalidRequest | Self::RemoteOperation => {
                "the peer refused the message, usually because it is longer than its receive \
                 buffer: raise [pool] slot_bytes on the peer"
            }
            Self::RetryExceeded => {
                "the peer did not answer within the retries: is it alive, and the link up?"
            }
            Self::RnrRetryExceeded => {
                "the peer posted no receive in time: raise [queues] recv_depth on the peer"
            }
            Self::RemoteAccess => "the peer's memory does not allow this access",
            Self::LocalProtection | Self::LocalAccess => "local memory does not allow this access",
            Self::Flushed => "the connection was already in error",
            Self::LocalEec | Self::MwBind | Self::BadResponse | Self::Other(_) => {
                "the provider gives no further reason; see dmesg"
            }
        }
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => f.write_str("success"),
            Self::LocalLength => f.write_str("local length error"),
            Self::LocalQpOperation => f.write_str("local QP operation error"),
            Self::LocalEec => f.write_str("local EE context error"),
            Self::LocalProtection => f.write_str("local protection error"),
            Self::Flushed => f.write_str("flushed"),
            Self::MwBind => f.write_str("memory window bind error"),
            Self::BadResponse => f.write_str("bad response"),
            Self::LocalAccess => f.write_str("local access error"),
            Self::RemoteInvalidRequest => f.write_str("remote invalid request"),
            Self::RemoteAccess => f.write_str("remote access error"),
            Self::RemoteOperation => f.write_str("remote operation error"),
            Self::RetryExceeded => f.write_str("transport retries exceeded"),
            Self::RnrRetryExceeded => f.write_str("RNR retries exceeded"),
            Self::Other(n) => write!(f, "completion status {n}"),
        }
    }
}

/// What completed. Valid only on success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WcOpcode {
    /// A SEND of ours.
    Send,
    /// A message came in.
    Recv,
    /// The peer's WRITE with immediate consumed a receive; its memory is as it was.
    RecvWriteImm,
    /// A WRITE of ours, with or without immediate.
    Write,
    /// A READ of ours.
    Read,
    /// A CAS of ours.
    CompareSwap,
    /// An FAA of ours.
    FetchAdd,
    /// A bind of a window.
    Bind,
    /// A local invalidate.
    LocalInvalidate,
    /// Any other, by the provider's number.
    Other(u32),
}

/// What a message brings beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Note {
    /// Nothing.
    #[default]
    None,
    /// 32 bits.
    Imm(u32),
    /// A key of ours that the peer took out of use.
    Invalidated(Rkey),
}

/// One completion, read in place. On an error only `wr_id`, `status`, `qp_num` and `vendor_err`
/// are valid (`ibv_poll_cq(3)`).
pub trait WorkCompletion: Copy {
    /// The caller's word of the work request.
    fn wr_id(&self) -> u64;
    /// How it ended.
    fn status(&self) -> WcStatus;
    /// Whether it succeeded; cheaper than [`WorkCompletion::status`].
    fn is_success(&self) -> bool;
    /// What completed.
    fn opcode(&self) -> WcOpcode;
    /// Bytes received; of a WRITE with immediate those that the peer wrote.
    fn byte_len(&self) -> u32;
    /// What came beside the bytes. Of a receive that succeeded.
    fn note(&self) -> Note;
    /// QP that it completed on.
    fn qp_num(&self) -> QpNum;
    /// The provider's own code.
    fn vendor_err(&self) -> u32;
}

/// One CQ and what is posted to complete on it. Owned by one worker.
pub trait Lane {
    /// Posting half of a QP of this lane.
    type Qp;
    /// A completion as the provider writes it.
    type Wc: WorkCompletion;

    /// A completion to fill arrays with.
    fn blank() -> Self::Wc;
    /// Takes up to `into.len()` completions; gives their number.
    fn poll(&mut self, into: &mut [Self::Wc]) -> usize;
    /// Posts a chain of at most [`crate::limits::POST_CHAIN_MAX`] operations behind one doorbell.
    /// `more[i]` has the pieces behind the first of `chain[i]`, of which `chain[i].more` count; it may
    /// be empty where no operation has any. A [`SendOp::Bind`] is refused, and the whole chain with it: see
    /// [`Lane::post_bind`].
    ///
    /// # Errors
    /// The provider took only the head of the chain.
    fn post_send(
        &mut self,
        qp: &mut Self::Qp,
        chain: &[SendWr],
        more: &[MoreSges],
    ) -> Result<(), PostFailure>;
    /// Posts a [`SendOp::Bind`]: `wr` names a part of `memory`, which was registered on this lane's
    /// device with [`Access::WINDOWS`](crate::types::Access).
    ///
    /// # Errors
    /// The provider's errno; nothing was posted.
    fn post_bind(
        &mut self,
        qp: &mut Self::Qp,
        wr: &SendWr,
        memory: &dyn Registration,
    ) -> Result<(), PostFailure> {
        let _ = (qp, wr, memory);
        Err(PostFailure {
            posted: 0,
            errno: libc::EOPNOTSUPP,
        })
    }
    /// Posts a chain of at most [`crate::limits::POST_CHAIN_MAX`] receives behind one doorbell.
    ///
    /// # Errors
    /// The provider took only the head of the chain.
    fn post_recv(&mut self, qp: &mut Self::Qp, chain: &[RecvWr]) -> Result<(), PostFailure>;
    /// Posts a chain of at most [`crate::limits::POST_CHAIN_MAX`] receives to the lane's shared receive
    /// queue.
    ///
    /// # Errors
    /// The provider took only the head of the chain; none where the lane has no such queue.
    fn post_shared_recv(&mut self, chain: &[RecvWr]) -> Result<(), PostFailure>;

    /// Readable after [`Lane::arm`] and a completion; `None` for a lane made without events.
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;
    /// Asks for an event at the next completion. Poll again before sleeping.
    ///
    /// # Errors
    /// The provider's errno.
    fn arm(&mut self) -> Result<(), i32>;
    /// Takes and acknowledges the events that woke the worker.
    fn drain_events(&mut self);
}
