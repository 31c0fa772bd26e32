//! Devices, protection domains, CQs and registrations: control's side of what a lane stands on.
//!
//! ```text
//!  rdma_get_devices ─► ibv_context (librdmacm's) ─► PD ─┬─► CQ (+ channel)   one a lane
//!                                                       ├─► parent domain    one a lane, for QPs
//!                                                       └─► MR               one a pool
//! ```
//! A PD of any other context than librdmacm's is refused by rdma_cm (EINVAL). Every handle holds an
//! `Arc` of what it stands on, so nothing is destroyed under a user. Imports memory, types.
#![allow(unsafe_code, reason = "libibverbs is C")]

use super::open::{self, Context, errno};
use crate::fabric::{FabricError, LaneSpec, Step};
use crate::memory::{Region, Registrar, Registration};
use crate::sys::rlimit;
use crate::types::{Access, DeviceLimits, Lkey, Rkey};
use rdma_sys::{
    ibv_access_flags, ibv_alloc_parent_domain, ibv_alloc_pd, ibv_alloc_td, ibv_comp_channel,
    ibv_context, ibv_cq, ibv_create_comp_channel, ibv_create_cq, ibv_create_srq, ibv_dealloc_pd,
    ibv_dealloc_td, ibv_dereg_mr, ibv_destroy_comp_channel, ibv_destroy_cq, ibv_destroy_srq,
    ibv_mr, ibv_parent_domain_init_attr, ibv_pd, ibv_reg_mr, ibv_srq, ibv_srq_attr,
    ibv_srq_init_attr, ibv_td, ibv_td_init_attr,
};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// A device that librdmacm opened, with one PD. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Device {
    inner: Arc<DeviceInner>,
}

#[derive(Debug)]
struct DeviceInner {
    context: Context,
    pd: NonNull<ibv_pd>,
    limits: DeviceLimits,
    /// errno of the registration with relaxed ordering: 0 had, -1 not tried yet.
    relaxed_ordering: AtomicI32,
    /// See [`cover_bad_page`].
    cover: Option<NonNull<ibv_cq>>,
}

/// `SIW_VENDOR_ID` of the kernel's SoftiWARP.
const SIW_VENDOR: u32 = 0x62_6d74;
/// Entries of 32 B that fill more than 144 pages.
const COVER_CQE: i32 = 32_768;

/// SoftiWARP maps queues into one space of pages for each process. Its library takes a queue that
/// begins at page 144 for one that could not be mapped (the kernel's `SIW_INVAL_UOBJ_KEY` is that very
/// offset), so once queues fill 144 pages no QP or CQ can be created any more: with short queues at
/// some 70 QPs. A CQ that nobody uses, created first, covers the page, and no queue begins there.
fn cover_bad_page(context: *mut ibv_context) -> Option<NonNull<ibv_cq>> {
    if open::vendor(context) != SIW_VENDOR {
        return None;
    }
    // SAFETY: ibv_create_cq requires a live context; no channel is asked for.
    NonNull::new(unsafe { ibv_create_cq(context, COVER_CQE, ptr::null_mut(), ptr::null_mut(), 0) })
}

// SAFETY: libibverbs is thread safe (its manual: "all functions may be called from every thread"), and so
// is librdmacm, whose reference the context is.
unsafe impl Send for DeviceInner {}
// SAFETY: as above.
unsafe impl Sync for DeviceInner {}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        if let Some(cover) = self.cover {
            // SAFETY: ibv_destroy_cq requires a CQ that nothing completes on: no QP was given it.
            complain("ibv_destroy_cq", &self.limits.name, unsafe {
                ibv_destroy_cq(cover.as_ptr())
            });
        }
        // SAFETY: ibv_dealloc_pd requires a PD without users; each MR, CQ, QP and parent domain of
        // ours holds an Arc of this value.
        let failed = unsafe { ibv_dealloc_pd(self.pd.as_ptr()) };
        complain("ibv_dealloc_pd", &self.limits.name, failed);
    }
}

impl Device {
    /// Allocates the PD.
    pub(super) fn new(context: Context, limits: DeviceLimits) -> Result<Self, FabricError> {
        // SAFETY: ibv_alloc_pd requires a live context: librdmacm's is.
        let pd = NonNull::new(unsafe { ibv_alloc_pd(context.as_ptr()) })
            .ok_or_else(|| FabricError::new(Step::AllocPd, &limits.name, errno()))?;
        let cover = cover_bad_page(context.as_ptr());
        let relaxed_ordering = AtomicI32::new(-1);
        Ok(Self {
            inner: Arc::new(DeviceInner {
                context,
                pd,
                limits,
                relaxed_ordering,
                cover,
            }),
        })
    }

