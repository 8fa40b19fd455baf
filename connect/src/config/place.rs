//! Places in the configuration file, and the text of its values.

use std::path::Path;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// The configuration file, in which mistakes are told by their lines.
pub(super) struct Place<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl Place<'_> {
    /// The line of a byte; lines count from 1.
    pub(super) fn line(&self, byte: usize) -> usize {
        self.text.bytes().take(byte).filter(|byte| *byte == b'\n').count() + 1
    }

    /// A mistake at a line.
    pub(super) fn mistake(&self, line: usize, problem: impl std::fmt::Display) -> String {
        format!("{}:{line}: {problem}", self.path.display())
    }

    /// The tables of an array of tables, each with its line; `form` says how they are written.
    pub(super) fn tables<'v, 'i>(
        &self,
        value: &'v Spanned<DeValue<'i>>,
        form: &str,
        mistakes: &mut Vec<String>,
    ) -> Vec<(usize, &'v DeTable<'i>)> {
        let line = |value: &Spanned<DeValue<'_>>| self.line(value.span().start);
        let table = |value: &'v Spanned<DeValue<'i>>| Some((line(value), value.get_ref().as_table()?));
        let tables = value.get_ref().as_array().and_then(|array| array.iter().map(table).collect());
        tables.unwrap_or_else(|| {
            mistakes.push(self.mistake(line(value), form));
            Vec::new()
        })
    }
}

/// The text of a value, as it would stand in the environment.
pub(super) fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string().replace('_', "")),
        DeValue::Boolean(truth) => Some(truth.to_string()),
        DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}
