//! Every fault of a core map names file, line, value seen and value allowed.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod config_common;

use config_common::{MIB, device, host, plan_of, rxe, siw};
use spinwire::config::{CONFIG_BYTES_MAX, Config, ConfigError, FAULTS_MAX, Host, Side};
use spinwire::limits::{LANES_MAX, WORKERS_MAX};
use spinwire::types::{CoreId, DeviceLimits, IdlePolicy};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A map with nothing wrong; 4 lines, so that what a test adds begins in line 5.
const GOOD: &str = "[control]\ncore = 0\n[[worker]]\ncore = 1\n";

fn two_core() -> Host {
    host(2, vec![rxe()], 0)
}

/// `text` has exactly this one fault, with all of `parts` in its message.
#[track_caller]
fn one_fault_on(host: &Host, text: &str, start: &str, parts: &[&str]) {
    let shown = plan_of(text, host).unwrap_err();
    assert_eq!(shown.lines().count(), 1, "one mistake, one fault:\n{shown}");
    assert!(
        shown.starts_with(start),
        "{shown}\nshould start with\n{start}"
    );
    for part in parts {
        assert!(shown.contains(part), "{shown}\nshould contain\n{part}");
    }
}

/// [`GOOD`] and `more` have exactly this one fault on the two-core host.
#[track_caller]
fn one_fault(more: &str, start: &str, parts: &[&str]) {
    one_fault_on(&two_core(), &format!("{GOOD}{more}"), start, parts);
}

#[test]
fn an_unknown_key_names_the_nearest_one() {
    one_fault(
        "[queues]\nsend_dept = 64\n",
        "map.toml:6: [queues] send_dept = 64: unknown key; nearest is `send_depth`",
        &[
            "[queues] has send_depth, recv_depth, receives, shared_recv_depth, cq_depth, inline_bytes, connections_max",
        ],
    );
    one_fault(
        "[que]\nsend_depth = 1\n",
        "map.toml:5: que = a section: unknown key; nearest is `queues`",
        &["a core map has control, worker, pool, queues, connection"],
    );
    one_fault(
        "colour = \"red\"\n",
        "map.toml:5: [[worker]] colour = \"red\": unknown key; nearest is `core`",
        &[],
    );
    one_fault(
        "[pool]\nsend_depth = 1\n",
        "map.toml:6: [pool] send_depth = 1: unknown key",
        &["it belongs in [queues]"],
    );
}

