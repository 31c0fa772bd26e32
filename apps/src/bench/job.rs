//! What is to be measured: an operation, a mode, and their numbers, from the command line.

use crate::cli::{BenchArgs, Mode, Op};
use crate::greeting::{SPAN_UNIT_BYTES, SPAN_UNITS_MAX};
use spinwire::limits::{POST_CHAIN_MAX, SEND_DEPTH_DEFAULT};
use std::time::Duration;

const ATOMIC_BYTES: u32 = 8;

/// When the measurement ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    Count(u64),
    Time(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) op: Op,
    pub(super) mode: Mode,
    pub(super) size: u32,
    /// Operations outstanding; 1 when latency is measured.
    pub(super) depth: u32,
    /// Operations behind one doorbell, the last of which is signalled.
    pub(super) post_list: u32,
    /// Memory that operations go through in turn, in units of the greeting; 0 for that of one.
    pub(super) span: u16,
    pub(super) warmup: u64,
    pub(super) until: Until,
}

impl Job {
    /// # Errors
    /// Numbers that contradict each other, and why.
    pub(super) fn parse(args: &BenchArgs) -> Result<Self, String> {
        let (op, mode) = (args.op, args.mode);
        let latency = mode == Mode::Latency;
        let atomic = matches!(op, Op::Cas | Op::Faa);
        let size = match (args.size, mode) {
            (Some(size), _) if atomic && size != ATOMIC_BYTES => {
                return Err(format!(
                    "--size {size}: an atomic works on {ATOMIC_BYTES} bytes"
                ));
            }
            (Some(0), _) if matches!(op, Op::Write | Op::Read) => {
                return Err("--size 0: a READ or WRITE is to move a byte at least".into());
            }
            (Some(size), _) => size,
            (None, _) if atomic => ATOMIC_BYTES,
            (None, Mode::Latency) => 8,
            (None, Mode::Rate) => 64,
            (None, Mode::Bandwidth) => 64 << 10,
        };
        if latency && (args.depth.is_some() || args.post_list.is_some()) {
            return Err("--depth and --post-list are for rate and bandwidth: latency is measured one operation at a time".into());
        }
        let depth = match args.depth {
            _ if latency => 1,
            given => given.unwrap_or(SEND_DEPTH_DEFAULT),
        };
        let chain_max = u32::try_from(POST_CHAIN_MAX).unwrap_or(u32::MAX);
        let post_list = args.post_list.unwrap_or_else(|| chain_max.min(depth));
        if post_list > chain_max.min(depth) {
            return Err(format!(
                "--post-list {post_list}: at most {chain_max}, and at most --depth, which is {depth}"
            ));
        }
        let span = span(args, size)?;
        let iters = args.iters.unwrap_or(match mode {
            Mode::Latency | Mode::Bandwidth => 10_000,
            Mode::Rate => 100_000,
        });
        Ok(Self {
            op,
            mode,
            size,
            depth,
            post_list,
            span,
            warmup: args.warmup.unwrap_or_else(|| (iters / 10).min(1000)),
            until: args.duration.map_or(Until::Count(iters), Until::Time),
        })
    }

    /// Warm-up and measurement, where that is a number.
    pub(super) fn total(&self) -> Option<u64> {
        match self.until {
            Until::Count(n) => n.checked_add(self.warmup),
            Until::Time(_) => None,
        }
    }

    /// Work requests that the send queue has to have room for: a WRITE answers before the one before
    /// it has completed.
    pub(super) fn send_depth(&self) -> Option<u32> {
        (self.mode != Mode::Latency).then_some(self.depth)
    }
}

/// # Errors
/// It is of no use here, or too long.
fn span(args: &BenchArgs, size: u32) -> Result<u16, String> {
    let Some(bytes) = args.span else {
        return Ok(0);
    };
    if args.mode == Mode::Latency || !matches!(args.op, Op::Read | Op::Write) {
        return Err("--span is for rate and bandwidth of READs and WRITEs".into());
    }
    let most = u32::from(SPAN_UNITS_MAX) * SPAN_UNIT_BYTES;
    if bytes < size || bytes > most {
        return Err(format!("--span {bytes}: from --size, {size}, to {most}"));
    }
    Ok(u16::try_from(bytes.div_ceil(SPAN_UNIT_BYTES)).unwrap_or(SPAN_UNITS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn job(options: &str) -> Result<Job, String> {
        let line = format!("spinwire bench rdma://h:1 {options}");
        match Cli::try_parse_from(line.split_whitespace()).map(|cli| cli.command) {
            Ok(Command::Bench(args)) => Job::parse(&args),
            Ok(_) => Err("another command".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn each_mode_has_its_defaults() {
        let numbers = |options| job(options).map(|j| (j.size, j.depth, j.post_list, j.warmup));
        assert_eq!(numbers(""), Ok((8, 1, 1, 1000)));
        assert_eq!(numbers("--mode rate"), Ok((64, 128, 32, 1000)));
        assert_eq!(
            numbers("--op read --mode bandwidth --depth 8 --iters 50"),
            Ok((65536, 8, 8, 5))
        );
        assert_eq!(numbers("--op faa --mode rate"), Ok((8, 128, 32, 1000)));
        let span = |options| job(options).map(|j| j.span);
        assert_eq!(span("--op read --mode rate"), Ok(0));
        assert_eq!(span("--op read --mode rate --span 65537"), Ok(2));
        assert_eq!(span("--op write --mode rate --span 268435456"), Ok(4096));
        assert_eq!(job("--iters 50").map(|j| j.total()), Ok(Some(55)));
        assert_eq!(job("--duration 1").map(|j| j.total()), Ok(None));
    }

    #[test]
    fn what_cannot_be_is_said() {
        for (options, word) in [
            ("--op cas --size 16", "8 bytes"),
            ("--op write --size 0", "a byte"),
            ("--op write --span 65536", "--span is for"),
            ("--mode rate --span 65536", "--span is for"),
            ("--op read --mode rate --size 4096 --span 4095", "4096"),
            ("--op read --mode rate --span 268435457", "268435456"),
            ("--depth 4", "one operation"),
            ("--post-list 4", "one operation"),
            ("--mode rate --depth 4 --post-list 8", "--depth"),
            ("--mode rate --post-list 33", "at most 32"),
            ("--mode rate --depth 0", "--depth"),
        ] {
            let error = job(options).expect_err(options);
            assert!(error.contains(word), "{options}: {error}");
        }
    }
}
