//! A group of connections to one peer, as one worker sees it: which connection takes the next
//! operation. Pure; memory is taken when the group is made.
//!
//! ```text
//!  connected ─► joined ─┐                            ┌─► Ok(conn): post there
//!  disconnected ► left ─┴─► members ─► pick(policy) ─┼─► OnWorker(n): the key is worker n's
//!                                                    ├─► Forming: its member is not up yet
//!                                                    └─► NoneLeft
//! ```
//! The members lie on several workers, which share nothing. So a worker picks among its own members
//! only, and by hash says which other worker a key belongs to: the embedder hands the work over there,
//! by a [ring](crate::ring::spsc) of its own.
//!
//! **What each policy promises.** Operations of one member are executed in the order in which they were
//! posted, whatever the policy; between members there is no order.
//! - [`RoundRobin`](Policy::RoundRobin) and [`LeastOutstanding`](Policy::LeastOutstanding) promise no
//!   order between any two operations.
//! - [`ByHash`](Policy::ByHash): operations of one key are executed in the order in which they were
//!   posted, as long as the key's member lives. When it dies, its keys, and no others, move to what is
//!   left on the same worker. They move when the service calls [`Group::left`], thus in `disconnected`,
//!   when every operation of the dead member has come back with its outcome; one whose outcome is
//!   unknown may have reached the peer. How the peer orders what it had from the dead member and what
//!   it gets from the next is the peer's affair.
//!
//! Imports types. Called by services.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::{ConnId, Peer};
use crate::types::{GroupId, GroupShape, Membership};

/// How a member is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Each member of this worker in turn. Promises no order between operations.
    RoundRobin,
    /// The member that the key has, for as long as it lives: its operations stay in order. See
    /// [`Group::by_hash`].
    ByHash(u64),
    /// The member of this worker with the fewest operations outstanding; of equals the next in turn.
    /// Promises no order between operations.
    LeastOutstanding,
}

/// Why there is no connection to post on. One variant for each decision that a caller can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NoPick {
    /// The key belongs to a member on this other worker: hand the work over there.
    #[error("the key belongs to a member on worker {0}: hand the work over there")]
    OnWorker(u16),
    /// The member that is to have it is not connected yet: try again after `connected`.
    #[error("the member that is to have it is not connected yet")]
    Forming,
    /// No member of this worker is left. By hash, other workers do not take its keys until they are
    /// told to [`leave_out`](Group::leave_out) this one.
    #[error("no member of the group is left on this worker")]
    NoneLeft,
}

/// A connection does not belong to the group, or not here, or its member is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("the connection is no member that this worker waits for")]
pub struct NotOfGroup;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Awaited,
    Up(ConnId),
    /// It was up, and ended.
    Gone,
}

/// A group's members on one worker.
#[derive(Clone, Debug)]
pub struct Group {
    id: GroupId,
    shape: GroupShape,
    worker: u16,
    /// This worker's, by rising number.
    here: Box<[(u16, State)]>,
    /// Where among them the next turn begins.
    next: usize,
    /// By worker's number: keys are not dealt to its members any more.
    out: Box<[bool]>,
}

impl Group {
    /// The part of a group that lies on `worker`; all its members are awaited. Takes the memory that the
    /// group will ever use.
    #[must_use]
    pub fn new(id: GroupId, shape: GroupShape, worker: u16) -> Self {
        let here = shape.members_on(worker).map(|n| (n, State::Awaited));
        let workers = (0..shape.members()).map(|n| shape.worker_of(n));
        let count = usize::from(workers.max().unwrap_or(0)) + 1;
        Self {
            id,
            shape,
            worker,
            here: here.collect(),
            next: 0,
            out: vec![false; count].into_boxed_slice(),
        }
    }

    /// The group that a connection which has come up is the first of, on its worker.
    #[must_use]
    pub fn of(conn: ConnId, membership: &Membership) -> Self {
        let mut group = Self::new(membership.group, membership.shape, conn.worker);
        // A connection that was made for another worker is none of ours; the group then waits.
        let _ = group.join(conn, membership);
        group
    }

    /// The group's name.
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// The worker that this part of it is for.
    #[must_use]
    pub fn worker(&self) -> u16 {
        self.worker
    }

    /// How many members it has, and where.
    #[must_use]
    pub fn shape(&self) -> GroupShape {
        self.shape
    }

    /// A connection is up: call it in `connected`, with what that was given.
    ///
    /// # Errors
    /// It is no member of this group, or of another worker, or its member has been up before.
    pub fn joined(&mut self, conn: ConnId, peer: &Peer) -> Result<(), NotOfGroup> {
        let membership = peer.membership.ok_or(NotOfGroup)?;
        self.join(conn, &membership)
    }

    pub(super) fn join(&mut self, conn: ConnId, as_: &Membership) -> Result<(), NotOfGroup> {
        if (as_.group, as_.shape) != (self.id, self.shape) {
            return Err(NotOfGroup);
        }
        let state = self.here.iter_mut().find(|(n, _)| *n == as_.number);
        match state {
            Some((_, state @ State::Awaited)) => {
                *state = State::Up(conn);
                Ok(())
            }
            _ => Err(NotOfGroup),
        }
    }

