//! The toy as a NIC: what was posted, and completions when the test says so.
//!
//! A QP executes sends in order and completes those that are signalled; after a failure everything on
//! it is flushed, in order, signalled or not, and so is whatever is posted later. That is RC. Receives that
//! QPs share are no QP's to flush.

#![allow(
    unsafe_code,
    reason = "plays the NIC: reads and writes the memory that was posted"
)]

use super::{QpEnd, State, Toy, ToyDevice};
use crate::fabric::plain::PlainWc;
use crate::fabric::{Lane, MoreSges, Note, PostFailure, QpSpec, RecvWr, SendOp, SendWr, WcStatus};
use crate::limits::POST_CHAIN_MAX;
use crate::memory::{Region, Registrar, Registration};
use crate::sys::eventfd::EventFd;
use crate::types::{Access, Lkey, QpNum, Rkey};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Arc;

/// Memory that the toy was told of.
pub(crate) struct ToyRegistration {
    _region: Arc<Region>,
    toy: Toy,
    key: u32,
}

impl Drop for ToyRegistration {
    fn drop(&mut self) {
        let regions = &mut self.toy.lock().regions;
        regions.retain(|(_, _, key, _)| *key != self.key);
    }
}

impl Registrar for ToyDevice {
    type Registration = ToyRegistration;
    fn register(&self, region: Arc<Region>, access: Access) -> io::Result<ToyRegistration> {
        let mut state = self.toy.lock();
        if let Some(errno) = state.refuse_registration.take() {
            return Err(io::Error::from_raw_os_error(errno));
        }
        state.registrations += 1;
        let key = 77 + state.registrations;
        let base = region.base().as_ptr().expose_provenance() as u64;
        state.regions.push((base, region.len() as u64, key, access));
        drop(state);
        Ok(ToyRegistration {
            _region: region,
            toy: self.toy.clone(),
            key,
        })
    }
}

impl Registration for ToyRegistration {
    fn lkey(&self) -> Lkey {
        Lkey(self.key)
    }
    fn rkey(&self) -> Rkey {
        Rkey(self.key)
    }
}

pub(super) struct QpState {
    lane: usize,
    spec: QpSpec,
    pub(super) end: QpEnd,
    pub(super) control_half: bool,
    pub(super) posting_half: bool,
    in_error: bool,
    sends: VecDeque<SendWr>,
    recvs: VecDeque<RecvWr>,
    /// Payloads of the sends that were accepted, and how many of them were executed.
    sent: Vec<Vec<u8>>,
    executed: usize,
    send_chains: Vec<Vec<SendWr>>,
    recv_chains: Vec<usize>,
    /// Posts still taken before the provider refuses, for sends and receives, with the errno.
    sends_left: Option<(usize, i32)>,
    recvs_left: Option<(usize, i32)>,
}

impl QpState {
    pub(super) fn new(lane: usize, spec: QpSpec) -> Self {
        Self {
            lane,
            spec,
            end: QpEnd::Alive,
            control_half: true,
            posting_half: true,
            in_error: false,
            sends: VecDeque::new(),
            recvs: VecDeque::new(),
            sent: Vec::new(),
            executed: 0,
            send_chains: Vec::new(),
            recv_chains: Vec::new(),
            sends_left: None,
            recvs_left: None,
        }
    }
}

/// The receives that the QPs of a lane share.
pub(super) struct SharedState {
    depth: usize,
    recvs: VecDeque<RecvWr>,
    chains: Vec<usize>,
    left: Option<(usize, i32)>,
}

impl SharedState {
    pub(super) fn new(depth: u32) -> Self {
        Self {
            depth: depth as usize,
            recvs: VecDeque::new(),
            chains: Vec::new(),
            left: None,
        }
    }
}

/// Takes what is left of a budget: how many of `n` are accepted, and the refusal of the rest.
fn accept(left: &mut Option<(usize, i32)>, n: usize) -> (usize, Result<(), PostFailure>) {
    match left {
        Some((budget, errno)) if *budget < n => {
            let (posted, errno) = (*budget, *errno);
            *budget = 0;
            (posted, Err(PostFailure { posted, errno }))
        }
        Some((budget, _)) => {
            *budget -= n;
            (n, Ok(()))
        }
        None => (n, Ok(())),
    }
}

impl State {
    fn push(&mut self, number: usize, wr_id: u64, status: WcStatus, len: u32) {
        let lane = self.qps[number].lane;
        let qp = QpNum(u32::try_from(number).expect("few QPs"));
        let mut wc = PlainWc::ended(wr_id, qp, status);
        if status == WcStatus::Success {
            (wc.len, wc.note) = (len, Note::None);
        }
        self.cqs[lane].push_back(wc);
    }

