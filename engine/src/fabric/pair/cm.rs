//! The connection manager of the pair fabric, in the steps and with the events of rdma_cm on IB.
//!
//! ```text
//!  active   Addressed ─route─► Routed ─connect─► Asking ──────────► Answered ─confirm─► Up
//!                                                  │ ConnectRequest     ▲ ConnectResponse │ Established
//!  passive                                         ▼                    │                 ▼
//!                                                Asked ──accept─────► Accepted ─────────► Up
//!
//!  Up ─disconnect─► Leaving    its peer: Left (Disconnected) ─disconnect, destroy─► Over (Disconnected)
//! ```
//! A step ends at once, and its event waits for the fabric of the id that it is about. There are no
//! timeouts: a peer is either here or gone, and one that is gone is heard of. Destroying an id tells
//! its peer what the kernel would tell it in that state. Imported by mod.

use super::net::{Net, Waiting};
use super::queues::QpPhase;
use crate::fabric::{CmEventKind, ConnParams, PrivateData};
use crate::limits::PRIVATE_DATA_MAX;
use std::io;

/// Nobody listens there (IBTA 12.6.7.2, as rdma_cm gives it).
const REJ_INVALID_SERVICE_ID: i32 = 8;
/// The consumer refused.
const REJ_CONSUMER_DEFINED: i32 = 28;
/// Private data of an answer, and of a rejection, on IB.
const ANSWER_BYTES: usize = 196;
const REJECT_BYTES: usize = 148;

/// Where an id is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A listener, with so many requests waiting at most.
    Listening(u32),
    Addressed,
    Routed,
    Asking,
    Asked,
    Answered,
    Accepted,
    Up,
    /// This side has disconnected, the peer has not answered.
    Leaving,
    /// The peer has disconnected or is gone, this side has not answered.
    Left,
    Over,
}

/// An id of the connection manager.
pub(super) struct IdState {
    pub(super) domain: u64,
    pub(super) phase: Phase,
    pub(super) local: String,
    pub(super) remote: Option<String>,
    /// The id at the other end.
    other: Option<u64>,
    /// Of a request: the listener that it came to.
    listener: Option<u64>,
    pub(super) qp: Option<usize>,
    /// What it told its peer.
    params: Option<ConnParams>,
}

impl IdState {
    fn new(domain: u64, phase: Phase, local: String, remote: Option<String>) -> Self {
        Self {
            domain,
            phase,
            local,
            remote,
            other: None,
            listener: None,
            qp: None,
            params: None,
        }
    }
}

fn wrong_state() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

fn peer_gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ECONNRESET)
}

impl Net {
    fn id(&mut self, key: u64) -> io::Result<&mut IdState> {
        self.ids.get_mut(&key).ok_or_else(wrong_state)
    }

    /// The id at the other end, if it is in one of `phases`.
    fn other(&self, key: u64, phases: &[Phase]) -> Option<u64> {
        let other = self.ids.get(&key)?.other?;
        let found = self.ids.get(&other)?;
        (found.other == Some(key) && phases.contains(&found.phase)).then_some(other)
    }

    fn set_phase(&mut self, key: u64, phase: Phase) {
        if let Some(id) = self.ids.get_mut(&key) {
            id.phase = phase;
        }
    }

    pub(super) fn listen(&mut self, domain: u64, name: &str, backlog: u32) -> io::Result<u64> {
        if self.listener(name).is_some() {
            return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
        }
        let key = self.number();
        let phase = Phase::Listening(backlog.max(1));
        let id = IdState::new(domain, phase, name.into(), None);
        self.ids.insert(key, id);
        Ok(key)
    }

    fn listener(&self, name: &str) -> Option<u64> {
        let listens = |id: &IdState| matches!(id.phase, Phase::Listening(_)) && id.local == name;
        let found = self.ids.iter().find(|(_, id)| listens(id));
        found.map(|(key, _)| *key)
    }

    pub(super) fn resolve(&mut self, domain: u64, name: &str) -> u64 {
        let key = self.number();
        let local = format!("pair.{key}");
        let id = IdState::new(domain, Phase::Addressed, local, Some(name.into()));
        self.ids.insert(key, id);
        self.raise(Waiting::new(key, CmEventKind::AddrResolved, 0));
        key
    }

