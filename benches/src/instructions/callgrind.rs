//! Runs a scenario under callgrind, and reads what it wrote.
//!
//! ```text
//!  ob= fl= fn=                           a function, in an object
//!  0xADDR LINE COST                      what its own instruction at ADDR cost
//!  cob= cfn=, calls=N 0xADDR LINE
//!  0xADDR LINE COST                      what the calls from ADDR cost, all told
//! ```
//! The format is written without its compressions (callgrind's manual, "Callgrind Format
//! Specification"). Imported by count.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why there is no count.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CountError {
    #[error("{program} is missing: apt-get install {package}")]
    Missing {
        program: &'static str,
        package: &'static str,
    },
    #[error("{program}: {source}")]
    Io {
        program: &'static str,
        source: io::Error,
    },
    #[error("{program} failed ({status}):\n{output}")]
    Failed {
        program: &'static str,
        status: std::process::ExitStatus,
        output: String,
    },
    #[error("callgrind's file cannot be read: line {line}: {text:?}")]
    Format { line: usize, text: String },
    #[error("the scenario did not say how many operations were counted, but {0:?}")]
    Operations(String),
    #[error(
        "of {total} instructions {lost} could not be assigned: is the binary built with line tables, \
         in this tree?"
    )]
    Unassigned { total: u64, lost: u64 },
}

impl CountError {
    pub(crate) fn starting(
        program: &'static str,
        package: &'static str,
    ) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::NotFound => Self::Missing { program, package },
            _ => Self::Io { program, source },
        }
    }
}

/// A function in an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Function {
    pub(crate) object: PathBuf,
    pub(crate) name: String,
}

/// Calls from one instruction to one function.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) from: u64,
    pub(crate) to: Function,
    /// Instructions of the callee and all that it called.
    pub(crate) cost: u64,
}

/// What one function cost.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Body {
    /// By address in the object.
    pub(crate) own: BTreeMap<u64, u64>,
    pub(crate) calls: Vec<Calls>,
}

/// Everything that was counted.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    pub(crate) functions: BTreeMap<Function, Body>,
}

/// What a run gave.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) operations: u64,
    pub(crate) profile: Profile,
}

/// Runs `binary run SCENARIO ROUNDS` under callgrind.
pub(crate) fn run(binary: &Path, scenario: &str, rounds: u32) -> Result<Run, CountError> {
    let program = "valgrind";
    let failed = |source| CountError::Io { program, source };
    let file = tempfile::NamedTempFile::new().map_err(failed)?;
    let out = Command::new(program)
        .args(["--tool=callgrind", "--quiet"])
        .args(["--instr-atstart=no", "--collect-atstart=no"])
        .args([
            "--dump-instr=yes",
            "--compress-strings=no",
            "--compress-pos=no",
        ])
        .arg(format!("--callgrind-out-file={}", file.path().display()))
        .arg(binary)
        .args(["run", scenario, &rounds.to_string()])
        .output()
        .map_err(CountError::starting(program, "valgrind"))?;
    if !out.status.success() {
        return Err(CountError::Failed {
            program,
            status: out.status,
            output: String::from_utf8_lossy(&out.stderr).into_owned(),
        });
    }
    let said = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    let operations = match said.parse() {
        Ok(operations) if operations > 0 => operations,
        _ => return Err(CountError::Operations(said)),
    };
    let text = std::fs::read_to_string(file.path()).map_err(failed)?;
    Ok(Run {
        operations,
        profile: parse(&text)?,
    })
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// `ADDR LINE COST`; a cost of zero may be left out.
fn cost_line(text: &str) -> Option<(u64, u64)> {
    let mut words = text.split_ascii_whitespace();
    let addr = number(words.next()?)?;
    number(words.next()?)?;
    Some((addr, words.next().map_or(Some(0), number)?))
}

/// Reads a callgrind file.
pub(crate) fn parse(text: &str) -> Result<Profile, CountError> {
    let mut profile = Profile::default();
    let mut object = PathBuf::new();
    let mut current = None;
    let (mut callee_object, mut callee) = (None, None);
    let mut called = false;
    for (number, line) in text.lines().enumerate() {
        let bad = || CountError::Format {
            line: number + 1,
            text: line.into(),
        };
        if let Some(path) = line.strip_prefix("ob=") {
            object = path.into();
        } else if let Some(path) = line.strip_prefix("cob=") {
            callee_object = Some(PathBuf::from(path));
        } else if let Some(name) = line.strip_prefix("fn=") {
            current = Some(Function {
                object: object.clone(),
                name: name.into(),
            });
        } else if let Some(name) = line.strip_prefix("cfn=") {
            callee = Some(Function {
                object: callee_object.take().unwrap_or_else(|| object.clone()),
                name: name.into(),
            });
        } else if line.starts_with("calls=") {
            called = true;
        } else if line.starts_with("0x") {
            let (addr, cost) = cost_line(line).ok_or_else(bad)?;
            let function = current.clone().ok_or_else(bad)?;
            let body = profile.functions.entry(function).or_default();
            if std::mem::take(&mut called) {
                let to = callee.take().ok_or_else(bad)?;
                body.calls.push(Calls {
                    from: addr,
                    to,
                    cost,
                });
            } else {
                *body.own.entry(addr).or_default() += cost;
            }
        }
    }
    Ok(profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# callgrind format
version: 1
positions: instr line
events: Ir
summary: 57

ob=/bin/a
fl=/src/a.rs
fn=turn
0x10 3 4
fi=/src/b.rs
0x14 9 6
0x10 3 1
cfi=/src/c.rs
cfn=feed
calls=2 0x40 1
0x14 9 30
cob=/lib/libc.so.6
cfi=string/memmove.S
cfn=memcpy
calls=1 0x900 200
0x18 4 16

fn=feed
0x40 1 30
ob=/lib/libc.so.6
fl=string/memmove.S
fn=memcpy
0x900 200 16

totals: 57
";

    #[test]
    fn own_costs_and_calls_are_told_apart() {
        let profile = parse(FILE).expect("a file");
        let function = |object: &str, name: &str| Function {
            object: object.into(),
            name: name.into(),
        };
        let turn = &profile.functions[&function("/bin/a", "turn")];
        assert_eq!(turn.own, BTreeMap::from([(0x10, 5), (0x14, 6)]));
        let calls = |from, to, cost| Calls { from, to, cost };
        let want = [
            calls(0x14, function("/bin/a", "feed"), 30),
            calls(0x18, function("/lib/libc.so.6", "memcpy"), 16),
        ];
        assert_eq!(turn.calls, want);
        let memcpy = &profile.functions[&function("/lib/libc.so.6", "memcpy")];
        assert_eq!(memcpy.own, BTreeMap::from([(0x900, 16)]));
    }

    #[test]
    fn what_is_no_cost_is_named() {
        let error = parse("ob=/bin/a\nfn=f\n0x1 x 3\n").expect_err("no line number");
        assert!(error.to_string().contains("line 3"), "{error}");
        assert!(parse("0x1 1 3\n").is_err(), "of no function");
    }
}
