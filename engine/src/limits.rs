//! Every limit of the engine in one place, tied together by const assertions.
//!
//! Imports nothing. Imported by everyone.

use std::time::Duration;

/// Cores are numbered below this: `CPU_SETSIZE`, above which `core_affinity` aborts.
pub const CORE_ID_MAX: usize = 1024;
/// Workers in one engine.
pub const WORKERS_MAX: usize = 256;
/// Lanes (devices) of one worker.
pub const LANES_MAX: usize = 8;

/// Completions taken from one CQ in one turn.
pub const POLL_BATCH_MAX: usize = 32;
/// Commands taken from the control core in one turn.
pub const MAILBOX_BATCH_MAX: usize = 8;
/// Commands and events that wait between the control core and one worker, each way.
pub const MAILBOX_DEPTH: usize = 256;
/// Receives reposted together: fewer wait until the batch is full or the turn was idle.
pub const RECV_REPOST_BATCH: u32 = 16;
/// A shared receive queue is refilled when so many of its receives are used up, or a quarter of them if
/// that is less: one chain.
pub const SHARED_RECV_REFILL: u32 = 32;
/// Every so many idle turns in a row fewer than a batch are reposted too.
pub const IDLE_TURNS_BEFORE_TOP_UP: u32 = 256;
/// On a loose device ([`crate::fabric::QpGrant`]) operations of so many bytes are all signalled: a page,
/// from which on SoftiWARP sends unsignalled ones without a copy. So are READs of as many, on every
/// device.
pub const SIGNALLED_FROM_BYTES: u32 = 4096;
/// READs that a worker may have under way on a device whose READs go through an arena (iWARP).
pub const READ_SINKS: usize = 64;
/// Bytes of that arena, unless one slot is larger.
pub const READ_SINK_BYTES_MAX: usize = 64 << 20;
/// Requests that wait at a listener.
pub const LISTEN_BACKLOG: u32 = 128;
/// Connections of one group. They are asked for at once, so a listener must hold them.
pub const GROUP_MEMBERS_MAX: u16 = 128;
/// Pieces of local memory that one operation gathers from or scatters to.
pub const SGE_MAX: usize = 4;
/// Bytes of a large message (framed mode): the most that one may have.
pub const LARGE_BYTES_MAX: u32 = 1 << 30;
/// Large messages of one connection, each way, that are not finished.
pub const LARGE_IN_FLIGHT_MAX: usize = 8;
/// READs of large messages that one connection has under way, if the handshake leaves it as many.
pub const LARGE_READS_MAX: u32 = 8;
/// Bytes of one such READ, where the service names no number and the device takes as many. What is sent
/// on a connection may have to wait for the READs before it, so they are no longer than a fast link needs
/// to stay busy.
pub const LARGE_READ_BYTES_DEFAULT: u32 = 1 << 20;
/// A large message is to be finished by its receiver within this time.
pub const LARGE_DEADLINE_DEFAULT: Duration = Duration::from_secs(60);
/// Work requests chained behind one doorbell.
pub const POST_CHAIN_MAX: usize = 32;

/// Send queue depth where the core map names none and the device allows it.
pub const SEND_DEPTH_DEFAULT: u32 = 128;
/// Receive queue depth where the core map names none and the device allows it.
pub const RECV_DEPTH_DEFAULT: u32 = 128;
/// Depth of a shared receive queue where the core map names none and the device allows it.
pub const SHARED_RECV_DEPTH_DEFAULT: u32 = 512;
/// Depth of a shared receive queue that no core map may exceed.
pub const SHARED_RECV_DEPTH_MAX: u32 = 65_536;
/// Least share of a shared receive queue that a connection has: framed mode works with no less.
pub const SHARED_RECV_SHARE_MIN: u32 = 4;
/// Messages that a connection with shared receives may get before this side knows that it is up; its
/// share of the queue, if that is more.
pub const SHARED_EARLY_MAX: u32 = 64;
/// Depth of a send or receive queue that no core map may exceed.
pub const QUEUE_DEPTH_MAX: u32 = 16_384;
/// Connections a worker serves on one device where the core map names no number.
pub const CONNECTIONS_DEFAULT: u32 = 64;
/// Connections of one worker: an index fits the 16 bits that `wr_id` has for it.
pub const CONNECTIONS_MAX: u32 = 65_536;
/// The largest CQ a default asks for; a core map may ask for what the device has.
pub const CQ_DEPTH_DEFAULT_MAX: u32 = 65_536;
/// A default depth is this share of the device's limit, in percent.
pub const DEVICE_SHARE_PERCENT: u32 = 80;
/// Inline bytes asked for where the core map names none.
pub const INLINE_DEFAULT_BYTES: u32 = 64;
/// Inline bytes that a core map may ask for.
pub const INLINE_MAX_BYTES: u32 = 1024;

