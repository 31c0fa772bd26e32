//! Two processes of one host over shared memory.

mod geometry;
#[doc(hidden)] // for benches
pub mod inbox;

pub use geometry::{Geometry, GeometryError};
