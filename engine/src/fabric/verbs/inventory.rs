//! What `spinwire devices` shows: every device of the host with its ports and GIDs, asked directly.
//!
//! It opens contexts of its own, so that a device which librdmacm cannot use is still listed, with
//! the reason.
#![allow(unsafe_code, reason = "libibverbs is C")]

use super::gid::{self, Gid};
use super::open::{errno, limits, no_devices, query_port};
use super::queue_pair::mtu_bytes;
use crate::fabric::FabricError;
use crate::types::{DeviceLimits, Transport};
use rdma_sys::{
    IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, ibv_close_device, ibv_device,
    ibv_free_device_list, ibv_get_device_list, ibv_get_device_name, ibv_open_device, ibv_port_attr,
};
use serde::Serialize;
use std::ffi::CStr;

/// One device.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    /// Name.
    pub name: String,
    /// Its limits; absent when it could not be opened.
    pub limits: Option<DeviceLimits>,
    /// Why it could not be opened.
    pub error: Option<String>,
    /// Its ports.
    pub ports: Vec<PortReport>,
    /// Its GIDs that are in use.
    pub gids: Vec<Gid>,
}

/// One port.
#[derive(Clone, Debug, Serialize)]
pub struct PortReport {
    /// Number, from 1.
    pub number: u8,
    /// Logical state, such as `active`.
    pub state: &'static str,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: &'static str,
    /// MTU in force, in bytes.
    pub active_mtu_bytes: u32,
    /// Largest MTU, in bytes.
    pub max_mtu_bytes: u32,
    /// Bytes of one message.
    pub message_bytes_max: u32,
}

/// Asks every device of the host.
///
/// # Errors
/// libibverbs is missing, or the kernel has no verbs.
pub fn inventory() -> Result<Vec<DeviceReport>, FabricError> {
    let mut count = 0;
    // SAFETY: ibv_get_device_list requires a place for the count, and gives null on error.
    let list = unsafe { ibv_get_device_list(&raw mut count) };
    if list.is_null() {
        return Err(no_devices(errno()));
    }
    let reports = (0..usize::try_from(count).unwrap_or(0))
        .map(|i| {
            // SAFETY: the list has `count` entries, and the devices live until it is freed.
            unsafe { report(*list.add(i)) }
        })
        .collect();
    // SAFETY: the list is as ibv_get_device_list gave it, and every context is closed.
    unsafe { ibv_free_device_list(list) };
    Ok(reports)
}

/// # Safety
/// `device` is of a device list that is not freed yet.
unsafe fn report(device: *mut ibv_device) -> DeviceReport {
    // SAFETY: by this function's contract; the name is a C string of the device.
    let name = unsafe { CStr::from_ptr(ibv_get_device_name(device)) };
    let mut report = DeviceReport {
        name: name.to_string_lossy().into_owned(),
        limits: None,
        error: None,
        ports: Vec::new(),
        gids: Vec::new(),
    };
    // SAFETY: by this function's contract.
    let context = unsafe { ibv_open_device(device) };
    if context.is_null() {
        report.error = Some(format!(
            "cannot be opened: {}. Is /dev/infiniband/uverbs* there for this user?",
            errno()
        ));
        return report;
    }
    match limits(context) {
        Ok(found) => {
            report.gids = gid::table(context, found.transport == Transport::Iwarp);
            report.gids.retain(|g| !g.gid.is_unspecified());
            report.limits = Some(found);
        }
        Err(error) => report.error = Some(error.to_string()),
    }
    report.ports = (1..=u8::MAX)
        .map_while(|n| query_port(context, n).ok().map(|attr| port(n, &attr)))
        .collect();
    // SAFETY: the context was opened above, and nothing was created on it.
    unsafe { ibv_close_device(context) };
    report
}

fn port(number: u8, attr: &ibv_port_attr) -> PortReport {
    // Port states by their numbers in `enum ibv_port_state`.
    const STATES: [&str; 6] = ["nop", "down", "init", "armed", "active", "active-defer"];
    let state = usize::try_from(attr.state).ok().and_then(|s| STATES.get(s));
    PortReport {
        number,
        state: state.copied().unwrap_or("unknown"),
        link_layer: match u32::from(attr.link_layer) {
            l if l == IBV_LINK_LAYER_ETHERNET as u32 => "Ethernet",
            l if l == IBV_LINK_LAYER_INFINIBAND as u32 => "InfiniBand",
            _ => "unspecified",
        },
        active_mtu_bytes: mtu_bytes(attr.active_mtu),
        max_mtu_bytes: mtu_bytes(attr.max_mtu),
        message_bytes_max: attr.max_msg_sz,
    }
}
