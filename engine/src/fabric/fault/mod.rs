//! Any fabric, with faults by the dice: what RC may show, and nothing that it may not.
//!
//! ```text
//!  control ─► Fault<F> ── its own events, some late or turned into errors ─► F
//!  worker  ─► FaultLane ── posts refused, late or made to fail; completions late ─► F::Lane
//! ```
//! Completions and posts may be late, a post may be refused, an operation may fail, executed or not, a
//! peer may fall silent, a handshake may come to nothing ([`Profile`]). But nothing is lost without a word,
//! no success is told that was none, and nothing completes that was not posted: a failed operation is
//! one that the fabric underneath was made to fail, so the QP is truly in error, and its peer finds it so.
//! A QP that is silent does what it did not do until it is set to error, and then flushes.
//!
//! The same seed over a deterministic fabric driven from one thread gives the same faults. Imports the
//! fabric traits, memory and sys. For tests of what lies above.
//!
//! ```
//! use spinwire::fabric::fault::{Fault, Profile};
//! use spinwire::fabric::pair::{Hub, Pair};
//! let fabric = Fault::new(Pair::open(&Hub::new())?, 7, Profile::all())?;
//! assert!(format!("{fabric:?}").contains("seed: 7"));
//! # Ok::<(), spinwire::fabric::FabricError>(())
//! ```

mod book;
mod events;
mod lane;
mod profile;
mod qp_book;

pub use lane::{FaultLane, FaultQp};
pub use profile::Profile;

use super::{
    AsyncEvent, CmEvent, ConnParams, Endpoint, Fabric, FabricError, IdKey, Lane, LaneGrant,
    LaneSpec, PrivateData, QpGrant, QpSpec, Step,
};
use crate::sys::epoll::Epoll;
use crate::sys::eventfd::EventFd;
use crate::types::{DeviceLimits, QpNum, Rkey};
use book::LaneBook;
use events::Held;
use lane::Shared;
use profile::Dice;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// A fabric with faults.
pub struct Fault<F: Fabric> {
    inner: F,
    seed: u64,
    profile: Profile,
    dice: Dice,
    lanes: u64,
    held: Held<F::Id>,
}

impl<F: Fabric> std::fmt::Debug for Fault<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fault")
            .field("seed", &self.seed)
            .field("profile", &self.profile)
            .finish_non_exhaustive()
    }
}

/// Control's half of a lane.
pub struct FaultCq<F: Fabric> {
    inner: F::Cq,
    shared: Arc<Shared<F>>,
}

impl<F: Fabric> std::fmt::Debug for FaultCq<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultCq").finish_non_exhaustive()
    }
}

/// Control's half of a QP.
pub struct FaultQpControl<F: Fabric> {
    inner: F::QpControl,
    number: QpNum,
    shared: Arc<Shared<F>>,
}

impl<F: Fabric> std::fmt::Debug for FaultQpControl<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FaultQpControl({})", self.number.0)
    }
}

fn at(step: Step) -> impl FnOnce(io::Error) -> FabricError {
    move |error| FabricError::new(step, "the faulty fabric", error)
}

/// Descriptors of the fabric's own and of its bell, in one.
fn both(inner: BorrowedFd<'_>, bell: &EventFd) -> io::Result<Epoll> {
    let wait = Epoll::new()?;
    wait.add(inner, 0)?;
    wait.add(bell, 1)?;
    Ok(wait)
}

impl<F: Fabric> Fault<F> {
    /// Wraps a fabric. Print the seed: with it the faults come again.
    ///
    /// # Errors
    /// No descriptors are left for its events.
    pub fn new(inner: F, seed: u64, profile: Profile) -> Result<Self, FabricError> {
        let dice = Dice::new(seed);
        let held = Held::new(inner.event_fd(), dice.child(0), profile).map_err(at(Step::Open))?;
        Ok(Self {
            inner,
            seed,
            profile,
            dice,
            lanes: 0,
            held,
        })
    }
}

impl<F: Fabric> Fabric for Fault<F> {
    type Device = F::Device;
    type Lane = FaultLane<F>;
    type Cq = FaultCq<F>;
    type Qp = FaultQp<F>;
    type QpControl = FaultQpControl<F>;
    type Id = F::Id;

    fn devices(&self) -> Vec<F::Device> {
        self.inner.devices()
    }
    fn forget_device(&mut self, name: &str) -> bool {
        self.inner.forget_device(name)
    }
    fn limits(device: &F::Device) -> &DeviceLimits {
        F::limits(device)
    }

