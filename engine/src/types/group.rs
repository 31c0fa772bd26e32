//! A connection's place in a group: several connections to one peer, spread over workers.
//!
//! ```text
//!  members of a shape { members: 5, first_worker: 2, workers: 2 }
//!     worker 2: 0 2 4      worker 3: 1 3
//! ```
//! Placement is arithmetic, so every worker knows where each member lies without asking another.

use std::fmt;

/// Names a group. Groups that one engine opens have different ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u64);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.0)
    }
}

/// How many members a group has, and which worker has which. Holding one proves: there is a member and
/// a worker, and the last worker has a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupShape {
    members: u16,
    first_worker: u16,
    workers: u16,
}

impl GroupShape {
    /// `members` dealt in turn to `workers` workers, from number `first_worker` on; `None` for a group of
    /// nothing, or on workers that no number is left for.
    #[must_use]
    pub fn new(members: u16, first_worker: u16, workers: u16) -> Option<Self> {
        (members > 0 && workers > 0).then_some(())?;
        first_worker.checked_add(workers - 1)?;
        Some(Self {
            members,
            first_worker,
            workers,
        })
    }

    /// Members; never 0.
    #[must_use]
    pub fn members(&self) -> u16 {
        self.members
    }

    /// The worker that has a member: its number, counted on from the first worker, wrapping.
    #[inline]
    #[must_use]
    pub fn worker_of(&self, member: u16) -> u16 {
        self.first_worker + member % self.workers
    }

    /// Members that a worker has, by number.
    pub fn members_on(&self, worker: u16) -> impl Iterator<Item = u16> + '_ {
        (0..self.members).filter(move |member| self.worker_of(*member) == worker)
    }
}

/// A connection's place in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Membership {
    /// The group.
    pub group: GroupId,
    /// Number of the member, from 0.
    pub number: u16,
    /// The whole group.
    pub shape: GroupShape,
}

impl Membership {
    /// The worker that the member lies on.
    #[must_use]
    pub fn worker(&self) -> u16 {
        self.shape.worker_of(self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_dealt_to_workers_in_turn() {
        let shape = GroupShape::new(5, 2, 2).expect("a shape");
        let on = |worker| shape.members_on(worker).collect::<Vec<_>>();
        assert_eq!((on(2), on(3)), (vec![0, 2, 4], vec![1, 3]));
        assert!(on(1).is_empty() && on(4).is_empty());
    }

    #[test]
    fn only_what_can_exist_is_a_shape() {
        assert_eq!(GroupShape::new(0, 0, 1), None);
        assert_eq!(GroupShape::new(1, 0, 0), None);
        assert_eq!(GroupShape::new(1, u16::MAX, 2), None);
        let last = GroupShape::new(u16::MAX, u16::MAX, 1).expect("the last worker");
        assert_eq!(last.worker_of(u16::MAX - 1), u16::MAX);
    }
}
