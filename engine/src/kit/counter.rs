//! A counter in a peer's memory: fetch and add.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::{Atomics, RemoteWord};
use crate::worker::{PostError, Token};

/// A counter of 64 bits in a peer's memory, which any number of connections may add to: no addition is
/// lost, and every adder learns a value of its own.
///
/// It promises that for additions whose [`Answer`](super::Answer) is `Was`, which has the value before.
/// One whose answer is `Unknown` may count or not: whoever must know gives it up, or counts in another
/// way.
///
/// ```no_run
/// use spinwire::kit::{Answer, RemoteCounter, RemoteWord};
/// use spinwire::types::RemoteRegion;
/// use spinwire::worker::{Completed, ConnId, Io, PostError, Token};
///
/// /// Takes a number that nobody else gets.
/// fn take_number(io: &mut Io<'_>, conn: ConnId, offered: &RemoteRegion) -> Result<(), PostError> {
///     let tickets = RemoteCounter::new(RemoteWord::new(conn, offered, 0)?);
///     tickets.add(io, 1, Token(1))
/// }
///
/// /// What `Service::completed` makes of it.
/// fn number(completed: &Completed) -> Option<u64> {
///     match Answer::from(completed) {
///         Answer::Was(number) => Some(number),
///         Answer::NeverPosted | Answer::Unknown => None,
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteCounter {
    word: RemoteWord,
}

impl RemoteCounter {
    /// The counter in this word. It begins with what its owner wrote there before offering it.
    #[must_use]
    pub fn new(word: RemoteWord) -> Self {
        Self { word }
    }

    /// Adds, wrapping. The completion with `token` has the value before.
    ///
    /// # Errors
    /// Nothing was added.
    #[inline]
    pub fn add(&self, io: &mut impl Atomics, by: u64, token: Token) -> Result<(), PostError> {
        io.fetch_add(&self.word, by, token)
    }

    /// Reads: the completion with `token` has the value. An addition of nothing, since a READ beside
    /// atomics may find half of one.
    ///
    /// # Errors
    /// Nothing was read.
    #[inline]
    pub fn get(&self, io: &mut impl Atomics, token: Token) -> Result<(), PostError> {
        io.fetch_add(&self.word, 0, token)
    }
}
