//! Frames that doors exchange: fixed size, fixed places, little-endian, every number checked on reading.
//!
//! ```text
//!    0       4         6      8        16                                             56        112    128
//!    ├───────┼─────────┼──────┼────────┼──────────────────────────────────────────────┼─────────┼──────┤
//!    │ magic │ version │ kind │ layout │ body                                         │ private │ 0    │
//!    │ SPWD  │ u16     │ u16  │ u64    │                                              │ data    │      │
//!
//!   16 .. 56 of REQUEST, ACCEPT    qp u32 │ access │ resources │ depth │ retries │ rnr retries │ private len │
//!                                  bell │ 0 │ cells u32 │ data_bytes u32 │ 0 u32 │ board u64 │ id u64
//!            of REJECT             reason u32 │ private len u8        in every version at these places
//!            of ASK                rkey u32
//!            of GRANT              rkey u32 │ access │ granted │ 0 u16 │ base u64 │ len u64 │ map_bytes u64
//!            of the others         nothing
//! ```
//! What has no meaning is zero, so a frame can be written in one way only. `layout` stands for all that
//! both ends must agree on and no frame says: the inbox, the board, the machine's words.
//!
//! Descriptors travel beside: of REQUEST and ACCEPT the inbox, the board and, if it says so, the bell; of a
//! GRANT that grants, the memory. Imports types and the geometry of an inbox. Imported by link and mod.

use crate::fabric::shm::geometry::{CELL_BYTES, Geometry, HEADER_BYTES, UNIT_BYTES};
use crate::fabric::{ConnParams, PrivateData};
use crate::limits::PRIVATE_DATA_MAX;
use crate::types::{Access, QpNum, Rkey};

/// Bytes of a frame.
pub(super) const FRAME_BYTES: usize = 128;
/// Version of the frames.
const VERSION: u16 = 1;
/// Raised when the inbox or the board means something else than before.
const LAYOUT_REVISION: u64 = 1;
const MAGIC: [u8; 4] = *b"SPWD";
/// Where private data begins; it ends at `TAIL`, and zeros follow.
const DATA: usize = 56;
const TAIL: usize = DATA + PRIVATE_DATA_MAX;

/// Bytes of a board.
const BOARD_BYTES: std::ops::RangeInclusive<u64> = 4..=1 << 20;
/// Bytes of a region: the most, far beyond what a host has.
const REGION_BYTES_MAX: u64 = 1 << 44;
/// QP numbers are of 24 bits.
const QP_MAX: u32 = (1 << 24) - 1;
/// Retries are of 3 bits.
const RETRIES_MAX: u8 = 7;

const _: () = assert!(TAIL < FRAME_BYTES && PRIVATE_DATA_MAX <= u8::MAX as usize);

/// Equal at both ends, or they do not understand each other.
const LAYOUT: u64 = {
    let words = [
        LAYOUT_REVISION,
        HEADER_BYTES as u64,
        CELL_BYTES as u64,
        UNIT_BYTES as u64,
        size_of::<usize>() as u64,
        cfg!(target_endian = "little") as u64,
    ];
    // FNV-1a, by words.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < words.len() {
        hash = (hash ^ words[at]).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    hash
};

/// Why a request is refused, in the numbers of IB (IBTA 12.6.7.2), as rdma_cm gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The request makes no sense.
    Unsupported = 5,
    /// Nobody listens.
    NobodyListens = 8,
    /// The consumer said so.
    Consumer = 28,
    /// The peer is of another version.
    Version = 31,
}

impl Reason {
    const ALL: [Self; 4] = [
        Self::Unsupported,
        Self::NobodyListens,
        Self::Consumer,
        Self::Version,
    ];

    /// The status of the event.
    pub(super) fn status(self) -> i32 {
        self as i32
    }

    /// What later versions may say is the consumer's word.
    fn from_number(number: u32) -> Self {
        let found = |reason: &Self| u32::try_from(reason.status()) == Ok(number);
        Self::ALL.into_iter().find(found).unwrap_or(Self::Consumer)
    }
}

