//! What a faulty lane does with each post and each completion.
//!
//! ```text
//!  post ─► fate ─┬─► device ───────────────► pending (all signalled) ─► line ─► poll
//!                ├─► waiting, for some polls ─┘                           ▲
//!                └─► spoiled: a key that nobody has, so the device fails ─┘
//! ```
//! Each work request is the device's under a word of this lane's (`wr_id`), so that a completion is known for
//! what it is whatever its status. All of them are signalled; a success that nobody asked for is
//! swallowed. A failure is real: the device is given an operation that must fail, and so flushes
//! everything behind it and its peer gets no answers. Imported by lane and mod.

use super::profile::{Dice, Profile};
use super::qp_book::{Fate, Pending, QpBook, Waiting};
use crate::fabric::plain::PlainWc;
use crate::fabric::{Fabric, Lane, MoreSges, PostFailure, SendOp, SendWr, WcStatus};
use crate::types::{Lkey, QpNum};
use std::collections::VecDeque;

/// No device gives such a key.
const NO_KEY: Lkey = Lkey(0xffff_ff5a);

/// All QPs of a lane, and its shared receives.
pub(super) struct LaneBook<F: Fabric> {
    pub(super) profile: Profile,
    dice: Dice,
    pub(super) qps: Vec<QpBook<F>>,
    pub(super) shared: VecDeque<(u64, u64)>,
    pub(super) polls: u64,
    /// Nothing waits until a poll has found nothing: the worker is about to sleep, or a QP is gone.
    pub(super) hurry: bool,
    words: u64,
    made: u64,
}

impl<F: Fabric> LaneBook<F> {
    pub(super) fn new(profile: Profile, dice: Dice) -> Self {
        Self {
            profile,
            dice,
            qps: Vec::new(),
            shared: VecDeque::new(),
            polls: 0,
            hurry: false,
            words: 0,
            made: 0,
        }
    }

    pub(super) fn add(&mut self, number: QpNum, qp: F::Qp, depth: u32) {
        // A number that is used again ends what came late for its last bearer.
        self.qps
            .retain(|book| book.number != number && !book.is_over());
        self.made += 1;
        let dice = self.dice.child(self.made);
        self.qps.push(QpBook::new(number, qp, depth, dice));
    }

    pub(super) fn qp(&mut self, number: QpNum) -> Option<&mut QpBook<F>> {
        self.qps.iter_mut().find(|book| book.number == number)
    }

    fn at(&self, number: QpNum) -> Option<usize> {
        self.qps.iter().position(|book| book.number == number)
    }

    pub(super) fn word(&mut self) -> u64 {
        self.words += 1;
        self.words
    }

    /// Where a chain of `len` is cut, if it is.
    pub(super) fn cut(&mut self, len: usize) -> Option<usize> {
        let hit = len > 0 && self.dice.hit(self.profile.refuse);
        let cut = hit.then(|| self.dice.pick(0..=len as u64 - 1))?;
        usize::try_from(cut).ok()
    }

    /// Takes one operation of the caller's.
    pub(super) fn post(
        &mut self,
        lane: &mut F::Lane,
        number: QpNum,
        wr: &SendWr,
        more: Option<&MoreSges>,
    ) -> Result<(), i32> {
        let at = self.at(number).ok_or(libc::EINVAL)?;
        let (profile, hurry) = (self.profile, self.hurry);
        let book = &mut self.qps[at];
        if book.taken() >= book.depth {
            return Err(libc::ENOMEM);
        }
        let fate = if book.silent || !book.waiting.is_empty() {
            Fate::Wait
        } else if book.spoiled || book.in_error {
            Fate::Plain
        } else {
            book.fate(&profile, hurry)
        };
        match fate {
            Fate::Plain => self.give(lane, at, wr, more),
            Fate::Wait | Fate::Silence => {
                if book.waiting.is_empty() {
                    book.silent = matches!(fate, Fate::Silence);
                    book.resume_at = self.polls + book.dice.some_of(profile.polls_max);
                }
                book.waiting.push_back(Waiting::new(wr, more));
                Ok(())
            }
            Fate::Fail => {
                const STATUSES: [WcStatus; 6] = [
                    WcStatus::RetryExceeded,
                    WcStatus::RnrRetryExceeded,
                    WcStatus::RemoteAccess,
                    WcStatus::RemoteOperation,
                    WcStatus::RemoteInvalidRequest,
                    WcStatus::LocalProtection,
                ];
                let n = book.dice.pick(0..=STATUSES.len() as u64 - 1);
                let status = STATUSES[usize::try_from(n).unwrap_or(0)];
                self.spoil(lane, at, Some(wr.wr_id), status)
            }
            Fate::LoseAnswer => {
                self.give(lane, at, wr, more)?;
                let status = WcStatus::RetryExceeded;
                if self.spoil(lane, at, None, status).is_ok() {
                    let book = &mut self.qps[at];
                    let place = book.pending.len() - 2;
                    book.pending[place].answer_lost = true;
                }
                Ok(())
            }
        }
    }

