//! The sources of settings: flags over environment over the configuration file.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use super::{
    OPTIONS, OptionSpec, Values, file,
    options::{find, nearest},
    stream::StreamTable,
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
    pub(super) mistakes: Vec<String>,
    /// Values of the file that the environment hides, in words.
    hidden: Vec<String>,
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
        let mut all = Self { mistakes: unknown(names), ..Self::default() };
        let from_environment = |option: &'static OptionSpec| Some((option.name, lookup(option.environment)?));
        all.values = OPTIONS.iter().filter_map(from_environment).collect();
        let given: Vec<String> = flags.keys().map(|name| (*name).to_owned()).collect();
        all.values.extend(flags);
        if let Some(path) = all.values.get("config").filter(|path| !path.is_empty()).map(PathBuf::from) {
            all.add_file(&path, &given);
        }
        all
    }

    /// The values of the file that the environment hides: a command with `--config` may then go
    /// somewhere else than the file says.
    #[must_use]
    pub fn hidden(&self) -> &[String] {
        &self.hidden
    }

    fn add_file(&mut self, path: &Path, given: &[String]) {
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
                for (name, (text, line)) in file.values {
                    // An empty variable counts as not given, here as everywhere.
                    if self.values.get(name).is_some_and(|value| !value.is_empty() && *value != text)
                        && !given.iter().any(|given| given == name)
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
        match (self.lines.get(name), &self.file) {
            (Some(line), Some(file)) => format!("{}:{line}: {}", file.display(), option.key()),
            _ if option.is_secret => option.environment.to_owned(),
            _ => format!("--{name} ({})", option.environment),
        }
    }
}

impl From<&Values> for Sources {
    fn from(values: &Values) -> Self {
        Self { values: values.clone(), ..Self::default() }
    }
}

/// Every name that looks like an option of ours but is not one, with the nearest that is.
fn unknown(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let known = |name: &str| OPTIONS.iter().any(|option| option.environment == name);
    // The common prefix would make everything similar.
    let short = |name: &str| name.trim_start_matches("ONCEBOX_").to_owned();
    let mut unknown: Vec<String> = names
        .into_iter()
        .filter(|name| name.starts_with("ONCEBOX_") && !name.starts_with("ONCEBOX_TEST_") && !known(name))
        .map(|name| {
            let nearest =
                nearest(&short(&name), OPTIONS.iter().map(|o| (o.environment, short(o.environment))));
            let hint = nearest.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            format!("{name} is not an option of oncebox{hint}")
        })
        .collect();
    unknown.sort_unstable();
    unknown
}
