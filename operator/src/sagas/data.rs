//! The data of a saga, and the replies in it, as JSON that keeps every digit of a number; and the
//! answers that were refused.

use std::{borrow::Cow, collections::BTreeMap};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{payload::pretty_json, rows::from_row, time::Time};

/// JSON as PostgreSQL keeps it: read as a value, its numbers would lose digits.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct Json(Box<RawValue>);

/// The reply to a command of a saga that a file leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct SagaReply {
    /// The step.
    pub step: String,
    /// `done`, or `rejected` when the participant said no.
    pub outcome: String,
    /// The payload of the answer.
    pub payload: Json,
}

/// An answer that its orchestrator refused, a dead letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct RefusedAnswer {
    /// The number of the letter.
    pub id: i64,
    /// The key of the answer.
    pub key: Option<String>,
    /// The command that it names in its header `In-Reply-To`.
    pub command: Option<String>,
    /// Why it was refused.
    pub reason: String,
    /// When.
    pub refused_at: Time,
}

/// The beginnings of the reasons for which an orchestrator refuses an answer.
const REFUSALS: [&str; 2] = ["the answer contradicts ", "not an answer: "];

/// Whether a dead letter is an answer that its orchestrator refused: it is refused each time.
pub(crate) fn is_refused(scope: &str, reason: &str) -> bool {
    scope.ends_with(":replies") && REFUSALS.iter().any(|start| reason.starts_with(start))
}

/// The key of the saga that an answer with this key is to: without the command's step, its attempt
/// and the words after it.
pub(crate) fn saga_of_answer(key: &str) -> Option<&str> {
    let command = key.strip_suffix(":reply")?;
    let command = command.strip_suffix(":undo").unwrap_or(command);
    let (saga, last) = command.rsplit_once(':')?;
    if last.starts_with('#') { saga.rsplit_once(':').map(|(saga, _)| saga) } else { Some(saga) }
}

/// The data of a saga of a file, in the form in which `oncebox-saga` writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    data: Box<RawValue>,
    replies: BTreeMap<String, Box<RawValue>>,
    #[serde(default)]
    refusals: BTreeMap<String, Box<RawValue>>,
}

impl Json {
    /// JSON that PostgreSQL has written; the text itself when this program cannot read it.
    pub(super) fn of(text: String) -> Self {
        let quoted = |text: &str| serde_json::value::to_raw_value(text).unwrap_or_default();
        Self(RawValue::from_string(text.clone()).unwrap_or_else(|_| quoted(&text)))
    }

    /// In one line.
    #[must_use]
    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// With a line for each field and each element.
    #[must_use]
    pub fn pretty(&self) -> String {
        pretty_json(self.text()).unwrap_or_else(|| self.text().to_owned())
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for Json {}

impl JsonSchema for Json {
    fn schema_name() -> Cow<'static, str> {
        "Json".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        true.into()
    }
}

from_row!(RefusedAnswer: id, key, command, reason, refused_at = "created_at");

/// The data that a saga started with, or in Rust has now, and the replies beside it: a saga of a
/// file keeps them apart, one in Rust makes its data of them.
pub(super) fn parts(stored: String) -> (Json, Vec<SagaReply>) {
    let Ok(Document { data, replies, refusals }) = serde_json::from_str(&stored) else {
        return (Json::of(stored), Vec::new());
    };
    let told = |outcome: &'static str| {
        move |(step, payload)| SagaReply { step, outcome: outcome.to_owned(), payload: Json(payload) }
    };
    let replies = replies.into_iter().map(told("done"));
    (Json(data), replies.chain(refusals.into_iter().map(told("rejected"))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_digit_and_no_text_changes() {
        let text = r#"{"a": 1234567890123456789012.50, "b": [1, {}, []], "c\"{": "x\\", "d": ", : ["}"#;
        let pretty = Json::of(text.to_owned()).pretty();
        let expected = "{\n  \"a\": 1234567890123456789012.50,\n  \"b\": [\n    1,\n    {},\n    []\n  ],\n  \
                        \"c\\\"{\": \"x\\\\\",\n  \"d\": \", : [\"\n}";
        assert_eq!(pretty, expected);
        assert_eq!(Json::of("broken {".to_owned()).text(), "\"broken {\"");
    }

    #[test]
    fn the_key_of_an_answer_names_its_saga() {
        for key in [
            "a:order:pay:reply",
            "a:order:pay:undo:reply",
            "a:order:pay:#2:reply",
            "a:order:pay:#2:undo:reply",
        ] {
            assert_eq!(saga_of_answer(key), Some("a:order"), "{key}");
        }
        for key in ["a:order:pay", "reply", ":reply"] {
            assert_eq!(saga_of_answer(key), None, "{key}");
        }
    }

    #[test]
    fn replies_are_told_from_data() {
        let file = r#"{"data": {"n": 1.10}, "replies": {"pay": 7}, "refusals": {"ship": null}}"#;
        let (data, replies) = parts(file.to_owned());
        let told: Vec<_> =
            replies.iter().map(|reply| (&*reply.step, &*reply.outcome, reply.payload.text())).collect();
        assert_eq!(
            (data.text(), told),
            (r#"{"n": 1.10}"#, vec![("pay", "done", "7"), ("ship", "rejected", "null")])
        );
        for rust in [r#"{"data": 1}"#, r#"{"data": 1, "replies": {}, "card": 2}"#] {
            assert_eq!(parts(rust.to_owned()), (Json::of(rust.to_owned()), Vec::new()));
        }
    }
}
