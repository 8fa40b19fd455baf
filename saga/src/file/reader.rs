//! Reads TOML, and notes every mistake with its line.

use std::{fmt, ops::Range, time::Duration};

use serde_json::{Map, Number, Value as Json};
use toml::{
    Spanned,
    de::{DeInteger, DeTable, DeValue, Error as TomlError},
};

/// A mistake in a file, with its line and its remedy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[non_exhaustive]
pub struct FileMistake {
    /// The line; the first is 1.
    pub line: usize,
    /// The mistake; the text has the remedy too, unless `remedy` has it.
    pub problem: String,
    /// How to mend it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl FileMistake {
    /// The problem, and after a colon its remedy.
    #[must_use]
    pub fn text(&self) -> String {
        self.remedy.iter().fold(self.problem.clone(), |text, remedy| text + ": " + remedy)
    }

    /// A mistake of the file as a whole.
    #[must_use]
    pub fn of_file(problem: String) -> Self {
        Self { line: 1, problem, remedy: None }
    }
}

impl fmt::Display for FileMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.text())
    }
}

pub(super) type Value<'v> = Spanned<DeValue<'v>>;

/// A text that is read, and the mistakes in it so far.
pub(super) struct Reader<'t> {
    text: &'t str,
    mistakes: Vec<FileMistake>,
}

/// A table of the file: its fields, its line, and how mistakes name it.
pub(super) struct Section<'v> {
    fields: &'v DeTable<'v>,
    pub(super) line: usize,
    pub(super) name: String,
}