/// What a frame is, without what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Request = 1,
    Accept = 2,
    Mapped = 3,
    Sealed = 4,
    Confirm = 5,
    Reject = 6,
    Disconnect = 7,
    Ask = 8,
    Grant = 9,
}

impl Kind {
    pub(super) const ALL: [Self; 9] = [
        Self::Request,
        Self::Accept,
        Self::Mapped,
        Self::Sealed,
        Self::Confirm,
        Self::Reject,
        Self::Disconnect,
        Self::Ask,
        Self::Grant,
    ];

    fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u16 == number)
    }
}

/// An end as it tells its peer. Read ones are checked: every number is in its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndWords {
    pub(super) qp: QpNum,
    pub(super) access: Access,
    pub(super) geometry: Geometry,
    pub(super) board_bytes: usize,
    pub(super) bell: bool,
    /// What the active end calls itself; of no meaning here.
    pub(super) id: u64,
    pub(super) params: ConnParams,
}

/// A region as it is granted. Read ones are checked: `0 < len <= map_bytes`, and `base + len` does not wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GrantWords {
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) map_bytes: usize,
    pub(super) access: Access,
}

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// The active end asks for a connection.
    Request(EndWords),
    /// The passive end agrees, and has mapped what the request brought.
    Accept(EndWords),
    /// The active end has mapped what the answer brought, and sealed its own inbox.
    Mapped,
    /// The passive end has sealed its inbox.
    Sealed,
    /// The active end is up.
    Confirm,
    /// There will be no connection.
    Reject(Reason, PrivateData),
    /// The connection ends; each end says so once.
    Disconnect,
    /// May I map the region of this key?
    Ask(Rkey),
    /// Yes, or no.
    Grant(Rkey, Option<GrantWords>),
}

/// Bytes that are no frame of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameError {
    /// A frame, but of another version or another kind of machine.
    Version,
    /// No frame, or one with a number that cannot be.
    Malformed,
}

use FrameError::Malformed;

impl Frame {
    /// What it is.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Request(_) => Kind::Request,
            Self::Accept(_) => Kind::Accept,
            Self::Mapped => Kind::Mapped,
            Self::Sealed => Kind::Sealed,
            Self::Confirm => Kind::Confirm,
            Self::Reject(..) => Kind::Reject,
            Self::Disconnect => Kind::Disconnect,
            Self::Ask(_) => Kind::Ask,
            Self::Grant(..) => Kind::Grant,
        }
    }

    /// Descriptors that come with it.
    pub(super) fn fds(&self) -> usize {
        match self {
            Self::Request(end) | Self::Accept(end) => 2 + usize::from(end.bell),
            Self::Grant(_, Some(_)) => 1,
            Self::Mapped
            | Self::Sealed
            | Self::Confirm
            | Self::Reject(..)
            | Self::Disconnect
            | Self::Ask(_)
            | Self::Grant(_, None) => 0,
        }
    }

    /// As it travels.
    pub(super) fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        put(&mut bytes, 0, MAGIC);
        put(&mut bytes, 4, VERSION.to_le_bytes());
        put(&mut bytes, 6, (self.kind() as u16).to_le_bytes());
        put(&mut bytes, 8, LAYOUT.to_le_bytes());
        match self {
            Self::Request(end) | Self::Accept(end) => end.write(&mut bytes),
            Self::Reject(reason, data) => {
                put(&mut bytes, 16, reason.status().to_le_bytes());
                bytes[20] = put_data(&mut bytes, data);
            }
            Self::Ask(rkey) => put(&mut bytes, 16, rkey.0.to_le_bytes()),
            Self::Grant(rkey, grant) => {
                put(&mut bytes, 16, rkey.0.to_le_bytes());
                if let Some(grant) = grant {
                    bytes[20] = access_bits(grant.access);
                    bytes[21] = 1;
                    put(&mut bytes, 24, grant.base.to_le_bytes());
                    put(&mut bytes, 32, grant.len.to_le_bytes());
                    put(&mut bytes, 40, (grant.map_bytes as u64).to_le_bytes());
                }
            }
            Self::Mapped | Self::Sealed | Self::Confirm | Self::Disconnect => {}
        }
        bytes
    }

    /// Reads what a peer sent.
    ///
    /// # Errors
    /// It is no frame, or none that this version understands.
    pub(super) fn parse(sent: &[u8]) -> Result<Self, FrameError> {
        let Some(head) = sent.first_chunk::<16>() else {
            return Err(Malformed);
        };
        if at(head, 0) != MAGIC {
            return Err(Malformed);
        }
        let kind = Kind::from_number(u16::from_le_bytes(at(head, 6)));
        let ours =
            u16::from_le_bytes(at(head, 4)) == VERSION && u64::from_le_bytes(at(head, 8)) == LAYOUT;
        if !ours && kind != Some(Kind::Reject) {
            return Err(FrameError::Version);
        }
        let bytes: &[u8; FRAME_BYTES] = sent.try_into().map_err(|_| Malformed)?;
        let (used, frame) = match kind.ok_or(Malformed)? {
            Kind::Request => (TAIL, Self::Request(EndWords::read(bytes)?)),
            Kind::Accept => (TAIL, Self::Accept(EndWords::read(bytes)?)),
            Kind::Mapped => (16, Self::Mapped),
            Kind::Sealed => (16, Self::Sealed),
            Kind::Confirm => (16, Self::Confirm),
            Kind::Reject => {
                let reason = Reason::from_number(u32::from_le_bytes(at(bytes, 16)));
                // What a later version puts elsewhere is not looked at.
                return Ok(Self::Reject(reason, data(bytes, bytes[20])?));
            }
            Kind::Disconnect => (16, Self::Disconnect),
            Kind::Ask => (20, Self::Ask(Rkey(u32::from_le_bytes(at(bytes, 16))))),
            Kind::Grant => {
                let rkey = Rkey(u32::from_le_bytes(at(bytes, 16)));
                match bytes[21] {
                    0 => (20, Self::Grant(rkey, None)),
                    1 => (48, Self::Grant(rkey, Some(GrantWords::read(bytes)?))),
                    _ => return Err(Malformed),
                }
            }
        };
        all_zero(&bytes[used..]).then_some(frame).ok_or(Malformed)
    }
}

