//! `[[database]]` tables: a file that names several databases, each with settings of its own.

use std::collections::{HashMap, HashSet};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    OPTIONS,
    options::{at_same_key, find, in_table, nearest},
    place::{Place, scalar},
    stream::{self, StreamTable},
};

/// Databases of one file, at most: each takes connections of the process.
const DATABASES_MAX: usize = 256;
/// Names become labels of metrics.
const NAME_MAX: usize = 63;

/// One table.
#[derive(Clone, Debug)]
pub(super) struct DatabaseTable {
    pub(super) name: String,
    pub(super) line: usize,
    /// Option name to text and line.
    pub(super) values: HashMap<&'static str, (String, usize)>,
    pub(super) streams: Vec<StreamTable>,
}

/// Which table settings are of; for mistakes.
#[derive(Clone, Debug)]
pub(super) struct InTable {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) own: HashSet<&'static str>,
}

impl InTable {
    /// The line of an option and its name, for one that this table gives, or that no source gives.
    pub(super) fn place(&self, name: &str, line: Option<usize>) -> Option<(usize, String)> {
        let key = find(name).and_then(|option| option.key_in_table())?;
        match line {
            Some(line) if self.own.contains(name) => Some((line, key)),
            Some(_) => None,
            None if self.name.is_empty() => Some((self.line, key)),
            None => Some((self.line, format!("database {}: {key}", self.name))),
        }
    }
}

/// Reads all tables, with the mistakes in them.
pub(super) fn parse_all(
    place: &Place<'_>,
    value: &Spanned<DeValue<'_>>,
) -> (Vec<DatabaseTable>, Vec<String>) {
    let line = place.line(value.span().start);
    let unreadable = || vec![place.mistake(line, "databases are written as [[database]] tables")];
    let Some(tables) = value.get_ref().as_array() else { return (Vec::new(), unreadable()) };
    let (mut databases, mut mistakes, mut names) = (Vec::new(), Vec::new(), HashSet::new());
    if tables.len() > DATABASES_MAX {
        let problem =
            format!("{} databases are too many for one file; {DATABASES_MAX} at most", tables.len());
        mistakes.push(place.mistake(line, problem));
    }
    for table in tables.iter() {
        let line = place.line(table.span().start);
        let Some(fields) = table.get_ref().as_table() else { return (databases, unreadable()) };
        let (table, found) = parse(place, line, fields);
        mistakes.extend(found);
        if !table.name.is_empty() && !names.insert(table.name.clone()) {
            mistakes.push(place.mistake(line, format!("database {} is named twice", table.name)));
        }
        databases.push(table);
    }
    (databases, mistakes)
}

/// Reads one table; `line` is its own.
fn parse(place: &Place<'_>, line: usize, fields: &DeTable<'_>) -> (DatabaseTable, Vec<String>) {
    let mut table = DatabaseTable { name: String::new(), line, values: HashMap::new(), streams: Vec::new() };
    let mut mistakes = Vec::new();
    for (key, value) in fields {
        let line = place.line(key.span().start);
        let (key, text) = (key.get_ref().as_ref(), scalar(value.get_ref()));
        if key == "stream" {
            let (streams, found) = stream::parse_all(place, value);
            table.streams = streams;
            mistakes.extend(found);
            continue;
        }
        let option = in_table(key);
        let problem = match (option, text) {
            (None, Some(text)) if key == "name" && is_name(&text) => {
                table.name = text;
                continue;
            }
            (Some(option), Some(text)) => {
                table.values.insert(option.name, (text, line));
                continue;
            }
            (None, text) if key == "name" => format!(
                "name: {:?} is not a name: 1 to {NAME_MAX} letters, digits, - _ or .",
                text.unwrap_or_default()
            ),
            (Some(_), None) => format!("{key} is a text, a whole number, true or false"),
            (None, _) => unknown(key),
        };
        mistakes.push(place.mistake(line, problem));
    }
    if !fields.keys().any(|key| key.get_ref() == "name") {
        mistakes.push(place.mistake(line, "a database needs its name"));
    }
    (table, mistakes)
}

fn is_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=NAME_MAX).contains(&text.len()) && text.chars().all(is_plain)
}

fn unknown(key: &str) -> String {
    if let Some(option) = at_same_key(key) {
        return match option.key_in_table() {
            Some(here) => format!("{key:?} is called {here} in a [[database]] table"),
            None => {
                format!("{key:?} is a setting of the whole process: write it above the [[database]] tables")
            }
        };
    }
    let keys: Vec<String> = OPTIONS.iter().filter_map(super::OptionSpec::key_in_table).collect();
    let known = keys.iter().map(String::as_str).chain(["name", "stream"]);
    let near = nearest(&key.replace('-', "_"), known.map(|key| (key, key.to_owned())));
    let hint = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    format!("{key:?} is not a setting of a database{hint}")
}
