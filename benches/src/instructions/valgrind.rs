//! What the counted program says to valgrind: count from here, count up to here.
//!
//! A client request is a sequence of instructions that does nothing on a processor and that valgrind
//! knows (`valgrind.h`, `callgrind.h`). Without valgrind the calls have no effect.
#![allow(unsafe_code, reason = "the sequence has no name in Rust")]

/// `VG_USERREQ_TOOL_BASE('C', 'T')` and what `callgrind.h` counts from there.
const CALLGRIND: u64 = 0x4354_0000;
const TOGGLE_COLLECT: u64 = CALLGRIND + 2;
const START_INSTRUMENTATION: u64 = CALLGRIND + 4;
const STOP_INSTRUMENTATION: u64 = CALLGRIND + 5;

/// From here on calls are followed; before, the program runs faster.
pub(crate) fn start_instrumentation() {
    request(START_INSTRUMENTATION);
}

/// The rest is not followed.
pub(crate) fn stop_instrumentation() {
    request(STOP_INSTRUMENTATION);
}

/// Instructions are counted from here on, or no longer.
#[inline]
pub(crate) fn toggle_counting() {
    request(TOGGLE_COLLECT);
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn request(code: u64) {
    let words: [u64; 6] = [code, 0, 0, 0, 0, 0];
    // SAFETY: on a processor the sequence rotates rdi by 128 bits in all and exchanges rbx with
    // itself, so it changes flags only, which are clobbered by default. Under valgrind it also reads
    // the six words that rax points to, which live here, and writes rdx, which is an output.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") words.as_ptr(),
            inout("rdx") 0u64 => _,
            options(nostack)
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn request(_: u64) {}
