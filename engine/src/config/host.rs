//! What this host has, as far as a plan depends on it.
//!
//! ```text
//!  /proc/self/status Cpus_allowed_list ∩ /sys/devices/system/cpu/online ─► cores
//!  /sys/devices/system/node/nodeN/cpulist ─► numa
//!  memory::Hugepages ─► huge pages of the default size
//!  a fabric ─► devices
//! ```
//! Imports limits, types and memory's view of huge pages. Imported by check, control and apps.

use crate::limits::CORE_ID_MAX;
use crate::memory::Hugepages;
use crate::types::{CoreId, DeviceLimits};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Bytes read of one file of the kernel's; they have far fewer.
const KERNEL_FILE_BYTES_MAX: u64 = 64 << 10;
/// Numbers of NUMA nodes are below this (`CONFIG_NODES_SHIFT` is at most 10).
const NODES_MAX: usize = 1024;
/// Bytes of a huge page where nobody said otherwise.
const HUGEPAGE_BYTES_USUAL: u64 = 2 << 20;

/// What this host has, as far as a plan depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Cores that are online and that this process may run on, in order.
    pub cores: Vec<CoreId>,
    /// RDMA devices, active or not, and the one of shared memory.
    pub devices: Vec<DeviceLimits>,
    /// Bytes in explicit huge pages of the default size that are neither used nor promised.
    pub free_hugepages_bytes: u64,
    /// Bytes of one explicit huge page of the default size; 0 if the kernel has none.
    pub hugepage_bytes: u64,
    /// Explicit huge pages of the default size, used or free.
    pub hugepages_total: u64,
    /// The NUMA node of each core, where the kernel tells.
    pub numa: BTreeMap<CoreId, u32>,
}

impl Host {
    /// A host that somebody describes. Huge pages are of the usual 2 MiB and all of them free:
    /// where that is not so, set the fields.
    #[must_use]
    pub fn from_parts(
        cores: impl IntoIterator<Item = CoreId>,
        devices: Vec<DeviceLimits>,
        free_hugepages_bytes: u64,
        numa: BTreeMap<CoreId, u32>,
    ) -> Self {
        Self {
            cores: cores
                .into_iter()
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect(),
            devices,
            free_hugepages_bytes,
            hugepage_bytes: HUGEPAGE_BYTES_USUAL,
            hugepages_total: free_hugepages_bytes / HUGEPAGE_BYTES_USUAL,
            numa,
        }
    }

    /// This host, with devices that a fabric found.
    ///
    /// # Errors
    /// `/proc` or `/sys` does not tell the cores, or tells something that is no list of cores; the
    /// error names the file. Missing huge pages or NUMA nodes are no error.
    pub fn with_devices(devices: Vec<DeviceLimits>) -> io::Result<Self> {
        let mut host = Self::read(Path::new("/"), devices)?;
        if let Some(pages) = Hugepages::probe() {
            host.hugepage_bytes = pages.page_bytes as u64;
            host.hugepages_total = pages.total;
            host.free_hugepages_bytes = host.hugepage_bytes.saturating_mul(pages.available());
        }
        Ok(host)
    }

    /// All but the huge pages, below `root`.
    fn read(root: &Path, devices: Vec<DeviceLimits>) -> io::Result<Self> {
        let status = text(root, "proc/self/status")?;
        let allowed = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
            .and_then(cpu_list)
            .ok_or_else(|| odd("proc/self/status", "Cpus_allowed_list"))?;
        let online_path = "sys/devices/system/cpu/online";
        let online =
            cpu_list(&text(root, online_path)?).ok_or_else(|| odd(online_path, "cores"))?;
        let cores = allowed.intersection(&online).copied().collect();

        Ok(Self {
            cores,
            devices,
            free_hugepages_bytes: 0,
            hugepage_bytes: 0,
            hugepages_total: 0,
            numa: numa(root),
        })
    }
}

/// Cores as the kernel writes them: `0-1,4`, or `none`.
pub(super) fn ranges(cores: &[CoreId]) -> String {
    let mut out = String::new();
    let mut rest = cores.iter().map(|core| core.number()).peekable();
    while let Some(first) = rest.next() {
        let mut last = first;
        while let Some(next) = rest.next_if(|&next| next == last + 1) {
            last = next;
        }
        let comma = if out.is_empty() { "" } else { "," };
        let _ = if first == last {
            write!(out, "{comma}{first}")
        } else {
            write!(out, "{comma}{first}-{last}")
        };
    }
    if out.is_empty() {
        out.push_str("none");
    }
    out
}

fn numa(root: &Path) -> BTreeMap<CoreId, u32> {
    let nodes = text(root, "sys/devices/system/node/online")
        .ok()
        .and_then(|list| numbers(&list, NODES_MAX))
        .unwrap_or_default();
    let mut numa = BTreeMap::new();
    for node in nodes {
        let path = format!("sys/devices/system/node/node{node}/cpulist");
        let cores = text(root, &path).ok().and_then(|list| cpu_list(&list));
        if let Ok(node) = u32::try_from(node) {
            numa.extend(
                cores
                    .unwrap_or_default()
                    .into_iter()
                    .map(|core| (core, node)),
            );
        }
    }
    numa
}

