//! TOML to a core map as it was written: which sections there are, and what each of their keys may say.
//! Says what is wrong by itself; knows no host.
//!
//! Imports limits, types, the memory policy, value, keys, error, read. Imported by check.

use super::error::{At, ConfigError, ConfigErrors, Faults, printable};
use super::host::Host;
use super::keys::{SECTIONS, keys_of};
use super::plan::Plan;
use super::value::{Field, Lines, Reader, Section};
use super::{RETRY_COUNT_MAX, SHM_DIR_BYTES_MAX, SHM_UIDS_MAX, Side, TIMEOUT_MS_MAX, check, read};
use crate::limits::{
    CONNECTIONS_MAX, CORE_ID_MAX, INLINE_MAX_BYTES, POOL_SLOTS_MAX, QUEUE_DEPTH_MAX,
    SHARED_RECV_DEPTH_MAX, SHARED_RECV_SHARE_MIN, SLOT_BYTES_MAX, SLOT_BYTES_MIN, WORKERS_MAX,
};
use crate::memory::HugepagePolicy;
use crate::types::{CoreId, IdlePolicy};
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// A core map as it was written: not checked, but each value knows its line.
#[derive(Clone, Debug)]
pub struct Config {
    pub(super) origin: String,
    pub(super) faults: Faults,
    pub(super) control_core: Field<CoreId>,
    pub(super) workers: Field<Vec<WorkerText>>,
    pub(super) pool: PoolText,
    pub(super) queues: QueuesText,
    pub(super) connection: ConnectionText,
    pub(super) shm: ShmText,
}

impl Config {
    /// Reads a core map.
    ///
    /// # Errors
    /// The file cannot be read, is no regular file, has more than
    /// [`CONFIG_BYTES_MAX`](super::CONFIG_BYTES_MAX), or is not UTF-8 or not TOML. Wrong keys and
    /// values wait for [`Config::check`].
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let origin = printable_origin(&path.to_string_lossy());
        Self::from_text(&read::read(path, &origin)?, &origin)
    }

    /// Takes a core map from `text`; `origin` stands for the file's name in errors.
    ///
    /// # Errors
    /// `text` is not TOML, or has more than [`CONFIG_BYTES_MAX`](super::CONFIG_BYTES_MAX). Wrong
    /// keys and values wait for [`Config::check`].
    pub fn from_text(text: &str, origin: &str) -> Result<Self, ConfigError> {
        let origin = &printable_origin(origin);
        read::refuse_big(text.len(), origin)?;
        let lines = Lines::new(text);
        let document = DeTable::parse(text).map_err(|error| {
            let start = error.span().map_or(text.len(), |span| span.start);
            ConfigError::Syntax {
                origin: origin.clone(),
                line: lines.line(start),
                seen: printable(lines.text_at(start).trim()),
                message: error.message().to_owned(),
            }
        })?;
        Ok(Reader::new(lines, origin).config(document.get_ref(), origin))
    }

    /// Whether a worker says which devices it takes.
    #[must_use]
    pub fn names_devices(&self) -> bool {
        let given = |worker: &WorkerText| worker.devices.given().is_some();
        self.workers().iter().any(given)
    }

    /// The sections `[[worker]]`; none if they have a fault.
    pub(super) fn workers(&self) -> &[WorkerText] {
        match &self.workers {
            Field::Absent | Field::Bad => &[],
            Field::Given { value, .. } => value,
        }
    }

    /// The file that it came from, or what stands for one.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The plan, if all of it can be had on `host`.
    ///
    /// # Errors
    /// Everything that is wrong, in the order of lines: a key that does not exist, a value of the
    /// wrong type or out of range, a core or device that `host` lacks or that is named twice, a
    /// depth above a device's limit, connections whose completions would not fit the CQ, a pool
    /// that is too small, too big for a device, or requires huge pages that are not free.
    pub fn check(&self, host: &Host) -> Result<Plan, ConfigErrors> {
        check::check(self, host)
    }

    /// The plan where there is no file: one spinning worker on every active RDMA device of `host`, or
    /// on shared memory if there is none, with all defaults. [`Side`] tells the cores, so that a client and a server of one host do not
    /// fight for one. With one core only, control is not pinned and the worker yields.
    ///
    /// # Errors
    /// `host` has no core or no device with an active port, or devices too small for anything.
    pub fn default_for(host: &Host, side: Side) -> Result<Plan, ConfigErrors> {
        let nowhere = || At {
            line: None,
            seen: "none".to_owned(),
        };
        let given = |core: Option<CoreId>| {
            core.map_or(Field::Absent, |value| Field::Given {
                value,
                at: nowhere(),
            })
        };
        let (first, last) = (host.cores.first().copied(), host.cores.last().copied());
        let (control, worker) = match side {
            Side::Server => (first, last),
            Side::Client => (last, first),
        };
        let one_core = control == worker;
        let worker = WorkerText {
            at: nowhere(),
            core: given(worker),
            idle: Field::Given {
                value: if one_core {
                    IdlePolicy::Yield
                } else {
                    IdlePolicy::Spin
                },
                at: nowhere(),
            },
            devices: Field::Absent,
        };
        let config = Self {
            origin: "built-in defaults".to_owned(),
            faults: Faults::new("built-in defaults"),
            control_core: given(control.filter(|_| !one_core)),
            workers: Field::Given {
                value: vec![worker],
                at: nowhere(),
            },
            pool: PoolText::default(),
            queues: QueuesText::default(),
            connection: ConnectionText::default(),
            shm: ShmText::default(),
        };
        config.check(host)
    }
}

