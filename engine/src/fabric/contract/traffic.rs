//! Sending and receiving, with contents that are checked.

use super::Failure;
use super::bench::{Bench, ConnId, PATIENCE};
use super::side::{Done, Posted, Queue};
use crate::fabric::{Fabric, Lane, PostFailure, RecvWr, SendOp, SendWr, WcStatus};
use crate::types::Lkey;
use std::time::Instant;

/// A message to send.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) data: Vec<u8>,
    pub(super) signalled: bool,
    pub(super) inline: bool,
    /// `None` takes a new one.
    pub(super) wr_id: Option<u64>,
}

impl Message {
    /// A signalled message from registered memory.
    pub(super) fn new(data: Vec<u8>) -> Self {
        Self {
            data,
            signalled: true,
            inline: false,
            wr_id: None,
        }
    }

    pub(super) fn unsignalled(mut self) -> Self {
        self.signalled = false;
        self
    }

    pub(super) fn inline(mut self) -> Self {
        self.inline = true;
        self
    }
}

/// Bytes that no other seed gives (xorshift).
pub(super) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes.extend_from_slice(&x.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

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
        let mut posted = Vec::with_capacity(chain.len());
        for message in chain {
            let wr_id = message.wr_id.unwrap_or_else(|| self.wr_id());
            let side = &self.sides[side];
            let mut buffer = side.pool.alloc()?;
            buffer.copy_from(&message.data)?;
            wrs.push(SendWr {
                wr_id,
                addr: buffer.addr(),
                len: buffer.len_bytes(),
                lkey: if message.inline {
                    Lkey(0)
                } else {
                    lkey.unwrap_or(side.lkey)
                },
                op: SendOp::Send,
                signalled: message.signalled,
                inline: message.inline,
                more: 0,
            });
            posted.push(Posted {
                wr_id,
                signalled: message.signalled,
                buffer: Some(buffer),
            });
        }
        let end = &mut self.conns[conn.0];
        let Some((_, qp)) = &mut end.qp else {
            return Err(Failure::new("the end has no QP"));
        };
        let result = self.sides[side].lane.post_send(qp, &wrs, &[]);
        for (entry, message) in posted.iter_mut().zip(chain) {
            if let Some(mut buffer) = entry.buffer.take_if(|_| message.inline) {
                buffer.fill(0xee);
            }
        }
        posted.truncate(result.map_or_else(|refused| refused.posted, |()| chain.len()));
        end.sends.extend(posted);
        Ok(result)
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
        let side = self.side_of(conn)?;
        let side = &mut self.sides[side];
        let mut wrs = Vec::with_capacity(wr_ids.len());
        let mut posted = Vec::with_capacity(wr_ids.len());
        for &wr_id in wr_ids {
            let mut buffer = side.pool.alloc()?;
            buffer.set_len(buffer.capacity())?;
            buffer.fill(0x5a);
            let len = len.unwrap_or(buffer.capacity());
            wrs.push(RecvWr {
                wr_id,
                addr: buffer.addr(),
                len,
                lkey: side.lkey,
            });
            posted.push(Posted {
                wr_id,
                signalled: true,
                buffer: Some(buffer),
            });
        }
        let end = &mut self.conns[conn.0];
        let Some((_, qp)) = &mut end.qp else {
            return Err(Failure::new("the end has no QP"));
        };
        let result = side.lane.post_recv(qp, &wrs);
        posted.truncate(result.map_or_else(|refused| refused.posted, |()| wr_ids.len()));
        end.recvs.extend(posted);
        Ok(result)
    }

    fn side_of(&self, conn: ConnId) -> Result<usize, Failure> {
        let side = self.conns[conn.0].side.map(|s| s.0);
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
                            data,
                            signalled,
                            inline,
                            wr_id: None,
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

/// A receive that completed well must hold exactly `want`.
pub(super) fn check_message(done: &Done, want: &[u8]) -> Result<(), Failure> {
    ensure!(
        done.status == WcStatus::Success,
        "a receive completed with: {}",
        done.status
    );
    ensure!(
        done.len as usize == want.len(),
        "a message of {} B arrived with byte_len {}",
        want.len(),
        done.len
    );
    let got = done.buffer.as_deref().unwrap_or(&[]);
    let wrong = want.iter().zip(got).position(|(a, b)| a != b);
    ensure!(
        wrong.is_none() && got.len() >= want.len(),
        "a message of {} B differs from byte {}",
        want.len(),
        wrong.unwrap_or(got.len())
    );
    Ok(())
}
