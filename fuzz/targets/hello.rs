//! Any bytes as private data, of a request and of a reject: no panic, what is read means the same
//! when written again, and zeros behind it change nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spinwire::limits::PRIVATE_DATA_MAX;
use spinwire::wire::{Hello, MESSAGE_BYTES_MIN, POSTED_MIN, RECV_DEPTH_MIN, Refusal};

fuzz_target!(|bytes: &[u8]| {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().max(PRIVATE_DATA_MAX), 0);

    match Hello::parse(bytes) {
        Ok(hello) => {
            assert_eq!(Hello::parse(&hello.encode()), Ok(hello));
            assert_eq!(Hello::parse(&padded), Ok(hello));
            assert!(hello.recv_depth() >= RECV_DEPTH_MIN);
            assert!((POSTED_MIN..=hello.recv_depth()).contains(&hello.posted()));
            assert!(hello.message_bytes_max() >= MESSAGE_BYTES_MIN);
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            check(Refusal::from(error));
        }
    }
    if let Some(refusal) = Refusal::parse(bytes) {
        assert_eq!(Refusal::parse(&padded), Some(refusal));
        assert!(Hello::parse(bytes).is_err());
        check(refusal);
    }
});

/// A refusal that is sent arrives, and can be printed.
fn check(refusal: Refusal) {
    assert_eq!(Refusal::parse(&refusal.encode()), Some(refusal));
    assert!(!refusal.to_string().is_empty());
}
