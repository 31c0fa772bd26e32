//! Plain values that every layer speaks of. No I/O, no unsafe; imports limits only.

mod access;
mod device;
mod group;
mod idle;
mod keys;
mod nanos;
mod remote;

pub use access::Access;
pub use device::{Abilities, DeviceLimits, Transport};
pub use group::{GroupId, GroupShape, Membership};
pub use idle::IdlePolicy;
pub use keys::{CoreId, Lkey, QpNum, Rkey};
pub use nanos::Nanos;
pub use remote::{RemoteRegion, RemoteSpan};
