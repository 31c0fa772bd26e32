//! A lock in a peer's memory, with a lease and a fencing epoch: compare and swap.
//!
//! ```text
//!  Idle ─acquire─► Trying ─CAS─► Asked ─won──────────────► Held ─a third of the lease─► Renewing
//!                    ▲             │ lost, free: at once     ▲ └──────── won ◄─────────────┘ │
//!                    ├─────────────┤                         │                      lost ─► Idle
//!                    └──── Saw ◄───┘ lost, held            release ─► Releasing ─► Idle
//! ```
//! A look is an attempt: a CAS that expects the lock free. Its answer is what stands there, and if that
//! has been the same for a lease by this side's clock, the next CAS expects it, and takes over.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use super::lock_word::{Epoch, LockWord, Owner};
use super::{Answer, Atomics, RemoteWord};
use crate::types::Nanos;
use crate::worker::{PostError, Token};
use std::time::Duration;

/// How one contender uses a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockTerms {
    /// Who it is.
    pub owner: Owner,
    /// How long a holder that does not renew keeps the lock. The same for all contenders.
    pub lease: Duration,
    /// Between two looks at a lock that another holds: at most a quarter of the lease.
    pub look_every: Duration,
    /// Comes back in the completion of every operation of the lock; one lock, one token.
    pub token: Token,
}

/// Terms that no lock can work by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    /// Looks too rare to see a holder renew.
    #[error(
        "looks every {look_every:?} with a lease of {lease:?}: look four times a lease or more"
    )]
    RareLooks {
        /// As given.
        look_every: Duration,
        /// As given.
        lease: Duration,
    },
}

/// The lock cannot go on. It is idle then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// An operation was refused for good.
    #[error("{0}")]
    Post(PostError),
    /// The last epoch is used up: put a new word in its place, and fences that know of none.
    #[error("the lock has no epoch left: take another word")]
    EpochsUsedUp,
}

/// What happened to the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockEvent {
    /// This side holds it. Every message to what it protects carries the epoch.
    Acquired {
        /// The epoch.
        epoch: Epoch,
        /// The holder that did not renew, where it was taken over.
        taken_from: Option<Owner>,
    },
    /// It was taken over, and belongs to another by now.
    Lost,
    /// It was given back.
    Released,
    /// The outcome of an operation is unknown, and the connection is ending: to this side's knowledge
    /// the lock is not its own. If the word says otherwise, it will be taken over after a lease.
    Broken,
}

/// What was seen of a holder.
#[derive(Clone, Copy, Debug)]
struct Watch {
    word: LockWord,
    /// It has been there since this instant at the latest.
    since: Nanos,
    /// When the last look was posted, at the latest.
    looked: Nanos,
}

/// An attempt that is under way.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    /// The turn that posted it.
    posted: Nanos,
    expect: LockWord,
    swap: LockWord,
    watch: Option<Watch>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Idle,
    /// The next attempt is due.
    Trying {
        watch: Option<Watch>,
        due: Nanos,
    },
    /// The attempt is under way.
    Asked(Attempt),
    /// The attempt met this holder in a turn that began at `seen`.
    Saw {
        word: LockWord,
        seen: Nanos,
        attempt: Attempt,
    },
    /// Nobody takes over before `renewed` and a lease.
    Held {
        word: LockWord,
        renewed: Nanos,
    },
    Renewing {
        word: LockWord,
        renewed: Nanos,
        posted: Nanos,
    },
    /// To be given back.
    Leaving {
        word: LockWord,
    },
    Releasing {
        word: LockWord,
    },
}

/// One contender's hold on a lock of 8 bytes in a peer's memory, which begin as zero.
///
/// **It promises** that no two holders have the same epoch; that a later holder has a greater one; that
/// an [`epoch`](Self::epoch) is given by at most one contender at any instant, if clocks run at rates
/// within an eighth of each other (they need not agree on the time), contenders give their lease alike,
/// and no operation is under way for eighty leases; and that a holder that died is overtaken about a
/// lease after its last renewal, once a living contender looks.
///
/// **It does not promise** that a holder knows it is one no longer. Between asking for the epoch and the
/// moment its message acts, a thread can be paused and a network can be slow for longer than any lease.
/// That is what the epoch is for: carry it in the message, and let a [`Fence`](super::Fence) refuse what
/// is late. Nor is there an order among contenders: who waits longest may get it last.
///
/// Call [`turn`](Self::turn) in every turn of the service: it renews and looks, so a worker that sleeps
/// longer than a quarter of the lease loses the lock, or never gets it. One operation is under way at a
/// time. When the connection ends, drop the lock and make one on the next connection.
#[derive(Clone, Copy, Debug)]
pub struct RemoteLock {
    at: RemoteWord,
    terms: LockTerms,
    state: State,
    /// What the word was last, to this side's knowledge.
    guess: LockWord,
    /// It was released while an operation was under way.
    giving_up: bool,
}

