//! Queue pairs: created on a lane's CQ and moved through their states.
//!
//! ```text
//!            IB and RoCE: ours                     iWARP: the id's own path
//!  create    ibv_create_qp, INIT                   rdma_create_qp (INIT)
//!  connect   rdma_connect(qp_num)                  rdma_connect
//!            CONNECT_RESPONSE → RTR, RTS,          …ESTABLISHED
//!            rdma_establish
//!  accept    RTR, RTS, rdma_accept(qp_num)         rdma_accept
//!  error     ERR                                   ERR after rdma_disconnect
//! ```
//! Why ours: with a QP of its own rdma_cm sets REMOTE_WRITE and min_rnr_timer 0 (655 ms), and
//! `rdma_accept` applies INIT again, which undoes any edit. Here access is what the offer allows and the timer is
//! [`MIN_RNR_TIMER`]. Imports device and cm; imported by mod.
#![allow(unsafe_code, reason = "libibverbs is C")]

use super::cm::Id;
use super::device::{CqHandle, complain, memlock_advice, native_access};
use super::open::{errno, query_port};
use super::window::Window;
use crate::fabric::{FabricError, QpGrant, QpSpec, Step};
use crate::limits::MIN_RNR_TIMER;
use crate::types::{QpNum, Transport};
use rdma_sys::{
    ibv_create_qp, ibv_destroy_qp, ibv_modify_qp, ibv_mtu, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask,
    ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, rdma_create_qp, rdma_destroy_qp,
    rdma_init_qp_attr,
};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// The QP itself; destroyed with the last of its two halves.
#[derive(Debug)]
struct QpInner {
    qp: NonNull<ibv_qp>,
    /// iWARP: the id that owns the QP, and must give it up.
    owner: Option<Id>,
    cq: Arc<CqHandle>,
}

// SAFETY: modifying and destroying (control) and posting (worker) may run on two threads:
// libibverbs is thread safe. A QP in a thread domain drops the lock of posts only, and posts need
// `&mut Qp`, of which there is one.
unsafe impl Send for QpInner {}
// SAFETY: as above.
unsafe impl Sync for QpInner {}

impl Drop for QpInner {
    fn drop(&mut self) {
        match &self.owner {
            // SAFETY: rdma_destroy_qp requires a QP that nobody uses, and this was its last half;
            // the id that it belongs to is alive as `owner`.
            Some(id) => unsafe { rdma_destroy_qp(id.as_ptr()) },
            None => {
                // SAFETY: ibv_destroy_qp requires a QP that nobody uses: this was its last half.
                let failed = unsafe { ibv_destroy_qp(self.qp.as_ptr()) };
                complain("ibv_destroy_qp", &self.cq.device().limits().name, failed);
            }
        }
    }
}

/// Control's half.
#[derive(Debug)]
pub struct QpControl {
    inner: Arc<QpInner>,
    number: QpNum,
}

/// The posting half; moved to the worker. Not Clone: one poster.
#[derive(Debug)]
pub struct Qp {
    /// Go before the QP: one that is bound holds it.
    windows: Vec<Window>,
    inner: Arc<QpInner>,
}

impl Qp {
    #[inline]
    pub(super) fn as_ptr(&self) -> *mut ibv_qp {
        self.inner.qp.as_ptr()
    }

    pub(super) fn windows(&self) -> &[Window] {
        &self.windows
    }
}

impl QpControl {
    pub(super) fn number(&self) -> QpNum {
        self.number
    }

    /// Whether `other` is the posting half of this QP.
    pub(super) fn pairs_with(&self, other: &Qp) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// iWARP: rdma_cm moves the QP through its states.
    pub(super) fn moved_by_cm(&self) -> bool {
        self.inner.owner.is_some()
    }

    fn ptr(&self) -> *mut ibv_qp {
        self.inner.qp.as_ptr()
    }

    fn place(&self) -> &str {
        &self.inner.cq.device().limits().name
    }

