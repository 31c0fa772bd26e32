//! Sending and receiving, with contents that are checked.

use super::Failure;
use super::bench::{Bench, ConnId, PATIENCE, SideId};
use super::connection::{Pair, PairSpec};
use super::message::{BLANK, Message, check_message, check_noted, check_notified, pattern};
use super::side::{Done, Posted, Queue};
use crate::fabric::{
    Fabric, Lane, MoreSges, Note, PostFailure, RecvWr, SendWr, Sge, WcOpcode, WcStatus,
};
use crate::limits::POST_CHAIN_MAX;
use crate::memory::Buffer;
use crate::types::Lkey;
use std::time::Instant;

impl<F: Fabric> Bench<'_, F> {
    /// The inline limit of an end.
    pub(super) fn inline_bytes(&self, conn: ConnId) -> usize {
        self.conns[conn.0]
            .grant
            .map_or(0, |g| g.inline_bytes as usize)
    }

    /// Posts a chain behind one doorbell; all of it must be taken.
    pub(super) fn send(&mut self, conn: ConnId, chain: &[Message]) -> Result<(), Failure> {
        self.try_send(conn, chain, None)?.map_err(|refused| {
            Failure::new(format!(
                "{} of {} sends were posted, then errno {}",
                refused.posted,
                chain.len(),
                refused.errno
            ))
        })
    }

    /// Posts a chain, with a key of the caller's or the pool's own. Memory of inline messages is
    /// overwritten as soon as the post is back.
    pub(super) fn try_send(
        &mut self,
        conn: ConnId,
        chain: &[Message],
        lkey: Option<Lkey>,
    ) -> Result<Result<(), PostFailure>, Failure> {
        let side = self.side_of(conn)?;
        let mut wrs = Vec::with_capacity(chain.len());
        let mut more = Vec::with_capacity(chain.len());
        let mut posted = Vec::with_capacity(chain.len());
        for message in chain {
            let wr_id = message.wr_id.unwrap_or_else(|| self.wr_id());
            let (pieces, buffers) = self.pieces(side, message, lkey)?;
            let (first, behind) = pieces
                .split_first()
                .map_or((Sge::default(), &[][..]), |(first, behind)| {
                    (*first, behind)
                });
            let mut rest = MoreSges::default();
            ensure!(
                behind.len() <= rest.len(),
                "a work request has {} pieces at most",
                rest.len() + 1
            );
            rest[..behind.len()].copy_from_slice(behind);
            more.push(rest);
            wrs.push(SendWr {
                wr_id,
                addr: first.addr,
                len: first.len,
                lkey: first.lkey,
                op: message.op,
                signalled: message.signalled,
                inline: message.inline,
                more: u8::try_from(behind.len()).unwrap_or(u8::MAX),
            });
            posted.push(Posted {
                wr_id,
                signalled: message.signalled,
                opcode: message.op.completes_as(),
                buffers,
            });
        }
        let end = &mut self.conns[conn.0];
        let Some((_, qp)) = &mut end.qp else {
            return Err(Failure::new("the end has no QP"));
        };
        let none = wrs.iter().all(|wr| wr.more == 0);
        let more = if none { &[][..] } else { &more };
        let result = self.sides[side.0].lane.post_send(qp, &wrs, more);
        for (entry, message) in posted.iter_mut().zip(chain) {
            if message.inline {
                for mut buffer in entry.buffers.drain(..) {
                    buffer.fill(0xee);
                }
            }
        }
        posted.truncate(result.map_or_else(|refused| refused.posted, |()| chain.len()));
        end.sends.extend(posted);
        Ok(result)
    }

    /// Where a message's payload is, or where what it fetches goes, and the slots that it has.
    fn pieces(
        &self,
        side: SideId,
        message: &Message,
        lkey: Option<Lkey>,
    ) -> Result<(Vec<Sge>, Vec<Buffer>), Failure> {
        let side = &self.sides[side.0];
        let mut sges = Vec::new();
        let mut buffers = Vec::new();
        for data in &message.pieces {
            let mut buffer = side.pool.alloc()?;
            buffer.copy_from(data)?;
            sges.push(Sge {
                addr: buffer.addr(),
                len: buffer.len_bytes(),
                lkey: if message.inline {
                    Lkey(0)
                } else {
                    lkey.unwrap_or(side.lkey)
                },
            });
            buffers.push(buffer);
        }
        for &place in &message.into {
            let sge = self.sge(place)?;
            sges.push(Sge {
                lkey: lkey.unwrap_or(sge.lkey),
                ..sge
            });
        }
        Ok((sges, buffers))
    }

    /// Posts `count` receives of a whole slot each.
    pub(super) fn receive(&mut self, conn: ConnId, count: u32) -> Result<(), Failure> {
        for _ in 0..count {
            let wr_id = self.wr_id();
            self.receive_as(conn, wr_id, None)?;
        }
        Ok(())
    }

    /// Posts one receive, of `len` bytes or a whole slot. The rest of the slot is left as it is.
    pub(super) fn receive_as(
        &mut self,
        conn: ConnId,
        wr_id: u64,
        len: Option<u32>,
    ) -> Result<(), Failure> {
        self.try_receive(conn, &[wr_id], len)?.map_err(|refused| {
            Failure::new(format!(
                "a receive was refused with errno {}",
                refused.errno
            ))
        })
    }

    /// Posts a chain of receives.
    pub(super) fn try_receive(
        &mut self,
        conn: ConnId,
        wr_ids: &[u64],
        len: Option<u32>,
    ) -> Result<Result<(), PostFailure>, Failure> {
        let at = self.side_of(conn)?;
        let (wrs, mut posted) = self.blank_slots(at, wr_ids, len)?;
        let side = &mut self.sides[at.0];
        let end = &mut self.conns[conn.0];
        let Some((_, qp)) = &mut end.qp else {
            return Err(Failure::new("the end has no QP"));
        };
        let result = side.lane.post_recv(qp, &wrs);
        posted.truncate(result.map_or_else(|refused| refused.posted, |()| wr_ids.len()));
        end.recvs.extend(posted);
        Ok(result)
    }

    /// Posts receives of a whole slot each to the shared queue of a lane; all must be taken.
    pub(super) fn share(&mut self, side: SideId, count: u32) -> Result<(), Failure> {
        let wr_ids: Vec<_> = (0..count).map(|_| self.wr_id()).collect();
        for chain in wr_ids.chunks(POST_CHAIN_MAX) {
            self.try_share(side, chain)?.map_err(|refused| {
                Failure::new(format!(
                    "a shared receive was refused with errno {}",
                    refused.errno
                ))
            })?;
        }
        Ok(())
    }

    /// Posts a chain of receives to the shared queue of a lane.
    pub(super) fn try_share(
        &mut self,
        at: SideId,
        wr_ids: &[u64],
    ) -> Result<Result<(), PostFailure>, Failure> {
        let (wrs, mut posted) = self.blank_slots(at, wr_ids, None)?;
        let side = &mut self.sides[at.0];
        let result = side.lane.post_shared_recv(&wrs);
        posted.truncate(result.map_or_else(|refused| refused.posted, |()| wr_ids.len()));
        side.shared.extend(posted);
        Ok(result)
    }

    /// Receives of `len` bytes or a whole slot, in slots that are full of sentinels.
    fn blank_slots(
        &self,
        side: SideId,
        wr_ids: &[u64],
        len: Option<u32>,
    ) -> Result<(Vec<RecvWr>, Vec<Posted>), Failure> {
        let side = &self.sides[side.0];
        let mut wrs = Vec::with_capacity(wr_ids.len());
        let mut posted = Vec::with_capacity(wr_ids.len());
        for &wr_id in wr_ids {
            let mut buffer = side.pool.alloc()?;
            buffer.set_len(buffer.capacity())?;
            buffer.fill(BLANK);
            wrs.push(RecvWr {
                wr_id,
                addr: buffer.addr(),
                len: len.unwrap_or(buffer.capacity()),
                lkey: side.lkey,
            });
            posted.push(Posted {
                wr_id,
                signalled: true,
                opcode: WcOpcode::Recv,
                buffers: vec![buffer],
            });
        }
        Ok((wrs, posted))
    }

    pub(super) fn side_of(&self, conn: ConnId) -> Result<SideId, Failure> {
        let side = self.conns[conn.0].side;
        side.ok_or_else(|| Failure::new("the end has no lane"))
    }

    /// Awaits the next send of an end, which must succeed.
    pub(super) fn sent(&mut self, conn: ConnId) -> Result<Done, Failure> {
        let done = self.done(conn, Queue::Send, "the completion of a send")?;
        ensure!(
            done.status == WcStatus::Success,
            "a send completed with: {}",
            done.status
        );
        Ok(done)
    }

    /// Awaits the next message at an end; it must be `want`.
    pub(super) fn received(&mut self, conn: ConnId, want: &[u8]) -> Result<Done, Failure> {
        let done = self.done(conn, Queue::Recv, "a message")?;
        check_message(&done, want)?;
        Ok(done)
    }

    /// Awaits the next message at an end; it must be `want` and bring `note`.
    pub(super) fn received_with(
        &mut self,
        conn: ConnId,
        want: &[u8],
        note: Note,
    ) -> Result<(), Failure> {
        let done = self.done(conn, Queue::Recv, "a message with a note")?;
        check_noted(&done, want, note)
    }

    /// Awaits that a WRITE with immediate of `len` bytes consumes a receive, and leaves it as it was.
    pub(super) fn notified(&mut self, conn: ConnId, len: usize, imm: u32) -> Result<(), Failure> {
        let done = self.done(conn, Queue::Recv, "a WRITE with immediate")?;
        check_notified(&done, len, imm)
    }

    /// The first exchange, after which both ends may speak.
    pub(super) fn greet(&mut self, pair: &Pair) -> Result<(), Failure> {
        self.send(pair.active, &[Message::new(vec![1, 2, 3])])?;
        self.received(pair.passive, &[1, 2, 3])?;
        self.sent(pair.active).map(drop)
    }

    /// A connection after the first exchange.
    pub(super) fn greeted(&mut self, spec: &PairSpec) -> Result<Pair, Failure> {
        let pair = self.pair(spec)?;
        self.greet(&pair)?;
        Ok(pair)
    }

    /// Sends `count` messages from one end to the other, and as many back if `both`, through
    /// receives that are posted again as they are used. Of four sends one is signalled, and every
    /// other message goes inline where it fits.
    pub(super) fn stream(
        &mut self,
        ends: [ConnId; 2],
        both: bool,
        count: u64,
        len_of: impl Fn(u64) -> usize,
    ) -> Result<(), Failure> {
        // The second end speaks once the first was heard, as iWARP asks.
        let window = ends.map(|e| self.conns[e.0].recvs.len() as u64);
        let goal = [count, if both { count } else { 0 }];
        let (mut sent, mut heard) = ([0; 2], [0; 2]);
        let mut progress = Instant::now();
        while heard[1] < goal[0] || heard[0] < goal[1] {
            let mut idle = true;
            for (me, peer) in [(0, 1), (1, 0)] {
                let room = sent[me] - heard[peer] < window[peer]
                    && (self.conns[ends[me].0].sends.len() as u64) < window[peer];
                if sent[me] < goal[me] && room && (me == 0 || heard[1] > 0) {
                    let n = sent[me];
                    let data = pattern(n * 2 + me as u64, len_of(n));
                    let inline = n % 2 == 0 && data.len() <= self.inline_bytes(ends[me]);
                    let signalled = n % 4 == 3 || n + 1 == goal[me];
                    self.send(
                        ends[me],
                        &[Message {
                            signalled,
                            inline,
                            ..Message::new(data)
                        }],
                    )?;
                    sent[me] += 1;
                    idle = false;
                }
                while let Some(done) = self.take(ends[peer], Queue::Recv) {
                    let n = heard[peer];
                    check_message(&done, &pattern(n * 2 + me as u64, len_of(n)))
                        .map_err(|f| f.during(&format!("message {n}")))?;
                    drop(done);
                    heard[peer] += 1;
                    self.receive(ends[peer], 1)?;
                    idle = false;
                }
                while let Some(done) = self.take(ends[me], Queue::Send) {
                    ensure!(
                        done.status == WcStatus::Success,
                        "a send completed with: {}",
                        done.status
                    );
                }
            }
            if self.poll_all()? > 0 || !idle {
                progress = Instant::now();
            } else {
                ensure!(
                    progress.elapsed() < PATIENCE,
                    "{sent:?} messages were sent and {heard:?} heard; nothing for {} s",
                    PATIENCE.as_secs()
                );
                std::thread::yield_now();
            }
        }
        Ok(())
    }
}
