//! TOML to values that remember their lines. Says what is wrong by itself; knows no host.
//!
//! ```text
//!  [queues]  line 9 ─► Section ─► whole("send_depth", 1..=16384) ─► Field::Given { 64, line 10 }
//!  send_depth = 64                                                  Field::Absent: default
//!  recv_dept = 64                                                   Field::Bad:    fault kept
//!      └─► unknown key, nearest is `recv_depth`
//! ```
//! Imports limits, types, the memory policy, error, read. Imported by check.

use super::error::{At, ConfigError, ConfigErrors, Faults, printable};
use super::host::Host;
use super::plan::Plan;
use super::{RETRY_COUNT_MAX, Side, TIMEOUT_MS_MAX, check, read};
use crate::limits::{
    CONNECTIONS_MAX, CORE_ID_MAX, INLINE_MAX_BYTES, POOL_SLOTS_MAX, QUEUE_DEPTH_MAX,
    SHARED_RECV_DEPTH_MAX, SHARED_RECV_SHARE_MIN, SLOT_BYTES_MAX, SLOT_BYTES_MIN, WORKERS_MAX,
};
use crate::memory::HugepagePolicy;
use crate::types::{CoreId, IdlePolicy};
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Sections and their keys: all there are.
const SECTIONS: [(&str, &[&str]); 5] = [
    ("control", &["core"]),
    ("worker", &["core", "idle", "devices"]),
    ("pool", &["slots", "slots_max", "slot_bytes", "hugepages"]),
    (
        "queues",
        &[
            "send_depth",
            "recv_depth",
            "receives",
            "shared_recv_depth",
            "cq_depth",
            "inline_bytes",
            "connections_max",
        ],
    ),
    (
        "connection",
        &[
            "resolve_timeout_ms",
            "connect_timeout_ms",
            "drain_deadline_ms",
            "retry_count",
            "rnr_retry_count",
        ],
    ),
];

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
        Ok(Reader::new(lines, origin).config(document.get_ref()))
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

    /// The plan where there is no file: one spinning worker on every active device of `host`, with
    /// all defaults. [`Side`] tells the cores, so that a client and a server of one host do not
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
        };
        config.check(host)
    }
}

/// One key: `Bad` has its fault already, so that nothing is concluded from it.
#[derive(Clone, Debug, Default)]
pub(super) enum Field<T> {
    #[default]
    Absent,
    Bad,
    Given {
        value: T,
        at: At,
    },
}

impl<T: Copy> Field<T> {
    /// What the file says, if that is without a fault.
    pub(super) fn get(&self) -> Option<T> {
        match self {
            Self::Absent | Self::Bad => None,
            Self::Given { value, .. } => Some(*value),
        }
    }

    /// `None` if the key has a fault.
    pub(super) fn or(&self, default: T) -> Option<T> {
        match self {
            Self::Absent => Some(default),
            Self::Bad => None,
            Self::Given { value, .. } => Some(*value),
        }
    }
}

impl<T> Field<T> {
    pub(super) fn at(&self) -> Option<&At> {
        match self {
            Self::Given { at, .. } => Some(at),
            Self::Absent | Self::Bad => None,
        }
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

/// The text, and where its lines begin.
struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    fn new(text: &'t str) -> Self {
        let after_breaks = text.match_indices('\n').map(|(at, _)| at + 1);
        Self {
            text,
            starts: std::iter::once(0).chain(after_breaks).collect(),
        }
    }

    /// The line of a byte, from 1. The end of the text belongs to its last line.
    fn line(&self, offset: usize) -> usize {
        let offset = offset.min(self.text.trim_end().len());
        self.starts.partition_point(|&start| start <= offset).max(1)
    }

    fn text_at(&self, offset: usize) -> &'t str {
        self.text.lines().nth(self.line(offset) - 1).unwrap_or("")
    }

    fn span(&self, span: &Range<usize>) -> &'t str {
        self.text.get(span.clone()).unwrap_or("")
    }
}

/// One table of the file: `[pool]`, or one `[[worker]]`.
struct Section<'a, 't> {
    /// As errors show it, with brackets.
    shown: &'static str,
    table: &'a DeTable<'t>,
}

impl Section<'_, '_> {
    fn place(&self, key: &str) -> String {
        format!("{} {key}", self.shown)
    }
}

/// Takes the document apart.
struct Reader<'t> {
    lines: Lines<'t>,
    origin: String,
    faults: Faults,
}

impl<'t> Reader<'t> {
    fn new(lines: Lines<'t>, origin: &str) -> Self {
        Self {
            lines,
            origin: origin.to_owned(),
            faults: Faults::new(origin),
        }
    }

