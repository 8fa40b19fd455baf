//! `[[database]]` tables: a file that names several databases. Each has the settings of its table
//! over those of the rest of the file, of the environment and of flags.

use std::collections::{BTreeMap, HashMap, HashSet};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    Config, ConfigError, OPTIONS, Sources,
    file::{File, add_streams},
    options::{at_same_key, find, in_table, nearest},
    place::{Place, scalar},
    stream::StreamTable,
};

/// The name of these tables.
pub(super) const DATABASE: &str = "database";
/// Databases of one file, at most: each takes connections of the process.
const DATABASES_MAX: usize = 256;
/// Names become labels of metrics.
const NAME_MAX: usize = 63;

/// One table.
#[derive(Clone, Debug)]
pub(super) struct DatabaseTable {
    pub(super) name: String,
    line: usize,
    /// Option name to text and line.
    values: HashMap<&'static str, (String, usize)>,
    streams: Vec<StreamTable>,
}

/// Which table settings are of; for mistakes.
#[derive(Clone, Debug)]
pub(super) struct InTable {
    name: String,
    line: usize,
    own: HashSet<&'static str>,
}

/// One of the databases that a file names, with the configuration of its relay.
#[derive(Clone, Debug)]
pub struct NamedConfig {
    /// Its name in the file.
    pub name: String,
    /// The settings of its relay.
    pub config: Config,
    /// All that its settings come from.
    pub settings: Settings,
}

/// The settings of one database as typed, and the contents of the files that they name: equal when
/// nothing has changed. Nothing shows it, since it holds secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    values: BTreeMap<&'static str, (String, Option<String>)>,
    streams: String,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.values.keys()).finish()
    }
}

impl NamedConfig {
    /// Every database of a file, in the order of the file.
    ///
    /// # Errors
    /// All mistakes at once, each once.
    pub fn all(sources: &Sources) -> Result<Vec<Self>, ConfigError> {
        let (mut all, mut mistakes) = (Vec::new(), sources.mistakes.clone());
        for (name, sources) in sources.databases() {
            match Config::from_sources(&sources) {
                Ok(config) => all.push(Self { name, config, settings: sources.settings() }),
                Err(error) => mistakes.extend(error.0),
            }
        }
        if mistakes.is_empty() { Ok(all) } else { Err(ConfigError::distinct(mistakes)) }
    }
}

impl Sources {
    /// Whether the file names several databases.
    #[must_use]
    pub fn has_databases(&self) -> bool {
        !self.databases.is_empty()
    }

    /// The name and the settings of each database that the file names. Mistakes so far stay here.
    #[must_use]
    pub fn databases(&self) -> Vec<(String, Self)> {
        self.databases.iter().map(|table| (table.name.clone(), table.over(self))).collect()
    }

    /// All that was typed of one database.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let content = |name: &str, value: &String| {
            let is_read_once = name.starts_with("database-") && name.ends_with("-file");
            is_read_once.then(|| std::fs::read_to_string(value).unwrap_or_default())
        };
        // Others of the process are read by each relay.
        let mine = self
            .values
            .iter()
            .filter(|(name, _)| !["config", "http-listen", "log", "log-format"].contains(*name));
        let values = mine.map(|(name, value)| (*name, (value.clone(), content(name, value))));
        Settings { values: values.collect(), streams: format!("{:?}", self.streams) }
    }
}

impl DatabaseTable {
    fn over(&self, rest: &Sources) -> Sources {
        let mut all =
            Sources { databases: Vec::new(), mistakes: Vec::new(), hidden: Vec::new(), ..rest.clone() };
        let url = find("database-url").into_iter();
        for option in self.values.keys().filter_map(|name| find(name)).chain(url) {
            for other in option.alternatives() {
                all.values.remove(other);
                all.lines.remove(other);
            }
        }
        for (name, (text, line)) in &self.values {
            all.values.insert(name, text.clone());
            all.lines.insert(name, *line);
        }
        if !self.streams.is_empty() {
            all.streams.clone_from(&self.streams);
        }
        let own = self.values.keys().copied().collect();
        all.table = Some(InTable { name: self.name.clone(), line: self.line, own });
        all
    }
}

impl InTable {
    /// The line of an option and its name, for one that this table gives, or that nobody gives.
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

/// Reads the tables of a file.
pub(super) fn add_databases(file: &mut File, place: &Place<'_>, value: &Spanned<DeValue<'_>>) {
    let line = place.line(value.span().start);
    let mistake = place.mistake(line, "databases are written as [[database]] tables");
    let Some(tables) = value.get_ref().as_array() else { return file.mistakes.push(mistake) };
    if tables.len() > DATABASES_MAX {
        let problem =
            format!("{} databases are too many for one file; {DATABASES_MAX} at most", tables.len());
        file.mistakes.push(place.mistake(line, problem));
    }
    let mut names = HashSet::new();
    for table in tables.iter() {
        let line = place.line(table.span().start);
        let Some(fields) = table.get_ref().as_table() else { return file.mistakes.push(mistake) };
        let table = read(file, place, line, fields);
        if !table.name.is_empty() && !names.insert(table.name.clone()) {
            file.mistakes.push(place.mistake(line, format!("database {} is named twice", table.name)));
        }
        file.databases.push(table);
    }
}

fn read(file: &mut File, place: &Place<'_>, line: usize, fields: &DeTable<'_>) -> DatabaseTable {
    let mut table = DatabaseTable { name: String::new(), line, values: HashMap::new(), streams: Vec::new() };
    // The streams of a table, with the mistakes of the whole file.
    let mut inner = File::default();
    for (key, value) in fields {
        let line = place.line(key.span().start);
        let (key, text) = (key.get_ref().as_ref(), scalar(value.get_ref()));
        if key == "stream" {
            add_streams(&mut inner, place, value);
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
        file.mistakes.push(place.mistake(line, problem));
    }
    if !fields.keys().any(|key| key.get_ref() == "name") {
        file.mistakes.push(place.mistake(line, "a database needs its name"));
    }
    file.mistakes.append(&mut inner.mistakes);
    table.streams = inner.streams;
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
    let near = nearest(&key.replace('-', "_"), known.map(|key| (key, key.to_owned())));
    let hint = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    format!("{key:?} is not a setting of a database{hint}")
}
