//! One turn of control: events are read, each is fed to its connection's machine, and what the
//! machine asks for is done.

use super::machine::{Action, Input, Machine};
use super::{Control, Handle, Request, Verdict};
use crate::fabric::{
    AsyncEvent, AsyncSubject, CmEvent, CmEventKind, Endpoint, Fabric, IdKey, PrivateData,
};
use crate::types::Nanos;
use crate::wire::{Hello, Refusal};
use crate::worker::{CloseReason, Command, Event, Turn};

/// Events of one source in one turn.
const EVENTS_MAX: usize = 64;

impl<F: Fabric> Control<F> {
    /// One pass over every source of events; never blocks.
    pub fn turn(&mut self, now: Nanos) -> Turn {
        self.now = now;
        // Nothing to take is the usual case; a broken eventfd would only cost a delayed turn.
        let _ = self.wake.drain();
        let mut work = self.read_cm_events();
        work += self.read_async_events();
        work += self.read_worker_events();
        work += self.check_deadlines();
        self.work_off();
        self.advance_removals();
        for post in &mut self.posts {
            post.flush();
        }
        self.end_workers();
        if work == 0 { Turn::Idle } else { Turn::Busy }
    }

    fn read_cm_events(&mut self) -> usize {
        for taken in 0..EVENTS_MAX {
            match self.fabric.next_event() {
                Ok(Some(event)) => self.on_cm_event(event),
                Ok(None) => return taken,
                Err(error) => {
                    tracing::error!(%error, "the connection manager's channel failed");
                    return taken;
                }
            }
            // An id must be gone before its event could be read for another.
            self.work_off();
        }
        EVENTS_MAX
    }

    fn on_cm_event(&mut self, mut event: CmEvent<F::Id>) {
        let (id, kind, status) = (event.id, event.kind, event.status);
        tracing::debug!(?kind, status, "connection manager event");
        if let Some(new_id) = event.request.take() {
            let asked = (event.responder_resources, event.initiator_depth);
            return self.on_request(id, new_id, event.private_data, asked);
        }
        let Some(handle) = self.by_id.get(&id).copied() else {
            return;
        };
        if kind == CmEventKind::DeviceRemoval {
            let listener = self.listeners.get(&handle).map(|l| &l.id);
            let conn = self.conns.get(&handle).and_then(|c| c.id.as_ref());
            let device = listener.or(conn).and_then(|id| self.fabric.device_name(id));
            self.unlisten(handle);
            if let Some(device) = device {
                self.begin_removal(device);
            }
        }
        let conn = self.conns.get_mut(&handle);
        if conn.is_some_and(|conn| !conn.hear(&event)) {
            return self.feed(handle, Input::Close(CloseReason::Local));
        }
        self.feed(handle, Input::Cm(kind, status));
    }

    fn on_request(
        &mut self,
        listener: IdKey,
        id: F::Id,
        data: PrivateData,
        (responder_resources, initiator_depth): (u8, u8),
    ) {
        let listener = self
            .by_id
            .get(&listener)
            .and_then(|h| self.listeners.get(h));
        let Some(listener) = listener else {
            // The listener went while the request was under way.
            return self.refuse(id, &PrivateData::EMPTY);
        };
        let peer = self.fabric.peer_endpoint(&id);
        let verdict = listener.welcome.decide(&Request {
            at: &listener.at,
            peer: peer.as_ref().and_then(|peer| match peer {
                Endpoint::Rdma(address) => Some(*address),
                Endpoint::Shm(_) => None,
            }),
            private_data: &data,
            responder_resources,
            initiator_depth,
        });
        let peer = peer.map_or_else(|| "a peer".into(), |e| e.to_string());
        let offer = match verdict {
            Verdict::Accept(offer) => offer,
            Verdict::Reject(answer) => {
                tracing::info!(%peer, "a request was rejected by the embedder");
                return self.refuse(id, &answer);
            }
        };
        let hello = offer.framed.then(|| Hello::parse(data.as_slice()));
        let hello = match hello.transpose() {
            Ok(hello) => hello,
            Err(error) => {
                tracing::warn!(%peer, %error, "a request was refused");
                return self.refuse(id, &PrivateData::of(&Refusal::from(error).encode()));
            }
        };
        let mut params = self.params(&offer);
        params.responder_resources = params.responder_resources.min(responder_resources);
        params.initiator_depth = params.initiator_depth.min(initiator_depth);
        let mut actions = Vec::new();
        let machine = Machine::passive(&mut actions);
        let handle = self.record(machine, id, offer, params, peer);
        if let Some(conn) = self.conns.get_mut(&handle) {
            (conn.peer_data, conn.hello) = (data, hello.map(Ok));
        }
        self.todo.push_back((handle, actions));
    }

