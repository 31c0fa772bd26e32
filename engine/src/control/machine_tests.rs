//! Every event in every state; and that whatever comes, everything is given back exactly once.

use super::*;
use crate::fabric::WcStatus;
use proptest::prelude::*;

/// A machine with the actions it asked for so far, and a worker that answers if it is asked to.
struct Bench {
    machine: Machine,
    log: Vec<Action>,
}

impl Bench {
    fn new(role: Role) -> Self {
        let mut log = Vec::new();
        let machine = match role {
            Role::Active => Machine::active(),
            Role::Passive => Machine::passive(&mut log),
        };
        Self { machine, log }
    }

    fn feed(&mut self, input: Input) -> Vec<Action> {
        let mut out = Vec::new();
        self.machine.on(input, &mut out);
        self.log.extend(&out);
        out
    }

    fn cm(&mut self, kind: CmEventKind) -> Vec<Action> {
        self.feed(Input::Cm(kind, 0))
    }

    fn count(&self, action: Action) -> usize {
        self.log.iter().filter(|a| **a == action).count()
    }

    /// Brings a machine to a state by the usual way.
    fn at(role: Role, state: State) -> Option<Self> {
        use CmEventKind as Kind;
        let mut b = Self::new(role);
        let way: &[Input] = match role {
            Role::Active => &[
                Input::Cm(Kind::AddrResolved, 0),
                Input::Cm(Kind::RouteResolved, 0),
                Input::Armed,
                Input::Cm(Kind::ConnectResponse, 0),
                Input::Close(CloseReason::Local),
                Input::Stopped,
                Input::Drained,
                Input::Released,
                Input::Cm(Kind::Disconnected, 0),
            ],
            Role::Passive => &[
                Input::Armed,
                Input::Cm(Kind::Established, 0),
                Input::Close(CloseReason::Local),
                Input::Stopped,
                Input::Drained,
                Input::Released,
                Input::Cm(Kind::Disconnected, 0),
            ],
        };
        for input in way {
            if b.machine.state() == state {
                return Some(b);
            }
            b.feed(*input);
        }
        (b.machine.state() == state).then_some(b)
    }

    /// A worker that answers, and time that passes, end every connection.
    fn drive_to_the_end(&mut self) {
        for _ in 0..12 {
            let answer = match self.machine.state() {
                State::Draining(Drain::Stopping) => Input::Stopped,
                State::Draining(Drain::Flushing) => Input::Drained,
                State::Draining(Drain::Releasing) => Input::Released,
                State::Established => Input::Close(CloseReason::Shutdown),
                _ => Input::Timeout,
            };
            self.feed(answer);
        }
    }

    fn assert_balanced(&self) {
        assert_eq!(self.machine.state(), State::Closed);
        assert_eq!(self.count(Action::Finish), 1, "{:?}", self.log);
        assert_eq!(self.log.last(), Some(&Action::Finish));
        let created = self.count(Action::CreateQp);
        let destroyed = self.count(Action::DestroyQp) + self.count(Action::DropQp);
        assert!(destroyed <= created && created <= 1, "{:?}", self.log);
        assert!(self.machine.cause().is_some());
    }
}

const STATES: [State; 10] = [
    State::Idle,
    State::AddressResolved,
    State::RouteResolved,
    State::Connecting,
    State::Established,
    State::Draining(Drain::Stopping),
    State::Draining(Drain::Flushing),
    State::Draining(Drain::Releasing),
    State::Draining(Drain::Parting),
    State::Closed,
];

#[test]
fn the_active_way() {
    let mut b = Bench::new(Role::Active);
    assert_eq!(b.cm(CmEventKind::AddrResolved), [Action::ResolveRoute]);
    assert_eq!(b.cm(CmEventKind::RouteResolved), [Action::CreateQp]);
    assert_eq!(b.feed(Input::Armed), [Action::Connect]);
    assert_eq!(
        b.cm(CmEventKind::ConnectResponse),
        [Action::Confirm, Action::Announce]
    );
    assert_eq!(b.machine.state(), State::Established);
    assert_eq!(b.feed(Input::Close(CloseReason::Local)), [Action::TellStop]);
    assert_eq!(
        b.feed(Input::Stopped),
        [Action::Disconnect, Action::FlushQp]
    );
    assert_eq!(b.feed(Input::Drained), [Action::DestroyQp]);
    assert_eq!(b.feed(Input::Released), []);
    assert_eq!(b.machine.state(), State::Draining(Drain::Parting));
    assert_eq!(b.cm(CmEventKind::Disconnected), [Action::Finish]);
    b.assert_balanced();
}

#[test]
fn iwarp_establishes_without_a_response() {
    let mut b = Bench::at(Role::Active, State::Connecting).expect("reachable");
    assert_eq!(b.cm(CmEventKind::Established), [Action::Announce]);
}

