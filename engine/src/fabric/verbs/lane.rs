//! The datapath of the verbs fabric: one CQ polled in batches, chains posted behind one doorbell.
//!
//! ```text
//!  SendWr… ─► template ibv_send_wr chain ─► ibv_post_send ─► NIC
//!  Wc…     ◄─ ibv_poll_cq, read in place ◄─────────────────── CQ
//! ```
//! Constant fields of the work requests are written once in [`Lane::new`]. Never allocates, locks
//! (beyond what the provider does, see ARCHITECTURE.md) or sleeps. Imports device; imported by mod.
#![allow(unsafe_code, reason = "the verbs datapath is C")]
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::device::{CqHandle, Mr, native_access};
use super::queue_pair::Qp;
use crate::fabric::{
    self, MoreSges, Note, PostFailure, RecvWr, SendOp, SendWr, Sge, WcOpcode, WcStatus,
    WorkCompletion,
};
use crate::limits::{POST_CHAIN_MAX, SGE_MAX};
use crate::memory::Registration;
use crate::types::{QpNum, RemoteSpan, Rkey};
use rdma_sys::{
    atomic_t, bind_mw_t, ibv_ack_cq_events, ibv_get_cq_event, ibv_mw_bind_info, ibv_poll_cq,
    ibv_post_recv, ibv_post_send, ibv_post_srq_recv, ibv_recv_wr, ibv_req_notify_cq,
    ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status,
    ibv_wr_opcode, imm_data_invalidated_rkey_union_t, rdma_t, wr_t,
};
use std::any::Any;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

/// A completion as libibverbs writes it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Wc(ibv_wc);

impl std::fmt::Debug for Wc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wc")
            .field("wr_id", &self.0.wr_id)
            .field("status", &self.status())
            .field("qp_num", &self.0.qp_num)
            .finish_non_exhaustive()
    }
}

impl WorkCompletion for Wc {
    #[inline]
    fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    #[inline]
    fn is_success(&self) -> bool {
        self.0.status == ibv_wc_status::IBV_WC_SUCCESS
    }

    fn status(&self) -> WcStatus {
        match self.0.status {
            ibv_wc_status::IBV_WC_SUCCESS => WcStatus::Success,
            ibv_wc_status::IBV_WC_LOC_LEN_ERR => WcStatus::LocalLength,
            ibv_wc_status::IBV_WC_LOC_QP_OP_ERR => WcStatus::LocalQpOperation,
            ibv_wc_status::IBV_WC_LOC_EEC_OP_ERR => WcStatus::LocalEec,
            ibv_wc_status::IBV_WC_LOC_PROT_ERR => WcStatus::LocalProtection,
            ibv_wc_status::IBV_WC_WR_FLUSH_ERR => WcStatus::Flushed,
            ibv_wc_status::IBV_WC_MW_BIND_ERR => WcStatus::MwBind,
            ibv_wc_status::IBV_WC_BAD_RESP_ERR => WcStatus::BadResponse,
            ibv_wc_status::IBV_WC_LOC_ACCESS_ERR => WcStatus::LocalAccess,
            ibv_wc_status::IBV_WC_REM_INV_REQ_ERR => WcStatus::RemoteInvalidRequest,
            ibv_wc_status::IBV_WC_REM_ACCESS_ERR => WcStatus::RemoteAccess,
            ibv_wc_status::IBV_WC_REM_OP_ERR => WcStatus::RemoteOperation,
            ibv_wc_status::IBV_WC_RETRY_EXC_ERR => WcStatus::RetryExceeded,
            ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => WcStatus::RnrRetryExceeded,
            other => WcStatus::Other(u8::try_from(other).unwrap_or(u8::MAX)),
        }
    }

    #[inline]
    fn opcode(&self) -> WcOpcode {
        match self.0.opcode {
            ibv_wc_opcode::IBV_WC_SEND => WcOpcode::Send,
            ibv_wc_opcode::IBV_WC_RECV => WcOpcode::Recv,
            ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM => WcOpcode::RecvWriteImm,
            ibv_wc_opcode::IBV_WC_RDMA_WRITE => WcOpcode::Write,
            ibv_wc_opcode::IBV_WC_RDMA_READ => WcOpcode::Read,
            ibv_wc_opcode::IBV_WC_COMP_SWAP => WcOpcode::CompareSwap,
            ibv_wc_opcode::IBV_WC_FETCH_ADD => WcOpcode::FetchAdd,
            ibv_wc_opcode::IBV_WC_BIND_MW => WcOpcode::Bind,
            ibv_wc_opcode::IBV_WC_LOCAL_INV => WcOpcode::LocalInvalidate,
            other => WcOpcode::Other(other),
        }
    }