#[test]
fn a_wrong_type_or_number_names_the_right_ones() {
    for (key, seen, allowed) in [
        ("send_depth", "\"64\"", "a whole number from 1 to 16384"),
        ("send_depth", "64.0", "a whole number from 1 to 16384"),
        ("send_depth", "-1", "a whole number from 1 to 16384"),
        ("send_depth", "0", "a whole number from 1 to 16384"),
        ("send_depth", "16385", "a whole number from 1 to 16384"),
        ("recv_depth", "0", "a whole number from 1 to 16384"),
        ("recv_depth", "true", "a whole number from 1 to 16384"),
        ("recv_depth", "[1]", "a whole number from 1 to 16384"),
        (
            "cq_depth",
            "4294967296",
            "a whole number from 2 to 4294967295",
        ),
        (
            "cq_depth",
            "99999999999999999999",
            "a whole number from 2 to 4294967295",
        ),
        ("cq_depth", "nan", "a whole number from 2 to 4294967295"),
        (
            "cq_depth",
            "1979-05-27",
            "a whole number from 2 to 4294967295",
        ),
        ("inline_bytes", "1025", "a whole number from 0 to 1024"),
        ("connections_max", "0", "a whole number from 1 to 65536"),
        ("connections_max", "65537", "a whole number from 1 to 65536"),
    ] {
        one_fault(
            &format!("[queues]\n{key} = {seen}\n"),
            &format!("map.toml:6: [queues] {key} = {seen}: {allowed}"),
            &[],
        );
    }
    for (key, seen, allowed) in [
        ("slots", "1", "a whole number from 2 to 1048576"),
        ("slots", "1048577", "a whole number from 2 to 1048576"),
        ("slot_bytes", "0", "a whole number from 64 to 8388608"),
        ("slot_bytes", "8388609", "a whole number from 64 to 8388608"),
        (
            "slot_bytes",
            "\"16KiB\"",
            "a whole number from 64 to 8388608",
        ),
        (
            "slot_bytes",
            "100",
            "a multiple of 64, a cache line, such as 64 or 128",
        ),
        (
            "hugepages",
            "\"maybe\"",
            "\"require\" or \"prefer\" or \"off\"",
        ),
        ("hugepages", "true", "\"require\" or \"prefer\" or \"off\""),
    ] {
        one_fault(
            &format!("[pool]\n{key} = {seen}\n"),
            &format!("map.toml:6: [pool] {key} = {seen}: {allowed}"),
            &[],
        );
    }
    for key in [
        "resolve_timeout_ms",
        "connect_timeout_ms",
        "drain_deadline_ms",
    ] {
        for seen in ["0", "600001"] {
            one_fault(
                &format!("[connection]\n{key} = {seen}\n"),
                &format!(
                    "map.toml:6: [connection] {key} = {seen}: a whole number from 1 to 600000"
                ),
                &[],
            );
        }
    }
    for key in ["retry_count", "rnr_retry_count"] {
        one_fault(
            &format!("[connection]\n{key} = 8\n"),
            &format!("map.toml:6: [connection] {key} = 8: a whole number from 0 to 7"),
            &[],
        );
    }
    one_fault(
        "idle = \"Spin\"\n",
        "map.toml:5: [[worker]] idle = \"Spin\": \"spin\" or \"yield\" or \"event\"",
        &[],
    );
}

#[test]
fn a_section_of_the_wrong_shape_names_the_right_one() {
    let host = two_core();
    one_fault_on(
        &host,
        "pool = 3\n[[worker]]\ncore = 1\n",
        "map.toml:1: pool = 3: one section, headed by [pool]",
        &[],
    );
    one_fault_on(
        &host,
        "[worker]\ncore = 1\n",
        "map.toml:1: worker = a section: a list of sections, each headed by [[worker]]",
        &[],
    );
    one_fault_on(
        &host,
        "\nworker = [1]\n",
        "map.toml:2: [[worker]] = 1: a section, headed by [[worker]]",
        &[],
    );
    one_fault_on(
        &host,
        "[[worker]]\ncore = 1\n[[queues]]\nsend_depth = 1\n",
        "map.toml:3: queues = a list of sections: one section, headed by [queues]",
        &[],
    );
}

#[test]
fn no_worker_is_refused() {
    for text in ["", "# nothing\n", "worker = []\n", "[control]\ncore = 0\n"] {
        one_fault_on(
            &two_core(),
            text,
            "map.toml:1: [[worker]] = none: at least one [[worker]] section, with a core of 0-1",
            &[],
        );
    }
}

#[test]
fn a_worker_without_core_is_refused() {
    one_fault_on(
        &two_core(),
        "\n[[worker]]\nidle = \"spin\"\n",
        "map.toml:2: [[worker]] core = none: a core of 0-1",
        &[],
    );
}

#[test]
fn too_many_workers_are_refused() {
    let mut text = String::new();
    for core in 0..=WORKERS_MAX {
        writeln!(text, "[[worker]]\ncore = {core}").unwrap();
    }
    one_fault_on(
        &host(512, vec![rxe()], 0),
        &text,
        "map.toml:513: [[worker]] = 257 workers: at most 256 workers",
        &[],
    );
}