    /// RTR and RTS as rdma_cm says, edited (IB and RoCE).
    pub(super) fn ready(&mut self, id: &Id) -> Result<(), FabricError> {
        let mut attr = attributes_for(id, ibv_qp_state::IBV_QPS_RTR, Step::ToRtr, self.place())?;
        attr.values.min_rnr_timer = MIN_RNR_TIMER;
        let port = query_port(self.inner.cq.device().context(), id.port())
            .map_err(|e| FabricError::new(Step::ToRtr, self.place(), e))?;
        if attr.values.path_mtu > port.active_mtu {
            // A smaller MTU on one side alone breaks RC, and a raw handshake has no room to agree.
            let error = io::Error::from(io::ErrorKind::InvalidInput);
            return Err(FabricError::new(Step::ToRtr, self.place(), error).advise(format!(
                "The peer's path MTU is {} B, the port here allows {} B: set both links to one MTU \
                 (`ip link set DEV mtu N`)",
                mtu_bytes(attr.values.path_mtu),
                mtu_bytes(port.active_mtu)
            )));
        }
        if port.link_layer == rdma_sys::IBV_LINK_LAYER_INFINIBAND {
            // Kernels set RoCE-only bits of the mask on InfiniBand too, and then refuse them.
            attr.mask &= !0x00e0_0000;
        }
        super::gid::log_choice(self.inner.cq.device().context(), id, &attr.values);
        self.modify(&mut attr, Step::ToRtr)?;
        let mut attr = attributes_for(id, ibv_qp_state::IBV_QPS_RTS, Step::ToRts, self.place())?;
        self.modify(&mut attr, Step::ToRts)
    }

    /// ERR: everything outstanding is flushed.
    pub(super) fn fail(&mut self) -> Result<(), FabricError> {
        let mut attr = Attributes::to_state(ibv_qp_state::IBV_QPS_ERR);
        self.modify(&mut attr, Step::ToErr)
    }

    fn modify(&mut self, attr: &mut Attributes, step: Step) -> Result<(), FabricError> {
        modify(self.ptr(), attr).map_err(|e| FabricError::new(step, self.place(), e))
    }
}

struct Attributes {
    values: ibv_qp_attr,
    mask: i32,
}

impl Attributes {
    fn to_state(state: ibv_qp_state::Type) -> Self {
        // SAFETY: zero is a valid value of every field: integers and GID bytes.
        let mut values: ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        values.qp_state = state;
        let mask = i32::try_from(ibv_qp_attr_mask::IBV_QP_STATE.0).unwrap_or(1);
        Self { values, mask }
    }
}

/// What rdma_cm would set to reach `state`.
fn attributes_for(
    id: &Id,
    state: ibv_qp_state::Type,
    step: Step,
    place: &str,
) -> Result<Attributes, FabricError> {
    let mut attr = Attributes::to_state(state);
    // SAFETY: rdma_init_qp_attr requires a live id, and an attribute whose qp_state is set.
    let failed =
        unsafe { rdma_init_qp_attr(id.as_ptr(), &raw mut attr.values, &raw mut attr.mask) };
    if failed != 0 {
        return Err(FabricError::new(step, place, errno()));
    }
    Ok(attr)
}

fn modify(qp: *mut ibv_qp, attr: &mut Attributes) -> io::Result<()> {
    // SAFETY: ibv_modify_qp requires a live QP, which the caller's half keeps, and attributes for
    // the mask, which `Attributes` holds together.
    match unsafe { ibv_modify_qp(qp, &raw mut attr.values, attr.mask) } {
        0 => Ok(()),
        e => Err(io::Error::from_raw_os_error(e.abs())),
    }
}

