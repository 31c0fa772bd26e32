//! Memory that processes share by a descriptor: ours, sealed, and a peer's, checked before it is touched.
//!
//! ```text
//!  owner   Memfd::create ─ size sealed ─► fd, or read_only_fd ─ ─ SCM_RIGHTS ─ ─►  SharedMap::of   peer
//!             │  its own map, always writable                    tmpfs? sealed? just as long as said?
//!             └─ seal_writes ─► nobody maps it for writing any more, nobody punches a hole
//! ```
//! The size seals keep a map from ending early (SIGBUS), by either side's doing. They do not stop who
//! may write from punching holes, which read as zeros; [`Memfd::seal_writes`] does. Maps that exist stay
//! writable, so memory for a peer to write is sealed so when the peer has mapped it. On hugetlbfs a
//! hole can be a SIGBUS, so nothing but plain pages is made or taken.
//!
//! No slice and no reference to the memory is given out: a peer may write it at any moment.
//! Cold: every function is some system calls. Imports closing. Imported by memory and fabric.

#![allow(unsafe_code, reason = "mmap and munmap change the address space")]

use super::closing::Foreign;
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

/// `f_type` of tmpfs, where memfds of plain pages live (`statfs(2)`). hugetlbfs has another.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// What `st_blocks` counts, whatever the file system.
const BLOCK_BYTES: u64 = 512;

/// What keeps a map as long as it is.
const SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// What [`Memfd::seal_writes`] adds.
const WRITES: SealFlags = SealFlags::FUTURE_WRITE.union(SealFlags::SEAL);

/// One shared mapping, unmapped on drop. Holding one proves: `base..base + bytes` is mapped readable.
#[derive(Debug)]
struct Pages {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and `Pages` gives out its address only.
unsafe impl Send for Pages {}
// SAFETY: as above; `&Pages` allows nothing but to read the address and the length.
unsafe impl Sync for Pages {}

impl Pages {
    fn map(fd: BorrowedFd<'_>, bytes: usize, writable: bool) -> io::Result<Self> {
        let access = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        if bytes == 0 || isize::try_from(bytes).is_err() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: `mmap` requires that a fixed address replaces nothing in use: the address is null and
        // the flags hold no MAP_FIXED, so the kernel picks an unused range.
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, fd, 0) }?;
        let pages = Self {
            base: NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
            bytes,
        };
        // A child would keep the peer's memory alive, and has no use for it.
        pages.advise(Advice::LinuxDontFork)?;
        Ok(pages)
    }

    fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: `madvise` requires a range whose meaning may change: it is all ours, and the callers
        // pass only advice that keeps the contents (fork, populate).
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.bytes, advice) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `munmap` requires that nobody uses the range: it is the one that `mmap` returned, and
        // whoever uses its address keeps the owner alive, as `base()` of both owners asks.
        let result = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(result.is_ok(), "munmap of our own mapping: {result:?}");
    }
}

/// Zeroed memory of ours that others can map. Holding one proves: all of it is mapped here readable and
/// writable, and no one can make it longer or shorter.
#[derive(Debug)]
pub struct Memfd {
    fd: OwnedFd,
    pages: Pages,
}