    /// Whether others have it: a lane, a registration, a queue pair.
    pub(super) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.inner) > 1
    }

    pub(super) fn context(&self) -> *mut ibv_context {
        self.inner.context.as_ptr()
    }

    pub(super) fn pd(&self) -> *mut ibv_pd {
        self.inner.pd.as_ptr()
    }

    pub(super) fn limits(&self) -> &DeviceLimits {
        &self.inner.limits
    }

    /// Whether the pools of this device are registered with relaxed ordering.
    pub(super) fn relaxed_ordering(&self) -> Result<(), String> {
        match self.inner.relaxed_ordering.load(Ordering::Relaxed) {
            0 => Ok(()),
            -1 => Err("no memory registered yet".into()),
            e => Err(io::Error::from_raw_os_error(e).to_string()),
        }
    }

    fn register_with(&self, region: &Region, flags: u32) -> io::Result<NonNull<ibv_mr>> {
        let flags = i32::try_from(flags).map_err(io::Error::other)?;
        // SAFETY: ibv_reg_mr requires
        // - a live PD: `self` holds it;
        // - memory mapped until deregistration: the registration holds the region's Arc.
        let mr = unsafe {
            ibv_reg_mr(
                self.pd(),
                region.base().as_ptr().cast(),
                region.len(),
                flags,
            )
        };
        NonNull::new(mr).ok_or_else(errno)
    }
}

/// A registered region.
#[derive(Debug)]
pub struct Mr {
    mr: NonNull<ibv_mr>,
    lkey: Lkey,
    rkey: Rkey,
    _region: Arc<Region>,
    device: Device,
}

impl Mr {
    pub(super) fn as_ptr(&self) -> *mut ibv_mr {
        self.mr.as_ptr()
    }
}

// SAFETY: ibv_dereg_mr may be called on every thread; the keys are copies.
unsafe impl Send for Mr {}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: ibv_dereg_mr requires a live MR; it is destroyed here only. Work requests that
        // named it are done, as a worker ends after the QPs of its lanes; where a worker panicked,
        // the device refuses those that are left from here on. The region goes after this.
        let failed = unsafe { ibv_dereg_mr(self.mr.as_ptr()) };
        complain("ibv_dereg_mr", &self.device.limits().name, failed);
    }
}

impl Registration for Mr {
    fn lkey(&self) -> Lkey {
        self.lkey
    }
    fn rkey(&self) -> Rkey {
        self.rkey
    }
}

/// What cannot be destroyed is abandoned, and told of.
pub(super) fn complain(call: &str, device: &str, errno: i32) {
    if errno != 0 {
        let error = io::Error::from_raw_os_error(errno.abs());
        tracing::error!(%device, %error, "{call} failed; what it was to destroy is abandoned");
    }
}

/// Access flags as libibverbs has them.
pub(super) fn native_access(access: Access) -> u32 {
    [
        (
            Access::LOCAL_WRITE,
            ibv_access_flags::IBV_ACCESS_LOCAL_WRITE,
        ),
        (
            Access::REMOTE_READ,
            ibv_access_flags::IBV_ACCESS_REMOTE_READ,
        ),
        (
            Access::REMOTE_WRITE,
            ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
        ),
        (
            Access::REMOTE_ATOMIC,
            ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC,
        ),
        (Access::WINDOWS, ibv_access_flags::IBV_ACCESS_MW_BIND),
    ]
    .iter()
    .filter(|(ours, _)| access.contains(*ours))
    .fold(0, |flags, (_, theirs)| flags | theirs.0)
}

impl Registrar for Device {
    type Registration = Mr;

    fn register(&self, region: Arc<Region>, access: Access) -> io::Result<Mr> {
        let can = self.limits().abilities;
        let access = if can.windows {
            access
        } else {
            access.without(Access::WINDOWS)
        };
        let flags = native_access(access);
        // Asked through the plain call, which does not hide the kernel's refusal of the flag.
        let relaxed = flags | ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
        let mr = match self.register_with(&region, relaxed) {
            Ok(mr) => {
                self.inner.relaxed_ordering.store(0, Ordering::Relaxed);
                mr
            }
            Err(refusal) => {
                let code = refusal.raw_os_error().unwrap_or(libc::EINVAL);
                self.inner.relaxed_ordering.store(code, Ordering::Relaxed);
                self.register_with(&region, flags)?
            }
        };
        // SAFETY: `mr` was returned by ibv_reg_mr just now.
        let (lkey, rkey) = unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) };
        Ok(Mr {
            mr,
            lkey: Lkey(lkey),
            rkey: Rkey(rkey),
            _region: region,
            device: self.clone(),
        })
    }
}