    /// The bytes are all in memory that is registered under the key.
    fn knows(&self, addr: u64, len: u32, lkey: Lkey) -> bool {
        let region = self.regions.iter().find(|(_, _, key, _)| *key == lkey.0);
        region
            .is_some_and(|(base, bytes, ..)| *base <= addr && addr + u64::from(len) <= base + bytes)
    }

    /// The receive that the next message on a QP uses.
    fn take_recv(&mut self, number: usize) -> Option<RecvWr> {
        let qp = &mut self.qps[number];
        if !qp.spec.shared_receives {
            return qp.recvs.pop_front();
        }
        let lane = qp.lane;
        (!qp.in_error && qp.end == QpEnd::Alive)
            .then(|| self.shared[lane].recvs.pop_front())
            .flatten()
    }

    fn flush(&mut self, number: usize) {
        let qp = &mut self.qps[number];
        qp.in_error = true;
        let sends = std::mem::take(&mut qp.sends);
        let recvs = std::mem::take(&mut qp.recvs);
        let words = sends.iter().map(|wr| wr.wr_id);
        for wr_id in words.chain(recvs.iter().map(|wr| wr.wr_id)) {
            self.push(number, wr_id, WcStatus::Flushed, 0);
        }
    }
}

/// The test's hands on a QP, by its number.
impl Toy {
    /// A message comes in: false when no receive is posted or the QP is in error.
    pub(crate) fn deliver(&self, qp: QpNum, bytes: &[u8]) -> bool {
        let mut state = self.lock();
        let number = qp.0 as usize;
        let Some(wr) = state.take_recv(number) else {
            return false;
        };
        assert!(bytes.len() <= wr.len as usize, "no toy for long messages");
        let to = with_exposed_provenance_mut::<u8>(usize::try_from(wr.addr).expect("64 bits"));
        // SAFETY: `copy_nonoverlapping` requires, in turn,
        // - a source of `len` bytes: it is a slice;
        // - a destination of as many: the receive names a slot of `wr.len` bytes, which the worker
        //   keeps in its in-flight table until the completion that is pushed below;
        // - no overlap: nobody has a slice of a slot that is posted.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        let len = u32::try_from(bytes.len()).expect("short");
        state.push(number, wr.wr_id, WcStatus::Success, len);
        true
    }

    /// The NIC executes the next `n` sends; gives how many there were.
    pub(crate) fn execute(&self, qp: QpNum, n: usize) -> usize {
        let mut state = self.lock();
        let number = qp.0 as usize;
        for done in 0..n {
            let Some(wr) = state.qps[number].sends.pop_front() else {
                return done;
            };
            state.qps[number].executed += 1;
            if wr.signalled {
                state.push(number, wr.wr_id, WcStatus::Success, 0);
            }
        }
        n
    }

    /// Memory that is registered under a key.
    pub(crate) fn is_registered(&self, rkey: Rkey) -> bool {
        let state = self.lock();
        state.regions.iter().any(|(_, _, key, _)| *key == rkey.0)
    }

    /// The NIC executes the next send, a READ, from memory that is registered with this toy. Where the
    /// key does not allow that the READ fails, and everything else is flushed: false.
    pub(crate) fn answer_read(&self, qp: QpNum) -> bool {
        let mut state = self.lock();
        let number = qp.0 as usize;
        let Some(wr) = state.qps[number].sends.front().copied() else {
            // The QP is in error: it was flushed.
            return false;
        };
        let SendOp::Read(span) = wr.op else {
            panic!("{:?} is no READ", wr.op)
        };
        assert_eq!(wr.more, 0, "no toy for gather lists");
        let mut known = state.regions.iter();
        let may = known.any(|&(base, len, key, access)| {
            let offset = span.addr.checked_sub(base);
            let end = offset.and_then(|offset| offset.checked_add(wr.len.into()));
            let inside = end.is_some_and(|end| end <= len);
            key == span.rkey.0 && inside && access.contains(Access::REMOTE_READ)
        });
        if !may {
            state.qps[number].sends.pop_front();
            state.push(number, wr.wr_id, WcStatus::RemoteAccess, 0);
            state.flush(number);
            return false;
        };
        let at = |addr: u64| usize::try_from(addr).expect("64 bits");
        let from = with_exposed_provenance::<u8>(at(span.addr));
        let to = with_exposed_provenance_mut::<u8>(at(wr.addr));
        // SAFETY: `copy` requires, in turn,
        // - a source of `len` bytes: they lie in a region of the list, as checked above, which stays mapped
        //   until its registration has taken it from the list, and that waits for the lock held here;
        // - a destination of as many: the work request names memory that the worker's send queue owns
        //   until the completion that is pushed below.
        unsafe { std::ptr::copy(from, to, wr.len as usize) };
        drop(state);
        self.execute(qp, 1) == 1
    }

