//! The output of commands: a table for people, JSON for programs, both on standard output.

use oncebox_connect::words::counted;
use std::{
    cell::RefCell,
    io::{self, Write as _},
    time::SystemTime,
};

tokio::task_local! {
    /// The database that a command works on, where the configuration names several.
    static PART: Part;
}

struct Part {
    database: String,
    /// Keeps the text until the others are there as well; `None` prints it at once.
    kept: Option<RefCell<String>>,
}

/// Runs a command on one of several databases: its JSON names the database, and its text is kept.
pub(super) async fn keep<T>(database: &str, command: impl Future<Output = T>) -> (String, T) {
    let part = Part { database: database.to_owned(), kept: Some(RefCell::default()) };
    let command = async {
        let done = command.await;
        (PART.with(|part| part.kept.as_ref().map(RefCell::take).unwrap_or_default()), done)
    };
    PART.scope(part, command).await
}

/// The same, with text that is printed at once.
pub(super) async fn naming<T>(database: &str, command: impl Future<Output = T>) -> T {
    PART.scope(Part { database: database.to_owned(), kept: None }, command).await
}

#[derive(serde::Serialize)]
struct Named<'a, T> {
    database: &'a str,
    #[serde(flatten)]
    value: &'a T,
}

/// Prints text; a reader that has gone, such as `head`, is no error. Returns whether it is still
/// there.
pub(super) fn print(text: &str) -> io::Result<bool> {
    let is_kept = PART.try_with(|part| part.kept.as_ref().map(|kept| kept.borrow_mut().push_str(text)));
    if matches!(is_kept, Ok(Some(()))) {
        return Ok(true);
    }
    let mut output = io::stdout();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true),
    }
}

/// Prints the text of a command that ends well.
pub(super) fn end(text: &str) -> anyhow::Result<u8> {
    print(text)?;
    Ok(0)
}

/// A time to the second, RFC 3339.
pub(super) fn time(time: impl Into<SystemTime>) -> String {
    humantime::format_rfc3339_seconds(oncebox_connect::clock::with_text(time.into())).to_string()
}

/// One JSON document per line.
pub(super) fn json_lines<T: serde::Serialize>(values: &[T]) -> Result<String, serde_json::Error> {
    let line = |value: &T| {
        let named = |part: &Part| serde_json::to_string(&Named { database: &part.database, value });
        PART.try_with(named).unwrap_or_else(|_| serde_json::to_string(value)).map(|line| line + "\n")
    };
    values.iter().map(line).collect()
}

/// The longest text of a cell: more is in the JSON.
const CELL_MAX: usize = 1_000;

/// Columns as wide as their widest cell; the last one is not filled up. Control characters become
/// blanks, so that no message can move the cursor of a terminal.
pub(super) fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<[String; N]> = rows.iter().map(|row| row.each_ref().map(|cell| cut(cell))).collect();
    let mut widths = heads.map(|head| head.chars().count());
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |cells: [&str; N]| {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let text = padded.collect::<Vec<_>>().join("  ").replace('\n', " ");
        clean(&text).trim_end().to_owned() + "\n"
    };
    let mut text = line(heads);
    for row in &rows {
        text += &line(row.each_ref().map(String::as_str));
    }
    text
}

/// A list: JSON for programs, a table for people.
pub(super) fn listed<T: serde::Serialize, const N: usize>(
    json: bool,
    values: &[T],
    heads: [&str; N],
    cells: impl Fn(&T) -> [String; N],
) -> Result<String, serde_json::Error> {
    match json {
        true => json_lines(values),
        false => Ok(table(heads, &values.iter().map(cells).collect::<Vec<_>>())),
    }
}

/// All about one thing: a line for each fact.
pub(super) fn facts(kind: &str, name: &str, facts: &[(&str, String)]) -> String {
    let lines: Vec<_> = facts.iter().map(|(fact, value)| [(*fact).to_owned(), value.clone()]).collect();
    table([kind, name], &lines)
}

fn cut(cell: &str) -> String {
    match cell.char_indices().nth(CELL_MAX) {
        Some((at, _)) => cell[..at].to_owned() + "...",
        None => cell.to_owned(),
    }
}

/// Lines without other control characters.
pub(super) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect()
}

/// `1 message`, `2 messages`.
pub(super) fn messages(count: u64) -> String {
    counted(count, "message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_and_clean() {
        let rows = [["1".to_owned(), "a\x1b[2J".to_owned()], ["4711".to_owned(), "ü".to_owned()]];
        assert_eq!(table(["ID", "KEY"], &rows), "ID    KEY\n1     a [2J\n4711  ü\n");
        assert_eq!(table(["ID", "KEY"], &[]), "ID  KEY\n");
        let long = table(["ID", "KEY"], &[["é".repeat(100_000), "a".to_owned()]]);
        assert_eq!(long.lines().last().unwrap(), "é".repeat(CELL_MAX) + "...  a");
    }

    #[test]
    fn json_has_a_line_for_each() {
        assert_eq!(json_lines(&[1, 2]).unwrap(), "1\n2\n");
    }
}
