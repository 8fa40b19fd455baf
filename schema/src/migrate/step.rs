//! The parts of a migration: first indexes that are built beside producers, then one transaction.
//!
//! In its file an index stands under a line `-- Beforehand: NAME ON TABLE`, as `CREATE INDEX
//! CONCURRENTLY`; the transaction begins at a line `-- Then:`. Without such lines the whole file is
//! the transaction.

const BEFOREHAND: &str = "-- Beforehand: ";
const THEN: &str = "-- Then:";
const CONCURRENTLY: &str = " CONCURRENTLY";

/// A migration's file, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Steps<'a> {
    pub(crate) indexes: Vec<Index<'a>>,
    pub(crate) transaction: &'a str,
}

/// An index to be there when the transaction begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Index<'a> {
    pub(crate) name: &'a str,
    pub(crate) table: &'a str,
    pub(crate) sql: &'a str,
}

impl<'a> Steps<'a> {
    pub(crate) fn new(file: &'a str) -> Self {
        let Some((front, transaction)) = file.split_once(THEN) else {
            return Self { indexes: Vec::new(), transaction: file };
        };
        let index = |part: &'a str| {
            let (title, sql) = part.split_once('\n').unwrap_or((part, ""));
            let (name, table) = title.split_once(" ON ").expect("a title is NAME ON TABLE");
            Index { name, table, sql }
        };
        Self { indexes: front.split(BEFOREHAND).skip(1).map(index).collect(), transaction }
    }
}

/// All of a migration for a database that holds nothing yet: at once, in the transaction that
/// installs it.
pub(crate) fn at_once(file: &str) -> String {
    file.replace(CONCURRENTLY, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_taken_apart() {
        assert_eq!(Steps::new("CREATE 1;\n"), Steps { indexes: vec![], transaction: "CREATE 1;\n" });
        let file =
            "-- Why.\n-- Beforehand: a ON t\nCREATE a;\n-- Beforehand: b ON u\nCREATE b;\n-- Then:\nSWAP;\n";
        let index = |name, table, sql| Index { name, table, sql };
        assert_eq!(
            Steps::new(file),
            Steps {
                indexes: vec![index("a", "t", "CREATE a;\n"), index("b", "u", "CREATE b;\n")],
                transaction: "\nSWAP;\n"
            }
        );
    }
}