#[test]
fn a_core_that_does_not_exist_is_refused() {
    one_fault_on(
        &two_core(),
        "[[worker]]\ncore = 9\n",
        "map.toml:2: [[worker]] core = 9: a core of 0-1, which are online and allowed",
        &[],
    );
    one_fault_on(
        &two_core(),
        "[[worker]]\ncore = 1024\n",
        "map.toml:2: [[worker]] core = 1024: a whole number from 0 to 1023",
        &[],
    );
    let odd = Host::from_parts(
        [0, 2, 3, 7].iter().filter_map(|&n| CoreId::new(n)),
        vec![rxe()],
        0,
        [].into(),
    );
    one_fault_on(
        &odd,
        "[control]\ncore = 1\n[[worker]]\ncore = 2\n",
        "map.toml:2: [control] core = 1: a core of 0,2-3,7,",
        &[],
    );
}

#[test]
fn a_core_used_twice_names_the_other_line() {
    one_fault_on(
        &host(4, vec![rxe()], 0),
        "[control]\ncore = 2\n\n[[worker]]\ncore = 2\n",
        "map.toml:5: [[worker]] core = 2: a core that nobody else has: [control] core in line 2 has it already; free: 0-1,3",
        &[],
    );
    one_fault_on(
        &two_core(),
        "[[worker]]\ncore = 1\n[[worker]]\ncore = 1\n",
        "map.toml:4: [[worker]] core = 1: a core that nobody else has: [[worker]] core in line 2 has it already; free: 0",
        &[],
    );
    // The later line is at fault, whichever section it is in.
    one_fault_on(
        &two_core(),
        "[[worker]]\ncore = 1\n[control]\ncore = 1\n",
        "map.toml:4: [control] core = 1: a core that nobody else has: [[worker]] core in line 2",
        &[],
    );
}

#[test]
fn a_device_that_is_missing_down_or_doubled_is_refused() {
    let down = DeviceLimits {
        active: false,
        ..device("mlx5_1", 1000, 1000)
    };
    let host = host(2, vec![rxe(), siw(), down], 0);
    let text = |devices: &str| format!("[[worker]]\ncore = 1\ndevices = {devices}\n");
    one_fault_on(
        &host,
        &text("[\"rxe1\"]"),
        "map.toml:3: [[worker]] devices = \"rxe1\": a device with an active port; there is rxe0, siw0 (`rdma link`)",
        &[],
    );
    one_fault_on(
        &host,
        &text("[\n  \"siw0\",\n  \"mlx5_1\",\n]"),
        "map.toml:5: [[worker]] devices = \"mlx5_1\": a device with an active port, this one has none; there is rxe0, siw0",
        &[],
    );
    one_fault_on(
        &host,
        &text("[\n  \"siw0\",\n  \"siw0\",\n]"),
        "map.toml:5: [[worker]] devices = \"siw0\": each device once: line 4 names it already",
        &[],
    );
    for seen in ["[]", "\"rxe0\"", "[1]", "[[\"rxe0\"]]"] {
        one_fault_on(
            &host,
            &text(seen),
            &format!("map.toml:3: [[worker]] devices = {seen}: a list of device names such as"),
            &[],
        );
    }
}

#[test]
fn too_many_lanes_are_refused() {
    let devices: Vec<_> = (0..=LANES_MAX)
        .map(|n| device(&format!("d{n}"), 1000, 100_000))
        .collect();
    let names: Vec<_> = devices
        .iter()
        .map(|device| format!("{:?}", device.name))
        .collect();
    let host = host(2, devices, 0);
    one_fault_on(
        &host,
        &format!("[[worker]]\ncore = 0\ndevices = [{}]\n", names.join(", ")),
        "map.toml:3: [[worker]] devices = [\"d0\", ",
        &["at most 8 devices for one worker, these are 9"],
    );
    one_fault_on(
        &host,
        "[[worker]]\ncore = 0\n",
        "map.toml:1: [[worker]] devices = every one: a list of at most 8 devices; there is d0, d1",
        &[],
    );
}