    #[inline]
    fn byte_len(&self) -> u32 {
        self.0.byte_len
    }

    #[inline]
    fn note(&self) -> Note {
        const IMM: u32 = ibv_wc_flags::IBV_WC_WITH_IMM.0;
        // Soft-RoCE writes the kernel's number for it, which is IP_CSUM_OK here; RC has no use for that.
        const INVALIDATED: u32 =
            ibv_wc_flags::IBV_WC_WITH_INV.0 | ibv_wc_flags::IBV_WC_IP_CSUM_OK.0;
        if self.0.wc_flags & (IMM | INVALIDATED) == 0 {
            return Note::None;
        }
        let word = self.0.imm_data_invalidated_rkey_union;
        // SAFETY: both fields of the union are 32 bits, and every pattern is valid.
        let (imm, rkey) = unsafe { (word.imm_data, word.invalidated_rkey) };
        if self.0.wc_flags & IMM != 0 {
            Note::Imm(u32::from_be(imm))
        } else {
            Note::Invalidated(Rkey(rkey))
        }
    }

    #[inline]
    fn qp_num(&self) -> QpNum {
        QpNum(self.0.qp_num)
    }

    fn vendor_err(&self) -> u32 {
        self.0.vendor_err
    }
}

/// Work requests that only differ in the fields that a post writes. Boxed once: the addresses that
/// `next` and `sg_list` hold stay true when the lane moves.
struct Templates {
    send: [ibv_send_wr; POST_CHAIN_MAX],
    send_sge: [[ibv_sge; SGE_MAX]; POST_CHAIN_MAX],
    recv: [ibv_recv_wr; POST_CHAIN_MAX],
    recv_sge: [ibv_sge; POST_CHAIN_MAX],
}

impl Templates {
    fn new() -> Box<Self> {
        // SAFETY: zero is a valid value of every field: integers, null pointers, and unions of
        // them.
        let mut all: Box<Self> = Box::new(unsafe { MaybeUninit::zeroed().assume_init() });
        for i in 0..POST_CHAIN_MAX {
            all.send[i].sg_list = &raw mut all.send_sge[i][0];
            all.recv[i].sg_list = &raw mut all.recv_sge[i];
            all.recv[i].num_sge = 1;
            if i + 1 < POST_CHAIN_MAX {
                all.send[i].next = &raw mut all.send[i + 1];
                all.recv[i].next = &raw mut all.recv[i + 1];
            }
        }
        all
    }
}

/// One CQ and its work request templates; owned by one worker.
pub struct Lane {
    cq: Arc<CqHandle>,
    templates: Box<Templates>,
}

// SAFETY: the raw pointers in `templates` point into its own box, and `CqHandle` is Send and Sync;
// `&mut self` on every call keeps it to one thread at a time.
unsafe impl Send for Lane {}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").finish_non_exhaustive()
    }
}

impl Lane {
    pub(super) fn new(cq: Arc<CqHandle>) -> Self {
        Self {
            cq,
            templates: Templates::new(),
        }
    }

    /// Gives `post` the chain as a null-terminated list.
    #[inline]
    fn with_receives(
        &mut self,
        chain: &[RecvWr],
        post: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32,
    ) -> Result<(), PostFailure> {
        let n = chain.len();
        if n == 0 || n > POST_CHAIN_MAX {
            return too_long_or_nothing(n);
        }
        let t = &mut *self.templates;
        for (i, wr) in chain.iter().enumerate() {
            t.recv_sge[i] = ibv_sge {
                addr: wr.addr,
                length: wr.len,
                lkey: wr.lkey.0,
            };
            debug_assert!(t.recv[i].num_sge == 1);
            t.recv[i].wr_id = wr.wr_id;
        }
        let next = t.recv[n - 1].next;
        t.recv[n - 1].next = ptr::null_mut();
        let mut bad: *mut ibv_recv_wr = ptr::null_mut();
        let errno = post(t.recv.as_mut_ptr(), &raw mut bad);
        t.recv[n - 1].next = next;
        if errno == 0 {
            return Ok(());
        }
        Err(PostFailure {
            posted: refused(&t.recv[..n], bad),
            errno: errno.abs(),
        })
    }
}

#[inline]
fn rdma(at: RemoteSpan) -> wr_t {
    wr_t {
        rdma: rdma_t {
            remote_addr: at.addr,
            rkey: at.rkey.0,
        },
    }
}

