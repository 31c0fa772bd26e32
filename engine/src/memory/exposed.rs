//! Memory that peers may read or write by themselves.
//!
//! ```text
//!  Exposures::expose(bytes, access) ─► ExposedMemory ── Io::exposed ─► RemoteRegion, told to the peer
//!        │ one registration a lane          ▲
//!        └─ forget_lane ────────────────────┘ the device is gone, and with it the peer's access
//! ```
//! A peer may change it at any instant, so no slice of it is ever formed: bytes are copied in and out
//! by one routine. Imports region, registrar, copy. Imported by worker and engine.

#![allow(
    unsafe_code,
    reason = "copies bytes that a peer may be writing at the same time"
)]

use super::copy::copy_shared;
use super::{HugepagePolicy, MemorySpan, Region, RegionError, Registrar, Registration};
use crate::types::{Access, Lkey, RemoteRegion, Rkey};
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// Bytes outside the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} B from {offset} on are not all in the {size} B of this memory")]
pub struct OutOfRange {
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
    /// Bytes of the memory.
    pub size: usize,
}

/// Memory could not be exposed.
#[derive(Debug, thiserror::Error)]
pub enum ExposeError {
    /// The memory is not to be had.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A device refused it.
    #[error("a device refused to register {bytes} B with {access}: {source}; see `ulimit -l`")]
    Register {
        /// Bytes asked for.
        bytes: usize,
        /// Access asked for.
        access: Access,
        /// The provider's word.
        source: io::Error,
    },
}

/// A registration, with its keys at hand: posting asks for them.
struct Registered {
    lkey: Lkey,
    rkey: Rkey,
    registration: Box<dyn Registration>,
}

impl Registered {
    fn new(registration: impl Registration) -> Self {
        Self {
            lkey: registration.lkey(),
            rkey: registration.rkey(),
            registration: Box::new(registration),
        }
    }
}

type Registrations = Vec<Option<Registered>>;

struct Inner {
    region: Arc<Region>,
    /// What peers may do.
    access: Access,
    /// The same, and what the worker's own operations may do.
    granted: Access,
    lanes: RefCell<Registrations>,
}

/// Memory of one worker that peers may be given access to. Clones are handles of the same memory, and
/// the last one ends every peer's access. It stays on its worker.
#[derive(Clone)]
pub struct ExposedMemory(Rc<Inner>);

impl fmt::Debug for ExposedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExposedMemory")
            .field("bytes", &self.len())
            .field("access", &self.0.access)
            .finish_non_exhaustive()
    }
}

