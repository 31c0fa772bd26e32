//! The life of one connection as a state machine: pure, without a fabric, so every event in every
//! state can be tested.
//!
//! ```text
//!  active   Idle ─addr─► AddressResolved ─route─► RouteResolved ─armed─► Connecting ─► Established
//!  passive                                        RouteResolved ─armed─► Connecting ─► Established
//!
//!  any ──close, error, timeout──► Draining(Stopping → Flushing → Releasing → Parting) ─► Closed
//!                                 (straight to Closed where no QP exists)
//! ```
//! In `RouteResolved` the QP exists on the chosen worker and control waits until its receives are
//! posted. Draining: the worker stops posting; control disconnects and sets ERR; the worker polls
//! until everything outstanding came in, or its deadline; control destroys the QP; the worker
//! releases the slots; and where this side disconnected first, DISCONNECTED is still owed.

use crate::fabric::CmEventKind;
use crate::worker::{CloseReason, Role};
use std::fmt;

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Resolving the address.
    Idle,
    /// Resolving the route.
    AddressResolved,
    /// The QP was handed to a worker, which posts its receives.
    RouteResolved,
    /// The handshake is under way.
    Connecting,
    /// Traffic.
    Established,
    /// Ending, in this step.
    Draining(Drain),
    /// Everything is given back.
    Closed,
}

/// A step of ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Drain {
    /// The worker is to stop posting.
    Stopping,
    /// The QP is in ERR, the worker polls flushes.
    Flushing,
    /// The QP is destroyed, the worker gives slots back.
    Releasing,
    /// DISCONNECTED is owed.
    Parting,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "resolving the address",
            Self::AddressResolved => "resolving the route",
            Self::RouteResolved => "handing the connection to a worker",
            Self::Connecting => "connecting",
            Self::Established => "established",
            Self::Draining(_) => "draining",
            Self::Closed => "closed",
        })
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// The connection manager says so.
    Cm(CmEventKind, i32),
    /// The worker posted its receives.
    Armed,
    /// The worker cannot take it; the QP is back.
    Refused,
    /// The worker stopped posting.
    Stopped,
    /// The worker gave the QP back.
    Drained,
    /// The worker forgot the connection.
    Released,
    /// The worker's thread is gone, and its halves of everything with it.
    WorkerLost,
    /// Someone wants it closed.
    Close(CloseReason),
    /// The state's deadline is over.
    Timeout,
    /// The last action failed.
    ActionFailed,
}

/// What to do about it, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// `resolve_route`.
    ResolveRoute,
    /// Choose a worker, create the QP on its CQ, hand it over.
    CreateQp,
    /// `connect`.
    Connect,
    /// `accept`.
    Accept,
    /// `confirm`: RTR, RTS, establish.
    Confirm,
    /// Tell the worker and the caller that the connection is up.
    Announce,
    /// `reject`.
    Reject,
    /// Tell the worker to stop posting.
    TellStop,
    /// `disconnect`, where the peer should hear of it.
    Disconnect,
    /// `set_error`, and tell the worker to poll flushes.
    FlushQp,
    /// Destroy the QP and tell the worker.
    DestroyQp,
    /// Destroy the QP of a worker that does not have it (any more).
    DropQp,
    /// Destroy the id, free the place, report the end.
    Finish,
}

/// Why a connection ended or never was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Close(CloseReason),
    Cm(CmEventKind, i32),
    TimedOut(State),
    NoRoom,
    Action(State),
    WorkerLost,
}

impl Cause {
    /// As the service is told.
    pub(crate) fn reason(self) -> CloseReason {
        match self {
            Self::Close(reason) => reason,
            Self::Cm(CmEventKind::DeviceRemoval, _) => CloseReason::DeviceRemoved,
            Self::Cm(CmEventKind::Disconnected, _) => CloseReason::Peer,
            Self::Cm(..) | Self::TimedOut(_) | Self::NoRoom | Self::Action(_) => {
                CloseReason::Unreachable
            }
            Self::WorkerLost => CloseReason::Shutdown,
        }
    }
}

