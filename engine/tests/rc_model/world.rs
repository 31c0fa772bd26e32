//! Two ends and their connections, driven from one thread, with every completion held against what
//! was posted.

use crate::history::{AREA, Bad, RECEIVE_BYTES, Record};
use spinwire::fabric::{
    CmEventKind, Endpoint, Fabric, IdKey, Lane, LaneSpec, RecvWr, WcStatus, WorkCompletion,
};
use spinwire::limits::POST_CHAIN_MAX;
use spinwire::memory::{
    Buffer, ExposedMemory, Exposures, HugepagePolicy, Pool, Region, Registrar, Registration,
};
use spinwire::types::{Access, Lkey, QpNum, RemoteRegion};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Connections at a time.
pub(crate) const SLOTS: usize = 3;
pub(crate) const SLOT_BYTES: u32 = 256;
pub(crate) const POOL_SLOTS: u32 = 512;
pub(crate) const SHARED_DEPTH: u32 = 64;
/// Polls or looks after which nothing late is left.
pub(crate) const LATE: usize = 200;
pub(crate) const RESOLVE: Duration = Duration::from_secs(1);
pub(crate) const FRESH: u8 = 0x5a;

/// What a fabric under test may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Operations fail and posts are refused by the dice.
    pub faulty: bool,
    /// What can complete does so at the latest after some polls.
    pub lively: bool,
    /// Queues have just the room that was asked for.
    pub exact: bool,
    /// What is flushed may have reached the peer.
    pub taken: bool,
}

impl Rules {
    pub(crate) fn check_room(self, posted: usize, asked: usize, room: usize) {
        let fits = asked.min(room);
        assert!(
            self.faulty || posted == fits || (posted > fits && !self.exact),
            "{posted} of {asked} were taken where there was room for {room}"
        );
    }
}

/// How to make a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub depth: u32,
    pub receives: u32,
    pub shared: bool,
    pub rnr_retry_count: u8,
    pub inline_bytes: u32,
}

/// An operation to post; what does not apply to its kind is not looked at.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub kind: u8,
    pub pieces: Vec<u8>,
    pub at: u16,
    pub value: u8,
    pub signalled: bool,
    pub inline: bool,
    pub bad: Option<Bad>,
}

pub(crate) struct Outstanding {
    pub(crate) wr_id: u64,
    pub(crate) record: usize,
    pub(crate) signalled: bool,
    pub(crate) buffers: Vec<Buffer>,
}

pub(crate) struct Side<F: Fabric> {
    pub(crate) id: Option<F::Id>,
    pub(crate) key: IdKey,
    pub(crate) qp: Option<(F::QpControl, F::Qp)>,
    pub(crate) number: QpNum,
    pub(crate) inline_bytes: u32,
    pub(crate) sends: VecDeque<Outstanding>,
    pub(crate) recvs: VecDeque<(u64, Buffer)>,
    pub(crate) records: Vec<Record>,
    pub(crate) heard: usize,
    pub(crate) send_failed: bool,
    pub(crate) recv_failed: bool,
    pub(crate) in_error: bool,
    /// Destroyed before everything had come back.
    pub(crate) cut_off: bool,
    pub(crate) before: Vec<u8>,
}

pub(crate) struct Life<F: Fabric> {
    pub(crate) slot: usize,
    pub(crate) spec: Spec,
    pub(crate) sides: [Side<F>; 2],
    pub(crate) over: bool,
    /// The side that disconnected first.
    pub(crate) left: Option<usize>,
}

pub(crate) struct End<F: Fabric> {
    pub(crate) lane: F::Lane,
    pub(crate) cq: F::Cq,
    pub(crate) listener: Option<F::Id>,
    pub(crate) fabric: F,
    pub(crate) device: F::Device,
    pub(crate) region: RemoteRegion,
    pub(crate) exposed: ExposedMemory,
    pub(crate) lkey: Lkey,
    pub(crate) _registration: <F::Device as Registrar>::Registration,
    pub(crate) pool: Pool,
    pub(crate) shared: Vec<(u64, Buffer)>,
    pub(crate) events: VecDeque<(IdKey, CmEventKind, Option<F::Id>)>,
    /// Regions of which the peer may take the key out of use.
    pub(crate) victims: Vec<<F::Device as Registrar>::Registration>,
    pub(crate) counted: Vec<u64>,
}

/// Everything.
pub(crate) struct World<F: Fabric> {
    pub(crate) lives: Vec<Life<F>>,
    pub(crate) ends: [End<F>; 2],
    pub(crate) rules: Rules,
    pub(crate) next: u64,
    /// Every completion: the end, its word and status.
    pub(crate) seen: Vec<(usize, u64, WcStatus)>,
}

