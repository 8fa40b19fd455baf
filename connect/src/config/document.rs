//! The tables of docs/configuration.md, from the tables that the program reads.

use std::fmt::Write as _;

use super::{OPTIONS, stream::STREAM_FIELDS};

/// Every option and every field of a `[[stream]]` table, as Markdown.
#[must_use]
pub fn options_document() -> String {
    let mut text = String::from("| file | flag | environment | default | meaning |\n|---|---|---|---|---|\n");
    let quoted = |text: Option<&str>| text.map(|text| format!("`{text}`")).unwrap_or_default();
    for option in OPTIONS {
        let key = option.key();
        let in_file = quoted(Some(key.as_str()).filter(|_| option.is_in_file()));
        let flag = format!("--{}", option.name);
        let flag = quoted(Some(flag.as_str()).filter(|_| !option.is_secret));
        let default = quoted(option.default);
        let _ =
            writeln!(text, "| {in_file} | {flag} | `{}` | {default} | {} |", option.environment, option.help);
    }
    text.push_str("\nFields of a `[[stream]]` table:\n\n| field | default | meaning |\n|---|---|---|\n");
    for field in STREAM_FIELDS {
        let _ = writeln!(text, "| `{}` | {} | {} |", field.name, quoted(field.default), field.help);
    }
    text
}