#[test]
fn a_host_without_a_device_is_told_where_to_look() {
    one_fault_on(
        &host(2, Vec::new(), 0),
        "[[worker]]\ncore = 0\n",
        "map.toml:1: [[worker]] devices = every one: needs a device with an active port",
        &["`rdma link`", "`ibv_devices`"],
    );
}

#[test]
fn a_depth_above_the_device_names_device_and_limit() {
    let host = host(2, vec![device("small", 100, 1000)], 0);
    for key in ["send_depth", "recv_depth"] {
        one_fault_on(
            &host,
            &format!("{GOOD}[queues]\n{key} = 101\n"),
            &format!(
                "map.toml:6: [queues] {key} = 101: at most 100, the depth of a queue on small"
            ),
            &["ibv_devinfo -v -d small"],
        );
    }
    one_fault_on(
        &host,
        &format!("{GOOD}[queues]\ncq_depth = 1001\n"),
        "map.toml:6: [queues] cq_depth = 1001: at most 1000, the depth of a CQ on small",
        &[],
    );
}

#[test]
fn sums_above_the_cq_show_the_sum_and_what_fits() {
    // The CQ that is asked for.
    one_fault(
        "[queues]\ncq_depth = 1000\nconnections_max = 10\nsend_depth = 60\nrecv_depth = 60\n",
        "map.toml:7: [queues] connections_max = 10: 10 connections × (send_depth 60 + recv_depth 60) = 1200 completions, above the cq_depth of 1000; at most 8 connections, or cq_depth = 1200",
        &[],
    );
    // The CQ by default: 80 % of 32767.
    one_fault(
        "[queues]\nconnections_max = 103\n",
        "map.toml:6: [queues] connections_max = 103: 103 connections × (send_depth 128 + recv_depth 128) = 26368 completions, above the CQ's 26213 that rxe0 has by default; at most 102 connections, or cq_depth = 26368",
        &[],
    );
    // More than the device has at all.
    one_fault(
        "[queues]\nconnections_max = 1000\n",
        "map.toml:6: [queues] connections_max = 1000: ",
        &["= 256000 completions", "rxe0 has CQs up to 32767"],
    );
    // Not even one connection.
    one_fault(
        "[queues]\ncq_depth = 100\nsend_depth = 100\n",
        "map.toml:6: [queues] cq_depth = 100: 1 connections × (send_depth 100 + recv_depth 1) = 101 completions",
        &[
            "at most 100 for send_depth + recv_depth",
            "or cq_depth = 101",
        ],
    );
}

#[test]
fn more_connections_than_qps_or_numbers_are_refused() {
    let few = DeviceLimits {
        qp_max: 100,
        ..device("few", 1000, 1_000_000)
    };
    one_fault_on(
        &host(4, vec![few], 0),
        "[[worker]]\ncore = 0\n[[worker]]\ncore = 1\n[queues]\nconnections_max = 51\n",
        "map.toml:6: [queues] connections_max = 51: at most 50: 2 workers make 102 connections on few, which has 100 QPs",
        &[],
    );
    let big = |name| DeviceLimits {
        qp_max: u32::MAX,
        ..device(name, 1000, u32::MAX)
    };
    one_fault_on(
        &host(2, vec![big("a"), big("b")], 0),
        "[[worker]]\ncore = 0\n[queues]\nconnections_max = 40000\ncq_depth = 4000000000\n",
        "map.toml:4: [queues] connections_max = 40000: at most 32768: 2 devices make 80000 connections of one worker",
        &[],
    );
    let one_cq = DeviceLimits {
        cq_max: 1,
        ..device("one", 1000, 100_000)
    };
    one_fault_on(
        &host(2, vec![one_cq], 0),
        "[[worker]]\ncore = 0\n[[worker]]\ncore = 1\n",
        "map.toml:1: [[worker]] devices = 2 workers: at most 1 workers on one, each with a CQ",
        &[],
    );
}

