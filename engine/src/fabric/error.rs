//! Errors of setting up and connecting. They teach: what failed, where, what mends it.

use std::io;

/// The step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Step {
    /// The fabric's libraries or devices.
    #[error("open the fabric")]
    Open,
    /// A device's context or attributes.
    #[error("query the device")]
    Query,
    /// A protection domain.
    #[error("allocate a PD")]
    AllocPd,
    /// A completion queue.
    #[error("create a CQ")]
    CreateCq,
    /// A shared receive queue.
    #[error("create an SRQ")]
    CreateSrq,
    /// A memory window.
    #[error("allocate a memory window")]
    AllocWindow,
    /// A queue pair.
    #[error("create a QP")]
    CreateQp,
    /// A QP's state.
    #[error("move the QP to INIT")]
    ToInit,
    /// A QP's state.
    #[error("move the QP to RTR")]
    ToRtr,
    /// A QP's state.
    #[error("move the QP to RTS")]
    ToRts,
    /// A QP's state.
    #[error("move the QP to ERR")]
    ToErr,
    /// A queue pair.
    #[error("destroy the QP")]
    DestroyQp,
    /// An id or channel.
    #[error("create an rdma_cm id")]
    CreateId,
    /// Binding an address.
    #[error("bind the address")]
    Bind,
    /// Listening.
    #[error("listen")]
    Listen,
    /// Resolving an address.
    #[error("resolve the address")]
    ResolveAddress,
    /// Resolving a route.
    #[error("resolve the route")]
    ResolveRoute,
    /// The request.
    #[error("connect")]
    Connect,
    /// The answer.
    #[error("accept")]
    Accept,
    /// The refusal.
    #[error("reject")]
    Reject,
    /// The active side's last word of the handshake.
    #[error("establish")]
    Establish,
    /// The end.
    #[error("disconnect")]
    Disconnect,
    /// An event.
    #[error("read an event")]
    Event,
}

/// A step failed.
#[derive(Debug, thiserror::Error)]
#[error("{step} on {place}: {source}{}{advice}", if .advice.is_empty() { "" } else { ". " })]
pub struct FabricError {
    /// What failed.
    pub step: Step,
    /// The device or address.
    pub place: String,
    /// The system's word.
    #[source]
    pub source: io::Error,
    /// The command or key that mends it; empty where there is none.
    pub advice: String,
}

impl FabricError {
    /// An error without advice.
    pub fn new(step: Step, place: impl Into<String>, source: io::Error) -> Self {
        Self {
            step,
            place: place.into(),
            source,
            advice: String::new(),
        }
    }

    /// Says what mends it.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = advice.into();
        self
    }
}
