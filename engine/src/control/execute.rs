//! Doing what a connection's machine asks for: calls of the fabric and commands to workers.

use super::links::place;
use super::machine::{Action, Cause};
use super::{Conn, ConnectError, Control, Handle, Notice};
use crate::fabric::{Endpoint, Fabric, FabricError, QpSpec, Step};
use crate::worker::{CloseReason, Command, ConnId, Handover, Peer, Role};
use std::io;

impl<F: Fabric> Control<F> {
    pub(super) fn execute(&mut self, handle: Handle, action: Action) -> Result<(), FabricError> {
        let timing = self.timing;
        match action {
            Action::Connect | Action::Accept => self.say_hello(handle)?,
            Action::Reject => self.turn_away(handle),
            _ => {}
        }
        let Some(conn) = self.conns.get_mut(&handle) else {
            return Ok(());
        };
        let Some(id) = conn.id.as_mut() else {
            return Ok(());
        };
        match (action, conn.qp.as_mut()) {
            (Action::ResolveRoute, _) => self.fabric.resolve_route(id, timing.resolve),
            (Action::CreateQp, _) => self.create_qp(handle),
            (Action::Connect, Some(qp)) => self.fabric.connect(id, qp, &conn.params),
            (Action::Accept, Some(qp)) => self.fabric.accept(id, qp, &conn.params),
            (Action::Confirm, Some(qp)) => self.fabric.confirm(id, qp),
            (Action::Announce, _) => {
                self.announce(handle);
                Ok(())
            }
            (Action::Reject, _) => Ok(()),
            (Action::TellStop, _) => {
                let reason = conn
                    .machine
                    .cause()
                    .map_or(CloseReason::Local, Cause::reason);
                self.tell(handle, |conn| Command::Stop(conn, reason));
                Ok(())
            }
            (Action::Disconnect, _) => {
                // Where the peer has ended it already, there is nothing to say.
                let _ = self.fabric.disconnect(id);
                Ok(())
            }
            (Action::FlushQp, qp) => {
                if let Some(qp) = qp
                    && let Err(error) = self.fabric.set_error(id, qp)
                {
                    // The worker's deadline ends the wait, and destroying the QP the rest.
                    tracing::debug!(?handle, %error, "the QP did not take ERR");
                }
                self.tell(handle, |conn| Command::Flush(conn, timing.drain));
                Ok(())
            }
            (Action::DestroyQp, _) => {
                self.destroy_qp(handle);
                self.tell(handle, Command::QpGone);
                Ok(())
            }
            (Action::DropQp, _) => {
                self.destroy_qp(handle);
                Ok(())
            }
            (Action::Finish, _) => {
                self.finish(handle);
                Ok(())
            }
            // A machine asks for these only between CreateQp and DestroyQp.
            (Action::Connect | Action::Accept | Action::Confirm, None) => {
                let error = io::Error::from(io::ErrorKind::NotConnected);
                Err(FabricError::new(Step::Connect, &conn.peer_endpoint, error))
            }
        }
    }

    fn tell(&mut self, handle: Handle, command: impl FnOnce(ConnId) -> Command<F>) {
        let Some(place) = self.conns.get(&handle).and_then(|c| c.place) else {
            return;
        };
        self.posts[place.worker].send(command(place.conn));
    }

    fn create_qp(&mut self, handle: Handle) -> Result<(), FabricError> {
        let Some(conn) = self.conns.get_mut(&handle) else {
            return Ok(());
        };
        let Some(id) = conn.id.as_mut() else {
            return Ok(());
        };
        let peer_endpoint = &conn.peer_endpoint;
        conn.device = self.fabric.device_name(id).ok_or_else(|| {
            let error = io::Error::from(io::ErrorKind::NotFound);
            FabricError::new(Step::CreateQp, peer_endpoint, error)
                .advise("The address belongs to no RDMA device: see `spinwire devices`")
        })?;
        let wanted = conn.offer.worker;
        let spot = place(&mut self.posts, &conn.device, wanted).ok_or_else(|| {
            let error = io::Error::from(io::ErrorKind::QuotaExceeded);
            let (who, which) = match wanted {
                None => ("No worker has room".into(), "a [[worker]]".into()),
                Some(n) => (
                    format!("Worker {n}, which was asked for, has no room"),
                    format!("that [[worker]] (the first is 0, of {})", self.posts.len()),
                ),
            };
            FabricError::new(Step::CreateQp, &conn.device, error).advise(format!(
                "{who} for another connection on this device: raise [queues] connections_max, or \
                 add the device to {which}",
            ))
        })?;
        conn.place = Some(spot);
        self.by_conn.insert(spot.conn, handle);
        let lane = &self.posts[spot.worker].link.lanes[spot.lane];
        let spec = QpSpec {
            access: conn.offer.access,
            windows: conn.offer.windows,
            ..lane.spec
        };
        let cq = lane.cq.as_ref().ok_or_else(|| {
            let error = io::Error::from(io::ErrorKind::NotFound);
            FabricError::new(Step::CreateQp, &conn.device, error)
        })?;
        let (control, qp, grant) = self.fabric.create_qp(id, cq, &spec)?;
        conn.qp = Some(control);
        conn.qp_number = Some(grant.number);
        let peer = match conn.machine.role() {
            Role::Active => None,
            Role::Passive => Some(peer_of(&self.fabric, conn)),
        };
        tracing::debug!(
            conn = %spot.conn, device = %conn.device, qp = grant.number.0,
            inline = grant.inline_bytes, "QP created"
        );
        let lane = u8::try_from(spot.lane).unwrap_or(u8::MAX);
        let handover = Handover {
            conn: spot.conn,
            lane,
            windows: F::window_keys(&qp),
            qp,
            grant,
            peer,
        };
        self.posts[spot.worker].send(Command::Adopt(handover));
        Ok(())
    }