/// Creates the QP of a connection in INIT.
pub(super) fn create(
    id: &Id,
    cq: &Arc<CqHandle>,
    spec: &QpSpec,
) -> Result<(QpControl, Qp, QpGrant), FabricError> {
    let limits = cq.device().limits();
    let iwarp = limits.transport == Transport::Iwarp;
    let fail = |step, e: io::Error| {
        let full = e.raw_os_error() == Some(libc::ENOMEM);
        let error = FabricError::new(step, &limits.name, e);
        if full {
            error.advise(memlock_advice())
        } else {
            error
        }
    };
    if spec.shared_receives && cq.srq_ptr().is_none() {
        let error = io::Error::from(io::ErrorKind::InvalidInput);
        return Err(FabricError::new(Step::CreateQp, &limits.name, error)
            .advise("The lane has no shared receive queue for its QPs"));
    }
    // The inline size that a device grants is not to be had from a query: asked, then halved.
    let mut inline = spec.inline_bytes;
    let (qp, inline_granted) = loop {
        let mut init = init_attributes(cq, spec, inline);
        match create_native(id, cq, &mut init, iwarp) {
            Ok(qp) => break (qp, init.cap.max_inline_data),
            Err(_) if inline > 0 => inline = if inline > 16 { inline / 2 } else { 0 },
            Err(e) => return Err(fail(Step::CreateQp, e)),
        }
    };
    // SAFETY: `qp` was created just now.
    let number = QpNum(unsafe { (*qp.as_ptr()).qp_num });
    let owner = iwarp.then(|| id.clone());
    let inner = Arc::new(QpInner {
        qp,
        owner,
        cq: Arc::clone(cq),
    });
    let control = QpControl {
        inner: Arc::clone(&inner),
        number,
    };
    if !iwarp {
        let mut attr = attributes_for(id, ibv_qp_state::IBV_QPS_INIT, Step::ToInit, &limits.name)?;
        attr.values.qp_access_flags = native_access(spec.access);
        modify(qp.as_ptr(), &mut attr).map_err(|e| fail(Step::ToInit, e))?;
    }
    let grant = QpGrant {
        number,
        inline_bytes: inline_granted.min(spec.inline_bytes),
        message_bytes_max: limits.message_bytes_max,
        loose: iwarp,
        abilities: limits.abilities,
    };
    let wanted = if limits.abilities.windows {
        spec.windows
    } else {
        0
    };
    let windows = (0..wanted).map(|_| Window::create(cq.device()));
    let windows = windows.collect::<io::Result<_>>();
    let windows = windows.map_err(|e| fail(Step::AllocWindow, e))?;
    Ok((control, Qp { windows, inner }, grant))
}

fn init_attributes(cq: &CqHandle, spec: &QpSpec, inline: u32) -> ibv_qp_init_attr {
    let sges = u32::from(cq.device().limits().abilities.sges);
    ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: cq.as_ptr(),
        recv_cq: cq.as_ptr(),
        srq: if spec.shared_receives {
            cq.srq_ptr().unwrap_or(ptr::null_mut())
        } else {
            ptr::null_mut()
        },
        cap: ibv_qp_cap {
            max_send_wr: spec.send_depth,
            max_recv_wr: if spec.shared_receives {
                0
            } else {
                spec.recv_depth
            },
            max_send_sge: sges,
            max_recv_sge: 1,
            max_inline_data: inline,
        },
        qp_type: ibv_qp_type::IBV_QPT_RC,
        sq_sig_all: 0,
    }
}

fn create_native(
    id: &Id,
    cq: &CqHandle,
    init: &mut ibv_qp_init_attr,
    iwarp: bool,
) -> io::Result<NonNull<ibv_qp>> {
    if iwarp {
        // SAFETY: rdma_create_qp requires a live id bound to the device of the PD and CQ: control
        // chose the lane by the id's device, and `Verbs::create_qp` checked it.
        if unsafe { rdma_create_qp(id.as_ptr(), cq.qp_pd(), init) } != 0 {
            return Err(errno());
        }
        // SAFETY: rdma_create_qp set the id's qp.
        NonNull::new(unsafe { (*id.as_ptr()).qp }).ok_or_else(|| io::ErrorKind::Other.into())
    } else {
        // SAFETY: ibv_create_qp requires a PD and CQs of one context: both are the lane's.
        NonNull::new(unsafe { ibv_create_qp(cq.qp_pd(), init) }).ok_or_else(errno)
    }
}

/// Bytes of an MTU code (`enum ibv_mtu`).
pub(super) fn mtu_bytes(code: ibv_mtu::Type) -> u32 {
    128u32.checked_shl(code).unwrap_or(0)
}
