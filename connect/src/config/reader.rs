//! Takes values out of the settings, and collects every mistake on the way.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::{OPTIONS, Secret, Sources, options::find};

/// A password is shorter, and so is a credentials file; more is another file by mistake.
const SECRET_BYTES_MAX: u64 = 64 * 1024;

pub(super) struct Reader<'a> {
    pub(super) sources: &'a Sources,
    pub(super) mistakes: Vec<String>,
    /// Warnings: settings that work, but not as safely as they could.
    pub(super) weaknesses: Vec<String>,
}

impl Reader<'_> {
    /// The text given, or the default; empty counts as not given.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        let in_process = self.sources.is_inside && name == "http-listen";
        let default =
            || find(name).filter(|_| !in_process).and_then(|option| option.default).map(str::to_owned);
        self.given(name).map(str::to_owned).or_else(default)
    }

    /// The text given; empty counts as not given.
    pub(super) fn given(&self, name: &str) -> Option<&str> {
        debug_assert!(OPTIONS.iter().any(|option| option.name == name), "{name} is no option");
        self.sources.values.get(name).map(String::as_str).filter(|text| !text.is_empty())
    }

    /// Notes a mistake, with the option and where it was given.
    pub(super) fn mistake(&mut self, name: &str, problem: impl std::fmt::Display) {
        let place = self.sources.place(name);
        self.mistakes.push(format!("{place}: {problem}"));
    }

    /// Notes an allowed but weak setting.
    pub(super) fn weakness(&mut self, name: &str, problem: impl std::fmt::Display) {
        let place = self.sources.place(name);
        self.weaknesses.push(format!("{place}: {problem}"));
    }

    pub(super) fn number(&mut self, name: &str, least: u64, most: u64) -> u64 {
        let text = self.text(name).unwrap_or_default();
        match text.parse::<u64>() {
            Ok(number) if (least..=most).contains(&number) => number,
            _ => {
                self.mistake(name, format_args!("{text:?} is not a whole number from {least} to {most}"));
                least
            }
        }
    }

    pub(super) fn small(&mut self, name: &str, least: u32, most: u32) -> u32 {
        u32::try_from(self.number(name, least.into(), most.into())).unwrap_or(most)
    }

    pub(super) fn duration(&mut self, name: &str, least: Duration, most: Duration) -> Duration {
        let milliseconds = name.ends_with("milliseconds");
        let unit = if milliseconds { Duration::from_millis } else { Duration::from_secs };
        let count = |d: Duration| if milliseconds { d.as_millis() } else { d.as_secs().into() };
        let bound = |d| u64::try_from(count(d)).unwrap_or(u64::MAX);
        unit(self.number(name, bound(least), bound(most)))
    }

    pub(super) fn parsed<T>(&mut self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let text = self.text(name)?;
        parse(&text).map_err(|problem| self.mistake(name, problem)).ok()
    }

    /// The contents of a file that an option names.
    pub(super) fn file<T>(
        &mut self,
        name: &str,
        read: impl Fn(&Path) -> Result<T, String>,
    ) -> Option<(PathBuf, T)> {
        let path = PathBuf::from(self.text(name)?);
        let content = read(&path).map_err(|problem| self.mistake(name, problem)).ok()?;
        Some((path, content))
    }

    /// A secret that can only be given in a file.
    pub(super) fn secret_file(&mut self, name: &str) -> Option<Secret> {
        let secret = Secret::File(PathBuf::from(self.text(name)?));
        secret.read().map_err(|problem| self.mistake(name, problem)).ok()?;
        Some(secret)
    }

    /// A secret given as itself, by `name`, or in a file, by `name` + `-file`.
    pub(super) fn secret(&mut self, name: &str) -> Option<Secret> {
        let in_file = format!("{name}-file");
        let itself = self.text(name);
        let Some(path) = self.text(&in_file).map(PathBuf::from) else { return itself.map(Secret::Text) };
        if itself.is_some() {
            let other = self.sources.place(name);
            self.mistake(&in_file, format_args!("is given as well as {other}; give only one of them"));
        }
        let secret = Secret::File(path);
        secret.read().map_err(|problem| self.mistake(&in_file, problem)).ok()?;
        Some(secret)
    }
}

impl Secret {
    /// The text now: a file is read each time, so that a secret may be replaced under a running
    /// relay.
    ///
    /// # Errors
    /// The file cannot be read, is empty, or too large; without its content.
    pub(crate) fn read(&self) -> Result<String, String> {
        let path = match self {
            Self::Text(text) => return Ok(text.clone()),
            Self::File(path) => path,
        };
        let problem = |what: &dyn std::fmt::Display| format!("read {}: {what}", path.display());
        let length = std::fs::metadata(path).map_err(|error| problem(&error))?.len();
        if length > SECRET_BYTES_MAX {
            return Err(problem(&format_args!("{length} bytes are no secret")));
        }
        let text = std::fs::read_to_string(path).map_err(|error| problem(&error))?;
        // Editors and `echo` end the last line.
        let text = text.trim_end_matches(['\r', '\n']);
        if text.is_empty() { Err(problem(&"it is empty")) } else { Ok(text.to_owned()) }
    }
}