    /// The next send fails, and everything else is flushed; without a send only that.
    pub(crate) fn fail(&self, qp: QpNum, status: WcStatus) {
        let mut state = self.lock();
        let number = qp.0 as usize;
        if let Some(wr) = state.qps[number].sends.pop_front() {
            state.push(number, wr.wr_id, status, 0);
        }
        state.flush(number);
    }

    /// The QP goes to error.
    pub(crate) fn flush(&self, qp: QpNum) {
        self.lock().flush(qp.0 as usize);
    }

    /// The next registration fails.
    pub(crate) fn refuse_registration(&self, errno: i32) {
        self.lock().refuse_registration = Some(errno);
    }

    /// Registrations that there are.
    pub(crate) fn registered(&self) -> usize {
        self.lock().regions.len()
    }

    /// Nothing comes in on it any more.
    pub(crate) fn is_in_error(&self, qp: QpNum) -> bool {
        let state = self.lock();
        let qp = &state.qps[qp.0 as usize];
        qp.in_error || qp.end != QpEnd::Alive
    }

    /// A completion out of nowhere.
    pub(crate) fn complete(&self, qp: QpNum, wr_id: u64, status: WcStatus, len: u32) {
        self.lock().push(qp.0 as usize, wr_id, status, len);
    }

    /// After `n` more sends the provider refuses.
    pub(crate) fn refuse_sends(&self, qp: QpNum, n: usize, errno: i32) {
        self.lock().qps[qp.0 as usize].sends_left = Some((n, errno));
    }

    /// After `n` more receives the provider refuses.
    pub(crate) fn refuse_recvs(&self, qp: QpNum, n: usize, errno: i32) {
        self.lock().qps[qp.0 as usize].recvs_left = Some((n, errno));
    }

    /// The QP dies in the middle of a message: a shared receive is used up and never completes.
    pub(crate) fn lose_shared(&self, qp: QpNum) -> bool {
        self.lock().take_recv(qp.0 as usize).is_some()
    }

    /// Shared receives that the NIC has on a lane.
    pub(crate) fn shared_outstanding(&self, lane: usize) -> usize {
        self.lock().shared[lane].recvs.len()
    }

    /// Words of the shared receives that the NIC has on a lane, oldest first.
    pub(crate) fn shared_words(&self, lane: usize) -> Vec<u64> {
        let state = self.lock();
        state.shared[lane].recvs.iter().map(|wr| wr.wr_id).collect()
    }

    /// Lengths of the chains of shared receives on a lane so far.
    pub(crate) fn shared_chains(&self, lane: usize) -> Vec<usize> {
        self.lock().shared[lane].chains.clone()
    }

    /// After `n` more shared receives the provider refuses.
    pub(crate) fn refuse_shared(&self, lane: usize, n: usize, errno: i32) {
        self.lock().shared[lane].left = Some((n, errno));
    }

    /// The QP that was created last.
    pub(crate) fn last_qp(&self) -> QpNum {
        QpNum(u32::try_from(self.lock().qps.len() - 1).expect("few QPs"))
    }

    /// Chains of sends so far; one doorbell each.
    pub(crate) fn send_chains(&self, qp: QpNum) -> Vec<Vec<SendWr>> {
        self.lock().qps[qp.0 as usize].send_chains.clone()
    }

    /// Lengths of the chains of receives so far.
    pub(crate) fn recv_chains(&self, qp: QpNum) -> Vec<usize> {
        self.lock().qps[qp.0 as usize].recv_chains.clone()
    }

    /// Payloads of sends that the NIC took, and how many of them it executed.
    pub(crate) fn sent(&self, qp: QpNum) -> (Vec<Vec<u8>>, usize) {
        let state = self.lock();
        let qp = &state.qps[qp.0 as usize];
        (qp.sent.clone(), qp.executed)
    }

    /// Sends and receives that the NIC has.
    pub(crate) fn outstanding(&self, qp: QpNum) -> (usize, usize) {
        let state = self.lock();
        let qp = &state.qps[qp.0 as usize];
        (qp.sends.len(), qp.recvs.len())
    }

