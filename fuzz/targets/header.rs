//! Any bytes as a framed message: no panic, and what is read writes the same bytes again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spinwire::wire::{Finish, HEADER_BYTES, Header, Kind, LargeOffer, RegionId, RegionOffer};

fuzz_target!(|bytes: &[u8]| {
    let (header, payload) = match Header::parse(bytes) {
        Ok(parts) => parts,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let mut head = [0; HEADER_BYTES];
    header.encode(&mut head);
    assert_eq!([&head, payload].concat(), bytes);

    match header.kind {
        Kind::Credits => assert!(payload.is_empty()),
        Kind::Message | Kind::Request | Kind::Reply => {}
        Kind::Offer => match RegionOffer::parse(payload) {
            Ok(offer) => {
                assert_eq!(offer.encode(), payload);
                let region = offer.region();
                assert!(region.len() > 0);
                assert!(region.addr().checked_add(region.len()).is_some());
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        },
        // Targets of their own: see large.rs.
        Kind::Large => assert_eq!(payload.len(), LargeOffer::BYTES),
        Kind::Finish => assert_eq!(payload.len(), Finish::BYTES),
        Kind::Withdraw => {
            let id = RegionId::parse(payload).expect("the header vouches for the length");
            assert_eq!(id.encode(), payload);
        }
    }
});
