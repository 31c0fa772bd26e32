//! The operating system, one concept a file, in the few ways that the engine needs it.
//!
//! ```text
//!  affinity   pin a thread to its core, list the cores we may use
//!  clock      the time stamp counter as nanoseconds
//!  epoll      wait for file descriptors        eventfd   wake a waiter
//!  memfd      memory that processes share     seqpacket  sockets that carry frames and descriptors
//!  bell       wake another process            timer      a descriptor for a point in time
//!  closing    close what a peer can make slow to close
//!  rlimit     how much memory may be locked, for error texts
//!  signal     SIGINT and SIGTERM as something to wait for
//!  turnstile  wait until the datapath is out of a stretch of code
//! ```
//! Only [`clock::Clock::now`], [`eventfd::EventFd::signal`] and [`bell::Ringer::ring`] are for the datapath.
//! Imports types, limits. Imported by everyone above.

pub mod affinity;
pub mod bell;
pub mod clock;
pub mod closing;
pub mod epoll;
pub mod eventfd;
pub mod memfd;
pub mod rlimit;
pub mod seqpacket;
pub mod signal;
pub mod timer;
pub(crate) mod turnstile;
