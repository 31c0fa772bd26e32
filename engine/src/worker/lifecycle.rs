//! The worker's part in the life of a connection: adopt, announce, stop, flush, release.
//!
//! Every step is answered with an event; control takes the next step when it has read the answer, so
//! a connection has one owner at any time.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::connection::Phase;
use super::windows::Windows;
use super::wr_id::{self, Kind, key_of};
use super::{CloseReason, Command, ConnId, Event, Handover, Io, Outcome, Service, Worker};
use crate::fabric::{Fabric, WcStatus};
use crate::limits::MAILBOX_BATCH_MAX;
use crate::ring::spsc::{PopError, PushError};
use std::time::Duration;

impl<F: Fabric, S: Service> Worker<F, S> {
    pub(super) fn serve_commands(&mut self) -> usize {
        for taken in 0..MAILBOX_BATCH_MAX {
            match self.mailbox.commands.pop() {
                Ok(command) => self.obey(command),
                Err(PopError::Empty) => return taken,
                Err(PopError::Abandoned) => {
                    // Control is gone: nobody can finish what is open.
                    self.done = true;
                    return taken;
                }
            }
        }
        MAILBOX_BATCH_MAX
    }

    #[cold]
    fn obey(&mut self, command: Command<F>) {
        match command {
            Command::Adopt(handover) => self.adopt(handover),
            Command::Established(conn, peer) => {
                if let Some(c) = self.core.table.get(conn) {
                    c.peer.get_or_insert(peer);
                    self.announce(conn.index);
                    self.ring_doorbells();
                }
            }
            Command::Stop(conn, reason) => self.stop(conn, reason),
            Command::Flush(conn, time) => self.flush(conn, time),
            Command::QpGone(conn) => self.release(conn),
            Command::DropLane(lane) => self.drop_lane(lane),
            Command::Grow(chunk) => self.grow(chunk),
            Command::NotGrown { again } => self.not_grown(again),
            Command::Exit => self.done = true,
        }
    }

    #[cold]
    fn adopt(&mut self, handover: Handover<F>) {
        let Handover {
            conn,
            lane,
            qp,
            grant,
            windows,
            peer,
        } = handover;
        let index = conn.index;
        let Some(lane_state) = self.lanes.get(usize::from(lane)) else {
            return self.outbox.push_back(Event::Refused(conn, qp));
        };
        let fits = usize::from(index) < self.core.table.len() && {
            let place = self.core.table.at(index);
            place.phase == Phase::Vacant && place.lane == lane
        };
        if !fits {
            return self.outbox.push_back(Event::Refused(conn, qp));
        }
        let lkey = lane_state.lkey;
        // The queue is as full as the pool allows before a peer hears of its share.
        let shared = lane_state.shared.is_some();
        if shared && !self.is_shared_ready(lane) {
            return self.outbox.push_back(Event::Refused(conn, qp));
        }
        let c = self.core.table.at(index);
        let (send, recv) = (wr_id::base(Kind::Send, conn), wr_id::base(Kind::Recv, conn));
        c.id = conn;
        (c.send_key, c.recv_key) = (key_of(send), key_of(recv));
        c.number = grant.number;
        c.phase = Phase::Open;
        c.peer = peer;
        c.windows = Windows::from(windows);
        c.message_bytes_max = grant.message_bytes_max;
        (c.announced, c.reason, c.asked) = (false, None, false);
        c.sends.open(send, lkey, &grant);
        c.recvs.open(recv, lane, lkey);
        self.qps[usize::from(index)] = Some(qp);
        let posted = self.post_vacant(index);
        let c = self.core.table.at(index);
        if c.recvs.posted_total() == 0 {
            // Nothing of it is with the NIC, so the place is free again at once.
            c.vacate();
            if let Some(qp) = self.qps[usize::from(index)].take() {
                self.outbox.push_back(Event::Refused(conn, qp));
            }
            return;
        }
        if c.recvs.vacant() > 0 && !c.hungry {
            c.hungry = true;
            self.hungry.push(index);
            self.repost_due = true;
        }
        let lane_state = &mut self.lanes[usize::from(lane)];
        lane_state.connections += 1;
        if let Some(shared) = &mut lane_state.shared {
            shared.join(grant.number, index);
        }
        self.core.counters.handovers.add(1);
        let ready = self.core.table.at(index).recvs.posted_total();
        self.outbox.push_back(Event::Armed(conn, ready));
        if let Err(errno) = posted {
            self.core
                .table
                .at(index)
                .blame(CloseReason::PostRefused(errno));
            self.ask_close(index);
        }
    }

    /// The device goes away: nothing of it may stay, or the kernel waits for ever.
    fn drop_lane(&mut self, lane: u8) {
        if let Some(state) = self.lanes.get_mut(usize::from(lane)) {
            debug_assert!(state.connections == 0);
            (state.lane, state.registration, state.polled) = (None, None, 0);
            // No QP is left that could use what the queue still has.
            state.shared = None;
        }
        for chunk in &mut self.chunks {
            if let Some(registration) = chunk.registrations.get_mut(usize::from(lane)) {
                *registration = None;
            }
        }
        self.exposures.forget_lane(usize::from(lane));
        self.outbox.push_back(Event::LaneDropped(lane));
    }

