//! `[[database]]` tables: a file that names several databases, each with settings of its own.

use std::collections::{HashMap, HashSet};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    OPTIONS,
    options::{at_same_key, did_you_mean, find, in_table},
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
    mistakes: &mut Vec<String>,
) -> Vec<DatabaseTable> {
    let (mut databases, mut names) = (Vec::new(), HashSet::new());
    let tables = place.tables(value, "databases are written as [[database]] tables", mistakes);
    if tables.len() > DATABASES_MAX {
        let problem =
            format!("{} databases are too many for one file; {DATABASES_MAX} at most", tables.len());
        mistakes.push(place.mistake(place.line(value.span().start), problem));
    }
    for (line, fields) in tables {
        let table = parse(place, line, fields, mistakes);
        if !table.name.is_empty() && !names.insert(table.name.clone()) {
            mistakes.push(place.mistake(line, format!("database {} is named twice", table.name)));
        }
        databases.push(table);
    }
    databases
}

/// Reads one table; `line` is its own.
fn parse(place: &Place<'_>, line: usize, fields: &DeTable<'_>, mistakes: &mut Vec<String>) -> DatabaseTable {
    let mut table = DatabaseTable { name: String::new(), line, values: HashMap::new(), streams: Vec::new() };
    for (key, value) in fields {
        let line = place.line(key.span().start);
        let (key, text) = (key.get_ref().as_ref(), scalar(value.get_ref()));
        if key == "stream" {
            table.streams = stream::parse_all(place, value, mistakes);
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
    table
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
    let hint = did_you_mean(&key.replace('-', "_"), known);
    format!("{key:?} is not a setting of a database{hint}")
}
