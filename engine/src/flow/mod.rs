//! The credit window of one connection in framed mode: who may send what, and when to say that
//! receives were posted.
//!
//! ```text
//!            what I may send                           what I owe the peer
//!
//!   sent ───────────► heard                    told ───────────► posted
//!     └─ available() ──┘                         └─── owes() ─────┘
//!   counts messages    the peer's receives,    my receives, as    my receives
//!   of mine            as it told me           I told the peer
//! ```
//! Every message uses up one receive of the peer. All four are counts since the connection began,
//! modulo 2^32. Each header carries `posted`; where no message goes that way, a message of kind
//! Credits carries it alone. Pure: no I/O, no clock, nothing allocated.
//!
//! # The rules
//! Of a side whose own receive queue has depth `d`, let `T` = max(2, `d`/4) be its threshold.
//! 1. A message goes only while `available` ≥ 2. So one receive of the peer stays for credits.
//! 2. A Credits message goes while `available` ≥ 2, or with the last receive if it brings the peer
//!    at least 2. So one that brings nothing (a heartbeat) never takes the last receive.
//! 3. A side *must* send Credits once it owes `T`, as soon as rule 2 lets it.
//!
//! # Why a message always finds a receive
//! A side sends only while `sent` < `heard`, and `heard` never exceeds what the peer has posted.
//! RC delivers in order, so message number n takes receive number n, which is posted.
//!
//! # Why it cannot stand still
//! Let both sides have received what was under way, consumed it and posted every receive again, and
//! let no Credits be sendable that rule 3 demands. Claim: both have `available` ≥ 2.
//!
//! Suppose A has at most 1. All is posted and all was heard, so B owes A `d` − `available` ≥ `d` − 1,
//! which is at least `T` for every `d` ≥ 3. By rule 3 B must tell, and since it does not, B has
//! `available` = 0. Then A in turn owes B the whole of its own `d`, must tell, does not, so A has 0
//! too. Each started with at least 2 ([`POSTED_MIN`]), so each has sent, and each spent its last
//! receive on a Credits message: a message leaves at least 1. Call these a and b; they are the last
//! that A and B sent. They cannot each have been heard before the other was sent. Say b was not yet
//! heard when A sent a. Then A's `available` was 0 after a, and b, by rule 2, brought at least 2
//! more receives than anything A had heard before. So A has at least 2 now, and not 0. ∎
//!
//! A service that holds messages for long takes their receives out of this. While it holds fewer
//! than `d` − `T`, its peer is not stopped for good: either it can send, or Credits are due.
//!
//! # Why Credits do not answer each other for ever
//! A Credits message of rule 3 pays off a debt of at least `T` ≥ 2 receives, and each Credits
//! message received adds a debt of one. So Credits of both sides together, `n`, follow from other
//! messages, `m`, and from the debt at the start, `o`, by 2`n` ≤ `o` + `m` + `n`: when nothing else
//! is sent, at most `o` of them come, and then none. With traffic one way, one Credits message
//! follows `T` − 1 messages or more.
//!
//! Imports wire. Imported by framed.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use crate::wire::{Hello, POSTED_MIN, RECV_DEPTH_MAX, RECV_DEPTH_MIN};

#[cfg(test)]
mod flow_tests;

/// Least debt that a Credits message pays off. Above 1, so that Credits answer each other ever less.
const OWED_MIN: u32 = 2;
/// A side speaks up when it owes this part of its receive queue. The rest keeps the peer busy
/// meanwhile.
const QUEUE_PER_DEBT: u32 = 4;

/// The debt at which a side whose receive queue has this depth must tell.
const fn threshold(depth: u32) -> u32 {
    let share = depth / QUEUE_PER_DEBT;
    if share > OWED_MIN { share } else { OWED_MIN }
}

// What the proofs above use.
const _: () = assert!(POSTED_MIN >= 2 && OWED_MIN >= 2 && QUEUE_PER_DEBT >= 2);
const _: () = assert!(threshold(RECV_DEPTH_MIN) < RECV_DEPTH_MIN);
// A step of a count forwards, at most the depth, cannot be taken for one backwards.
const _: () = assert!(RECV_DEPTH_MAX < 1 << 31);

/// A count of receives that cannot be true. The peer is broken or hostile: close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lie {
    /// The count is less than one that came before it.
    #[error("the peer counts its receives backwards: {now} after {before}")]
    Backwards {
        /// The count that was heard before.
        before: u32,
        /// The count that came.
        now: u32,
    },
    /// More receives unused than the peer's queue holds.
    #[error("the peer claims {unused} unused receives, and its queue holds {depth}")]
    TooMany {
        /// Receives that would be there to be used.
        unused: u32,
        /// What the peer's hello said.
        depth: u32,
    },
}