#[test]
fn a_pool_holds_the_receives_of_a_connection_and_a_send() {
    one_fault(
        "[pool]\nslots = 64\n[queues]\nrecv_depth = 64\n",
        "map.toml:8: [queues] recv_depth = 64: at most 63, or [pool] slots = 65 and more, now 64",
        &[],
    );
    one_fault(
        "[queues]\nrecv_depth = 1024\n",
        "map.toml:6: [queues] recv_depth = 1024: at most 1023, or [pool] slots = 1025 and more, now 1024",
        &[],
    );
    // The default shrinks instead.
    let plan = plan_of(&format!("{GOOD}[pool]\nslots = 64\n"), &two_core()).unwrap();
    assert_eq!(plan.workers[0].lanes[0].recv_depth, 63);
}

#[test]
fn a_pool_grows_from_what_it_starts_with() {
    one_fault(
        "[pool]\nslots = 100\nslots_max = 99\n[queues]\nrecv_depth = 8\n",
        "map.toml:7: [pool] slots_max = 99: 100 or more: the pool starts with so many slots",
        &[],
    );
    one_fault(
        "[pool]\nslots_max = 1048577\n",
        "map.toml:6: [pool] slots_max = 1048577: a whole number from 2 to 1048576",
        &[],
    );
    let pool = |text: &str| {
        let plan = plan_of(&format!("{GOOD}{text}"), &two_core()).unwrap();
        (plan.pool.slots, plan.pool.slots_max)
    };
    assert_eq!(pool(""), (1024, 1024), "it does not grow");
    assert_eq!(pool("[pool]\nslots = 512\n"), (512, 512));
    assert_eq!(pool("[pool]\nslots_max = 4096\n"), (1024, 4096));
}

#[test]
fn a_pool_above_one_registration_is_refused() {
    let small = DeviceLimits {
        mr_bytes_max: MIB,
        ..device("small", 1000, 100_000)
    };
    let host = host(2, vec![small], 0);
    one_fault_on(
        &host,
        &format!("{GOOD}[pool]\nslots = 257\nslot_bytes = 4096\n"),
        "map.toml:6: [pool] slots = 257: 257 slots × 4096 B = 1052672 B, above the 1048576 B that small registers at once; at most 256 slots",
        &[],
    );
    one_fault_on(
        &host,
        GOOD,
        "map.toml:3: [pool] slots = 1024 (default): 1024 slots × 16384 B",
        &[],
    );
}

#[test]
fn required_huge_pages_that_are_not_free_are_refused() {
    // One pool of 16 MiB; 6 MiB of 10 MiB free.
    let mut host = host(2, vec![rxe()], 6 * MIB);
    host.hugepages_total = 5;
    let text = format!("{GOOD}[pool]\nhugepages = \"require\"\n");
    one_fault_on(
        &host,
        &text,
        "map.toml:6: [pool] hugepages = \"require\": needs 16777216 B in pages of 2097152 B for 1 pools, 6291456 B are free; `sysctl vm.nr_hugepages=10`",
        &[],
    );
    host.free_hugepages_bytes = 16 * MIB;
    plan_of(&text, &host).unwrap();
    host.hugepage_bytes = 0;
    one_fault_on(
        &host,
        &text,
        "map.toml:6: [pool] hugepages = \"require\": \"prefer\" or \"off\"",
        &[],
    );
    plan_of(&text.replace("require", "prefer"), &host).unwrap();
}

#[test]
fn all_faults_are_reported_in_the_order_of_lines() {
    let text = "[pool]\nslots = -1\nslotbytes = 2\n[[worker]]\ncore = 5\ndevices = [\"nope\"]\n[queues]\nsend_depth = 0\ncq_depth = 40000\n[control]\ncore = \"x\"\n";
    let shown = plan_of(text, &two_core()).unwrap_err();
    let lines: Vec<_> = shown
        .lines()
        .map(|line| line.split(':').nth(1).unwrap())
        .collect();
    // Line 9 is not seen: without its device, nobody knows the limit of a CQ.
    assert_eq!(lines, ["2", "3", "5", "6", "8", "11"], "{shown}");
}