    pub(super) fn route(&mut self, key: u64) -> io::Result<()> {
        let id = self.id(key)?;
        if id.phase != Phase::Addressed {
            return Err(wrong_state());
        }
        id.phase = Phase::Routed;
        self.raise(Waiting::new(key, CmEventKind::RouteResolved, 0));
        Ok(())
    }

    /// The QP is the id's own, and as new.
    fn check_qp(&self, key: u64, qp: usize) -> io::Result<()> {
        let own = self.ids.get(&key).and_then(|id| id.qp) == Some(qp);
        let state = self.qps.get(qp).map(|qp| qp.phase);
        (own && state == Some(QpPhase::Init))
            .then_some(())
            .ok_or_else(wrong_state)
    }

    pub(super) fn connect(&mut self, key: u64, qp: usize, params: &ConnParams) -> io::Result<()> {
        self.check_qp(key, qp)?;
        let id = self.id(key)?;
        if id.phase != Phase::Routed {
            return Err(wrong_state());
        }
        let (local, remote) = (id.local.clone(), id.remote.clone().unwrap_or_default());
        id.params = Some(*params);
        let Some(listener) = self.listener(&remote) else {
            self.set_phase(key, Phase::Over);
            let kind = CmEventKind::Rejected;
            self.raise(Waiting::new(key, kind, REJ_INVALID_SERVICE_ID));
            return Ok(());
        };
        let of_listener = |id: &&IdState| id.listener == Some(listener) && id.phase == Phase::Asked;
        let waiting = self.ids.values().filter(of_listener).count();
        let (domain, backlog) = match self.ids.get(&listener) {
            Some(l) => match l.phase {
                Phase::Listening(backlog) => (l.domain, backlog),
                _ => return Err(wrong_state()),
            },
            None => return Err(wrong_state()),
        };
        if waiting >= backlog as usize {
            self.refuse(key, &PrivateData::EMPTY);
            return Ok(());
        }
        let request = self.number();
        let mut passive = IdState::new(domain, Phase::Asked, remote, Some(local));
        passive.other = Some(key);
        passive.listener = Some(listener);
        self.ids.insert(request, passive);
        let id = self.id(key)?;
        id.phase = Phase::Asking;
        id.other = Some(request);
        let mut event = Waiting::new(listener, CmEventKind::ConnectRequest, 0)
            .with_params(params, PRIVATE_DATA_MAX);
        event.request = Some(request);
        self.raise(event);
        Ok(())
    }

    /// The attempt of `key` is over.
    fn refuse(&mut self, key: u64, data: &PrivateData) {
        self.set_phase(key, Phase::Over);
        let event = Waiting::new(key, CmEventKind::Rejected, REJ_CONSUMER_DEFINED);
        self.raise(event.with_data(data, REJECT_BYTES));
    }

    pub(super) fn accept(&mut self, key: u64, qp: usize, params: &ConnParams) -> io::Result<()> {
        self.check_qp(key, qp)?;
        if self.id(key)?.phase != Phase::Asked {
            return Err(wrong_state());
        }
        let active = self.other(key, &[Phase::Asking]).ok_or_else(peer_gone)?;
        let asked = self.id(active)?.params.ok_or_else(peer_gone)?;
        let active_qp = self.id(active)?.qp.ok_or_else(peer_gone)?;
        self.ready(qp, active_qp, params, &asked);
        let id = self.id(key)?;
        id.phase = Phase::Accepted;
        id.params = Some(*params);
        self.set_phase(active, Phase::Answered);
        let event = Waiting::new(active, CmEventKind::ConnectResponse, 0);
        self.raise(event.with_params(params, ANSWER_BYTES));
        Ok(())
    }

