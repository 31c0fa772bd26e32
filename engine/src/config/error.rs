//! What is wrong with a core map, and what would be right.
//!
//! ```text
//!  two-core.toml:12: [queues] send_depth = 40000: a whole number from 1 to 16384
//!  └─ origin     └─ line └─ place          └─ seen └─ allowed
//! ```
//! Imports nothing. Imported by the rest of config.

use super::{CONFIG_BYTES_MAX, FAULTS_MAX, SEEN_CHARS_MAX};
use std::fmt;
use std::io;

/// The text of a core map could not be had: nothing was checked.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The system refused.
    #[error("{origin}: cannot read the core map: {source}")]
    Read {
        /// The file.
        origin: String,
        /// Why.
        source: io::Error,
    },
    /// A directory, FIFO, socket or device; it was not read.
    #[error("{origin}: is {seen}: a core map is a regular file")]
    NotAFile {
        /// The file.
        origin: String,
        /// What it is.
        seen: &'static str,
    },
    /// Longer than any core map.
    #[error("{origin}: has {bytes_min} B or more: a core map has at most {CONFIG_BYTES_MAX} B")]
    TooBig {
        /// The file.
        origin: String,
        /// It has at least so many bytes.
        bytes_min: u64,
    },
    /// Not text.
    #[error("{origin}:{line}: byte {byte:#04x} at offset {offset}: a core map is UTF-8 text")]
    NotUtf8 {
        /// The file.
        origin: String,
        /// The line, from 1.
        line: usize,
        /// Where in the file the text ends.
        offset: usize,
        /// The byte there.
        byte: u8,
    },
    /// Not TOML.
    #[error("{origin}:{line}: `{seen}`: {message}")]
    Syntax {
        /// The file.
        origin: String,
        /// The line, from 1.
        line: usize,
        /// The line's text, shortened.
        seen: String,
        /// What the parser says, with what it expected.
        message: String,
    },
}

/// One thing wrong with a core map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Fault {
    /// The file, or what stands for one.
    pub origin: String,
    /// The line, from 1; `None` only where there is no file.
    pub line: Option<usize>,
    /// Section and key, such as `[queues] send_depth`.
    pub place: String,
    /// The value as the file has it, shortened.
    pub seen: String,
    /// What would be accepted there, and how to get it.
    pub allowed: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {} = {}: {}", self.place, self.seen, self.allowed)
    }
}

/// Everything wrong with a core map, in the order of its lines. Holding one proves: at least one
/// fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors {
    faults: Vec<Fault>,
    more: usize,
}

impl ConfigErrors {
    /// The faults; never empty, at most [`FAULTS_MAX`].
    #[must_use]
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// How many more there were.
    #[must_use]
    pub fn more(&self) -> usize {
        self.more
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            fault.fmt(f)?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

/// Where a value stands, and its text.
#[derive(Clone, Debug)]
pub(super) struct At {
    pub(super) line: Option<usize>,
    pub(super) seen: String,
}

/// Faults as they are found. Bounded: a hostile file cannot make it grow.
#[derive(Clone, Debug)]
pub(super) struct Faults {
    origin: String,
    kept: Vec<Fault>,
    more: usize,
}

impl Faults {
    pub(super) fn new(origin: &str) -> Self {
        Self {
            origin: origin.to_owned(),
            kept: Vec::new(),
            more: 0,
        }
    }

    /// `allowed` is called only if the fault is kept. One fault found twice is one fault.
    pub(super) fn push(&mut self, at: &At, place: &str, allowed: impl FnOnce() -> String) {
        if self.kept.len() >= FAULTS_MAX {
            self.more += 1;
            return;
        }
        let fault = Fault {
            origin: self.origin.clone(),
            line: at.line,
            place: place.to_owned(),
            seen: at.seen.clone(),
            allowed: allowed(),
        };
        if !self.kept.contains(&fault) {
            self.kept.push(fault);
        }
    }

    /// `value`, unless there were faults.
    pub(super) fn finish<T>(mut self, value: T) -> Result<T, ConfigErrors> {
        if self.kept.is_empty() {
            return Ok(value);
        }
        self.kept.sort_by_key(|fault| fault.line);
        Err(ConfigErrors {
            faults: self.kept,
            more: self.more,
        })
    }
}

/// `text` on one line that a terminal shows as it is: shortened, control and format characters
/// escaped.
pub(super) fn printable(text: &str) -> String {
    let mut out = String::new();
    for (index, char) in text.chars().enumerate() {
        if index == SEEN_CHARS_MAX {
            out.push('…');
            break;
        }
        match char {
            '"' | '\'' | '\\' => out.push(char),
            _ => out.extend(char.escape_debug()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_shown_on_one_short_line() {
        assert_eq!(printable("\"a\\b\""), "\"a\\b\"");
        assert_eq!(printable("a\nb\u{1b}[2J"), "a\\nb\\u{1b}[2J");
        let long = printable(&"x".repeat(10_000));
        assert_eq!(long.chars().count(), SEEN_CHARS_MAX + 1);
    }

    #[test]
    fn faults_are_bounded_sorted_and_single() {
        let mut faults = Faults::new("f");
        for line in (0..1000).rev() {
            let at = At {
                line: Some(line),
                seen: "1".to_owned(),
            };
            faults.push(&at, "k", || "2".to_owned());
            faults.push(&at, "k", || "2".to_owned());
        }
        let errors = faults.finish(()).expect_err("there were faults");
        assert_eq!(errors.faults().len(), FAULTS_MAX);
        assert!(errors.more() > 0);
        assert!(errors.faults().is_sorted_by_key(|fault| fault.line));
        assert!(Faults::new("f").finish(7) == Ok(7));
    }
}