impl RemoteLock {
    /// The lock in this word; idle.
    ///
    /// # Errors
    /// The terms do not work.
    pub fn new(at: RemoteWord, terms: LockTerms) -> Result<Self, TermsError> {
        if terms.look_every > terms.lease / 4 {
            return Err(TermsError::RareLooks {
                look_every: terms.look_every,
                lease: terms.lease,
            });
        }
        Ok(Self {
            at,
            terms,
            state: State::Idle,
            guess: LockWord::free(Epoch::default()),
            giving_up: false,
        })
    }

    /// Begins to try for the lock; [`turn`](Self::turn) goes on with it. Does nothing if this side
    /// tries already, has it, or is giving it back.
    pub fn acquire(&mut self, now: Nanos) {
        if matches!(self.state, State::Idle) {
            self.try_at(None, now);
        }
        self.giving_up = false;
    }

    /// Gives the lock back, or stops trying for it; [`LockEvent::Released`] follows if this side had
    /// it. [`epoch`](Self::epoch) gives nothing from here on.
    pub fn release(&mut self) {
        match self.state {
            State::Idle | State::Leaving { .. } | State::Releasing { .. } => {}
            State::Trying { .. } | State::Saw { .. } => self.state = State::Idle,
            State::Held { word, .. } => self.state = State::Leaving { word },
            State::Asked(_) | State::Renewing { .. } => self.giving_up = true,
        }
    }

    /// The epoch that this side holds the lock in. `None` when it does not, or has not renewed for so
    /// long that another may take over: an eighth of the lease before that.
    #[must_use]
    pub fn epoch(&self, now: Nanos) -> Option<Epoch> {
        match self.state {
            State::Held { word, renewed } | State::Renewing { word, renewed, .. } => {
                let safe = self.terms.lease - self.terms.lease / 8;
                (!self.giving_up && now < renewed + safe).then(|| word.epoch())
            }
            _ => None,
        }
    }

    /// Neither held nor tried for, and nothing is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    /// Posts what is due: an attempt, a renewal, the release. A send queue or pool that is full is
    /// tried again in the next turn. `now` is when the turn began: [`Io::now`](crate::worker::Io::now).
    ///
    /// # Errors
    /// The lock is idle, and will not be had by going on.
    pub fn turn(&mut self, io: &mut impl Atomics, now: Nanos) -> Result<(), LockError> {
        let done = self.advance(io, now);
        if done.is_err() {
            (self.state, self.giving_up) = (State::Idle, false);
        }
        done
    }

