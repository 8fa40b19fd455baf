//! The configuration file: TOML, every mistake with its line, none with a value that could be a
//! secret.

use std::{collections::HashMap, path::Path};

use toml::de::DeTable;

use super::{
    OPTIONS,
    options::{at_same_key, did_you_mean},
    place::{Place, scalar},
    stream::{self, StreamTable},
    table::{self, DatabaseTable},
};

/// The name of the tables that declare streams.
const STREAM: &str = "stream";
/// The name of those that name databases.
const DATABASE: &str = "database";

/// The contents of a configuration file.
#[derive(Default)]
pub(super) struct File {
    /// Option name to text and line.
    pub(super) values: HashMap<&'static str, (String, usize)>,
    pub(super) streams: Vec<StreamTable>,
    pub(super) databases: Vec<DatabaseTable>,
    pub(super) mistakes: Vec<String>,
}

/// Reads a whole file; every mistake in it is noted.
pub(super) fn parse(path: &Path, text: &str) -> File {
    let place = Place { path, text };
    let mut file = File::default();
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let line = place.line(error.span().map_or(0, |span| span.start));
        // The error's own text is left out, since it quotes the line, which may hold a secret.
        file.mistakes.push(place.mistake(line, error.message()));
    }
    for (key, value) in table.get_ref() {
        let line = place.line(key.span().start);
        let name = key.get_ref().as_ref();
        if name == STREAM {
            file.streams = stream::parse_all(&place, value, &mut file.mistakes);
        } else if name == DATABASE {
            file.databases = table::parse_all(&place, value, &mut file.mistakes);
        } else if let Some(option) = at_same_key(name) {
            match scalar(value.get_ref()) {
                Some(text) => drop(file.values.insert(option.name, (text, line))),
                None => {
                    let problem = format!("{name} is a text, a whole number, true or false");
                    file.mistakes.push(place.mistake(line, problem));
                }
            }
        } else {
            file.mistakes.push(place.mistake(line, unknown(name)));
        }
    }
    let lone = ["database-url", "database-url-file"].into_iter().filter(|_| !file.databases.is_empty());
    for (option, line) in
        lone.filter_map(|name| Some((at_same_key(&name.replace('-', "_"))?, file.values.remove(name)?.1)))
    {
        let problem =
            format!("{} stands beside [[database]] tables: write one for this database too", option.key());
        file.mistakes.push(place.mistake(line, problem));
    }
    file.mistakes.sort_by_key(|mistake| line_of(mistake, path));
    file
}

/// The line of a mistake: mistakes are told in the order of the file, which the table has lost.
fn line_of(mistake: &str, path: &Path) -> usize {
    let rest = mistake.strip_prefix(&format!("{}:", path.display()));
    rest.and_then(|rest| rest.split(':').next()?.parse().ok()).unwrap_or(usize::MAX)
}

fn unknown(name: &str) -> String {
    let keys: Vec<String> = OPTIONS
        .iter()
        .filter(|o| o.is_in_file())
        .map(super::OptionSpec::key)
        .chain([STREAM.into(), DATABASE.into()])
        .collect();
    let written = name.replace('-', "_");
    let hint = did_you_mean(&written, keys.iter().map(String::as_str));
    format!("{name:?} is not an option of oncebox{hint}")
}
