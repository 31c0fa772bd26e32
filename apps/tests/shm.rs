//! The program with itself, as two processes over shared memory.
//!
//! ```text
//!  spinwire serve --listen shm://NAME  ◄──  spinwire bench shm://NAME   every operation and mode
//!  spinwire rping --server             ◄──  spinwire rping
//! ```

use serde_json::Value;
use spinwire::sys::affinity::allowed_cores;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Every worker spins on one of few cores: two tests at a time would wait for each other's turns.
static TURN: Mutex<()> = Mutex::new(());

/// A directory for the names of one test, gone at the end; and the test's turn.
struct Names(
    PathBuf,
    #[expect(dead_code, reason = "held")] MutexGuard<'static, ()>,
);

impl Names {
    fn new(test: &str) -> Self {
        let dir = format!("/tmp/spinwire-{test}-{}", std::process::id());
        let turn = TURN
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        Self(dir.into(), turn)
    }

    /// The program, meeting here.
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spinwire"));
        command.args(line.split_whitespace());
        command.env("SPINWIRE_SHM_DIR", &self.0);
        command
    }

    /// A server that listens, which it says on standard output, or on standard error beside JSON.
    fn serve(&self, line: &str) -> Server {
        Self::started(self.command(line), line.contains("--json"))
    }

    fn started(mut command: Command, json: bool) -> Server {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("starts");
        let mut out: Box<dyn Read> = Box::new(child.stdout.take().expect("piped"));
        let mut err: Box<dyn Read> = Box::new(child.stderr.take().expect("piped"));
        if json {
            std::mem::swap(&mut out, &mut err);
        }
        let mut out = BufReader::new(out);
        let mut first = String::new();
        out.read_line(&mut first).expect("a line");
        let pipes: [Box<dyn Read>; 2] = [Box::new(out), err];
        let server = Server(child, pipes);
        assert!(first.starts_with("listening on shm://"), "{first:?}");
        server
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().expect("starts")
    }

    fn json(&self, line: &str) -> Value {
        let output = self.run(line);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {said}");
        serde_json::from_slice(&output.stdout).expect("one document")
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// With its pipes: what writes to a closed one fails.
struct Server(
    Child,
    #[expect(dead_code, reason = "held")] [Box<dyn Read>; 2],
);

impl Server {
    /// By the signal that ends it; all is well then, and nothing is left behind.
    fn stop(mut self) {
        let pid = i32::try_from(self.0.id()).expect("a pid");
        let pid = rustix::process::Pid::from_raw(pid).expect("not 0");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("lives");
        let status = self.0.wait().expect("ends");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn every_operation_is_measured_between_two_processes() {
    let names = Names::new("ops");
    let server = names.serve("serve --listen shm://ops --size-max 4096");
    for op in ["send", "write", "read", "cas", "faa"] {
        for mode in ["latency", "rate"] {
            let line = format!("bench shm://ops --op {op} --mode {mode} --iters 2000 --json");
            let report = names.json(&line);
            let row = &report["results"][0];
            assert_eq!(row["iterations"], 2000, "{line}");
            assert_eq!(report["peer"], "shm://ops");
            assert_eq!(report["granted"][0]["lanes"][0]["device"], "shm0");
            if mode == "latency" {
                let buckets = row["histogram"].as_array().expect("buckets");
                let counted: u64 = buckets.iter().filter_map(|b| b["count"].as_u64()).sum();
                assert_eq!(counted, 2000, "{line}");
            }
        }
    }
    server.stop();
    let socket = names.0.join("ops");
    assert!(!socket.exists(), "the name goes with its listener");
}

#[test]
fn every_byte_of_a_ping_is_right() {
    let names = Names::new("ping");
    let server = names.serve("rping --server --listen shm://ping --json");
    for size in [64, 5000] {
        let report = names.json(&format!("rping shm://ping --count 50 --size {size} --json"));
        assert_eq!(report["exchanges"], 50);
        assert_eq!(report["verified"], 50 * size);
    }
    server.stop();
}

/// It measures until it is killed, or its peer is.
fn busy_client(names: &Names) -> Child {
    let mut command = names.command("bench shm://kill --mode rate --duration 60");
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let client = command.spawn().expect("starts");
    std::thread::sleep(Duration::from_secs(1));
    client
}

#[test]
fn a_killed_client_makes_room_for_the_next() {
    let names = Names::new("kill");
    // Room for one.
    let server = names.serve("serve --listen shm://kill --connections 1");
    for _ in 0..2 {
        let mut client = busy_client(&names);
        client.kill().expect("lives");
        client.wait().expect("ends");
        let report = names.json("bench shm://kill --iters 100 --json");
        assert_eq!(report["results"][0]["iterations"], 100);
    }
    server.stop();
}

#[test]
fn a_killed_server_is_noticed_by_its_client_and_its_name_can_be_taken() {
    let names = Names::new("dead");
    let mut server = names.serve("serve --listen shm://kill");
    let client = busy_client(&names);
    server.0.kill().expect("lives");
    let begin = Instant::now();
    let output = client.wait_with_output().expect("ends");
    assert!(begin.elapsed() < Duration::from_secs(8), "{begin:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    drop(server);
    names.serve("serve --listen shm://kill").stop();
}

#[test]
fn nobody_there_is_said_and_is_a_failure() {
    let names = Names::new("none");
    let output = names.run("bench shm://none --iters 10");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("shm://none"), "{said}");
}

#[test]
fn shared_memory_is_among_the_devices() {
    let devices = Names::new("list").json("devices --json");
    let devices = devices.as_array().expect("a list");
    let shm = devices.iter().find(|device| device["name"] == "shm0");
    assert_eq!(shm.expect("listed")["limits"]["transport"], "shm");
}

/// A core map with a worker on a core that this process may use.
struct Map(PathBuf);

impl Map {
    fn new(test: &str, more: &str) -> Self {
        let core = allowed_cores().expect("some")[0].number();
        let text = format!("[[worker]]\ncore = {core}\nidle = \"yield\"\n{more}");
        let path = format!("spinwire-{test}-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(path);
        std::fs::write(&path, text).expect("written");
        Self(path)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_device_that_is_not_there_is_told_from_shm0() {
    let names = Names::new("missing");
    let map = Map::new("missing", "devices = [\"nothing0\"]\n");
    let output = names.run(&format!(
        "serve --listen shm://map --config {}",
        map.0.display()
    ));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("nothing0") && said.contains("shm0"), "{said}");
}

#[test]
fn a_core_map_says_where_names_are() {
    let names = Names::new("dir");
    let map = Map::new("dir", &format!("[shm]\ndir = \"{}\"\n", names.0.display()));
    let line = format!("serve --listen shm://dir --config {}", map.0.display());
    let mut serve = names.command(&line);
    serve.env_remove("SPINWIRE_SHM_DIR");
    let server = Names::started(serve, false);
    names.json("bench shm://dir --iters 10 --json");
    server.stop();
}