impl EndWords {
    fn write(&self, bytes: &mut [u8; FRAME_BYTES]) {
        let params = &self.params;
        put(bytes, 16, self.qp.0.to_le_bytes());
        let len = put_data(bytes, &params.private_data);
        let octets = [
            access_bits(self.access),
            params.responder_resources,
            params.initiator_depth,
            params.retry_count,
            params.rnr_retry_count,
            len,
            u8::from(self.bell),
        ];
        put(bytes, 20, octets);
        put(bytes, 28, self.geometry.cells.to_le_bytes());
        put(bytes, 32, self.geometry.data_bytes.to_le_bytes());
        put(bytes, 40, (self.board_bytes as u64).to_le_bytes());
        put(bytes, 48, self.id.to_le_bytes());
    }

    fn read(bytes: &[u8; FRAME_BYTES]) -> Result<Self, FrameError> {
        let qp = u32::from_le_bytes(at(bytes, 16));
        let [access, resources, depth, retries, rnr_retries, len, bell] = at(bytes, 20);
        let geometry = Geometry {
            cells: u32::from_le_bytes(at(bytes, 28)),
            data_bytes: u32::from_le_bytes(at(bytes, 32)),
        };
        let board = u64::from_le_bytes(at(bytes, 40));
        let good = qp <= QP_MAX
            && retries <= RETRIES_MAX
            && rnr_retries <= RETRIES_MAX
            && bell <= 1
            && BOARD_BYTES.contains(&board)
            && bytes[27] == 0
            && all_zero(&bytes[36..40]);
        if !good {
            return Err(Malformed);
        }
        Ok(Self {
            qp: QpNum(qp),
            access: access_from(access).ok_or(Malformed)?,
            geometry: geometry.check().map_err(|_| Malformed)?,
            board_bytes: usize::try_from(board).map_err(|_| Malformed)?,
            bell: bell == 1,
            id: u64::from_le_bytes(at(bytes, 48)),
            params: ConnParams {
                private_data: data(bytes, len)?,
                responder_resources: resources,
                initiator_depth: depth,
                retry_count: retries,
                rnr_retry_count: rnr_retries,
            },
        })
    }
}

