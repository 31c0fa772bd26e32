//! rdma_cm: ids, the event channel, addresses. Every event is copied out and acknowledged at once,
//! for an event that is not blocks `rdma_destroy_id` for ever.
#![allow(unsafe_code, reason = "librdmacm is C")]

use super::open::{errno, name, no_devices, set_nonblocking};
use crate::fabric::{
    CmEvent, CmEventKind, ConnParams, Endpoint, FabricError, IdKey, PrivateData, Step,
};
use crate::types::QpNum;
use rdma_sys::{
    ibv_event_type, rdma_accept, rdma_ack_cm_event, rdma_bind_addr, rdma_cm_event,
    rdma_cm_event_type as kind, rdma_cm_id, rdma_conn_param, rdma_connect,
    rdma_create_event_channel, rdma_create_id, rdma_destroy_event_channel, rdma_destroy_id,
    rdma_disconnect, rdma_establish, rdma_event_channel, rdma_get_cm_event, rdma_listen,
    rdma_port_space, rdma_reject, rdma_resolve_addr, rdma_resolve_route,
};
use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

#[derive(Debug)]
struct ChannelInner(NonNull<rdma_event_channel>);

// SAFETY: librdmacm is thread safe; the channel is a file descriptor.
unsafe impl Send for ChannelInner {}
// SAFETY: as above.
unsafe impl Sync for ChannelInner {}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: rdma_destroy_event_channel requires that every id of it is destroyed: each holds
        // an Arc of this value.
        unsafe { rdma_destroy_event_channel(self.0.as_ptr()) };
    }
}

/// The event channel of one fabric.
#[derive(Debug)]
pub(super) struct Channel(Arc<ChannelInner>);

/// An rdma_cm id. Clones name the same id; it is destroyed with the last.
#[derive(Clone, Debug)]
pub struct Id(Arc<IdInner>);

#[derive(Debug)]
struct IdInner {
    id: NonNull<rdma_cm_id>,
    _channel: Arc<ChannelInner>,
}

// SAFETY: librdmacm is thread safe; the fields that are read here change only in calls on control.
unsafe impl Send for IdInner {}
// SAFETY: as above.
unsafe impl Sync for IdInner {}

impl Drop for IdInner {
    fn drop(&mut self) {
        // SAFETY: rdma_destroy_id requires a live id whose QP is destroyed (an iWARP QP holds a
        // clone of the id until then) and whose events are acknowledged (`next_event` does at
        // once), or it would block.
        let _ = unsafe { rdma_destroy_id(self.id.as_ptr()) };
    }
}

impl Id {
    pub(super) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.0.id.as_ptr()
    }

    pub(super) fn key(&self) -> IdKey {
        IdKey(self.as_ptr() as u64)
    }

    pub(super) fn port(&self) -> u8 {
        // SAFETY: the id is live.
        unsafe { (*self.as_ptr()).port_num }
    }

    /// Name of the device the id is bound to.
    pub(super) fn device_name(&self) -> Option<String> {
        // SAFETY: the id is live; `verbs` is null until the id is bound.
        let context = NonNull::new(unsafe { (*self.as_ptr()).verbs })?;
        Some(name(context.as_ptr()))
    }

    pub(super) fn local(&self) -> Option<Endpoint> {
        // SAFETY: the id is live; the union is as large as sockaddr_storage and zeroed at first.
        let addr = unsafe { &(*self.as_ptr()).route.addr.src_addr_union.src_storage };
        read_address(addr).map(Endpoint::Rdma)
    }

    pub(super) fn peer(&self) -> Option<Endpoint> {
        // SAFETY: as above.
        let addr = unsafe { &(*self.as_ptr()).route.addr.dst_addr_union.dst_storage };
        read_address(addr).map(Endpoint::Rdma)
    }

    fn check(&self, result: i32, step: Step, place: &impl ToString) -> Result<(), FabricError> {
        if result == 0 {
            Ok(())
        } else {
            Err(FabricError::new(step, place.to_string(), errno()))
        }
    }

    pub(super) fn resolve_route(&self, timeout: Duration) -> Result<(), FabricError> {
        // SAFETY: rdma_resolve_route requires a live id.
        let r = unsafe { rdma_resolve_route(self.as_ptr(), milliseconds(timeout)) };
        self.check(r, Step::ResolveRoute, &self.place())
            .map_err(|e| e.advise(unresolved_advice()))
    }

    pub(super) fn connect(&self, params: &mut rdma_conn_param) -> Result<(), FabricError> {
        // SAFETY: rdma_connect requires a live id with its route resolved, else it fails, and
        // parameters whose private data lives during the call: `native_params` borrows it.
        let r = unsafe { rdma_connect(self.as_ptr(), params) };
        self.check(r, Step::Connect, &self.place())
    }

    pub(super) fn accept(&self, params: &mut rdma_conn_param) -> Result<(), FabricError> {
        // SAFETY: as for rdma_connect, with a request's id.
        let r = unsafe { rdma_accept(self.as_ptr(), params) };
        self.check(r, Step::Accept, &self.place())
    }

    pub(super) fn establish(&self) -> Result<(), FabricError> {
        // SAFETY: rdma_establish requires a live id without a QP of its own.
        let r = unsafe { rdma_establish(self.as_ptr()) };
        self.check(r, Step::Establish, &self.place())
    }

    pub(super) fn reject(&self, data: &PrivateData) -> Result<(), FabricError> {
        let bytes = data.as_slice();
        let len = u8::try_from(bytes.len()).unwrap_or(0);
        // SAFETY: rdma_reject requires a request's id and private data of the length given.
        let r = unsafe { rdma_reject(self.as_ptr(), bytes.as_ptr().cast(), len) };
        self.check(r, Step::Reject, &self.place())
    }

    pub(super) fn disconnect(&self) -> Result<(), FabricError> {
        // SAFETY: rdma_disconnect requires a live id that is bound to a device.
        let r = unsafe { rdma_disconnect(self.as_ptr()) };
        self.check(r, Step::Disconnect, &self.place())
    }

    pub(super) fn notify_established(&self) {
        let Some(rdma_notify) = notify_symbol() else {
            return;
        };
        // SAFETY: rdma_notify requires a live id. It fails where the handshake was done already,
        // and then there is nothing to tell.
        let _ = unsafe { rdma_notify(self.as_ptr(), ibv_event_type::IBV_EVENT_COMM_EST as i32) };
    }

    /// The peer or local address, for errors.
    pub(super) fn place(&self) -> String {
        self.peer()
            .or_else(|| self.local())
            .map_or_else(|| "an id".into(), |e| e.to_string())
    }
}

