//! A connection goes to its worker and comes back, under every interleaving of the memory model.
//!
//! ```text
//!  control: touch, Adopt(half) ─►  worker: touch …, Drained(half) ─►  control: touch, destroy
//!                       (either side may sleep, or die, at any point)
//! ```
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p spinwire --no-default-features --lib --release loom_
//! ```
//! Both halves of a QP lead to one native object, as in verbs. It lies in a cell that loom watches: an
//! access that is not ordered after the other side's last one fails the model, so the mailbox alone
//! must give exclusive access and visibility, both ways. The native object is destroyed once, with its
//! last half. The mailbox is the real one; the fabric has no methods that work.

#![allow(
    unsafe_code,
    reason = "claims that halves may cross threads, which is what loom is to check"
)]

use super::{Command, ConnId, ControlEnd, Event, Handover, WorkerEnd, mailbox};
use crate::fabric::{
    AsyncEvent, CmEvent, ConnParams, Endpoint, Fabric, FabricError, IdKey, Lane, LaneGrant,
    LaneSpec, MoreSges, Note, PostFailure, PrivateData, QpGrant, QpSpec, RecvWr, SendWr, WcOpcode,
    WcStatus, WorkCompletion,
};
use crate::memory::{Region, Registrar, Registration};
use crate::ring::spsc::{PopError, PushError};
use crate::sync::{Arc, UnsafeCell};
use crate::types::{Access, DeviceLimits, Lkey, QpNum, Rkey};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const CONN: ConnId = ConnId {
    worker: 0,
    index: 0,
    generation: 1,
};

/// What both halves of a QP lead to: `ibv_qp`, as it were.
struct Native {
    touched: UnsafeCell<u32>,
    destroyed: std::sync::Arc<AtomicU32>,
}

impl Drop for Native {
    fn drop(&mut self) {
        self.touched.with_mut(|_| ());
        self.destroyed.fetch_add(1, Ordering::Relaxed);
    }
}

/// A half of a QP.
struct Half(Arc<Native>);

// SAFETY: `Send` requires that another thread may use and drop a half. That is so if accesses through
// the two halves never overlap, which loom checks at each.
unsafe impl Send for Half {}

impl Half {
    /// Two halves, and a count of how often what they share was destroyed.
    fn pair() -> (Self, Self, std::sync::Arc<AtomicU32>) {
        let destroyed = std::sync::Arc::new(AtomicU32::new(0));
        let native = Arc::new(Native {
            touched: UnsafeCell::new(0),
            destroyed: std::sync::Arc::clone(&destroyed),
        });
        (Self(Arc::clone(&native)), Self(native), destroyed)
    }

    /// Writes to the native object; gives how often that was done.
    fn touch(&self) -> u32 {
        self.0.touched.with_mut(|touched| {
            // SAFETY: a `&mut` requires that nobody else accesses the cell: loom has just checked it.
            let touched = unsafe { &mut *touched };
            *touched += 1;
            *touched
        })
    }
}

/// An eventfd: it counts, and waiting blocks while the count is zero.
#[derive(Clone)]
struct Bell(Arc<(Mutex<bool>, Condvar)>);

impl Bell {
    fn new() -> Self {
        Self(Arc::new((Mutex::new(false), Condvar::new())))
    }

    fn signal(&self) {
        *self.0.0.lock().expect("no panic under it") = true;
        self.0.1.notify_one();
    }

    fn wait_and_drain(&self) {
        let mut rung = self.0.0.lock().expect("no panic under it");
        while !*rung {
            rung = self.0.1.wait(rung).expect("likewise");
        }
        *rung = false;
    }
}

fn adopt(qp: Half) -> Command<Bare> {
    Command::Adopt(Handover {
        conn: CONN,
        lane: 0,
        qp,
        grant: QpGrant {
            number: QpNum(1),
            inline_bytes: 0,
            message_bytes_max: 1,
            loose: false,
            abilities: crate::types::Abilities::LEAST,
        },
        windows: Vec::new(),
        peer: None,
    })
}

