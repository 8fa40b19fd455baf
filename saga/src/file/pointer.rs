//! Places in a document of JSON, by JSON Pointers (RFC 6901).

use std::{collections::BTreeMap, fmt};

use serde_json::value::RawValue;

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
