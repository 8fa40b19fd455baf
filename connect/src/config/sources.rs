//! The sources of settings: flags over environment over the configuration file.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use super::{
    OPTIONS, OptionSpec, Values, file,
    options::{did_you_mean, find, nearest},
    stream::StreamTable,
    table::{DatabaseTable, InTable},
};

/// A secret as given; nothing shows it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Secret {
    /// The secret itself.
    Text(String),
    /// The file that holds the secret.
    File(PathBuf),
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(_) => f.write_str("***"),
            Self::File(path) => path.fmt(f),
        }
    }
}

/// All that was typed, with its mistakes so far.
#[derive(Clone, Default)]
pub struct Sources {
    pub(super) values: Values,
    /// The line of each value that comes from the file.
    pub(super) lines: HashMap<&'static str, usize>,
    pub(super) file: Option<PathBuf>,
    pub(super) streams: Vec<StreamTable>,
    /// The databases that the file names.
    pub(super) databases: Vec<DatabaseTable>,
    /// Which of them these settings are of.
    pub(super) table: Option<InTable>,
    pub(super) mistakes: Vec<String>,
    /// Values that are not used although they are given, in words.
    pub(super) hidden: Vec<String>,
    /// The values that were given outside of the file, to read the file again with them.
    pub(super) outside: Outside,
    /// Whether a program that has a relay inside gave the values: it knows options by their names
    /// alone, and has no listener unless it asks for one.
    pub(super) is_inside: bool,
}

#[derive(Clone, Default)]
pub(super) struct Outside {
    flags: Values,
    environment: Values,
    mistakes: Vec<String>,
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Values may hold secrets.
        f.debug_struct("Sources").field("given", &self.values.keys()).field("file", &self.file).finish()
    }
}

impl Sources {
    /// Reads the environment through `lookup`, and the file that flags or environment name; flags
    /// win over the environment, and that over the file. Unknown names and other mistakes are kept
    /// for [`Config::from_sources`].
    ///
    /// [`Config::from_sources`]: super::Config::from_sources
    pub fn read(
        flags: Values,
        names: impl IntoIterator<Item = String>,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Self {
        let from_environment = |option: &'static OptionSpec| Some((option.name, lookup(option.environment)?));
        let environment = OPTIONS.iter().filter_map(from_environment).collect();
        Self::from_outside(Outside { flags, environment, mistakes: unknown(names) })
    }

    /// The same with the file as it is now.
    #[must_use]
    pub fn read_again(&self) -> Self {
        Self::from_outside(self.outside.clone())
    }

    fn from_outside(outside: Outside) -> Self {
        let mut values = outside.environment.clone();
        values.extend(outside.flags.clone());
        let mut all = Self { values, mistakes: outside.mistakes.clone(), outside, ..Self::default() };
        if let Some(path) = all.values.get("config").filter(|path| !path.is_empty()).map(PathBuf::from) {
            all.add_file(&path);
        }
        if all.has_databases() {
            all.refuse_lone_database();
        }
        all
    }

    /// A database outside of the file is none of those that it names.
    fn refuse_lone_database(&mut self) {
        let names: Vec<&str> = self.databases.iter().map(|table| table.name.as_str()).collect();
        let file = self.file.as_deref().unwrap_or(Path::new("")).display();
        for option in ["database-url", "database-url-file"].into_iter().filter_map(find) {
            if self.outside.flags.contains_key(option.name) {
                self.mistakes.push(format!(
                    "--{} is given, but {file} names databases: choose with --database: {}",
                    option.name,
                    names.join(", ")
                ));
            } else if self.has(option.name) {
                self.hidden.push(format!("{} is not used, since {file} names databases", option.environment));
            }
        }
    }

    /// The values that are given and not used, for example those of the file that the environment
    /// hides: a command with `--config` may then go somewhere else than the file says.
    #[must_use]
    pub fn hidden(&self) -> &[String] {
        &self.hidden
    }

    fn add_file(&mut self, path: &Path) {
        self.file = Some(path.to_owned());
        let read = std::fs::read_to_string(path).map_err(|error| {
            let place = self.place("config");
            format!("{place}: read {}: {error}", path.display())
        });
        match read {
            Err(mistake) => self.mistakes.push(mistake),
            Ok(text) => {
                let file = file::parse(path, &text);
                self.mistakes.extend(file.mistakes);
                self.streams = file.streams;
                self.databases = file.databases;
                for (name, (text, line)) in file.values {
                    // An empty variable counts as not given, here as everywhere.
                    if self.values.get(name).is_some_and(|value| !value.is_empty() && *value != text)
                        && !self.outside.flags.contains_key(name)
                    {
                        let variable = find(name).map_or(name, |option| option.environment);
                        self.hidden.push(format!(
                            "{}:{line}: {name} is not used, since {variable} is set in the environment",
                            path.display()
                        ));
                    }
                    if self.values.get(name).is_none_or(String::is_empty) {
                        self.values.insert(name, text);
                        self.lines.insert(name, line);
                    }
                }
            }
        }
    }

    /// Whether the file names several databases.
    #[must_use]
    pub fn has_databases(&self) -> bool {
        !self.databases.is_empty()
    }

    /// All mistakes so far.
    #[must_use]
    pub fn mistakes(&self) -> &[String] {
        &self.mistakes
    }

    /// Drops the options that `is_meant` refuses: a command looks only at the options that it has.
    #[must_use]
    pub fn only(mut self, is_meant: impl Fn(&str) -> bool) -> Self {
        self.values.retain(|name, _| is_meant(name));
        self
    }

    /// Whether an option is given; empty counts as not given.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(|text| !text.is_empty())
    }