impl<'t> Reader<'t> {
    /// Reads a text with `read`, which notes its mistakes. Nothing of a text with a mistake is
    /// used.
    pub(super) fn read<T>(
        text: &'t str,
        read: impl FnOnce(&mut Self, &Section<'_>) -> Option<T>,
    ) -> Result<T, Vec<FileMistake>> {
        let (table, errors) = DeTable::parse_recoverable(text);
        let mut reader = Self { text, mistakes: Vec::new() };
        reader.note_errors(&errors);
        if reader.mistakes.is_empty() {
            let whole = Section { fields: table.get_ref(), line: 1, name: "the file".to_owned() };
            let found = read(&mut reader, &whole);
            if let Some(found) = found.filter(|_| reader.mistakes.is_empty()) {
                return Ok(found);
            }
        }
        reader.mistakes.sort();
        reader.mistakes.dedup();
        Err(reader.mistakes)
    }

    /// Notes the errors of the parser. A table that is written again is one, with all that is in
    /// it.
    fn note_errors(&mut self, errors: &[TomlError]) {
        let mut again: Vec<&str> = Vec::new();
        for error in errors {
            let line = self.line(&error.span().unwrap_or_default());
            let above = self.text.lines().take(line);
            let (place, table) =
                above.enumerate().filter_map(|(at, text)| Some((at + 1, table_name(text)?))).last().unzip();
            let is_again = error.message().contains("duplicate key");
            match table.and_then(|name: &str| name.split('.').next()).filter(|_| is_again) {
                Some(name) if again.contains(&name) => {}
                Some(name) if place == Some(line) => {
                    again.push(name);
                    let remedy = format!("write each as [[{name}]], with two brackets");
                    self.note_with(line, format!("there are several tables [{name}]"), remedy);
                }
                _ => self.note(line, format!("it is not TOML: {}", error.message())),
            }
        }
    }

    pub(super) fn line(&self, span: &Range<usize>) -> usize {
        self.text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1
    }

    pub(super) fn note(&mut self, line: usize, problem: impl Into<String>) {
        self.mistakes.push(FileMistake { line, problem: problem.into(), remedy: None });
    }

    pub(super) fn note_with(&mut self, line: usize, problem: impl Into<String>, remedy: impl Into<String>) {
        self.mistakes.push(FileMistake { line, problem: problem.into(), remedy: Some(remedy.into()) });
    }

    pub(super) fn has_mistakes(&self) -> bool {
        !self.mistakes.is_empty()
    }

    /// Notes the fields that nothing reads.
    pub(super) fn knows(&mut self, section: &Section<'_>, known: &[&str]) {
        for key in section.fields.keys() {
            let name = key.get_ref().as_ref();
            if !known.contains(&name) {
                let line = self.line(&key.span());
                let section = &section.name;
                self.note(line, format!("{section} has no field {name:?}; it has {}", known.join(", ")));
            }
        }
    }

    /// A table, by the name that mistakes call it.
    pub(super) fn section<'v>(&mut self, value: &'v Value<'v>, name: String) -> Option<Section<'v>> {
        let line = self.line(&value.span());
        match value.get_ref() {
            DeValue::Table(fields) => Some(Section { fields, line, name }),
            _ => {
                self.note(line, format!("{name} is a table: {{ .. }}"));
                None
            }
        }
    }

    /// The tables of `[[name]]`.
    pub(super) fn sections<'v>(&mut self, section: &Section<'v>, name: &str) -> Vec<Section<'v>> {
        let Some(value) = section.get(name) else { return Vec::new() };
        let tables = value.get_ref().as_array().map(|array| array.iter().collect::<Vec<_>>());
        let Some(tables) = tables else {
            let line = self.line(&value.span());
            self.note(line, format!("write each {name} as [[{name}]]"));
            return Vec::new();
        };
        tables.into_iter().filter_map(|table| self.section(table, name.to_owned())).collect()
    }

    pub(super) fn text(&mut self, section: &Section<'_>, name: &str) -> Option<String> {
        let value = section.get(name)?;
        let text = value.get_ref().as_str().map(str::to_owned);
        text.or_else(|| self.is_not(section, name, value, "a text"))
    }

    /// A text that must be there.
    pub(super) fn needed(&mut self, section: &Section<'_>, name: &str, example: &str) -> Option<String> {
        if section.get(name).is_none() {
            self.note_with(
                section.line,
                format!("{} needs {name}", section.name),
                format!("{name} = {example}"),
            );
        }
        self.text(section, name)
    }

    pub(super) fn truth(&mut self, section: &Section<'_>, name: &str) -> Option<bool> {
        let value = section.get(name)?;
        value.get_ref().as_bool().or_else(|| self.is_not(section, name, value, "true or false"))
    }

    pub(super) fn count(&mut self, section: &Section<'_>, name: &str) -> Option<u32> {
        let value = section.get(name)?;
        let number = value.get_ref().as_integer().and_then(integer).and_then(|n| n.as_u64()?.try_into().ok());
        number.or_else(|| self.is_not(section, name, value, "a whole number, 0 or more"))
    }

    pub(super) fn duration(&mut self, section: &Section<'_>, name: &str) -> Option<Duration> {
        let value = section.get(name)?;
        let time = value.get_ref().as_str().and_then(|text| humantime::parse_duration(text).ok());
        time.or_else(|| self.is_not(section, name, value, "a time, such as \"60s\" or \"1h 30m\""))
    }

    pub(super) fn texts(&mut self, section: &Section<'_>, name: &str) -> Option<Vec<String>> {
        let value = section.get(name)?;
        let texts = value.get_ref().as_array().and_then(|array| {
            array.iter().map(|one| one.get_ref().as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        });
        texts.or_else(|| self.is_not(section, name, value, "a list of texts: [\"one\", \"two\"]"))
    }

    /// A value as JSON.
    pub(super) fn json(&mut self, value: &Value<'_>) -> Option<Json> {
        let line = self.line(&value.span());
        Some(match value.get_ref() {
            DeValue::String(text) => Json::from(text.as_ref()),
            DeValue::Boolean(truth) => Json::from(*truth),
            DeValue::Integer(number) => match integer(number) {
                Some(number) => Json::Number(number),
                None => return self.told(line, "a whole number is at most 64 bits wide"),
            },
            DeValue::Float(number) => {
                let parsed = number.as_str().replace('_', "").parse().ok().and_then(Number::from_f64);
                match parsed {
                    Some(number) => Json::Number(number),
                    None => return self.told(line, "JSON has no such number"),
                }
            }
            DeValue::Datetime(_) => {
                return self.told(line, "JSON has no dates: write it as a text, in quotes");
            }
            DeValue::Array(array) => {
                let elements: Vec<Option<Json>> = array.iter().map(|one| self.json(one)).collect();
                Json::Array(elements.into_iter().collect::<Option<_>>()?)
            }
            DeValue::Table(table) => {
                let fields: Vec<_> = table
                    .iter()
                    .map(|(key, one)| Some((key.get_ref().to_string(), self.json(one)?)))
                    .collect();
                Json::Object(fields.into_iter().collect::<Option<Map<_, _>>>()?)
            }
        })
    }

    fn told<T>(&mut self, line: usize, problem: &str) -> Option<T> {
        self.note(line, problem);
        None
    }

    fn is_not<T>(&mut self, section: &Section<'_>, name: &str, value: &Value<'_>, kind: &str) -> Option<T> {
        let line = self.line(&value.span());
        self.note(line, format!("{}: {name} is {kind}", section.name));
        None
    }
}

impl<'v> Section<'v> {
    pub(super) fn get(&self, name: &str) -> Option<&'v Value<'v>> {
        self.fields.get(name)
    }

    /// The fields, with the place of each name.
    pub(super) fn fields(&self) -> impl Iterator<Item = (Range<usize>, &'v str, &'v Value<'v>)> {
        self.fields.iter().map(|(key, value)| (key.span(), key.get_ref().as_ref(), value))
    }
}

/// The name of a table, of a line that begins one.
fn table_name(line: &str) -> Option<&str> {
    let name = line.trim().strip_prefix('[')?.split(']').next()?;
    (!name.starts_with('[')).then(|| name.trim())
}

fn integer(number: &DeInteger<'_>) -> Option<Number> {
    let digits = number.as_str().replace('_', "");
    i64::from_str_radix(&digits, number.radix()).ok().map(Number::from)
}