    pub(super) fn confirm(&mut self, key: u64, qp: usize) -> io::Result<()> {
        self.check_qp(key, qp)?;
        if self.id(key)?.phase != Phase::Answered {
            return Err(wrong_state());
        }
        let passive = self.other(key, &[Phase::Accepted]).ok_or_else(peer_gone)?;
        let told = self.id(passive)?.params.ok_or_else(peer_gone)?;
        let passive_qp = self.id(passive)?.qp.ok_or_else(peer_gone)?;
        let own = self.id(key)?.params.ok_or_else(wrong_state)?;
        self.ready(qp, passive_qp, &own, &told);
        self.set_phase(key, Phase::Up);
        self.set_phase(passive, Phase::Up);
        self.raise(Waiting::new(passive, CmEventKind::Established, 0));
        // What the passive end has sent meanwhile.
        self.run(passive_qp);
        Ok(())
    }

    /// RTR and RTS. The RNR retries of a QP are what its peer asked for (IBTA 12.7.26).
    fn ready(&mut self, qp: usize, peer: usize, own: &ConnParams, theirs: &ConnParams) {
        if let Some(qp) = self.qps.get_mut(qp) {
            qp.phase = QpPhase::Ready;
            qp.peer = Some(peer);
            qp.rnr_retry_count = theirs.rnr_retry_count;
            qp.fetch_depth = own.initiator_depth.min(theirs.responder_resources);
        }
    }

    pub(super) fn reject(&mut self, key: u64, data: &PrivateData) -> io::Result<()> {
        let id = self.id(key)?;
        if id.phase != Phase::Asked {
            return Err(wrong_state());
        }
        id.phase = Phase::Over;
        if let Some(active) = self.other(key, &[Phase::Asking]) {
            self.refuse(active, data);
        }
        Ok(())
    }

    pub(super) fn disconnect(&mut self, key: u64) -> io::Result<()> {
        match self.id(key)?.phase {
            Phase::Up => self.set_phase(key, Phase::Leaving),
            Phase::Left => self.set_phase(key, Phase::Over),
            _ => return Err(wrong_state()),
        }
        self.part_from(key);
        Ok(())
    }

    /// The peer of an id that goes hears of it, once.
    fn part_from(&mut self, key: u64) {
        for (phase, next) in [(Phase::Up, Phase::Left), (Phase::Leaving, Phase::Over)] {
            // Who has just begun to leave is not answered by itself.
            if let Some(other) = self.other(key, &[phase]) {
                self.set_phase(other, next);
                self.raise(Waiting::new(other, CmEventKind::Disconnected, 0));
                return;
            }
        }
    }

    /// Forgets an id, and the events that name it.
    pub(super) fn destroy_id(&mut self, key: u64) {
        let Some(phase) = self.ids.get(&key).map(|id| id.phase) else {
            return;
        };
        match phase {
            Phase::Asked => {
                if let Some(active) = self.other(key, &[Phase::Asking]) {
                    self.refuse(active, &PrivateData::EMPTY);
                }
            }
            Phase::Answered => {
                if let Some(passive) = self.other(key, &[Phase::Accepted]) {
                    self.refuse(passive, &PrivateData::EMPTY);
                }
            }
            Phase::Accepted => {
                if let Some(active) = self.other(key, &[Phase::Answered]) {
                    self.refuse(active, &PrivateData::EMPTY);
                }
            }
            Phase::Up | Phase::Leaving | Phase::Left => self.part_from(key),
            Phase::Listening(_)
            | Phase::Addressed
            | Phase::Routed
            | Phase::Asking
            | Phase::Over => {}
        }
        let Some(id) = self.ids.remove(&key) else {
            return;
        };
        let mut orphans = Vec::new();
        if let Some(port) = self.ports.get_mut(&id.domain) {
            port.events.retain(|event| {
                let keep = event.id != key;
                if !keep {
                    orphans.extend(event.request);
                }
                keep
            });
            port.settle();
        }
        // Requests that nobody took from the listener.
        for request in orphans {
            self.destroy_id(request);
        }
    }

    /// A fabric is closed: nobody takes its events any more.
    pub(super) fn close_port(&mut self, domain: u64) {
        let Some(port) = self.ports.remove(&domain) else {
            return;
        };
        for request in port.events.iter().filter_map(|event| event.request) {
            self.destroy_id(request);
        }
    }
}