#[derive(Clone, Debug)]
pub(super) struct WorkerText {
    pub(super) at: At,
    pub(super) core: Field<CoreId>,
    pub(super) idle: Field<IdlePolicy>,
    pub(super) devices: Field<Vec<(String, At)>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct PoolText {
    pub(super) slots: Field<u32>,
    pub(super) slots_max: Field<u32>,
    pub(super) slot_bytes: Field<u32>,
    pub(super) hugepages: Field<HugepagePolicy>,
}

/// Whose the receives of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receives {
    /// Its own.
    Own,
    /// Those of all connections of its lane.
    Shared,
}

impl std::fmt::Display for Receives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Own => "own",
            Self::Shared => "shared",
        })
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct QueuesText {
    pub(super) send_depth: Field<u32>,
    pub(super) recv_depth: Field<u32>,
    pub(super) receives: Field<Receives>,
    pub(super) shared_recv_depth: Field<u32>,
    pub(super) cq_depth: Field<u32>,
    pub(super) inline_bytes: Field<u32>,
    pub(super) connections_max: Field<u32>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionText {
    pub(super) resolve_timeout_ms: Field<u32>,
    pub(super) connect_timeout_ms: Field<u32>,
    pub(super) drain_deadline_ms: Field<u32>,
    pub(super) retry_count: Field<u8>,
    pub(super) rnr_retry_count: Field<u8>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ShmText {
    pub(super) dir: Field<PathBuf>,
    pub(super) uids: Field<Vec<u32>>,
}

/// The sections and their keys.
impl<'t> Reader<'t> {
    fn config(mut self, document: &DeTable<'t>, origin: &str) -> Config {
        self.unknown(document, "", &SECTIONS.map(|(name, _)| name));
        let control_core = self
            .section(document, "control", "[control]")
            .map_or(Field::Absent, |section| self.core(&section));
        let workers = self.workers(document);
        let pool = self
            .section(document, "pool", "[pool]")
            .map_or_else(PoolText::default, |section| self.pool(&section));
        let queues = self
            .section(document, "queues", "[queues]")
            .map_or_else(QueuesText::default, |section| self.queues(&section));
        let connection = self
            .section(document, "connection", "[connection]")
            .map_or_else(ConnectionText::default, |section| self.connection(&section));
        let shm = self
            .section(document, "shm", "[shm]")
            .map_or_else(ShmText::default, |section| self.shm(&section));
        Config {
            origin: origin.to_owned(),
            faults: self.faults,
            control_core,
            workers,
            pool,
            queues,
            connection,
            shm,
        }
    }

    fn workers(&mut self, document: &DeTable<'t>) -> Field<Vec<WorkerText>> {
        let Some(value) = document.get("worker") else {
            return Field::Absent;
        };
        let at = self.at(value);
        let Some(items) = value.get_ref().as_array() else {
            self.faults.push(&at, "worker", || {
                "a list of sections, each headed by [[worker]]".to_owned()
            });
            return Field::Bad;
        };
        let mut workers = Vec::new();
        for item in items.iter() {
            let at = self.at(item);
            if workers.len() == WORKERS_MAX {
                let count = At {
                    line: at.line,
                    seen: format!("{} workers", items.len()),
                };
                self.faults.push(&count, "[[worker]]", || {
                    format!("at most {WORKERS_MAX} workers")
                });
                break;
            }
            let worker = match item.get_ref().as_table() {
                Some(table) => {
                    let section = Section {
                        shown: "[[worker]]",
                        table,
                    };
                    self.unknown(table, section.shown, keys_of("worker"));
                    self.worker(&section, at)
                }
                None => {
                    self.faults.push(&at, "[[worker]]", || {
                        "a section, headed by [[worker]]".to_owned()
                    });
                    WorkerText {
                        at,
                        core: Field::Bad,
                        idle: Field::Bad,
                        devices: Field::Bad,
                    }
                }
            };
            workers.push(worker);
        }
        Field::Given { value: workers, at }
    }

    fn worker(&mut self, section: &Section<'_, 't>, at: At) -> WorkerText {
        WorkerText {
            core: self.core(section),
            idle: self.word(
                section,
                "idle",
                [IdlePolicy::Spin, IdlePolicy::Yield, IdlePolicy::Event],
            ),
            devices: self.devices(section),
            at,
        }
    }

    fn pool(&mut self, section: &Section<'_, 't>) -> PoolText {
        PoolText {
            // One receive and one send at least.
            slots: self.whole(section, "slots", 2..=POOL_SLOTS_MAX),
            slots_max: self.whole(section, "slots_max", 2..=POOL_SLOTS_MAX),
            slot_bytes: self.slot_bytes(section),
            hugepages: self.word(
                section,
                "hugepages",
                [
                    HugepagePolicy::Require,
                    HugepagePolicy::Prefer,
                    HugepagePolicy::Off,
                ],
            ),
        }
    }

    fn queues(&mut self, section: &Section<'_, 't>) -> QueuesText {
        QueuesText {
            send_depth: self.whole(section, "send_depth", 1..=QUEUE_DEPTH_MAX),
            recv_depth: self.whole(section, "recv_depth", 1..=QUEUE_DEPTH_MAX),
            receives: self.word(section, "receives", [Receives::Own, Receives::Shared]),
            shared_recv_depth: self.whole(
                section,
                "shared_recv_depth",
                SHARED_RECV_SHARE_MIN..=SHARED_RECV_DEPTH_MAX,
            ),
            // One send and one receive at least; the most is the device's.
            cq_depth: self.whole(section, "cq_depth", 2..=u32::MAX),
            inline_bytes: self.whole(section, "inline_bytes", 0..=INLINE_MAX_BYTES),
            connections_max: self.whole(section, "connections_max", 1..=CONNECTIONS_MAX),
        }
    }

    fn connection(&mut self, section: &Section<'_, 't>) -> ConnectionText {
        let millis = 1..=TIMEOUT_MS_MAX;
        let retries = 0..=RETRY_COUNT_MAX;
        ConnectionText {
            resolve_timeout_ms: self.whole(section, "resolve_timeout_ms", millis.clone()),
            connect_timeout_ms: self.whole(section, "connect_timeout_ms", millis.clone()),
            drain_deadline_ms: self.whole(section, "drain_deadline_ms", millis),
            retry_count: self.whole(section, "retry_count", retries.clone()),
            rnr_retry_count: self.whole(section, "rnr_retry_count", retries),
        }
    }

    fn shm(&mut self, section: &Section<'_, 't>) -> ShmText {
        ShmText {
            dir: self.dir(section),
            uids: self.uids(section),
        }
    }

    fn dir(&mut self, section: &Section<'_, 't>) -> Field<PathBuf> {
        let Some(value) = section.table.get("dir") else {
            return Field::Absent;
        };
        let at = self.at(value);
        let fits = |dir: &&str| {
            dir.starts_with('/') && dir.len() <= SHM_DIR_BYTES_MAX && !dir.contains('\0')
        };
        if let Some(dir) = value.get_ref().as_str().filter(fits) {
            let value = PathBuf::from(dir);
            return Field::Given { value, at };
        }
        self.faults.push(&at, &section.place("dir"), || {
            format!(
                "an absolute path of at most {SHM_DIR_BYTES_MAX} bytes, such as \"/run/spinwire\""
            )
        });
        Field::Bad
    }

    fn uids(&mut self, section: &Section<'_, 't>) -> Field<Vec<u32>> {
        let Some(value) = section.table.get("uids") else {
            return Field::Absent;
        };
        let at = self.at(value);
        let uid = |item: &DeValue<'_>| {
            let digits = item.as_integer()?;
            let uid = u32::from_str_radix(digits.as_str(), digits.radix()).ok()?;
            // The last number stands for no user (`chown(2)`).
            (uid < u32::MAX).then_some(uid)
        };
        let uids: Option<Vec<u32>> = value
            .get_ref()
            .as_array()
            .filter(|items| (1..=SHM_UIDS_MAX).contains(&items.len()))
            .and_then(|items| items.iter().map(|item| uid(item.get_ref())).collect());
        if let Some(value) = uids {
            return Field::Given { value, at };
        }
        self.faults.push(&at, &section.place("uids"), || {
            format!(
                "a list of 1 to {SHM_UIDS_MAX} users by number (`id -u`), such as [0, 1000]; without \
                 the key, this process's own user and root"
            )
        });
        Field::Bad
    }

    fn core(&mut self, section: &Section<'_, 't>) -> Field<CoreId> {
        let core_max = u32::try_from(CORE_ID_MAX - 1).unwrap_or(u32::MAX);
        match self.whole(section, "core", 0..=core_max) {
            Field::Absent => Field::Absent,
            Field::Bad => Field::Bad,
            Field::Given { value, at } => usize::try_from(value)
                .ok()
                .and_then(CoreId::new)
                .map_or(Field::Bad, |value| Field::Given { value, at }),
        }
    }

    fn slot_bytes(&mut self, section: &Section<'_, 't>) -> Field<u32> {
        let field = self.whole(section, "slot_bytes", SLOT_BYTES_MIN..=SLOT_BYTES_MAX);
        match field {
            Field::Given { value, at } if value % SLOT_BYTES_MIN != 0 => {
                let below = value - value % SLOT_BYTES_MIN;
                self.faults.push(&at, &section.place("slot_bytes"), || {
                    format!(
                        "a multiple of {SLOT_BYTES_MIN}, a cache line, such as {below} or {}",
                        below + SLOT_BYTES_MIN
                    )
                });
                Field::Bad
            }
            Field::Absent | Field::Bad | Field::Given { .. } => field,
        }
    }

    fn devices(&mut self, section: &Section<'_, 't>) -> Field<Vec<(String, At)>> {
        let Some(value) = section.table.get("devices") else {
            return Field::Absent;
        };
        let at = self.at(value);
        let names: Option<Vec<_>> = value.get_ref().as_array().and_then(|items| {
            items
                .iter()
                .map(|item| Some((item.get_ref().as_str()?.to_owned(), self.at(item))))
                .collect()
        });
        match names {
            Some(value) if !value.is_empty() => Field::Given { value, at },
            Some(_) | None => {
                self.faults.push(&at, &section.place("devices"), || {
                    "a list of device names such as [\"mlx5_0\"]; without the key, every RDMA device \
                     with an active port, or shared memory if there is none"
                        .to_owned()
                });
                Field::Bad
            }
        }
    }
}

/// File names are shown whole, but on one line.
fn printable_origin(origin: &str) -> String {
    origin
        .chars()
        .map(|char| if char.is_control() { '?' } else { char })
        .collect()
}