#[inline]
fn atomic(at: RemoteSpan, compare_add: u64, swap: u64) -> wr_t {
    wr_t {
        atomic: atomic_t {
            remote_addr: at.addr,
            compare_add,
            swap,
            rkey: at.rkey.0,
        },
    }
}

#[inline]
fn imm(value: u32) -> imm_data_invalidated_rkey_union_t {
    imm_data_invalidated_rkey_union_t {
        imm_data: value.to_be(),
    }
}

#[inline]
fn native(sge: Sge) -> ibv_sge {
    ibv_sge {
        addr: sge.addr,
        length: sge.len,
        lkey: sge.lkey.0,
    }
}

/// Writes the pieces behind the first, which is there if it has bytes; gives their number. Those without
/// bytes are left out: SoftiWARP's kernel follows a null pointer at one, and never returns.
#[inline]
fn gather(places: &mut [ibv_sge; SGE_MAX], has_first: bool, pieces: &[Sge]) -> i32 {
    let mut count = 0;
    let mut places = places[usize::from(has_first)..].iter_mut();
    for sge in pieces.iter().filter(|sge| sge.len != 0) {
        if let Some(place) = places.next() {
            *place = native(*sge);
            count += 1;
        }
    }
    count
}

/// Writes the opcode of `op` and what belongs to it; false for a bind, which is posted otherwise.
#[inline]
fn set_op(to: &mut ibv_send_wr, op: SendOp) -> bool {
    to.opcode = match op {
        SendOp::Send => ibv_wr_opcode::IBV_WR_SEND,
        SendOp::SendImm(value) => {
            to.imm_data_invalidated_rkey_union = imm(value);
            ibv_wr_opcode::IBV_WR_SEND_WITH_IMM
        }
        SendOp::SendInvalidate(rkey) => {
            to.imm_data_invalidated_rkey_union = imm_data_invalidated_rkey_union_t {
                invalidated_rkey: rkey.0,
            };
            ibv_wr_opcode::IBV_WR_SEND_WITH_INV
        }
        SendOp::Write(at) => {
            to.wr = rdma(at);
            ibv_wr_opcode::IBV_WR_RDMA_WRITE
        }
        SendOp::WriteImm(at, value) => {
            to.wr = rdma(at);
            to.imm_data_invalidated_rkey_union = imm(value);
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
        }
        SendOp::Read(at) => {
            to.wr = rdma(at);
            ibv_wr_opcode::IBV_WR_RDMA_READ
        }
        SendOp::CompareSwap { at, expect, swap } => {
            to.wr = atomic(at, expect, swap);
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP
        }
        SendOp::FetchAdd { at, add } => {
            to.wr = atomic(at, add, 0);
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD
        }
        SendOp::LocalInvalidate(rkey) => {
            to.imm_data_invalidated_rkey_union = imm_data_invalidated_rkey_union_t {
                invalidated_rkey: rkey.0,
            };
            ibv_wr_opcode::IBV_WR_LOCAL_INV
        }
        SendOp::Bind { .. } => return false,
    };
    true
}

/// A chain that is none of the templates': nothing to do, or nothing done.
#[cold]
fn too_long_or_nothing(n: usize) -> Result<(), PostFailure> {
    let too_long = PostFailure {
        posted: 0,
        errno: libc::E2BIG,
    };
    if n == 0 { Ok(()) } else { Err(too_long) }
}

/// Index of the work request that libibverbs refused, found by its address in the array. A provider
/// that names none is taken to have posted all: memory is given back too late rather than too early.
fn refused<T>(chain: &[T], bad: *const T) -> usize {
    let base = chain.as_ptr();
    let offset = (bad as usize).wrapping_sub(base as usize) / size_of::<T>();
    offset.min(chain.len())
}

impl fabric::Lane for Lane {
    type Qp = Qp;
    type Wc = Wc;

    fn blank() -> Wc {
        // SAFETY: zero is a valid value of every field: integers, and a union of two of them.
        Wc(unsafe { MaybeUninit::zeroed().assume_init() })
    }

    #[inline]
    fn poll(&mut self, into: &mut [Wc]) -> usize {
        let room = i32::try_from(into.len()).unwrap_or(i32::MAX);
        // SAFETY: ibv_poll_cq requires
        // - a live CQ: `self.cq` destroys it only when its last holder is gone;
        // - room for `room` completions: `Wc` is a transparent ibv_wc and `into` has that many;
        // - it may run beside other users of the CQ: the provider's lock is kept (no single
        //   threaded flag), see `device.rs`.
        let n = unsafe { ibv_poll_cq(self.cq.as_ptr(), room, into.as_mut_ptr().cast::<ibv_wc>()) };
        // A negative count means that the CQ is broken; the async event CQ_ERR says so to control.
        usize::try_from(n).unwrap_or(0)
    }

