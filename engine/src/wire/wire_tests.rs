//! Exact bytes, so that the format cannot change unnoticed; round trips; and any bytes at all.

use super::*;
use crate::fabric::PrivateData;
use crate::types::{Access, Rkey};
use proptest::prelude::*;

fn hello(recv_depth: u32, posted: u32, message_bytes_max: u32) -> Hello {
    Hello::new(recv_depth, posted, message_bytes_max).unwrap()
}

fn frame(header: Header, payload: &[u8]) -> Vec<u8> {
    let mut head = [0xff; HEADER_BYTES];
    header.encode(&mut head);
    [&head, payload].concat()
}

/// As InfiniBand delivers private data of a request.
fn padded(data: &[u8]) -> [u8; PRIVATE_DATA_MAX] {
    let mut padded = [0; PRIVATE_DATA_MAX];
    padded[..data.len()].copy_from_slice(data);
    padded
}

// Exact bytes. A change here is a new version of the wire format.

#[test]
fn header_bytes() {
    let header = |kind, posted, request_id| Header {
        kind,
        posted,
        request_id,
    };
    let table: [(Header, [u8; 16]); 8] = [
        (
            header(Kind::Credits, 0, 0),
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
        (
            header(Kind::Message, 1, 0),
            [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
        (
            header(Kind::Request, 0x0403_0201, 0x0c0b_0a09_0807_0605),
            [2, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        ),
        (
            header(Kind::Reply, u32::MAX, u64::MAX - 1),
            [
                3, 0, 0, 0, 255, 255, 255, 255, 254, 255, 255, 255, 255, 255, 255, 255,
            ],
        ),
        (
            header(Kind::Offer, 256, 0),
            [4, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
        (
            header(Kind::Withdraw, 1 << 31, 0),
            [5, 0, 0, 0, 0, 0, 0, 128, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
        (
            header(Kind::Large, 2, 0),
            [6, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
        (
            header(Kind::Finish, 3, 0),
            [7, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
    ];
    assert_eq!(table.map(|(header, _)| header.kind), Kind::ALL);
    for (header, bytes) in table {
        assert_eq!(frame(header, &[]), bytes);
        let payload = vec![0; header.kind.payload_bytes().unwrap_or(3)];
        let frame = [&bytes[..], &payload].concat();
        assert_eq!(Header::parse(&frame), Ok((header, &payload[..])));
    }
}

#[test]
fn region_bytes() {
    let offer = RegionOffer::new(
        RegionId(0x0807_0605_0403_0201),
        0x100f_0e0d_0c0b_0a09,
        0x1817_1615_1413_1211,
        Rkey(0x1c1b_1a19),
        Access::REMOTE_READ | Access::REMOTE_WRITE | Access::LOCAL_WRITE,
        0x201f,
    )
    .unwrap();
    let mut bytes: [u8; 32] = std::array::from_fn(|i| u8::try_from(i + 1).unwrap());
    bytes[28..30].copy_from_slice(&[3, 0]);
    assert_eq!(offer.encode(), bytes);
    assert_eq!(RegionOffer::parse(&bytes), Ok(offer));
    assert_eq!(offer.id().encode(), [1, 2, 3, 4, 5, 6, 7, 8]);
    let region = offer.region();
    assert!(
        !region.access().contains(Access::LOCAL_WRITE),
        "not the peer's"
    );
    for (access, bits) in [
        (Access::REMOTE_READ, 1),
        (Access::REMOTE_WRITE, 2),
        (Access::REMOTE_ATOMIC, 4),
    ] {
        let (addr, len) = (region.addr(), region.len());
        let offer = RegionOffer::new(offer.id(), addr, len, region.rkey(), access, 0).unwrap();
        assert_eq!(offer.encode()[28..], [bits, 0, 0, 0]);
    }
}

#[test]
fn hello_bytes() {
    let hello = hello(0x0c0b_0a09, 0x0403_0201, 0x0807_0605)
        .with_features(Features::from_bits(0x100f_0e0d));
    let bytes = [
        b'S', b'P', b'W', b'H', 1, 24, 0, 0, 13, 14, 15, 16, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
    ];
    assert_eq!(hello.encode(), bytes);
    assert_eq!(Hello::parse(&bytes), Ok(hello));
}

#[test]
fn refusal_bytes() {
    let table: [(Refusal, [u8; 12]); 8] = [
        (Refusal::NoHello, [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (
            Refusal::NotSpinwire(*b"NVMe"),
            [1, 2, 0, 0, b'N', b'V', b'M', b'e', 0, 0, 0, 0],
        ),
        (
            Refusal::Version {
                refuser: 1,
                refused: 9,
            },
            [1, 3, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0],
        ),
        (
            Refusal::BadHello {
                field: HelloField::RecvDepth,
                value: 0x0403_0201,
            },
            [1, 4, 0, 0, 5, 0, 0, 0, 1, 2, 3, 4],
        ),
        (Refusal::Full, [1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (Refusal::ShuttingDown, [1, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (
            Refusal::Unwilling { code: 0x0403_0201 },
            [1, 7, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0],
        ),
        (
            Refusal::Unknown {
                version: 2,
                code: 8,
                details: [1, 2],
            },
            [2, 8, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0],
        ),
    ];
    for (refusal, tail) in table {
        let bytes = [&b"SPWR"[..], &tail].concat();
        assert_eq!(refusal.encode()[..], bytes);
        assert_eq!(Refusal::parse(&bytes), Some(refusal));
    }
    let numbers = HelloField::ALL.map(HelloField::number);
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
}

// What is refused, and how.

#[test]
fn headers_that_are_none() {
    let good = frame(
        Header {
            kind: Kind::Message,
            posted: 4,
            request_id: 0,
        },
        b"x",
    );
    let with = |at: usize, byte: u8| {
        let mut frame = good.clone();
        frame[at] = byte;
        frame
    };
    let payload = |kind, must, seen| Err(HeaderError::Payload { kind, must, seen });
    assert_eq!(Header::parse(&[]), Err(HeaderError::Short(0)));
    assert_eq!(Header::parse(&good[..15]), Err(HeaderError::Short(15)));
    assert_eq!(Header::parse(&with(0, 8)), Err(HeaderError::Kind(8)));
    assert_eq!(Header::parse(&with(0, 255)), Err(HeaderError::Kind(255)));
    assert_eq!(Header::parse(&with(1, 128)), Err(HeaderError::Flags(128)));
    assert_eq!(
        Header::parse(&with(3, 1)),
        Err(HeaderError::Reserved(0x0100))
    );
    assert_eq!(Header::parse(&with(0, 0)), payload(Kind::Credits, 0, 1));
    assert_eq!(Header::parse(&with(0, 4)), payload(Kind::Offer, 32, 1));
    assert_eq!(Header::parse(&with(0, 5)), payload(Kind::Withdraw, 8, 1));
    assert_eq!(Header::parse(&with(0, 6)), payload(Kind::Large, 32, 1));
    assert_eq!(Header::parse(&with(0, 7)), payload(Kind::Finish, 8, 1));
    assert!(Header::parse(&good[..16]).is_ok(), "an empty message");
}

#[test]
fn offers_that_are_none() {
    let new = |addr, len, access| {
        RegionOffer::new(RegionId(1), addr, len, Rkey(2), access, 0).map(|o| o.encode())
    };
    let read = Access::REMOTE_READ;
    for (addr, len) in [(4096, 0), (u64::MAX, 1), (1, u64::MAX)] {
        let region = OfferError::Region { addr, len };
        assert_eq!(new(addr, len, read), Err(region));
    }
    assert_eq!(new(0, 1, Access::NONE), Err(OfferError::NoRight));
    assert_eq!(new(0, 1, Access::LOCAL_WRITE), Err(OfferError::NoRight));
    assert!(new(u64::MAX - 1, 1, read).is_ok());
    let good = new(0, u64::MAX, read).unwrap();
    let parse_with = |rights: u16| {
        let mut bytes = good;
        bytes[28..30].copy_from_slice(&rights.to_le_bytes());
        RegionOffer::parse(&bytes)
    };
    assert_eq!(parse_with(0), Err(OfferError::NoRight));
    for rights in [8, 9, 0x8001] {
        assert_eq!(parse_with(rights), Err(OfferError::UnknownRight(rights)));
    }
    assert_eq!(RegionOffer::parse(&good[..31]), Err(OfferError::Length(31)));
    assert_eq!(RegionOffer::parse(&[0; 33]), Err(OfferError::Length(33)));
    assert_eq!(RegionId::parse(&[0; 7]), None);
    assert_eq!(RegionId::parse(&[0; 9]), None);
}

#[test]
fn hellos_that_are_none() {
    let good = hello(8, 6, 4096).encode();
    let parse_with = |at: usize, new: &[u8]| {
        let mut bytes = padded(&good);
        bytes[at..at + new.len()].copy_from_slice(new);
        Hello::parse(&bytes)
    };
    let field = |field, value| Err(HelloError::Field { field, value });
    assert_eq!(Hello::parse(&[]), Err(HelloError::Silent));
    assert_eq!(Hello::parse(&[0; 56]), Err(HelloError::Silent));
    assert_eq!(Hello::parse(b"GET"), Err(HelloError::Stranger(*b"GET\0")));
    assert_eq!(parse_with(0, b"rpng"), Err(HelloError::Stranger(*b"rpng")));
    assert_eq!(parse_with(3, b"R"), Err(HelloError::Stranger(*b"SPWR")));
    let version = |theirs| Err(HelloError::Version { ours: 1, theirs });
    assert_eq!(parse_with(4, &[2]), version(2));
    assert_eq!(Hello::parse(b"SPWH"), version(0));
    assert_eq!(parse_with(5, &[23]), field(HelloField::Len, 23));
    assert_eq!(parse_with(5, &[57]), field(HelloField::Len, 57));
    assert_eq!(Hello::parse(&good[..23]), field(HelloField::Len, 24));
    assert_eq!(parse_with(7, &[1]), field(HelloField::Reserved, 256));
    assert_eq!(parse_with(12, &[1]), field(HelloField::Posted, 1));
    assert_eq!(parse_with(12, &[9]), field(HelloField::Posted, 9));
    assert_eq!(
        parse_with(16, &[47, 0]),
        field(HelloField::MessageBytesMax, 47)
    );
    assert_eq!(parse_with(20, &[3]), field(HelloField::RecvDepth, 3));
    assert_eq!(
        parse_with(20, &[1, 0, 0, 64]),
        field(HelloField::RecvDepth, RECV_DEPTH_MAX + 1)
    );
    assert!(Hello::new(RECV_DEPTH_MIN, POSTED_MIN, MESSAGE_BYTES_MIN).is_ok());
    assert!(Hello::new(RECV_DEPTH_MAX, RECV_DEPTH_MAX, u32::MAX).is_ok());
}

/// A later release of the same version may send more behind the fields known here.
#[test]
fn a_longer_hello_is_read_as_far_as_it_is_known() {
    let hello = hello(8, 8, 4096);
    let mut bytes = padded(&hello.encode());
    bytes[5] = 40;
    bytes[24..40].fill(0xee);
    assert_eq!(Hello::parse(&bytes), Ok(hello));
    assert_eq!(Hello::parse(&bytes[..40]), Ok(hello));
    assert!(Hello::parse(&bytes[..39]).is_err());
    bytes[5] = 56;
    assert_eq!(Hello::parse(&bytes), Ok(hello));
}

#[test]
fn features_are_those_of_both() {
    let [a, b] = [0b0110, 0b1100].map(Features::from_bits);
    assert_eq!(a.common(b), b.common(a));
    assert_eq!(a.common(b).bits(), 0b0100);
    assert!(a.contains(Features::from_bits(0b0100)) && !a.contains(b));
    assert!(a.contains(Features::NONE) && !Features::NONE.contains(a));
}

#[test]
fn rejections_by_others_are_none_of_ours() {
    for data in [
        &b""[..],
        b"SPWR",
        b"no",
        &[0; 148],
        b"SPWH\x01\x18..............",
    ] {
        assert_eq!(Refusal::parse(data), None);
    }
}

#[test]
fn what_cannot_be_read_further_is_shown_by_number() {
    for (code, details) in [
        (0, [0, 0]),
        (3, [1, 256]),
        (4, [6, 1]),
        (8, [0, 0]),
        (255, [1, 2]),
    ] {
        let unknown = Refusal::Unknown {
            version: 3,
            code,
            details,
        };
        assert_eq!(Refusal::parse(&unknown.encode()), Some(unknown));
        assert!(unknown.to_string().contains(&format!("code {code} ")));
    }
    // A newer peer that refuses our version is understood all the same.
    let mut bytes = Refusal::from(HelloError::Version { ours: 2, theirs: 1 }).encode();
    bytes[4] = 2;
    let (refuser, refused) = (2, 1);
    let version = Refusal::Version { refuser, refused };
    assert_eq!(Refusal::parse(&bytes), Some(version));
}

#[test]
fn a_hello_that_fails_gives_its_refusal() {
    let field = HelloField::Posted;
    for (error, refusal) in [
        (HelloError::Silent, Refusal::NoHello),
        (
            HelloError::Stranger(*b"abcd"),
            Refusal::NotSpinwire(*b"abcd"),
        ),
        (
            HelloError::Version { ours: 1, theirs: 2 },
            Refusal::Version {
                refuser: 1,
                refused: 2,
            },
        ),
        (
            HelloError::Field { field, value: 1 },
            Refusal::BadHello { field, value: 1 },
        ),
    ] {
        assert_eq!(Refusal::from(error), refusal);
    }
}

#[test]
fn messages_name_the_value_and_the_way_out() {
    let field = HelloField::RecvDepth;
    for (text, parts) in [
        (
            HelloError::Field { field, value: 3 }.to_string(),
            ["3", "recv_depth (4 to 1073741824)"],
        ),
        (
            HelloError::Stranger(*b"NVMe").to_string(),
            ["[4e, 56, 4d, 65]", "raw mode"],
        ),
        (
            Refusal::BadHello { field, value: 3 }.to_string(),
            ["3", "recv_depth (4 to 1073741824)"],
        ),
        (Refusal::Full.to_string(), ["no place", "connections_max"]),
        (
            Refusal::Unwilling { code: 77 }.to_string(),
            ["77", "documentation or log"],
        ),
        (HeaderError::Kind(9).to_string(), ["kind 9", "not known"]),
    ] {
        for part in parts {
            assert!(text.contains(part), "{text}: no {part}");
        }
    }
}

// Round trips, and any bytes.

fn kinds() -> impl Strategy<Value = Kind> {
    prop::sample::select(&Kind::ALL[..])
}

fn hellos() -> impl Strategy<Value = Hello> {
    (
        RECV_DEPTH_MIN..=RECV_DEPTH_MAX,
        MESSAGE_BYTES_MIN..,
        any::<u32>(),
    )
        .prop_flat_map(|(depth, bytes, features)| {
            (POSTED_MIN..=depth).prop_map(move |posted| {
                hello(depth, posted, bytes).with_features(Features::from_bits(features))
            })
        })
}

fn refusals() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        Just(Refusal::NoHello),
        any::<[u8; 4]>().prop_map(Refusal::NotSpinwire),
        any::<(u8, u8)>().prop_map(|(refuser, refused)| Refusal::Version { refuser, refused }),
        (prop::sample::select(&HelloField::ALL[..]), any::<u32>())
            .prop_map(|(field, value)| Refusal::BadHello { field, value }),
        Just(Refusal::Full),
        Just(Refusal::ShuttingDown),
        any::<u32>().prop_map(|code| Refusal::Unwilling { code }),
        (any::<u8>(), 8u8.., any::<[u32; 2]>()).prop_map(|(version, code, details)| {
            Refusal::Unknown {
                version,
                code,
                details,
            }
        }),
    ]
}

/// Any bytes, and bytes that begin like something of ours.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let tail = || prop::collection::vec(any::<u8>(), 0..80);
    let begins = prop::sample::select(vec![
        &b"SPWH\x01\x18\0\0"[..],
        b"SPWH",
        b"SPWR",
        b"\x00\0\0\0",
        b"\x04\0\0\0",
        b"\x05\0\0\0",
    ]);
    prop_oneof![
        tail(),
        (begins, tail()).prop_map(|(begin, tail)| [begin, &tail].concat()),
    ]
}

proptest! {
    #[test]
    fn headers_survive(
        kind in kinds(),
        posted: u32,
        request_id: u64,
        payload in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let header = Header { kind, posted, request_id };
        let mut payload = payload;
        if let Some(must) = kind.payload_bytes() {
            payload.resize(must, 7);
        }
        let frame = frame(header, &payload);
        prop_assert_eq!(Header::parse(&frame), Ok((header, &payload[..])));
    }

    #[test]
    fn offers_survive(id: u64, addr: u64, len: u64, rkey: u32, rights in 1usize..8, kind: u16) {
        let access = [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC]
            .into_iter()
            .enumerate()
            .filter(|(i, _)| rights & (1 << i) != 0)
            .fold(Access::NONE, |all, (_, right)| all | right);
        match RegionOffer::new(RegionId(id), addr, len, Rkey(rkey), access, kind) {
            Ok(offer) => {
                prop_assert_eq!(RegionOffer::parse(&offer.encode()), Ok(offer));
                let region = offer.region();
                prop_assert_eq!((region.addr(), region.len()), (addr, len));
                prop_assert_eq!((region.rkey(), region.access()), (Rkey(rkey), access));
                prop_assert_eq!(offer.kind(), kind);
                prop_assert_eq!(RegionId::parse(&offer.id().encode()), Some(RegionId(id)));
            }
            Err(error) => {
                prop_assert_eq!(error, OfferError::Region { addr, len });
                prop_assert!(len == 0 || addr.checked_add(len).is_none());
            }
        }
    }

    #[test]
    fn hellos_survive(hello in hellos()) {
        let bytes = hello.encode();
        prop_assert_eq!(Hello::parse(&bytes), Ok(hello));
        prop_assert_eq!(Hello::parse(&padded(&bytes)), Ok(hello));
        let sent = PrivateData::new(&bytes).unwrap();
        prop_assert_eq!(Hello::parse(sent.as_slice()), Ok(hello));
        prop_assert_eq!(Refusal::parse(&padded(&bytes)), None);
    }

    #[test]
    fn refusals_survive(refusal in refusals()) {
        let bytes = refusal.encode();
        prop_assert_eq!(Refusal::parse(&bytes), Some(refusal));
        prop_assert_eq!(Refusal::parse(&padded(&bytes)), Some(refusal));
        prop_assert!(Hello::parse(&bytes).is_err());
    }

    #[test]
    fn any_frame_is_read_or_not(bytes in bytes()) {
        if let Ok((header, payload)) = Header::parse(&bytes) {
            prop_assert_eq!(&frame(header, payload), &bytes);
            if header.kind == Kind::Withdraw {
                prop_assert!(RegionId::parse(payload).is_some());
            }
        }
        if let Ok(offer) = RegionOffer::parse(&bytes) {
            prop_assert_eq!(&offer.encode()[..], &bytes);
        }
    }

    #[test]
    fn any_private_data_is_read_or_not(bytes in bytes()) {
        match Hello::parse(&bytes) {
            Ok(hello) => {
                prop_assert_eq!(Hello::parse(&hello.encode()), Ok(hello));
                prop_assert!(hello.posted() <= hello.recv_depth());
            }
            Err(error) => {
                let refusal = Refusal::from(error);
                prop_assert_eq!(Refusal::parse(&refusal.encode()), Some(refusal));
            }
        }
        if let Some(refusal) = Refusal::parse(&bytes) {
            prop_assert_eq!(Refusal::parse(&refusal.encode()), Some(refusal));
            prop_assert!(!refusal.to_string().is_empty());
        }
    }

    /// Zeros behind it change neither a hello nor a refusal.
    #[test]
    fn padding_changes_nothing(bytes in bytes(), zeros in 0usize..60) {
        let longer = [&bytes[..], &vec![0; zeros]].concat();
        if let Ok(hello) = Hello::parse(&bytes) {
            prop_assert_eq!(Hello::parse(&longer), Ok(hello));
        }
        if let Some(refusal) = Refusal::parse(&bytes) {
            prop_assert_eq!(Refusal::parse(&longer), Some(refusal));
        }
    }
}
