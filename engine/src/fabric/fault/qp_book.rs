//! One QP of a faulty lane: what the device has of it, what it has not yet, and what is done.
//!
//! ```text
//!  pending (the device's) ─ settle ─► line ─ next ─► poll        waiting: not yet posted
//! ```
//! `settle` finds what a completion of the device's is to the caller: itself, nothing, or a failure in
//! disguise. Imported by book.

use super::lane::gather;
use super::profile::{Dice, Profile};
use crate::fabric::plain::PlainWc;
use crate::fabric::{Fabric, MoreSges, SendWr, WcStatus};
use crate::types::QpNum;
use std::collections::VecDeque;

/// A send that the device has.
pub(super) struct Pending {
    pub(super) word: u64,
    /// The caller's word; `None` for one of ours.
    pub(super) wr_id: Option<u64>,
    pub(super) signalled: bool,
    /// Its failure is to look like this.
    pub(super) disguise: Option<WcStatus>,
    /// It succeeds, but the failure behind it is its own.
    pub(super) answer_lost: bool,
}

/// A send that waits for its turn to be posted.
pub(super) struct Waiting {
    pub(super) wr: SendWr,
    pub(super) more: Option<MoreSges>,
    /// The payload, where it was to be copied at the post.
    pub(super) inline: Option<Vec<u8>>,
}

/// What becomes of an operation.
#[derive(Clone, Copy)]
pub(super) enum Fate {
    Plain,
    Wait,
    Fail,
    LoseAnswer,
    Silence,
}

/// One QP.
pub(super) struct QpBook<F: Fabric> {
    pub(super) number: QpNum,
    /// `None` once it is destroyed.
    pub(super) qp: Option<F::Qp>,
    pub(super) depth: usize,
    pub(super) dice: Dice,
    pub(super) pending: VecDeque<Pending>,
    pub(super) waiting: VecDeque<Waiting>,
    pub(super) resume_at: u64,
    /// Word and caller's word of the receives that the device has.
    pub(super) receives: VecDeque<(u64, u64)>,
    /// Completions in their order, and the poll from which on each may be taken.
    pub(super) line: VecDeque<(PlainWc, u64)>,
    /// Nothing completes.
    pub(super) silent: bool,
    /// A failure is on its way or has come.
    pub(super) spoiled: bool,
    /// It was set to error by its owner.
    pub(super) in_error: bool,
    /// The word of an operation whose answer is to be lost has succeeded.
    pub(super) lost: Option<u64>,
}

impl<F: Fabric> QpBook<F> {
    pub(super) fn new(number: QpNum, qp: F::Qp, depth: u32, dice: Dice) -> Self {
        Self {
            number,
            qp: Some(qp),
            depth: depth as usize,
            dice,
            pending: VecDeque::new(),
            waiting: VecDeque::new(),
            resume_at: 0,
            receives: VecDeque::new(),
            line: VecDeque::new(),
            silent: false,
            spoiled: false,
            in_error: false,
            lost: None,
        }
    }

    /// Operations of the caller's that are not over.
    pub(super) fn taken(&self) -> usize {
        let pending = self.pending.iter().filter(|p| p.wr_id.is_some()).count();
        pending + self.waiting.len()
    }

    /// It is destroyed, and nothing can come of it any more.
    pub(super) fn is_over(&self) -> bool {
        let posted = self.pending.len() + self.receives.len();
        self.qp.is_none() && posted == 0 && self.line.is_empty()
    }

    pub(super) fn fate(&mut self, profile: &Profile, hurry: bool) -> Fate {
        let dice = &mut self.dice;
        if dice.hit(profile.fail) {
            Fate::Fail
        } else if dice.hit(profile.lose_answer) {
            Fate::LoseAnswer
        } else if dice.hit(profile.silence) {
            Fate::Silence
        } else if !hurry && dice.hit(profile.wait) {
            Fate::Wait
        } else {
            Fate::Plain
        }
    }

    /// Finds what a completion of the device's is to the caller; `None` for nothing.
    pub(super) fn settle(&mut self, wc: &PlainWc, shared: Option<(u64, u64)>) -> Option<PlainWc> {
        let under = |wr_id| Some(PlainWc { wr_id, ..*wc });
        if let Some((_, wr_id)) = shared {
            return under(wr_id);
        }
        let received = self.receives.iter().position(|(word, _)| *word == wc.wr_id);
        if let Some(place) = received {
            let (_, wr_id) = self.receives.remove(place)?;
            return under(wr_id);
        }
        let place = self.pending.iter().position(|p| p.word == wc.wr_id)?;
        let pending = self.pending.remove(place)?;
        let succeeded = wc.status == WcStatus::Success;
        if pending.answer_lost && succeeded {
            self.lost = pending.wr_id;
            return None;
        }
        let wr_id = match pending.wr_id {
            Some(wr_id) => wr_id,
            // The failure that a lost answer ends in; nothing if the operation failed by itself.
            None => self.lost.take()?,
        };
        if succeeded && !pending.signalled {
            return None;
        }
        let status = match pending.disguise {
            Some(disguise) if wc.status != WcStatus::Flushed => disguise,
            _ => wc.status,
        };
        Some(PlainWc {
            wr_id,
            status,
            ..*wc
        })
    }

    /// Something waits that only its owner's set_error, or a poll, brings to light.
    pub(super) fn is_held(&self) -> bool {
        !self.waiting.is_empty() || !self.line.is_empty()
    }

    /// The next completion, if its time has come.
    pub(super) fn next(&mut self, polls: u64, hurry: bool) -> Option<PlainWc> {
        if self.silent && !self.in_error && self.qp.is_some() {
            return None;
        }
        let (_, due) = self.line.front()?;
        let free = hurry || self.in_error || self.qp.is_none();
        if !free && *due > polls {
            return None;
        }
        self.line.pop_front().map(|(wc, _)| wc)
    }
}

impl Waiting {
    pub(super) fn new(wr: &SendWr, more: Option<&MoreSges>) -> Self {
        Self {
            wr: *wr,
            more: more.copied(),
            inline: wr.inline.then(|| gather(wr, more)),
        }
    }

    /// The operation, with its payload where it is now.
    pub(super) fn wr(&self) -> SendWr {
        let Some(inline) = &self.inline else {
            return self.wr;
        };
        SendWr {
            addr: inline.as_ptr().expose_provenance() as u64,
            len: u32::try_from(inline.len()).unwrap_or(u32::MAX),
            more: 0,
            ..self.wr
        }
    }
}
