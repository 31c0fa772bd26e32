//! The command line. Help fits a screen.

use crate::rping::{SIZE_MAX, SIZE_MIN};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use spinwire::fabric::Url;
use std::path::PathBuf;
use std::time::Duration;

/// Busy-polling RDMA and shared memory: serve, measure, inspect.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
#[command(
    after_help = "SPINWIRE_LOG=error|warn|info|debug|trace sets what is logged on stderr.\n\
                        Exit status: 0 done, 1 failed, 2 wrong usage."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// The other end of `bench`; any other peer gets its messages back
    Serve(ServeArgs),
    /// Measure against a `spinwire serve`
    Bench(BenchArgs),
    /// Ping like librdmacm's rping, by READ and WRITE, with every byte checked
    Rping(RpingArgs),
    /// List devices, ports, GIDs and limits
    Devices(DevicesArgs),
}

/// Which cores, and what on them.
#[derive(Debug, Args)]
pub(crate) struct HostArgs {
    /// Core map in TOML (see config/); without one, a worker and control on a core each
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Core of the only worker
    #[arg(long, value_name = "N", conflicts_with = "config")]
    pub(crate) worker_core: Option<usize>,
    /// Core of control
    #[arg(long, value_name = "N", conflicts_with = "config")]
    pub(crate) control_core: Option<usize>,
    /// Bytes to send inline where the device allows
    #[arg(long, value_name = "BYTES")]
    pub(crate) inline: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address to listen on: rdma://HOST:PORT or shm://NAME
    #[arg(long, value_name = "URL")]
    pub(crate) listen: Url,
    /// Largest message to take, in bytes [default: 65536]
    #[arg(long, value_name = "BYTES", conflicts_with = "config")]
    pub(crate) size_max: Option<u32>,
    /// Connections to take on a device; fewer have a smaller CQ, which stays in the cache
    #[arg(long, value_name = "N", conflicts_with = "config",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connections: Option<u32>,
    /// Receives posted for each connection [default: 128]
    #[arg(long, value_name = "N", conflicts_with = "config",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) recv_depth: Option<u32>,
    #[command(flatten)]
    pub(crate) host: HostArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    // (Doc comments here would make the help longer than a screen.)
    Send,
    Write,
    Read,
    Cas,
    Faa,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    Latency,
    Rate,
    Bandwidth,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Server: rdma://HOST:PORT or shm://NAME
    pub(crate) url: Url,
    /// Operation
    #[arg(long, value_enum, default_value = "send")]
    pub(crate) op: Op,
    /// What to measure: one at a time, or --depth of them one way
    #[arg(long, value_enum, default_value = "latency")]
    pub(crate) mode: Mode,
    /// Bytes of a message [default: 8, rate 64, bandwidth 65536]
    #[arg(long, value_name = "BYTES")]
    pub(crate) size: Option<u32>,
    /// Bytes of memory that READs and WRITEs go through in turn [default: those of one]
    #[arg(long, value_name = "BYTES")]
    pub(crate) span: Option<u32>,
    /// Operations outstanding [default: 128]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) depth: Option<u32>,
    /// Operations behind one doorbell and one signal [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) post_list: Option<u32>,
    /// Operations to measure [default: 10000, rate 100000]
    #[arg(long, value_name = "N", conflicts_with = "duration",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iters: Option<u64>,
    /// Measure for this long instead: 5, 0.5, 5s, 200ms
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) duration: Option<Duration>,
    /// Operations before the measurement; by default a tenth of --iters, at most 1000
    #[arg(long, value_name = "N")]
    pub(crate) warmup: Option<u64>,
    /// Print one JSON document instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) host: HostArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RpingArgs {
    /// Server: rdma://HOST:PORT or shm://NAME
    #[arg(required_unless_present = "server", conflicts_with = "server")]
    pub(crate) url: Option<Url>,
    /// Be the server
    #[arg(long, requires = "listen")]
    pub(crate) server: bool,
    /// Address for the server to listen on: rdma://HOST:PORT or shm://NAME
    #[arg(long, value_name = "URL", requires = "server", conflicts_with = "url")]
    pub(crate) listen: Option<Url>,
    /// Exchanges to do or serve; without it until a signal
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Bytes of a ping, by default 64; for a server the most to take, by default 65535
    #[arg(long, value_name = "BYTES",
          value_parser = clap::value_parser!(u32).range(i64::from(SIZE_MIN)..=i64::from(SIZE_MAX)))]
    pub(crate) size: Option<u32>,
    /// Print one JSON document instead of the line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) host: HostArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DevicesArgs {
    /// Print one JSON document instead of the tables
    #[arg(long)]
    pub(crate) json: bool,
}

const DURATION_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1e-3),
        (None, Some(number)) => (number, 1.0),
        (None, None) => (text, 1.0),
    };
    let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let seconds = number
        .parse::<f64>()
        .ok()
        .filter(|_| plain)
        .map(|n| n * unit);
    seconds
        .and_then(|s| Duration::try_from_secs_f64(s).ok())
        .filter(|d| !d.is_zero() && *d <= DURATION_MAX)
        .ok_or_else(|| "a time above 0 and up to 7 days, such as 5, 0.5, 5s or 200ms".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound_and_help_fits_a_screen() {
        Cli::command().debug_assert();
        for sub in ["serve", "bench", "rping", "devices"] {
            let help = Cli::try_parse_from(["spinwire", sub, "--help"]).unwrap_err();
            let help = help.to_string();
            assert!(help.lines().count() <= 24, "{help}");
        }
    }

    #[test]
    fn durations() {
        for (text, ms) in [
            ("5", 5000),
            ("0.5", 500),
            ("5s", 5000),
            ("200ms", 200),
            ("1.5s", 1500),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(ms)),
                "{text}"
            );
        }
        for text in [
            "",
            "0",
            "0ms",
            "-1",
            "1e9",
            "inf",
            "nan",
            "s",
            "ms",
            "1m",
            "999999999",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn contradictions_are_usage_errors() {
        for args in [
            "spinwire bench rdma://h:1 --iters 5 --duration 1",
            "spinwire bench rdma://h:1 --iters 0",
            "spinwire bench tcp://h:1",
            "spinwire bench rdma://h:1 --size -1",
            "spinwire serve",
            "spinwire serve --listen rdma://h:1 --config f --worker-core 1",
            "spinwire rping",
            "spinwire rping --server",
            "spinwire rping --listen rdma://h:1",
            "spinwire rping rdma://h:1 --server --listen rdma://h:1",
            "spinwire rping rdma://h:1 --listen rdma://h:1",
            "spinwire rping rdma://h:1 --count 0",
            "spinwire rping rdma://h:1 --size 22",
            "spinwire rping rdma://h:1 --size 8388609",
        ] {
            assert!(Cli::try_parse_from(args.split(' ')).is_err(), "{args}");
        }
        let good =
            "spinwire bench rdma://[::1]:7471 --op send --mode latency --size 8 --iters 9 --json";
        assert!(Cli::try_parse_from(good.split(' ')).is_ok());
        for good in [
            "spinwire serve --listen shm://a-name --connections 1",
            "spinwire bench shm://a-name --mode rate --size 64",
            "spinwire rping --server --listen rdma://h:1",
            "spinwire rping --server --listen rdma://h:1 --count 9 --size 8388608 --json",
            "spinwire rping rdma://h:1 --count 9 --size 23 --json --worker-core 0",
        ] {
            assert!(Cli::try_parse_from(good.split(' ')).is_ok(), "{good}");
        }
    }
}
