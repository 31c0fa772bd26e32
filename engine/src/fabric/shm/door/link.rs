//! One connection as the door knows it, and the rules of what may come when.
//!
//! ```text
//!  active   Addressed ─► Routed ─► Calling ─► Asking ─────────► Mapping ─────────► Answered ─confirm─► Up
//!                                   (backlog   │ REQUEST  ACCEPT ▲ │ MAPPED   SEALED ▲      CONFIRM │
//!                                    is full)  ▼                 │ ▼                 │              ▼
//!  passive                        Greeting ─► Asked ──accept─► Accepted ─────────► Sealed ─────────► Up
//!
//!  Up ─disconnect─► Leaving ─────► Over          Up ─────────► Left ─disconnect─► Over
//!            DISCONNECT │             ▲ DISCONNECT │ DISCONNECT ▲ │ DISCONNECT
//!                       └─────────────┼────────────┼────────────┘ │
//!                                     └────────────┴──────────────┘
//! ```
//! An inbox is written only when its owner has sealed it: the active end seals before MAPPED, the passive
//! one before SEALED. A frame that the rules do not name ends the connection, as does a peer that hangs up;
//! what the embedder hears of it depends on how far they had come.
//!
//! The rules are functions of the phase alone; hear.rs does what they say. Imports frames, ends, sys.
//! Imported by the files of this folder.

use super::ends::{Offer, PeerEnd};
use super::frames::Kind;
use crate::fabric::{CmEventKind, ConnParams};
use crate::sys::memfd::Memfd;
use crate::sys::seqpacket::Seqpacket;
use crate::types::Rkey;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Questions for regions that one end may have open. More and the peer is hostile.
pub(super) const ASKS_MAX: usize = 16;

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Active: the name is good.
    Addressed,
    /// Active: may connect.
    Routed,
    /// Active: the listener's backlog is full, tried again soon.
    Calling,
    /// Active: the request is sent.
    Asking,
    /// Active: the answer is mapped, our inbox is sealed.
    Mapping,
    /// Active: both inboxes are sealed.
    Answered,
    /// Passive: connected, without a request.
    Greeting,
    /// Passive: the embedder has the request.
    Asked,
    /// Passive: the peer was gone before the embedder answered.
    Lost,
    /// Passive: the answer is sent.
    Accepted,
    /// Passive: both inboxes are sealed.
    Sealed,
    /// Both: the connection stands.
    Up,
    /// Both: we have disconnected, the peer has not answered.
    Leaving,
    /// Both: the peer has disconnected or is gone, we have not answered.
    Left,
    /// Both: nothing comes any more.
    Over,
}

impl Phase {
    #[cfg(test)]
    pub(super) const ALL: [Self; 15] = [
        Self::Addressed,
        Self::Routed,
        Self::Calling,
        Self::Asking,
        Self::Mapping,
        Self::Answered,
        Self::Greeting,
        Self::Asked,
        Self::Lost,
        Self::Accepted,
        Self::Sealed,
        Self::Up,
        Self::Leaving,
        Self::Left,
        Self::Over,
    ];

    /// An end that gives up here tells its peer by a rejection, which tells it from one that died.
    pub(super) fn rejects_when_given_up(self) -> bool {
        match self {
            Self::Asking
            | Self::Mapping
            | Self::Answered
            | Self::Asked
            | Self::Accepted
            | Self::Sealed => true,
            Self::Addressed
            | Self::Routed
            | Self::Calling
            | Self::Greeting
            | Self::Lost
            | Self::Up
            | Self::Leaving
            | Self::Left
            | Self::Over => false,
        }
    }
}

/// What a frame means in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Takes the request, if there is room.
    Admit,
    /// Maps the answer, seals our inbox, says so.
    Map,
    /// Seals our inbox, says so.
    Seal,
    /// The peer has answered: tells the embedder.
    Respond,
    /// The connection stands: tells the embedder.
    Establish,
    /// The peer refuses: tells the embedder why.
    Refused,
    /// The peer leaves.
    Parted,
    /// Asks the embedder for a region.
    Ask,
    /// An answer to such a question.
    Granted,
    /// It crossed something of ours.
    Ignore,
    /// As if the peer had hung up.
    Gone,
    /// It must not come now.
    Broken,
}

/// What a frame of this kind means now.
pub(super) fn rule(phase: Phase, kind: Kind) -> Rule {
    match (phase, kind) {
        (Phase::Greeting, Kind::Request) => Rule::Admit,
        (Phase::Asking, Kind::Accept) => Rule::Map,
        (Phase::Accepted, Kind::Mapped) => Rule::Seal,
        (Phase::Mapping, Kind::Sealed) => Rule::Respond,
        (Phase::Sealed, Kind::Confirm) => Rule::Establish,
        (
            Phase::Asking | Phase::Mapping | Phase::Answered | Phase::Accepted | Phase::Sealed,
            Kind::Reject,
        ) => Rule::Refused,
        (Phase::Asked | Phase::Up | Phase::Leaving | Phase::Left, Kind::Reject) => Rule::Gone,
        (Phase::Up | Phase::Leaving, Kind::Disconnect) => Rule::Parted,
        (Phase::Up, Kind::Ask) => Rule::Ask,
        (Phase::Up, Kind::Grant) => Rule::Granted,
        (Phase::Leaving, Kind::Ask | Kind::Grant) => Rule::Ignore,
        _ => Rule::Broken,
    }
}

