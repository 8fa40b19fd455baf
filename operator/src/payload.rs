//! Payloads as people see them: text as it is, JSON a member a line, everything else as digits.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio_postgres::Row;

/// The payload of a message, or its beginning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct ShownPayload {
    /// Text as it is, else hexadecimal digits after `\x`.
    pub payload: String,
    /// Whether it is no text.
    pub payload_is_binary: bool,
    /// Whether `payload` is only its beginning.
    pub payload_is_cut: bool,
}

/// The columns `payload` and `payload_bytes` of a row.
pub(super) fn shown_payload(row: &Row) -> Option<ShownPayload> {
    let bytes: Vec<u8> = row.get::<_, Option<Vec<u8>>>("payload")?;
    let whole = usize::try_from(row.get::<_, i64>("payload_bytes")).unwrap_or(usize::MAX);
    Some(ShownPayload::new(&bytes, bytes.len() < whole))
}

impl ShownPayload {
    fn new(bytes: &[u8], payload_is_cut: bool) -> Self {
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => Some(text),
            // Cut within a character.
            Err(error) if payload_is_cut && error.error_len().is_none() => {
                std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()
            }
            Err(_) => None,
        };
        let digits =
            || std::iter::once("\\x".to_owned()).chain(bytes.iter().map(|byte| format!("{byte:02x}")));
        Self {
            payload: text.map_or_else(|| digits().collect(), str::to_owned),
            payload_is_binary: text.is_none(),
            payload_is_cut,
        }
    }
}

/// JSON with a line for each member; `None` for text that is none. Numbers keep their digits, and
/// objects the order of their members.
#[must_use]
pub fn pretty_json(json: &str) -> Option<String> {
    serde_json::from_str::<&RawValue>(json).ok()?;
    let (mut out, mut depth, mut in_text, mut escaped) = (String::new(), 0_usize, false, false);
    for (place, character) in json.char_indices() {
        if in_text {
            out.push(character);
            in_text = escaped || character != '"';
            escaped = character == '\\' && !escaped;
            continue;
        }
        let is_empty = || json[place + 1..].trim_start().starts_with(['}', ']']);
        let newline = |out: &mut String, depth: usize| {
            out.push('\n');
            out.extend(std::iter::repeat_n("  ", depth));
        };
        match character {
            '{' | '[' => {
                out.push(character);
                if !is_empty() {
                    depth += 1;
                    newline(&mut out, depth);
                }
            }
            '}' | ']' => {
                if !out.ends_with(['{', '[']) {
                    depth = depth.saturating_sub(1);
                    newline(&mut out, depth);
                }
                out.push(character);
            }
            ',' => {
                out.push(',');
                newline(&mut out, depth);
            }
            ':' => out.push_str(": "),
            '"' => {
                in_text = true;
                out.push('"');
            }
            blank if blank.is_whitespace() => {}
            other => out.push(other),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], is_cut: bool, expected: (&str, bool)) {
        let shown = ShownPayload::new(bytes, is_cut);
        assert_eq!((&*shown.payload, shown.payload_is_binary), expected);
    }

    #[test]
    fn text_is_shown_as_it_is_and_other_bytes_as_digits() {
        check("ä".as_bytes(), false, ("ä", false));
        check(&"aä".as_bytes()[..2], true, ("a", false));
        check(&"aä".as_bytes()[..2], false, ("\\x61c3", true));
        check(b"\\x61", false, ("\\x61", false));
        check(&[0xff], true, ("\\xff", true));
    }

    #[test]
    fn json_has_a_line_for_each_member() {
        let pretty = pretty_json(r#"{"n":1.10000000000000000001,"a":["\"}",{}],"b":[]}"#).unwrap();
        let expected =
            "{\n  \"n\": 1.10000000000000000001,\n  \"a\": [\n    \"\\\"}\",\n    {}\n  ],\n  \"b\": []\n}";
        assert_eq!(pretty, expected);
        assert_eq!((pretty_json("[").as_deref(), pretty_json("a").as_deref()), (None, None));
    }
}
