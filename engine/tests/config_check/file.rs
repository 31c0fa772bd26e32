//! What a file alone says wrong: text, keys, types, ranges, shapes; and how faults are shown.

use crate::config_common::{host, plan_of, rxe};
use crate::{GOOD, one_fault, one_fault_on, two_core};
use spinwire::config::{CONFIG_BYTES_MAX, Config, ConfigError, FAULTS_MAX};
use spinwire::limits::WORKERS_MAX;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

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
        &["a core map has control, worker, pool, queues, connection, shm"],
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
fn shared_memory_says_where_and_who() {
    let plan = plan_of(
        &format!("{GOOD}[shm]\ndir = \"/tmp/mine\"\nuids = [0, 0x3e8]\n"),
        &two_core(),
    )
    .unwrap();
    assert_eq!(plan.shm.dir.as_deref(), Some(Path::new("/tmp/mine")));
    assert_eq!(plan.shm.uids, Some(vec![0, 1000]));
    let plan = plan_of(GOOD, &two_core()).unwrap();
    assert_eq!((plan.shm.dir, plan.shm.uids), (None, None));

    let long = format!("\"/{}\"", "x".repeat(4095));
    for dir in ["\"\"", "\"here\"", "7", "\"/a\\u0000b\"", &long] {
        one_fault(
            &format!("[shm]\ndir = {dir}\n"),
            "map.toml:6: [shm] dir = ",
            &["an absolute path of at most 4095 bytes"],
        );
    }
    let many = format!("[{}]", vec!["1"; 65].join(", "));
    for uids in [
        "[]",
        "7",
        "[-1]",
        "[4294967295]",
        "[\"root\"]",
        "[0, 1.5]",
        &many,
    ] {
        one_fault(
            &format!("[shm]\nuids = {uids}\n"),
            "map.toml:6: [shm] uids = ",
            &["a list of 1 to 64 users by number"],
        );
    }
    one_fault(
        "[shm]\nuid = [0]\n",
        "map.toml:6: [shm] uid = [0]: unknown key; nearest is `uids`",
        &["[shm] has dir, uids"],
    );
}
