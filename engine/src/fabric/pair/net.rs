//! The tables of a hub: everything that its fabrics have made, named by number.
//!
//! ```text
//!  Hub ─► Mutex<Net> ─┬─ ports   one an open fabric: its events
//!                     ├─ ids     of the connection manager            (cm.rs)
//!                     ├─ cqs, qps                            (cq.rs, queues.rs, execute.rs)
//!                     └─ regions that were registered                 (regions.rs)
//! ```
//! The handles that callers hold (`handles.rs`) are numbers that take their entry out when they are
//! dropped. Imports the other files of this folder. Imported by all of them.

use super::cm::IdState;
use super::cq::CqState;
use super::queues::QpState;
use super::regions::Registered;
use crate::fabric::soft::QpNumbers;
use crate::fabric::{AsyncEvent, AsyncSubject, CmEventKind, ConnParams, PrivateData};
use crate::sys::eventfd::EventFd;
use crate::types::QpNum;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Name of the one device that every fabric of this kind has.
pub(super) const DEVICE: &str = "pair0";

/// What fabrics of one process meet at. Clones are handles of the same.
#[derive(Clone, Default)]
pub struct Hub(Arc<Mutex<Net>>);

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let net = self.lock();
        f.debug_struct("Hub")
            .field("fabrics", &net.ports.len())
            .field("ids", &net.ids.len())
            .field("qps", &net.qps.len())
            .finish_non_exhaustive()
    }
}

impl Hub {
    /// A hub that nobody has joined.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What is alive here: ids, QPs, CQs and registered regions. All zero when everything that the
    /// fabrics made was destroyed.
    #[must_use]
    pub fn alive(&self) -> Alive {
        let net = self.lock();
        Alive {
            ids: net.ids.len(),
            qps: net.qps.len(),
            cqs: net.cqs.len(),
            regions: net.regions.len(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Net> {
        // Nothing under the lock panics, and a caller that panics elsewhere still destroys.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Numbers of what is alive at a [`Hub`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alive {
    /// Ids of the connection manager, listeners too.
    pub ids: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Registrations.
    pub regions: usize,
}

/// Entries that are found by a small number, which is used again when its entry is gone.
pub(super) struct Slab<T>(Vec<Option<T>>);

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Slab<T> {
    pub(super) fn insert(&mut self, value: T) -> usize {
        let free = self.0.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[at] = Some(value);
        at
    }

    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<&T> {
        self.0.get(at)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.0.get_mut(at)?.as_mut()
    }

    pub(super) fn remove(&mut self, at: usize) -> Option<T> {
        self.0.get_mut(at)?.take()
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().flatten().count()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        let all = self.0.iter().enumerate();
        all.filter_map(|(at, value)| Some((at, value.as_ref()?)))
    }
}

/// An event that waits. The id of a request is made into a handle when the event is taken.
pub(super) struct Waiting {
    pub(super) id: u64,
    pub(super) kind: CmEventKind,
    pub(super) status: i32,
    pub(super) private_data: PrivateData,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) request: Option<u64>,
}

impl Waiting {
    pub(super) fn new(id: u64, kind: CmEventKind, status: i32) -> Self {
        Self {
            id,
            kind,
            status,
            private_data: PrivateData::EMPTY,
            responder_resources: 0,
            initiator_depth: 0,
            request: None,
        }
    }

    /// With private data, padded with zeros to `bytes` as IB does.
    pub(super) fn with_data(mut self, data: &PrivateData, bytes: usize) -> Self {
        let mut padded = [0; u8::MAX as usize];
        let given = data.as_slice();
        padded[..given.len()].copy_from_slice(given);
        self.private_data = PrivateData::received(&padded[..bytes.max(given.len())]);
        self
    }

    pub(super) fn with_params(self, params: &ConnParams, bytes: usize) -> Self {
        let mut event = self.with_data(&params.private_data, bytes);
        event.responder_resources = params.responder_resources;
        event.initiator_depth = params.initiator_depth;
        event
    }
}

/// An open fabric, as events see it.
pub(super) struct Port {
    pub(super) events: VecDeque<Waiting>,
    pub(super) bell: Arc<EventFd>,
    pub(super) async_events: VecDeque<AsyncEvent>,
    pub(super) async_bell: Arc<EventFd>,
}

impl Port {
    /// The descriptors are readable just as long as something waits. Signalling and draining an
    /// eventfd of ours cannot fail.
    pub(super) fn settle(&self) {
        for (bell, empty) in [
            (&self.bell, self.events.is_empty()),
            (&self.async_bell, self.async_events.is_empty()),
        ] {
            let _ = if empty {
                bell.drain().map(drop)
            } else {
                bell.signal()
            };
        }
    }
}

/// All tables. A fabric is known by the number of its protection domain, never used again.
#[derive(Default)]
pub(super) struct Net {
    pub(super) ports: BTreeMap<u64, Port>,
    pub(super) ids: BTreeMap<u64, IdState>,
    pub(super) cqs: Slab<CqState>,
    pub(super) qps: Slab<QpState>,
    pub(super) regions: Slab<Registered>,
    /// QPs whose oldest operation waits for the peer.
    pub(super) stalled: VecDeque<usize>,
    last: u64,
    qp_numbers: QpNumbers,
}

impl Net {
    /// A number for a domain, id or registration that nothing else of the hub ever had.
    pub(super) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(super) fn qp_number(&mut self) -> QpNum {
        let qps = &self.qps;
        let taken = |number| qps.iter().any(|(_, qp)| qp.number == number);
        self.qp_numbers.next(taken)
    }

    /// Queues an event for the fabric of its id.
    pub(super) fn raise(&mut self, event: Waiting) {
        let Some(id) = self.ids.get(&event.id) else {
            return;
        };
        if let Some(port) = self.ports.get_mut(&id.domain) {
            port.events.push_back(event);
            port.settle();
        }
    }

    /// A QP is lost to its peer's doing (`IBV_EVENT_QP_ACCESS_ERR` and its like).
    pub(super) fn raise_fatal(&mut self, domain: u64, qp: QpNum, name: &'static str) {
        if let Some(port) = self.ports.get_mut(&domain) {
            port.async_events.push_back(AsyncEvent {
                device: DEVICE.into(),
                subject: AsyncSubject::Qp(qp),
                name: name.into(),
                comm_est: false,
                fatal: true,
                removed: false,
            });
            port.settle();
        }
    }
}