impl Channel {
    pub(super) fn open() -> Result<Self, FabricError> {
        // SAFETY: rdma_create_event_channel has no precondition.
        let channel = NonNull::new(unsafe { rdma_create_event_channel() })
            .ok_or_else(|| no_devices(errno()))?;
        let channel = Self(Arc::new(ChannelInner(channel)));
        set_nonblocking(channel.fd()).map_err(|e| FabricError::new(Step::Open, "rdma_cm", e))?;
        Ok(channel)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's fd is open until `drop`; the borrow is tied to `self`.
        unsafe { BorrowedFd::borrow_raw((*self.0.0.as_ptr()).fd) }
    }

    fn create_id(&self, place: &Endpoint) -> Result<Id, FabricError> {
        let mut id = ptr::null_mut();
        // SAFETY: rdma_create_id requires a live channel and a place for the id.
        let r = unsafe {
            rdma_create_id(
                self.0.0.as_ptr(),
                &raw mut id,
                ptr::null_mut(),
                rdma_port_space::RDMA_PS_TCP,
            )
        };
        match NonNull::new(id) {
            Some(id) if r == 0 => Ok(self.own(id)),
            _ => Err(FabricError::new(Step::CreateId, place.to_string(), errno())),
        }
    }

    fn own(&self, id: NonNull<rdma_cm_id>) -> Id {
        Id(Arc::new(IdInner {
            id,
            _channel: Arc::clone(&self.0),
        }))
    }

    pub(super) fn listen(&self, at: &Endpoint, backlog: u32) -> Result<Id, FabricError> {
        let addr = socket_address(at, Step::Bind)?;
        let id = self.create_id(at)?;
        let mut native = native_address(addr);
        // SAFETY: rdma_bind_addr requires a live id and an address as long as its family says.
        let r = unsafe { rdma_bind_addr(id.as_ptr(), (&raw mut native).cast()) };
        id.check(r, Step::Bind, at)
            .map_err(|e| match e.source.raw_os_error() {
                Some(libc::EADDRINUSE) => e.advise("Another listener has the port: choose another"),
                Some(libc::EADDRNOTAVAIL | libc::ENODEV) => e.advise(
                    "No RDMA device has this address: see `spinwire devices` and `ip addr`",
                ),
                _ => e,
            })?;
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        // SAFETY: rdma_listen requires a bound id.
        let r = unsafe { rdma_listen(id.as_ptr(), backlog) };
        id.check(r, Step::Listen, at)?;
        Ok(id)
    }