    fn config(mut self, document: &DeTable<'t>) -> Config {
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
        Config {
            origin: self.origin,
            faults: self.faults,
            control_core,
            workers,
            pool,
            queues,
            connection,
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

    fn section<'a>(
        &mut self,
        document: &'a DeTable<'t>,
        name: &'static str,
        shown: &'static str,
    ) -> Option<Section<'a, 't>> {
        let value = document.get(name)?;
        let Some(table) = value.get_ref().as_table() else {
            let at = self.at(value);
            self.faults
                .push(&at, name, || format!("one section, headed by {shown}"));
            return None;
        };
        self.unknown(table, shown, keys_of(name));
        Some(Section { shown, table })
    }

    fn unknown(&mut self, table: &DeTable<'t>, shown: &str, known: &[&str]) {
        for (key, value) in table.iter() {
            let name: &str = key.get_ref();
            if known.contains(&name) {
                continue;
            }
            let at = At {
                line: Some(self.lines.line(key.span().start)),
                seen: self.at(value).seen,
            };
            let place = format!("{shown} {}", printable(name));
            self.faults.push(&at, place.trim_start(), || {
                let owner = if shown.is_empty() {
                    "a core map"
                } else {
                    shown
                };
                let elsewhere = SECTIONS
                    .iter()
                    .find(|(_, keys)| keys.contains(&name))
                    .map(|(section, _)| format!(" it belongs in {};", shown_of(section)))
                    .unwrap_or_default();
                format!(
                    "unknown key; nearest is `{}`;{elsewhere} {owner} has {}",
                    nearest(name, known),
                    known.join(", ")
                )
            });
        }
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
                    "a list of device names such as [\"mlx5_0\"]; without the key, every device \
                     with an active port"
                        .to_owned()
                });
                Field::Bad
            }
        }
    }

    /// A whole number in `range`.
    fn whole<T>(
        &mut self,
        section: &Section<'_, 't>,
        key: &str,
        range: RangeInclusive<T>,
    ) -> Field<T>
    where
        T: TryFrom<u64> + PartialOrd + std::fmt::Display,
    {
        let Some(spanned) = section.table.get(key) else {
            return Field::Absent;
        };
        let at = self.at(spanned);
        let value = spanned
            .get_ref()
            .as_integer()
            .and_then(|digits| u64::from_str_radix(digits.as_str(), digits.radix()).ok())
            .and_then(|number| T::try_from(number).ok())
            .filter(|number| range.contains(number));
        if let Some(value) = value {
            return Field::Given { value, at };
        }
        self.faults.push(&at, &section.place(key), || {
            format!("a whole number from {} to {}", range.start(), range.end())
        });
        Field::Bad
    }

    /// One of a few words.
    fn word<T: Copy + std::fmt::Display, const N: usize>(
        &mut self,
        section: &Section<'_, 't>,
        key: &str,
        words: [T; N],
    ) -> Field<T> {
        let Some(spanned) = section.table.get(key) else {
            return Field::Absent;
        };
        let at = self.at(spanned);
        let seen = spanned.get_ref().as_str();
        match words
            .iter()
            .find(|word| Some(word.to_string().as_str()) == seen)
        {
            Some(&value) => Field::Given { value, at },
            None => {
                self.faults.push(&at, &section.place(key), || {
                    words.map(|word| format!("\"{word}\"")).join(" or ")
                });
                Field::Bad
            }
        }
    }

    fn at(&self, value: &Spanned<DeValue<'_>>) -> At {
        let seen = match value.get_ref() {
            DeValue::Table(_) => "a section".to_owned(),
            DeValue::Array(items)
                if items.first().is_some_and(|item| item.get_ref().is_table()) =>
            {
                "a list of sections".to_owned()
            }
            DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Array(_) => printable(self.lines.span(&value.span())),
        };
        At {
            line: Some(self.lines.line(value.span().start)),
            seen,
        }
    }
}

/// A section as a file heads it.
fn shown_of(section: &str) -> String {
    if section == "worker" {
        "[[worker]]".to_owned()
    } else {
        format!("[{section}]")
    }
}

fn keys_of(section: &str) -> &'static [&'static str] {
    SECTIONS
        .iter()
        .find(|(name, _)| *name == section)
        .map_or(&[], |(_, keys)| keys)
}

/// File names are shown whole, but on one line.
fn printable_origin(origin: &str) -> String {
    origin
        .chars()
        .map(|char| if char.is_control() { '?' } else { char })
        .collect()
}

/// The word of `known` that the fewest edits make of `name`.
fn nearest<'k>(name: &str, known: &[&'k str]) -> &'k str {
    known
        .iter()
        .copied()
        .min_by_key(|word| edits(name, word))
        .unwrap_or("")
}

/// Insertions, deletions and replacements between two words (Levenshtein). Cut at a length that no
/// key has: a hostile name costs no more than a long one.
fn edits(from: &str, to: &str) -> usize {
    const CHARS_MAX: usize = 64;
    let from: Vec<char> = from.chars().take(CHARS_MAX).collect();
    let mut row: Vec<usize> = (0..=from.len()).collect();
    for (above, to_char) in to.chars().take(CHARS_MAX).enumerate() {
        let mut diagonal = above;
        let mut left = above + 1;
        for (cell, from_char) in row.iter_mut().skip(1).zip(&from) {
            let replaced = diagonal + usize::from(*from_char != to_char);
            diagonal = *cell;
            left = replaced.min(diagonal + 1).min(left + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = above + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        for (from, to, count) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("kitten", "sitting", 3),
            ("send_dept", "send_depth", 1),
            ("slots", "slots", 0),
        ] {
            assert_eq!(edits(from, to), count, "{from} {to}");
        }
        assert_eq!(nearest("recv_dpeth", keys_of("queues")), "recv_depth");
        assert_eq!(edits(&"x".repeat(1 << 20), "a"), 64);
    }

    #[test]
    fn lines_are_counted_from_one() {
        let lines = Lines::new("a\nbc\n\nd\n");
        assert_eq!(
            [0, 1, 2, 4, 5, 6, 100].map(|offset| lines.line(offset)),
            [1, 1, 2, 2, 3, 4, 4]
        );
        assert_eq!(Lines::new("").line(0), 1);
    }
}
