//! What control does between the door and the lanes.
//!
//! ```text
//!  door ─► ConnectResponse, Ready ─► ready ─► Step::Ready ─► lane      the peer's inbox, to send to
//!       ─► RegionAsked ─► give ─► Grant ─► door                        a region of ours, or none
//!       ─► RegionAnswer ─► answered ─► Step::Region ─► lane            a region of the peer's
//!  lane ─► Question ─► put_questions ─► door
//! ```
//! Imports door, link, registry. Imported by fabric.

use super::door::{CmNews, Grant, GrantedRegion, Offer, PeerEnd};
use super::handles::{ShmCq, ShmId, ShmQpControl};
use super::inbox::{Inlet, Outlet};
use super::link::Step as LaneStep;
use super::peer::{Mapped, Peer};
use super::switchboard::Question;
use super::{Geometry, Link, Shm, maps, wrong_state};
use crate::fabric::{CmEvent, CmEventKind, ConnParams, FabricError, IdKey, Step};
use crate::sys::bell::Bell;
use crate::sys::memfd::Memfd;
use crate::types::{Access, QpNum, Rkey};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Keys that a peer may ask for in vain.
pub(super) const REFUSED_MAX: u32 = 2;

/// The inbox of a QP, and its bell with the peer's end of it, where the lane sleeps.
pub(super) type Inbox = (Arc<Memfd>, Inlet, Option<(Bell, OwnedFd)>);

impl Shm {
    pub(super) fn own(&self, key: u64) -> ShmId {
        ShmId {
            door: self.door.clone(),
            key,
        }
    }

    pub(super) fn qp_number(&mut self) -> QpNum {
        let links = &self.links;
        let has = |link: &Link, number| link.qp.upgrade().is_some_and(|qp| qp.number == number);
        let taken = |number| links.values().any(|link| has(link, number));
        self.qp_numbers.next(taken)
    }

    /// Lets go of what lanes have buried.
    pub(super) fn sweep(&mut self) {
        self.lanes.retain(|lane| lane.strong_count() > 0);
        for lane in &self.lanes {
            if let Some(lane) = lane.upgrade() {
                lane.sweep();
            }
        }
        self.links.retain(|_, link| link.qp.strong_count() > 0);
    }

    /// The inbox of a QP, and the bell by which its peer wakes the lane.
    pub(super) fn inbox(cq: &ShmCq) -> io::Result<Inbox> {
        let geometry = Geometry::DEFAULT;
        let memfd = Arc::new(Memfd::create("spinwire-inbox", geometry.bytes())?);
        let memory = maps::ours(&memfd, geometry).ok_or(io::ErrorKind::InvalidInput)?;
        let bell = cq.link.has_events().then(Bell::new).transpose()?;
        Ok((memfd, Inlet::new(memory), bell))
    }

    /// The QP of an id can send: what its peer told is known.
    pub(super) fn ready(&mut self, key: u64, end: PeerEnd) -> io::Result<()> {
        let link = self.links.get(&key);
        let qp = link.and_then(|link| Some((link.qp.upgrade()?, link.params?)));
        let Some((qp, own)) = qp else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        tracing::debug!(
            qp = qp.number.0,
            peer = end.qp.0,
            "the peer's inbox is mapped"
        );
        let theirs = end.params;
        let retries = own.rnr_retry_count;
        let fetches = own.initiator_depth.min(theirs.responder_resources);
        let peer = maps::theirs(end.inbox, end.geometry).and_then(|memory| {
            let outlet = Outlet::new(memory);
            Peer::new(outlet, end.board, end.access, end.bell, (retries, fetches))
        });
        let peer = peer.ok_or(io::ErrorKind::InvalidData)?;
        qp.tell(LaneStep::Ready(Box::new(peer)));
        Ok(())
    }

    /// What a peer asks for by a key, as far as the registration and the QP both allow it.
    pub(super) fn grant(&self, key: u64, rkey: Rkey) -> Option<Grant> {
        let offered = self.registry.offered(rkey)?;
        let by_qp = self.links.get(&key)?.access;
        let mut access = Access::NONE;
        for right in [
            Access::REMOTE_READ,
            Access::REMOTE_WRITE,
            Access::REMOTE_ATOMIC,
        ] {
            if offered.access.contains(right) && by_qp.contains(right) {
                access = access | right;
            }
        }
        access.is_remote().then_some(())?;
        Some(Grant {
            memfd: Arc::clone(offered.region.memfd()?),
            seal: !offered.access.is_remote_writable(),
            base: offered.region.base().addr().get() as u64,
            len: offered.region.len() as u64,
            access,
        })
    }

    /// Answers a peer that asks for a key.
    pub(super) fn give(&mut self, key: u64, rkey: Rkey) {
        let grant = self.grant(key, rkey);
        let refused = grant.is_none();
        // Where it fails the connection ends, which the door tells.
        let _ = self.door.lock().answer_region(key, rkey, grant);
        if refused && let Some(link) = self.links.get_mut(&key) {
            link.refused += 1;
            if link.refused > REFUSED_MAX {
                // A refusal ends the QP of an honest peer. This one guesses.
                tracing::warn!(key, "a peer guesses keys: disconnected");
                let _ = self.door.lock().disconnect(key);
            }
        }
    }

    pub(super) fn answered(&self, key: u64, rkey: Rkey, grant: Option<GrantedRegion>) {
        let mapped = grant.and_then(|granted| Mapped::new(rkey, granted));
        self.tell(key, LaneStep::Region(rkey, mapped.map(Box::new)));
    }

    /// Tells the lane of the QP of an id.
    fn tell(&self, key: u64, step: LaneStep) {
        if let Some(qp) = self.links.get(&key).and_then(|link| link.qp.upgrade()) {
            qp.tell(step);
        }
    }

    /// Asks peers for what lanes want, and lets go of what they have buried.
    pub(super) fn put_questions(&mut self) {
        let (questions, graves) = self.switchboard.take_questions();
        for Question { key, rkey } in questions {
            if self.door.lock().ask_region(key, rkey).is_err() {
                // The connection has ended.
                self.tell(key, LaneStep::Lost);
            }
        }
        if graves {
            self.sweep();
        }
    }

    pub(super) fn event(&mut self, news: CmNews) -> CmEvent<ShmId> {
        if news.kind == CmEventKind::Disconnected {
            // What was asked is answered no more.
            self.tell(news.key, LaneStep::Lost);
        }
        if let (Some(peer), Some(link)) = (news.peer, self.links.get_mut(&news.key)) {
            link.peer = Some(peer);
        }
        CmEvent {
            id: IdKey(news.key),
            kind: news.kind,
            status: news.status,
            private_data: news.private_data,
            responder_resources: news.responder_resources,
            initiator_depth: news.initiator_depth,
            request: news.request.map(|key| self.own(key)),
        }
    }

    /// The offer of a QP that is the id's own, once.
    pub(super) fn offer(
        &mut self,
        id: &ShmId,
        qp: &mut ShmQpControl,
        params: &ConnParams,
        step: Step,
    ) -> Result<Offer, FabricError> {
        let link = self.links.get_mut(&id.key);
        let link = link.filter(|_| qp.key == id.key);
        let link = link.ok_or_else(|| wrong_state(step))?;
        let offer = qp.offer.take().ok_or_else(|| wrong_state(step))?;
        link.params = Some(*params);
        Ok(offer)
    }
}
