//! How two contents differ, for a person: lines that went and lines that came.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::payload::pretty_json;

/// Lines that are shown around the change.
const AROUND: usize = 3;
/// Lines of each kind that are shown at most.
const LINES_MAX: usize = 200;
/// Characters of a line that are shown at most.
const WIDTH_MAX: usize = 2_000;

/// A line of a difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::exhaustive_enums, reason = "a line went, came or stays")]
pub enum DiffLine {
    /// It is in both.
    Same(String),
    /// It went.
    Old(String),
    /// It came.
    New(String),
    /// This number of lines is left out.
    LeftOut(usize),
}

/// The headers that differ.
pub(super) fn of_headers(old: &BTreeMap<String, Value>, new: &BTreeMap<String, Value>) -> Vec<DiffLine> {
    let line = |name: &str, value: &Value| {
        cut(&format!("{name}: {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
    };
    let names: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differ = names.into_iter().filter(|name| old.get(*name) != new.get(*name));
    differ
        .flat_map(|name| {
            let went = old.get(name).map(|value| DiffLine::Old(line(name, value)));
            let came = new.get(name).map(|value| DiffLine::New(line(name, value)));
            [went, came]
        })
        .flatten()
        .collect()
}

/// The lines of payloads that differ, JSON as it is read best; none where one is no text.
pub(super) fn of_payloads(old: &[u8], new: &[u8]) -> Vec<DiffLine> {
    let (Some(old), Some(new)) = (lines(old), lines(new)) else { return Vec::new() };
    if old == new {
        return Vec::new();
    }
    let before = old.iter().zip(&new).take_while(|(one, other)| one == other).count();
    let room = old.len().min(new.len()) - before;
    let after =
        old.iter().rev().zip(new.iter().rev()).take(room).take_while(|(one, other)| one == other).count();
    let from = before.saturating_sub(AROUND);
    let to = (old.len() - after + AROUND).min(old.len());
    let mut shown = Vec::new();
    leave_out(&mut shown, from);
    shown.extend(old[from..before].iter().map(|line| DiffLine::Same(cut(line))));
    bounded(&mut shown, &old[before..old.len() - after], DiffLine::Old);
    bounded(&mut shown, &new[before..new.len() - after], DiffLine::New);
    shown.extend(old[old.len() - after..to].iter().map(|line| DiffLine::Same(cut(line))));
    leave_out(&mut shown, old.len() - to);
    shown
}

fn bounded(shown: &mut Vec<DiffLine>, lines: &[String], kind: fn(String) -> DiffLine) {
    shown.extend(lines.iter().take(LINES_MAX).map(|line| kind(cut(line))));
    leave_out(shown, lines.len().saturating_sub(LINES_MAX));
}

fn leave_out(shown: &mut Vec<DiffLine>, lines: usize) {
    shown.extend((lines > 0).then_some(DiffLine::LeftOut(lines)));
}

fn lines(payload: &[u8]) -> Option<Vec<String>> {
    let text = std::str::from_utf8(payload).ok()?;
    let pretty = pretty_json(text);
    Some(pretty.as_deref().unwrap_or(text).lines().map(str::to_owned).collect())
}

fn cut(line: &str) -> String {
    match line.char_indices().nth(WIDTH_MAX) {
        Some((end, _)) => format!("{} ... cut after {WIDTH_MAX} characters", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(old: &[u8], new: &[u8], expected: &[&str]) {
        let shown: Vec<String> = of_payloads(old, new)
            .iter()
            .map(|line| match line {
                DiffLine::Same(line) => format!(" {line}"),
                DiffLine::Old(line) => format!("-{line}"),
                DiffLine::New(line) => format!("+{line}"),
                DiffLine::LeftOut(lines) => format!("... {lines}"),
            })
            .collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_difference_shows_the_lines_that_went_and_came() {
        check(
            br#"{"a":1,"b":[]}"#,
            br#"{"a": 2, "b": []}"#,
            &[" {", "-  \"a\": 1,", "+  \"a\": 2,", "   \"b\": []", " }"],
        );
        check(b"a\nb\nc\nd\ne", b"a\nb\nc\nd\nf", &["... 1", " b", " c", " d", "-e", "+f"]);
        check(b"a\na", b"a", &[" a", "-a"]);
        check(b"", b"a", &["+a"]);
        check(b"same", b"same", &[]);
        // Digits that a double does not have, and an escaped quote.
        check(
            br#"{"n":1.10000000000000000001}"#,
            br#"{"n":"\"}"}"#,
            &[" {", "-  \"n\": 1.10000000000000000001", "+  \"n\": \"\\\"}\"", " }"],
        );
        check(&[0xff], b"a", &[]);
    }

    #[test]
    fn a_difference_is_bounded() {
        let many = "x\n".repeat(1000);
        let shown = of_payloads(many.as_bytes(), b"y");
        assert_eq!(shown.len(), LINES_MAX + 2);
        assert!(shown.contains(&DiffLine::LeftOut(1000 - LINES_MAX)));
        assert!(cut(&"ä".repeat(3000)).ends_with("cut after 2000 characters"));
    }
}
