//! Values of a document with the lines that they stand in: each is given, absent, or has its fault.
//!
//! ```text
//!  [queues]  line 9 ─► Section ─► whole("send_depth", 1..=16384) ─► Field::Given { 64, line 10 }
//!  send_depth = 64                                                  Field::Absent: default
//!  recv_dept = 64                                                   Field::Bad:    fault kept
//!      └─► unknown key, nearest is `recv_depth`
//! ```
//! Knows no key by itself. Imports error, keys. Imported by parse and check.

use super::error::{At, Faults, printable};
use super::keys::{keys_of, unknown_key};
use std::ops::{Range, RangeInclusive};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

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
    /// What the file says, if that is without a fault and no plain number.
    pub(super) fn given(&self) -> Option<&T> {
        match self {
            Self::Given { value, .. } => Some(value),
            Self::Absent | Self::Bad => None,
        }
    }

    /// Where the file says it, if that is without a fault.
    pub(super) fn at(&self) -> Option<&At> {
        match self {
            Self::Given { at, .. } => Some(at),
            Self::Absent | Self::Bad => None,
        }
    }
}

/// The text, and where its lines begin.
pub(super) struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let after_breaks = text.match_indices('\n').map(|(at, _)| at + 1);
        Self {
            text,
            starts: std::iter::once(0).chain(after_breaks).collect(),
        }
    }

    /// The line of a byte, from 1. The end of the text belongs to its last line.
    pub(super) fn line(&self, offset: usize) -> usize {
        let offset = offset.min(self.text.trim_end().len());
        self.starts.partition_point(|&start| start <= offset).max(1)
    }

    /// The line of a byte, as it is written.
    pub(super) fn text_at(&self, offset: usize) -> &'t str {
        self.text.lines().nth(self.line(offset) - 1).unwrap_or("")
    }

    fn span(&self, span: &Range<usize>) -> &'t str {
        self.text.get(span.clone()).unwrap_or("")
    }
}

/// One table of the file: `[pool]`, or one `[[worker]]`.
pub(super) struct Section<'a, 't> {
    /// As errors show it, with brackets.
    pub(super) shown: &'static str,
    pub(super) table: &'a DeTable<'t>,
}

impl Section<'_, '_> {
    /// A key of it, as errors show it.
    pub(super) fn place(&self, key: &str) -> String {
        format!("{} {key}", self.shown)
    }
}

/// Takes a document apart, and keeps what is wrong with it.
pub(super) struct Reader<'t> {
    lines: Lines<'t>,
    pub(super) faults: Faults,
}

impl<'t> Reader<'t> {
    pub(super) fn new(lines: Lines<'t>, origin: &str) -> Self {
        Self {
            lines,
            faults: Faults::new(origin),
        }
    }

    /// The one section of this name, its unknown keys reported.
    pub(super) fn section<'a>(
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

    /// Every key that is not known is a fault.
    pub(super) fn unknown(&mut self, table: &DeTable<'t>, shown: &str, known: &[&str]) {
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
            self.faults
                .push(&at, place.trim_start(), || unknown_key(name, shown, known));
        }
    }

    /// A whole number in `range`.
    pub(super) fn whole<T>(
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
    pub(super) fn word<T: Copy + std::fmt::Display, const N: usize>(
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

    /// Where a value stands, and how it is written.
    pub(super) fn at(&self, value: &Spanned<DeValue<'_>>) -> At {
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

#[cfg(test)]
mod tests {
    use super::*;

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
