//! Payloads: constants, and places in the saga's document, which has the data of its start and the
//! replies. Places are JSON Pointers (RFC 6901).

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json, value::RawValue};
use toml::de::DeValue;

use super::reader::{Reader, Value};
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

/// Kept as text, so that no number loses a digit on its way from the database and back.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Document {
    pub(super) data: Box<RawValue>,
    #[serde(default)]
    pub(super) replies: BTreeMap<String, Box<RawValue>>,
    /// The replies of participants that said no: for operators, since no payload reads them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) refusals: BTreeMap<String, Box<RawValue>>,
}

impl Document {
    pub(super) fn find(&self, pointer: &Pointer) -> Option<&RawValue> {
        match pointer.0.as_slice() {
            [first, rest @ ..] if first == "data" => Pointer::find(rest, &self.data),
            [first, step, rest @ ..] if first == "replies" => Pointer::find(rest, self.replies.get(step)?),
            _ => None,
        }
    }
}

/// A JSON Pointer, in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pointer(pub(super) Vec<String>);

impl Pointer {
    /// Parses a text as a pointer, or returns its mistake.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix('/') else {
            return Err(format!(
                "{text:?} is no JSON Pointer, which begins with \"/\": such as \"/data/order\""
            ));
        };
        let parts: Vec<&str> = rest.split('/').collect();
        // PostgreSQL would count from the end, or read "01" as 1: so that both read the same.
        let is_odd = |part: &str| {
            let digits = part.strip_prefix(['-', '+']).unwrap_or(part);
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            is_number && (digits != part || (digits.len() > 1 && digits.starts_with('0')))
        };
        if let Some(part) = parts.iter().find(|part| is_odd(part)) {
            return Err(format!("{text:?}: {part:?} is no position; elements count from 0, without a sign"));
        }
        Ok(Self(parts.iter().map(|part| part.replace("~1", "/").replace("~0", "~")).collect()))
    }

    /// The value at the end of `parts`, if it is there.
    pub(super) fn find<'d>(parts: &[String], from: &'d RawValue) -> Option<&'d RawValue> {
        let [first, rest @ ..] = parts else { return Some(from) };
        let found = if from.get().starts_with('{') {
            let mut fields: BTreeMap<String, &RawValue> = serde_json::from_str(from.get()).ok()?;
            fields.remove(first)?
        } else {
            let elements: Vec<&RawValue> = serde_json::from_str(from.get()).ok()?;
            elements.get(first.parse::<usize>().ok()?).copied()?
        };
        Self::find(rest, found)
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| write!(f, "/{}", part.replace('~', "~0").replace('/', "~1")))
    }
}
