//! What a faulty lane knows of each of its QPs: what the device has, what it has not yet, what is done.
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

use super::lane::FaultWc;
use super::profile::{Dice, Profile};
use crate::fabric::{
    Fabric, Lane, MoreSges, Note, PostFailure, SendOp, SendWr, WcOpcode, WcStatus,
};
use crate::types::{Lkey, QpNum};
use std::collections::VecDeque;

/// No device gives such a key.
const NO_KEY: Lkey = Lkey(0xffff_ff5a);

/// A send that the device has.
struct Pending {
    word: u64,
    /// The caller's word; `None` for one of ours.
    wr_id: Option<u64>,
    signalled: bool,
    /// Its failure is to look like this.
    disguise: Option<WcStatus>,
    /// It succeeds, but the failure behind it is its own.
    answer_lost: bool,
}

/// A send that waits for its turn to be posted.
struct Waiting {
    wr: SendWr,
    more: Option<MoreSges>,
    /// The payload, where it was to be copied at the post.
    inline: Option<Vec<u8>>,
}

/// What becomes of an operation.
#[derive(Clone, Copy)]
enum Fate {
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
    depth: usize,
    dice: Dice,
    pending: VecDeque<Pending>,
    waiting: VecDeque<Waiting>,
    resume_at: u64,
    /// Word and caller's word of the receives that the device has.
    receives: VecDeque<(u64, u64)>,
    /// Completions in their order, and the poll from which on each may be taken.
    pub(super) line: VecDeque<(FaultWc, u64)>,
    /// Nothing completes.
    silent: bool,
    /// A failure is on its way or has come.
    spoiled: bool,
    /// It was set to error by its owner.
    pub(super) in_error: bool,
    /// The word of an operation whose answer is to be lost has succeeded.
    lost: Option<u64>,
}

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
        self.qps.push(QpBook {
            number,
            qp: Some(qp),
            depth: depth as usize,
            dice: self.dice.child(self.made),
            pending: VecDeque::new(),
            waiting: VecDeque::new(),
            resume_at: 0,
            receives: VecDeque::new(),
            line: VecDeque::new(),
            silent: false,
            spoiled: false,
            in_error: false,
            lost: None,
        });
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
        let Some(at) = self.at(number) else {
            return Err(libc::EINVAL);
        };
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
            Fate::Plain => self.give(lane, at, wr, more, None),
            Fate::Wait | Fate::Silence => {
                if book.waiting.is_empty() {
                    book.silent = matches!(fate, Fate::Silence);
                    book.resume_at = self.polls + book.dice.pick(1..=u64::from(profile.polls_max));
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
                self.give(lane, at, wr, more, None)?;
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
        wr_id: Option<u64>,
    ) -> Result<(), i32> {
        let word = self.word();
        let book = &mut self.qps[at];
        let Some(qp) = &mut book.qp else {
            return Err(libc::EINVAL);
        };
        let ours = SendWr {
            wr_id: word,
            signalled: true,
            ..*wr
        };
        let pieces = more.map_or(&[][..], std::slice::from_ref);
        lane.post_send(qp, &[ours], pieces).map_err(|f| f.errno)?;
        book.pending.push_back(Pending {
            word,
            wr_id: Some(wr_id.unwrap_or(wr.wr_id)),
            signalled: wr.signalled,
            disguise: None,
            answer_lost: false,
        });
        Ok(())
    }

    /// Posts what must fail, for an operation of the caller's or for nothing.
    fn spoil(
        &mut self,
        lane: &mut F::Lane,
        at: usize,
        wr_id: Option<u64>,
        status: WcStatus,
    ) -> Result<(), i32> {
        let word = self.word();
        let book = &mut self.qps[at];
        let Some(qp) = &mut book.qp else {
            return Err(libc::EINVAL);
        };
        let wr = SendWr {
            wr_id: word,
            addr: 4096,
            len: 1,
            lkey: NO_KEY,
            op: SendOp::Send,
            signalled: true,
            inline: false,
            more: 0,
        };
        lane.post_send(qp, &[wr], &[]).map_err(|f| f.errno)?;
        book.spoiled = true;
        book.pending.push_back(Pending {
            word,
            wr_id,
            signalled: true,
            disguise: Some(status),
            answer_lost: false,
        });
        Ok(())
    }

    /// As [`Lane::post_bind`], which cannot wait: it is refused where something does.
    pub(super) fn bind(
        &mut self,
        lane: &mut F::Lane,
        number: QpNum,
        wr: &SendWr,
        memory: &dyn crate::memory::Registration,
    ) -> Result<(), PostFailure> {
        let refusal = |errno| PostFailure { posted: 0, errno };
        let word = self.word();
        let Some(book) = self.qp(number) else {
            return Err(refusal(libc::EINVAL));
        };
        if !book.waiting.is_empty() || book.taken() >= book.depth {
            return Err(refusal(libc::ENOMEM));
        }
        let Some(qp) = &mut book.qp else {
            return Err(refusal(libc::EINVAL));
        };
        let ours = SendWr {
            wr_id: word,
            signalled: true,
            ..*wr
        };
        lane.post_bind(qp, &ours, memory)?;
        book.pending.push_back(Pending {
            word,
            wr_id: Some(wr.wr_id),
            signalled: wr.signalled,
            disguise: None,
            answer_lost: false,
        });
        Ok(())
    }

    pub(super) fn received(&mut self, number: QpNum, words: impl Iterator<Item = (u64, u64)>) {
        if let Some(book) = self.qp(number) {
            book.receives.extend(words);
        }
    }

    /// Posts what has waited long enough, and flushes what waits on a QP in error.
    pub(super) fn resume(&mut self, lane: &mut F::Lane) {
        for at in 0..self.qps.len() {
            let book = &mut self.qps[at];
            let due = self.hurry || book.resume_at <= self.polls;
            if book.in_error && book.pending.is_empty() {
                let number = book.number;
                for waiting in std::mem::take(&mut book.waiting) {
                    let wc = FaultWc::failed(number, waiting.wr.wr_id, WcStatus::Flushed);
                    book.line.push_back((wc, 0));
                }
                continue;
            }
            if !due || book.silent || book.in_error {
                continue;
            }
            for waiting in std::mem::take(&mut self.qps[at].waiting) {
                let wr = waiting.wr();
                if self
                    .give(lane, at, &wr, waiting.more.as_ref(), None)
                    .is_ok()
                {
                    continue;
                }
                // It was taken, so it must complete: as what the device does not accept.
                let status = WcStatus::LocalQpOperation;
                if self.spoil(lane, at, Some(wr.wr_id), status).is_err() {
                    let book = &mut self.qps[at];
                    let wc = FaultWc::failed(book.number, wr.wr_id, status);
                    book.line.push_back((wc, 0));
                }
            }
        }
    }

    /// Takes a completion of the device's.
    pub(super) fn take(&mut self, wc: &FaultWc) {
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
            book.dice.pick(1..=u64::from(profile.polls_max))
        } else {
            0
        };
        book.line.push_back((done, polls + delay));
    }
}

