//! How large the inbox of one direction is, as both of its ends must know it.
//!
//! ```text
//!  │ header page │ cells × 64 B │ data_bytes, in fragments of at most a sixteenth │
//! ```
//! Imported by inbox, and by door, which carries it to the peer.

use std::fmt;

/// Bytes in front of the cells.
pub(super) const HEADER_BYTES: usize = 4096;
/// Bytes of a cell: one line of the cache.
pub(super) const CELL_BYTES: usize = 64;
/// Data is given out in units of so many bytes.
pub(super) const UNIT_BYTES: u32 = 64;
/// Fragments that the data holds at least. One is copied in while another is copied out.
const FRAGMENTS: u32 = 16;

const CELLS: std::ops::RangeInclusive<u32> = 16..=1 << 16;
const DATA_BYTES: std::ops::RangeInclusive<u32> = 1 << 12..=1 << 25;

/// Size of an inbox. What a peer says of its own counts only after [`check`](Self::check).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Cells: fragments that can be under way. A power of two.
    pub cells: u32,
    /// Bytes for payloads that are too long for a cell. A power of two.
    pub data_bytes: u32,
}

/// A peer's inbox is of a size that none has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an inbox of {cells} cells and {data_bytes} B of data: cells are a power of two from 16 to 65,536, \
     data a power of two from 4 KiB to 32 MiB"
)]
pub struct GeometryError {
    cells: u32,
    data_bytes: u32,
}

impl Geometry {
    /// Measured: more cells or more data gain nothing, and all of it stays in the second-level cache.
    pub const DEFAULT: Self = Self {
        cells: 256,
        data_bytes: 256 << 10,
    };

    /// The same, checked.
    ///
    /// # Errors
    /// A number is out of its range, or no power of two.
    pub fn check(self) -> Result<Self, GeometryError> {
        let Self { cells, data_bytes } = self;
        let good = CELLS.contains(&cells)
            && cells.is_power_of_two()
            && DATA_BYTES.contains(&data_bytes)
            && data_bytes.is_power_of_two();
        if good {
            Ok(self)
        } else {
            Err(GeometryError { cells, data_bytes })
        }
    }

    /// Bytes of the whole inbox.
    #[must_use]
    pub fn bytes(self) -> usize {
        HEADER_BYTES + self.cells as usize * CELL_BYTES + self.data_bytes as usize
    }

    /// Bytes of a fragment at most: longer messages go in several.
    #[must_use]
    pub fn fragment_bytes(self) -> u32 {
        self.data_bytes / FRAGMENTS
    }
}

impl fmt::Display for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cells and {} B of data", self.cells, self.data_bytes)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_powers_of_two_in_range_pass() {
        let check = |cells, data_bytes| Geometry { cells, data_bytes }.check().is_ok();
        assert!(Geometry::DEFAULT.check().is_ok());
        assert!(check(16, 4096) && check(1 << 16, 1 << 25));
        for cells in [0, 1, 8, 17, 255, 1 << 17, u32::MAX] {
            assert!(!check(cells, 4096), "{cells} cells");
        }
        for data in [0, 64, 2048, 4097, 1 << 26, u32::MAX] {
            assert!(!check(16, data), "{data} B");
        }
    }

    #[test]
    fn the_largest_is_still_counted_right() {
        let largest = Geometry {
            cells: 1 << 16,
            data_bytes: 1 << 25,
        };
        assert_eq!(largest.bytes(), 4096 + (1 << 22) + (1 << 25));
        assert_eq!(largest.fragment_bytes(), 1 << 21);
    }
}