    pub(super) fn resolve_address(
        &self,
        peer: &Endpoint,
        timeout: Duration,
    ) -> Result<Id, FabricError> {
        let addr = socket_address(peer, Step::ResolveAddress)?;
        let id = self.create_id(peer)?;
        let mut native = native_address(addr);
        // SAFETY: rdma_resolve_addr requires a live id, a destination as long as its family says,
        // and takes a null source to mean any.
        let r = unsafe {
            rdma_resolve_addr(
                id.as_ptr(),
                ptr::null_mut(),
                (&raw mut native).cast(),
                milliseconds(timeout),
            )
        };
        id.check(r, Step::ResolveAddress, peer)
            .map_err(|e| e.advise(unresolved_advice()))?;
        Ok(id)
    }

    /// The next event, acknowledged. `Ok(None)` when nothing waits.
    pub(super) fn next_event(&self) -> Result<Option<CmEvent<Id>>, FabricError> {
        let mut event: *mut rdma_cm_event = ptr::null_mut();
        // SAFETY: rdma_get_cm_event requires a live channel and a place for the event. The fd is
        // non-blocking, so it fails with EAGAIN rather than wait.
        let r = unsafe { rdma_get_cm_event(self.0.0.as_ptr(), &raw mut event) };
        if r != 0 {
            let error = errno();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(FabricError::new(Step::Event, "rdma_cm", error)),
            };
        }
        // SAFETY: on success `event` names an event that lives until it is acknowledged, below.
        let copied = unsafe { self.copy(&*event) };
        // SAFETY: rdma_ack_cm_event requires an event that was got and not yet acknowledged.
        unsafe { rdma_ack_cm_event(event) };
        Ok(copied)
    }

    /// # Safety
    /// `event` is as rdma_get_cm_event gave it, not yet acknowledged.
    unsafe fn copy(&self, event: &rdma_cm_event) -> Option<CmEvent<Id>> {
        let kind = translate(event.event);
        let request = if kind == CmEventKind::ConnectRequest {
            // The id of a request is new and ours (rdma_get_cm_event(3)).
            Some(self.own(NonNull::new(event.id)?))
        } else {
            None
        };
        let about = if request.is_some() {
            event.listen_id
        } else {
            event.id
        };
        // SAFETY: ids of the TCP port space carry the `conn` arm.
        let conn = unsafe { &event.param.conn };
        let data = if conn.private_data.is_null() || conn.private_data_len == 0 {
            PrivateData::EMPTY
        } else {
            // SAFETY: private_data points to private_data_len bytes until the event is
            // acknowledged.
            PrivateData::received(unsafe {
                std::slice::from_raw_parts(
                    conn.private_data.cast::<u8>(),
                    usize::from(conn.private_data_len),
                )
            })
        };
        Some(CmEvent {
            id: IdKey(about as u64),
            kind,
            status: event.status,
            private_data: data,
            responder_resources: conn.responder_resources,
            initiator_depth: conn.initiator_depth,
            request,
        })
    }
}

type Notify = unsafe extern "C" fn(*mut rdma_cm_id, i32) -> i32;

/// `rdma_notify` is declared by rdma-sys but not among the symbols that it loads, so it is asked of
/// the library, which is loaded by then.
fn notify_symbol() -> Option<Notify> {
    static SYMBOL: OnceLock<Option<Notify>> = OnceLock::new();
    *SYMBOL.get_or_init(|| {
        // SAFETY: dlopen and dlsym require C strings; RTLD_NOLOAD only finds what is loaded.
        let symbol = unsafe {
            let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD;
            let library = libc::dlopen(c"librdmacm.so.1".as_ptr(), flags);
            if library.is_null() {
                return None;
            }
            libc::dlsym(library, c"rdma_notify".as_ptr())
        };
        // SAFETY: the symbol is `int rdma_notify(struct rdma_cm_id *, enum ibv_event_type)`
        // (rdma_notify(3)); a C enum is passed as an int, and null is None.
        unsafe { std::mem::transmute::<*mut libc::c_void, Option<Notify>>(symbol) }
    })
}