impl<F: Fabric> QpBook<F> {
    /// Operations of the caller's that are not over.
    fn taken(&self) -> usize {
        let pending = self.pending.iter().filter(|p| p.wr_id.is_some()).count();
        pending + self.waiting.len()
    }

    /// It is destroyed, and nothing can come of it any more.
    fn is_over(&self) -> bool {
        let posted = self.pending.len() + self.receives.len();
        self.qp.is_none() && posted == 0 && self.line.is_empty()
    }

    fn fate(&mut self, profile: &Profile, hurry: bool) -> Fate {
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
    fn settle(&mut self, wc: &FaultWc, shared: Option<(u64, u64)>) -> Option<FaultWc> {
        let under = |wr_id| Some(FaultWc { wr_id, ..*wc });
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
        Some(FaultWc {
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
    pub(super) fn next(&mut self, polls: u64, hurry: bool) -> Option<FaultWc> {
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
    fn new(wr: &SendWr, more: Option<&MoreSges>) -> Self {
        Self {
            wr: *wr,
            more: more.copied(),
            inline: wr.inline.then(|| super::lane::gather(wr, more)),
        }
    }

    /// The operation, with its payload where it is now.
    fn wr(&self) -> SendWr {
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

impl FaultWc {
    fn failed(qp: QpNum, wr_id: u64, status: WcStatus) -> Self {
        Self {
            wr_id,
            status,
            opcode: WcOpcode::Other(u32::MAX),
            len: u32::MAX,
            note: Note::Imm(u32::MAX),
            qp,
            vendor: 0,
        }
    }
}
