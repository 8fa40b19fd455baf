//! The text of the statement that a client sends, for a report that names it.

use std::collections::HashMap;

/// How much of a statement is shown.
const LENGTH_SHOWN: usize = 120;

/// The statements that one connection has prepared, by their names.
#[derive(Debug, Default)]
pub(crate) struct Prepared(HashMap<Vec<u8>, String>);

impl Prepared {
    /// Notes all that a group of messages prepares or closes, and returns the text of its last
    /// statement; of one that it only prepares with PREPARE before it.
    pub(crate) fn note(&mut self, group: &[u8]) -> String {
        let (mut text, mut is_run, mut rest) = (String::new(), false, group);
        while let Some((kind, body, next)) = message(rest) {
            rest = next;
            let mut parts = body.split(|byte| *byte == 0);
            match (kind, parts.next().unwrap_or_default(), parts.next().unwrap_or_default()) {
                (b'Q', sql, _) => (text, is_run) = (shown(sql), true),
                (b'P', name, sql) => {
                    text = shown(sql);
                    self.0.insert(name.to_owned(), text.clone());
                }
                (b'B', _, name) => text = self.0.get(name).cloned().unwrap_or_default(),
                (b'E', ..) => is_run = true,
                (b'C', [b'S', name @ ..], _) => drop(self.0.remove(name)),
                _ => {}
            }
        }
        if is_run || text.is_empty() { text } else { format!("PREPARE {text}") }
    }
}

/// The kind and the body of the first message, and the bytes after it; `None` while a part of it is
/// missing. A length below the one of itself counts as that.
pub(crate) fn message(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let length = u32::from_be_bytes(*bytes.get(1..)?.first_chunk()?);
    let end = 1 + usize::try_from(length).ok()?.max(4);
    Some((bytes[0], bytes.get(5..end)?, &bytes[end..]))
}

/// One line without comments, cut at a length.
fn shown(sql: &[u8]) -> String {
    let text = String::from_utf8_lossy(sql);
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with("--"));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    let line = words.join(" ");
    match line.char_indices().nth(LENGTH_SHOWN) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

/// A message.
#[cfg(test)]
pub(crate) fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
    [&[kind], &length[..], body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_named_by_its_text_however_it_is_sent() {
        let mut prepared = Prepared::default();
        let sync = frame(b'S', b"");
        let run = [frame(b'B', b"\0s1\0\0\0"), frame(b'E', b"\0\0\0\0\0"), sync.clone()].concat();
        let groups = [
            (frame(b'Q', b"BEGIN\0"), "BEGIN"),
            (
                [frame(b'P', b"s1\0-- Why.\nSELECT  1\n  FROM t\0\0"), frame(b'D', b"Ss1\0"), sync.clone()]
                    .concat(),
                "PREPARE SELECT 1 FROM t",
            ),
            (run.clone(), "SELECT 1 FROM t"),
            ([frame(b'C', b"Ss1\0"), sync].concat(), ""),
            (run, ""),
        ];
        for (group, expected) in groups {
            assert_eq!(prepared.note(&group), expected);
        }
        assert_eq!(shown("ä".repeat(500).as_bytes()).chars().count(), LENGTH_SHOWN + 3);
    }
}
