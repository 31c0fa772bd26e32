//! The chunks that a pool grows by.
//!
//! ```text
//!  begin ─► first chunk: the pool as it starts
//!  next_chunk ─► half as much again as there is, in whole pages of the largest kind ─► Region
//! ```
//! All lie in one reservation, one behind the other. Cold; the control core calls it. Imports region,
//! reservation, hugepages. Imported by engine and control.

use super::hugepages::{self, Hugepages};
use super::mapping::small_page_bytes;
use super::region::{Region, RegionError};
use super::reservation::Reservation;
use super::tiers::HugepagePolicy;
use std::sync::Arc;

/// Makes the chunks of one pool.
#[derive(Debug)]
pub struct Growth {
    range: Arc<Reservation>,
    policy: HugepagePolicy,
}

impl Growth {
    /// Reserves addresses for `bytes_max`, and maps and populates the first `bytes` of them.
    ///
    /// # Errors
    /// As [`Region::allocate`]; or there are no such addresses.
    pub fn begin(
        bytes: usize,
        bytes_max: usize,
        policy: HugepagePolicy,
    ) -> Result<(Region, Self), RegionError> {
        let range =
            Reservation::new(bytes_max.max(bytes), unit_bytes(policy)).map_err(|source| {
                RegionError::Memory {
                    action: "reserve addresses for",
                    bytes: bytes_max,
                    source,
                }
            })?;
        let range = Arc::new(range);
        let region = Region::allocate_in(&range, bytes, policy)?;
        Ok((region, Self { range, policy }))
    }

    /// Maps and populates the next chunk; `None` when all addresses are taken.
    ///
    /// # Errors
    /// As [`Region::allocate`]. It may be called again.
    pub fn next_chunk(&self) -> Result<Option<Region>, RegionError> {
        let left = self.range.left();
        if left == 0 {
            return Ok(None);
        }
        let bytes = (self.range.taken() / 2).max(self.range.unit()).min(left);
        Region::allocate_in(&self.range, bytes, self.policy).map(Some)
    }
}

/// The largest page that the policy may get: chunks are whole ones.
fn unit_bytes(policy: HugepagePolicy) -> usize {
    let huge = match policy {
        HugepagePolicy::Off => None,
        HugepagePolicy::Require => Hugepages::probe().map(|pages| pages.page_bytes),
        HugepagePolicy::Prefer => Hugepages::probe()
            .map(|pages| pages.page_bytes)
            .max(hugepages::transparent_bytes()),
    };
    huge.unwrap_or(0).max(small_page_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_follow_each_other_until_nothing_is_left() {
        for policy in [HugepagePolicy::Off, HugepagePolicy::Prefer] {
            let unit = unit_bytes(policy);
            let (first, growth) = Growth::begin(2 * unit, 9 * unit - 1, policy).unwrap();
            let mut end = first.base().as_ptr().addr() + first.len();
            let mut sizes = Vec::new();
            let mut chunks = Vec::new();
            while let Some(chunk) = growth.next_chunk().unwrap() {
                assert_eq!(chunk.base().as_ptr().addr(), end);
                end += chunk.len();
                sizes.push(chunk.len() / unit);
                chunks.push(chunk);
            }
            assert_eq!(
                sizes,
                [1, 2, 3, 1],
                "half of 2, 3, 5 in whole pages, and the rest"
            );
            assert!(growth.next_chunk().unwrap().is_none());
            // What goes can be had again.
            drop(chunks.pop());
            assert_eq!(growth.next_chunk().unwrap().unwrap().len(), unit);
        }
    }

    #[test]
    fn a_first_chunk_that_does_not_fit_the_host_is_refused() {
        let huge = 1 << 46;
        let error = Growth::begin(huge, huge, HugepagePolicy::Off).unwrap_err();
        assert!(matches!(error, RegionError::TooBig { .. }), "{error}");
    }
}
