//! The engine on real verbs, in the lab: `scripts/test --lab`. Every test is ignored elsewhere.
//!
//! Tests whose name begins with `own_` want topology A (rxe0 at 10.9.0.1, siw0 at 10.9.1.1), those
//! with `wire_` topology B (rxe over a wire). Each compares what the kernel says of RDMA resources
//! before and after.
#![cfg(feature = "verbs")]
#![allow(unsafe_code, reason = "a counting allocator")]
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod atomics;
mod child;
mod churn;
mod early;
mod framed;
mod group;
mod growing;
mod killed;
mod modes;
mod operations;
mod quiet;
mod refusals;
mod removal;
mod rping;
mod shared;
mod support;
mod traffic;
mod wire;
