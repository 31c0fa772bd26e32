//! The one routine that copies memory which others may be writing at the same time.
//!
//! Imports nothing. Imported by exposed, and by fabrics whose "NIC" is this process.

#![allow(
    unsafe_code,
    reason = "copies bytes that a peer may be writing at the same time"
)]

/// Copies memory that others may be writing: an instruction that the compiler knows nothing about, so
/// it assumes nothing about the bytes. Where the two overlap, what arrives is what a copy byte by byte
/// from the front gives.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and meanwhile nobody uses a reference to the
/// bytes at `to` but the one, if any, that `to` was made of.
pub(crate) unsafe fn copy_shared(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `rep movsb` reads and writes `len` bytes, which the caller promises are there; the
    // direction flag is clear, as the ABI says.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    for i in 0..len {
        // SAFETY: `i < len`, and the caller promises `len` bytes on both sides.
        unsafe { to.add(i).write_volatile(from.add(i).read_volatile()) };
    }
}