    #[inline]
    fn post_send(
        &mut self,
        qp: &mut Qp,
        chain: &[SendWr],
        more: &[MoreSges],
    ) -> Result<(), PostFailure> {
        let n = chain.len();
        if n == 0 || n > POST_CHAIN_MAX {
            return too_long_or_nothing(n);
        }
        let t = &mut *self.templates;
        for (i, wr) in chain.iter().enumerate() {
            t.send_sge[i][0] = ibv_sge {
                addr: wr.addr,
                length: wr.len,
                lkey: wr.lkey.0,
            };
            let to = &mut t.send[i];
            to.wr_id = wr.wr_id;
            to.num_sge = i32::from(wr.len != 0);
            if wr.more > 0 {
                to.num_sge += gather(
                    &mut t.send_sge[i],
                    wr.len != 0,
                    &more[i][..usize::from(wr.more)],
                );
            }
            if !set_op(to, wr.op) {
                return Err(PostFailure {
                    posted: 0,
                    errno: libc::EINVAL,
                });
            }
            to.send_flags = if wr.signalled {
                ibv_send_flags::IBV_SEND_SIGNALED.0
            } else {
                0
            } | if wr.inline {
                ibv_send_flags::IBV_SEND_INLINE.0
            } else {
                0
            };
        }
        let next = t.send[n - 1].next;
        t.send[n - 1].next = ptr::null_mut();
        let mut bad: *mut ibv_send_wr = ptr::null_mut();
        // SAFETY: ibv_post_send requires
        // - a live QP: `qp` is its posting half, and destroying takes that half;
        // - no other poster on a QP in a thread domain: we hold `&mut qp`, which is not Sync;
        // - a null-terminated list: `next` of entry n-1 was set to null above, the entries before
        //   it link to their successors since `Templates::new`;
        // - gather entries valid during the call: they stand in the same box;
        // - payload valid until completion, and for a READ nobody else's to look at: the caller of
        //   `Lane::post_send` owns the handles in its in-flight table; inline payload is copied
        //   during the call; `num_sge` counts entries that were written above;
        // - what belongs to the opcode: `set_op` wrote it, and takes no bind, which names a window.
        let errno = unsafe { ibv_post_send(qp.as_ptr(), t.send.as_mut_ptr(), &raw mut bad) };
        t.send[n - 1].next = next;
        if errno == 0 {
            return Ok(());
        }
        Err(PostFailure {
            posted: refused(&t.send[..n], bad),
            errno: errno.abs(),
        })
    }

    fn post_bind(
        &mut self,
        qp: &mut Qp,
        wr: &SendWr,
        memory: &dyn Registration,
    ) -> Result<(), PostFailure> {
        let refused = |errno| PostFailure { posted: 0, errno };
        let any: &dyn Any = memory;
        let SendOp::Bind {
            window,
            rkey,
            access,
        } = wr.op
        else {
            return Err(refused(libc::EINVAL));
        };
        let (Some(mr), Some(window)) = (
            any.downcast_ref::<Mr>(),
            qp.windows().get(usize::from(window)),
        ) else {
            return Err(refused(libc::EINVAL));
        };
        // SAFETY: zero is a valid value of every field: integers, null pointers, and unions of
        // them.
        let mut native: ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        native.wr_id = wr.wr_id;
        native.opcode = ibv_wr_opcode::IBV_WR_BIND_MW;
        native.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        native.bind_mw_tso_union.bind_mw = bind_mw_t {
            mw: window.as_ptr(),
            rkey: rkey.0,
            bind_info: ibv_mw_bind_info {
                mr: mr.as_ptr(),
                addr: wr.addr,
                length: wr.len.into(),
                mw_access_flags: native_access(access),
            },
        };
        let mut bad: *mut ibv_send_wr = ptr::null_mut();
        // SAFETY: ibv_post_send requires what `post_send` proves (one work request, no gather entry),
        // and for a bind a live window of the QP's PD, which the half owns, and a live MR, which the
        // caller's in-flight table keeps registered for as long as the window is bound.
        let errno = unsafe { ibv_post_send(qp.as_ptr(), &raw mut native, &raw mut bad) };
        if errno != 0 {
            return Err(refused(errno.abs()));
        }
        window.rekey(rkey);
        Ok(())
    }