    /// Rejects a request before anything was made for it.
    fn refuse(&mut self, mut id: F::Id, answer: &PrivateData) {
        // A request that is gone needs no answer.
        let _ = self.fabric.reject(&mut id, answer);
        self.fabric.destroy_id(id);
    }

    fn read_async_events(&mut self) -> usize {
        for taken in 0..EVENTS_MAX {
            let Some(event) = self.fabric.next_async_event() else {
                return taken;
            };
            self.on_async_event(&event);
        }
        EVENTS_MAX
    }

    fn on_async_event(&mut self, event: &AsyncEvent) {
        let AsyncEvent {
            device,
            subject,
            name,
            comm_est,
            fatal,
            removed,
        } = event;
        if *removed {
            return self.begin_removal(device.clone());
        }
        if *fatal {
            tracing::error!(%device, ?subject, %name, "asynchronous event");
        } else {
            tracing::info!(%device, ?subject, %name, "asynchronous event");
        }
        let touched: Vec<Handle> = self
            .conns
            .values()
            .filter(|c| c.device == *device)
            .filter(|c| match subject {
                AsyncSubject::Qp(number) => c.qp_number == Some(*number),
                // A port that is down may come up again within the retries.
                AsyncSubject::Port(_) => false,
                AsyncSubject::Cq | AsyncSubject::Srq | AsyncSubject::Device => true,
            })
            .map(|c| c.handle)
            .collect();
        for handle in touched {
            if *comm_est {
                if let Some(id) = self.conns.get_mut(&handle).and_then(|c| c.id.as_mut()) {
                    self.fabric.notify_established(id);
                }
            } else if *fatal {
                self.feed(handle, Input::Close(CloseReason::DeviceError));
            }
        }
    }

    fn read_worker_events(&mut self) -> usize {
        let mut work = 0;
        for worker in 0..self.posts.len() {
            let mut events = Vec::new();
            let post = &mut self.posts[worker];
            work += post
                .link
                .end
                .events
                .pop_batch(EVENTS_MAX, |e| events.push(e));
            for event in events {
                self.on_worker_event(worker, event);
                self.work_off();
            }
            let post = &mut self.posts[worker];
            if !post.lost && post.link.end.events.is_abandoned() && post.link.end.events.is_empty()
            {
                post.lost = true;
                work += 1;
                self.on_worker_lost(worker);
            }
        }
        work
    }

    fn on_worker_event(&mut self, worker: usize, event: Event<F>) {
        tracing::debug!(?event, "worker event");
        let (conn, input) = match event {
            Event::Armed(conn, posted) => {
                self.armed(conn, posted);
                (conn, Input::Armed)
            }
            Event::Refused(conn, qp) => {
                self.take_back(conn, qp);
                (conn, Input::Refused)
            }
            Event::CloseRequested(conn, reason) => (conn, Input::Close(reason)),
            Event::Stopped(conn) => (conn, Input::Stopped),
            Event::Drained { conn, qp, missing } => {
                if missing > 0 {
                    tracing::warn!(%conn, missing, "the device never completed some work requests");
                }
                self.take_back(conn, qp);
                (conn, Input::Drained)
            }
            Event::Released(conn) => (conn, Input::Released),
            Event::LaneDropped(lane) => {
                if let Some(link) = self.posts[worker].link.lanes.get_mut(usize::from(lane)) {
                    link.forget();
                }
                return;
            }
            Event::PoolLow => return self.grow_pool(worker),
        };
        if let Some(handle) = self.by_conn.get(&conn).copied() {
            self.feed(handle, input);
        }
    }

