//! Which sections and keys a core map may have, and what an unknown key was meant to be.
//!
//! ```text
//!  recv_dept ─► fewest edits of [queues]'s keys ─► nearest is `recv_depth`
//! ```
//! Imported by value and parse.

/// Sections and their keys: all there are.
pub(super) const SECTIONS: [(&str, &[&str]); 6] = [
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
    ("shm", &["dir", "uids"]),
];

/// A section as a file heads it.
fn shown_of(section: &str) -> String {
    if section == "worker" {
        "[[worker]]".to_owned()
    } else {
        format!("[{section}]")
    }
}

/// The keys of a section.
pub(super) fn keys_of(section: &str) -> &'static [&'static str] {
    SECTIONS
        .iter()
        .find(|(name, _)| *name == section)
        .map_or(&[], |(_, keys)| keys)
}

/// What is said of a key that none of `known` is; `shown` is its section, empty for the map itself.
pub(super) fn unknown_key(name: &str, shown: &str, known: &[&str]) -> String {
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
}