    #[inline]
    fn post_recv(&mut self, qp: &mut Qp, chain: &[RecvWr]) -> Result<(), PostFailure> {
        // SAFETY: ibv_post_recv requires
        // - a live QP in INIT or later: control creates it so before it moves the half here, and
        //   destroying takes that half;
        // - no other poster: we hold `&mut qp`;
        // - a null-terminated list with valid entries: `with_receives` gives one;
        // - memory valid and ours to give until completion: the caller owns the handles in its
        //   in-flight table.
        self.with_receives(chain, |list, bad| unsafe {
            ibv_post_recv(qp.as_ptr(), list, bad)
        })
    }

    #[inline]
    fn post_shared_recv(&mut self, chain: &[RecvWr]) -> Result<(), PostFailure> {
        let Some(srq) = self.cq.srq_ptr() else {
            return Err(PostFailure {
                posted: 0,
                errno: libc::EOPNOTSUPP,
            });
        };
        // SAFETY: ibv_post_srq_recv requires
        // - a live SRQ: `self.cq` destroys it when its last holder is gone;
        // - a list and memory: as in `post_recv`. Other posters would be allowed (the SRQ is in no
        //   thread domain), but there are none.
        self.with_receives(chain, |list, bad| unsafe {
            ibv_post_srq_recv(srq, list, bad)
        })
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.cq.channel_fd()
    }

    fn arm(&mut self) -> Result<(), i32> {
        // SAFETY: ibv_req_notify_cq requires a live CQ; `self.cq` keeps it.
        match unsafe { ibv_req_notify_cq(self.cq.as_ptr(), 0) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    fn drain_events(&mut self) {
        let Some(channel) = self.cq.channel_ptr() else {
            return;
        };
        let mut taken = 0;
        loop {
            let mut cq = ptr::null_mut();
            let mut context = ptr::null_mut();
            // SAFETY: ibv_get_cq_event requires a live channel, kept by `self.cq`, and two places
            // to write to. The channel's fd is non-blocking since its creation.
            let got = unsafe { ibv_get_cq_event(channel, &raw mut cq, &raw mut context) };
            if got != 0 {
                break;
            }
            taken += 1;
        }
        if taken > 0 {
            // SAFETY: ibv_ack_cq_events requires a live CQ and at most as many events as were
            // taken; only this CQ is on the channel, so all of them were its own.
            unsafe { ibv_ack_cq_events(self.cq.as_ptr(), taken) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_linked_and_constant() {
        let t = Templates::new();
        for i in 0..POST_CHAIN_MAX {
            assert_eq!(t.send[i].sg_list.cast_const(), &raw const t.send_sge[i][0]);
            assert_eq!(t.recv[i].sg_list.cast_const(), &raw const t.recv_sge[i]);
            let last = i + 1 == POST_CHAIN_MAX;
            assert_eq!(t.send[i].next.is_null(), last);
            assert_eq!(t.recv[i].next.is_null(), last);
        }
    }

    #[test]
    fn pieces_without_bytes_are_left_out() {
        let piece = |addr, len| Sge {
            addr,
            len,
            lkey: crate::types::Lkey(7),
        };
        let pieces = [piece(1, 0), piece(2, 20), piece(3, 30)];
        let mut t = Templates::new();
        let addresses = |places: &[ibv_sge; SGE_MAX]| places.map(|sge| sge.addr);
        t.send_sge[0][0].addr = 9;
        assert_eq!(gather(&mut t.send_sge[0], true, &pieces), 2);
        assert_eq!(addresses(&t.send_sge[0]), [9, 2, 3, 0]);
        assert_eq!(gather(&mut t.send_sge[1], false, &pieces), 2);
        assert_eq!(addresses(&t.send_sge[1]), [2, 3, 0, 0]);
        assert_eq!(gather(&mut t.send_sge[2], false, &pieces[..1]), 0);
    }

    #[test]
    fn a_chain_is_taken_whole_or_not_at_all() {
        assert_eq!(too_long_or_nothing(0), Ok(()));
        let refused = too_long_or_nothing(POST_CHAIN_MAX + 1).expect_err("too long");
        assert_eq!((refused.posted, refused.errno), (0, libc::E2BIG));
    }

    #[test]
    fn the_refused_work_request_is_found_by_its_address() {
        let t = Templates::new();
        assert_eq!(refused(&t.send, &raw const t.send[0]), 0);
        assert_eq!(refused(&t.send, &raw const t.send[7]), 7);
        assert_eq!(refused(&t.send, ptr::null()), POST_CHAIN_MAX);
        assert_eq!(refused(&t.send[..4], &raw const t.send[5]), 4);
    }
}
