//! Type-2 memory windows: access for one connection, ended without touching the registration.
//!
//! ```text
//!  create_qp ─► Window (free) ─ bind ─► a part of an MR, by a key of its own ─ invalidate ─► free
//! ```
//! A window belongs to its QP's posting half and dies before the QP, for one that is bound holds it.
//! Imports device. Imported by queue_pair and lane.
#![allow(unsafe_code, reason = "libibverbs is C")]

use super::device::{Device, complain};
use super::open::errno;
use crate::types::Rkey;
use rdma_sys::{ibv_alloc_mw, ibv_dealloc_mw, ibv_mw, ibv_mw_type};
use std::io;
use std::ptr::NonNull;

/// One window.
#[derive(Debug)]
pub(super) struct Window {
    mw: NonNull<ibv_mw>,
    device: Device,
}

// SAFETY: libibverbs is thread safe; the window moves with the half that owns it.
unsafe impl Send for Window {}

impl Window {
    pub(super) fn create(device: &Device) -> io::Result<Self> {
        // SAFETY: ibv_alloc_mw requires a live PD: `device` holds it.
        let mw = unsafe { ibv_alloc_mw(device.pd(), ibv_mw_type::IBV_MW_TYPE_2) };
        let mw = NonNull::new(mw).ok_or_else(errno)?;
        let device = device.clone();
        Ok(Self { mw, device })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_mw {
        self.mw.as_ptr()
    }

    /// The key that it has now.
    pub(super) fn rkey(&self) -> Rkey {
        // SAFETY: the window lives as long as `self`; only the thread that has the half reads or
        // writes the field.
        Rkey(unsafe { (*self.mw.as_ptr()).rkey })
    }

    /// A bind that gives it this key was posted.
    pub(super) fn rekey(&self, rkey: Rkey) {
        // SAFETY: as in `rkey`; providers take the key of the next bind's window from here
        // (`ibv_bind_mw(3)`: for type 2 the caller keeps it).
        unsafe { (*self.mw.as_ptr()).rkey = rkey.0 };
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: ibv_dealloc_mw requires a live window; a bound one is unbound by it.
        let failed = unsafe { ibv_dealloc_mw(self.mw.as_ptr()) };
        complain("ibv_dealloc_mw", &self.device.limits().name, failed);
    }
}
