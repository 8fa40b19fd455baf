//! Payloads: constants, and places in the saga's document.

use serde_json::{Value as Json, json, value::RawValue};
use toml::de::DeValue;

use super::{
    document::Document,
    pointer::Pointer,
    reader::{Reader, Value},
};
use crate::definition::Unreadable;

/// The form of a payload.
#[derive(Clone, Debug)]
pub(super) enum Template {
    Value(Json),
    From(Source),
    Object(Vec<(String, Template)>),
    Array(Vec<Template>),
}

/// A value that comes from the document.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) pointer: Pointer,
    pub(super) default: Option<Json>,
    pub(super) line: usize,
}

impl Template {
    /// Reads a payload: a table with `from` is a place, one with `value` a constant, and everything
    /// else stands for itself.
    pub(super) fn read(reader: &mut Reader<'_>, value: &Value<'_>) -> Option<Self> {
        match value.get_ref() {
            DeValue::Table(table) if table.contains_key("from") => Self::read_from(reader, value),
            DeValue::Table(table) if table.contains_key("value") => {
                let section = reader.section(value, "a constant".to_owned())?;
                reader.knows(&section, &["value"]);
                reader.json(section.get("value")?).map(Self::Value)
            }
            DeValue::Table(table) => {
                let fields: Vec<_> = table
                    .iter()
                    .map(|(key, value)| Some((key.get_ref().to_string(), Self::read(reader, value)?)))
                    .collect();
                fields.into_iter().collect::<Option<_>>().map(Self::Object)
            }
            DeValue::Array(array) => {
                let elements: Vec<_> = array.iter().map(|value| Self::read(reader, value)).collect();
                elements.into_iter().collect::<Option<_>>().map(Self::Array)
            }
            _ => reader.json(value).map(Self::Value),
        }
    }

    fn read_from(reader: &mut Reader<'_>, value: &Value<'_>) -> Option<Self> {
        let section = reader.section(value, "a value with \"from\"".to_owned())?;
        reader.knows(&section, &["from", "default"]);
        let text = reader.text(&section, "from")?;
        let default = match section.get("default") {
            Some(value) => Some(reader.json(value)?),
            None => None,
        };
        match Pointer::parse(&text) {
            Ok(pointer) => Some(Self::From(Source { pointer, default, line: section.line })),
            Err(problem) => {
                reader.note(section.line, problem);
                None
            }
        }
    }

    /// All places that it takes values from.
    pub(super) fn sources(&self) -> Vec<&Source> {
        match self {
            Self::Value(_) => Vec::new(),
            Self::From(source) => vec![source],
            Self::Object(fields) => fields.iter().flat_map(|(_, value)| value.sources()).collect(),
            Self::Array(elements) => elements.iter().flat_map(Self::sources).collect(),
        }
    }

    /// The payload for a document. Numbers keep all their digits.
    pub(super) fn render(&self, document: &Document) -> Result<String, Unreadable> {
        let list = |parts: Vec<String>, [open, close]: [char; 2]| format!("{open}{}{close}", parts.join(","));
        Ok(match self {
            Self::Value(value) => value.to_string(),
            Self::From(Source { pointer, default, .. }) => {
                let found = document.find(pointer).filter(|found| default.is_none() || found.get() != "null");
                match (found.map(RawValue::get), default) {
                    (Some(found), _) => found.to_owned(),
                    (None, Some(default)) => default.to_string(),
                    (None, None) => return Err(Unreadable(format!("there is nothing at {pointer}"))),
                }
            }
            Self::Object(fields) => {
                let field = |(name, value): &(String, Self)| {
                    Ok(format!("{}:{}", Json::from(name.as_str()), value.render(document)?))
                };
                list(fields.iter().map(field).collect::<Result<_, Unreadable>>()?, ['{', '}'])
            }
            Self::Array(elements) => {
                let elements = elements.iter().map(|value| value.render(document));
                list(elements.collect::<Result<_, Unreadable>>()?, ['[', ']'])
            }
        })
    }

    /// The form that `render_payload` in SQL reads.
    pub(super) fn plan(&self) -> Json {
        match self {
            Self::Value(value) => json!({ "value": value }),
            Self::From(Source { pointer, default: Some(default), .. }) => {
                json!({ "from": pointer.0, "default": default })
            }
            Self::From(Source { pointer, .. }) => json!({ "from": pointer.0 }),
            Self::Object(fields) => {
                let fields = fields.iter().map(|(name, value)| (name.clone(), value.plan()));
                json!({ "object": fields.collect::<serde_json::Map<_, _>>() })
            }
            Self::Array(elements) => json!({ "array": elements.iter().map(Self::plan).collect::<Vec<_>>() }),
        }
    }
}
