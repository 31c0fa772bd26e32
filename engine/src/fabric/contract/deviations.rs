//! What software devices are known not to do. A deviation skips its case and is reported.

/// A case that a device is known to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deviation {
    /// Name of the case.
    pub case: &'static str,
    /// What the device does instead.
    pub reason: &'static str,
}

/// Soft-RoCE of Linux 6.1.
pub const RXE: &[Deviation] = &[];

/// SoftiWARP of Linux 6.1.
pub const SIW: &[Deviation] = &[];