/// Slots of a pool where the core map names none.
pub const POOL_SLOTS_DEFAULT: u32 = 1024;
/// Slots of a pool.
pub const POOL_SLOTS_MAX: u32 = 1 << 20;
/// Regions that a pool may consist of. Each is half as large as all before it, so a pool of one page can
/// grow to any size.
pub const POOL_CHUNKS_MAX: usize = 64;
/// A worker asks for more when less than one slot in so many is free.
pub const POOL_LOW_SHARE: u32 = 8;
/// Milliseconds until a worker whose pool could not grow asks again.
pub const POOL_GROW_RETRY_MS: u64 = 1000;
/// Bytes of a slot where the core map names none.
pub const SLOT_BYTES_DEFAULT: u32 = 16 * 1024;
/// Bytes of a slot: the least, one cache line.
pub const SLOT_BYTES_MIN: u32 = 64;
/// Bytes of a slot: the most, the largest message of Soft-RoCE.
pub const SLOT_BYTES_MAX: u32 = 8 << 20;

/// READs and atomics that a connection may have outstanding each way.
pub const RD_ATOMIC_DEFAULT: u8 = 16;

/// Private data in a connection request: what is left of IB's 92 bytes behind rdma_cm's header
/// (`rdma_connect(3)`).
pub const PRIVATE_DATA_MAX: usize = 56;
/// `min_rnr_timer` asked of the peer: code 12 is 0.64 ms (IBTA 9.7.5.2.8, table 45). rdma_cm would
/// leave 0, which means 655 ms.
pub const MIN_RNR_TIMER: u8 = 12;

const _: () = assert!(POST_CHAIN_MAX <= SEND_DEPTH_DEFAULT as usize);
const _: () = assert!(LARGE_READ_BYTES_DEFAULT <= LARGE_BYTES_MAX && LARGE_READS_MAX >= 1);
const _: () = assert!(RECV_REPOST_BATCH <= RECV_DEPTH_DEFAULT);
const _: () = assert!(SHARED_RECV_REFILL as usize <= POST_CHAIN_MAX);
const _: () = assert!(
    CONNECTIONS_DEFAULT * SHARED_RECV_SHARE_MIN <= SHARED_RECV_DEPTH_DEFAULT
        && SHARED_RECV_DEPTH_DEFAULT < POOL_SLOTS_DEFAULT
        && SHARED_RECV_DEPTH_DEFAULT <= SHARED_RECV_DEPTH_MAX
);
const _: () =
    assert!(SEND_DEPTH_DEFAULT <= QUEUE_DEPTH_MAX && RECV_DEPTH_DEFAULT <= QUEUE_DEPTH_MAX);
const _: () = assert!(
    CONNECTIONS_DEFAULT * (SEND_DEPTH_DEFAULT + RECV_DEPTH_DEFAULT) <= CQ_DEPTH_DEFAULT_MAX
);
const _: () = assert!(GROUP_MEMBERS_MAX as u32 <= LISTEN_BACKLOG);
const _: () = assert!(MAILBOX_DEPTH.is_power_of_two());
const _: () = assert!(SLOT_BYTES_MIN.is_power_of_two() && SLOT_BYTES_MAX.is_power_of_two());
