//! Prose and comments fit into a hundred columns, beside something else on a screen.

use std::{fs, path::Path};

use super::{all_files, repository};

const COLUMNS: usize = 100;

/// The lines of prose that are too wide: of a document all that are neither tables nor code, of
/// sources the comments.
fn wide(path: &Path, text: &str) -> Vec<usize> {
    let is_document = path.extension().is_some_and(|ending| ending == "md");
    let mark = if path.extension().is_some_and(|ending| ending == "sql") { "--" } else { "//" };
    let mut is_code = false;
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim_end();
        let prose = if is_document { Some(line) } else { line.trim_start().strip_prefix(mark) };
        let Some(prose) = prose else {
            is_code = false;
            // At the end of a line with code only the lists of modules have comments; code is
            // rustfmt's matter.
            let is_module = line.trim_start().trim_start_matches("pub(crate) ").starts_with("mod ");
            if is_module && line.chars().count() > COLUMNS {
                found.push(number);
            }
            continue;
        };
        let prose = if is_document { prose } else { prose.trim_start_matches(['/', '!']) }.trim_start();
        let is_fence = prose.starts_with("```");
        is_code ^= is_fence;
        // A link, a path or a picture cannot be wrapped.
        let is_one_word = !prose.trim_start_matches(['-', '*', ' ']).contains(' ');
        let is_free = is_code || is_fence || is_one_word || prose.starts_with(['|', '!']);
        if line.chars().count() > COLUMNS && !is_free {
            found.push(number);
        }
    }
    found
}

#[test]
fn prose_and_comments_fit_into_a_hundred_columns() {
    let mut checked = 0;
    let mut found = Vec::new();
    for path in ["md", "rs", "sql"].iter().flat_map(|ending| all_files(ending)) {
        let name = path.strip_prefix(repository()).unwrap().display().to_string();
        // pg_dump writes it.
        if name == "schema/schema.sql" {
            continue;
        }
        let lines = wide(&path, &fs::read_to_string(&path).unwrap());
        found.extend(lines.iter().map(|line| format!("{name}:{line}")));
        checked += 1;
    }
    assert!(checked > 400, "{checked}");
    assert!(found.is_empty(), "wider than {COLUMNS} columns:\n{}", found.join("\n"));
}

#[test]
fn what_is_too_wide_is_found() {
    let long = "word ".repeat(25);
    let cases = [
        ("a.md", format!("{long}\n"), 1),
        ("a.md", format!("| {long} |\n```sh\n{long}\n```\n"), 0),
        ("a.rs", format!("    /// {long}\n    let x = \"{long}\";\n"), 1),
        ("a.rs", format!("mod a; // {long}\n//! ```\n//! {long}\n//! ```\n"), 1),
        ("a.sql", format!("-- {long}\nSELECT 1; {long}\n"), 1),
    ];
    for (name, text, expected) in cases {
        assert_eq!(wide(Path::new(name), &text).len(), expected, "{name}: {text}");
    }
}
