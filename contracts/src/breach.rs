//! Why a payload breaks its contract, with nothing of the payload in it: that may be secret.

use std::{collections::HashSet, fmt};

use jsonschema::{
    ValidationError,
    error::ValidationErrorKind::{
        AdditionalItems, AdditionalProperties, BacktrackLimitExceeded, Custom, FalseSchema, FromUtf8,
        PropertyNames, Referencing, RegexEngineFailure, UnevaluatedItems, UnevaluatedProperties,
    },
    paths::LocationSegment,
};

/// Characters of a pointer, and of a reason, at most.
const TEXT_MAX: usize = 300;

/// A payload breaks its contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The place in the payload, as a JSON Pointer; a name that the schema does not have is `*`.
    pub pointer: String,
    /// The rule that it breaks.
    pub reason: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pointer.as_str() {
            "" => f.write_str(&self.reason),
            pointer => write!(f, "at {pointer}: {}", self.reason),
        }
    }
}

impl Breach {
    pub(crate) fn no_json(error: &serde_json::Error) -> Self {
        let (line, column) = (error.line(), error.column());
        let reason = format!("the payload is not JSON, or nested too deeply (line {line}, column {column})");
        Self { pointer: String::new(), reason }
    }

    /// `names` are those that stand in the schema.
    pub(crate) fn new(error: &ValidationError<'_>, names: &HashSet<String>) -> Self {
        let shown = |segment: LocationSegment<'_>| match &segment {
            LocationSegment::Index(index) => format!("/{index}"),
            LocationSegment::Property(name) if names.contains(name.as_ref()) => {
                format!("/{}", name.replace('~', "~0").replace('/', "~1"))
            }
            LocationSegment::Property(_) => "/*".to_owned(),
        };
        let pointer: String = error.instance_path().segments().map(shown).collect();
        let reason = match error.kind() {
            // Their texts name properties or items of the payload, or no rule.
            AdditionalItems { .. }
            | AdditionalProperties { .. }
            | BacktrackLimitExceeded { .. }
            | Custom { .. }
            | FalseSchema
            | FromUtf8 { .. }
            | PropertyNames { .. }
            | Referencing(_)
            | RegexEngineFailure { .. }
            | UnevaluatedItems { .. }
            | UnevaluatedProperties { .. } => match error.schema_path().as_str() {
                "" => "breaks the schema".to_owned(),
                place => format!("breaks {place} of the schema"),
            },
            _ => error.masked_with("the value").to_string(),
        };
        Self { pointer: bounded(&pointer), reason: bounded(&reason) }
    }
}

/// A text, cut where it is too long.
pub(crate) fn bounded(text: &str) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::schema::tests::schema;

    /// No reason shows anything of a payload that says SECRET in all places.
    #[test]
    fn a_breach_names_the_place_and_the_rule_and_nothing_of_the_payload() {
        let check = |rules: Value, payload: Value, expected: &str| {
            let breach = schema(&rules).check(&payload).unwrap_err().to_string();
            assert!(!breach.contains("SECRET"), "{breach}");
            assert_eq!(breach, expected);
        };
        let s = "SECRET";
        check(json!({"type": "integer"}), json!(s), "the value is not of type \"integer\"");
        check(json!({"required": ["a"]}), json!({ s: s }), "\"a\" is a required property");
        let of_a = |rule: Value| json!({"properties": {"a": rule}});
        check(of_a(json!({"maxLength": 2})), json!({"a": s}), "at /a: the value is longer than 2 characters");
        check(of_a(json!({"enum": ["x", 1]})), json!({"a": s}), "at /a: the value is not one of \"x\" or 1");
        check(of_a(json!({"const": 7})), json!({"a": s}), "at /a: 7 was expected");
        check(of_a(json!({"pattern": "^x$"})), json!({"a": s}), "at /a: the value does not match \"^x$\"");
        check(
            of_a(json!({"items": {"type": "null"}})),
            json!({"a": [null, s]}),
            "at /a/1: the value is not of type \"null\"",
        );
        check(
            json!({"additionalProperties": false}),
            json!({ s: 1 }),
            "breaks /additionalProperties of the schema",
        );
        check(
            json!({"additionalProperties": {"type": "null"}}),
            json!({ s: s }),
            "at /*: the value is not of type \"null\"",
        );
        check(
            json!({"propertyNames": {"maxLength": 1}}),
            json!({ s: 1 }),
            "breaks /propertyNames/maxLength of the schema",
        );
        check(
            json!({"unevaluatedProperties": false}),
            json!({ s: 1 }),
            "breaks /unevaluatedProperties of the schema",
        );
        check(json!({"unevaluatedItems": false}), json!([s]), "breaks /unevaluatedItems of the schema");
        check(
            json!({"prefixItems": [true], "items": false}),
            json!([1, s]),
            "at /1: breaks /items of the schema",
        );
        check(json!({"uniqueItems": true}), json!([s, s]), "the value has non-unique elements");
        check(
            json!({"not": {"type": "string"}}),
            json!(s),
            "{\"type\":\"string\"} is not allowed for the value",
        );
    }

    #[test]
    fn a_long_reason_is_cut() {
        let rules = json!({"enum": ["\u{e9}".repeat(5_000)]});
        let breach = schema(&rules).check(&json!(1)).unwrap_err();
        assert!(breach.reason.chars().count() <= TEXT_MAX + 3, "{breach}");
    }
}
