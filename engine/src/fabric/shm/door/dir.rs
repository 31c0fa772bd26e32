//! Where names are: directories that hold the sockets of listeners.
//!
//! ```text
//!  SPINWIRE_SHM_DIR            listen and dial there, if it is set
//!  /run/spinwire               root listens there
//!  /tmp/spinwire-UID           others do, and root where /run cannot be written
//!  dial(NAME)                  looks into our own, then into root's
//! ```
//! A directory is opened, looked at, and used by its descriptor from then on, so nobody can put another in
//! its place. It belongs to us or to somebody whom we talk to, and strangers cannot rename what is in it.
//! Whoever lies to us all the same is found out by the credentials of the socket.
//! Needs `/proc`. Imports nothing of ours. Imported by mod, listener and calls.

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The variable that names the directory.
const VARIABLE: &str = "SPINWIRE_SHM_DIR";
const OF_ROOT: &str = "/run/spinwire";
const NAME_MAX: usize = 64;
/// Tries for the lock of a directory, and the time between them. It is held for some system calls.
const LOCK_TRIES: u32 = 50;
const LOCK_INTERVAL: Duration = Duration::from_millis(1);
const ROOT: u32 = 0;

/// Where to listen and where to look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Places {
    /// A directory that was named.
    named: Option<PathBuf>,
    uid: u32,
}

/// A directory in use.
#[derive(Debug)]
pub(super) struct Dir {
    fd: OwnedFd,
    path: PathBuf,
}

/// Holds the lock of a directory: nobody else makes or removes sockets in it.
#[derive(Debug)]
pub(super) struct DirLock(#[allow(dead_code, reason = "closing it is the unlocking")] OwnedFd);

/// A socket's file, to be recognised later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId(u64, u64);

impl Places {
    /// The directory named, or that of the environment, or the usual ones.
    pub(super) fn new(named: Option<PathBuf>) -> Self {
        let set = || std::env::var_os(VARIABLE).filter(|dir| !dir.is_empty());
        Self {
            named: named.or_else(|| set().map(PathBuf::from)),
            uid: rustix::process::geteuid().as_raw(),
        }
    }

    /// The directory that our listeners are in, made if it is not there.
    pub(super) fn to_listen(&self) -> io::Result<Dir> {
        if let Some(named) = &self.named {
            return Dir::make(named, &[self.uid, ROOT]);
        }
        let own = own_dir(self.uid);
        if self.uid == ROOT {
            // Without /run, or with one that is read-only.
            return Dir::make(Path::new(OF_ROOT), &[ROOT]).or_else(|_| Dir::make(&own, &[ROOT]));
        }
        Dir::make(&own, &[self.uid])
    }

    /// The directories to look into for a name, those that are there and trustworthy.
    pub(super) fn to_dial(&self, uids: &[u32]) -> Vec<Dir> {
        let mut owners = vec![self.uid, ROOT];
        owners.extend(uids);
        let open = |path: &PathBuf| Dir::open(path, &owners).ok();
        self.paths().iter().filter_map(open).collect()
    }

    fn paths(&self) -> Vec<PathBuf> {
        match &self.named {
            Some(named) => vec![named.clone()],
            None if self.uid == ROOT => vec![OF_ROOT.into(), own_dir(ROOT)],
            None => vec![own_dir(self.uid), OF_ROOT.into(), own_dir(ROOT)],
        }
    }
}

fn own_dir(uid: u32) -> PathBuf {
    format!("/tmp/spinwire-{uid}").into()
}

/// A name is 1 to 64 letters, digits, `-`, `_` or `.`, and begins with no `.`.
pub(super) fn check_name(name: &str) -> io::Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let fits = (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(plain);
    if fits && !name.starts_with('.') {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("{name:?} is no name for shared memory: 1 to 64 letters, digits, '-', '_' or '.'"),
    ))
}

