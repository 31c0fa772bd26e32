//! What software devices are known not to do. A deviation skips its case and is reported.

/// A case that a device is known to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deviation {
    /// Name of the case.
    pub case: &'static str,
    /// What the device does instead.
    pub reason: &'static str,
}

/// Soft-RoCE of Linux 6.1, as its source says too (`drivers/infiniband/sw/rxe`).
pub const RXE: &[Deviation] = &[
    Deviation {
        case: "window_has_edges",
        reason: "rxe: holds an access by a window against the bounds of the memory below it, not \
                 against the window's own (check_rkey)",
    },
    Deviation {
        case: "receive_after_error",
        reason: "rxe: posting a receive does not call the kernel, so in the error state nobody \
                 flushes it",
    },
    Deviation {
        case: "too_long_is_named",
        reason: "rxe: LocalQpOperation at the receiver, RemoteOperation at the sender (copy_data \
                 says EINVAL, not ENOSPC)",
    },
    Deviation {
        case: "wrong_key_is_named",
        reason: "rxe: LocalQpOperation (copy_data says EINVAL, not EFAULT)",
    },
];

/// SoftiWARP of Linux 6.1, as its source says too (`drivers/infiniband/sw/siw`).
pub const SIW: &[Deviation] = &[
    Deviation {
        case: "destroyed_unanswered",
        reason: "siw: destroying an id waits for the answer to its request, 10 s at most",
    },
    Deviation {
        case: "registration_limits_reads",
        reason: "siw: answers a READ from any memory whose key it is given \
                 (siw_check_sgl_tx asks for no permission)",
    },
    Deviation {
        case: "send_after_error",
        reason: "siw: takes a send in the error state and never completes it",
    },
    Deviation {
        case: "receive_after_error",
        reason: "siw: takes a receive in the error state and never completes it",
    },
];

#[cfg(all(test, feature = "verbs"))]
mod tests {
    use super::*;
    use crate::fabric::contract::cases;
    use crate::fabric::verbs::Verbs;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_deviations_name_cases() {
        let all: Vec<_> = cases::<Verbs>().iter().map(|c| c.name).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        for deviation in RXE.iter().chain(SIW) {
            assert!(all.contains(&deviation.case), "{deviation:?}");
        }
    }
}