impl Memfd {
    /// Makes `bytes` of plain pages, populates them and seals the size. `name` is for
    /// `/proc/PID/maps` only.
    ///
    /// # Errors
    /// As `memfd_create(2)`, `mmap(2)` and `madvise(2)`: no memory, mostly. `InvalidInput` for no bytes.
    pub fn create(name: &str, bytes: usize) -> io::Result<Self> {
        let fd = make(name)?;
        // A descriptor that was opened for reading cannot be opened for writing through /proc, but by
        // root and by who may change the mode.
        rustix::fs::fchmod(&fd, Mode::RUSR)?;
        rustix::fs::ftruncate(&fd, bytes as u64)?;
        let pages = Pages::map(fd.as_fd(), bytes, true)?;
        loop {
            match pages.advise(Advice::LinuxPopulateWrite) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                // Before Linux 5.14. The pages are there then, if not yet in the page table.
                Err(Errno::INVAL) => {
                    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes as u64)?;
                    break;
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        rustix::fs::fcntl_add_seals(&fd, SIZE)?;
        Ok(Self { fd, pages })
    }

    /// From now on nobody can map it for writing, write to it by its descriptor, punch holes into it, or
    /// change its seals. Maps that exist, such as our own, stay as they are. May be called again.
    ///
    /// # Errors
    /// `EPERM`: someone who has a writable descriptor has sealed the seals. Such a peer is hostile.
    pub fn seal_writes(&self) -> io::Result<()> {
        if self.writes_sealed() {
            return Ok(());
        }
        rustix::fs::fcntl_add_seals(&self.fd, WRITES)?;
        Ok(())
    }

    /// From now on nobody, a peer with a writable descriptor included, can add a seal; nor can we. For
    /// memory that several peers are to write, of which one could keep the others out. May be called again.
    ///
    /// # Errors
    /// As `fcntl(2)`, though none is known for a memfd of ours.
    pub fn seal_seals(&self) -> io::Result<()> {
        if !rustix::fs::fcntl_get_seals(&self.fd)?.contains(SealFlags::SEAL) {
            rustix::fs::fcntl_add_seals(&self.fd, SealFlags::SEAL)?;
        }
        Ok(())
    }

    /// [`seal_writes`](Self::seal_writes) was called.
    #[must_use]
    pub fn writes_sealed(&self) -> bool {
        rustix::fs::fcntl_get_seals(&self.fd).is_ok_and(|seals| seals.contains(WRITES))
    }

    /// The descriptor, writable: for a peer that is to write, until [`seal_writes`](Self::seal_writes).
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Another descriptor of the same memory, that can only be read and mapped for reading.
    ///
    /// # Errors
    /// As `open(2)`: no descriptor is left, or there is no `/proc`.
    pub fn read_only_fd(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(path, flags, Mode::empty())?)
    }

    /// Where our own map begins. Whoever uses it keeps the `Memfd` alive.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.pages.base
    }

    /// Bytes of it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pages.bytes
    }
}

/// Without the right to execute, which kernels since 6.3 want to be told.
fn make(name: &str) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => Ok(rustix::fs::memfd_create(name, flags)?),
        made => Ok(made?),
    }
}

/// A peer's memory, mapped. Holding one proves: `base..base + bytes` stays mapped and backed whatever
/// the peer does, readable, and writable if it was mapped so. What is in it proves nothing.
#[derive(Debug)]
pub struct SharedMap(Pages);

impl SharedMap {
    /// Maps what a peer sent a descriptor of, if it is what the peer says: plain pages, of `bytes`, with a
    /// size that nobody can change, and all of them there: a peer pays for what it offers, and our address
    /// space does not go to memory that is none. The descriptor is closed. The caller has bounded `bytes`.
    ///
    /// # Errors
    /// `InvalidData` or `EINVAL`: it is something else. Otherwise as `mmap(2)`, such as `EPERM` for writing to what is
    /// sealed against it, and `EACCES` where the descriptor is for reading.
    pub fn of(fd: impl Into<Foreign>, bytes: usize, writable: bool) -> io::Result<Self> {
        let fd = fd.into();
        // Asked in this order: only memfds, and other files of tmpfs, have seals at all. Of a file of FUSE
        // the other questions go to whoever serves it, who need not answer.
        if !rustix::fs::fcntl_get_seals(&fd)?.contains(SIZE) {
            return Err(bad("the size of the peer's memory is not sealed"));
        }
        // And the last close of none of those waits.
        let fd = fd.trusted();
        #[allow(
            clippy::useless_conversion,
            reason = "the type of f_type differs between targets"
        )]
        let kind = i64::from(rustix::fs::fstatfs(&fd)?.f_type);
        if kind != TMPFS_MAGIC {
            return Err(bad("the peer's memory is not of plain pages (tmpfs)"));
        }
        let stat = rustix::fs::fstat(&fd)?;
        if usize::try_from(stat.st_size).ok() != Some(bytes) {
            return Err(bad("the peer's memory is not as long as it says"));
        }
        let there = u64::try_from(stat.st_blocks).unwrap_or(0);
        if there.saturating_mul(BLOCK_BYTES) < bytes as u64 {
            return Err(bad("the peer's memory has holes"));
        }
        Pages::map(fd.as_fd(), bytes, writable).map(Self)
    }

    /// Where it begins. Whoever uses it keeps the map alive.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.0.base
    }

    /// Bytes of it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }
}