    /// Posts an operation to the device.
    fn give(
        &mut self,
        lane: &mut F::Lane,
        at: usize,
        wr: &SendWr,
        more: Option<&MoreSges>,
    ) -> Result<(), i32> {
        let pieces = more.map_or(&[][..], std::slice::from_ref);
        let post = |qp: &mut F::Qp, ours: SendWr| lane.post_send(qp, &[ours], pieces);
        self.under_word(at, wr, Some(wr.wr_id), None, post)
    }

    /// Posts what must fail, for an operation of the caller's or for nothing.
    fn spoil(
        &mut self,
        lane: &mut F::Lane,
        at: usize,
        wr_id: Option<u64>,
        status: WcStatus,
    ) -> Result<(), i32> {
        let wr = SendWr {
            wr_id: 0,
            addr: 4096,
            len: 1,
            lkey: NO_KEY,
            op: SendOp::Send,
            signalled: true,
            inline: false,
            more: 0,
        };
        let post = |qp: &mut F::Qp, ours: SendWr| lane.post_send(qp, &[ours], &[]);
        self.under_word(at, &wr, wr_id, Some(status), post)?;
        self.qps[at].spoiled = true;
        Ok(())
    }

    /// As [`Lane::post_bind`], which cannot wait: it is refused where something does.
    pub(super) fn bind(
        &mut self,
        lane: &mut F::Lane,
        number: QpNum,
        wr: &SendWr,
        memory: &dyn crate::memory::Registration,
    ) -> Result<(), i32> {
        let at = self.at(number).ok_or(libc::EINVAL)?;
        let book = &self.qps[at];
        if !book.waiting.is_empty() || book.taken() >= book.depth {
            return Err(libc::ENOMEM);
        }
        let post = |qp: &mut F::Qp, ours: SendWr| lane.post_bind(qp, &ours, memory);
        self.under_word(at, wr, Some(wr.wr_id), None, post)
    }

    /// Posts `wr` under a word of this lane's and signalled. Its completion is that of `wr_id`.
    fn under_word(
        &mut self,
        at: usize,
        wr: &SendWr,
        wr_id: Option<u64>,
        disguise: Option<WcStatus>,
        post: impl FnOnce(&mut F::Qp, SendWr) -> Result<(), PostFailure>,
    ) -> Result<(), i32> {
        let word = self.word();
        let book = &mut self.qps[at];
        let qp = book.qp.as_mut().ok_or(libc::EINVAL)?;
        let ours = SendWr {
            wr_id: word,
            signalled: true,
            ..*wr
        };
        post(qp, ours).map_err(|failure| failure.errno)?;
        book.pending.push_back(Pending {
            word,
            wr_id,
            signalled: wr.signalled,
            disguise,
            answer_lost: false,
        });
        Ok(())
    }

    /// Posts what has waited long enough, and flushes what waits on a QP in error.
    pub(super) fn resume(&mut self, lane: &mut F::Lane) {
        for at in 0..self.qps.len() {
            let book = &mut self.qps[at];
            if book.qp.is_none() {
                // Destroyed: nobody is owed anything.
                book.waiting.clear();
                continue;
            }
            let due = self.hurry || book.resume_at <= self.polls;
            if book.in_error && book.pending.is_empty() {
                let number = book.number;
                for waiting in std::mem::take(&mut book.waiting) {
                    let wc = PlainWc::ended(waiting.wr.wr_id, number, WcStatus::Flushed);
                    book.line.push_back((wc, 0));
                }
                continue;
            }
            if !due || book.silent || book.in_error {
                continue;
            }
            for waiting in std::mem::take(&mut self.qps[at].waiting) {
                let wr = waiting.wr();
                if self.give(lane, at, &wr, waiting.more.as_ref()).is_ok() {
                    continue;
                }
                // It was taken, so it must complete: as what the device does not accept.
                let status = WcStatus::LocalQpOperation;
                if self.spoil(lane, at, Some(wr.wr_id), status).is_err() {
                    let book = &mut self.qps[at];
                    let wc = PlainWc::ended(wr.wr_id, book.number, status);
                    book.line.push_back((wc, 0));
                }
            }
        }
    }

    /// Takes a completion of the device's.
    pub(super) fn take(&mut self, wc: &PlainWc) {
        let shared = self.shared.iter().position(|(word, _)| *word == wc.wr_id);
        let shared = shared.and_then(|place| self.shared.remove(place));
        let (profile, polls) = (self.profile, self.polls);
        let Some(book) = self.qp(wc.qp) else {
            return;
        };
        let Some(done) = book.settle(wc, shared) else {
            return;
        };
        let late = book.dice.hit(profile.delay);
        let delay = if late {
            book.dice.some_of(profile.polls_max)
        } else {
            0
        };
        book.line.push_back((done, polls + delay));
    }
}