impl GrantWords {
    fn read(bytes: &[u8; FRAME_BYTES]) -> Result<Self, FrameError> {
        let base = u64::from_le_bytes(at(bytes, 24));
        let len = u64::from_le_bytes(at(bytes, 32));
        let map_bytes = u64::from_le_bytes(at(bytes, 40));
        let good = len > 0
            && len <= map_bytes
            && map_bytes <= REGION_BYTES_MAX
            && base.checked_add(len).is_some()
            && all_zero(&bytes[22..24]);
        if !good {
            return Err(Malformed);
        }
        Ok(Self {
            base,
            len,
            map_bytes: usize::try_from(map_bytes).map_err(|_| Malformed)?,
            access: access_from(bytes[20]).ok_or(Malformed)?,
        })
    }
}

/// What is in reach of this format; a door refuses its own caller anything else.
pub(super) fn can_be_said(frame: &Frame) -> bool {
    Frame::parse(&frame.encode()).as_ref() == Ok(frame)
}

/// Rights and their bits, which are those of [`Access`] today and stay if those change.
const RIGHTS: [(Access, u8); 5] = [
    (Access::LOCAL_WRITE, 1),
    (Access::REMOTE_READ, 2),
    (Access::REMOTE_WRITE, 4),
    (Access::REMOTE_ATOMIC, 8),
    (Access::WINDOWS, 16),
];

fn access_bits(access: Access) -> u8 {
    let had = RIGHTS.iter().filter(|(right, _)| access.contains(*right));
    had.fold(0, |bits, (_, bit)| bits | bit)
}

fn access_from(bits: u8) -> Option<Access> {
    let had = RIGHTS.iter().filter(|(_, bit)| bits & bit != 0);
    let access = had.fold(Access::NONE, |access, (right, _)| access | *right);
    (access_bits(access) == bits).then_some(access)
}

/// The private data's length, once it is in its place.
fn put_data(bytes: &mut [u8; FRAME_BYTES], data: &PrivateData) -> u8 {
    // No constructor for data to send gives more, and what came from elsewhere is cut as IB would.
    let given = data.as_slice();
    let given = &given[..given.len().min(PRIVATE_DATA_MAX)];
    bytes[DATA..DATA + given.len()].copy_from_slice(given);
    u8::try_from(given.len()).unwrap_or(0)
}

fn data(bytes: &[u8; FRAME_BYTES], len: u8) -> Result<PrivateData, FrameError> {
    let (given, rest) = bytes[DATA..TAIL]
        .split_at_checked(len.into())
        .ok_or(Malformed)?;
    if !all_zero(rest) {
        return Err(Malformed);
    }
    Ok(PrivateData::received(given))
}

fn all_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Writes at a fixed place of a fixed frame.
fn put<const N: usize>(bytes: &mut [u8; FRAME_BYTES], place: usize, value: [u8; N]) {
    bytes[place..place + N].copy_from_slice(&value);
}

/// Reads at a fixed place of what is long enough.
fn at<const N: usize>(bytes: &[u8], place: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[place..place + N]);
    value
}

/// What the fuzzer asserts of any bytes: no panic, and what is read is written the same.
#[doc(hidden)]
pub fn fuzz_frame(bytes: &[u8]) {
    let Ok(frame) = Frame::parse(bytes) else {
        return;
    };
    let again = frame.encode();
    assert_eq!(Frame::parse(&again), Ok(frame));
    assert!(frame.kind() == Kind::Reject || again == bytes);
    assert!(frame.fds() <= crate::sys::seqpacket::FDS_MAX);
    if let Frame::Request(end) | Frame::Accept(end) = frame {
        assert!(end.geometry.check().is_ok());
    }
    if let Frame::Grant(_, Some(grant)) = frame {
        assert!(grant.len <= grant.map_bytes as u64 && grant.base.checked_add(grant.len).is_some());
    }
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