/// Both directions of one connection, as one side sees them.
///
/// ```
/// use spinwire::flow::Window;
/// use spinwire::wire::Hello;
/// let hello = Hello::new(8, 8, 4096)?;
/// let (mut a, mut b) = (Window::new(&hello, &hello), Window::new(&hello, &hello));
/// // a: a message, and the header says what is posted here.
/// assert!(a.may_send());
/// let told = a.tell();
/// a.sent();
/// assert_eq!(a.available(), 7);
/// // b: nothing new in that header. The service is done, and the receive is posted again.
/// assert_eq!(b.heard(told), Ok(false));
/// b.posted(9);
/// assert!(b.owes() == 1 && !b.credits_due());
/// // b: its next message tells.
/// assert_eq!(a.heard(b.tell()), Ok(true));
/// assert_eq!(a.available(), 8);
/// # Ok::<(), spinwire::wire::HelloError>(())
/// ```
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, Hash))]
pub struct Window {
    /// Messages sent.
    sent: u32,
    /// Receives that the peer has posted, as it told. Never more than `peer_depth` ahead of `sent`.
    heard: u32,
    /// Receives posted here.
    posted: u32,
    /// Receives posted here, as the peer was told.
    told: u32,
    peer_depth: u32,
    /// The debt at which the peer must be told.
    due_at: u32,
}

impl Window {
    /// A window at the start: what the two hellos told is told, and nothing is sent.
    #[must_use]
    pub const fn new(mine: &Hello, peer: &Hello) -> Self {
        Self {
            sent: 0,
            heard: peer.posted(),
            posted: mine.posted(),
            told: mine.posted(),
            peer_depth: peer.recv_depth(),
            due_at: threshold(mine.recv_depth()),
        }
    }

    /// Receives of the peer that are surely there and not used up by what was sent.
    #[inline]
    #[must_use]
    pub const fn available(&self) -> u32 {
        self.heard.wrapping_sub(self.sent)
    }

    /// Whether a message of any kind may go. The last receive is kept for credits.
    #[inline]
    #[must_use]
    pub const fn may_send(&self) -> bool {
        self.available() >= 2
    }

    /// Whether a Credits message may go. It may take the last receive, but only to bring more than
    /// it takes: two sides that both spent their last on nothing would never hear of each other
    /// again.
    #[inline]
    #[must_use]
    pub const fn may_send_credits(&self) -> bool {
        self.may_send() || (self.available() == 1 && self.owes() >= OWED_MIN)
    }

    /// Counts a message, of any kind, as sent. Call it for each that is queued, so that the next
    /// question sees it.
    #[inline]
    pub const fn sent(&mut self) {
        debug_assert!(self.available() > 0, "sent without a receive at the peer");
        self.sent = self.sent.wrapping_add(1);
    }

    /// Takes the count of a header that came. Says whether there is more room than before: whoever
    /// waits to send may try again.
    ///
    /// # Errors
    /// [`Lie`]: the count cannot be true. The window is as it was.
    #[inline]
    pub const fn heard(&mut self, posted: u32) -> Result<bool, Lie> {
        let more = posted.wrapping_sub(self.heard);
        if more > u32::MAX / 2 {
            return Err(Lie::Backwards {
                before: self.heard,
                now: posted,
            });
        }
        // At most 2^30 and 2^31: the sum does not wrap.
        let unused = self.available() + more;
        if unused > self.peer_depth {
            return Err(Lie::TooMany {
                unused,
                depth: self.peer_depth,
            });
        }
        self.heard = posted;
        Ok(more > 0)
    }

    /// Notes how many receives are posted here by now, all since the connection began, modulo 2^32.
    /// They must be in the queue already: the peer may hear of them with the next header.
    #[inline]
    pub const fn posted(&mut self, total: u32) {
        debug_assert!(
            total.wrapping_sub(self.posted) <= RECV_DEPTH_MAX,
            "receives counted backwards"
        );
        self.posted = total;
    }

    /// Receives posted here that the peer was not told of.
    #[inline]
    #[must_use]
    pub const fn owes(&self) -> u32 {
        self.posted.wrapping_sub(self.told)
    }

    /// Whether the peer must be told. If no message is about to go, send Credits as soon as
    /// [`may_send_credits`](Self::may_send_credits) says so.
    #[inline]
    #[must_use]
    pub const fn credits_due(&self) -> bool {
        self.owes() >= self.due_at
    }

    /// The count for the next header. It is noted as told.
    #[inline]
    pub const fn tell(&mut self) -> u32 {
        self.told = self.posted;
        self.told
    }

    /// What the peer was told last: for [`untell`](Self::untell), should the next message fail.
    #[inline]
    #[must_use]
    pub const fn told(&self) -> u32 {
        self.told
    }

    /// Takes a [`tell`](Self::tell) back, because its message was never sent. `previous` is what
    /// [`told`](Self::told) gave before it. Where several messages were not sent, the order does not
    /// matter: the least stays.
    #[inline]
    pub const fn untell(&mut self, previous: u32) {
        if self.told.wrapping_sub(previous) <= RECV_DEPTH_MAX {
            self.told = previous;
        }
    }
}
