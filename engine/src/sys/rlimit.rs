//! How much memory this process may lock: what a device that refuses a registration most often means.
//!
//! Cold. Imports nothing of ours. Imported by fabric and control, for error texts.

use rustix::process::{Resource, getrlimit};

/// The soft `RLIMIT_MEMLOCK` in bytes (`ulimit -l` shows KiB); `None` if there is no limit.
#[must_use]
pub fn memlock() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

#[cfg(test)]
mod tests {
    use super::memlock;

    #[test]
    fn agrees_with_proc() {
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
        let line = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max locked memory"))
            .unwrap();
        let soft = line.split_whitespace().next().unwrap();
        assert_eq!(memlock(), soft.parse().ok()); // "unlimited" is None
    }
}
