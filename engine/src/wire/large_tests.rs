//! Exact bytes of large messages' frames, what is refused of them, and any bytes at all.

use super::*;
use proptest::prelude::*;

// A change here is a new version of the wire format.

#[test]
fn offer_bytes() {
    let id = LargeId(0x1413_1211);
    let (addr, tag) = (0x0807_0605_0403_0201, 0x100f_0e0d_0c0b_0a09);
    let offer = LargeOffer::new(id, tag, addr, 0x1817_1615, Rkey(0x1c1b_1a19)).unwrap();
    let mut bytes: [u8; 32] = std::array::from_fn(|i| u8::try_from(i + 1).unwrap());
    bytes[28..].fill(0);
    assert_eq!(offer.encode(), bytes);
    assert_eq!(LargeOffer::parse(&bytes), Ok(offer));
    assert_eq!(offer.region().access(), Access::REMOTE_READ);
}

#[test]
fn finish_bytes() {
    let id = LargeId(0x0403_0201);
    for (status, number) in [(FinishStatus::Done, 1), (FinishStatus::Refused, 2)] {
        let finish = Finish { id, status };
        assert_eq!(finish.encode(), [1, 2, 3, 4, number, 0, 0, 0]);
        assert_eq!(Finish::parse(&finish.encode()), Ok(finish));
    }
    assert_eq!(FinishStatus::ALL.map(FinishStatus::number), [1, 2]);
}

#[test]
fn offers_that_are_none() {
    let new = |addr, len| LargeOffer::new(LargeId(0), 0, addr, len, Rkey(1));
    for (addr, len) in [(4096, 0), (u64::MAX, 1), (u64::MAX - 99, 100)] {
        assert_eq!(new(addr, len), Err(LargeError::Region { addr, len }));
    }
    assert!(new(u64::MAX - 100, 100).is_ok());
    assert!(new(0, LARGE_BYTES_MAX).is_ok());
    let long = LARGE_BYTES_MAX + 1;
    assert_eq!(new(0, long), Err(LargeError::TooLong(long)));
    assert_eq!(new(u64::MAX, u32::MAX), Err(LargeError::TooLong(u32::MAX)));
    let good = new(4096, 9).unwrap().encode();
    let (must, seen) = (32, 31);
    let length = LargeError::Length { must, seen };
    assert_eq!(LargeOffer::parse(&good[..31]), Err(length));
    for at in 28..32 {
        let mut bytes = good;
        bytes[at] = 1;
        let reserved = LargeError::Reserved(1 << (8 * (at - 28)));
        assert_eq!(LargeOffer::parse(&bytes), Err(reserved));
    }
}

#[test]
fn ends_that_are_none() {
    let parse = |tail: [u8; 4]| Finish::parse(&[[1, 0, 0, 0], tail].concat());
    assert!(parse([1, 0, 0, 0]).is_ok());
    assert_eq!(parse([0, 0, 0, 0]), Err(LargeError::Status(0)));
    assert_eq!(parse([3, 0, 0, 0]), Err(LargeError::Status(3)));
    assert_eq!(parse([1, 1, 0, 0]), Err(LargeError::Status(257)));
    assert_eq!(parse([1, 0, 1, 0]), Err(LargeError::Reserved(1)));
    let (must, seen) = (8, 7);
    let length = LargeError::Length { must, seen };
    assert_eq!(Finish::parse(&[0; 7]), Err(length));
}

#[test]
fn errors_name_the_value() {
    let text = LargeError::TooLong(u32::MAX).to_string();
    assert!(
        text.contains("4294967295") && text.contains("1073741824"),
        "{text}"
    );
}

proptest! {
    #[test]
    fn offers_survive(id: u32, tag: u64, addr: u64, len: u32, rkey: u32) {
        let offer = LargeOffer::new(LargeId(id), tag, addr, len, Rkey(rkey));
        let valid = (1..=LARGE_BYTES_MAX).contains(&len) && addr.checked_add(len.into()).is_some();
        prop_assert_eq!(offer.is_ok(), valid);
        if let Ok(offer) = offer {
            prop_assert_eq!(LargeOffer::parse(&offer.encode()), Ok(offer));
            prop_assert_eq!((offer.id(), offer.tag()), (LargeId(id), tag));
            let region = offer.region();
            prop_assert_eq!((region.addr(), region.rkey()), (addr, Rkey(rkey)));
            prop_assert_eq!((offer.len_bytes(), region.len()), (len, len.into()));
        }
    }

    /// What is read of a frame with another byte somewhere is what that byte says.
    #[test]
    fn another_byte_is_read_or_refused(
        words: [u32; 4],
        len in 1..=LARGE_BYTES_MAX,
        at in 0..LargeOffer::BYTES,
        to in prop_oneof![any::<u8>(), 0..4_u8],
    ) {
        let [id, rkey, tag, addr] = words;
        let offer = LargeOffer::new(LargeId(id), tag.into(), addr.into(), len, Rkey(rkey));
        let mut bytes = offer.unwrap().encode();
        bytes[at] = to;
        match LargeOffer::parse(&bytes) {
            Ok(offer) => prop_assert_eq!(offer.encode(), bytes),
            Err(_) => prop_assert!([0..8, 20..24, 28..32].iter().any(|field| field.contains(&at))),
        }
        let finish = Finish { id: LargeId(id), status: FinishStatus::Done };
        let (mut bytes, at) = (finish.encode(), at % Finish::BYTES);
        bytes[at] = to;
        match Finish::parse(&bytes) {
            Ok(finish) => prop_assert_eq!(finish.encode(), bytes),
            Err(_) => prop_assert!(at >= 4),
        }
    }

    #[test]
    fn no_other_length_is_read(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        prop_assert!(bytes.len() == LargeOffer::BYTES || LargeOffer::parse(&bytes).is_err());
        prop_assert!(bytes.len() == Finish::BYTES || Finish::parse(&bytes).is_err());
    }
}