/// A CQ, its completion channel, and the protection domain for QPs that complete on it. Shared by
/// the lane that polls and the QPs that complete; destroyed with the last of them.
#[derive(Debug)]
pub(super) struct CqHandle {
    cq: NonNull<ibv_cq>,
    depth: u32,
    channel: Option<NonNull<ibv_comp_channel>>,
    domain: Option<ThreadDomain>,
    pub(super) thread_domain: Result<(), String>,
    /// Shared by the QPs that ask for it; in no thread domain, where providers abort.
    srq: Option<NonNull<ibv_srq>>,
    shared_recv_depth: u32,
    device: Device,
}

#[derive(Debug)]
struct ThreadDomain {
    td: NonNull<ibv_td>,
    pd: NonNull<ibv_pd>,
}

// SAFETY: libibverbs is thread safe, and the CQ is created without the single-threaded flag, so
// the provider's lock orders a poll on the worker with a QP's destruction on control.
unsafe impl Send for CqHandle {}
// SAFETY: as above.
unsafe impl Sync for CqHandle {}

impl CqHandle {
    pub(super) fn create(device: &Device, spec: &LaneSpec) -> Result<Arc<Self>, FabricError> {
        let name = &device.limits().name;
        let channel = if spec.events {
            Some(create_channel(device)?)
        } else {
            None
        };
        let cqe = i32::try_from(spec.cq_depth).unwrap_or(i32::MAX);
        let channel_ptr = channel.map_or(ptr::null_mut(), NonNull::as_ptr);
        // SAFETY: ibv_create_cq requires a live context and a channel of that context, or null.
        let cq = unsafe { ibv_create_cq(device.context(), cqe, ptr::null_mut(), channel_ptr, 0) };
        let Some(cq) = NonNull::new(cq) else {
            let error = errno();
            let memory = error.raw_os_error() == Some(libc::ENOMEM);
            if let Some(c) = channel {
                // SAFETY: the channel was created above and has no CQ.
                unsafe { ibv_destroy_comp_channel(c.as_ptr()) };
            }
            let error = FabricError::new(Step::CreateCq, name, error);
            return Err(if memory {
                error.advise(memlock_advice())
            } else {
                error
            });
        };
        // SAFETY: `cq` was returned by ibv_create_cq just now.
        let granted = unsafe { (*cq.as_ptr()).cqe };
        let (domain, thread_domain) = match ThreadDomain::create(device) {
            Ok(domain) => (Some(domain), Ok(())),
            Err(e) => (None, Err(e.to_string())),
        };
        let mut handle = Self {
            cq,
            depth: u32::try_from(granted).unwrap_or(spec.cq_depth),
            channel,
            domain,
            thread_domain,
            srq: None,
            shared_recv_depth: 0,
            device: device.clone(),
        };
        if spec.shared_recv_depth > 0 {
            let (srq, depth) = create_srq(device, spec.shared_recv_depth)?;
            (handle.srq, handle.shared_recv_depth) = (Some(srq), depth);
        }
        Ok(Arc::new(handle))
    }

    pub(super) fn srq_ptr(&self) -> Option<*mut ibv_srq> {
        self.srq.map(NonNull::as_ptr)
    }

