//! One end's lane: a CQ, a pool, and the pool's registration.
//!
//! ```text
//!  Bench::poll ─► Lane::poll ─► found by QP number, then by wr_id ─► Done { memory back }
//! ```
//! Every completion is held against what was posted: that it was, in that order, and only once.

use super::Failure;
use super::bench::{Bench, ConnId, PATIENCE, SideId};
use super::connection::Conn;
use crate::fabric::{Fabric, Lane, LaneGrant, LaneSpec, Note, WcOpcode, WcStatus, WorkCompletion};
use crate::limits::POLL_BATCH_MAX;
use crate::memory::{Buffer, HugepagePolicy, Pool, Region, Registrar, Registration};
use crate::types::{Access, Lkey};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// What a lane and its memory are made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct SideSpec {
    pub(super) slots: u32,
    pub(super) slot_bytes: u32,
    pub(super) events: bool,
    /// Work requests of the shared receive queue; 0 for none.
    pub(super) shared: u32,
}

impl SideSpec {
    pub(super) const USUAL: Self = Self {
        slots: 128,
        slot_bytes: 16 * 1024,
        events: false,
        shared: 0,
    };
    /// For messages of many packets.
    pub(super) const LONG: Self = Self {
        slots: 4,
        slot_bytes: 1 << 20,
        ..Self::USUAL
    };
}

/// One end's lane and memory. The order of fields is the order of destruction.
pub(super) struct Side<F: Fabric> {
    pub(super) lane: F::Lane,
    pub(super) cq: F::Cq,
    _registration: <F::Device as Registrar>::Registration,
    pub(super) pool: Pool,
    pub(super) lkey: Lkey,
    pub(super) grant: LaneGrant,
    /// Receives on the shared queue.
    pub(super) shared: VecDeque<Posted>,
    done: VecDeque<Done>,
}

/// Which queue a work request was on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Send,
    Recv,
}

/// A work request that the device has. The slots are here meanwhile; inline sends have none.
pub(super) struct Posted {
    pub(super) wr_id: u64,
    pub(super) signalled: bool,
    /// What it completes as. A receive may also complete as [`WcOpcode::RecvWriteImm`].
    pub(super) opcode: WcOpcode,
    pub(super) buffers: Vec<Buffer>,
}

/// A completion, with the memory that it gave back.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) conn: ConnId,
    pub(super) queue: Queue,
    pub(super) wr_id: u64,
    pub(super) status: WcStatus,
    /// `None` where it failed.
    pub(super) opcode: Option<WcOpcode>,
    /// Bytes received; 0 for others.
    pub(super) len: u32,
    /// What a receive brought beside its bytes.
    pub(super) note: Note,
    /// The first slot; a receive has no other.
    pub(super) buffer: Option<Buffer>,
}

impl<F: Fabric> Bench<'_, F> {
    /// Makes a lane on a device.
    pub(super) fn side(&mut self, device: &F::Device, spec: &SideSpec) -> Result<SideId, Failure> {
        let bytes = spec.slots as usize * spec.slot_bytes as usize;
        let region = Arc::new(Region::allocate(bytes, HugepagePolicy::Off)?);
        let pool = Pool::new(Arc::clone(&region), spec.slots, spec.slot_bytes)?;
        let registration = device.register(region, Access::LOCAL_WRITE)?;
        let lane = LaneSpec {
            shared_recv_depth: spec.shared,
            cq_depth: 1024.min(F::limits(device).cq_depth_max),
            events: spec.events,
        };
        let (cq, lane, grant) = self.fabric.create_lane(device, &lane)?;
        ensure!(
            grant.shared_recv_depth >= spec.shared,
            "a shared receive queue of {} was granted where {} was asked for",
            grant.shared_recv_depth,
            spec.shared
        );
        let lkey = registration.lkey();
        let done = VecDeque::new();
        self.sides.push(Side {
            lane,
            cq,
            _registration: registration,
            pool,
            lkey,
            grant,
            shared: VecDeque::new(),
            done,
        });
        Ok(SideId(self.sides.len() - 1))
    }

    /// Polls a lane once for at most `most` completions; gives their number.
    pub(super) fn poll(&mut self, side: SideId, most: usize) -> Result<usize, Failure> {
        let mut wcs = [F::Lane::blank(); POLL_BATCH_MAX];
        let most = most.min(POLL_BATCH_MAX);
        let lane = &mut self.sides[side.0].lane;
        let n = lane.poll(&mut wcs[..most]);
        ensure!(
            n <= most,
            "poll gave {n} completions where {most} were asked for"
        );
        for wc in &wcs[..n] {
            // The newest: a device may give the number of a QP that is gone to the next.
            let is_its = |c: &Conn<F>| {
                c.side == Some(side) && c.grant.is_some_and(|g| g.number == wc.qp_num())
            };
            let at = self.conns.iter().rposition(is_its);
            let at = at.ok_or_else(|| {
                Failure::new(format!(
                    "a completion names QP {}, which is none of the lane's",
                    wc.qp_num().0
                ))
            })?;
            let side = &mut self.sides[side.0];
            let done = self.conns[at].settle(ConnId(at), wc, &mut side.shared)?;
            side.done.push_back(done);
        }
        Ok(n)
    }

    /// Polls all lanes once.
    pub(super) fn poll_all(&mut self) -> Result<usize, Failure> {
        let mut n = 0;
        for side in 0..self.sides.len() {
            n += self.poll(SideId(side), POLL_BATCH_MAX)?;
        }
        Ok(n)
    }

    /// Completions of an end that were polled and not yet taken.
    pub(super) fn polled(&self, conn: ConnId, queue: Queue) -> usize {
        let of = |d: &&Done| d.conn == conn && d.queue == queue;
        self.sides
            .iter()
            .map(|s| s.done.iter().filter(of).count())
            .sum()
    }

    /// Takes the next completion of one queue of one end if it was polled.
    pub(super) fn take(&mut self, conn: ConnId, queue: Queue) -> Option<Done> {
        self.sides.iter_mut().find_map(|side| {
            let at = side
                .done
                .iter()
                .position(|d| d.conn == conn && d.queue == queue)?;
            side.done.remove(at)
        })
    }

    /// Awaits the next completion of one queue of one end, whatever its status.
    pub(super) fn done(&mut self, conn: ConnId, queue: Queue, what: &str) -> Result<Done, Failure> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(done) = self.take(conn, queue) {
                return Ok(done);
            }
            if self.poll_all()? == 0 {
                // As an engine has it: control takes its part in making memory known to a peer where
                // no device does.
                self.pump(Instant::now())?;
                ensure!(
                    Instant::now() < deadline,
                    "awaited {what} for {} s; other completions: {}",
                    PATIENCE.as_secs(),
                    self.seen()
                );
                std::thread::yield_now();
            }
        }
    }

    /// Completions that were polled and not asked for.
    fn seen(&self) -> String {
        let all = self.sides.iter().flat_map(|s| &s.done);
        let text: Vec<_> = all
            .take(8)
            .map(|d| format!("{:?} {} on end {}", d.queue, d.status, d.conn.0))
            .collect();
        if text.is_empty() {
            "none".into()
        } else {
            text.join(", ")
        }
    }
}