    /// Option name to text, from all sources together.
    #[must_use]
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// The place at which an option was given, or could have been given.
    pub(super) fn place(&self, name: &str) -> String {
        let Some(option) = find(name) else { return name.to_owned() };
        if self.is_inside {
            return format!("option {name}");
        }
        let line = self.lines.get(name).copied();
        let in_table = self.table.as_ref().filter(|_| line.is_some() || !self.has(name));
        if let (Some((line, key)), Some(file)) =
            (in_table.and_then(|table| table.place(name, line)), &self.file)
        {
            return format!("{}:{line}: {key}", file.display());
        }
        match (line, &self.file) {
            (Some(line), Some(file)) => format!("{}:{line}: {}", file.display(), option.key()),
            _ if option.is_secret => option.environment.to_owned(),
            _ => format!("--{name} ({})", option.environment),
        }
    }
}

impl From<&Values> for Sources {
    /// A program that has a relay inside gives the names itself, and may misspell one.
    fn from(values: &Values) -> Self {
        let misspelt = values.keys().filter(|name| find(name).is_none()).map(|name| {
            let all = OPTIONS.iter().map(|option| option.name);
            let hint = nearest(name, all).map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
            format!("{name:?} is not an option of oncebox{hint}")
        });
        let mut mistakes: Vec<String> = misspelt.collect();
        mistakes.sort_unstable();
        if values.contains_key("config") {
            mistakes.push("option config: no file is read for values; give each option by itself".to_owned());
        }
        Self { values: values.clone(), mistakes, is_inside: true, ..Self::default() }
    }
}

/// Every name that looks like an option of ours but is not one, with the nearest that is.
fn unknown(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let known = |name: &str| OPTIONS.iter().any(|option| option.environment == name);
    let mut unknown: Vec<String> = names
        .into_iter()
        .filter(|name| name.starts_with("ONCEBOX_") && !name.starts_with("ONCEBOX_TEST_") && !known(name))
        .map(|name| {
            let hint = did_you_mean(&name, OPTIONS.iter().map(|option| option.environment));
            format!("{name} is not an option of oncebox{hint}")
        })
        .collect();
    unknown.sort_unstable();
    unknown
}