impl ExposedMemory {
    /// Bytes; never 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.0.region.len()
    }

    /// What a peer that has the key may do.
    #[must_use]
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// `len` bytes from `offset` on, to send or write from, or to read into; `None` where they are not
    /// all in the memory.
    #[must_use]
    pub fn span(&self, offset: usize, len: u32) -> Option<MemorySpan> {
        self.at(offset, len as usize).ok()?;
        Some(MemorySpan::new(self.clone(), offset, len))
    }

    /// READs and atomics of this side may put their answer here.
    #[must_use]
    pub fn is_locally_writable(&self) -> bool {
        self.0.granted.contains(Access::LOCAL_WRITE)
    }

    /// First byte, as devices count.
    pub(crate) fn addr(&self) -> u64 {
        self.0.region.base().as_ptr().expose_provenance() as u64
    }

    /// Key on a lane; `None` when the lane's device is gone.
    pub(crate) fn lkey(&self, lane: usize) -> Option<Lkey> {
        let lanes = self.0.lanes.borrow();
        Some(lanes.get(lane)?.as_ref()?.lkey)
    }

    /// Gives `use_it` the registration on a lane; `None` when the lane's device is gone.
    pub(crate) fn with_registration<T>(
        &self,
        lane: usize,
        use_it: impl FnOnce(&dyn Registration) -> T,
    ) -> Option<T> {
        let lanes = self.0.lanes.borrow();
        Some(use_it(lanes.get(lane)?.as_ref()?.registration.as_ref()))
    }

    /// The whole of it as peers on a lane name it; `None` when the lane's device is gone.
    #[must_use]
    pub fn remote_region(&self, lane: usize) -> Option<RemoteRegion> {
        let lanes = self.0.lanes.borrow();
        let rkey = lanes.get(lane)?.as_ref()?.rkey;
        RemoteRegion::parse(self.addr(), self.len() as u64, rkey, self.0.access)
    }

    /// Copies bytes out. A peer that writes at the same time may tear them.
    ///
    /// # Errors
    /// [`OutOfRange`]; nothing is copied.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfRange> {
        let from = self.at(offset, into.len())?;
        // SAFETY: `copy_shared` requires
        // - `len` bytes to read: `at` checked that they lie in the region, which `self` keeps mapped;
        // - `len` bytes to write, and no other reference to them: `into` is unique.
        unsafe { copy_shared(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies bytes in. A peer that reads at the same time may see them torn.
    ///
    /// # Errors
    /// [`OutOfRange`]; nothing is copied.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfRange> {
        let to = self.at(offset, bytes.len())?;
        // SAFETY: as in `copy_out`, with `bytes` to read and the region to write, of which no slice
        // is ever formed.
        unsafe { copy_shared(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    fn at(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfRange> {
        let size = self.len();
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(OutOfRange { offset, len, size });
        }
        // SAFETY: `add` requires that the result stays in the mapping: `offset <= size`.
        Ok(unsafe { self.0.region.base().add(offset) }.as_ptr())
    }
}

/// The devices of a worker's lanes, and what it has exposed to their peers. When a device goes away,
/// both forget it.
pub struct Exposures<R>(Rc<Known<R>>);

struct Known<R> {
    registrars: RefCell<Vec<Option<R>>>,
    exposed: RefCell<Vec<Weak<Inner>>>,
}

impl<R> Clone for Exposures<R> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<R> fmt::Debug for Exposures<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exposures({})", self.0.exposed.borrow().len())
    }
}

impl<R: Registrar> Exposures<R> {
    /// The devices in the order of lanes.
    #[must_use]
    pub fn new(registrars: Vec<R>) -> Self {
        Self(Rc::new(Known {
            registrars: RefCell::new(registrars.into_iter().map(Some).collect()),
            exposed: RefCell::default(),
        }))
    }

    /// Takes zeroed memory and has every device register it. Where a device's peers map the memory
    /// themselves ([`Registrar::needs_memfd`]), it lies in small pages whatever `hugepages` prefers.
    ///
    /// # Errors
    /// The memory is not to be had, or a device refused. Nothing is left registered.
    pub fn expose(
        &self,
        bytes: usize,
        hugepages: HugepagePolicy,
        access: Access,
    ) -> Result<ExposedMemory, ExposeError> {
        let registrars = self.0.registrars.borrow();
        let mapped = access.is_remote() && registrars.iter().flatten().any(R::needs_memfd);
        let region = Arc::new(match hugepages {
            HugepagePolicy::Require if mapped => {
                return Err(RegionError::SharedIsSmall { bytes }.into());
            }
            HugepagePolicy::Prefer | HugepagePolicy::Off if mapped => Region::shared(bytes)?,
            policy => Region::allocate(bytes, policy)?,
        });
        // Verbs want local write with every remote write, one by a window included.
        let granted = if access.is_remote_writable() {
            access | Access::LOCAL_WRITE
        } else {
            access
        };
        let register = |registrar: &Option<R>| {
            let Some(registrar) = registrar else {
                return Ok(None);
            };
            let registration = registrar.register(Arc::clone(&region), granted)?;
            Ok(Some(Registered::new(registration)))
        };
        let lanes: io::Result<Registrations> = registrars.iter().map(register).collect();
        let lanes = lanes.map_err(|source| ExposeError::Register {
            bytes,
            access,
            source,
        })?;
        let inner = Rc::new(Inner {
            region,
            access,
            granted,
            lanes: RefCell::new(lanes),
        });
        let mut all = self.0.exposed.borrow_mut();
        all.retain(|known| known.strong_count() > 0);
        all.push(Rc::downgrade(&inner));
        Ok(ExposedMemory(inner))
    }

    /// The lane's device goes away: its registrations end here, and nothing names it any more.
    pub fn forget_lane(&self, lane: usize) {
        for inner in self.0.exposed.borrow().iter().filter_map(Weak::upgrade) {
            if let Some(registration) = inner.lanes.borrow_mut().get_mut(lane) {
                *registration = None;
            }
        }
        if let Some(registrar) = self.0.registrars.borrow_mut().get_mut(lane) {
            *registrar = None;
        }
    }
}

/// A span of memory that no device knows.
#[cfg(all(test, not(loom)))]
pub(crate) fn span_for_tests(bytes: usize) -> MemorySpan {
    let region = Region::allocate(bytes, HugepagePolicy::Off).expect("memory");
    let memory = ExposedMemory(Rc::new(Inner {
        region: Arc::new(region),
        access: Access::WINDOWS,
        granted: Access::WINDOWS | Access::LOCAL_WRITE,
        lanes: RefCell::default(),
    }));
    let len = u32::try_from(bytes).expect("small");
    memory.span(0, len).expect("all of it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    struct Device {
        live: Rc<Cell<i32>>,
        key: u32,
        /// Memory for peers must be of a memfd.
        mapped: bool,
    }
    struct Mr(std::sync::mpsc::Sender<()>, u32);
    impl Registration for Mr {
        fn lkey(&self) -> Lkey {
            Lkey(self.1)
        }
        fn rkey(&self) -> Rkey {
            Rkey(self.1 + 1)
        }
    }
    impl Drop for Mr {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    struct Counted(Device, std::sync::mpsc::Sender<()>);
    impl Registrar for Counted {
        type Registration = Mr;
        fn register(&self, region: Arc<Region>, access: Access) -> io::Result<Mr> {
            assert_eq!(
                region.memfd().is_some(),
                self.0.mapped && access.is_remote()
            );
            if self.0.key == 0 {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            // Verbs want it with every remote write.
            assert!(!access.is_remote_writable() || access.contains(Access::LOCAL_WRITE));
            self.0.live.set(self.0.live.get() + 1);
            Ok(Mr(self.1.clone(), self.0.key))
        }
        fn needs_memfd(&self) -> bool {
            self.0.mapped
        }
    }

    fn devices(keys: &[u32]) -> (Vec<Counted>, Rc<Cell<i32>>, std::sync::mpsc::Receiver<()>) {
        let live = Rc::new(Cell::new(0));
        let (sender, dropped) = std::sync::mpsc::channel();
        let make = |key: &u32| {
            let device = Device {
                live: Rc::clone(&live),
                key: *key,
                mapped: false,
            };
            Counted(device, sender.clone())
        };
        (keys.iter().map(make).collect(), live, dropped)
    }

    #[test]
    fn every_lane_has_a_key_until_its_device_is_gone() {
        let (devices, live, dropped) = devices(&[10, 20]);
        let exposures = Exposures::new(devices);
        let memory = exposures
            .expose(4096, HugepagePolicy::Off, Access::REMOTE_WRITE)
            .expect("memory");
        assert_eq!(live.get(), 2);
        let rkey = |lane| memory.remote_region(lane).map(|r| r.rkey());
        assert_eq!(
            (rkey(0), rkey(1), rkey(2)),
            (Some(Rkey(11)), Some(Rkey(21)), None)
        );
        assert_eq!(
            (memory.lkey(0), memory.lkey(1), memory.lkey(2)),
            (Some(Lkey(10)), Some(Lkey(20)), None)
        );
        exposures.forget_lane(0);
        assert_eq!(memory.lkey(0), None);
        assert_eq!((rkey(0), rkey(1)), (None, Some(Rkey(21))));
        assert_eq!(dropped.try_iter().count(), 1);
        drop(memory);
        assert_eq!(dropped.try_iter().count(), 1);
    }

    #[test]
    fn memory_that_peers_map_is_a_memfd_in_small_pages() {
        let (mut devices, ..) = devices(&[10]);
        devices[0].0.mapped = true;
        let exposures = Exposures::new(devices);
        let expose = |hugepages, access| exposures.expose(5000, hugepages, access);
        for access in [
            Access::REMOTE_READ,
            Access::REMOTE_WRITE,
            Access::REMOTE_ATOMIC,
        ] {
            let memory = expose(HugepagePolicy::Prefer, access).expect("memory");
            memory.copy_in(4996, b"last").expect("all of it");
            assert!(memory.remote_region(0).is_some());
        }
        // Memory for our own READs stays with us.
        expose(HugepagePolicy::Off, Access::LOCAL_WRITE).expect("memory");
        let error =
            expose(HugepagePolicy::Require, Access::REMOTE_READ).expect_err("no such pages");
        assert!(error.to_string().contains("\"prefer\""), "{error}");
    }

    #[test]
    fn a_device_that_refuses_leaves_nothing_registered() {
        let (devices, live, dropped) = devices(&[10, 0]);
        let error = Exposures::new(devices)
            .expose(4096, HugepagePolicy::Off, Access::REMOTE_WRITE)
            .expect_err("the second refuses");
        assert!(error.to_string().contains("remote-write"), "{error}");
        assert_eq!(
            (live.get(), i32::try_from(dropped.try_iter().count())),
            (1, Ok(1))
        );
    }

    #[test]
    fn copies_stay_inside() {
        let (devices, ..) = devices(&[1]);
        let memory = Exposures::new(devices)
            .expose(4096, HugepagePolicy::Off, Access::REMOTE_WRITE)
            .expect("memory");
        let size = memory.len();
        memory.copy_in(size - 3, b"abc").expect("the last bytes");
        let mut bytes = [0; 4];
        memory.copy_out(size - 4, &mut bytes).expect("in range");
        assert_eq!(&bytes, b"\0abc");
        assert!(memory.copy_in(size - 2, b"abc").is_err());
        assert!(memory.copy_out(usize::MAX, &mut bytes).is_err());
        memory.copy_out(size, &mut []).expect("nothing at the end");
    }
}