    /// Work requests of the shared receive queue; 0 where there is none.
    pub(super) fn shared_recv_depth(&self) -> u32 {
        self.shared_recv_depth
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_cq {
        self.cq.as_ptr()
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// The PD for QPs of this lane: a parent domain with the lane's thread domain where the device
    /// has them.
    pub(super) fn qp_pd(&self) -> *mut ibv_pd {
        self.domain
            .as_ref()
            .map_or_else(|| self.device.pd(), |d| d.pd.as_ptr())
    }

    pub(super) fn channel_ptr(&self) -> Option<*mut ibv_comp_channel> {
        self.channel.map(NonNull::as_ptr)
    }

    pub(super) fn channel_fd(&self) -> Option<BorrowedFd<'_>> {
        let channel = self.channel?;
        // SAFETY: the channel and its fd are closed in `drop` only; the borrow is tied to `self`.
        Some(unsafe { BorrowedFd::borrow_raw((*channel.as_ptr()).fd) })
    }
}

impl Drop for CqHandle {
    fn drop(&mut self) {
        // SAFETY: each call requires that nothing uses its object any more: QPs hold an Arc of this
        // value, the lane too; the CQ goes before its channel, the parent domain before its thread
        // domain. What an SRQ still holds is the device's until here, and the pool lives longer: a
        // worker drops its lanes before its registrations.
        unsafe {
            if let Some(srq) = self.srq {
                let failed = ibv_destroy_srq(srq.as_ptr());
                complain("ibv_destroy_srq", &self.device.limits().name, failed);
            }
            let failed = ibv_destroy_cq(self.cq.as_ptr());
            complain("ibv_destroy_cq", &self.device.limits().name, failed);
            if let Some(channel) = self.channel {
                let _ = ibv_destroy_comp_channel(channel.as_ptr());
            }
            if let Some(domain) = &self.domain {
                let _ = ibv_dealloc_pd(domain.pd.as_ptr());
                let _ = ibv_dealloc_td(domain.td.as_ptr());
            }
        }
    }
}

fn create_srq(device: &Device, depth: u32) -> Result<(NonNull<ibv_srq>, u32), FabricError> {
    let mut init = ibv_srq_init_attr {
        srq_context: ptr::null_mut(),
        attr: ibv_srq_attr {
            max_wr: depth,
            max_sge: 1,
            srq_limit: 0,
        },
    };
    // SAFETY: ibv_create_srq requires a live PD, and an attribute to read and write.
    let srq = NonNull::new(unsafe { ibv_create_srq(device.pd(), &raw mut init) });
    let srq =
        srq.ok_or_else(|| FabricError::new(Step::CreateSrq, &device.limits().name, errno()))?;
    Ok((srq, init.attr.max_wr.max(depth)))
}

impl ThreadDomain {
    fn create(device: &Device) -> io::Result<Self> {
        let mut td_attr = ibv_td_init_attr { comp_mask: 0 };
        // SAFETY: ibv_alloc_td requires a live context and an attribute to read.
        let td = NonNull::new(unsafe { ibv_alloc_td(device.context(), &raw mut td_attr) })
            .ok_or_else(errno)?;
        let mut attr = ibv_parent_domain_init_attr {
            pd: device.pd(),
            td: td.as_ptr(),
            comp_mask: 0,
            alloc: None,
            free: None,
            pd_context: ptr::null_mut(),
        };
        // SAFETY: ibv_alloc_parent_domain requires a live context, and a PD and a TD of it.
        let pd = unsafe { ibv_alloc_parent_domain(device.context(), &raw mut attr) };
        let Some(pd) = NonNull::new(pd) else {
            let error = errno();
            // SAFETY: the thread domain was created above and has no users.
            let _ = unsafe { ibv_dealloc_td(td.as_ptr()) };
            return Err(error);
        };
        Ok(Self { td, pd })
    }
}

fn create_channel(device: &Device) -> Result<NonNull<ibv_comp_channel>, FabricError> {
    let fail = |e| FabricError::new(Step::CreateCq, &device.limits().name, e);
    // SAFETY: ibv_create_comp_channel requires a live context.
    let channel = NonNull::new(unsafe { ibv_create_comp_channel(device.context()) })
        .ok_or_else(|| fail(errno()))?;
    // SAFETY: the channel was created just now, its fd is open.
    let fd = unsafe { BorrowedFd::borrow_raw((*channel.as_ptr()).fd) };
    if let Err(e) = super::open::set_nonblocking(fd) {
        // SAFETY: the channel was created above and has no CQ.
        unsafe { ibv_destroy_comp_channel(channel.as_ptr()) };
        return Err(fail(e));
    }
    Ok(channel)
}

/// What to do about ENOMEM: memory that may be locked is the usual limit.
pub(super) fn memlock_advice() -> String {
    rlimit::memlock().map_or_else(
        || "memory that may be locked is not limited: the device itself is out of resources".into(),
        |bytes| {
            format!(
                "memory that may be locked is limited to {} KiB: raise it (`ulimit -l unlimited`, \
                 or LimitMEMLOCK=infinity in the unit)",
                bytes / 1024
            )
        },
    )
}
