//! Two processes of one host over shared memory. The door only, as yet: nobody uses it.
#![allow(
    dead_code,
    unused_imports,
    reason = "the datapath that uses the door is not here yet"
)]

mod door;
mod geometry;

pub use geometry::{Geometry, GeometryError};

#[doc(hidden)] // for fuzz/targets/door.rs
pub use door::fuzz_frame;