    /// A connection has ended: call it in `disconnected`. Gives the number of its member, `None` if it
    /// was none of the group's. A member that ended does not come back; open another group for that.
    pub fn left(&mut self, conn: ConnId) -> Option<u16> {
        let up = State::Up(conn);
        let (number, state) = self.here.iter_mut().find(|(_, state)| *state == up)?;
        *state = State::Gone;
        Some(*number)
    }

    /// No member of a worker is left, or it is to get no more keys: its keys are dealt to the others
    /// from here on, and no other key moves. Every worker must be told, by the embedder, and the order
    /// of a key's operations across the move is the embedder's to see to.
    pub fn leave_out(&mut self, worker: u16) {
        if let Some(out) = self.out.get_mut(usize::from(worker)) {
            *out = true;
        }
    }

    /// Members of this worker that have not been up yet. The group is formed here when there is none.
    #[must_use]
    pub fn awaited(&self) -> usize {
        let awaited = |(_, state): &&(u16, State)| *state == State::Awaited;
        self.here.iter().filter(awaited).count()
    }

    /// The members of this worker that are up, with their numbers.
    pub fn members(&self) -> impl Iterator<Item = (u16, ConnId)> + '_ {
        self.here.iter().filter_map(|(number, state)| match state {
            State::Up(conn) => Some((*number, *conn)),
            State::Awaited | State::Gone => None,
        })
    }

    /// The connection for the next operation. `outstanding` tells how many operations a connection
    /// has under way: `|conn| io.outstanding(conn)`.
    ///
    /// # Errors
    /// There is none here: [`NoPick`].
    #[inline]
    pub fn pick(
        &mut self,
        policy: Policy,
        outstanding: impl FnMut(ConnId) -> u32,
    ) -> Result<ConnId, NoPick> {
        match policy {
            Policy::RoundRobin => self.round_robin(),
            Policy::ByHash(key) => self.by_hash(key),
            Policy::LeastOutstanding => self.least_outstanding(outstanding),
        }
    }

    /// Each member of this worker that is up, in turn, whether or not its send queue has room: a post
    /// that is refused with `WouldBlock` may try the next.
    ///
    /// # Errors
    /// [`NoPick::Forming`] or [`NoPick::NoneLeft`]: none is up.
    #[inline]
    pub fn round_robin(&mut self) -> Result<ConnId, NoPick> {
        // Of equals the next in turn: that is what is wanted.
        self.least_outstanding(|_| 0)
    }

    /// The member of this worker with the fewest operations outstanding.
    ///
    /// # Errors
    /// [`NoPick::Forming`] or [`NoPick::NoneLeft`]: none is up.
    #[inline]
    pub fn least_outstanding(
        &mut self,
        mut outstanding: impl FnMut(ConnId) -> u32,
    ) -> Result<ConnId, NoPick> {
        let count = self.here.len();
        let mut best: Option<(usize, ConnId, u32)> = None;
        for step in 0..count {
            let i = (self.next + step) % count;
            if let State::Up(conn) = self.here[i].1 {
                let load = outstanding(conn);
                if best.is_none_or(|(_, _, least)| load < least) {
                    best = Some((i, conn, load));
                }
                if load == 0 {
                    break; // Nothing is less.
                }
            }
        }
        let Some((i, conn, _)) = best else {
            return Err(self.none_up());
        };
        self.next = (i + 1) % count;
        Ok(conn)
    }

    /// The key's member: the one for which a mix of key and number is greatest (rendezvous hashing),
    /// among all members of the group to find the worker, then among those of that worker that have
    /// not ended. It depends on nothing but the key, the shape and who has ended or is left out; so
    /// each worker finds the same, and a member that ends moves its own keys only. Its cost grows with
    /// the number of members.
    ///
    /// # Errors
    /// The key belongs to [another worker](NoPick::OnWorker), or its member is not up yet, or none is
    /// left here.
    #[inline]
    pub fn by_hash(&self, key: u64) -> Result<ConnId, NoPick> {
        let home = (0..self.shape.members())
            .filter(|number| !self.is_out(self.shape.worker_of(*number)))
            .max_by_key(|number| weight(key, *number))
            .ok_or(NoPick::NoneLeft)?;
        let worker = self.shape.worker_of(home);
        if worker != self.worker {
            return Err(NoPick::OnWorker(worker));
        }
        let living = self.here.iter().filter(|(_, state)| *state != State::Gone);
        match living.max_by_key(|(number, _)| weight(key, *number)) {
            Some((_, State::Up(conn))) => Ok(*conn),
            // A stand-in would have to give the key back when its member comes.
            Some(_) => Err(NoPick::Forming),
            None => Err(NoPick::NoneLeft),
        }
    }

    #[inline]
    fn is_out(&self, worker: u16) -> bool {
        self.out.get(usize::from(worker)).is_some_and(|out| *out)
    }

    #[cold]
    fn none_up(&self) -> NoPick {
        match self.awaited() {
            0 => NoPick::NoneLeft,
            _ => NoPick::Forming,
        }
    }
}

/// A number for a key and a member, as good as random: the finaliser of SplitMix64 (Steele, Lea,
/// Flood 2014), twice, so that keys and numbers that differ by little give weights that differ.
#[inline]
fn weight(key: u64, number: u16) -> u64 {
    mix(mix(key).wrapping_add(u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

#[inline]
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
