//! The tables of docs/configuration.md, from the tables that the program reads.

use std::fmt::Write as _;

use super::{OPTIONS, OptionSpec, stream::STREAM_FIELDS};

/// Every option and every field of `[[stream]]` and `[[database]]` tables, as Markdown.
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
    text.push_str("\nFields of a `[[database]]` table:\n\n| field | meaning |\n|---|---|\n");
    text.push_str("| `name` | Name of the database: 1 to 63 letters, digits, `-`, `_` or `.`; required |\n");
    let own = |option: &&OptionSpec| option.name.starts_with("database-");
    for option in OPTIONS.iter().filter(own) {
        let _ = writeln!(text, "| `{}` | `{}` |", option.key_in_table().unwrap_or_default(), option.key());
    }
    let others = OPTIONS.iter().filter(|option| !own(option)).filter_map(OptionSpec::key_in_table);
    let others: Vec<String> = others.map(|key| format!("`{key}`")).collect();
    let _ = writeln!(text, "| {} | as above the tables, for this database |", others.join(", "));
    text.push_str("| `[[database.stream]]` | As `[[stream]]`; a database with such tables has no others |\n");
    text
}