    /// Asks control, once, to close the connection. Nothing is posted on it from here on.
    #[cold]
    pub(super) fn ask_close(&mut self, index: u16) {
        let c = self.core.table.at(index);
        if c.asked || c.phase == Phase::Vacant {
            return;
        }
        c.asked = true;
        if c.phase.is_up() {
            c.phase = Phase::Stopped;
        }
        let reason = c.reason.unwrap_or(CloseReason::Local);
        self.outbox.push_back(Event::CloseRequested(c.id, reason));
    }

    fn stop(&mut self, conn: ConnId, reason: CloseReason) {
        let Some(c) = self.core.table.get(conn) else {
            return;
        };
        c.blame(reason);
        c.asked = true;
        if c.phase.is_up() {
            c.phase = Phase::Stopped;
        }
        while let Some((entry, special)) = self.core.table.at(conn.index).sends.take_unposted() {
            self.give_back(conn.index, entry, special, Outcome::NeverPosted);
        }
        self.outbox.push_back(Event::Stopped(conn));
    }

    fn flush(&mut self, conn: ConnId, time: Duration) {
        let deadline = self.core.now + time;
        let Some(c) = self.core.table.get(conn) else {
            return;
        };
        // Nothing says when the last shared receive of the QP is in, and destroying it may take its
        // completions away: what there is by now is served first.
        let lane = c.lane;
        self.poll_out_shared(lane);
        let c = self.core.table.at(conn.index);
        c.phase = Phase::Flushing(deadline);
        if !c.timed {
            c.timed = true;
            self.core.timed.push(conn.index);
        }
        self.check_drained(conn.index);
    }

    /// Gives the posting half back when everything outstanding came in.
    #[inline]
    pub(super) fn check_drained(&mut self, index: u16) {
        let c = self.core.table.at(index);
        if matches!(c.phase, Phase::Flushing(_)) && c.outstanding() == 0 {
            self.drained(index);
        }
    }

    #[cold]
    fn drained(&mut self, index: u16) {
        let c = self.core.table.at(index);
        c.phase = Phase::Drained;
        let (conn, missing) = (c.id, c.outstanding());
        if let Some(qp) = self.qps[usize::from(index)].take() {
            self.outbox.push_back(Event::Drained { conn, qp, missing });
        }
    }

    /// The QP is destroyed: what did not complete never will, and a completion that is still in the CQ
    /// carries a generation that nobody has any more.
    fn release(&mut self, conn: ConnId) {
        let Some(c) = self.core.table.get(conn) else {
            return;
        };
        debug_assert!(c.phase == Phase::Drained);
        // Its number may be another's soon.
        let (lane, number) = (c.lane, c.number);
        self.poll_out_shared(lane);
        if let Some(shared) = &mut self.lanes[usize::from(lane)].shared {
            shared.part(number);
        }
        while self.retire(conn.index, Outcome::Unknown(WcStatus::Flushed)) {}
        let c = self.core.table.at(conn.index);
        c.vacate();
        self.lanes[usize::from(c.lane)].connections -= 1;
        let (announced, reason) = (c.announced, c.reason.unwrap_or(CloseReason::Local));
        if announced {
            self.service
                .disconnected(&mut Io::new(&mut self.core), conn, reason);
        }
        self.outbox.push_back(Event::Released(conn));
    }

    pub(super) fn check_deadlines(&mut self) -> usize {
        let mut work = 0;
        let mut i = 0;
        while i < self.core.timed.len() {
            let index = self.core.timed[i];
            let now = self.core.now;
            let c = self.core.table.at(index);
            let keep = match c.phase {
                Phase::Closing(deadline) if now < deadline && !c.sends.is_empty() => true,
                Phase::Closing(_) => {
                    self.ask_close(index);
                    work += 1;
                    false
                }
                Phase::Flushing(deadline) if now < deadline => true,
                Phase::Flushing(_) => {
                    self.drained(index);
                    work += 1;
                    false
                }
                Phase::Vacant | Phase::Open | Phase::Stopped | Phase::Drained => false,
            };
            if keep {
                i += 1;
            } else {
                self.core.table.at(index).timed = false;
                self.core.timed.swap_remove(i);
            }
        }
        work
    }

    /// Moves events to the ring; what does not fit waits for the next turn.
    pub(super) fn send_events(&mut self) {
        while let Some(event) = self.outbox.pop_front() {
            match self.mailbox.events.push(event) {
                Ok(()) => {}
                Err(PushError::Full(event)) => {
                    self.outbox.push_front(event);
                    return;
                }
                Err(PushError::Abandoned(_)) => self.done = true,
            }
        }
    }

    /// Something other than a completion or command can come due.
    pub(super) fn is_waiting(&self) -> bool {
        !self.core.timed.is_empty() || !self.outbox.is_empty()
    }
}
