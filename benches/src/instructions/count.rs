//! Whose the instructions are.
//!
//! ```text
//!  an instruction ─ addr2line ─► [ innermost … outermost function that it was inlined from ]
//!                                   └── the first in engine/src or benches/ owns it
//! ```
//! The standard library's and libc's instructions belong to whoever called them, inlined or not. What
//! the engine owns is counted; the services and the lane of this crate are not, nor what they call
//! that is not the engine's. Imported by main and report.

use crate::callgrind::{CountError, Function, Profile, Run};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// What a lane over shared memory consists of.
const LANE: [&str; 4] = [
    "fabric/shm/",
    "fabric/plain.rs",
    "memory/copy.rs",
    "sys/turnstile.rs",
];

/// Functions of an address that are ours, innermost first, and who owns it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Owner {
    /// A function of the engine, and the line in it.
    Engine { function: String, line: String },
    /// This crate.
    Bench,
    /// Neither: whoever called it.
    Caller,
}

/// What one scenario costs, per operation.
#[derive(Debug)]
pub(crate) struct Count {
    /// Instructions of the engine's.
    pub(crate) instructions: f64,
    /// Of them, those of the lane, where that is the engine's too.
    pub(crate) lane: f64,
    /// By function, most first.
    pub(crate) functions: Vec<(String, f64)>,
    /// By line, most first.
    pub(crate) lines: Vec<(String, f64)>,
}

/// Assigns what a run cost. `binary` is what ran.
pub(crate) fn assign(run: &Run, binary: &Path) -> Result<Count, CountError> {
    let owners = owners(&run.profile, binary)?;
    let spread = Spread::new(&run.profile, &owners, binary);
    let (mut functions, mut lines) = (BTreeMap::new(), BTreeMap::new());
    let (mut engine, mut lane, mut bench) = (0.0, 0.0, 0.0);
    for (owner, cost) in spread.owned() {
        match owner {
            Owner::Engine { function, line } => {
                engine += cost;
                if LANE.iter().any(|file| line.starts_with(file)) {
                    lane += cost;
                }
                *functions.entry(function.clone()).or_default() += cost;
                *lines.entry(line.clone()).or_default() += cost;
            }
            Owner::Bench | Owner::Caller => bench += cost,
        }
    }
    let total = run.profile.total();
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "counts lie far below 2^52"
    )]
    let lost = (total as f64 - engine - bench).abs().round() as u64;
    if lost > total / 1000 || engine == 0.0 {
        return Err(CountError::Unassigned { total, lost });
    }
    #[allow(clippy::cast_precision_loss, reason = "operations lie far below 2^52")]
    let operations = run.operations as f64;
    Ok(Count {
        instructions: engine / operations,
        lane: lane / operations,
        functions: ranked(functions, operations),
        lines: ranked(lines, operations),
    })
}

fn ranked(costs: BTreeMap<String, f64>, operations: f64) -> Vec<(String, f64)> {
    let mut all: Vec<_> = costs.into_iter().collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.iter_mut().for_each(|(_, cost)| *cost /= operations);
    all
}

impl Profile {
    fn total(&self) -> u64 {
        let all = self.functions.values();
        all.flat_map(|body| body.own.values()).sum()
    }
}

/// Hands what belongs to callers up to them.
struct Spread<'a> {
    profile: &'a Profile,
    owners: &'a BTreeMap<u64, Owner>,
    binary: &'a Path,
    /// Cost of all calls to a function.
    called: BTreeMap<&'a Function, u64>,
}

impl<'a> Spread<'a> {
    fn new(profile: &'a Profile, owners: &'a BTreeMap<u64, Owner>, binary: &'a Path) -> Self {
        let mut called = BTreeMap::new();
        for calls in profile.functions.values().flat_map(|body| &body.calls) {
            *called.entry(&calls.to).or_default() += calls.cost;
        }
        Self {
            profile,
            owners,
            binary,
            called,
        }
    }

