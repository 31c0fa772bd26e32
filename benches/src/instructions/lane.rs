//! The datapath of the wire: what stands for a provider in a count, and is left out of it.
//!
//! ```text
//!  post_send ─► copied into the peer's receive ─► completions on both CQs ─► poll
//! ```
//! The calls that a worker makes are never inlined, as a provider's are not. Imported by wire.
#![allow(
    unsafe_code,
    reason = "plays the NIC: copies from and to the memory that was posted"
)]

use crate::valgrind::toggle_counting;
use crate::wire::{Shared, State};
use spinwire::fabric::{
    self, MoreSges, Note, PostFailure, RecvWr, SendOp, SendWr, WcOpcode, WcStatus, WorkCompletion,
};
use spinwire::memory::{Region, Registration};
use spinwire::types::{Lkey, QpNum, Rkey};
use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Arc;

/// `EOPNOTSUPP`.
const NOT_SUPPORTED: i32 = 95;

thread_local! {
    /// Lane whose replies are counted: from the end of a poll that found something to the beginning of
    /// the next post of sends.
    static REPLIES_OF: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Counts replies on lane `number` from here on; `None` ends it.
pub(crate) fn count_replies_of(number: Option<usize>) {
    REPLIES_OF.set(number);
}

/// Memory that the wire was told of.
pub(crate) struct Memory(Arc<Region>);

impl Memory {
    pub(crate) fn new(region: Arc<Region>) -> Self {
        Self(region)
    }
}

impl Registration for Memory {
    fn lkey(&self) -> Lkey {
        Lkey(1)
    }
    fn rkey(&self) -> Rkey {
        // There is no wire that needs keys; the region itself is kept for its mapping.
        Rkey(u32::try_from(self.0.len()).unwrap_or(u32::MAX))
    }
}

/// A completion, as large as verbs' `ibv_wc` and laid out like it: what the engine copies of it
/// counts.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Wc {
    wr_id: u64,
    status: u32,
    opcode: u32,
    vendor_err: u32,
    byte_len: u32,
    imm: u32,
    qp_num: u32,
    src_qp: u32,
    wc_flags: u32,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

const _: () = assert!(size_of::<Wc>() == 48);

const SUCCESS: u32 = 0;
const FLUSHED: u32 = 5;

impl WorkCompletion for Wc {
    #[inline]
    fn wr_id(&self) -> u64 {
        self.wr_id
    }
    fn status(&self) -> WcStatus {
        match self.status {
            SUCCESS => WcStatus::Success,
            _ => WcStatus::Flushed,
        }
    }
    #[inline]
    fn is_success(&self) -> bool {
        self.status == SUCCESS
    }
    #[inline]
    fn opcode(&self) -> WcOpcode {
        match self.opcode {
            0 => WcOpcode::Send,
            1 => WcOpcode::Write,
            2 => WcOpcode::Read,
            128 => WcOpcode::Recv,
            other => WcOpcode::Other(other),
        }
    }
    #[inline]
    fn byte_len(&self) -> u32 {
        self.byte_len
    }
    #[inline]
    fn note(&self) -> Note {
        // Neither flag is ever set here; the look at them is part of what is counted.
        match self.wc_flags & 10 {
            0 => Note::None,
            _ => Note::Imm(self.imm),
        }
    }
    #[inline]
    fn qp_num(&self) -> QpNum {
        QpNum(self.qp_num)
    }
    fn vendor_err(&self) -> u32 {
        self.vendor_err
    }
}

/// The posting half of a QP: its number.
pub(crate) struct Qp(pub(crate) usize);

pub(crate) struct QpState {
    cq: usize,
    pub(crate) peer: Option<usize>,
    recvs: VecDeque<RecvWr>,
    in_error: bool,
}

impl QpState {
    pub(crate) fn new(cq: usize, recv_depth: u32) -> Self {
        Self {
            cq,
            peer: None,
            recvs: VecDeque::with_capacity(recv_depth as usize),
            in_error: false,
        }
    }
}

impl State {
    fn complete(&mut self, qp: usize, wr_id: u64, status: u32, opcode: u32, byte_len: u32) {
        let cq = self.qps[qp].cq;
        let qp_num = u32::try_from(qp).unwrap_or(u32::MAX);
        self.cqs[cq].push_back(Wc {
            wr_id,
            status,
            opcode,
            byte_len,
            qp_num,
            ..<Lane as fabric::Lane>::blank()
        });
    }

    /// The QP is in error: its receives come back.
    pub(crate) fn flush(&mut self, qp: usize) {
        self.qps[qp].in_error = true;
        for wr in std::mem::take(&mut self.qps[qp].recvs) {
            self.complete(qp, wr.wr_id, FLUSHED, 128, 0);
        }
    }

    /// Executes one operation, at once.
    fn execute(&mut self, qp: usize, wr: &SendWr) -> Result<(), i32> {
        if self.qps[qp].in_error {
            self.complete(qp, wr.wr_id, FLUSHED, 0, 0);
            return Ok(());
        }
        let opcode = match wr.op {
            SendOp::Send => {
                let peer = self.qps[qp].peer.expect("a scenario sends when connected");
                let recv = self.qps[peer].recvs.pop_front();
                let recv = recv.expect("a scenario sends no more than its peer has receives for");
                assert!(wr.len <= recv.len, "a message fits the receives");
                copy(wr.addr, recv.addr, wr.len);
                self.complete(peer, recv.wr_id, SUCCESS, 128, wr.len);
                0
            }
            SendOp::Write(to) => {
                copy(wr.addr, to.addr, wr.len);
                1
            }
            SendOp::Read(from) => {
                copy(from.addr, wr.addr, wr.len);
                2
            }
            _ => return Err(NOT_SUPPORTED),
        };
        if wr.signalled {
            self.complete(qp, wr.wr_id, SUCCESS, opcode, 0);
        }
        Ok(())
    }
}

fn copy(from: u64, to: u64, len: u32) {
    let place = |addr| usize::try_from(addr).expect("64 bits");
    let from = with_exposed_provenance::<u8>(place(from));
    let to = with_exposed_provenance_mut::<u8>(place(to));
    // SAFETY: `copy` requires `len` bytes that may be read and as many that may be written, without
    // anybody having a slice of them: both lie in slots whose buffers are in the in-flight table of a
    // worker that is alive, or in exposed memory that the scenario keeps, of which no slice is ever
    // formed. The engine exposed their provenance when it named them, and they are as long as the work
    // requests say.
    unsafe { std::ptr::copy(from, to, len as usize) };
}

/// The worker's half of a lane.
pub(crate) struct Lane {
    shared: Shared,
    number: usize,
}

impl Lane {
    pub(crate) fn new(shared: Shared, number: usize) -> Self {
        Self { shared, number }
    }

    fn counts_replies(&self) -> bool {
        REPLIES_OF.get() == Some(self.number)
    }
}

impl fabric::Lane for Lane {
    type Qp = Qp;
    type Wc = Wc;

    fn blank() -> Wc {
        Wc {
            wr_id: 0,
            status: SUCCESS,
            opcode: 0,
            vendor_err: 0,
            byte_len: 0,
            imm: 0,
            qp_num: 0,
            src_qp: 0,
            wc_flags: 0,
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        }
    }

    #[inline(never)]
    fn poll(&mut self, into: &mut [Wc]) -> usize {
        let n = {
            let cq = &mut self.shared.lock().cqs[self.number];
            let n = cq.len().min(into.len());
            for (slot, wc) in into.iter_mut().zip(cq.drain(..n)) {
                *slot = wc;
            }
            n
        };
        if n > 0 && self.counts_replies() {
            toggle_counting();
        }
        n
    }

    #[inline(never)]
    fn post_send(
        &mut self,
        qp: &mut Qp,
        chain: &[SendWr],
        _: &[MoreSges],
    ) -> Result<(), PostFailure> {
        if self.counts_replies() {
            toggle_counting();
        }
        let mut state = self.shared.lock();
        for (posted, wr) in chain.iter().enumerate() {
            let executed = state.execute(qp.0, wr);
            executed.map_err(|errno| PostFailure { posted, errno })?;
        }
        Ok(())
    }

    #[inline(never)]
    fn post_recv(&mut self, qp: &mut Qp, chain: &[RecvWr]) -> Result<(), PostFailure> {
        self.shared.lock().qps[qp.0].recvs.extend(chain);
        Ok(())
    }

    #[inline(never)]
    fn post_shared_recv(&mut self, _: &[RecvWr]) -> Result<(), PostFailure> {
        Err(PostFailure {
            posted: 0,
            errno: NOT_SUPPORTED,
        })
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn arm(&mut self) -> Result<(), i32> {
        Ok(())
    }
    fn drain_events(&mut self) {}
}
