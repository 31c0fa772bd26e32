//! A directory of names for one test.
#![allow(dead_code, reason = "each test uses a part of it")]

use spinwire::fabric::shm::{Settings, Shm};
use std::path::{Path, PathBuf};

/// Removed with all that is in it.
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn new(what: &str) -> Self {
        let name = format!("spinwire-test-{}-{what}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn open(&self) -> Shm {
        open(&self.0)
    }
}

/// A fabric with its names there.
pub(crate) fn open(dir: &Path) -> Shm {
    let settings = Settings {
        dir: Some(dir.to_path_buf()),
        uids: Vec::new(),
    };
    Shm::open(settings).expect("descriptors")
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