/// Spins for the next command; `None` when control is gone.
fn spin(end: &mut WorkerEnd<Bare>) -> Option<Command<Bare>> {
    loop {
        match end.commands.pop() {
            Ok(command) => return Some(command),
            Err(PopError::Empty) => thread::yield_now(),
            Err(PopError::Abandoned) => return None,
        }
    }
}

/// Sleeps for the next command as a worker in event mode does.
fn sleep(end: &mut WorkerEnd<Bare>, bell: &Bell) -> Command<Bare> {
    loop {
        if let Ok(command) = end.commands.pop() {
            return command;
        }
        end.sleeper.prepare();
        if end.commands.is_empty() {
            bell.wait_and_drain();
            end.sleeper.woke();
        } else {
            end.sleeper.cancel();
        }
    }
}

fn give_back(end: &mut WorkerEnd<Bare>, qp: Half) {
    let drained = Event::Drained {
        conn: CONN,
        qp,
        missing: 0,
    };
    // Where control is gone, the half comes back and dies here.
    drop(end.events.push(drained));
}

/// The worker's part in a whole life: adopt, post, answer, post, flush, give back.
fn serve(end: &mut WorkerEnd<Bare>, mut next: impl FnMut(&mut WorkerEnd<Bare>) -> Command<Bare>) {
    let Command::Adopt(Handover { qp, .. }) = next(end) else {
        panic!("Adopt comes first");
    };
    assert_eq!(qp.touch(), 2);
    assert!(end.events.push(Event::Armed(CONN, 0)).is_ok());
    assert_eq!(qp.touch(), 3);
    assert!(matches!(next(end), Command::Flush(CONN, _)));
    assert_eq!(qp.touch(), 4);
    give_back(end, qp);
}

/// Control's next event; `None` when the worker is gone.
fn event(end: &mut ControlEnd<Bare>) -> Option<Event<Bare>> {
    loop {
        match end.events.pop() {
            Ok(event) => return Some(event),
            Err(PopError::Empty) => thread::yield_now(),
            Err(PopError::Abandoned) => return None,
        }
    }
}

/// Control's part in a whole life.
fn lead(end: &mut ControlEnd<Bare>, bell: Option<&Bell>) {
    let (mine, theirs, destroyed) = Half::pair();
    let send = |end: &mut ControlEnd<Bare>, command| {
        assert!(end.commands.push(command).is_ok());
        if let Some(bell) = bell
            && end.waker.wake_needed()
        {
            bell.signal();
        }
    };
    assert_eq!(mine.touch(), 1);
    send(end, adopt(theirs));
    assert!(matches!(event(end), Some(Event::Armed(CONN, 0))));
    send(end, Command::Flush(CONN, Duration::ZERO));
    let Some(Event::Drained { qp: theirs, .. }) = event(end) else {
        panic!("Drained comes last");
    };
    assert_eq!(mine.touch(), 5);
    drop((mine, theirs));
    assert_eq!(destroyed.load(Ordering::Relaxed), 1);
}

fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions); // keeps the run in seconds
    builder.check(model);
}

#[test]
fn loom_handover_both_ways_to_a_worker_that_spins() {
    check(3, || {
        let (mut control, mut end) = mailbox::<Bare>();
        let worker = thread::spawn(move || {
            serve(&mut end, |end| spin(end).expect("control lives"));
        });
        lead(&mut control, None);
        worker.join().expect("no panic");
    });
}

