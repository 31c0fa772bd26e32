//! What lanes tell control: keys to ask peers for, QPs that are lost, and that there is something to bury.
//!
//! ```text
//!  lane ─► Question { id, rkey } ─► bell ─► Shm::next_event ─► door ─► peer
//!       └► AsyncEvent ────────────► bell ─► Shm::next_async_event
//! ```
//! Each is rare: once a region of a peer, once a QP that ends badly. So a lock and a system call are
//! nothing here. Imported by qp, send, lane and mod.

use crate::fabric::{AsyncEvent, AsyncSubject};
use crate::sys::eventfd::EventFd;
use crate::types::{QpNum, Rkey};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Events of QPs that wait at most: who never takes them loses the later ones.
const EVENTS_MAX: usize = 4096;

/// A key that a QP wants to use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    /// Of the QP's id.
    pub(super) key: u64,
    pub(super) rkey: Rkey,
}

#[derive(Debug, Default)]
struct Notes {
    questions: Vec<Question>,
    /// Lanes have buried something.
    graves: bool,
    events: VecDeque<AsyncEvent>,
}

/// Where the lanes of a fabric leave word for its control.
#[derive(Debug)]
pub(super) struct Switchboard {
    notes: Mutex<Notes>,
    questions: EventFd,
    events: EventFd,
}

impl Switchboard {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            notes: Mutex::default(),
            questions: EventFd::new()?,
            events: EventFd::new()?,
        })
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        // Nothing under the lock panics.
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Control is to ask the peer of an id for a key.
    #[cold]
    pub(super) fn ask(&self, question: Question) {
        self.notes().questions.push(question);
        // An eventfd of ours cannot fail.
        let _ = self.questions.signal();
    }

    /// A lane has buried something, which control is to let go of.
    #[cold]
    pub(super) fn buried(&self) {
        self.notes().graves = true;
        // An eventfd of ours cannot fail.
        let _ = self.questions.signal();
    }

    /// A QP is lost to its peer's doing (`IBV_EVENT_QP_ACCESS_ERR` and its like).
    #[cold]
    pub(super) fn raise_fatal(&self, qp: QpNum, name: &'static str) {
        let mut notes = self.notes();
        if notes.events.len() < EVENTS_MAX {
            notes.events.push_back(AsyncEvent {
                device: super::DEVICE.into(),
                subject: AsyncSubject::Qp(qp),
                name: name.into(),
                comm_est: false,
                fatal: true,
                removed: false,
            });
        }
        // Under the lock, so that it is readable just as long as one waits.
        let _ = self.events.signal();
    }

    /// All questions that wait, and whether something was buried.
    pub(super) fn take_questions(&self) -> (Vec<Question>, bool) {
        let _ = self.questions.drain();
        let mut notes = self.notes();
        let graves = std::mem::take(&mut notes.graves);
        (std::mem::take(&mut notes.questions), graves)
    }

    /// The next event. The descriptor is readable just as long as one waits.
    pub(super) fn take_event(&self) -> Option<AsyncEvent> {
        let mut notes = self.notes();
        let event = notes.events.pop_front();
        if notes.events.is_empty() {
            let _ = self.events.drain();
        }
        event
    }

    /// Readable while a question waits, or something was buried.
    pub(super) fn questions_fd(&self) -> BorrowedFd<'_> {
        self.questions.fd()
    }

    /// Readable while an event waits.
    pub(super) fn events_fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }
}
