//! Finding and opening devices; errno and file descriptor helpers of this fabric.
#![allow(unsafe_code, reason = "librdmacm and libibverbs are C")]

use super::device::Device;
use crate::fabric::{FabricError, Step};
use crate::limits::SGE_MAX;
use crate::types::{Abilities, DeviceLimits, Transport};
use rdma_sys::{
    ibv_atomic_cap, ibv_context, ibv_device_attr, ibv_device_cap_flags, ibv_get_device_name,
    ibv_port_attr, ibv_port_state, ibv_query_device, ibv_query_port, ibv_transport_type,
    rdma_free_devices, rdma_get_devices,
};
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

/// The calling thread's errno.
pub(super) fn errno() -> io::Error {
    io::Error::last_os_error()
}

pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(())
}

/// A device's context, and one of librdmacm's references to it: for as long as it is there,
/// librdmacm does not close the context, whoever of this process has it look at the devices. Nor does it
/// free the PD that it makes with its first id on a device: that stays until an id goes later.
#[derive(Debug)]
pub(super) struct Context(NonNull<ibv_context>);

impl Context {
    pub(super) fn as_ptr(&self) -> *mut ibv_context {
        self.0.as_ptr()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: malloc gives memory for two pointers, aligned for any type, or null.
        let list: *mut *mut ibv_context = unsafe { libc::malloc(2 * size_of::<usize>()) }.cast();
        if list.is_null() {
            return tracing::error!("no memory to give a device back: it stays open");
        }
        // SAFETY: rdma_free_devices requires a list that ends with a null and came from malloc, and
        // gives back a reference for each context in it: `open_all` left this one to this value.
        unsafe {
            list.write(self.as_ptr());
            list.add(1).write(ptr::null_mut());
            rdma_free_devices(list);
        }
    }
}

/// Every device that librdmacm has. Asking makes it look, and close what is gone and that nobody has a
/// reference to (`rdma_get_devices(3)`); it does neither when the host has no device left.
fn open_all() -> Result<Vec<Context>, FabricError> {
    let mut count = 0;
    // SAFETY: rdma_get_devices requires a place for the count. It returns null with errno on error.
    let list = unsafe { rdma_get_devices(&raw mut count) };
    if list.is_null() {
        return Err(no_devices(errno()));
    }
    // SAFETY: the list has `count` entries and then a null (rdma_get_devices(3)).
    let contexts = (0..usize::try_from(count).unwrap_or(0))
        .filter_map(|i| NonNull::new(unsafe { *list.add(i) }).map(Context))
        .collect();
    // SAFETY: the list has at least the null. Without entries, rdma_free_devices gives back no
    // reference, so each stays with its Context.
    unsafe {
        list.write(ptr::null_mut());
        rdma_free_devices(list);
    }
    Ok(contexts)
}

/// Opens every device that librdmacm has. A device that cannot be used is left out and logged: one
/// hidden uverbs device must not keep a container from starting.
pub(super) fn devices() -> Result<Vec<Device>, FabricError> {
    let mut devices = Vec::new();
    for context in open_all()? {
        let opened = limits(context.as_ptr()).and_then(|l| Device::new(context, l));
        match opened {
            Ok(device) => devices.push(device),
            Err(error) => tracing::warn!(%error, "a device is left out"),
        }
    }
    Ok(devices)
}

/// Whether librdmacm still has a device, as far as is known.
pub(super) fn is_listed(wanted: &str) -> bool {
    let is_it = |context: &Context| name(context.as_ptr()) == wanted;
    open_all().map_or(true, |contexts| contexts.iter().any(is_it))
}

pub(super) fn no_devices(source: io::Error) -> FabricError {
    FabricError::new(Step::Open, "this host", source).advise(
        "Verbs need librdmacm1, libibverbs1 and ibverbs-providers (apt), the kernel modules \
         rdma_cm and ib_uverbs, and a device: see `rdma link`",
    )
}

/// Name of a context's device.
pub(super) fn name(context: *mut ibv_context) -> String {
    // SAFETY: a context from libibverbs names a device for as long as it lives, and
    // ibv_get_device_name gives a C string that lives as long as the device.
    unsafe {
        let name = ibv_get_device_name((*context).device);
        if name.is_null() {
            return "unnamed".into();
        }
        CStr::from_ptr(name).to_string_lossy().into_owned()
    }
}