    /// How many receives stand ready is what a framed peer is told as its first credits.
    fn armed(&mut self, conn: crate::worker::ConnId, posted: u32) {
        let handle = self.by_conn.get(&conn);
        if let Some(c) = handle.and_then(|h| self.conns.get_mut(h)) {
            c.posted = posted;
        }
    }

    fn take_back(&mut self, conn: crate::worker::ConnId, qp: F::Qp) {
        let handle = self.by_conn.get(&conn);
        if let Some(c) = handle.and_then(|h| self.conns.get_mut(h)) {
            c.qp_back = Some(qp);
        }
    }

    fn on_worker_lost(&mut self, worker: usize) {
        let on_it = |c: &super::Conn<F>| c.place.is_some_and(|p| p.worker == worker);
        let handles: Vec<Handle> = self
            .conns
            .values()
            .filter(|c| on_it(c))
            .map(|c| c.handle)
            .collect();
        if !self.exit_sent {
            tracing::error!(
                worker,
                connections = handles.len(),
                "a worker's thread has ended"
            );
        }
        for handle in handles {
            self.feed(handle, Input::WorkerLost);
        }
    }

    /// Starts the clocks of connections that are new.
    fn start_clocks(&mut self) {
        let new = self.conns.values().filter(|c| c.since == Nanos::FAR);
        let new: Vec<_> = new.map(|c| (c.handle, c.machine.state())).collect();
        for (handle, state) in new {
            let deadline = self.deadline_of(state);
            if let Some(conn) = self.conns.get_mut(&handle) {
                (conn.since, conn.deadline) = (self.now, deadline);
            }
        }
    }

    fn check_deadlines(&mut self) -> usize {
        self.start_clocks();
        let due: Vec<Handle> = self
            .conns
            .values()
            .filter(|c| c.deadline <= self.now)
            .map(|c| c.handle)
            .collect();
        for handle in &due {
            if let Some(conn) = self.conns.get_mut(handle) {
                let state = conn.machine.state();
                if conn.machine.awaits_worker() {
                    tracing::warn!(?handle, %state, "a worker is late");
                }
                conn.deadline = self.now + self.timing.drain;
            }
            self.feed(*handle, Input::Timeout);
        }
        due.len()
    }

    /// Gives an input to a connection's machine; what it asks for is done by `work_off`.
    pub(super) fn feed(&mut self, handle: Handle, input: Input) {
        let Some(conn) = self.conns.get_mut(&handle) else {
            return;
        };
        let (before, ended) = (conn.machine.state(), conn.machine.cause().is_some());
        let mut actions = Vec::new();
        conn.machine.on(input, &mut actions);
        let after = conn.machine.state();
        if conn.machine.cause().is_some() && !ended {
            conn.waited = self.now - conn.since;
        }
        if after != before {
            tracing::debug!(?handle, ?input, ?before, ?after, "connection");
            let deadline = self.deadline_of(after);
            if let Some(conn) = self.conns.get_mut(&handle) {
                (conn.deadline, conn.since) = (deadline, self.now);
            }
        }
        if !actions.is_empty() {
            self.todo.push_back((handle, actions));
        }
    }

    /// Does what machines asked for. A failure is fed back, and voids the rest of that list.
    pub(super) fn work_off(&mut self) {
        while let Some((handle, actions)) = self.todo.pop_front() {
            for action in actions {
                if let Err(error) = self.execute(handle, action) {
                    tracing::debug!(?handle, ?action, %error, "an action failed");
                    if let Some(conn) = self.conns.get_mut(&handle) {
                        conn.error = Some(error);
                    }
                    self.feed(handle, Input::ActionFailed);
                    break;
                }
                debug_assert!(action == Action::Finish || self.conns.contains_key(&handle));
            }
        }
    }

    fn end_workers(&mut self) {
        if self.stopping && self.conns.is_empty() && !self.exit_sent {
            self.exit_sent = true;
            for post in &mut self.posts {
                post.send(Command::Exit);
            }
        }
    }
}
