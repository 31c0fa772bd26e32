//! Any bytes as a frame at the door of shared memory: no panic, what is read has its numbers in range, and
//! means the same when written again. What is asserted is with the frames, which nobody outside sees.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spinwire::fabric::shm::fuzz_frame;

fuzz_target!(|bytes: &[u8]| fuzz_frame(bytes));