/// The worker sleeps before one of the two commands and spins for the other. Not before both: where a
/// `cancel` and the next `prepare` race with control's swap, loom 0.7 orders the swap apart from the
/// store that follows the one it read, which C11 forbids (7.17.3: a read-modify-write reads the last
/// value before its own), and then it sees a wake-up lost that no machine can lose.
#[test]
fn loom_handover_both_ways_to_a_worker_that_sleeps() {
    for sleeps_before in 0..2 {
        check(3, move || {
            let (mut control, mut end) = mailbox::<Bare>();
            let bell = Bell::new();
            let theirs = bell.clone();
            let mut commands = 0..;
            let worker = thread::spawn(move || {
                serve(&mut end, |end| {
                    if commands.next() == Some(sleeps_before) {
                        sleep(end, &theirs)
                    } else {
                        spin(end).expect("control lives")
                    }
                });
            });
            lead(&mut control, Some(&bell));
            worker.join().expect("no panic");
        });
    }
}

/// The worker dies with the half, before it took the half, or after it gave it back.
#[test]
fn loom_handover_to_a_worker_that_dies() {
    for step in 0..3 {
        check(3, move || {
            let (mut control, mut end) = mailbox::<Bare>();
            let (mine, theirs, destroyed) = Half::pair();
            let worker = thread::spawn(move || {
                if step == 0 {
                    return; // the half may be refused, or stay in the ring
                }
                let Some(Command::Adopt(Handover { qp, .. })) = spin(&mut end) else {
                    panic!("Adopt comes first");
                };
                qp.touch();
                if step == 2 {
                    give_back(&mut end, qp);
                } else {
                    // In the order of the fields of `Worker`: halves go before the mailbox.
                    drop(qp);
                }
                drop(end);
            });
            mine.touch();
            match control.commands.push(adopt(theirs)) {
                Ok(()) => {}
                Err(PushError::Full(_)) => panic!("the ring is empty"),
                Err(PushError::Abandoned(refused)) => drop(refused),
            }
            let back = event(&mut control);
            assert_eq!(back.is_some(), step == 2);
            drop(back);
            assert!(event(&mut control).is_none(), "the worker is gone");
            // So nobody can post: the QP is control's alone, wherever the other half lies.
            mine.touch();
            drop((mine, control));
            worker.join().expect("no panic");
            assert_eq!(destroyed.load(Ordering::Relaxed), 1);
        });
    }
}

/// Control dies with the half under way, or while it comes back.
#[test]
fn loom_handover_from_a_control_that_dies() {
    for waits in [false, true] {
        check(3, move || {
            let (mut control, mut end) = mailbox::<Bare>();
            let (mine, theirs, destroyed) = Half::pair();
            let worker = thread::spawn(move || {
                while let Some(command) = spin(&mut end) {
                    let Command::Adopt(Handover { qp, .. }) = command else {
                        panic!("only Adopt comes");
                    };
                    qp.touch();
                    drop(end.events.push(Event::Armed(CONN, 0)));
                    give_back(&mut end, qp);
                }
            });
            mine.touch();
            assert!(control.commands.push(adopt(theirs)).is_ok());
            // Its own half may die while the worker posts: dropping is no access.
            drop(mine);
            if waits {
                assert!(matches!(event(&mut control), Some(Event::Armed(CONN, 0))));
            }
            drop(control);
            worker.join().expect("no panic");
            assert_eq!(destroyed.load(Ordering::Relaxed), 1);
        });
    }
}

/// Breaks the rule on purpose: control touches a QP that the worker has. Loom must see it, or the
/// models above prove nothing.
#[test]
#[should_panic(expected = "Causality violation")]
fn loom_handover_sees_a_control_that_does_not_wait() {
    check(2, || {
        let (mut control, mut end) = mailbox::<Bare>();
        let (mine, theirs, _) = Half::pair();
        let worker = thread::spawn(move || {
            if let Ok(Command::Adopt(Handover { qp, .. })) = end.commands.pop() {
                qp.touch();
            }
        });
        assert!(control.commands.push(adopt(theirs)).is_ok());
        mine.touch();
        worker.join().expect("no panic");
    });
}

mod bare;
use bare::Bare;