#[test]
fn a_flood_of_faults_is_bounded() {
    let mut text = GOOD.to_owned();
    text.push_str("[queues]\n");
    for n in 0..10_000 {
        writeln!(text, "k{n} = 1").unwrap();
    }
    let config = Config::from_text(&text, "map.toml").unwrap();
    let errors = config.check(&two_core()).unwrap_err();
    assert_eq!(errors.faults().len(), FAULTS_MAX);
    assert_eq!(errors.more(), 10_000 - FAULTS_MAX);
    assert!(errors.to_string().ends_with("\nand 9936 more"));
}

#[test]
fn a_fault_is_one_line_whatever_the_file_says() {
    let text = format!("{GOOD}[pool]\nhugepages = '''\n\u{1b}[31mred\n'''\n");
    // TOML refuses the escape itself; written as an escape it is shown as one.
    assert!(plan_of(&text, &two_core()).unwrap_err().lines().count() == 1);
    let text = format!("{GOOD}[pool]\nhugepages = '''a\nb'''\n\"x\\u001b\\n\" = 1\n");
    let shown = plan_of(&text, &two_core()).unwrap_err();
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(lines.len(), 2, "{shown}");
    assert!(lines[0].starts_with("map.toml:6: [pool] hugepages = '''a\\nb''': "));
    assert!(lines[1].starts_with("map.toml:8: [pool] x\\u{1b}\\n = 1: unknown key"));
}

#[test]
fn syntax_errors_name_line_text_and_expectation() {
    for (text, start) in [
        ("[control]\ncore 0\n", "map.toml:2: `core 0`: "),
        (
            "[control]\ncore = 0\ncore = 1\n",
            "map.toml:3: `core = 1`: duplicate key",
        ),
        ("[control\n", "map.toml:1: `[control`: "),
        ("a = \"", "map.toml:1: `a = \"`: "),
    ] {
        let error = Config::from_text(text, "map.toml").unwrap_err();
        assert!(matches!(error, ConfigError::Syntax { .. }));
        let shown = error.to_string();
        assert!(
            shown.starts_with(start),
            "{shown}\nshould start with\n{start}"
        );
        assert_eq!(shown.lines().count(), 1, "{shown}");
    }
}

/// A folder of this test's own, gone at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("spinwire-config-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn only_bounded_text_of_regular_files_is_read() {
    let folder = Folder::new();
    let refused = |path: &Path| {
        let error = Config::from_path(path).unwrap_err();
        let shown = error.to_string();
        assert!(shown.starts_with(&path.display().to_string()), "{shown}");
        error
    };

    let good = folder.write("good.toml", GOOD.as_bytes());
    let config = Config::from_path(&good).unwrap();
    assert_eq!(config.origin(), good.display().to_string());
    config.check(&two_core()).unwrap();

    let mut full = vec![b'#'; CONFIG_BYTES_MAX];
    Config::from_path(folder.write("full.toml", &full)).unwrap();
    full.push(b'#');
    let error = refused(&folder.write("big.toml", &full));
    assert!(matches!(error, ConfigError::TooBig { bytes_min, .. } if bytes_min > 1 << 20));
    let error = Config::from_text(std::str::from_utf8(&full).unwrap(), "x").unwrap_err();
    assert!(matches!(error, ConfigError::TooBig { .. }));

    let error = refused(&folder.write("latin1.toml", b"# a\n# caf\xe9\n"));
    let shown = error.to_string();
    assert!(
        shown.ends_with("latin1.toml:2: byte 0xe9 at offset 9: a core map is UTF-8 text"),
        "{shown}"
    );

    let fifo = folder.0.join("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let socket = folder.0.join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    for (path, kind) in [
        (folder.0.as_path(), "a directory"),
        (fifo.as_path(), "a FIFO"),
        (socket.as_path(), "a socket"),
        (Path::new("/dev/zero"), "a device"),
    ] {
        assert!(
            matches!(refused(path), ConfigError::NotAFile { seen, .. } if seen == kind),
            "{kind}"
        );
    }
    assert!(matches!(
        refused(&folder.0.join("nothing")),
        ConfigError::Read { .. }
    ));
}

