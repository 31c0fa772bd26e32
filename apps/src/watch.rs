//! Waiting for a client's result: progress on a terminal, a peer that does not answer, a signal.

use crate::setup::Failure;
use spinwire::Engine;
use spinwire::metrics::CounterSnapshot;
use spinwire::sys::clock::Clock;
use spinwire::sys::signal::StopSignal;
use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

const LOOK: Duration = Duration::from_millis(100);

/// A line that is written over by the next.
pub(crate) struct Progress(bool);

impl Progress {
    pub(crate) fn new() -> Self {
        Self(std::io::stderr().is_terminal())
    }

    pub(crate) fn show(&self, line: impl FnOnce() -> String) {
        if self.0 {
            eprint!("\r{} ", line());
        }
    }

    pub(crate) fn clear(&self) {
        if self.0 {
            eprint!("\r\x1b[K");
        }
    }
}

/// What a program says meanwhile. Each is given what `count` counted so far.
pub(crate) struct Manner<'a> {
    /// When nothing was counted in this time the peer is taken not to answer.
    pub(crate) stall: Duration,
    /// Of the worker's counters the one that shows that something goes on.
    pub(crate) count: fn(&CounterSnapshot) -> u64,
    pub(crate) progress: &'a dyn Fn(u64) -> String,
    /// The error when nothing was counted for so long.
    pub(crate) stalled: &'a dyn Fn(u64, Duration) -> String,
    /// A signal: how long the result may still take, or the error to end with.
    pub(crate) signalled: &'a dyn Fn(u64) -> Result<Duration, String>,
}

/// Waits for the result of the engine's first worker.
pub(crate) fn watch<T>(
    engine: &Engine,
    result: &Receiver<Result<T, String>>,
    signal: &StopSignal,
    manner: &Manner<'_>,
) -> Result<T, Failure> {
    let progress = Progress::new();
    let outcome = wait(engine, result, signal, manner, &progress);
    progress.clear();
    outcome.map_err(Failure::from)
}

fn wait<T>(
    engine: &Engine,
    result: &Receiver<Result<T, String>>,
    signal: &StopSignal,
    manner: &Manner<'_>,
    progress: &Progress,
) -> Result<T, String> {
    let clock = Clock::calibrated();
    let (mut seen, mut since) = (0, clock.now());
    let (mut patience, mut signalled) = (manner.stall, false);
    loop {
        let answer = result.recv_timeout(LOOK);
        let done = engine.counters().first().map_or(0, manner.count);
        progress.show(|| (manner.progress)(done));
        match answer {
            Ok(answer) => return answer,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err("the worker has ended".into()),
        }
        if !signalled && signal.wait(Duration::ZERO) {
            patience = (manner.signalled)(done)?;
            (since, signalled) = (clock.now(), true);
        }
        if done != seen {
            (seen, since) = (done, clock.now());
        } else if clock.now() - since > patience {
            return Err((manner.stalled)(done, patience));
        }
    }
}