    /// Words of the receives that the NIC has, oldest first.
    pub(crate) fn recv_words(&self, qp: QpNum) -> Vec<u64> {
        let state = self.lock();
        let recvs = state.qps[qp.0 as usize].recvs.iter();
        recvs.map(|wr| wr.wr_id).collect()
    }
}

/// The posting half of a QP.
pub(crate) struct ToyQp {
    toy: Toy,
    number: usize,
}

impl ToyQp {
    pub(super) fn new(toy: Toy, number: usize) -> Self {
        Self { toy, number }
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }
}

impl Drop for ToyQp {
    fn drop(&mut self) {
        self.toy.lock().qps[self.number].posting_half = false;
        self.toy.half_gone(self.number);
    }
}

/// The worker's half of a lane.
pub(crate) struct ToyLane {
    toy: Toy,
    number: usize,
    bell: EventFd,
}

impl ToyLane {
    pub(super) fn new(toy: Toy, number: usize) -> Self {
        let bell = EventFd::new().expect("a descriptor");
        Self { toy, number, bell }
    }
}

impl Lane for ToyLane {
    type Qp = ToyQp;
    type Wc = PlainWc;

    fn blank() -> PlainWc {
        PlainWc::BLANK
    }

    fn poll(&mut self, into: &mut [PlainWc]) -> usize {
        let cq = &mut self.toy.lock().cqs[self.number];
        let n = cq.len().min(into.len());
        for (slot, wc) in into.iter_mut().zip(cq.drain(..n)) {
            *slot = wc;
        }
        n
    }

    fn post_send(
        &mut self,
        qp: &mut ToyQp,
        chain: &[SendWr],
        _: &[MoreSges],
    ) -> Result<(), PostFailure> {
        assert!((1..=POST_CHAIN_MAX).contains(&chain.len()));
        let mut state = self.toy.lock();
        for wr in chain {
            assert!(wr.inline || state.knows(wr.addr, wr.len, wr.lkey));
        }
        let q = &mut state.qps[qp.number];
        q.send_chains.push(chain.to_vec());
        let (n, outcome) = accept(&mut q.sends_left, chain.len());
        for wr in &chain[..n] {
            let from = with_exposed_provenance::<u8>(usize::try_from(wr.addr).expect("64 bits"));
            // SAFETY: `from_raw_parts` requires `len` initialised bytes that nobody writes: the work
            // request names a slot whose buffer the worker's send queue owns, and it is copied here
            // and now.
            let payload = unsafe { std::slice::from_raw_parts(from, wr.len as usize) };
            q.sent.push(payload.to_vec());
            q.sends.push_back(*wr);
        }
        assert!(q.sends.len() <= q.spec.send_depth as usize, "send queue");
        if q.in_error {
            state.flush(qp.number);
        }
        outcome
    }

    fn post_recv(&mut self, qp: &mut ToyQp, chain: &[RecvWr]) -> Result<(), PostFailure> {
        assert!((1..=POST_CHAIN_MAX).contains(&chain.len()));
        let mut state = self.toy.lock();
        for wr in chain {
            assert!(state.knows(wr.addr, wr.len, wr.lkey));
        }
        let q = &mut state.qps[qp.number];
        assert!(
            !q.spec.shared_receives,
            "a QP with shared receives has none"
        );
        q.recv_chains.push(chain.len());
        let (n, outcome) = accept(&mut q.recvs_left, chain.len());
        q.recvs.extend(&chain[..n]);
        assert!(q.recvs.len() <= q.spec.recv_depth as usize, "receive queue");
        if q.in_error {
            state.flush(qp.number);
        }
        outcome
    }

    fn post_shared_recv(&mut self, chain: &[RecvWr]) -> Result<(), PostFailure> {
        assert!((1..=POST_CHAIN_MAX).contains(&chain.len()));
        let mut state = self.toy.lock();
        for wr in chain {
            assert!(state.knows(wr.addr, wr.len, wr.lkey));
        }
        let q = &mut state.shared[self.number];
        q.chains.push(chain.len());
        let (n, outcome) = accept(&mut q.left, chain.len());
        q.recvs.extend(&chain[..n]);
        assert!(q.recvs.len() <= q.depth, "shared receive queue");
        outcome
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.fd())
    }
    fn arm(&mut self) -> Result<(), i32> {
        // Tests that sleep are woken by the mailbox; a toy completes nothing by itself.
        Ok(())
    }
    fn drain_events(&mut self) {
        self.bell.drain().expect("a bell");
    }
}