    fn announce(&mut self, handle: Handle) {
        let Some(conn) = self.conns.get_mut(&handle) else {
            return;
        };
        let Some(place) = conn.place else { return };
        conn.announced = true;
        let peer = peer_of(&self.fabric, conn);
        let notice = match conn.machine.role() {
            Role::Active => Notice::Connected(handle, place.conn),
            Role::Passive => Notice::Accepted(place.conn),
        };
        tracing::info!(conn = %place.conn, peer = %conn.peer_endpoint, device = %conn.device, "connected");
        self.notices.push_back(notice);
        self.tell(handle, |c| Command::Established(c, peer));
    }

    fn destroy_qp(&mut self, handle: Handle) {
        let Some(conn) = self.conns.get_mut(&handle) else {
            return;
        };
        // The device may give the number to another QP at once.
        conn.qp_number = None;
        match (conn.qp.take(), conn.qp_back.take(), conn.id.as_mut()) {
            (Some(control), Some(qp), Some(id)) => self.fabric.destroy_qp(id, control, qp),
            // The posting half went down with its worker: the last half destroys the QP.
            (control, qp, _) => drop((control, qp)),
        }
    }

    fn finish(&mut self, handle: Handle) {
        let Some(mut conn) = self.conns.remove(&handle) else {
            return;
        };
        drop((conn.qp.take(), conn.qp_back.take()));
        if let Some(id) = conn.id.take() {
            self.by_id.remove(&F::key(&id));
            self.fabric.destroy_id(id);
        }
        if let Some(place) = conn.place {
            self.by_conn.remove(&place.conn);
            self.posts[place.worker].give_back(place.conn, place.lane);
        }
        self.report(conn);
    }

    fn report(&mut self, conn: Conn<F>) {
        let cause = conn
            .machine
            .cause()
            .unwrap_or(Cause::Close(CloseReason::Local));
        let peer = conn.peer_endpoint;
        match (conn.announced, conn.place) {
            (true, Some(place)) => {
                let reason = cause.reason();
                tracing::info!(conn = %place.conn, %peer, %reason, "closed");
                self.notices.push_back(Notice::Closed(place.conn, reason));
            }
            _ => {
                let error = match (conn.hello, conn.error) {
                    (Some(Err(source)), _) => ConnectError::Handshake {
                        peer: peer.clone(),
                        source,
                    },
                    (_, Some(error)) if matches!(cause, Cause::Action(_)) => {
                        ConnectError::from_action(error, peer.clone())
                    }
                    _ => ConnectError::from_cause(
                        cause,
                        peer.clone(),
                        conn.device,
                        conn.waited,
                        conn.peer_data,
                    ),
                };
                match conn.machine.role() {
                    Role::Active => self.notices.push_back(Notice::Failed(conn.handle, error)),
                    Role::Passive => tracing::warn!(%peer, %error, "a request was not served"),
                }
            }
        }
    }
}

fn peer_of<F: Fabric>(fabric: &F, conn: &Conn<F>) -> Peer {
    let address = conn
        .id
        .as_ref()
        .and_then(|id| fabric.peer_endpoint(id))
        .and_then(|e| match e {
            Endpoint::Rdma(address) => Some(address),
            Endpoint::Shm(_) => None,
        });
    Peer {
        role: conn.machine.role(),
        address,
        private_data: conn.peer_data,
        initiator_depth: conn.params.initiator_depth,
        responder_resources: conn.params.responder_resources,
        tag: conn.offer.tag,
        membership: conn.offer.membership,
        hello: conn.hello.and_then(Result::ok),
    }
}
