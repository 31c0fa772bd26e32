//! The one routine that copies memory which others may be writing at the same time, and its form for
//! messages, which are often short.
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

/// At most so many bytes are copied by single moves: `rep movsb` needs some 30 cycles before its first.
#[cfg(target_arch = "x86_64")]
const SHORT_BYTES: usize = 256;

/// As [`copy_shared`], between places that do not overlap, and quick with few bytes as well.
///
/// # Safety
/// As of [`copy_shared`], and the two places do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_message(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len <= SHORT_BYTES {
        // SAFETY: it requires what the caller promises.
        unsafe { copy_short(from, to, len) };
        return;
    }
    // SAFETY: it requires what the caller promises.
    unsafe { copy_shared(from, to, len) };
}

/// Bytes that are asked for while so many before them are copied.
const STRIDE_BYTES: usize = 512;
const LINE_BYTES: usize = 64;

/// As [`copy_message`], of bytes that another core has just written: asks for lines ahead of `rep
/// movsb`, which waits for one after the other. Measured with 4 KiB between two cores: 3.9 instead of
/// 3.4 million a second; with bytes of our own it is a loss. It asks for one stride behind the end as
/// well, where the next message lies if there is one.
///
/// # Safety
/// As of [`copy_message`].
#[inline(always)]
pub(crate) unsafe fn copy_arrived(from: *const u8, to: *mut u8, len: usize) {
    if len <= STRIDE_BYTES {
        // SAFETY: it requires what the caller promises.
        unsafe { copy_message(from, to, len) };
    } else {
        // SAFETY: it requires what the caller promises.
        unsafe { copy_strides(from, to, len) };
    }
}

/// # Safety
/// As of [`copy_message`].
unsafe fn copy_strides(from: *const u8, to: *mut u8, len: usize) {
    let mut done = 0;
    while done < len {
        let next = done + STRIDE_BYTES;
        for line in (next..next + STRIDE_BYTES).step_by(LINE_BYTES) {
            ask_to_read(from.wrapping_add(line));
        }
        // SAFETY: it requires what the caller promises of all `len` bytes; `add` requires to stay within
        // them, and `done < len`.
        unsafe { copy_shared(from.add(done), to.add(done), STRIDE_BYTES.min(len - done)) };
        done = next;
    }
}

/// Asks for a line of the cache: it will be written soon. Of any address.
#[inline(always)]
pub(crate) fn ask_to_write(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which changes no register, memory or flag, and does not fault.
    unsafe {
        std::arch::asm!(
            "prefetchw [{}]",
            in(reg) line,
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Asks for a line of the cache: it will be read soon. Of any address.
#[inline(always)]
pub(crate) fn ask_to_read(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint; it needs SSE, which every x86-64 has, and does not fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// A load and a store that the compiler knows nothing about.
#[cfg(target_arch = "x86_64")]
macro_rules! move_bytes {
    ($name:ident, $class:ident, $load:literal, $store:literal) => {
        /// # Safety
        /// As of [`copy_short`], for the bytes that its name says, at `at` of both places.
        #[inline(always)]
        unsafe fn $name(from: *const u8, to: *mut u8, at: usize) {
            // SAFETY: reads and writes the bytes that the caller promises, through a register of its
            // own; flags and stack stay as they are.
            unsafe {
                std::arch::asm!(
                    $load,
                    $store,
                    from = in(reg) from,
                    to = in(reg) to,
                    at = in(reg) at,
                    via = out($class) _,
                    options(nostack, preserves_flags)
                );
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
move_bytes!(
    move_16,
    xmm_reg,
    "movups {via}, [{from} + {at}]",
    "movups [{to} + {at}], {via}"
);
#[cfg(target_arch = "x86_64")]
move_bytes!(
    move_8,
    reg,
    "mov {via}, [{from} + {at}]",
    "mov [{to} + {at}], {via}"
);
#[cfg(target_arch = "x86_64")]
move_bytes!(
    move_4,
    reg,
    "mov {via:e}, [{from} + {at}]",
    "mov [{to} + {at}], {via:e}"
);
#[cfg(target_arch = "x86_64")]
move_bytes!(
    move_1,
    reg_byte,
    "mov {via}, [{from} + {at}]",
    "mov [{to} + {at}], {via}"
);

/// Copies by moves of one size, of which the last overlaps the one before it.
///
/// # Safety
/// As of [`copy_message`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: each move requires that its bytes are among the `len` that the caller promises: it begins
    // at 0 of at least as many, ends at `len`, or begins before `last`, which is so many before `len`.
    unsafe {
        match len {
            16.. => {
                let last = len - 16;
                let mut at = 0;
                while at < last {
                    move_16(from, to, at);
                    at += 16;
                }
                move_16(from, to, last);
            }
            8 => move_8(from, to, 0),
            9..16 => {
                move_8(from, to, 0);
                move_8(from, to, len - 8);
            }
            4..8 => {
                move_4(from, to, 0);
                move_4(from, to, len - 4);
            }
            1..4 => {
                move_1(from, to, 0);
                move_1(from, to, len / 2);
                move_1(from, to, len - 1);
            }
            0 => {}
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_length_arrives_whole_and_nothing_beside_it() {
        check(copy_message);
        check(copy_arrived);
    }

    fn check(copy: unsafe fn(*const u8, *mut u8, usize)) {
        let from: Vec<u8> = (1..=250).cycle().take(9100).collect();
        for len in (0..=560).chain([1023, 1024, 1025, 4096, 4097, 9000]) {
            for (skip, place) in [(0, 8), (3, 13)] {
                let mut to = vec![0; 9100];
                // SAFETY: both hold `len` bytes from there on, and are different vectors.
                unsafe { copy(from.as_ptr().add(skip), to.as_mut_ptr().add(place), len) };
                assert_eq!(to[place..place + len], from[skip..skip + len], "{len} B");
                let beside = to[..place].iter().chain(&to[place + len..]);
                assert!(beside.copied().all(|byte| byte == 0), "{len} B");
            }
        }
    }
}
