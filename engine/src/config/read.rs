//! The text of a core map, from a path that may name anything.
//!
//! Imports error only. Imported by parse.

use super::CONFIG_BYTES_MAX;
use super::error::ConfigError;
use std::fs::{self, FileType, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// At most [`CONFIG_BYTES_MAX`] of UTF-8 text from a regular file. Anything else is refused before
/// it is opened, as opening a device may do things.
pub(super) fn read(path: &Path, origin: &str) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::Read {
        origin: origin.to_owned(),
        source,
    };
    refuse_special(fs::metadata(path).map_err(failed)?.file_type(), origin)?;
    let file = OpenOptions::new()
        .read(true)
        // The path may have become a FIFO or a terminal since.
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(failed)?;
    refuse_special(file.metadata().map_err(failed)?.file_type(), origin)?;

    let mut bytes = Vec::new();
    file.take(CONFIG_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    refuse_big(bytes.len(), origin)?;
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        let bytes = error.as_bytes();
        ConfigError::NotUtf8 {
            origin: origin.to_owned(),
            line: 1 + bytes.iter().take(offset).filter(|&&b| b == b'\n').count(),
            offset,
            byte: bytes.get(offset).copied().unwrap_or_default(),
        }
    })
}

pub(super) fn refuse_big(bytes: usize, origin: &str) -> Result<(), ConfigError> {
    if bytes > CONFIG_BYTES_MAX {
        return Err(ConfigError::TooBig {
            origin: origin.to_owned(),
            bytes_min: bytes as u64,
        });
    }
    Ok(())
}

fn refuse_special(kind: FileType, origin: &str) -> Result<(), ConfigError> {
    let seen = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(ConfigError::NotAFile {
        origin: origin.to_owned(),
        seen,
    })
}
