//! Asynchronous device events, read as integers: a number that the bindings' enum does not know
//! would be undefined behaviour.
#![allow(unsafe_code, reason = "libibverbs is C")]

use super::device::Device;
use super::open::set_nonblocking;
use crate::fabric::{AsyncEvent, AsyncSubject, FabricError, Step};
use crate::types::QpNum;
use rdma_sys::{
    ibv_ack_async_event, ibv_async_event, ibv_event_type as event, ibv_get_async_event,
};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

pub(super) fn fd(device: &Device) -> BorrowedFd<'_> {
    // SAFETY: the context and its async fd are open for as long as librdmacm keeps the device.
    unsafe { BorrowedFd::borrow_raw((*device.context()).async_fd) }
}

pub(super) fn prepare(device: &Device) -> Result<(), FabricError> {
    set_nonblocking(fd(device)).map_err(|e| FabricError::new(Step::Open, &device.limits().name, e))
}

/// The next event of a device, acknowledged.
pub(super) fn next(device: &Device) -> Option<AsyncEvent> {
    let mut raw = MaybeUninit::<ibv_async_event>::zeroed();
    // SAFETY: ibv_get_async_event requires a live context and a place for the event; the fd is
    // non-blocking.
    if unsafe { ibv_get_async_event(device.context(), raw.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: `event_type` is a C enum, so an int; it is read as one, without forming the enum.
    let number = unsafe { (&raw const (*raw.as_ptr()).event_type).cast::<i32>().read() };
    let about = subject(number, &raw);
    // SAFETY: ibv_ack_async_event requires the event that was got, once. The QP it names is alive
    // until the acknowledgement: ibv_destroy_qp waits for it.
    unsafe { ibv_ack_async_event(raw.as_mut_ptr()) };
    Some(AsyncEvent {
        device: device.limits().name.clone(),
        subject: about,
        name: describe(number).into(),
        comm_est: number == event::IBV_EVENT_COMM_EST as i32,
        fatal: FATAL.contains(&number),
        removed: false,
    })
}

const FATAL: [i32; 6] = [
    event::IBV_EVENT_CQ_ERR as i32,
    event::IBV_EVENT_QP_FATAL as i32,
    event::IBV_EVENT_QP_REQ_ERR as i32,
    event::IBV_EVENT_QP_ACCESS_ERR as i32,
    event::IBV_EVENT_DEVICE_FATAL as i32,
    event::IBV_EVENT_SRQ_ERR as i32,
];

fn subject(number: i32, raw: &MaybeUninit<ibv_async_event>) -> AsyncSubject {
    let element = raw.as_ptr();
    match number {
        0 => AsyncSubject::Cq,
        // QP events by their numbers in `enum ibv_event_type`.
        1..=7 | 16 => {
            // SAFETY: these numbers say that `qp` is the arm, and it lives until acknowledged.
            AsyncSubject::Qp(QpNum(unsafe { (*(*element).element.qp).qp_num }))
        }
        9..=13 | 17 | 18 => {
            // SAFETY: these numbers say that `port_num` is the arm.
            let port = unsafe { (*element).element.port_num };
            AsyncSubject::Port(u8::try_from(port).unwrap_or(0))
        }
        14 | 15 => AsyncSubject::Srq,
        _ => AsyncSubject::Device,
    }
}

fn describe(number: i32) -> &'static str {
    const NAMES: [&str; 21] = [
        "CQ error",
        "QP fatal",
        "QP request error",
        "QP access error",
        "communication established",
        "send queue drained",
        "path migrated",
        "path migration failed",
        "device fatal",
        "port active",
        "port error",
        "LID change",
        "pkey change",
        "SM change",
        "SRQ error",
        "SRQ limit reached",
        "last WQE reached",
        "client reregister",
        "GID change",
        "WQ fatal",
        "device speed change",
    ];
    usize::try_from(number)
        .ok()
        .and_then(|n| NAMES.get(n))
        .copied()
        .unwrap_or("unknown event")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_numbers() {
        assert_eq!(
            describe(event::IBV_EVENT_COMM_EST as i32),
            "communication established"
        );
        assert_eq!(describe(event::IBV_EVENT_GID_CHANGE as i32), "GID change");
        assert_eq!(
            describe(event::IBV_EVENT_DEVICE_SPEED_CHANGE as i32),
            "device speed change"
        );
        assert_eq!(describe(-1), "unknown event");
        assert_eq!(describe(4711), "unknown event");
    }
}