impl<F: Fabric> Conn<F> {
    /// Finds what a completion retires.
    fn settle<W: WorkCompletion>(
        &mut self,
        conn: ConnId,
        wc: &W,
        shared: &mut VecDeque<Posted>,
    ) -> Result<Done, Failure> {
        let (wr_id, status) = (wc.wr_id(), wc.status());
        ensure!(
            wc.is_success() == (status == WcStatus::Success),
            "is_success and status {status} disagree"
        );
        let recvs = if self.shares { shared } else { &mut self.recvs };
        let sent = self.sends.iter().position(|p| p.wr_id == wr_id);
        let received = recvs.iter().position(|p| p.wr_id == wr_id);
        let opcode = wc.is_success().then(|| wc.opcode());
        let is_receive = opcode.map(|o| matches!(o, WcOpcode::Recv | WcOpcode::RecvWriteImm));
        let (queue, posted) = match (sent, received, is_receive) {
            (Some(place), _, Some(false)) | (Some(place), None, None) => {
                // What stands before it has succeeded without a word.
                let earlier = self.sends.iter().take(place);
                ensure!(
                    earlier.filter(|p| p.signalled).count() == 0,
                    "a send completed before a signalled one that was posted earlier"
                );
                self.sends.drain(..place);
                (Queue::Send, self.sends.pop_front())
            }
            (_, Some(place), Some(true)) | (None, Some(place), None) => {
                // Two QPs may finish with what they took from a shared queue in any order.
                ensure!(
                    place == 0 || self.shares,
                    "a receive completed before {place} that were posted earlier"
                );
                (Queue::Recv, recvs.remove(place))
            }
            (None, None, _) => {
                return Err(Failure::new(format!(
                    "a completion ({status}) has wr_id {wr_id:#x}, which is not outstanding"
                )));
            }
            (_, _, opcode) => {
                let queue = if opcode == Some(true) {
                    "receive"
                } else {
                    "send"
                };
                return Err(Failure::new(format!(
                    "wr_id {wr_id:#x} completed as a {queue}, which it is not"
                )));
            }
        };
        let Some(mut posted) = posted else {
            return Err(Failure::new("nothing was outstanding"));
        };
        ensure!(
            queue == Queue::Recv || opcode.is_none_or(|o| o == posted.opcode),
            "a work request that completes as {:?} completed as {opcode:?}",
            posted.opcode
        );
        ensure!(
            posted.signalled || status != WcStatus::Success,
            "a send that was not signalled completed"
        );
        let (len, note) = if queue == Queue::Recv && wc.is_success() {
            (wc.byte_len(), wc.note())
        } else {
            (0, Note::None)
        };
        Ok(Done {
            conn,
            queue,
            wr_id,
            status,
            opcode,
            len,
            note,
            buffer: (!posted.buffers.is_empty()).then(|| posted.buffers.swap_remove(0)),
        })
    }
}
