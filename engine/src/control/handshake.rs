//! The framed handshake: each side's hello, and what is said to those who have none.
//!
//! A request and its answer carry a [`Hello`]; a rejection carries a [`Refusal`], which the other side
//! prints. Raw mode puts the embedder's bytes there and nothing of ours.

use super::{Conn, Control, Handle};
use crate::fabric::{Fabric, FabricError, PrivateData, Step};
use crate::wire::{Features, Hello, Refusal};
use std::io;

impl<F: Fabric> Control<F> {
    /// Puts the hello of a framed connection into what is sent next. Receives are posted by now.
    pub(super) fn say_hello(&mut self, handle: Handle) -> Result<(), FabricError> {
        let Some(conn) = self.conns.get_mut(&handle).filter(|c| c.offer.framed) else {
            return Ok(());
        };
        let Some(place) = conn.place else {
            return Ok(());
        };
        let lane = &self.posts[place.worker].link.lanes[place.lane];
        let hello = Hello::new(lane.spec.recv_depth, conn.posted, lane.buffer_bytes)
            .map(|hello| hello.with_features(Features::OURS));
        let hello = hello.map_err(|error| {
            FabricError::new(Step::Connect, &conn.peer_endpoint, io::Error::other(error)).advise(
                "Framed mode needs [queues] recv_depth of 4, or as much of shared_recv_depth for each \
                 connection, [pool] slots for it, and [pool] slot_bytes of 64",
            )
        })?;
        conn.params.private_data = PrivateData::of(&hello.encode());
        Ok(())
    }

    /// Rejects a request that this side cannot serve.
    pub(super) fn turn_away(&mut self, handle: Handle) {
        let Some(conn) = self.conns.get_mut(&handle) else {
            return;
        };
        let answer = match (conn.offer.framed, self.stopping) {
            (false, _) => PrivateData::EMPTY,
            (true, true) => PrivateData::of(&Refusal::ShuttingDown.encode()),
            (true, false) => PrivateData::of(&Refusal::Full.encode()),
        };
        if let Some(id) = &mut conn.id {
            // A request that is gone needs no answer.
            let _ = self.fabric.reject(id, &answer);
        }
    }
}

impl<F: Fabric> Conn<F> {
    /// Reads the hello of a framed peer; an error is kept for the report. True when the connection may go
    /// on.
    pub(super) fn hear_hello(&mut self) -> bool {
        if !self.offer.framed {
            return true;
        }
        let hello = Hello::parse(self.peer_data.as_slice());
        self.hello = Some(hello);
        hello.is_ok()
    }
}
