//! Frames come back as they were written, and nothing else is taken for one.

use super::*;
use proptest::prelude::*;

fn end() -> EndWords {
    EndWords {
        qp: QpNum(7),
        access: Access::REMOTE_READ | Access::REMOTE_WRITE,
        geometry: Geometry::DEFAULT,
        board_bytes: 16_384,
        bell: true,
        id: u64::MAX,
        params: ConnParams {
            private_data: PrivateData::of(b"hello"),
            responder_resources: 16,
            initiator_depth: 15,
            retry_count: 7,
            rnr_retry_count: 6,
        },
    }
}

fn grant() -> GrantWords {
    GrantWords {
        base: 0x7f00_0000_1000,
        len: 4097,
        map_bytes: 8192,
        access: Access::REMOTE_ATOMIC,
    }
}

fn every() -> Vec<Frame> {
    let full = PrivateData::of(&[9; PRIVATE_DATA_MAX]);
    let mut plain = end();
    plain.bell = false;
    plain.params.private_data = full;
    let mut frames = vec![
        Frame::Request(end()),
        Frame::Accept(plain),
        Frame::Mapped,
        Frame::Sealed,
        Frame::Confirm,
        Frame::Disconnect,
        Frame::Ask(Rkey(0xffff_fff1)),
        Frame::Grant(Rkey(3), None),
        Frame::Grant(Rkey(3), Some(grant())),
    ];
    frames.extend(Reason::ALL.map(|reason| Frame::Reject(reason, full)));
    frames
}

/// The frame with some bytes changed, as it is read.
fn changed(frame: &Frame, place: usize, bytes: &[u8]) -> Result<Frame, FrameError> {
    let mut sent = frame.encode();
    sent[place..place + bytes.len()].copy_from_slice(bytes);
    Frame::parse(&sent)
}

#[test]
fn frames_come_back() {
    for frame in every() {
        assert_eq!(Frame::parse(&frame.encode()), Ok(frame));
        assert!(can_be_said(&frame));
    }
}

#[test]
fn only_whole_frames_are_read() {
    for frame in every() {
        let bytes = frame.encode();
        for len in 0..FRAME_BYTES {
            assert_eq!(Frame::parse(&bytes[..len]), Err(Malformed), "{len}");
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert_eq!(Frame::parse(&longer), Err(Malformed));
    }
}

#[test]
fn other_versions_are_told_from_nonsense() {
    let request = Frame::Request(end());
    assert_eq!(changed(&request, 4, &[2]), Err(FrameError::Version));
    assert_eq!(changed(&request, 8, &[0; 8]), Err(FrameError::Version));
    assert_eq!(changed(&request, 0, b"HTTP"), Err(Malformed));
    assert_eq!(changed(&request, 6, &[0]), Err(Malformed));
    assert_eq!(changed(&request, 6, &[10]), Err(Malformed));
    // A rejection is understood in every version.
    let reject = Frame::Reject(Reason::Version, PrivateData::EMPTY);
    assert_eq!(changed(&reject, 4, &[9]), Ok(reject));
    let unknown = changed(&reject, 16, &[200]);
    let consumer = Frame::Reject(Reason::Consumer, PrivateData::EMPTY);
    assert_eq!(unknown, Ok(consumer));
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    let request = Frame::Request(end());
    let bad: [(usize, &[u8]); 13] = [
        (19, &[1]),                      // QP of more than 24 bits
        (20, &[32]),                     // a right that is none
        (23, &[8]),                      // retries
        (24, &[8]),                      // RNR retries
        (25, &[57]),                     // private data
        (25, &[4]),                      // private data behind its end
        (26, &[2]),                      // bell
        (27, &[1]),                      // reserved
        (28, &[255, 0, 0, 0]),           // cells
        (32, &[0, 0, 0, 128]),           // data
        (36, &[1]),                      // reserved
        (40, &[0; 8]),                   // no board
        (40, &[0, 0, 0, 0, 0, 1, 0, 0]), // a board of a tebibyte
    ];
    for (place, bytes) in bad {
        assert_eq!(changed(&request, place, bytes), Err(Malformed), "{place}");
    }
    for frame in every() {
        let last = changed(&frame, FRAME_BYTES - 1, &[1]);
        assert!(frame.kind() == Kind::Reject || last == Err(Malformed));
    }
    let grant = Frame::Grant(Rkey(3), Some(grant()));
    let bad: [(usize, &[u8]); 7] = [
        (20, &[64]),     // a right that is none
        (21, &[2]),      // neither yes nor no
        (22, &[1]),      // reserved
        (24, &[255; 8]), // wraps
        (32, &[0; 8]),   // empty
        (32, &[1, 32]),  // longer than its memory
        (40, &[255; 8]), // more than there is
    ];
    for (place, bytes) in bad {
        assert_eq!(changed(&grant, place, bytes), Err(Malformed), "{place}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..260)) {
        fuzz_frame(&bytes);
    }

    #[test]
    fn frames_with_changed_bytes_are_read_without_panic(
        which in 0..9_usize,
        changes in proptest::collection::vec((4..FRAME_BYTES, any::<u8>()), 1..6),
    ) {
        let mut bytes = every()[which].encode();
        for (place, byte) in changes {
            bytes[place] = byte;
        }
        fuzz_frame(&bytes);
    }
}