/// The machine of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    role: Role,
    state: State,
    /// A worker has the QP's posting half.
    with_worker: bool,
    /// `connect` or `accept` was called: the peer may know of the connection.
    wired: bool,
    /// The handshake was done on this side.
    was_up: bool,
    /// The peer has disconnected, so nothing is owed.
    peer_left: bool,
    cause: Option<Cause>,
}

impl Machine {
    /// An active connection, whose address is being resolved.
    pub(crate) fn active() -> Self {
        Self::new(Role::Active, State::Idle)
    }

    /// A passive connection, just requested, and the first thing to do.
    pub(crate) fn passive(out: &mut Vec<Action>) -> Self {
        let mut machine = Self::new(Role::Passive, State::RouteResolved);
        machine.hand_over(out);
        machine
    }

    fn new(role: Role, state: State) -> Self {
        Self {
            role,
            state,
            with_worker: false,
            wired: false,
            was_up: false,
            peer_left: false,
            cause: None,
        }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    pub(crate) fn cause(&self) -> Option<Cause> {
        self.cause
    }

    /// A worker owes an answer, so its events are to be looked for soon.
    pub(crate) fn awaits_worker(&self) -> bool {
        match self.state {
            State::RouteResolved => true,
            State::Draining(step) => step != Drain::Parting,
            State::Idle
            | State::AddressResolved
            | State::Connecting
            | State::Established
            | State::Closed => false,
        }
    }

    /// Takes one input; what to do is appended to `out`.
    pub(crate) fn on(&mut self, input: Input, out: &mut Vec<Action>) {
        if self.state == State::Closed {
            return;
        }
        match input {
            Input::Cm(kind, status) => self.on_cm(kind, status, out),
            Input::Armed if self.state == State::RouteResolved => self.handshake(out),
            Input::Refused => self.on_refused(out),
            Input::Stopped if self.state == State::Draining(Drain::Stopping) => {
                self.state = State::Draining(Drain::Flushing);
                if self.wired {
                    out.push(Action::Disconnect);
                }
                out.push(Action::FlushQp);
            }
            Input::Drained if self.state == State::Draining(Drain::Flushing) => {
                self.state = State::Draining(Drain::Releasing);
                out.push(Action::DestroyQp);
            }
            Input::Released if self.state == State::Draining(Drain::Releasing) => {
                self.with_worker = false;
                self.part(out);
            }
            Input::WorkerLost => self.on_worker_lost(out),
            Input::Close(reason) => self.end(Cause::Close(reason), out),
            Input::Timeout => self.on_timeout(out),
            Input::ActionFailed => self.on_action_failed(out),
            // An answer to a question of a state that has passed.
            Input::Armed | Input::Stopped | Input::Drained | Input::Released => {}
        }
    }

    fn on_cm(&mut self, kind: CmEventKind, status: i32, out: &mut Vec<Action>) {
        use CmEventKind as Kind;
        match kind {
            Kind::AddrResolved if self.state == State::Idle => {
                self.state = State::AddressResolved;
                out.push(Action::ResolveRoute);
            }
            Kind::RouteResolved if self.state == State::AddressResolved => {
                self.state = State::RouteResolved;
                self.hand_over(out);
            }
            Kind::ConnectResponse
                if self.state == State::Connecting && self.role == Role::Active =>
            {
                out.push(Action::Confirm);
                self.come_up(out);
            }
            Kind::Established if self.state == State::Connecting => self.come_up(out),
            Kind::Disconnected => {
                self.peer_left = true;
                match self.state {
                    State::Draining(Drain::Parting) => self.finish(out),
                    State::Draining(_) => {}
                    _ => self.end(Cause::Cm(kind, status), out),
                }
            }
            Kind::DeviceRemoval => {
                self.peer_left = true;
                match self.state {
                    State::Draining(Drain::Parting) => self.finish(out),
                    _ => self.end(Cause::Cm(kind, status), out),
                }
            }
            // These may come in any state (rdma_get_cm_event(3)); while draining they are echoes.
            Kind::AddrError
            | Kind::RouteError
            | Kind::ConnectError
            | Kind::Unreachable
            | Kind::Rejected => self.end(Cause::Cm(kind, status), out),
            // The wait for old packets is over: nothing else will come.
            Kind::TimewaitExit => {
                if self.state == State::Draining(Drain::Parting) {
                    self.finish(out);
                }
            }
            // Repeated or late steps, requests (they are the listener's), multicast (not used), and
            // a bonded address that moved: RC survives it or errs by itself.
            Kind::AddrResolved
            | Kind::RouteResolved
            | Kind::ConnectResponse
            | Kind::Established
            | Kind::ConnectRequest
            | Kind::MulticastJoin
            | Kind::MulticastError
            | Kind::AddrChange
            | Kind::Unknown(_) => {}
        }
    }

    fn hand_over(&mut self, out: &mut Vec<Action>) {
        self.with_worker = true;
        out.push(Action::CreateQp);
    }

    fn handshake(&mut self, out: &mut Vec<Action>) {
        self.state = State::Connecting;
        self.wired = true;
        out.push(match self.role {
            Role::Active => Action::Connect,
            Role::Passive => Action::Accept,
        });
    }

    fn come_up(&mut self, out: &mut Vec<Action>) {
        self.state = State::Established;
        self.was_up = true;
        out.push(Action::Announce);
    }

    fn end(&mut self, cause: Cause, out: &mut Vec<Action>) {
        if matches!(self.state, State::Draining(_) | State::Closed) {
            return;
        }
        self.cause = Some(cause);
        if self.role == Role::Passive && !self.wired {
            out.push(Action::Reject);
        }
        if self.with_worker {
            self.state = State::Draining(Drain::Stopping);
            out.push(Action::TellStop);
        } else {
            self.finish(out);
        }
    }

    fn part(&mut self, out: &mut Vec<Action>) {
        if self.was_up && !self.peer_left {
            self.state = State::Draining(Drain::Parting);
        } else {
            self.finish(out);
        }
    }

    fn finish(&mut self, out: &mut Vec<Action>) {
        self.state = State::Closed;
        out.push(Action::Finish);
    }

    fn on_refused(&mut self, out: &mut Vec<Action>) {
        // A worker refuses what it was just given; later the QP is the machine's own to destroy.
        match self.state {
            State::RouteResolved => {
                self.with_worker = false;
                out.push(Action::DropQp);
                self.end(Cause::NoRoom, out);
            }
            State::Draining(Drain::Stopping) => {
                self.with_worker = false;
                out.push(Action::DropQp);
                self.part(out);
            }
            _ => {}
        }
    }

    fn on_worker_lost(&mut self, out: &mut Vec<Action>) {
        if !self.with_worker {
            return;
        }
        self.with_worker = false;
        self.cause.get_or_insert(Cause::WorkerLost);
        if self.wired && matches!(self.state, State::Connecting | State::Established) {
            out.push(Action::Disconnect);
        }
        // In `Releasing` the QP is destroyed already.
        if self.state != State::Draining(Drain::Releasing) {
            out.push(Action::DropQp);
        }
        self.finish(out);
    }

    fn on_timeout(&mut self, out: &mut Vec<Action>) {
        match self.state {
            State::Draining(Drain::Parting) => self.finish(out),
            // The worker bounds its own part; it is late, not gone (a lost one says WorkerLost).
            State::Draining(_) | State::Established | State::Closed => {}
            State::Idle | State::AddressResolved | State::RouteResolved | State::Connecting => {
                self.end(Cause::TimedOut(self.state), out);
            }
        }
    }

    fn on_action_failed(&mut self, out: &mut Vec<Action>) {
        match self.state {
            // No QP came to be, so the worker knows nothing.
            State::RouteResolved => self.with_worker = false,
            // Ending goes on whatever fails: a call on a device that is gone, say.
            State::Draining(_) | State::Closed => return,
            State::Idle | State::AddressResolved | State::Connecting | State::Established => {}
        }
        self.end(Cause::Action(self.state), out);
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
