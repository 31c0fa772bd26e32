//! Both ends of a connection, brought up in the order that RC asks for.
//!
//! ```text
//!  active   resolve ─► equip (QP, receives) ─► connect ─────────────► confirm
//!  passive                        listen ─► request ─► equip ─► accept ──► Established
//! ```

use super::Failure;
use super::bench::{Bench, ConnId, SideId};
use super::side::{Posted, Queue, SideSpec};
use crate::fabric::{
    CmEvent, CmEventKind, ConnParams, Endpoint, Fabric, IdKey, PrivateData, QpGrant, QpSpec,
};
use crate::types::{Access, Transport};
use std::collections::VecDeque;
use std::time::Duration;

const RESOLVE: Duration = Duration::from_secs(5);

/// One end of a connection.
pub(super) struct Conn<F: Fabric> {
    pub(super) id: Option<F::Id>,
    pub(super) key: IdKey,
    pub(super) qp: Option<(F::QpControl, F::Qp)>,
    pub(super) side: Option<SideId>,
    /// The handshake is done as far as this end knows, so there is something to disconnect.
    pub(super) up: bool,
    /// What the device granted; stays after the QP is gone, for completions that come late.
    pub(super) grant: Option<QpGrant>,
    pub(super) sends: VecDeque<Posted>,
    pub(super) recvs: VecDeque<Posted>,
    /// Its messages go to receives of the lane.
    pub(super) shares: bool,
}

/// What a connection is made of; both ends are alike.
#[derive(Clone, Debug)]
pub(super) struct PairSpec {
    pub(super) side: SideSpec,
    pub(super) depth: u32,
    pub(super) inline_bytes: u32,
    /// Receives posted before the handshake, each of a whole slot. Not by an end that shares.
    pub(super) receives: u32,
    /// What either end's QP lets the other do.
    pub(super) access: Access,
    /// READs and atomics that either end may have outstanding.
    pub(super) fetches: u8,
    /// Memory windows of either end's QP.
    pub(super) windows: u16,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) request: Vec<u8>,
    pub(super) answer: Vec<u8>,
    /// Lanes to share, active and passive; `None` makes new ones.
    pub(super) sides: Option<(SideId, SideId)>,
}

impl Default for PairSpec {
    fn default() -> Self {
        Self {
            side: SideSpec::USUAL,
            depth: 64,
            inline_bytes: 64,
            receives: 16,
            access: Access::NONE,
            fetches: 1,
            windows: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            request: Vec::new(),
            answer: Vec::new(),
            sides: None,
        }
    }
}

impl PairSpec {
    fn params(&self, data: &[u8]) -> Result<ConnParams, Failure> {
        Ok(ConnParams {
            private_data: PrivateData::new(data).map_err(|e| Failure::new(e.to_string()))?,
            responder_resources: self.fetches,
            initiator_depth: self.fetches,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
        })
    }
}

/// A connection that is up.
pub(super) struct Pair {
    pub(super) active: ConnId,
    pub(super) passive: ConnId,
    /// Private data as it reached the passive and the active end.
    pub(super) request: PrivateData,
    pub(super) answer: PrivateData,
}

