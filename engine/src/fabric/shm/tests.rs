//! Lanes against hostile peers, many connections, and threads.
//!
//! ```text
//!  Rig: one fabric, two lanes, connections between them ─► hostile   scribbled inboxes, keys, grants
//!                                                       ─► many      more than are hot; threads
//!                                                       ─► sleeping  whom to wake
//! ```
//! Run in the unit tests only.

mod hostile;
mod many;
mod sleeping;

use super::*;
use crate::fabric::{
    CmEventKind, Fabric, Lane, LaneSpec, PlainWc, PrivateData, QpSpec, RecvWr, SendOp, SendWr,
    WcStatus, WorkCompletion,
};
use crate::memory::{Region, Registrar, Registration};
use crate::sys::memfd::Memfd;
use crate::types::{Lkey, RemoteSpan, Rkey};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
const BYTES: usize = 1 << 20;

/// One end of a connection.
struct End {
    id: ShmId,
    control: ShmQpControl,
    qp: ShmQp,
    inbox: Arc<Memfd>,
}

struct Rig {
    fabric: Shm,
    lanes: [ShmLane; 2],
    cqs: [ShmCq; 2],
    region: Arc<Region>,
    registration: ShmRegistration,
    _listener: ShmId,
    dir: PathBuf,
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Rig {
    fn new(what: &str, shared: u32) -> Self {
        let dir = format!("spinwire-unit-{}-{what}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        let settings = Settings {
            dir: Some(dir.clone()),
            uids: Vec::new(),
        };
        let mut fabric = Shm::open(settings).unwrap();
        let device = fabric.devices().remove(0);
        let spec = LaneSpec {
            cq_depth: 8192,
            events: true,
            shared_recv_depth: shared,
        };
        let mut made = || fabric.create_lane(&device, &spec).unwrap();
        let ((here, here_lane, _), (there, there_lane, _)) = (made(), made());
        let region = Arc::new(Region::shared(BYTES).unwrap());
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let registration = device.register(Arc::clone(&region), access).unwrap();
        let listener = fabric.listen(&Endpoint::Shm("rig".into()), 64).unwrap();
        Self {
            fabric,
            lanes: [here_lane, there_lane],
            cqs: [here, there],
            region,
            registration,
            _listener: listener,
            dir,
        }
    }

    fn event(&mut self, kind: CmEventKind) -> Option<ShmId> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(event) = self.fabric.next_event().unwrap() {
                assert_eq!(event.kind, kind);
                return event.request;
            }
            assert!(Instant::now() < deadline, "awaited {kind:?}");
        }
    }

    fn equip(&mut self, mut id: ShmId, lane: usize, shared: bool) -> End {
        let spec = QpSpec {
            send_depth: 32,
            recv_depth: 32,
            shared_receives: shared,
            inline_bytes: 64,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE,
            windows: 0,
        };
        let made = self.fabric.create_qp(&mut id, &self.cqs[lane], &spec);
        let (control, qp, _) = made.unwrap();
        let inbox = Arc::clone(&control.offer.as_ref().unwrap().inbox);
        End {
            id,
            control,
            qp,
            inbox,
        }
    }

    /// Two ends, each on its lane.
    fn connect(&mut self, shared: bool) -> [End; 2] {
        let params = ConnParams {
            private_data: PrivateData::EMPTY,
            responder_resources: 4,
            initiator_depth: 4,
            retry_count: 7,
            rnr_retry_count: 7,
        };
        let to = Endpoint::Shm("rig".into());
        let id = self.fabric.resolve_address(&to, PATIENCE).unwrap();
        self.event(CmEventKind::AddrResolved);
        let mut active = self.equip(id, 0, shared);
        self.fabric.resolve_route(&mut active.id, PATIENCE).unwrap();
        self.event(CmEventKind::RouteResolved);
        let fabric = &mut self.fabric;
        let asked = fabric.connect(&mut active.id, &mut active.control, &params);
        asked.unwrap();
        let id = self.event(CmEventKind::ConnectRequest).unwrap();
        let mut passive = self.equip(id, 1, shared);
        let fabric = &mut self.fabric;
        let accepted = fabric.accept(&mut passive.id, &mut passive.control, &params);
        accepted.unwrap();
        self.event(CmEventKind::ConnectResponse);
        let fabric = &mut self.fabric;
        let stands = fabric.confirm(&mut active.id, &mut active.control);
        stands.unwrap();
        self.event(CmEventKind::Established);
        [active, passive]
    }

    fn destroy(&mut self, end: End) {
        let mut id = end.id;
        self.fabric.destroy_qp(&mut id, end.control, end.qp);
        self.fabric.destroy_id(id);
    }

    fn addr(&self, offset: usize) -> u64 {
        assert!(offset < BYTES);
        self.region.base().addr().get() as u64 + offset as u64
    }

    fn send(&self, op: SendOp, offset: usize, len: usize) -> SendWr {
        send(self.registration.lkey(), self.addr(offset), op, len)
    }

    fn recv(&self, wr_id: u64, offset: usize) -> RecvWr {
        RecvWr {
            wr_id,
            addr: self.addr(offset),
            len: 4096,
            lkey: self.registration.lkey(),
        }
    }

    fn poll(&mut self, lane: usize) -> Vec<PlainWc> {
        let mut wcs = [ShmLane::blank(); 32];
        let n = self.lanes[lane].poll(&mut wcs);
        wcs[..n].to_vec()
    }
}

fn send(lkey: Lkey, addr: u64, op: SendOp, len: usize) -> SendWr {
    SendWr {
        wr_id: 1 << 40,
        addr,
        len: u32::try_from(len).unwrap(),
        lkey,
        op,
        signalled: true,
        inline: false,
        more: 0,
    }
}