fn cpu_list(list: &str) -> Option<BTreeSet<CoreId>> {
    Some(
        numbers(list, CORE_ID_MAX)?
            .into_iter()
            .filter_map(CoreId::new)
            .collect(),
    )
}

/// The numbers below `end` of a list such as `0-1,4`; `None` if it is no such list.
fn numbers(list: &str, end: usize) -> Option<BTreeSet<usize>> {
    let mut out = BTreeSet::new();
    let list = list.trim();
    if list.is_empty() {
        return Some(out);
    }
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last {
            return None;
        }
        out.extend(first..last.saturating_add(1).min(end));
    }
    Some(out)
}

fn text(root: &Path, path: &str) -> io::Result<String> {
    let mut out = String::new();
    File::open(root.join(path))
        .and_then(|file| file.take(KERNEL_FILE_BYTES_MAX).read_to_string(&mut out))
        .map_err(|error| io::Error::new(error.kind(), format!("/{path}: {error}")))?;
    Ok(out)
}

fn odd(path: &str, what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("/{path}: no {what} in the kernel's list format, such as 0-1,4"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::path::PathBuf;

    fn core(number: usize) -> CoreId {
        CoreId::new(number).unwrap()
    }

    fn cores(list: &[usize]) -> Vec<CoreId> {
        list.iter().map(|&number| core(number)).collect()
    }

    /// A root file system with these files, gone at the end.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root =
                std::env::temp_dir().join(format!("spinwire-host-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn lists_of_cores_are_the_kernels() {
        assert_eq!(numbers("0-2,7\n", 1024).unwrap(), [0, 1, 2, 7].into());
        assert_eq!(numbers("\n", 1024).unwrap(), [].into());
        assert_eq!(
            numbers("0-18446744073709551615", 3).unwrap(),
            [0, 1, 2].into()
        );
        assert_eq!(numbers("2000", 1024).unwrap(), [].into());
        for bad in [
            "a",
            "1-",
            "-1",
            "2-1",
            "1,,2",
            "0x1",
            "99999999999999999999",
        ] {
            assert_eq!(numbers(bad, 1024), None, "{bad}");
        }
    }

    #[test]
    fn ranges_are_written_as_the_kernel_does() {
        assert_eq!(ranges(&cores(&[0, 1, 2, 4, 6, 7])), "0-2,4,6-7");
        assert_eq!(ranges(&[]), "none");
    }

    proptest! {
        #[test]
        fn ranges_read_back(list in proptest::collection::btree_set(0usize..1024, 1..40)) {
            let written = ranges(&list.iter().map(|&n| core(n)).collect::<Vec<_>>());
            prop_assert_eq!(numbers(&written, 1024), Some(list));
        }

        #[test]
        fn any_kernel_text_is_survived(list in ".{0,200}") {
            let _ = numbers(&list, 1024);
        }
    }

    #[test]
    fn a_host_is_read_from_its_files() {
        let root = Root::new(
            "whole",
            &[
                ("proc/self/status", "Name:\tx\nCpus_allowed_list:\t1-3\n"),
                ("sys/devices/system/cpu/online", "0-2\n"),
                ("sys/devices/system/node/online", "0-1\n"),
                ("sys/devices/system/node/node0/cpulist", "0-1\n"),
                ("sys/devices/system/node/node1/cpulist", "2\n"),
            ],
        );
        let host = Host::read(&root.0, Vec::new()).unwrap();
        assert_eq!(host.cores, cores(&[1, 2]));
        assert_eq!(host.numa, [(core(0), 0), (core(1), 0), (core(2), 1)].into());
    }

    #[test]
    fn a_host_without_nodes_has_none() {
        let root = Root::new(
            "poor",
            &[
                ("proc/self/status", "Cpus_allowed_list:\t0\n"),
                ("sys/devices/system/cpu/online", "0\n"),
            ],
        );
        let host = Host::read(&root.0, Vec::new()).unwrap();
        assert_eq!(host.cores, cores(&[0]));
        assert!(host.numa.is_empty());
    }

    #[test]
    fn an_odd_file_is_named() {
        let root = Root::new(
            "odd",
            &[
                ("proc/self/status", "Cpus_allowed_list:\t0\n"),
                ("sys/devices/system/cpu/online", "all\n"),
            ],
        );
        let error = Host::read(&root.0, Vec::new()).unwrap_err().to_string();
        assert!(
            error.starts_with("/sys/devices/system/cpu/online:"),
            "{error}"
        );
        let error = Host::read(&root.0.join("nowhere"), Vec::new())
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("/proc/self/status:"), "{error}");
    }

    #[test]
    fn this_host_has_a_core() {
        assert!(!Host::with_devices(Vec::new()).unwrap().cores.is_empty());
    }
}