fn bad(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 3 * 4096;

    fn made() -> Memfd {
        Memfd::create("spinwire-test", BYTES).unwrap()
    }

    fn writable_fd(memory: &Memfd) -> OwnedFd {
        memory.fd().try_clone_to_owned().unwrap()
    }

    fn refused(fd: OwnedFd, bytes: usize, writable: bool) -> io::ErrorKind {
        SharedMap::of(fd, bytes, writable).unwrap_err().kind()
    }

    fn poke(base: NonNull<u8>, at: usize, value: u8) {
        assert!(at < BYTES);
        // SAFETY: `at` is within the map, which the caller keeps, and it is writable.
        unsafe { base.add(at).write_volatile(value) };
    }

    fn peek(base: NonNull<u8>, at: usize) -> u8 {
        assert!(at < BYTES);
        // SAFETY: `at` is within the map, which the caller keeps.
        unsafe { base.add(at).read_volatile() }
    }

    #[test]
    fn both_ends_see_the_same_bytes() {
        let ours = made();
        let theirs = SharedMap::of(writable_fd(&ours), BYTES, true).unwrap();
        let reader = SharedMap::of(ours.read_only_fd().unwrap(), BYTES, false).unwrap();
        assert_eq!((ours.bytes(), theirs.bytes()), (BYTES, BYTES));
        poke(theirs.base(), BYTES - 1, 7);
        assert_eq!(peek(ours.base(), BYTES - 1), 7);
        // Sealing takes nothing from maps that exist.
        ours.seal_writes().unwrap();
        poke(theirs.base(), 5, 8);
        poke(ours.base(), 6, 9);
        assert_eq!((peek(reader.base(), 5), peek(reader.base(), 6)), (8, 9));
        // The map outlives the owner.
        drop(ours);
        assert_eq!(peek(theirs.base(), BYTES - 1), 7);
    }

    #[test]
    fn seals_stand() {
        let ours = made();
        let fd = writable_fd(&ours);
        assert!(rustix::fs::ftruncate(&fd, 0).is_err());
        assert!(rustix::fs::ftruncate(&fd, 2 * BYTES as u64).is_err());
        assert!(!ours.writes_sealed());
        ours.seal_writes().unwrap();
        ours.seal_writes().unwrap();
        assert!(ours.writes_sealed());
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(rustix::fs::fallocate(&fd, hole, 0, 4096), Err(Errno::PERM));
        assert!(rustix::io::pwrite(&fd, &[1], 0).is_err());
        assert_eq!(refused(fd, BYTES, true), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_peer_that_seals_the_seals_is_found_out() {
        let ours = made();
        rustix::fs::fcntl_add_seals(ours.fd(), SealFlags::SEAL).unwrap();
        assert!(ours.seal_writes().is_err());
        assert!(!ours.writes_sealed());
    }

    #[test]
    fn a_reader_cannot_write() {
        let ours = made();
        let fd = ours.read_only_fd().unwrap();
        assert!(rustix::io::pwrite(&fd, &[1], 0).is_err());
        assert_eq!(refused(fd, BYTES, true), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn what_is_not_as_it_was_said_is_refused() {
        let ours = made();
        for bytes in [0, 1, BYTES - 1, BYTES + 1, 2 * BYTES, usize::MAX] {
            let kind = refused(writable_fd(&ours), bytes, true);
            assert_eq!(kind, io::ErrorKind::InvalidData, "{bytes}");
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        for seals in [
            SealFlags::empty(),
            SealFlags::SHRINK,
            SealFlags::GROW,
            SealFlags::FUTURE_WRITE,
        ] {
            let fd = rustix::fs::memfd_create("loose", flags).unwrap();
            rustix::fs::ftruncate(&fd, BYTES as u64).unwrap();
            rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
            assert_eq!(refused(fd, BYTES, false), io::ErrorKind::InvalidData);
        }
        // No files, devices or sockets.
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let null = std::fs::File::open("/dev/zero").unwrap();
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        for fd in [socket.into(), null.into(), OwnedFd::from(file)] {
            let _ = refused(fd, BYTES, false);
        }
    }

    #[test]
    fn a_file_system_of_the_peers_is_asked_nothing() {
        use std::ffi::CString;
        use std::os::unix::ffi::OsStrExt;
        let Ok(server) = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
        else {
            return; // A kernel without FUSE, or it is not for us.
        };
        let dir = std::env::temp_dir().join(format!("spinwire-fuse-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = CString::new(dir.as_os_str().as_bytes()).unwrap();
        let how = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            server.as_raw_fd()
        );
        let how = CString::new(how).unwrap();
        // SAFETY: `mount` requires strings that end in a zero: they all do.
        let mounted = unsafe {
            libc::mount(
                c"fuse".as_ptr(),
                path.as_ptr(),
                c"fuse".as_ptr(),
                libc::MS_NOSUID | libc::MS_NODEV,
                how.as_ptr().cast(),
            )
        };
        let mut answer = Ok(true);
        // Only root may mount.
        if mounted == 0 {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let fd = rustix::fs::open(&dir, flags, Mode::empty()).unwrap();
            let (tell, told) = std::sync::mpsc::channel();
            let asks = move || tell.send(SharedMap::of(fd, BYTES, false).is_err());
            let asker = std::thread::spawn(asks);
            answer = told.recv_timeout(std::time::Duration::from_secs(5));
            // Whoever waits for an answer waits no longer.
            drop(server);
            asker.join().unwrap().unwrap();
            // SAFETY: as above.
            unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        }
        std::fs::remove_dir(&dir).unwrap();
        assert_eq!(answer, Ok(true));
    }

    #[test]
    fn memory_that_is_not_there_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // 16 TiB of nothing: a few such maps, and our address space is full.
        let fd = rustix::fs::memfd_create("vast", flags).unwrap();
        let bytes = 1_usize << 44;
        rustix::fs::ftruncate(&fd, bytes as u64).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SIZE).unwrap();
        assert_eq!(refused(fd, bytes, false), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_hole_that_a_peer_punches_reads_as_zeros() {
        let ours = made();
        let fd = writable_fd(&ours);
        poke(ours.base(), 4096, 7);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&fd, hole, 0, BYTES as u64).unwrap();
        assert_eq!(peek(ours.base(), 4096), 0);
        poke(ours.base(), 4096, 8);
        assert_eq!(peek(ours.base(), 4096), 8);
    }

    #[test]
    fn what_can_only_be_read_is_not_reopened_for_writing() {
        let ours = made();
        ours.seal_writes().unwrap();
        let fd = ours.read_only_fd().unwrap();
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        // Its owner and root may; what they get does not write.
        rustix::fs::fchmod(ours.fd(), Mode::RUSR | Mode::WUSR).unwrap();
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        if let Ok(again) = rustix::fs::open(path, flags, Mode::empty()) {
            assert!(rustix::io::pwrite(&again, &[1], 0).is_err());
            assert_eq!(refused(again, BYTES, true), io::ErrorKind::PermissionDenied);
        }
    }

    #[test]
    fn huge_pages_are_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let Ok(fd) = rustix::fs::memfd_create("huge", flags) else {
            return; // A kernel without them.
        };
        let bytes = 2 << 20;
        if rustix::fs::ftruncate(&fd, bytes as u64).is_err() {
            return; // Their size is another here.
        }
        rustix::fs::fcntl_add_seals(&fd, SIZE).unwrap();
        assert_eq!(refused(fd, bytes, true), io::ErrorKind::InvalidData);
    }
}