impl<F: Fabric> Bench<'_, F> {
    /// Listens and connects.
    pub(super) fn pair(&mut self, spec: &PairSpec) -> Result<Pair, Failure> {
        let mut pair = self.pair_unestablished(spec)?;
        self.established(&mut pair)?;
        Ok(pair)
    }

    /// As `pair`; the passive end's Established is not yet taken.
    pub(super) fn pair_unestablished(&mut self, spec: &PairSpec) -> Result<Pair, Failure> {
        let (listener, to) = self.listen()?;
        let active = self.resolve(&to)?;
        self.equip(active, spec, spec.sides.map(|s| s.0))?;
        self.connect(active, spec)?;
        let event = self.request(listener)?;
        let request = event.private_data;
        let passive = self.adopt(event)?;
        self.equip(passive, spec, spec.sides.map(|s| s.1))?;
        self.accept(passive, spec)?;
        let answer = self.confirm(active)?;
        Ok(Pair {
            active,
            passive,
            request,
            answer,
        })
    }

    /// Takes the passive end's Established.
    pub(super) fn established(&mut self, pair: &mut Pair) -> Result<(), Failure> {
        let key = self.conns[pair.passive.0].key;
        self.event(
            key,
            "Established at the passive end",
            &[CmEventKind::Established],
        )?;
        Ok(())
    }

    fn add(&mut self, id: F::Id) -> ConnId {
        self.conns.push(Conn {
            key: F::key(&id),
            id: Some(id),
            qp: None,
            side: None,
            up: false,
            grant: None,
            sends: VecDeque::new(),
            recvs: VecDeque::new(),
            shares: false,
        });
        ConnId(self.conns.len() - 1)
    }

    /// First steps of the active end: address and route.
    pub(super) fn resolve(&mut self, to: &Endpoint) -> Result<ConnId, Failure> {
        let id = self.fabric.resolve_address(to, RESOLVE)?;
        let conn = self.add(id);
        let key = self.conns[conn.0].key;
        self.event(key, "AddrResolved", &[CmEventKind::AddrResolved])?;
        if let Some(id) = &mut self.conns[conn.0].id {
            self.fabric.resolve_route(id, RESOLVE)?;
        }
        self.event(key, "RouteResolved", &[CmEventKind::RouteResolved])?;
        Ok(conn)
    }

    /// The passive end of a request.
    pub(super) fn adopt(&mut self, request: CmEvent<F::Id>) -> Result<ConnId, Failure> {
        let id = request
            .request
            .ok_or_else(|| Failure::new("a ConnectRequest brought no id"))?;
        Ok(self.add(id))
    }

    /// The device that an end is bound to.
    pub(super) fn device_of(&self, conn: ConnId) -> Result<F::Device, Failure> {
        let name = self.conns[conn.0]
            .id
            .as_ref()
            .and_then(|id| self.fabric.device_name(id));
        let name = name.ok_or_else(|| Failure::new("an id that is bound names no device"))?;
        let found = self
            .fabric
            .devices()
            .into_iter()
            .find(|d| F::limits(d).name == name);
        found.ok_or_else(|| Failure::new(format!("{name} is not among the fabric's devices")))
    }

    /// Whether an end keeps all of RC: a send is done when the peer's device has it, and a message
    /// waits for a receive. iWARP does neither.
    pub(super) fn is_rc(&self, conn: ConnId) -> Result<bool, Failure> {
        Ok(F::limits(&self.device_of(conn)?).transport != Transport::Iwarp)
    }

    /// Gives an end its QP and its first receives.
    pub(super) fn equip(
        &mut self,
        conn: ConnId,
        spec: &PairSpec,
        side: Option<SideId>,
    ) -> Result<(), Failure> {
        let side = match side {
            Some(side) => side,
            None => {
                let device = self.device_of(conn)?;
                self.side(&device, &spec.side)?
            }
        };
        let shares = self.sides[side.0].grant.shared_recv_depth > 0;
        let qp_spec = QpSpec {
            shared_receives: shares,
            windows: spec.windows,
            send_depth: spec.depth,
            recv_depth: spec.depth,
            inline_bytes: spec.inline_bytes,
            access: spec.access,
        };
        let end = &mut self.conns[conn.0];
        let Some(id) = &mut end.id else {
            return Err(Failure::new("the id is destroyed"));
        };
        let (control, qp, grant) = self
            .fabric
            .create_qp(id, &self.sides[side.0].cq, &qp_spec)?;
        end.qp = Some((control, qp));
        end.side = Some(side);
        end.grant = Some(grant);
        end.shares = shares;
        ensure!(
            grant.inline_bytes <= spec.inline_bytes,
            "{} inline bytes granted, {} asked for",
            grant.inline_bytes,
            spec.inline_bytes
        );
        self.receive(conn, if shares { 0 } else { spec.receives })
    }

    /// Sends the request.
    pub(super) fn connect(&mut self, conn: ConnId, spec: &PairSpec) -> Result<(), Failure> {
        let params = spec.params(&spec.request)?;
        self.with_qp(conn, |fabric, id, qp| fabric.connect(id, qp, &params))
    }

    /// Accepts a request.
    pub(super) fn accept(&mut self, conn: ConnId, spec: &PairSpec) -> Result<(), Failure> {
        let params = spec.params(&spec.answer)?;
        self.with_qp(conn, |fabric, id, qp| fabric.accept(id, qp, &params))?;
        self.conns[conn.0].up = true;
        Ok(())
    }

    /// Awaits the answer at the active end and confirms it where the fabric leaves that to us.
    pub(super) fn confirm(&mut self, conn: ConnId) -> Result<PrivateData, Failure> {
        let key = self.conns[conn.0].key;
        let answers = [CmEventKind::ConnectResponse, CmEventKind::Established];
        let event = self.event(key, "the answer at the active end", &answers)?;
        if event.kind == CmEventKind::ConnectResponse {
            self.with_qp(conn, |fabric, id, qp| fabric.confirm(id, qp))?;
        }
        self.conns[conn.0].up = true;
        Ok(event.private_data)
    }

    /// Moves an end's QP to the error state.
    pub(super) fn set_error(&mut self, conn: ConnId) -> Result<(), Failure> {
        self.with_qp(conn, |fabric, id, qp| fabric.set_error(id, qp))
    }

    /// Tells the peer that the connection ends.
    pub(super) fn disconnect(&mut self, conn: ConnId) -> Result<(), Failure> {
        self.with_qp(conn, |fabric, id, _| fabric.disconnect(id))
    }

    /// Awaits the end of a connection at one end.
    pub(super) fn disconnected(&mut self, conn: ConnId, what: &str) -> Result<(), Failure> {
        let key = self.conns[conn.0].key;
        self.event(key, what, &[CmEventKind::Disconnected])
            .map(drop)
    }

    fn with_qp<E: Into<Failure>>(
        &mut self,
        conn: ConnId,
        call: impl FnOnce(&mut F, &mut F::Id, &mut F::QpControl) -> Result<(), E>,
    ) -> Result<(), Failure> {
        let end = &mut self.conns[conn.0];
        match (&mut end.id, &mut end.qp) {
            (Some(id), Some((control, _))) => call(self.fabric, id, control).map_err(Into::into),
            _ => Err(Failure::new("the end has no id or no QP")),
        }
    }

    /// Work requests of one queue that must still complete: the receives, and signalled sends.
    pub(super) fn owed(&self, conn: ConnId, queue: Queue) -> usize {
        let end = &self.conns[conn.0];
        match queue {
            Queue::Send => end.sends.iter().filter(|p| p.signalled).count(),
            Queue::Recv => end.recvs.len(),
        }
    }
}
