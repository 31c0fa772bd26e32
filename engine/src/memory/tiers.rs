//! Which pages a region asks for, and which it got.
//!
//! ```text
//!            explicit (hugetlbfs) ──no──► transparent (THP) ──no──► small
//!  require       or an error
//!  prefer        first choice                second               last
//!  off                                                            only
//! ```
//! Imports nothing of ours. Imported by region, config and control.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What a region asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HugepagePolicy {
    /// Explicit huge pages or an error. The kernel sets them aside at the `mmap`, so nothing changes
    /// under the region later; transparent ones can be split at any time and do not count.
    Require,
    /// Explicit, else transparent, else small pages.
    #[default]
    Prefer,
    /// Small pages, also where the kernel would give huge ones unasked.
    Off,
}

impl fmt::Display for HugepagePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Require => "require",
            Self::Prefer => "prefer",
            Self::Off => "off",
        })
    }
}

/// What a region got, as the kernel reported it right after the memory was populated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Explicit huge pages, all of it.
    Explicit,
    /// Transparent huge pages, at least one; [`Region::huge_bytes`](super::Region::huge_bytes) says
    /// how much.
    Transparent,
    /// No huge page.
    Small,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Explicit => "explicit",
            Self::Transparent => "transparent",
            Self::Small => "small",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_serde_agree() {
        for policy in [
            HugepagePolicy::Require,
            HugepagePolicy::Prefer,
            HugepagePolicy::Off,
        ] {
            let quoted = format!("\"{policy}\"");
            assert_eq!(serde_json::to_string(&policy).unwrap(), quoted);
            assert_eq!(
                serde_json::from_str::<HugepagePolicy>(&quoted).unwrap(),
                policy
            );
        }
        assert_eq!(
            serde_json::to_string(&Tier::Transparent).unwrap(),
            "\"transparent\""
        );
    }
}
