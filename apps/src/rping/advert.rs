//! The one message of rping, 16 bytes each way: the client says where memory lies, the server says
//! go ahead.
//!
//! ```text
//!  0        8      12     16      big endian
//!  │ address │ rkey │ bytes │     a go-ahead has the same size, and nothing in it counts
//! ```

use spinwire::types::{Access, RemoteRegion, Rkey};

/// Bytes of every message.
pub(super) const MESSAGE_BYTES: usize = 16;

/// What a go-ahead holds.
pub(super) const GO_AHEAD: [u8; MESSAGE_BYTES] = [0; MESSAGE_BYTES];

/// An advert that cannot be taken. Whoever sent it may be anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AdvertError {
    #[error(
        "a message of {0} B came, an advert has {MESSAGE_BYTES} B: is the peer an rping client?"
    )]
    Size(usize),
    #[error("an advert of 0 B at {addr:#x}: there is nothing to read or write")]
    Empty { addr: u64 },
    #[error(
        "an advert of {len} B at {addr:#x}: at most {most} B are taken here, see --size of the server"
    )]
    TooLong { addr: u64, len: u32, most: u32 },
    #[error("an advert of {len} B at {addr:#x}: that reaches past the last address")]
    Wraps { addr: u64, len: u32 },
}

/// Memory of the client as it says. Holding one proves nothing yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Advert {
    pub(super) addr: u64,
    pub(super) rkey: Rkey,
    pub(super) len: u32,
}

impl Advert {
    pub(super) fn parse(message: &[u8]) -> Result<Self, AdvertError> {
        let size = AdvertError::Size(message.len());
        let (addr, rest) = message.split_first_chunk().ok_or(size)?;
        let (rkey, rest) = rest.split_first_chunk().ok_or(size)?;
        let len: &[u8; 4] = rest.try_into().map_err(|_| size)?;
        Ok(Self {
            addr: u64::from_be_bytes(*addr),
            rkey: Rkey(u32::from_be_bytes(*rkey)),
            len: u32::from_be_bytes(*len),
        })
    }

    pub(super) fn to_bytes(self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// The memory as work requests name it, if it is of a size that is taken.
    pub(super) fn region(self, access: Access, most: u32) -> Result<RemoteRegion, AdvertError> {
        let Self { addr, rkey, len } = self;
        if len == 0 {
            return Err(AdvertError::Empty { addr });
        }
        if len > most {
            return Err(AdvertError::TooLong { addr, len, most });
        }
        RemoteRegion::parse(addr, u64::from(len), rkey, access)
            .ok_or(AdvertError::Wraps { addr, len })
    }
}

impl std::fmt::Display for Advert {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { addr, rkey, len } = self;
        write!(f, "{len} B at {addr:#x} with rkey {:#x}", rkey.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADVERT: Advert = Advert {
        addr: 0x0102_0304_0506_0708,
        rkey: Rkey(0x090a_0b0c),
        len: 0x40,
    };

    #[test]
    fn the_bytes_are_those_of_rping() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0, 0x40];
        assert_eq!(ADVERT.to_bytes(), bytes);
        assert_eq!(Advert::parse(&bytes), Ok(ADVERT));
    }

    #[test]
    fn any_other_size_is_refused() {
        let bytes = [7; 40];
        for n in (0..40).filter(|n| *n != MESSAGE_BYTES) {
            assert_eq!(Advert::parse(&bytes[..n]), Err(AdvertError::Size(n)));
        }
    }

    #[test]
    fn hostile_memory_is_refused_with_its_numbers() {
        let with = |addr, len| {
            let advert = Advert {
                addr,
                len,
                ..ADVERT
            };
            advert.region(Access::REMOTE_READ, 64)
        };
        let text = |addr, len| with(addr, len).map_or_else(|e| e.to_string(), |_| String::new());
        assert_eq!(with(16, 64).map(|r| (r.addr(), r.len())), Ok((16, 64)));
        assert_eq!(with(0, 0), Err(AdvertError::Empty { addr: 0 }));
        assert!(text(16, 65).contains("at most 64 B"), "{}", text(16, 65));
        assert!(text(16, u32::MAX).contains("4294967295 B at 0x10"));
        let wraps = text(u64::MAX, 2);
        assert!(wraps.contains("past the last address"), "{wraps}");
    }
}
