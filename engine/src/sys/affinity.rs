//! Which cores a thread runs on.
//!
//! ```text
//!  pin_current_thread(core) ─► sched_setaffinity ─► read back, and look where we are
//!  allowed_cores()          ─► our mask  ∪  isolated cores that the kernel would give us
//! ```
//! A core that boots with `isolcpus=` is in nobody's mask until someone asks for it, and it is just the
//! core that a busy-polling worker wants. So its name is not enough, nor is our mask.
//! Cold. Imports types, limits. Imported by config and control.

use crate::limits::CORE_ID_MAX;
use crate::types::CoreId;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::{fs, io, thread};

/// Why a thread could not be pinned.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The kernel said no: the core does not exist, is offline, or is outside our cpuset.
    #[error(
        "pin to core {core}: {source}. It must be online (/sys/devices/system/cpu/online) and in this \
         process's cpuset; allowed now: {allowed}"
    )]
    Refused {
        /// The core asked for.
        core: CoreId,
        /// Cores that would do, as a list such as `0-3,8`.
        allowed: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel said yes, but the thread's mask or place is another.
    #[error(
        "pin to core {core}: the kernel agreed, but the thread may run on {mask} and is on core \
         {running_on}. Something else moves our threads (a cpuset change, a container manager?)"
    )]
    NotEffective {
        /// The core asked for.
        core: CoreId,
        /// The mask read back.
        mask: String,
        /// Where the thread ran then.
        running_on: usize,
    },
}

/// Moves the current thread to `core` and keeps it there. Threads that it spawns later inherit this.
///
/// # Errors
///
/// [`PinError`] if the kernel refuses, or agrees and does not do it.
pub fn pin_current_thread(core: CoreId) -> Result<(), PinError> {
    // `CoreId` is below 1024: above, core_affinity would panic.
    let wanted = core_affinity::CoreId { id: core.number() };
    if !core_affinity::set_for_current(wanted) {
        return Err(PinError::Refused {
            core,
            source: io::Error::last_os_error(),
            allowed: allowed_cores().map_or_else(|error| error.to_string(), |c| core_list(&c)),
        });
    }
    let mask = sched_getaffinity(None).map_or_else(|_| Vec::new(), |set| cores_in(&set));
    let running_on = sched_getcpu();
    if mask != [core] || running_on != core.number() {
        return Err(PinError::NotEffective {
            core,
            mask: core_list(&mask),
            running_on,
        });
    }
    Ok(())
}

/// Cores that a thread of this process can be pinned to, in order: those in the mask of the process's
/// main thread, and isolated ones (`/sys/devices/system/cpu/isolated`) that its cpuset holds.
///
/// # Errors
///
/// If the mask cannot be read, as on a machine of more than 1024 cores.
pub fn allowed_cores() -> io::Result<Vec<CoreId>> {
    let own = cores_in(&sched_getaffinity(Some(rustix::process::getpid()))?);
    let isolated = fs::read_to_string("/sys/devices/system/cpu/isolated").map_or_else(
        |_| Vec::new(),
        |text| parse_core_list(&text).unwrap_or_default(),
    );
    if isolated.is_empty() {
        return Ok(own);
    }
    let granted = grantable()?;
    let mut cores = own;
    cores.extend(isolated.into_iter().filter(|core| granted.contains(core)));
    cores.sort_unstable();
    cores.dedup();
    Ok(cores)
}

/// What the kernel leaves of a wish for every core: the online ones of our cpuset. Asked by a thread
/// that ends right after, so that nobody's mask changes.
fn grantable() -> io::Result<Vec<CoreId>> {
    let ask = || -> io::Result<Vec<CoreId>> {
        let mut every = CpuSet::new();
        (0..CORE_ID_MAX).for_each(|number| every.set(number));
        sched_setaffinity(None, &every)?;
        Ok(cores_in(&sched_getaffinity(None)?))
    };
    thread::Builder::new()
        .name("spinwire-cores".into())
        .spawn(ask)?
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread that asks for cores panicked")))
}

fn cores_in(set: &CpuSet) -> Vec<CoreId> {
    (0..CORE_ID_MAX)
        .filter(|number| set.is_set(*number))
        .filter_map(CoreId::new)
        .collect()
}

/// Reads a list as the kernel writes it: `0-3,8,10-11`. Empty text is an empty list. `None` if it is
/// no such list, or names a core of [`CORE_ID_MAX`] or above.
#[must_use]
pub fn parse_core_list(text: &str) -> Option<Vec<CoreId>> {
    let text = text.trim();
    if text.is_empty() {
        return Some(Vec::new());
    }
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first = CoreId::new(first.trim().parse().ok()?)?;
        let last = CoreId::new(last.trim().parse().ok()?)?;
        if first > last {
            return None;
        }
        cores.extend((first.number()..=last.number()).filter_map(CoreId::new));
    }
    Some(cores)
}

/// Writes a list as the kernel does: runs joined by `-`. The cores must be in order.
#[must_use]
pub fn core_list(cores: &[CoreId]) -> String {
    let runs = cores.chunk_by(|a, b| a.number() + 1 == b.number());
    let parts = runs.map(|run| match run {
        [only] => only.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    let list = parts.collect::<Vec<_>>().join(",");
    if list.is_empty() { "none".into() } else { list }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(numbers: &[usize]) -> Vec<CoreId> {
        numbers.iter().filter_map(|n| CoreId::new(*n)).collect()
    }

    #[test]
    fn lists_are_read_and_written() {
        for (text, numbers) in [
            ("0", &[0][..]),
            ("0-3", &[0, 1, 2, 3]),
            ("0-2,5,8-9", &[0, 1, 2, 5, 8, 9]),
            ("1023", &[1023]),
        ] {
            assert_eq!(parse_core_list(text).unwrap(), cores(numbers));
            assert_eq!(core_list(&cores(numbers)), text);
        }
        assert_eq!(parse_core_list(" \n"), Some(vec![]));
        assert_eq!(core_list(&[]), "none");
        for wrong in [
            "a",
            "1-",
            "-1",
            "3-1",
            "1,,2",
            "1024",
            "0-1024",
            "0-99999999",
        ] {
            assert_eq!(parse_core_list(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn every_allowed_core_can_be_pinned() {
        // On a thread of its own: pinning is for life.
        thread::spawn(|| {
            let allowed = allowed_cores().unwrap();
            assert!(!allowed.is_empty());
            for core in &allowed {
                pin_current_thread(*core).unwrap();
                assert_eq!(sched_getcpu(), core.number());
            }
            // The list is the process's and not this pinned thread's.
            assert_eq!(allowed_cores().unwrap(), allowed);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn the_probe_covers_the_mask_and_changes_none() {
        let before = cores_in(&sched_getaffinity(None).unwrap());
        let granted = grantable().unwrap();
        assert!(before.iter().all(|core| granted.contains(core)));
        assert_eq!(cores_in(&sched_getaffinity(None).unwrap()), before);
    }

    #[test]
    fn a_core_that_is_not_there_is_refused_with_the_remedy() {
        thread::spawn(|| {
            let absent = CoreId::new(CORE_ID_MAX - 1).unwrap();
            if allowed_cores().unwrap().contains(&absent) {
                return;
            }
            let error = pin_current_thread(absent).unwrap_err();
            assert!(matches!(error, PinError::Refused { .. }));
            let text = error.to_string();
            assert!(
                text.contains("core 1023") && text.contains("allowed now"),
                "{text}"
            );
        })
        .join()
        .unwrap();
    }
}