/// Why a connection ends without a word of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The peer hung up, or its process is gone.
    Gone,
    /// It broke the rules.
    Broken,
    /// It took too long.
    Late,
}

impl Ending {
    fn status(self) -> i32 {
        match self {
            Self::Gone => -libc::ECONNRESET,
            Self::Broken => -libc::EPROTO,
            Self::Late => -libc::ETIMEDOUT,
        }
    }
}

/// What an end without a word makes of a phase, and what the embedder hears.
pub(super) fn ended(phase: Phase, why: Ending) -> (Phase, Option<(CmEventKind, i32)>) {
    match phase {
        Phase::Calling
        | Phase::Asking
        | Phase::Mapping
        | Phase::Answered
        | Phase::Accepted
        | Phase::Sealed => {
            let kind = match why {
                Ending::Late => CmEventKind::Unreachable,
                Ending::Gone | Ending::Broken => CmEventKind::ConnectError,
            };
            (Phase::Over, Some((kind, why.status())))
        }
        Phase::Asked => (Phase::Lost, None),
        // A peer that dies is one that leaves, as on IB.
        Phase::Up => {
            let status = if why == Ending::Gone { 0 } else { why.status() };
            (Phase::Left, Some((CmEventKind::Disconnected, status)))
        }
        Phase::Leaving => {
            let status = if why == Ending::Late { why.status() } else { 0 };
            (Phase::Over, Some((CmEventKind::Disconnected, status)))
        }
        Phase::Greeting => (Phase::Over, None),
        Phase::Addressed | Phase::Routed | Phase::Lost | Phase::Left | Phase::Over => (phase, None),
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) phase: Phase,
    pub(super) socket: Option<Seqpacket>,
    pub(super) local: String,
    pub(super) remote: String,
    /// Passive: the listener that it came to.
    pub(super) listener: Option<u64>,
    /// Active: what is to be said when the listener has room.
    pub(super) call: Option<Box<(Offer, ConnParams)>>,
    /// Our inbox, until it is sealed.
    pub(super) inbox: Option<Arc<Memfd>>,
    /// The peer, until the embedder has it.
    pub(super) peer: Option<Box<PeerEnd>>,
    /// When the phase ends for want of an answer.
    pub(super) deadline: Option<Instant>,
    /// Questions of ours that the peer has not answered.
    pub(super) asking: VecDeque<Rkey>,
    /// Questions of the peer that the embedder has not answered.
    pub(super) asked: VecDeque<Rkey>,
}

impl Link {
    pub(super) fn new(phase: Phase, local: String, remote: String) -> Self {
        Self {
            phase,
            socket: None,
            local,
            remote,
            listener: None,
            call: None,
            inbox: None,
            peer: None,
            deadline: None,
            asking: VecDeque::new(),
            asked: VecDeque::new(),
        }
    }

    /// Nothing of the peer's is of use any more, but what the embedder holds.
    pub(super) fn clear(&mut self) {
        self.call = None;
        self.inbox = None;
        self.peer = None;
        self.deadline = None;
        self.asking.clear();
        self.asked.clear();
    }
}

/// Takes one question out of those that wait. False if it was not asked.
pub(super) fn take_ask(asks: &mut VecDeque<Rkey>, rkey: Rkey) -> bool {
    let found = asks.iter().position(|asked| *asked == rkey);
    found.and_then(|at| asks.remove(at)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handshake_takes_its_frames_in_one_order_only() {
        let good = [
            (Phase::Greeting, Kind::Request),
            (Phase::Asking, Kind::Accept),
            (Phase::Accepted, Kind::Mapped),
            (Phase::Mapping, Kind::Sealed),
            (Phase::Sealed, Kind::Confirm),
        ];
        for phase in Phase::ALL {
            for kind in [
                Kind::Request,
                Kind::Accept,
                Kind::Mapped,
                Kind::Sealed,
                Kind::Confirm,
            ] {
                let broken = rule(phase, kind) == Rule::Broken;
                assert_ne!(broken, good.contains(&(phase, kind)), "{phase:?} {kind:?}");
            }
        }
    }

    #[test]
    fn what_ends_stays_ended_and_is_told_once() {
        for phase in Phase::ALL {
            for why in [Ending::Gone, Ending::Broken, Ending::Late] {
                let (next, _) = ended(phase, why);
                let (last, told) = ended(next, why);
                assert_eq!((last, told), (next, None), "{phase:?} {why:?}");
            }
        }
    }

    #[test]
    fn regions_are_asked_for_only_while_the_connection_stands() {
        for phase in Phase::ALL {
            for kind in [Kind::Ask, Kind::Grant] {
                let rule = rule(phase, kind);
                match phase {
                    Phase::Up => assert!(matches!(rule, Rule::Ask | Rule::Granted)),
                    Phase::Leaving => assert_eq!(rule, Rule::Ignore),
                    _ => assert_eq!(rule, Rule::Broken),
                }
            }
        }
        let mut asks = VecDeque::from([Rkey(1), Rkey(2), Rkey(1)]);
        assert!(take_ask(&mut asks, Rkey(1)) && take_ask(&mut asks, Rkey(1)));
        assert!(!take_ask(&mut asks, Rkey(1)) && take_ask(&mut asks, Rkey(2)));
    }
}