impl Dir {
    fn make(path: &Path, owners: &[u32]) -> io::Result<Self> {
        // Others may go through it, but not list it. What umask takes away is put back, if it is ours.
        let mode = Mode::from_raw_mode(0o711);
        let made = match rustix::fs::mkdir(path, mode) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(said(path, errno)),
        };
        let dir = Self::open(path, owners)?;
        if made {
            // The descriptor is a place only, which fchmod does not take.
            rustix::fs::chmodat(&dir.fd, c".", mode, AtFlags::empty())?;
        }
        Ok(dir)
    }

    fn open(path: &Path, owners: &[u32]) -> io::Result<Self> {
        // Not through a link: somebody else's would lead us anywhere.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| said(path, errno))?;
        let stat = rustix::fs::fstat(&fd)?;
        if !owners.contains(&stat.st_uid) {
            return Err(denied(path, &format!("belongs to user {}", stat.st_uid)));
        }
        let mode = Mode::from_raw_mode(stat.st_mode);
        if mode.intersects(Mode::WGRP | Mode::WOTH) && !mode.contains(Mode::SVTX) {
            return Err(denied(path, "is writable by others and not sticky"));
        }
        Ok(Self {
            fd,
            path: path.into(),
        })
    }

    /// A path that leads into this very directory, and is short enough for a socket's address.
    pub(super) fn socket_path(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()).into()
    }

    /// Keeps others from making and removing sockets here. Strangers cannot take the lock, as they cannot
    /// read the directory.
    pub(super) fn lock(&self) -> io::Result<DirLock> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, c".", flags, Mode::empty())?;
        for _ in 0..LOCK_TRIES {
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(DirLock(fd)),
                Err(Errno::AGAIN | Errno::INTR) => std::thread::sleep(LOCK_INTERVAL),
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            format!("{} is locked by another process", self.path.display()),
        ))
    }

    /// The socket of a name; `None` where there is nothing.
    pub(super) fn socket(&self, name: &str) -> io::Result<Option<FileId>> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Socket => {
                #[allow(
                    clippy::useless_conversion,
                    reason = "the types differ between targets"
                )]
                let id = FileId(stat.st_dev.into(), stat.st_ino.into());
                Ok(Some(id))
            }
            Ok(_) => Err(denied(&self.path.join(name), "is there and is no socket")),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(said(&self.path.join(name), errno)),
        }
    }

    /// Removes the socket of a name.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Who may connect to the socket of a name, as far as its mode says.
    pub(super) fn set_mode(&self, name: &str, mode: u32) -> io::Result<()> {
        let mode = Mode::from_raw_mode(mode);
        Ok(rustix::fs::chmodat(&self.fd, name, mode, AtFlags::empty())?)
    }
}

fn said(path: &Path, errno: Errno) -> io::Error {
    let error = io::Error::from(errno);
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn denied(path: &Path, why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "{} {why}. Remove it, or name another directory in {VARIABLE} at both ends",
            path.display()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::scratch;
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn names() {
        for name in ["a", "node-7_b.c", "A.", &"x".repeat(64)] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            ".hidden",
            "a/b",
            "a b",
            "ä",
            "a\0",
            &"x".repeat(65),
        ] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn our_own_directory_comes_before_that_of_root() {
        let places = |named: Option<&str>, uid| Places {
            named: named.map(PathBuf::from),
            uid,
        };
        let own = Path::new("/tmp/spinwire-1000");
        let roots = [Path::new("/run/spinwire"), Path::new("/tmp/spinwire-0")];
        assert_eq!(places(None, 1000).paths(), [own, roots[0], roots[1]]);
        assert_eq!(places(None, 0).paths(), roots);
        let named = Path::new("/somewhere");
        assert_eq!(places(Some("/somewhere"), 1000).paths(), [named]);
    }

    #[test]
    fn directories_of_strangers_are_refused() {
        let path = scratch("owners");
        let uid = rustix::process::geteuid().as_raw();
        let dir = Dir::make(&path, &[uid]).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o711);
        assert!(Dir::open(&path, &[uid.wrapping_add(1)]).is_err());
        let link = path.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(Dir::open(&link, &[uid]).is_err());
        for (mode, good) in [
            (0o777, false),
            (0o730, false),
            (0o1777, true),
            (0o755, true),
        ] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(Dir::open(&path, &[uid]).is_ok(), good, "{mode:o}");
        }
        assert_eq!(dir.path, *path);
    }

    #[test]
    fn one_holds_the_lock() {
        let path = scratch("lock");
        let dir = Dir::make(&path, &[rustix::process::geteuid().as_raw()]).unwrap();
        let held = dir.lock().unwrap();
        assert!(dir.lock().is_err());
        drop(held);
        assert!(dir.lock().is_ok());
    }

    #[test]
    fn only_sockets_are_taken_for_sockets() {
        let path = scratch("files");
        let dir = Dir::make(&path, &[rustix::process::geteuid().as_raw()]).unwrap();
        assert_eq!(dir.socket("none").unwrap(), None);
        std::fs::write(path.join("file"), "").unwrap();
        assert!(dir.socket("file").is_err());
        let _socket = std::os::unix::net::UnixListener::bind(path.join("socket")).unwrap();
        assert!(dir.socket("socket").unwrap().is_some());
    }
}