fn end<F: Fabric>(mut fabric: F, listen: bool) -> End<F> {
    let device = fabric.devices().remove(0);
    let spec = LaneSpec {
        cq_depth: 4096,
        events: false,
        shared_recv_depth: SHARED_DEPTH,
    };
    let (cq, lane, _) = fabric.create_lane(&device, &spec).expect("a lane");
    let bytes = (POOL_SLOTS * SLOT_BYTES) as usize;
    let region = Arc::new(Region::allocate(bytes, HugepagePolicy::Off).expect("memory"));
    let pool = Pool::new(Arc::clone(&region), POOL_SLOTS, SLOT_BYTES).expect("a pool");
    let registration = device
        .register(region, Access::LOCAL_WRITE)
        .expect("registered");
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let exposed = Exposures::new(vec![device.clone()])
        .expose(SLOTS * AREA + 8, HugepagePolicy::Off, access)
        .expect("memory");
    let at = Endpoint::Shm("model".into());
    let listener = listen.then(|| fabric.listen(&at, 8).expect("the name is free"));
    End {
        lane,
        cq,
        listener,
        region: exposed.remote_region(0).expect("registered"),
        exposed,
        lkey: registration.lkey(),
        _registration: registration,
        pool,
        shared: Vec::new(),
        events: VecDeque::new(),
        victims: Vec::new(),
        counted: Vec::new(),
        fabric,
        device,
    }
}

impl<F: Fabric> End<F> {
    pub(crate) fn pump(&mut self) {
        while let Some(event) = self.fabric.next_event().expect("events") {
            self.events.push_back((event.id, event.kind, event.request));
        }
    }

    pub(crate) fn area(&self, slot: usize) -> Vec<u8> {
        let mut area = vec![0; AREA];
        self.exposed
            .copy_out(slot * AREA, &mut area)
            .expect("inside");
        area
    }

    fn receive(&mut self, wr_id: u64) -> Option<(RecvWr, Buffer)> {
        let mut buffer = self.pool.alloc().ok()?;
        buffer.set_len(buffer.capacity()).expect("all of it");
        buffer.fill(FRESH);
        let wr = RecvWr {
            wr_id,
            addr: buffer.addr(),
            len: RECEIVE_BYTES,
            lkey: self.lkey,
        };
        Some((wr, buffer))
    }
}

impl<F: Fabric> World<F> {
    pub(crate) fn new(fabrics: [F; 2], rules: Rules) -> Self {
        let [active, passive] = fabrics;
        Self {
            lives: Vec::new(),
            ends: [end(active, false), end(passive, true)],
            rules,
            next: 0,
            seen: Vec::new(),
        }
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.next += 1;
        // High bits that a fabric might be tempted to use.
        self.next | 0xa500_0000_0000_0000
    }

    /// The connection of a slot.
    pub(crate) fn life(&self, slot: usize) -> Option<usize> {
        self.lives.iter().rposition(|l| l.slot == slot && !l.over)
    }

    /// Posts receives, to the QP or to the queue that it shares.
    pub(crate) fn receive(&mut self, slot: usize, end: usize, count: u32) {
        let Some(life) = self.life(slot) else { return };
        let count = count.min(u32::try_from(POST_CHAIN_MAX).expect("small"));
        let posts: Vec<_> = (0..count)
            .filter_map(|_| {
                let wr_id = self.word();
                self.ends[end].receive(wr_id)
            })
            .collect();
        let chain: Vec<RecvWr> = posts.iter().map(|(wr, _)| *wr).collect();
        let Spec { shared, depth, .. } = self.lives[life].spec;
        let e = &mut self.ends[end];
        let side = &mut self.lives[life].sides[end];
        let (room, outcome) = if shared {
            let room = SHARED_DEPTH as usize - e.shared.len().min(SHARED_DEPTH as usize);
            (room, e.lane.post_shared_recv(&chain))
        } else {
            let room = depth as usize - side.recvs.len().min(depth as usize);
            let Some((_, qp)) = &mut side.qp else { return };
            (room, e.lane.post_recv(qp, &chain))
        };
        let posted = outcome.map_or_else(|refused| refused.posted, |()| chain.len());
        self.rules.check_room(posted, chain.len(), room);
        let taken = posts.into_iter().take(posted);
        let taken = taken.map(|(wr, buffer)| (wr.wr_id, buffer));
        if shared {
            e.shared.extend(taken);
        } else {
            side.recvs.extend(taken);
        }
    }

