//! A listener: its socket, its file, and the connections that wait at it.
//!
//! ```text
//!  open: lock ─► socket there? ─ no ─────────────────────────► bind, listen ─► unlock
//!                     └ yes ─ somebody answers? ─ yes ─► EADDRINUSE
//!                                 └ no (left by a process that died) ─► remove ┘
//!  greeting   connected, the request has not come yet: at most so many, for so long
//!  asked      the embedder has not answered yet: at most the backlog
//! ```
//! The file goes when the listener is dropped, if it is still its own. Imports dir, sys. Imported by the
//! files of this folder.

use super::dir::{Dir, FileId};
use crate::sys::seqpacket::Seqpacket;
use std::collections::{BTreeSet, VecDeque};
use std::io;

/// Connections of one listener that have not sent their request. Whoever comes beyond takes the place of
/// the oldest: an honest end sends its request at once.
const GREETING_MAX: usize = 64;
/// What the kernel holds for us.
const BACKLOG_MAX: u32 = 4096;

/// One name that is listened at.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) name: String,
    pub(super) socket: Seqpacket,
    pub(super) backlog: usize,
    greeting: VecDeque<u64>,
    pub(super) asked: BTreeSet<u64>,
    dir: Dir,
    file: Option<FileId>,
}

impl Listener {
    /// Listens at a name. The mode says who may connect, beside what credentials say.
    pub(super) fn open(dir: Dir, name: &str, backlog: u32, mode: u32) -> io::Result<Self> {
        let held = dir.lock()?;
        let path = dir.socket_path(name);
        if dir.socket(name)?.is_some() {
            match Seqpacket::connect(&path) {
                // Left by a process that died.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    dir.remove(name)?;
                }
                // It answers, or is too busy to, or is not for us.
                Ok(_) | Err(_) => return Err(io::Error::from_raw_os_error(libc::EADDRINUSE)),
            }
        }
        let backlog = backlog.clamp(1, BACKLOG_MAX);
        let socket = Seqpacket::listen(&path, backlog)?;
        let mut listener = Self {
            name: name.into(),
            socket,
            backlog: usize::try_from(backlog).unwrap_or(usize::MAX),
            greeting: VecDeque::new(),
            asked: BTreeSet::new(),
            file: dir.socket(name)?,
            dir,
        };
        if let Err(error) = listener.dir.set_mode(name, mode) {
            listener.remove_file(&held);
            return Err(error);
        }
        Ok(listener)
    }

    /// Somebody has connected. Returns whose place it took, if there was none left.
    pub(super) fn greets(&mut self, key: u64) -> Option<u64> {
        self.greeting.push_back(key);
        if self.greeting.len() <= GREETING_MAX {
            return None;
        }
        self.greeting.pop_front()
    }

    /// A connection has sent its request, or is gone.
    pub(super) fn greeted(&mut self, key: u64) {
        self.greeting.retain(|other| *other != key);
    }

    /// Those that have not sent their request.
    pub(super) fn greeting(&self) -> impl Iterator<Item = u64> + '_ {
        self.greeting.iter().copied()
    }

    fn remove_file(&mut self, _: &super::dir::DirLock) {
        // Somebody else's, if ours was removed by hand.
        let ours = |found: Option<FileId>| found.is_some() && found == self.file;
        if self.dir.socket(&self.name).is_ok_and(ours) {
            let _ = self.dir.remove(&self.name);
        }
        self.file = None;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.file.is_none() {
            return;
        }
        // Without the lock the file stays, and the next listener finds out that nobody answers.
        if let Ok(held) = self.dir.lock() {
            self.remove_file(&held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::dir::Places;
    use super::super::tests::scratch;
    use super::*;

    #[test]
    fn live_names_are_taken_and_stale_ones_replaced() {
        let path = scratch("stale");
        let dir = || Places::new(Some(path.to_path_buf())).to_listen().unwrap();
        let first = Listener::open(dir(), "name", 4, 0o600).unwrap();
        let taken = Listener::open(dir(), "name", 4, 0o600).unwrap_err();
        assert_eq!(taken.raw_os_error(), Some(libc::EADDRINUSE));
        let other = Listener::open(dir(), "other", 4, 0o600).unwrap();
        drop(first);
        assert!(!path.join("name").exists() && path.join("other").exists());
        drop(other);
        // What a process that was killed leaves.
        drop(std::os::unix::net::UnixListener::bind(path.join("name")).unwrap());
        let again = Listener::open(dir(), "name", 4, 0o600).unwrap();
        drop(again);
        assert!(!path.join("name").exists());
    }

    #[test]
    fn only_its_own_file_goes_with_it() {
        let path = scratch("own");
        let dir = || Places::new(Some(path.to_path_buf())).to_listen().unwrap();
        let first = Listener::open(dir(), "name", 4, 0o600).unwrap();
        std::fs::remove_file(path.join("name")).unwrap();
        let second = Listener::open(dir(), "name", 4, 0o600).unwrap();
        drop(first);
        assert!(path.join("name").exists());
        drop(second);
        std::fs::write(path.join("file"), "precious").unwrap();
        assert!(Listener::open(dir(), "file", 4, 0o600).is_err());
        assert!(path.join("file").exists());
    }

    #[test]
    fn the_oldest_silent_connection_makes_room() {
        let path = scratch("greeting");
        let dir = Places::new(Some(path.to_path_buf())).to_listen().unwrap();
        let mut listener = Listener::open(dir, "name", 4, 0o600).unwrap();
        let most = u64::try_from(GREETING_MAX).unwrap();
        assert!((0..most).all(|key| listener.greets(key).is_none()));
        listener.greeted(0);
        assert_eq!(listener.greets(most), None);
        assert_eq!(listener.greets(most + 1), Some(1));
        assert_eq!(listener.greeting().count(), GREETING_MAX);
    }
}
