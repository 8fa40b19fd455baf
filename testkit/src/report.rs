//! The report of the kit.

use std::{collections::BTreeMap, fmt};

use crate::{Kills, database::Dump};

/// How many rows of a difference are shown, and how much of each.
const ROWS_SHOWN: usize = 5;
const ROW_LENGTH_SHOWN: usize = 300;

/// The disturbance that a handler was tested with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scenario {
    /// The process died at a statement.
    Kill {
        /// Which one, counted from 1 over all connections of the process; with
        /// [`Kills::Commits`] only statements with a COMMIT count.
        statement: u64,
        /// Its text, in one line and cut at a length.
        text: String,
        /// Whether the server had carried it out; its answer was lost.
        carried_out: bool,
    },
    /// Each message came twice, and all of them again to a new process.
    Duplicates,
    /// Two processes got each message at the same time.
    Pairs,
    /// Two processes got all messages at the same time.
    Together,
    /// The messages came in this order, by their numbers from 0.
    Order(Vec<usize>),
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill { statement, text, carried_out } => {
                let when = if *carried_out {
                    "after the server had carried it out"
                } else {
                    "before the server got it"
                };
                write!(f, "killed at statement {statement}, `{text}`, {when}")
            }
            Self::Duplicates => f.write_str("each message twice, then all again in a new process"),
            Self::Pairs => f.write_str("two processes with each message at the same time"),
            Self::Together => f.write_str("two processes with all messages at the same time"),
            Self::Order(order) => write!(f, "messages in the order {order:?}"),
        }
    }
}

/// A scenario that left other rows than the undisturbed run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The scenario.
    pub scenario: Scenario,
    /// Which rows are too many or missing in which table, or why it did not end.
    pub difference: String,
}

/// The report of [`TestKit::check`](super::TestKit::check).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a report that nobody looks at proves nothing"]
pub struct Report {
    pub(crate) kills: Kills,
    pub(crate) scenarios: u64,
    pub(crate) statements: u64,
    pub(crate) has_more_statements: bool,
    pub(crate) failures: Vec<Failure>,
}

impl Report {
    /// The scenarios after which the tables differed, in the order in which they were run.
    #[must_use]
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// How many scenarios were run; each kill is one.
    #[must_use]
    pub fn scenarios(&self) -> u64 {
        self.scenarios
    }

    /// How many statements the process was killed at.
    #[must_use]
    pub fn statements(&self) -> u64 {
        self.statements
    }

    /// Asserts that every scenario left the same rows as the undisturbed run, and that the process
    /// was killed at every statement.
    ///
    /// # Panics
    /// A scenario left other rows, or there are more statements than
    /// [`TestKit::kills_max`](super::TestKit::kills_max); the message is the report.
    pub fn assert_once(&self) {
        assert!(self.failures.is_empty() && !self.has_more_statements, "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kills, scenarios, statements, failures, .. } = self;
        let what = match kills {
            Kills::Statements => "statements",
            Kills::Commits => "commits",
        };
        write!(f, "{scenarios} scenarios, killed at each of {statements} {what}")?;
        if self.has_more_statements {
            f.write_str(" and there are more: raise kills_max, or give the kit fewer messages")?;
        }
        write!(f, "; {} left other rows than the undisturbed run", failures.len())?;
        for Failure { scenario, difference } in failures {
            write!(f, "\n{scenario}:\n{difference}")?;
        }
        Ok(())
    }
}

/// The rows that are too many or missing, by table; `None` when all tables are the same.
pub(crate) fn difference(expected: &Dump, found: &Dump) -> Option<String> {
    let mut lines = Vec::new();
    let tables: std::collections::BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    for table in tables {
        let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
        for row in found.get(table).into_iter().flatten() {
            *counts.entry(row).or_default() += 1;
        }
        for row in expected.get(table).into_iter().flatten() {
            *counts.entry(row).or_default() -= 1;
        }
        for (what, sign) in [("too many", 1), ("missing", -1)] {
            let rows: Vec<(&str, i64)> = counts
                .iter()
                .map(|(row, count)| (*row, count * sign))
                .filter(|(_, count)| *count > 0)
                .collect();
            if rows.is_empty() {
                continue;
            }
            let total: i64 = rows.iter().map(|(_, count)| count).sum();
            lines.push(format!("  {table}: {total} {what}"));
            lines.extend(
                rows.iter().take(ROWS_SHOWN).map(|(row, count)| format!("    {count} x {}", shown(row))),
            );
        }
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn shown(row: &str) -> String {
    match row.char_indices().nth(ROW_LENGTH_SHOWN) {
        Some((end, _)) => format!("{}...", &row[..end]),
        None => row.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump(tables: &[(&str, &[&str])]) -> Dump {
        let rows = |rows: &[&str]| rows.iter().map(ToString::to_string).collect();
        tables.iter().map(|(table, found)| ((*table).to_owned(), rows(found))).collect()
    }

    #[test]
    fn rows_are_counted_not_only_looked_for() {
        let expected = dump(&[("a", &["1", "1", "2"]), ("b", &[])]);
        assert_eq!(difference(&expected, &expected), None);
        let found = dump(&[("a", &["1", "1", "1", "3"]), ("c", &["x"])]);
        let text = difference(&expected, &found).unwrap();
        assert_eq!(
            text,
            "  a: 2 too many\n    1 x 1\n    1 x 3\n  a: 1 missing\n    1 x 2\n  c: 1 too many\n    1 x x"
        );
    }

    #[test]
    fn a_difference_is_bounded() {
        let many: Vec<String> = (0..1000).map(|n| format!("{n}{}", "ä".repeat(1000))).collect();
        let found = Dump::from([("a".to_owned(), many)]);
        assert!(difference(&Dump::new(), &found).unwrap().len() < 5000);
    }
}