pub(super) fn transport(context: *mut ibv_context) -> Transport {
    // SAFETY: as in `name`.
    if unsafe { (*(*context).device).transport_type } == ibv_transport_type::IBV_TRANSPORT_IWARP {
        Transport::Iwarp
    } else {
        Transport::Ib
    }
}

fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// Asks a device and its ports for their limits.
pub(super) fn limits(context: *mut ibv_context) -> Result<DeviceLimits, FabricError> {
    let name = name(context);
    let mut attr = MaybeUninit::<ibv_device_attr>::zeroed();
    // SAFETY: ibv_query_device requires a live context and a place to write; zero is a valid
    // ibv_device_attr.
    let failed = unsafe { ibv_query_device(context, attr.as_mut_ptr()) };
    if failed != 0 {
        let error = io::Error::from_raw_os_error(failed.abs());
        return Err(FabricError::new(Step::Query, name, error));
    }
    // SAFETY: zeroed, then written by the call.
    let attr = unsafe { attr.assume_init() };
    let mut active = false;
    let mut message_bytes_max = u32::MAX;
    for port in 1..=attr.phys_port_cnt {
        let Ok(port) = query_port(context, port) else {
            continue;
        };
        if port.state == ibv_port_state::IBV_PORT_ACTIVE {
            active = true;
            message_bytes_max = message_bytes_max.min(port.max_msg_sz);
        }
    }
    if !active {
        message_bytes_max = 0;
    }
    let numa_node =
        std::fs::read_to_string(format!("/sys/class/infiniband/{name}/device/numa_node"))
            .ok()
            .and_then(|text| text.trim().parse().ok());
    Ok(DeviceLimits {
        transport: transport(context),
        active,
        numa_node,
        qp_max: count(attr.max_qp),
        qp_depth_max: count(attr.max_qp_wr),
        sge_max: count(attr.max_sge),
        cq_max: count(attr.max_cq),
        cq_depth_max: count(attr.max_cqe),
        mr_bytes_max: attr.max_mr_size,
        rd_atomic_initiator_max: count(attr.max_qp_init_rd_atom),
        rd_atomic_responder_max: count(attr.max_qp_rd_atom),
        message_bytes_max,
        shared_recv_depth_max: if attr.max_srq > 0 {
            count(attr.max_srq_wr)
        } else {
            0
        },
        abilities: abilities(transport(context), &attr),
        name,
    })
}

fn abilities(transport: Transport, attr: &ibv_device_attr) -> Abilities {
    let iwarp = transport == Transport::Iwarp;
    let has = |flag: ibv_device_cap_flags| attr.device_cap_flags & flag.0 != 0;
    let pieces = |n: i32| {
        let n = (n.max(1).unsigned_abs() as usize).min(SGE_MAX);
        u8::try_from(n).unwrap_or(1)
    };
    Abilities {
        // iWARP has neither on the wire (RFC 5040, 4.1; RFC 7306 adds them, no device here does).
        immediate: !iwarp,
        atomics: !iwarp && attr.atomic_cap != ibv_atomic_cap::IBV_ATOMIC_NONE,
        send_invalidate: has(ibv_device_cap_flags::IBV_DEVICE_MEM_MGT_EXTENSIONS),
        windows: has(ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B),
        sges: pieces(attr.max_sge),
        // A READ on iWARP names one sink (RFC 5040, 4.4).
        read_sges: if iwarp {
            1
        } else {
            pieces(attr.max_sge_rd.max(1))
        },
        read_sink_is_exposed: iwarp,
    }
}

/// Vendor of a device; 0 where it does not say.
pub(super) fn vendor(context: *mut ibv_context) -> u32 {
    let mut attr = MaybeUninit::<ibv_device_attr>::zeroed();
    // SAFETY: as in `limits`.
    let failed = unsafe { ibv_query_device(context, attr.as_mut_ptr()) };
    // SAFETY: zero is a valid value, and the call wrote the rest.
    let attr = unsafe { attr.assume_init() };
    if failed == 0 { attr.vendor_id } else { 0 }
}

pub(super) fn query_port(context: *mut ibv_context, port: u8) -> io::Result<ibv_port_attr> {
    let mut attr = MaybeUninit::<ibv_port_attr>::zeroed();
    // SAFETY: ibv_query_port requires a live context and a zeroed attribute: an older library
    // writes only the head of it.
    let failed = unsafe { ibv_query_port(context, port, attr.as_mut_ptr()) };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(failed.abs()));
    }
    // SAFETY: zeroed is a valid value, and the call wrote the rest.
    Ok(unsafe { attr.assume_init() })
}