    fn owner(&self, function: &Function, addr: u64) -> &'a Owner {
        if function.object != self.binary {
            return &Owner::Caller;
        }
        self.owners.get(&addr).unwrap_or(&Owner::Caller)
    }

    /// What each instruction of ours cost, with what it called that is not ours.
    fn owned(&self) -> Vec<(&'a Owner, f64)> {
        let mut left = BTreeMap::new();
        let mut all = Vec::new();
        for (function, body) in &self.profile.functions {
            let own = body.own.iter();
            all.extend(own.map(|(addr, cost)| (self.owner(function, *addr), float(*cost))));
            for calls in &body.calls {
                let owner = self.owner(function, calls.from);
                all.push((owner, self.passed_up(calls.cost, &calls.to, &mut left)));
            }
        }
        all.retain(|(owner, _)| **owner != Owner::Caller);
        all
    }

    /// The part of the cost of some calls that the caller pays: the callee's share that is its caller's.
    fn passed_up(
        &self,
        cost: u64,
        to: &'a Function,
        left: &mut BTreeMap<&'a Function, f64>,
    ) -> f64 {
        let called = self.called.get(to).copied().unwrap_or(0);
        if called == 0 {
            return 0.0;
        }
        self.left(to, left) * float(cost) / float(called)
    }

    /// What a function cost that is its callers'.
    fn left(&self, function: &'a Function, left: &mut BTreeMap<&'a Function, f64>) -> f64 {
        if let Some(known) = left.get(function) {
            return *known;
        }
        // A recursion ends here: what it passes up is seen at its entry.
        left.insert(function, 0.0);
        let Some(body) = self.profile.functions.get(function) else {
            return 0.0;
        };
        let callers = |addr| *self.owner(function, addr) == Owner::Caller;
        let own = body.own.iter().filter(|(addr, _)| callers(**addr));
        let mut sum: f64 = own.map(|(_, cost)| float(*cost)).sum();
        for calls in body.calls.iter().filter(|calls| callers(calls.from)) {
            sum += self.passed_up(calls.cost, &calls.to, left);
        }
        left.insert(function, sum);
        sum
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts lie far below 2^52")]
fn float(count: u64) -> f64 {
    count as f64
}

/// Asks addr2line about every address of the binary that cost something or called.
fn owners(profile: &Profile, binary: &Path) -> Result<BTreeMap<u64, Owner>, CountError> {
    let program = "addr2line";
    let failed = |source| CountError::Io { program, source };
    let ours = profile.functions.iter();
    let ours = ours.filter(|(function, _)| function.object == binary);
    let mut asked: Vec<u64> = ours
        .flat_map(|(_, body)| {
            let calls = body.calls.iter().map(|calls| calls.from);
            body.own.keys().copied().chain(calls)
        })
        .collect();
    asked.sort_unstable();
    asked.dedup();
    let mut child = Command::new(program)
        .args([
            "--functions",
            "--inlines",
            "--addresses",
            "--demangle",
            "--exe",
        ])
        .arg(binary)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(CountError::starting(program, "binutils"))?;
    let mut stdin = child.stdin.take();
    let questions: String = asked.iter().map(|addr| format!("{addr:#x}\n")).collect();
    // A thread of its own: neither pipe holds all.
    let asking = std::thread::spawn(move || {
        stdin
            .as_mut()
            .map_or(Ok(()), |pipe| pipe.write_all(questions.as_bytes()))
    });
    let out = child.wait_with_output().map_err(failed)?;
    let asked = asking.join();
    if !out.status.success() || !matches!(asked, Ok(Ok(()))) {
        return Err(CountError::Failed {
            program,
            status: out.status,
            output: "it did not answer all addresses".into(),
        });
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let root = root.unwrap_or(Path::new("/")).display().to_string();
    Ok(read_owners(&String::from_utf8_lossy(&out.stdout), &root))
}

/// Reads addr2line's answer: an address, then for each function that it was inlined from, innermost
/// first, a line with the name and one with the place.
fn read_owners(text: &str, root: &str) -> BTreeMap<u64, Owner> {
    let (engine, benches) = (format!("{root}/engine/src/"), format!("{root}/benches/"));
    let mut owners = BTreeMap::new();
    let mut addr = None;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(digits) = line.strip_prefix("0x") {
            addr = u64::from_str_radix(digits, 16).ok();
            continue;
        }
        let (Some(addr), Some(place)) = (addr, lines.next()) else {
            continue;
        };
        let owner = owners.entry(addr).or_insert(Owner::Caller);
        if *owner != Owner::Caller {
            continue;
        }
        if let Some(place) = place.strip_prefix(&engine) {
            let file = place.split([':', ' ']).next().unwrap_or(place);
            *owner = Owner::Engine {
                function: format!("{} ({file})", short(line)),
                line: place.split(' ').next().unwrap_or(place).into(),
            };
        } else if place.starts_with(&benches) {
            *owner = Owner::Bench;
        }
    }
    owners
}

/// The last part of a function's path, without its type parameters.
fn short(name: &str) -> String {
    let mut plain = String::new();
    let mut depth = 0u32;
    for c in name.chars() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    let parts = plain.split("::").filter(|part| !part.is_empty());
    let parts: Vec<_> = parts.collect();
    parts.last().map_or_else(|| name.into(), |p| (*p).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callgrind::parse;

    const ANSWER: &str = "\
0x0000000000000010
core::mem::replace
/rustc/1/library/core/src/mem/mod.rs:900
spinwire::worker::io::Io::post
/tree/engine/src/worker/io.rs:12 (discriminator 2)
<main::Echo as spinwire::Service>::message
/tree/benches/src/x.rs:4
0x0000000000000020
<main::Echo as spinwire::Service>::message
/tree/benches/src/x.rs:5
spinwire::worker::turn::Worker<F,S>::turn
/tree/engine/src/worker/turn.rs:30
0x0000000000000030
core::fmt::write
/rustc/1/library/core/src/fmt.rs:1
0x0000000000000040
spinwire::worker::turn::Worker<F,S>::turn
/tree/engine/src/worker/turn.rs:31
";

    #[test]
    fn the_innermost_of_ours_owns() {
        let owners = read_owners(ANSWER, "/tree");
        let engine = Owner::Engine {
            function: "post (worker/io.rs)".into(),
            line: "worker/io.rs:12".into(),
        };
        assert_eq!(owners[&0x10], engine);
        assert_eq!(owners[&0x20], Owner::Bench);
        assert_eq!(owners[&0x30], Owner::Caller);
    }

    #[test]
    fn what_is_not_ours_is_its_callers() {
        let text = "\
ob=/b
fn=turn
0x40 1 10
0x10 1 5
0x20 1 7
cob=/libc
cfn=memcpy
calls=1 0x1 1
0x10 1 30
cob=/libc
cfn=memcpy
calls=1 0x1 1
0x20 1 10
cfn=write
calls=1 0x30 1
0x40 1 8
fn=write
0x30 1 2
cfn=turn2
calls=1 0x1 1
0x30 1 6
fn=turn2
0x40 1 6
ob=/libc
fn=memcpy
0x1 1 40
";
        let run = Run {
            operations: 2,
            profile: parse(text).expect("a file"),
        };
        let owners = read_owners(ANSWER, "/tree");
        let spread = Spread::new(&run.profile, &owners, Path::new("/b"));
        let mut engine = 0.0;
        let mut bench = 0.0;
        for (owner, cost) in spread.owned() {
            match owner {
                Owner::Engine { .. } => engine += cost,
                Owner::Bench | Owner::Caller => bench += cost,
            }
        }
        // Of its own 10 + 5 and 6 in turn2, memcpy's 30, and write's own 2.
        assert_eq!((engine, bench), (53.0, 17.0));
        assert_eq!(run.profile.total(), 70);
    }

    #[test]
    fn names_are_short() {
        assert_eq!(
            short("spinwire::worker::turn::<impl Worker<F,S>>::turn"),
            "turn"
        );
        assert_eq!(short("turn<Wire, Echo>"), "turn");
    }
}