#[test]
fn the_passive_way_ended_by_the_peer() {
    let mut b = Bench::new(Role::Passive);
    assert_eq!(b.log, [Action::CreateQp]);
    assert_eq!(b.feed(Input::Armed), [Action::Accept]);
    assert_eq!(b.cm(CmEventKind::Established), [Action::Announce]);
    assert_eq!(b.cm(CmEventKind::Disconnected), [Action::TellStop]);
    // The peer's request is answered by a disconnect of ours; nothing is owed then.
    assert_eq!(
        b.feed(Input::Stopped),
        [Action::Disconnect, Action::FlushQp]
    );
    assert_eq!(b.feed(Input::Drained), [Action::DestroyQp]);
    assert_eq!(b.feed(Input::Released), [Action::Finish]);
    assert_eq!(
        b.machine.cause().map(Cause::reason),
        Some(CloseReason::Peer)
    );
    b.assert_balanced();
}

#[test]
fn a_request_that_no_worker_can_take_is_rejected() {
    let mut b = Bench::new(Role::Passive);
    assert_eq!(
        b.feed(Input::Refused),
        [Action::DropQp, Action::Reject, Action::Finish]
    );
    b.assert_balanced();
    let mut b = Bench::new(Role::Passive);
    assert_eq!(
        b.feed(Input::ActionFailed),
        [Action::Reject, Action::Finish]
    );
    b.assert_balanced();
}

#[test]
fn failures_before_a_qp_exists_end_at_once() {
    for (state, kind) in [
        (State::Idle, CmEventKind::AddrError),
        (State::AddressResolved, CmEventKind::RouteError),
        (State::Idle, CmEventKind::Unreachable),
        (State::AddressResolved, CmEventKind::DeviceRemoval),
    ] {
        let mut b = Bench::at(Role::Active, state).expect("reachable");
        assert_eq!(b.cm(kind), [Action::Finish]);
        b.assert_balanced();
    }
}

#[test]
fn failures_of_the_handshake_drain_the_receives() {
    for kind in [
        CmEventKind::Rejected,
        CmEventKind::Unreachable,
        CmEventKind::ConnectError,
    ] {
        let mut b = Bench::at(Role::Active, State::Connecting).expect("reachable");
        assert_eq!(b.cm(kind), [Action::TellStop]);
        b.drive_to_the_end();
        b.assert_balanced();
        assert_eq!(b.count(Action::DestroyQp), 1);
    }
}

#[test]
fn a_late_worker_is_waited_for() {
    for step in [Drain::Stopping, Drain::Flushing, Drain::Releasing] {
        let mut b = Bench::at(Role::Active, State::Draining(step)).expect("reachable");
        assert_eq!(b.feed(Input::Timeout), []);
        assert_eq!(b.machine.state(), State::Draining(step));
    }
}

#[test]
fn every_event_in_every_state_of_both_roles() {
    for role in [Role::Active, Role::Passive] {
        for state in STATES {
            for kind in CmEventKind::ALL {
                for status in [0, -110] {
                    let Some(mut b) = Bench::at(role, state) else {
                        assert!(
                            role == Role::Passive
                                && matches!(state, State::Idle | State::AddressResolved)
                        );
                        continue;
                    };
                    b.feed(Input::Cm(kind, status));
                    b.drive_to_the_end();
                    b.assert_balanced();
                }
            }
        }
    }
}

#[test]
fn the_first_cause_stands() {
    let mut b = Bench::at(Role::Active, State::Established).expect("reachable");
    b.feed(Input::Close(CloseReason::Failed(WcStatus::RetryExceeded)));
    b.cm(CmEventKind::Disconnected);
    b.feed(Input::Close(CloseReason::Shutdown));
    assert_eq!(
        b.machine.cause().map(Cause::reason),
        Some(CloseReason::Failed(WcStatus::RetryExceeded))
    );
    // …and a peer that left is not waited for.
    b.feed(Input::Stopped);
    b.feed(Input::Drained);
    assert_eq!(b.feed(Input::Released), [Action::Finish]);
}

fn inputs() -> impl Strategy<Value = Input> {
    prop_oneof![
        8 => (0..CmEventKind::ALL.len(), -120i32..30)
            .prop_map(|(k, status)| Input::Cm(CmEventKind::ALL[k], status)),
        2 => Just(Input::Armed),
        1 => Just(Input::Refused),
        2 => Just(Input::Stopped),
        2 => Just(Input::Drained),
        2 => Just(Input::Released),
        1 => Just(Input::WorkerLost),
        1 => Just(Input::Close(CloseReason::Local)),
        1 => Just(Input::Timeout),
        1 => Just(Input::ActionFailed),
    ]
}

proptest! {
    #[test]
    fn any_order_of_events_ends_balanced(
        active: bool,
        inputs in proptest::collection::vec(inputs(), 0..40),
    ) {
        let mut b = Bench::new(if active { Role::Active } else { Role::Passive });
        for input in inputs {
            let closed = b.machine.state() == State::Closed;
            let out = b.feed(input);
            prop_assert!(!closed || out.is_empty(), "{input:?} after the end: {out:?}");
        }
        b.drive_to_the_end();
        b.assert_balanced();
    }
}
