//! What callers on other threads ask of control, and how they are answered.

use super::EngineError;
use crate::control::{ConnectError, Control, Handle, Notice, Offer, Welcome};
use crate::fabric::{Endpoint, Fabric, FabricError};
use crate::sys::eventfd::EventFd;
use crate::sys::signal::StopSignal;
use crate::worker::ConnId;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

/// Says when an engine should end.
pub trait Stop {
    /// Waits; true when it is time.
    fn wait(&mut self, at_most: Duration) -> bool;
}

impl Stop for &StopSignal {
    fn wait(&mut self, at_most: Duration) -> bool {
        StopSignal::wait(self, at_most)
    }
}

impl Stop for Receiver<()> {
    fn wait(&mut self, at_most: Duration) -> bool {
        !matches!(self.recv_timeout(at_most), Err(RecvTimeoutError::Timeout))
    }
}

/// Something for control to do.
pub(super) enum Request {
    Listen(Endpoint, Welcome, Sender<Result<Endpoint, FabricError>>),
    Connect(Endpoint, Box<Offer>, Sender<Result<ConnId, ConnectError>>),
    Close(ConnId),
    Shutdown,
}

/// The callers' end.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    queue: Sender<Request>,
    wake: Arc<EventFd>,
}

impl Requests {
    pub(super) fn new(wake: Arc<EventFd>) -> (Self, Receiver<Request>) {
        let (queue, receiver) = mpsc::channel();
        (Self { queue, wake }, receiver)
    }

    pub(super) fn send(&self, request: Request) {
        // A control thread that is gone is found by whoever waits for an answer, or by joining.
        let _ = self.queue.send(request);
        let _ = self.wake.signal();
    }

    pub(super) fn ask<T>(
        &self,
        request: impl FnOnce(Sender<T>) -> Request,
    ) -> Result<T, EngineError> {
        self.begin(request).recv().map_err(|_| EngineError::Stopped)
    }

    /// Asks, and gives where the answer will come; nothing comes there when control is gone.
    pub(super) fn begin<T>(&self, request: impl FnOnce(Sender<T>) -> Request) -> Receiver<T> {
        let (reply, answer) = mpsc::channel();
        self.send(request(reply));
        answer
    }
}

/// Control's end: requests to serve, and callers that wait for a connection.
pub(super) struct Desk {
    queue: Receiver<Request>,
    waiting: HashMap<Handle, Sender<Result<ConnId, ConnectError>>>,
}

impl Desk {
    pub(super) fn new(queue: Receiver<Request>) -> Self {
        Self {
            queue,
            waiting: HashMap::new(),
        }
    }

    /// Answers whom the notices are for, and serves what was asked since.
    pub(super) fn serve<F: Fabric>(&mut self, control: &mut Control<F>, notices: Vec<Notice>) {
        for notice in notices {
            match notice {
                Notice::Connected(handle, conn) => self.answer(handle, Ok(conn)),
                Notice::Failed(handle, error) => self.answer(handle, Err(error)),
                Notice::Accepted(_) | Notice::Closed(..) => {}
            }
        }
        while let Ok(request) = self.queue.try_recv() {
            match request {
                // A caller that no longer waits needs no answer.
                Request::Listen(at, welcome, reply) => {
                    drop(reply.send(control.listen(&at, welcome)));
                }
                Request::Connect(peer, offer, reply) => match control.connect(&peer, *offer) {
                    Ok(handle) => drop(self.waiting.insert(handle, reply)),
                    Err(error) => drop(reply.send(Err(error))),
                },
                Request::Close(conn) => control.close(conn),
                Request::Shutdown => control.shutdown(),
            }
        }
    }

    fn answer(&mut self, handle: Handle, result: Result<ConnId, ConnectError>) {
        if let Some(reply) = self.waiting.remove(&handle) {
            let _ = reply.send(result);
        }
    }
}