    /// Posts operations as one chain.
    pub(crate) fn post(&mut self, slot: usize, end: usize, orders: &[Order]) {
        let Some(life) = self.life(slot) else { return };
        let (mut chain, mut more, mut made) = (Vec::new(), Vec::new(), Vec::new());
        for order in orders.iter().take(POST_CHAIN_MAX) {
            let wr_id = self.word();
            let inline_bytes = self.lives[life].sides[end].inline_bytes;
            let Some((wr, pieces, record, buffers)) =
                self.build(slot, end, wr_id, order, inline_bytes)
            else {
                continue;
            };
            chain.push(wr);
            more.push(pieces);
            made.push((wr, record, buffers));
        }
        let life = &mut self.lives[life];
        let (spec, side) = (life.spec, &mut life.sides[end]);
        let room = spec.depth as usize - side.sends.len().min(spec.depth as usize);
        let Some((_, qp)) = &mut side.qp else { return };
        let outcome = self.ends[end].lane.post_send(qp, &chain, &more);
        let posted = outcome.map_or_else(|refused| refused.posted, |()| chain.len());
        self.rules.check_room(posted, chain.len(), room);
        for (wr, record, mut buffers) in made.into_iter().take(posted) {
            if wr.inline {
                // It was copied: what is written now must not be seen.
                buffers.iter_mut().for_each(|buffer| buffer.fill(0xee));
                buffers.clear();
            }
            side.sends.push_back(Outstanding {
                wr_id: wr.wr_id,
                record: side.records.len(),
                signalled: wr.signalled,
                buffers,
            });
            side.records.push(record);
        }
    }

    /// Polls one end once; gives the number of completions.
    pub(crate) fn poll(&mut self, end: usize, most: usize) -> usize {
        let mut wcs = [F::Lane::blank(); 16];
        let most = most.min(wcs.len());
        let n = self.ends[end].lane.poll(&mut wcs[..most]);
        assert!(n <= most);
        for wc in &wcs[..n] {
            self.seen.push((end, wc.wr_id(), wc.status()));
            self.settle(end, wc);
        }
        n
    }

    fn settle<W: WorkCompletion>(&mut self, end: usize, wc: &W) {
        let number = wc.qp_num();
        let life = self.lives.iter_mut().rev();
        let life = life.into_iter().find(|l| l.sides[end].number == number);
        let life = life.expect("a completion of a QP of this end");
        let shared = &mut self.ends[end].shared;
        let place = shared.iter().position(|(wr_id, _)| *wr_id == wc.wr_id());
        let front = life.sides[end].recvs.front();
        let buffer = if let Some(place) = place.filter(|_| life.spec.shared) {
            Some(shared.remove(place).1)
        } else if front.is_some_and(|(wr_id, _)| *wr_id == wc.wr_id()) {
            life.sides[end].recvs.pop_front().map(|(_, buffer)| buffer)
        } else {
            None
        };
        match buffer {
            Some(buffer) => life.heard(end, wc, buffer),
            None => {
                if let Some(counted) = life.sides[end].sent(wc, self.rules.faulty) {
                    self.ends[1 - end].counted.extend(counted);
                }
            }
        }
    }

    /// Moves a side to the error state.
    pub(crate) fn set_error(&mut self, slot: usize, end: usize) {
        if let Some(life) = self.life(slot) {
            self.fail(life, end);
        }
    }

    pub(crate) fn fail(&mut self, life: usize, end: usize) {
        let side = &mut self.lives[life].sides[end];
        if let (Some(id), Some((control, _))) = (&mut side.id, &mut side.qp) {
            let failed = self.ends[end].fabric.set_error(id, control);
            failed.expect("goes to error");
            side.in_error = true;
        }
    }

    pub(crate) fn disconnect(&mut self, slot: usize, end: usize) {
        let Some(life) = self.life(slot) else { return };
        let life = &mut self.lives[life];
        if let Some(id) = &mut life.sides[end].id
            && self.ends[end].fabric.disconnect(id).is_ok()
        {
            life.left.get_or_insert(end);
        }
    }

    /// Destroys one side without a word, whatever is posted.
    pub(crate) fn destroy(&mut self, slot: usize, end: usize) {
        let Some(life) = self.life(slot) else { return };
        let side = &mut self.lives[life].sides[end];
        side.cut_off |= side.qp.is_some();
        self.bury(life, end);
    }

    pub(crate) fn bury(&mut self, life: usize, end: usize) {
        let side = &mut self.lives[life].sides[end];
        let (id, qp) = (side.id.take(), side.qp.take());
        let fabric = &mut self.ends[end].fabric;
        if let Some(mut id) = id {
            if let Some((control, qp)) = qp {
                fabric.destroy_qp(&mut id, control, qp);
            }
            fabric.destroy_id(id);
        }
        let key = side.key;
        self.ends[end].events.retain(|(id, ..)| *id != key);
    }

    /// Ends the connection of a slot, and checks what it did.
    pub(crate) fn end(&mut self, slot: usize) {
        if let Some(life) = self.life(slot) {
            self.finish(life);
        }
    }
}
