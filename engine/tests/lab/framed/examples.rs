//! The examples, as processes.

use super::*;
use rustix::process::{Pid, Signal, kill_process};

/// An example that was built beside this test: `target/PROFILE/deps/lab-…` and
/// `target/PROFILE/examples/NAME`.
fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(std::path::Path::parent).unwrap();
    let path: PathBuf = profile.join("examples").join(name);
    assert!(
        path.exists(),
        "{} is not there: cargo build -p spinwire --examples, with the profile of this test",
        path.display()
    );
    Command::new(path)
}

/// Starts the serving half; gives it when it listens.
fn serve(name: &str, word: &str, at: &str) -> Child {
    let mut command = example(name);
    command.args([word, at]).stdout(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(server.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on"), "{line:?}");
    server
}

fn run_example(name: &str, words: [&str; 2], more: &[&str], expected: &str, port: u16) {
    for (_, host) in [RXE, SIW] {
        let witness = Witness::new();
        let at = url(host, port).to_string();
        let mut server = serve(name, words[0], &at);
        // Twice: the serving half goes on.
        for _ in 0..2 {
            let mut client = example(name);
            let output = client.args([words[1], &at]).args(more).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name}: {text} {errors}");
            assert!(text.contains(expected), "{name}: {text}");
        }
        end_well(&mut server);
        witness.assert_unchanged();
    }
}

/// The serving half ends when it is told to, and leaves nothing.
fn end_well(server: &mut Child) {
    kill_process(Pid::from_child(server), Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success(), "it did not end well");
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_example_request_reply() {
    let words = ["serve", "ask"];
    run_example("request_reply", words, &["20000"], "20000 answers", 7341);
}

#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_example_one_sided() {
    let words = ["offer", "read"];
    let expected = "the checksum is right";
    run_example("one_sided", words, &[], expected, 7342);
}

/// Workers of the lock's example: the numbers that the node gave under the lock have no gap.
#[test]
#[ignore = "needs the lab: scripts/test --lab"]
fn own_example_remote_lock() {
    let witness = Witness::new();
    let at = url(RXE.1, 7343).to_string();
    let work = |owner: &str| {
        let mut command = example("remote_lock");
        command.args(["work", &at, owner, "50"]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let said = |worker: Child| {
        let output = worker.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let mut node = serve("remote_lock", "node", &at);
    let alone = "50 rounds; the last ticket was 49, the last number 50; 0 taken over, 0 refused\n";
    assert_eq!(said(work("7")), alone);
    let both = [work("8"), work("9")].map(said);
    let last = both
        .iter()
        .any(|text| text.contains("the last number 150;"));
    assert!(last, "{both:?}");
    end_well(&mut node);

    // iWARP has no atomics, and the example says so.
    let at = url(SIW.1, 7344).to_string();
    let mut node = serve("remote_lock", "node", &at);
    let mut worker = example("remote_lock");
    let output = worker.args(["work", &at, "7", "50"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.contains("cannot do this operation"), "{errors}");
    end_well(&mut node);
    witness.assert_unchanged();
}
