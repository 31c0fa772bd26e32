//! Any bytes as the offer or the end of a large message: no panic, what is read writes the same bytes
//! again, and every piece of what is offered can be named.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spinwire::limits::LARGE_BYTES_MAX;
use spinwire::wire::{Finish, LargeOffer};

fuzz_target!(|bytes: &[u8]| {
    match LargeOffer::parse(bytes) {
        Ok(offer) => {
            assert_eq!(offer.encode(), bytes);
            let (len, region) = (offer.len_bytes(), offer.region());
            assert!((1..=LARGE_BYTES_MAX).contains(&len));
            assert_eq!(region.len(), u64::from(len));
            assert!(region.addr().checked_add(region.len()).is_some());
            assert!(region.span(u64::from(len) - 1, 1).is_some());
            assert!(region.span(u64::from(len), 1).is_none());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match Finish::parse(bytes) {
        Ok(finish) => assert_eq!(finish.encode(), bytes),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
