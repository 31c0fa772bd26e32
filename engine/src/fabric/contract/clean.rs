//! What a case made is destroyed here, whatever became of it.
//!
//! ```text
//!  disconnect ─► set_error ─► all work requests back ─► QP, both halves ─► late completions
//!             ─► ids, listeners ─► no event names them ─► lane, registration, pool, memory
//! ```

use super::Failure;
use super::bench::{Bench, ConnId, QUIET, SideId};
use super::side::Queue;
use crate::fabric::{Fabric, Lane};
use crate::limits::POLL_BATCH_MAX;
use std::time::{Duration, Instant};

/// A flush is local to the device.
const FLUSH: Duration = Duration::from_secs(5);

impl<F: Fabric> Bench<'_, F> {
    /// Destroys everything; the first thing that went wrong is the result.
    pub(super) fn clean(&mut self) -> Result<(), Failure> {
        let mut worst = Ok(());
        let mut note = |result: Result<(), Failure>| {
            if worst.is_ok() {
                worst = result;
            }
        };
        let conns: Vec<_> = (0..self.conns.len()).map(ConnId).collect();
        for &conn in &conns {
            if self.conns[conn.0].up {
                // It may be over.
                let _ = self.disconnect(conn);
            }
        }
        for &conn in &conns {
            if self.conns[conn.0].qp.is_some() {
                note(self.set_error(conn));
            }
        }
        note(self.flush());
        // The newest first, so that a request dies before the end that awaits its answer.
        for &conn in conns.iter().rev() {
            self.destroy(conn);
        }
        for id in std::mem::take(&mut self.listeners).into_iter().flatten() {
            self.fabric.destroy_id(id);
        }
        note(self.silence());
        self.note_async_events();
        self.sides.clear();
        self.memories.clear();
        worst
    }

    /// Polls until every work request that must complete has done so.
    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + FLUSH;
        loop {
            let owed = |queue| -> usize {
                (0..self.conns.len())
                    .map(|c| self.owed(ConnId(c), queue))
                    .sum()
            };
            let (sends, recvs) = (owed(Queue::Send), owed(Queue::Recv));
            if sends + recvs == 0 {
                return Ok(());
            }
            if self.poll_all()? == 0 {
                ensure!(
                    Instant::now() < deadline,
                    "{sends} sends and {recvs} receives did not come back within {} s of the error state",
                    FLUSH.as_secs()
                );
                std::thread::yield_now();
            }
        }
    }

    /// Destroys one end: the QP, then the id. Memory that the device never gave back goes after, and
    /// events that were read before; later ones stay, to be found by `silence`.
    pub(super) fn destroy(&mut self, conn: ConnId) {
        let end = &mut self.conns[conn.0];
        if let (Some(id), Some((control, qp))) = (&mut end.id, end.qp.take()) {
            self.fabric.destroy_qp(id, control, qp);
            if let Some(side) = end.side {
                self.drain(side);
            }
        }
        let end = &mut self.conns[conn.0];
        end.sends.clear();
        end.recvs.clear();
        if let Some(id) = end.id.take() {
            self.fabric.destroy_id(id);
            let key = end.key;
            self.events.retain(|e| e.id != key);
        }
    }

    /// Polls out completions of a QP that is gone. Others that are there are taken note of.
    fn drain(&mut self, side: SideId) {
        while self.poll(side, POLL_BATCH_MAX).is_ok_and(|n| n > 0) {}
        self.sides[side.0].lane.drain_events();
    }

    /// Every id is destroyed: nothing that is read now may name one.
    fn silence(&mut self) -> Result<(), Failure> {
        for event in std::mem::take(&mut self.events) {
            self.discard(event);
        }
        let deadline = Instant::now() + QUIET;
        while self.pump(deadline)? {}
        let late: Vec<_> = self.events.drain(..).collect();
        let kinds: Vec<_> = late.iter().map(|e| e.kind).collect();
        for event in late {
            self.discard(event);
        }
        ensure!(kinds.is_empty(), "events of destroyed ids: {kinds:?}");
        Ok(())
    }
}