    fn advance(&mut self, io: &mut impl Atomics, now: Nanos) -> Result<(), LockError> {
        // A completion is polled later than its turn began, and what it saw may be younger than that.
        // Only a turn that began afterwards knows a time at which the word was there.
        if let State::Saw {
            word,
            seen,
            attempt,
        } = self.state
            && now > seen
        {
            self.watch(word, attempt, now);
        }
        match self.state {
            State::Trying { watch, due } if now >= due => self.attempt(io, watch, now),
            State::Held { word, renewed } if now >= renewed + self.terms.lease / 3 => {
                if self.post(io, word, word.renewed())? {
                    self.state = State::Renewing {
                        word,
                        renewed,
                        posted: now,
                    };
                }
                Ok(())
            }
            State::Leaving { word } => {
                if self.post(io, word, LockWord::free(word.epoch()))? {
                    self.state = State::Releasing { word };
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Keeps how long a holder's word has stood there. Looks that are more than a lease apart prove
    /// nothing: the beat may have come round to the same in between.
    fn watch(&mut self, word: LockWord, attempt: Attempt, now: Nanos) {
        let before = attempt
            .watch
            .filter(|w| w.word == word && now - w.looked <= self.terms.lease);
        let since = before.map_or(now, |w| w.since);
        let watch = Watch {
            word,
            since,
            looked: attempt.posted,
        };
        let due = (now + self.terms.look_every).min(since + self.terms.lease);
        self.try_at(Some(watch), due);
    }

    fn try_at(&mut self, watch: Option<Watch>, due: Nanos) {
        self.state = State::Trying { watch, due };
    }

    fn attempt(
        &mut self,
        io: &mut impl Atomics,
        watch: Option<Watch>,
        now: Nanos,
    ) -> Result<(), LockError> {
        let lease = self.terms.lease;
        let overdue = watch.filter(|w| now - w.since >= lease && now - w.looked <= lease);
        let expect = match overdue {
            Some(watch) => watch.word,
            None => LockWord::free(self.guess.epoch()),
        };
        let epoch = expect.epoch().next().ok_or(LockError::EpochsUsedUp)?;
        let swap = LockWord::held(epoch, self.terms.owner);
        if self.post(io, expect, swap)? {
            self.state = State::Asked(Attempt {
                posted: now,
                expect,
                swap,
                watch,
            });
        }
        Ok(())
    }

    /// False when it must be tried again.
    fn post(
        &self,
        io: &mut impl Atomics,
        expect: LockWord,
        swap: LockWord,
    ) -> Result<bool, LockError> {
        match io.compare_swap(&self.at, expect.0, swap.0, self.terms.token) {
            Ok(()) => Ok(true),
            Err(PostError::WouldBlock | PostError::Exhausted) => Ok(false),
            Err(reason) => Err(LockError::Post(reason)),
        }
    }

    /// Takes the completion that has the lock's token: `Answer::from(&completed)`.
    #[must_use]
    pub fn completed(&mut self, answer: Answer, now: Nanos) -> Option<LockEvent> {
        let old = match answer {
            Answer::Was(old) => LockWord(old),
            Answer::NeverPosted => {
                self.ask_again(now);
                return None;
            }
            Answer::Unknown => {
                (self.state, self.giving_up) = (State::Idle, false);
                return Some(LockEvent::Broken);
            }
        };
        self.guess = old;
        match self.state {
            State::Asked(attempt) => self.attempted(attempt, old, now),
            State::Renewing { word, posted, .. } if old == word => {
                let word = word.renewed();
                self.have(word, posted);
                None
            }
            State::Releasing { word } if old == word => {
                self.guess = LockWord::free(word.epoch());
                self.state = State::Idle;
                Some(LockEvent::Released)
            }
            State::Renewing { .. } | State::Releasing { .. } => {
                (self.state, self.giving_up) = (State::Idle, false);
                Some(LockEvent::Lost)
            }
            State::Idle
            | State::Trying { .. }
            | State::Saw { .. }
            | State::Held { .. }
            | State::Leaving { .. } => {
                debug_assert!(false, "a completion of what the lock did not post");
                None
            }
        }
    }

    fn attempted(&mut self, attempt: Attempt, old: LockWord, now: Nanos) -> Option<LockEvent> {
        if old == attempt.expect {
            let gives_up = self.giving_up;
            self.have(attempt.swap, attempt.posted);
            // One that is not wanted any more goes back unheard of.
            return (!gives_up).then_some(LockEvent::Acquired {
                epoch: attempt.swap.epoch(),
                taken_from: old.owner(),
            });
        }
        if std::mem::take(&mut self.giving_up) {
            self.state = State::Idle;
        } else if old.owner().is_none() {
            self.try_at(None, now);
        } else {
            self.state = State::Saw {
                word: old,
                seen: now,
                attempt,
            };
        }
        None
    }

    /// The word is this side's since a CAS that was posted at `renewed`.
    fn have(&mut self, word: LockWord, renewed: Nanos) {
        self.state = if std::mem::take(&mut self.giving_up) {
            State::Leaving { word }
        } else {
            State::Held { word, renewed }
        };
    }

    /// What was under way never was.
    fn ask_again(&mut self, now: Nanos) {
        match self.state {
            State::Asked(_) if std::mem::take(&mut self.giving_up) => self.state = State::Idle,
            State::Asked(attempt) => self.try_at(attempt.watch, now),
            State::Renewing { word, renewed, .. } => self.have(word, renewed),
            State::Releasing { word } => self.state = State::Leaving { word },
            _ => {}
        }
    }
}
