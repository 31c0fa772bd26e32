//! This test binary once more, as a process of its own.
//!
//! ```text
//!  Child::start("killed::child_process", "serve rxe0 …") ─► that test, in the child ─► part()
//! ```
//! What runs there is an ignored test that does nothing where no part is given.

use rustix::process::{Pid, Signal, kill_process};
use std::fmt::Display;
use std::process::{self, Command, Stdio};

const PART: &str = "SPINWIRE_TEST_CHILD";

/// The words that say what this process is to be; `None` if it is no child.
pub(crate) fn part() -> Option<Vec<String>> {
    let part = std::env::var(PART).ok()?;
    Some(part.split(' ').map(str::to_owned).collect())
}

/// A child that is killed however the test ends.
pub(crate) struct Child(process::Child);

impl Child {
    /// Runs the test that is called `body`.
    pub(crate) fn start(body: &str, part: impl Display) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", body])
            .env(PART, part.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        // SIGKILL, by Child's contract.
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Closes its stdin, and waits until it has ended well.
    pub(crate) fn assert_success(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
