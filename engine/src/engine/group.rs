//! Groups are opened here: several connections to one peer, dealt to workers, all of them or none.
//!
//! ```text
//!  connect_group(url, spec) ─► one request a member ─► control, all under way at once
//!        ▲                                                │ each to the worker that its number says
//!        └── OpenGroup, or the first failure ◄────────────┘ (then those that came up are closed)
//! ```
//! What a worker does with its members is [`worker::Group`](crate::worker::Group)'s.

use super::requests::Request;
use super::{Engine, EngineError};
use crate::control::{ConnectError, Offer};
use crate::fabric::{Endpoint, Url};
use crate::limits::GROUP_MEMBERS_MAX;
use crate::types::{GroupId, GroupShape, Membership};
use crate::worker::ConnId;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// What group to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// Connections, 1 to [`GROUP_MEMBERS_MAX`].
    pub qps: u16,
    /// Workers that share them: member `n` goes to worker `start + n % len`. `None` takes all workers of
    /// the engine. Each needs the device that leads to the peer.
    pub workers: Option<Range<u16>>,
    /// The terms of every member. Its `worker` and `membership` are set here, whatever they say.
    pub offer: Offer,
}

impl GroupSpec {
    /// So many connections in raw mode, over all workers.
    #[must_use]
    pub fn of(qps: u16) -> Self {
        Self {
            qps,
            workers: None,
            offer: Offer::default(),
        }
    }
}

/// A group that is open. Its connections belong to the services of their workers, which were told of
/// it by [`Peer::membership`](crate::worker::Peer::membership).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenGroup {
    /// Its name.
    pub id: GroupId,
    /// How many members it has, and where.
    pub shape: GroupShape,
    /// The members, by number.
    pub members: Vec<ConnId>,
}

/// A group was not opened.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// A group of nothing, or of too many.
    #[error("a group of {asked} connections: take 1 to {GROUP_MEMBERS_MAX}")]
    Size {
        /// Connections asked for.
        asked: u16,
    },
    /// Workers that are not there.
    #[error(
        "a group on workers {}..{}: this engine has workers 0..{have}; take a range of those that is \
         not empty, or None for all", .asked.start, .asked.end
    )]
    Workers {
        /// Workers asked for.
        asked: Range<u16>,
        /// Workers of the engine.
        have: u16,
    },
    /// The peer's name has no address.
    #[error(transparent)]
    Resolve(EngineError),
    /// A member could not be connected.
    #[error("member {number} of {of}, for worker {worker}: {source}")]
    Member {
        /// Its number.
        number: u16,
        /// Members asked for.
        of: u16,
        /// The worker it was for.
        worker: u16,
        /// Why.
        source: Box<ConnectError>,
    },
}

impl GroupSpec {
    /// Who goes where, on an engine with so many workers.
    fn shape(&self, have: u16) -> Result<GroupShape, GroupError> {
        let asked = self.workers.clone().unwrap_or(0..have);
        if self.qps == 0 || self.qps > GROUP_MEMBERS_MAX {
            return Err(GroupError::Size { asked: self.qps });
        }
        let count = asked.end.saturating_sub(asked.start);
        GroupShape::new(self.qps, asked.start, count)
            .filter(|_| asked.end <= have)
            .ok_or(GroupError::Workers { asked, have })
    }
}

impl Engine {
    /// Opens a group: so many connections to one peer, spread over workers as the spec says, each told to
    /// its worker's service with its membership. All of them or none: when one fails, those that came up
    /// are closed again, and their services hear `connected` and `disconnected`. Every address of a name
    /// is tried in turn, for the whole group.
    ///
    /// # Errors
    /// The spec does not fit the engine; or why the first member that failed did, at the last address.
    /// Bounded by the plan's timeouts. Closing what came up may then still be under way.
    pub fn connect_group(&self, peer: &Url, spec: &GroupSpec) -> Result<OpenGroup, GroupError> {
        let have = u16::try_from(self.grants.len()).unwrap_or(u16::MAX);
        let shape = spec.shape(have)?;
        let mut last = None;
        for endpoint in EngineError::resolve(peer).map_err(GroupError::Resolve)? {
            let id = GroupId(self.groups.fetch_add(1, Ordering::Relaxed));
            match self.open_group(&endpoint, id, shape, spec.offer) {
                Ok(members) => return Ok(OpenGroup { id, shape, members }),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or(GroupError::Resolve(EngineError::Stopped)))
    }

    /// The group at one address.
    fn open_group(
        &self,
        peer: &Endpoint,
        group: GroupId,
        shape: GroupShape,
        offer: Offer,
    ) -> Result<Vec<ConnId>, GroupError> {
        let ask = |number| {
            let membership = Membership {
                group,
                number,
                shape,
            };
            let offer = Offer {
                worker: Some(membership.worker()),
                membership: Some(membership),
                ..offer
            };
            self.requests
                .begin(|reply| Request::Connect(peer.clone(), Box::new(offer), reply))
        };
        let asked: Vec<_> = (0..shape.members()).map(ask).collect();
        let (mut members, mut failure) = (Vec::with_capacity(asked.len()), None);
        for (answer, number) in asked.into_iter().zip(0..) {
            match answer.recv().unwrap_or(Err(ConnectError::Stopped)) {
                Ok(conn) => members.push(conn),
                Err(source) => {
                    failure.get_or_insert(GroupError::Member {
                        number,
                        of: shape.members(),
                        worker: shape.worker_of(number),
                        source: Box::new(source),
                    });
                }
            }
        }
        let Some(failure) = failure else {
            return Ok(members);
        };
        members.into_iter().for_each(|conn| self.close(conn));
        Err(failure)
    }

    /// Closes every member of a group; their services are told when they have ended.
    pub fn close_group(&self, group: &OpenGroup) {
        group.members.iter().for_each(|conn| self.close(*conn));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(qps: u16, workers: Option<Range<u16>>) -> GroupSpec {
        GroupSpec {
            workers,
            ..GroupSpec::of(qps)
        }
    }

    #[test]
    fn a_spec_must_fit_the_engine() {
        let shape = spec(4, None).shape(2).expect("it fits");
        assert_eq!(shape, GroupShape::new(4, 0, 2).expect("a shape"));
        let shape = spec(2, Some(1..3)).shape(3).expect("it fits");
        assert_eq!(shape, GroupShape::new(2, 1, 2).expect("a shape"));
        for (qps, workers, word) in [
            (0, None, "a group of 0"),
            (GROUP_MEMBERS_MAX + 1, None, "take 1 to"),
            (2, Some(1..3), "has workers 0..2"),
            (2, Some(1..1), "workers 1..1"),
            (
                2,
                Some(Range {
                    start: u16::MAX,
                    end: 0,
                }),
                "not empty",
            ),
        ] {
            let error = spec(qps, workers).shape(2).expect_err(word).to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
