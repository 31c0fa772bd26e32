//! A fabric of types only: what the mailbox needs to be instantiated.

use super::*;

pub(super) struct Bare;

#[derive(Clone)]
pub(super) struct BareDevice;
pub(super) struct BareRegistration;
pub(super) struct BareLane;
#[derive(Clone, Copy)]
pub(super) struct BareWc;

impl Registrar for BareDevice {
    type Registration = BareRegistration;
    fn register(&self, _: std::sync::Arc<Region>, _: Access) -> std::io::Result<BareRegistration> {
        unreachable!()
    }
}

impl Registration for BareRegistration {
    fn lkey(&self) -> Lkey {
        unreachable!()
    }
    fn rkey(&self) -> Rkey {
        unreachable!()
    }
}

impl WorkCompletion for BareWc {
    fn wr_id(&self) -> u64 {
        unreachable!()
    }
    fn status(&self) -> WcStatus {
        unreachable!()
    }
    fn is_success(&self) -> bool {
        unreachable!()
    }
    fn opcode(&self) -> WcOpcode {
        unreachable!()
    }
    fn byte_len(&self) -> u32 {
        unreachable!()
    }
    fn note(&self) -> Note {
        unreachable!()
    }
    fn qp_num(&self) -> QpNum {
        unreachable!()
    }
    fn vendor_err(&self) -> u32 {
        unreachable!()
    }
}

impl Lane for BareLane {
    type Qp = Half;
    type Wc = BareWc;
    fn blank() -> BareWc {
        BareWc
    }
    fn poll(&mut self, _: &mut [BareWc]) -> usize {
        unreachable!()
    }
    fn post_send(&mut self, _: &mut Half, _: &[SendWr], _: &[MoreSges]) -> Result<(), PostFailure> {
        unreachable!()
    }
    fn post_shared_recv(&mut self, _: &[RecvWr]) -> Result<(), PostFailure> {
        unreachable!()
    }
    fn post_recv(&mut self, _: &mut Half, _: &[RecvWr]) -> Result<(), PostFailure> {
        unreachable!()
    }
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        unreachable!()
    }
    fn arm(&mut self) -> Result<(), i32> {
        unreachable!()
    }
    fn drain_events(&mut self) {
        unreachable!()
    }
}

impl Fabric for Bare {
    type Device = BareDevice;
    type Lane = BareLane;
    type Cq = ();
    type Qp = Half;
    type QpControl = Half;
    type Id = ();

    fn forget_device(&mut self, _: &str) -> bool {
        unreachable!()
    }
    fn devices(&self) -> Vec<BareDevice> {
        unreachable!()
    }
    fn limits(_: &BareDevice) -> &DeviceLimits {
        unreachable!()
    }
    fn create_lane(
        &mut self,
        _: &BareDevice,
        _: &LaneSpec,
    ) -> Result<((), BareLane, LaneGrant), FabricError> {
        unreachable!()
    }
    fn event_fd(&self) -> BorrowedFd<'_> {
        unreachable!()
    }
    fn next_event(&mut self) -> Result<Option<CmEvent<()>>, FabricError> {
        unreachable!()
    }
    fn async_fds(&self) -> Vec<BorrowedFd<'_>> {
        unreachable!()
    }
    fn next_async_event(&mut self) -> Option<AsyncEvent> {
        unreachable!()
    }
    fn key((): &()) -> IdKey {
        unreachable!()
    }
    fn listen(&mut self, _: &Endpoint, _: u32) -> Result<(), FabricError> {
        unreachable!()
    }
    fn local_endpoint(&self, (): &()) -> Option<Endpoint> {
        unreachable!()
    }
    fn peer_endpoint(&self, (): &()) -> Option<Endpoint> {
        unreachable!()
    }
    fn resolve_address(&mut self, _: &Endpoint, _: Duration) -> Result<(), FabricError> {
        unreachable!()
    }
    fn resolve_route(&mut self, (): &mut (), _: Duration) -> Result<(), FabricError> {
        unreachable!()
    }
    fn device_name(&self, (): &()) -> Option<String> {
        unreachable!()
    }
    fn create_qp(
        &mut self,
        (): &mut (),
        (): &(),
        _: &QpSpec,
    ) -> Result<(Half, Half, QpGrant), FabricError> {
        unreachable!()
    }
    fn connect(&mut self, (): &mut (), _: &mut Half, _: &ConnParams) -> Result<(), FabricError> {
        unreachable!()
    }
    fn confirm(&mut self, (): &mut (), _: &mut Half) -> Result<(), FabricError> {
        unreachable!()
    }
    fn accept(&mut self, (): &mut (), _: &mut Half, _: &ConnParams) -> Result<(), FabricError> {
        unreachable!()
    }
    fn reject(&mut self, (): &mut (), _: &PrivateData) -> Result<(), FabricError> {
        unreachable!()
    }
    fn notify_established(&mut self, (): &mut ()) {
        unreachable!()
    }
    fn disconnect(&mut self, (): &mut ()) -> Result<(), FabricError> {
        unreachable!()
    }
    fn set_error(&mut self, (): &mut (), _: &mut Half) -> Result<(), FabricError> {
        unreachable!()
    }
    fn destroy_qp(&mut self, (): &mut (), _: Half, _: Half) {
        unreachable!()
    }
    fn destroy_id(&mut self, (): ()) {
        unreachable!()
    }
}
