//! The fields that data and replies have, with their types, as a file declares them.

use serde::Serialize;
use serde_json::value::RawValue;
use toml::de::DeValue;

use super::{
    reader::{Reader, Section, Value},
    template::Pointer,
};

/// A type of JSON, in the words of JSON Schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    String,
    Integer,
    Number,
    Boolean,
    Object,
    Array,
}

const KINDS: [(&str, Kind); 6] = [
    ("string", Kind::String),
    ("integer", Kind::Integer),
    ("number", Kind::Number),
    ("boolean", Kind::Boolean),
    ("object", Kind::Object),
    ("array", Kind::Array),
];

/// A field that is declared.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Field {
    path: Vec<String>,
    name: String,
    kind: Kind,
    is_required: bool,
}

/// The fields of the data, or of a reply.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub(super) struct Fields(Vec<Field>);

impl Fields {
    /// Reads `"/id" = "string"` and `"/note" = { type = "string", required = false }`.
    pub(super) fn read(reader: &mut Reader<'_>, value: &Value<'_>, name: String) -> Self {
        let Some(section) = reader.section(value, name) else { return Self::default() };
        let mut fields = Vec::new();
        for (span, text, value) in section.fields() {
            let line = reader.line(&span);
            match Pointer::parse(text) {
                Ok(pointer) => fields.extend(Field::read(reader, &section, (line, pointer), value)),
                Err(problem) => reader.note(line, format!("{}: {problem}", section.name)),
            }
        }
        Self(fields)
    }

    /// Checks a value. The error does not contain any part of it.
    pub(super) fn check(&self, value: &RawValue) -> Result<(), String> {
        for Field { path, name, kind, is_required } in &self.0 {
            match Pointer::find(path, value).filter(|found| found.get() != "null") {
                None if *is_required => return Err(format!("field {name} is missing")),
                Some(found) if !kind.is_of(found.get()) => {
                    return Err(format!("field {name} is not of type {}", kind.name()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Why a pointer into this may find nothing, if so, and the remedy.
    pub(super) fn doubt(&self, path: &[String]) -> Option<(String, String)> {
        if path.is_empty() {
            return None;
        }
        let near: Vec<&Field> =
            self.0.iter().filter(|one| path.starts_with(&one.path) || one.path.starts_with(path)).collect();
        let doubts: Vec<Option<(String, String)>> = near.iter().map(|field| field.doubt(path)).collect();
        match doubts.iter().all(Option::is_some) {
            false => None,
            true => Some(
                doubts
                    .into_iter()
                    .flatten()
                    .next()
                    .unwrap_or_else(|| {
                        let name = Pointer(path.to_vec()).to_string();
                        let remedy = format!(
                            "declare it, {name:?} = \"string\" or another type; if it may be missing, {name:?} = {{ type = \
                             \"string\", required = false }}, and give a default"
                        );
                        (format!("{name} is not declared there"), remedy)
                    }),
            ),
        }
    }
}

impl Field {
    fn doubt(&self, path: &[String]) -> Option<(String, String)> {
        let Self { name, kind, .. } = self;
        let is_inside = path.len() > self.path.len();
        if is_inside && !matches!(self.kind, Kind::Object | Kind::Array) {
            let problem = format!("{name} is of type {}, which has no fields", kind.name());
            return Some((
                problem,
                format!("declare it as an object, {name:?} = \"object\", or give a default"),
            ));
        }
        (!self.is_required).then(|| {
            let remedy = format!(
                "give a default, such as default = \"\"; if it is always there, declare {name:?} = {:?}",
                kind.name()
            );
            (format!("{name} may be missing (required = false)"), remedy)
        })
    }

    fn read(
        reader: &mut Reader<'_>,
        of: &Section<'_>,
        (line, pointer): (usize, Pointer),
        value: &Value<'_>,
    ) -> Option<Self> {
        let name = pointer.to_string();
        let (kind, is_required) = match value.get_ref() {
            DeValue::String(text) => (text.to_string(), true),
            DeValue::Table(_) => {
                let section = reader.section(value, format!("{} {name}", of.name))?;
                reader.knows(&section, &["type", "required"]);
                let is_required = reader.truth(&section, "required").unwrap_or(true);
                (reader.needed(&section, "type", "\"string\"")?, is_required)
            }
            _ => {
                let problem = "a type, or { type = .., required = false }";
                reader.note(line, format!("{} {name}: write {problem}", of.name));
                return None;
            }
        };
        let Some((_, kind)) = KINDS.iter().find(|(known, _)| *known == kind) else {
            let known = KINDS.map(|(name, _)| name).join(", ");
            reader.note(line, format!("{} {name}: {kind:?} is not a type; types are {known}", of.name));
            return None;
        };
        Some(Self { path: pointer.0, name, kind: *kind, is_required })
    }
}

impl Kind {
    fn name(self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Whether a value in JSON is of this type, by its first byte; JSON Schema calls 1.0 an integer
    /// too.
    fn is_of(self, json: &str) -> bool {
        let is_number = json.starts_with(|first: char| first == '-' || first.is_ascii_digit());
        match self {
            Self::String => json.starts_with('"'),
            Self::Object => json.starts_with('{'),
            Self::Array => json.starts_with('['),
            Self::Boolean => json == "true" || json == "false",
            Self::Number => is_number,
            Self::Integer => {
                let is_whole = |json: &str| json.parse::<f64>().is_ok_and(|number| number.fract() == 0.0);
                is_number && (!json.contains(['.', 'e', 'E']) || is_whole(json))
            }
        }
    }
}
