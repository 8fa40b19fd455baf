//! The databases that a file names: each has the settings of its table over those of the rest of
//! the file, of the environment and of flags.

use std::collections::BTreeMap;

use super::{
    Config, ConfigError, Sources,
    options::{STREAM, find},
    table::{DatabaseTable, InTable},
};

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
        mistakes.extend(twins(&all));
        if mistakes.is_empty() { Ok(all) } else { Err(ConfigError::distinct(mistakes)) }
    }
}

/// Two names of one database; a relay notices those that have different addresses.
fn twins(all: &[NamedConfig]) -> Option<String> {
    let place =
        |named: &NamedConfig| (named.config.outbox.postgres_target(), named.config.outbox.schema.clone());
    all.iter().enumerate().find_map(|(at, named)| {
        let twin = all[..at].iter().find(|other| place(other) == place(named))?;
        let (one, other, (target, schema)) = (&twin.name, &named.name, place(named));
        Some(format!(
            "the databases {one} and {other} are the same one, {target} with schema {schema}: its messages would go to the NATS \
             of one or the other; take one of the two out"
        ))
    })
}

impl Sources {
    /// The name and the settings of each database that the file names. Mistakes so far stay here.
    #[must_use]
    pub fn databases(&self) -> Vec<(String, Self)> {
        self.databases.iter().map(|table| (table.name.clone(), over(self, table))).collect()
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

/// The settings of a table, over those of the rest.
fn over(rest: &Sources, table: &DatabaseTable) -> Sources {
    let mut all = Sources { databases: Vec::new(), mistakes: Vec::new(), hidden: Vec::new(), ..rest.clone() };
    let url = find("database-url").into_iter();
    for option in table.values.keys().filter_map(|name| find(name)).chain(url) {
        for other in option.alternatives() {
            all.values.remove(other);
            all.lines.remove(other);
        }
    }
    for (name, (text, line)) in &table.values {
        all.values.insert(name, text.clone());
        all.lines.insert(name, *line);
    }
    if !table.streams.is_empty() {
        all.streams.clone_from(&table.streams);
        all.values.remove(STREAM);
    }
    let own = table.values.keys().copied().collect();
    all.table = Some(InTable { name: table.name.clone(), line: table.line, own });
    all
}