#[test]
fn defaults_take_apart_cores_for_client_and_server() {
    let host = host(4, vec![siw(), rxe()], 0);
    let server = Config::default_for(&host, Side::Server).unwrap();
    let client = Config::default_for(&host, Side::Client).unwrap();
    assert_eq!(server.control.core, CoreId::new(0));
    assert_eq!(server.workers[0].core, CoreId::new(3));
    assert_eq!(client.control.core, CoreId::new(3));
    assert_eq!(client.workers[0].core, CoreId::new(0));
    assert_eq!(server.workers.len(), 1);
    assert_eq!(server.workers[0].idle, IdlePolicy::Spin);
    let lanes = &server.workers[0].lanes;
    assert_eq!(lanes.len(), 2);
    for lane in lanes {
        assert_eq!((lane.send_depth, lane.recv_depth), (128, 128));
        assert_eq!((lane.connections_max, lane.cq_depth), (64, 16_384));
    }
}

#[test]
fn defaults_of_one_core_share_it() {
    let plan = Config::default_for(&host(1, vec![rxe()], 0), Side::Client).unwrap();
    assert_eq!(plan.control.core, None);
    assert_eq!(plan.workers[0].core, CoreId::new(0));
    assert_eq!(plan.workers[0].idle, IdlePolicy::Yield);
}

#[test]
fn defaults_without_device_or_core_say_so() {
    let shown = Config::default_for(&host(2, Vec::new(), 0), Side::Server)
        .unwrap_err()
        .to_string();
    assert!(
        shown.starts_with("built-in defaults: [[worker]] devices = every one: needs a device"),
        "{shown}"
    );
    let shown = Config::default_for(&host(0, vec![rxe()], 0), Side::Server)
        .unwrap_err()
        .to_string();
    assert!(shown.contains("[[worker]] core = none"), "{shown}");
}

#[test]
fn defaults_shrink_to_the_device() {
    // Depths: 80 % of 10. Connections: 80 % of 100, by 16.
    let plan =
        Config::default_for(&host(2, vec![device("tiny", 10, 100)], 0), Side::Server).unwrap();
    let lane = &plan.workers[0].lanes[0];
    assert_eq!((lane.send_depth, lane.recv_depth), (8, 8));
    assert_eq!((lane.connections_max, lane.cq_depth), (5, 80));
    // A CQ smaller than one connection's usual queues halves them.
    let plan =
        Config::default_for(&host(2, vec![device("flat", 1000, 100)], 0), Side::Server).unwrap();
    let lane = &plan.workers[0].lanes[0];
    assert_eq!(
        (lane.send_depth, lane.recv_depth, lane.connections_max),
        (40, 40, 1)
    );
    // A device without room for a send and a receive is none.
    let shown = Config::default_for(&host(2, vec![device("nil", 1, 1)], 0), Side::Server)
        .unwrap_err()
        .to_string();
    assert!(shown.contains("= 2 completions"), "{shown}");
}

#[test]
fn a_plan_reports_as_json() {
    let plan = plan_of(GOOD, &two_core()).unwrap();
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["control"]["core"], 0);
    assert_eq!(json["workers"][0]["core"], 1);
    assert_eq!(json["workers"][0]["idle"], "spin");
    assert_eq!(json["workers"][0]["lanes"][0]["device"], "rxe0");
    assert_eq!(json["pool"]["hugepages"], "prefer");
    assert_eq!(json["connection"]["drain_deadline_ms"], 1000);
}
