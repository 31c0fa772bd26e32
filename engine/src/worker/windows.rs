//! The memory windows of one connection: which are bound, and to what.
//!
//! ```text
//!  free ─ Io::bind ─► bound (keeps the memory registered) ─ Io::revoke done, or the peer's
//!    ▲                                                      SEND with invalidate ─┐
//!    └────────────────────────────────────────────────────────────────────────────┘
//! ```
//! A window that could not be revoked stays bound until its QP is destroyed, and its memory with it.
//! Imports memory. Imported by connection, io and completion.
#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use crate::fabric::Note;
use crate::memory::MemorySpan;
use crate::types::Rkey;

/// The low 8 bits of a window's key are its owner's to choose (IBTA 10.6.6.2.4).
const OWN_BITS: u32 = 0xff;

#[derive(Debug)]
struct Window {
    rkey: Rkey,
    bound: Option<MemorySpan>,
    /// It was asked for that the key go out of use: a device takes that once.
    revoking: bool,
}

/// Windows by their number.
#[derive(Debug, Default)]
pub(crate) struct Windows(Vec<Window>);

/// The windows of a connection, with the keys that its device gave.
impl From<Vec<Rkey>> for Windows {
    fn from(keys: Vec<Rkey>) -> Self {
        let free = |rkey| Window {
            rkey,
            bound: None,
            revoking: false,
        };
        Self(keys.into_iter().map(free).collect())
    }
}

impl Windows {
    /// Takes a free window for `span`; its number, and the key that it gets.
    pub(crate) fn bind(&mut self, span: &MemorySpan) -> Option<(u16, Rkey)> {
        let free = self.0.iter().position(|w| w.bound.is_none())?;
        let number = u16::try_from(free).ok()?;
        let window = &mut self.0[free];
        let Rkey(old) = window.rkey;
        let own = old.wrapping_add(1) & OWN_BITS;
        window.rkey = Rkey((old & !OWN_BITS) | own);
        window.bound = Some(span.clone());
        Some((number, window.rkey))
    }

    fn bound(&mut self, rkey: Rkey) -> Option<&mut Window> {
        let mut all = self.0.iter_mut();
        all.find(|w| w.rkey == rkey && w.bound.is_some())
    }

    /// A window is bound by this key, and nobody has asked to revoke it.
    pub(crate) fn is_revocable(&mut self, rkey: Rkey) -> bool {
        self.bound(rkey).is_some_and(|w| !w.revoking)
    }

    /// Its revocation is queued.
    pub(crate) fn revoke(&mut self, rkey: Rkey) {
        if let Some(window) = self.bound(rkey) {
            window.revoking = true;
        }
    }

    /// The device says that the peer took a key out of use. There are no keys to take but those of
    /// windows, so what is none is a flag that means something else.
    #[cold]
    pub(crate) fn invalidated(&mut self, rkey: Rkey) -> Note {
        if self.bound(rkey).is_none() {
            return Note::None;
        }
        self.free(rkey);
        Note::Invalidated(rkey)
    }

    /// The key is out of use: its window is free.
    pub(crate) fn free(&mut self, rkey: Rkey) {
        if let Some(window) = self.bound(rkey) {
            (window.bound, window.revoking) = (None, false);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::span_for_tests;

    #[test]
    fn each_bind_has_a_key_of_its_own_and_windows_come_back() {
        let span = span_for_tests(64);
        let mut windows = Windows::from(vec![Rkey(0x1200), Rkey(0x34ff)]);
        assert_eq!(windows.bind(&span), Some((0, Rkey(0x1201))));
        assert_eq!(windows.bind(&span), Some((1, Rkey(0x3400))));
        assert_eq!(windows.bind(&span), None);
        windows.free(Rkey(0x1200));
        assert!(
            windows.is_revocable(Rkey(0x1201)),
            "an old key frees nothing"
        );
        windows.revoke(Rkey(0x1201));
        assert!(!windows.is_revocable(Rkey(0x1201)), "once is enough");
        assert_eq!(windows.invalidated(Rkey(0x1200)), Note::None);
        let taken = windows.invalidated(Rkey(0x1201));
        assert_eq!(taken, Note::Invalidated(Rkey(0x1201)));
        assert!(!windows.is_revocable(Rkey(0x1201)));
        assert_eq!(windows.bind(&span), Some((0, Rkey(0x1202))));
        assert!(windows.is_revocable(Rkey(0x1202)), "a new life");
    }
}