fn translate(event: kind::Type) -> CmEventKind {
    match event {
        kind::RDMA_CM_EVENT_ADDR_RESOLVED => CmEventKind::AddrResolved,
        kind::RDMA_CM_EVENT_ADDR_ERROR => CmEventKind::AddrError,
        kind::RDMA_CM_EVENT_ROUTE_RESOLVED => CmEventKind::RouteResolved,
        kind::RDMA_CM_EVENT_ROUTE_ERROR => CmEventKind::RouteError,
        kind::RDMA_CM_EVENT_CONNECT_REQUEST => CmEventKind::ConnectRequest,
        kind::RDMA_CM_EVENT_CONNECT_RESPONSE => CmEventKind::ConnectResponse,
        kind::RDMA_CM_EVENT_CONNECT_ERROR => CmEventKind::ConnectError,
        kind::RDMA_CM_EVENT_UNREACHABLE => CmEventKind::Unreachable,
        kind::RDMA_CM_EVENT_REJECTED => CmEventKind::Rejected,
        kind::RDMA_CM_EVENT_ESTABLISHED => CmEventKind::Established,
        kind::RDMA_CM_EVENT_DISCONNECTED => CmEventKind::Disconnected,
        kind::RDMA_CM_EVENT_DEVICE_REMOVAL => CmEventKind::DeviceRemoval,
        kind::RDMA_CM_EVENT_MULTICAST_JOIN => CmEventKind::MulticastJoin,
        kind::RDMA_CM_EVENT_MULTICAST_ERROR => CmEventKind::MulticastError,
        kind::RDMA_CM_EVENT_ADDR_CHANGE => CmEventKind::AddrChange,
        kind::RDMA_CM_EVENT_TIMEWAIT_EXIT => CmEventKind::TimewaitExit,
        other => CmEventKind::Unknown(other),
    }
}

/// The handshake's parameters as rdma_cm wants them. The result borrows `params`.
pub(super) fn native_params(params: &ConnParams, qp: QpNum) -> rdma_conn_param {
    let data = params.private_data.as_slice();
    rdma_conn_param {
        private_data: if data.is_empty() {
            ptr::null()
        } else {
            data.as_ptr().cast()
        },
        private_data_len: u8::try_from(data.len()).unwrap_or(0),
        responder_resources: params.responder_resources,
        initiator_depth: params.initiator_depth,
        flow_control: 1,
        retry_count: params.retry_count,
        rnr_retry_count: params.rnr_retry_count,
        srq: 0,
        qp_num: qp.0,
    }
}

pub(super) fn unresolved_advice() -> &'static str {
    "No RDMA device reaches this address: see `ip route get ADDRESS` and `spinwire devices`"
}

fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX).max(1)
}

fn socket_address(endpoint: &Endpoint, step: Step) -> Result<SocketAddr, FabricError> {
    match endpoint {
        Endpoint::Rdma(addr) => Ok(*addr),
        Endpoint::Shm(_) => Err(FabricError::new(
            step,
            endpoint.to_string(),
            io::Error::from(io::ErrorKind::Unsupported),
        )
        .advise("The verbs fabric takes rdma://HOST:PORT")),
    }
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "families are small constants"
)]
const AF_INET: libc::sa_family_t = libc::AF_INET as libc::sa_family_t;
#[allow(
    clippy::cast_possible_truncation,
    reason = "families are small constants"
)]
const AF_INET6: libc::sa_family_t = libc::AF_INET6 as libc::sa_family_t;

fn native_address(addr: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: zero is a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
    match addr {
        SocketAddr::V4(a) => {
            // SAFETY: sockaddr_storage is as large and as aligned as each sockaddr (POSIX).
            let s = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in>() };
            s.sin_family = AF_INET;
            s.sin_port = a.port().to_be();
            s.sin_addr.s_addr = u32::from_ne_bytes(a.ip().octets());
        }
        SocketAddr::V6(a) => {
            // SAFETY: as above.
            let s = unsafe { &mut *(&raw mut storage).cast::<libc::sockaddr_in6>() };
            s.sin6_family = AF_INET6;
            s.sin6_port = a.port().to_be();
            s.sin6_flowinfo = a.flowinfo();
            s.sin6_addr.s6_addr = a.ip().octets();
            s.sin6_scope_id = a.scope_id();
        }
    }
    storage
}

fn read_address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which sockaddr it is.
            let s = unsafe { &*ptr::from_ref(storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(s.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::V4(SocketAddrV4::new(
                ip,
                u16::from_be(s.sin_port),
            )))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let s = unsafe { &*ptr::from_ref(storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(s.sin6_addr.s6_addr);
            let port = u16::from_be(s.sin6_port);
            Some(SocketAddr::V6(SocketAddrV6::new(
                ip,
                port,
                s.sin6_flowinfo,
                s.sin6_scope_id,
            )))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_there_and_back() {
        for text in [
            "10.9.0.1:7471",
            "[2001:db8::1]:1",
            "[fe80::1%3]:65535",
            "0.0.0.0:0",
        ] {
            let addr: SocketAddr = text.parse().expect("an address");
            assert_eq!(read_address(&native_address(addr)), Some(addr));
        }
    }

    #[test]
    fn every_event_number_has_a_kind() {
        for (want, number) in CmEventKind::ALL[..16].iter().zip(0..) {
            assert_eq!(translate(number), *want);
        }
        assert_eq!(translate(16), CmEventKind::Unknown(16));
    }
}
