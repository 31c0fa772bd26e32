//! From an order to a work request: memory, keys, and what is wrong with them.

use crate::history::{AREA, Bad, Op, RECEIVE_BYTES, Record};
use crate::world::{Order, SLOTS, World};
use spinwire::fabric::{Fabric, MoreSges, Note, SendOp, SendWr, Sge};
use spinwire::limits::SGE_MAX;
use spinwire::memory::{Buffer, HugepagePolicy, Region, Registrar, Registration};
use spinwire::types::{Access, Lkey, RemoteSpan, Rkey};
use std::sync::Arc;

impl<F: Fabric> World<F> {
    #[allow(clippy::type_complexity, reason = "taken apart at once")]
    pub(crate) fn build(
        &mut self,
        slot: usize,
        end: usize,
        wr_id: u64,
        order: &Order,
        inline_bytes: u32,
    ) -> Option<(SendWr, MoreSges, Record, Vec<Buffer>)> {
        let mut lens: Vec<u32> = order.pieces.iter().map(|n| u32::from(*n)).collect();
        lens.truncate(SGE_MAX);
        let kind = order.kind % 10;
        let mut bad = order.bad;
        if kind >= 7 {
            lens = if lens.len() > 1 { vec![3, 5] } else { vec![8] };
        } else if bad == Some(Bad::TooLong) {
            lens = vec![RECEIVE_BYTES + 1];
        }
        let total: u32 = lens.iter().sum();
        let inline = order.inline && kind < 6 && total <= inline_bytes;
        bad = bad.filter(|bad| match bad {
            Bad::Lkey => !inline && total > 0,
            Bad::Rkey | Bad::Range => (4..10).contains(&kind) && total > 0,
            Bad::Misaligned => kind >= 7,
            Bad::TooLong => kind < 4,
        });
        if total > RECEIVE_BYTES && bad != Some(Bad::TooLong) {
            return None;
        }
        let room = AREA - total as usize;
        let at = usize::from(order.at) % (room + 1);
        let word = usize::from(order.at) % (AREA / 8) * 8;
        let value = u64::from(order.value);
        let op = match kind {
            0 | 1 => Op::Message(Note::None),
            2 => Op::Message(Note::Imm(0xfeed_0000 | u32::from(order.value))),
            3 => Op::Message(Note::Invalidated(self.victim(1 - end))),
            4 => Op::Write(at),
            5 => Op::WriteImm(at, 0x8000_0000 | u32::from(order.value)),
            6 => Op::Read(at),
            7 => Op::Cas(word, value % 2, value),
            8 => Op::Faa(word, value),
            _ => Op::Count,
        };
        let region = self.ends[1 - end].region;
        let span = |offset: usize| {
            let mut span = RemoteSpan {
                addr: region.addr() + offset as u64,
                rkey: region.rkey(),
            };
            match bad {
                Some(Bad::Rkey) => span.rkey = Rkey(span.rkey.0 ^ 0x0055_5500),
                Some(Bad::Range) => span.addr = region.addr() + region.len(),
                Some(Bad::Misaligned) => span.addr += 4,
                Some(Bad::Lkey | Bad::TooLong) | None => {}
            }
            span
        };
        let base = slot * AREA;
        let send_op = match op {
            Op::Message(Note::None) => SendOp::Send,
            Op::Message(Note::Imm(imm)) => SendOp::SendImm(imm),
            Op::Message(Note::Invalidated(rkey)) => SendOp::SendInvalidate(rkey),
            Op::Write(at) => SendOp::Write(span(base + at)),
            Op::WriteImm(at, imm) => SendOp::WriteImm(span(base + at), imm),
            Op::Read(at) => SendOp::Read(span(base + at)),
            Op::Cas(at, expect, swap) => SendOp::CompareSwap {
                at: span(base + at),
                expect,
                swap,
            },
            Op::Faa(at, add) => SendOp::FetchAdd {
                at: span(base + at),
                add,
            },
            Op::Count => SendOp::FetchAdd {
                at: span(SLOTS * AREA),
                add: 1,
            },
        };
        let e = &self.ends[end];
        let lkey = if bad == Some(Bad::Lkey) {
            Lkey(e.lkey.0 ^ 0x0055_5500)
        } else {
            e.lkey
        };
        let (mut payload, mut buffers, mut sges) = (Vec::new(), Vec::new(), Vec::new());
        for len in lens {
            let mut buffer = e.pool.alloc().ok()?;
            buffer.set_len(len).expect("it fits");
            for byte in buffer.iter_mut() {
                *byte = order.value.wrapping_add(payload.len() as u8);
                payload.push(*byte);
            }
            sges.push(Sge {
                addr: buffer.addr(),
                len,
                lkey: if inline { Lkey(0) } else { lkey },
            });
            buffers.push(buffer);
        }
        let mut more = MoreSges::default();
        more[..sges.len() - 1].copy_from_slice(&sges[1..]);
        let wr = SendWr {
            wr_id,
            addr: sges[0].addr,
            len: sges[0].len,
            lkey: sges[0].lkey,
            op: send_op,
            signalled: order.signalled,
            inline,
            more: u8::try_from(sges.len() - 1).expect("few"),
        };
        let record = Record {
            op,
            bad,
            payload,
            outcome: None,
            answer: None,
        };
        Some((wr, more, record, buffers))
    }

    /// The key of a region that nobody uses otherwise.
    pub(crate) fn victim(&mut self, end: usize) -> Rkey {
        let e = &mut self.ends[end];
        let region = if e.device.needs_memfd() {
            Region::shared(1)
        } else {
            Region::allocate(1, HugepagePolicy::Off)
        };
        let region = region.expect("memory");
        let victim = e.device.register(Arc::new(region), Access::REMOTE_READ);
        let victim = victim.expect("registered");
        let rkey = victim.rkey();
        e.victims.push(victim);
        rkey
    }
}
