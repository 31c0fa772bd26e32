//! Both directions between two threads, used as a connection does: acks ride on what is sent.

use crate::Fallible;
use spinwire::fabric::shm::Geometry;
use spinwire::fabric::shm::inbox::{Broken, Inlet, Outlet, rig};
use std::hint::black_box;

/// One end.
pub(crate) struct End {
    outlet: Outlet,
    inlet: Inlet,
}

/// The two ends of a connection, whose inboxes are of that size.
pub(crate) fn link(geometry: Geometry) -> Fallible<(End, End)> {
    let (far, inlet) = rig::pair(geometry)?;
    let (outlet, far_inlet) = rig::pair(geometry)?;
    let there = End {
        outlet: far,
        inlet: far_inlet,
    };
    Ok((End { outlet, inlet }, there))
}

impl End {
    /// Sends a message of one fragment, as soon as there is room.
    #[inline(always)]
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        while rig::send(&mut self.outlet, self.inlet.ack(), bytes).is_err() {
            self.outlet.look()?;
        }
        self.inlet.told();
        Ok(())
    }

    /// Receives a message into `into` and reads it; false when none has come.
    #[inline(always)]
    pub(crate) fn receive(&mut self, into: &mut [u8]) -> Result<bool, Broken> {
        let Some((len, ack)) = rig::receive(&mut self.inlet, into)? else {
            return Ok(false);
        };
        self.outlet.note_ack(ack)?;
        read(into.get(..len as usize).unwrap_or_default());
        Ok(true)
    }

    /// Consumes a message where it lies; false when none has come.
    #[inline(always)]
    pub(crate) fn skip(&mut self) -> Result<bool, Broken> {
        let Some(ack) = rig::skip(&mut self.inlet)? else {
            return Ok(false);
        };
        self.outlet.note_ack(ack)?;
        Ok(true)
    }

    /// Nothing has come: what was consumed is told by the header.
    #[inline(always)]
    pub(crate) fn idle(&mut self) {
        if self.inlet.owes_ack() {
            self.inlet.publish();
        }
    }

    /// Waits until all that was sent is acknowledged.
    pub(crate) fn drain(&mut self) -> Result<(), Broken> {
        while self.outlet.under_way() > 0 {
            self.outlet.look()?;
        }
        Ok(())
    }
}

/// A byte of every line, as a service that looks at its message would.
#[inline(always)]
pub(crate) fn read(bytes: &[u8]) {
    let sum = |sum: u8, line: &[u8]| sum.wrapping_add(line.first().copied().unwrap_or(0));
    black_box(bytes.chunks(64).fold(0, sum));
}