    fn create_lane(
        &mut self,
        device: &F::Device,
        spec: &LaneSpec,
    ) -> Result<(FaultCq<F>, FaultLane<F>, LaneGrant), FabricError> {
        // Room for operations of ours, and for those that wait beside receives that do not.
        let most = F::limits(device).cq_depth_max;
        let ours = LaneSpec {
            cq_depth: spec.cq_depth.saturating_mul(2).min(most),
            ..*spec
        };
        let (cq, inner, mut grant) = self.inner.create_lane(device, &ours)?;
        grant.cq_depth = grant.cq_depth.min(spec.cq_depth);
        let bell = spec.events.then(EventFd::new).transpose();
        let bell = bell.map_err(at(Step::CreateCq))?;
        let wait = match (inner.event_fd(), &bell) {
            (Some(fd), Some(bell)) => Some(both(fd, bell).map_err(at(Step::CreateCq))?),
            _ => None,
        };
        self.lanes += 1;
        let book = LaneBook::new(self.profile, self.dice.child(self.lanes));
        let shared = Shared::new(book, bell);
        let lane = FaultLane {
            inner,
            shared: Arc::clone(&shared),
            wait,
            first: 0,
        };
        Ok((FaultCq { inner: cq, shared }, lane, grant))
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.held.fd()
    }
    fn next_event(&mut self) -> Result<Option<CmEvent<F::Id>>, FabricError> {
        self.held.next(&mut self.inner)
    }
    fn async_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.async_fds()
    }
    fn next_async_event(&mut self) -> Option<AsyncEvent> {
        self.inner.next_async_event()
    }

    fn key(id: &F::Id) -> IdKey {
        F::key(id)
    }
    fn listen(&mut self, at: &Endpoint, backlog: u32) -> Result<F::Id, FabricError> {
        self.inner.listen(at, backlog)
    }
    fn local_endpoint(&self, id: &F::Id) -> Option<Endpoint> {
        self.inner.local_endpoint(id)
    }
    fn peer_endpoint(&self, id: &F::Id) -> Option<Endpoint> {
        self.inner.peer_endpoint(id)
    }
    fn resolve_address(
        &mut self,
        peer: &Endpoint,
        timeout: Duration,
    ) -> Result<F::Id, FabricError> {
        self.inner.resolve_address(peer, timeout)
    }
    fn resolve_route(&mut self, id: &mut F::Id, timeout: Duration) -> Result<(), FabricError> {
        self.inner.resolve_route(id, timeout)
    }
    fn device_name(&self, id: &F::Id) -> Option<String> {
        self.inner.device_name(id)
    }

    fn create_qp(
        &mut self,
        id: &mut F::Id,
        cq: &FaultCq<F>,
        spec: &QpSpec,
    ) -> Result<(FaultQpControl<F>, FaultQp<F>, QpGrant), FabricError> {
        // One operation of ours may be on the queue.
        let ours = QpSpec {
            send_depth: spec.send_depth + 1,
            ..*spec
        };
        let (inner, qp, grant) = self.inner.create_qp(id, &cq.inner, &ours)?;
        let (number, shared) = (grant.number, &cq.shared);
        shared.lock().add(number, qp, spec.send_depth);
        let control = FaultQpControl {
            inner,
            number,
            shared: Arc::clone(shared),
        };
        let qp = FaultQp {
            number,
            shared: Arc::clone(shared),
        };
        Ok((control, qp, grant))
    }

    fn connect(
        &mut self,
        id: &mut F::Id,
        qp: &mut FaultQpControl<F>,
        params: &ConnParams,
    ) -> Result<(), FabricError> {
        self.inner.connect(id, &mut qp.inner, params)
    }
    fn confirm(&mut self, id: &mut F::Id, qp: &mut FaultQpControl<F>) -> Result<(), FabricError> {
        self.inner.confirm(id, &mut qp.inner)
    }
    fn accept(
        &mut self,
        id: &mut F::Id,
        qp: &mut FaultQpControl<F>,
        params: &ConnParams,
    ) -> Result<(), FabricError> {
        self.inner.accept(id, &mut qp.inner, params)
    }
    fn reject(&mut self, id: &mut F::Id, data: &PrivateData) -> Result<(), FabricError> {
        self.inner.reject(id, data)
    }
    fn notify_established(&mut self, id: &mut F::Id) {
        self.held.release(F::key(id));
        self.inner.notify_established(id);
    }
    fn disconnect(&mut self, id: &mut F::Id) -> Result<(), FabricError> {
        self.inner.disconnect(id)
    }

    fn set_error(&mut self, id: &mut F::Id, qp: &mut FaultQpControl<F>) -> Result<(), FabricError> {
        self.inner.set_error(id, &mut qp.inner)?;
        let mut book = qp.shared.lock();
        if let Some(of) = book.qp(qp.number) {
            of.in_error = true;
            if of.is_held() {
                qp.shared.ring();
            }
        }
        Ok(())
    }

    fn window_keys(qp: &FaultQp<F>) -> Vec<Rkey> {
        let mut book = qp.shared.lock();
        let inner = book.qp(qp.number).and_then(|book| book.qp.as_ref());
        inner.map_or_else(Vec::new, F::window_keys)
    }

    fn destroy_qp(&mut self, id: &mut F::Id, control: FaultQpControl<F>, mut qp: FaultQp<F>) {
        if let Some(inner) = qp.take() {
            self.inner.destroy_qp(id, control.inner, inner);
        }
        qp.shared.ring();
    }

    fn destroy_id(&mut self, id: F::Id) {
        self.held.forget(F::key(&id));
        self.inner.destroy_id(id);
    }
}
