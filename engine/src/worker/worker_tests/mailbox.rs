//! The mailbox as the worker uses it: bounded, in order, lossless; and how a worker ends.

use super::*;
use crate::limits::{MAILBOX_BATCH_MAX, MAILBOX_DEPTH};
use crate::sys::clock::Clock;
use crate::sys::eventfd::EventFd;

#[test]
fn a_turn_takes_a_bounded_number_of_commands() {
    let mut b = Bench::new(SMALL);
    let conn = ConnId {
        worker: 0,
        index: 0,
        generation: 9,
    };
    for _ in 0..MAILBOX_BATCH_MAX + 1 {
        b.establish(conn);
    }
    b.turn();
    assert_eq!(b.control.commands.len(), 1);
    b.turn();
    assert!(b.control.commands.is_empty());
}

#[test]
fn events_that_do_not_fit_wait_in_order() {
    let mut b = Bench::new(Size {
        connections: 300,
        recv_depth: 1,
        slots: 512,
        ..SMALL
    });
    let count = u16::try_from(MAILBOX_DEPTH + 40).expect("few");
    let mut names = Vec::new();
    for index in 0..count {
        names.push(b.hand_over(index, 0, Role::Passive).0);
        b.turn();
    }
    let ring = b.control.events.len();
    assert_eq!(ring, MAILBOX_DEPTH);
    assert!(b.worker.is_waiting());
    // Control reads ten at a time from now on.
    let mut armed = Vec::new();
    while armed.len() < names.len() {
        let read = b.control.events.pop_batch(10, |event| {
            let Event::Armed(conn, _) = event else {
                panic!("{event:?}")
            };
            armed.push(conn);
        });
        assert!(read > 0, "{} of {}", armed.len(), names.len());
        b.turn();
    }
    assert_eq!(armed, names);
    assert!(!b.worker.is_waiting());
}

#[test]
fn exit_ends_the_worker() {
    let mut b = Bench::new(SMALL);
    b.turn();
    assert!(!b.worker.is_done());
    b.tell(Command::Exit);
    b.turn();
    assert!(b.worker.is_done());
}

#[test]
fn a_worker_ends_when_control_is_gone() {
    let mut b = Bench::new(SMALL);
    let (_, _) = b.up(0);
    let (control, _) = super::super::mailbox();
    drop(std::mem::replace(&mut b.control, control));
    b.turn();
    assert!(b.worker.is_done());
}

/// Control died with an answer under way: nobody will ever read it.
#[test]
fn an_event_that_nobody_reads_ends_the_worker() {
    let mut b = Bench::new(SMALL);
    let (_, _) = b.hand_over(0, 0, Role::Passive);
    let (other, _) = super::super::mailbox();
    let ControlEnd { events, .. } = std::mem::replace(&mut b.control, other);
    drop(events);
    b.turn();
    assert!(b.worker.is_done());
}

#[test]
fn every_idle_policy_ends_on_exit() {
    for idle in [IdlePolicy::Spin, IdlePolicy::Yield, IdlePolicy::Event] {
        let mut b = Bench::new(SMALL);
        b.worker.idle = idle;
        let wake = Arc::new(EventFd::new().expect("a descriptor"));
        let theirs = Arc::clone(&wake);
        let (other, _) = super::super::mailbox();
        let ControlEnd {
            mut commands,
            waker,
            events,
        } = std::mem::replace(&mut b.control, other);
        let control = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            assert!(commands.push(Command::Exit).is_ok());
            if waker.wake_needed() {
                theirs.signal().expect("a bell");
            }
            events
        });
        b.worker
            .run(Clock::calibrated(), &wake)
            .expect("no system call fails");
        assert!(b.worker.is_done());
        assert_eq!(b.count().sleeps > 0, idle == IdlePolicy::Event);
        drop(control.join().expect("control"));
    }
}
