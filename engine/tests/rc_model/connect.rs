//! Making connections, step by step, on a fabric that may let any step fail.

use crate::world::{End, LATE, Life, RESOLVE, Side, Spec, World};
use spinwire::fabric::{CmEventKind, ConnParams, Endpoint, Fabric, IdKey, PrivateData, QpSpec};
use spinwire::types::Access;
use std::collections::VecDeque;

impl<F: Fabric> World<F> {
    /// The next event of an id at an end.
    pub(crate) fn event(&mut self, end: usize, key: IdKey) -> Option<(CmEventKind, Option<F::Id>)> {
        for _ in 0..LATE {
            self.ends.iter_mut().for_each(End::pump);
            let events = &mut self.ends[end].events;
            if let Some(at) = events.iter().position(|(id, ..)| *id == key) {
                return events.remove(at).map(|(_, kind, id)| (kind, id));
            }
        }
        None
    }

    /// True if the event is the one; another is a fault's doing.
    pub(crate) fn comes(&mut self, end: usize, key: IdKey, wanted: CmEventKind) -> bool {
        let (kind, _) = self.event(end, key).expect("an event in time");
        assert!(
            kind == wanted || self.rules.faulty,
            "{kind:?}, not {wanted:?}"
        );
        kind == wanted
    }

    pub(crate) fn side(&mut self, end: usize, mut id: F::Id, slot: usize, spec: &Spec) -> Side<F> {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let qp_spec = QpSpec {
            send_depth: spec.depth,
            recv_depth: spec.depth,
            shared_receives: spec.shared,
            inline_bytes: spec.inline_bytes,
            access,
            windows: 0,
        };
        let e = &mut self.ends[end];
        let (control, qp, grant) = e.fabric.create_qp(&mut id, &e.cq, &qp_spec).expect("a QP");
        Side {
            key: F::key(&id),
            id: Some(id),
            qp: Some((control, qp)),
            number: grant.number,
            inline_bytes: grant.inline_bytes,
            sends: VecDeque::new(),
            recvs: VecDeque::new(),
            records: Vec::new(),
            heard: 0,
            send_failed: false,
            recv_failed: false,
            in_error: false,
            cut_off: false,
            before: self.ends[1 - end].area(slot),
        }
    }

    /// Makes a connection in a slot that has none.
    pub(crate) fn connect(&mut self, slot: usize, spec: Spec) {
        if self.life(slot).is_some() {
            return;
        }
        let to = Endpoint::Shm("model".into());
        let params = ConnParams {
            private_data: PrivateData::EMPTY,
            responder_resources: 4,
            initiator_depth: 4,
            retry_count: 7,
            rnr_retry_count: spec.rnr_retry_count,
        };
        let mut id = self.ends[0]
            .fabric
            .resolve_address(&to, RESOLVE)
            .expect("resolves");
        let key = F::key(&id);
        if !self.comes(0, key, CmEventKind::AddrResolved) {
            return self.ends[0].fabric.destroy_id(id);
        }
        let routed = self.ends[0].fabric.resolve_route(&mut id, RESOLVE);
        routed.expect("there is a route");
        if !self.comes(0, key, CmEventKind::RouteResolved) {
            return self.ends[0].fabric.destroy_id(id);
        }
        let mut active = self.side(0, id, slot, &spec);
        if let (Some(id), Some((control, _))) = (&mut active.id, &mut active.qp) {
            let asked = self.ends[0].fabric.connect(id, control, &params);
            asked.expect("asks");
        }
        let listener = self.ends[1].listener.as_ref().map(F::key);
        let (kind, request) = self
            .event(1, listener.expect("listens"))
            .expect("a request");
        assert_eq!(kind, CmEventKind::ConnectRequest);
        let mut passive = self.side(1, request.expect("an id"), slot, &spec);
        if let (Some(id), Some((control, _))) = (&mut passive.id, &mut passive.qp) {
            let accepted = self.ends[1].fabric.accept(id, control, &params);
            accepted.expect("accepts");
        }
        let answered = self.comes(0, key, CmEventKind::ConnectResponse);
        self.lives.push(Life {
            slot,
            spec,
            sides: [active, passive],
            over: false,
            left: None,
        });
        let life = self.lives.len() - 1;
        if !answered {
            // The passive end hears of it when the active one is destroyed.
            return self.finish(life);
        }
        let side = &mut self.lives[life].sides[0];
        if let (Some(id), Some((control, _))) = (&mut side.id, &mut side.qp) {
            let confirmed = self.ends[0].fabric.confirm(id, control);
            confirmed.expect("confirms");
        }
        for end in [0, 1] {
            self.receive(slot, end, spec.receives);
        }
    }
}
