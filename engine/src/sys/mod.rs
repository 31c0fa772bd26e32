//! The operating system, one concept a file, in the few ways that the engine needs it.
//!
//! ```text
//!  affinity   pin a thread to its core, list the cores we may use
//!  clock      the time stamp counter as nanoseconds
//!  epoll      wait for file descriptors        eventfd   wake a waiter
//!  rlimit     how much memory may be locked, for error texts
//!  signal     SIGINT and SIGTERM as something to wait for
//!  turnstile  wait until the datapath is out of a stretch of code
//! ```
//! Only [`clock::Clock::now`] and [`eventfd::EventFd::signal`] are for the datapath.
//! Imports types, limits. Imported by everyone above.

pub mod affinity;
pub mod clock;
pub mod epoll;
pub mod eventfd;
pub mod rlimit;
pub mod signal;
pub(crate) mod turnstile;
