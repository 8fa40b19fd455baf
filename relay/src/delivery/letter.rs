//! A dead letter of an inbox on its way back to its stream.

use std::{collections::BTreeMap, str::FromStr};

use async_nats::{
    HeaderMap,
    header::{HeaderName, HeaderValue, NATS_MESSAGE_ID},
};
use serde_json::Value;

use super::message_id::of_letter;

/// A dead letter, or a copy of a failing message, that is to be published.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "commands make one from their own rows")]
pub struct Letter {
    /// The identity of the outbox beside the inbox.
    pub outbox: String,
    /// Its key, if it has a valid one.
    pub key: Option<String>,
    /// Its subject.
    pub subject: String,
    /// A JSON object of strings or arrays of strings.
    pub headers: String,
    /// Its payload.
    pub payload: Vec<u8>,
    /// Never used before.
    pub number: i64,
}

/// The headers that the dead letter came with, without those of NATS: these would make the stream
/// refuse the message, or take it for a copy.
pub(crate) fn headers(letter: &Letter) -> Result<HeaderMap, String> {
    let stored: BTreeMap<String, Value> =
        serde_json::from_str(&letter.headers).map_err(|_| "its headers are not a JSON object".to_owned())?;
    let texts = |value: Value| match value {
        Value::Array(values) => values.into_iter().filter_map(text).collect(),
        single => text(single).into_iter().collect(),
    };
    let mut own: BTreeMap<String, Vec<String>> =
        stored.into_iter().map(|(name, value)| (name, texts(value))).collect();
    let id = own.iter().find(|(name, _)| name.eq_ignore_ascii_case("Nats-Msg-Id"));
    let id = id.and_then(|(_, values)| values.first()).cloned().or_else(|| letter.key.clone());
    own.retain(|name, _| !name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("Nats-")));
    let Letter { outbox, number, subject, payload, .. } = letter;
    let id = of_letter(outbox, *number, id.as_deref().unwrap_or("dead-letter"), &own, subject, payload);
    let mut headers = HeaderMap::new();
    headers.insert(NATS_MESSAGE_ID, id);
    for (name, values) in own {
        let problem = || format!("header {name:?} cannot be sent");
        let parsed = HeaderName::from_str(&name).map_err(|_| problem())?;
        for value in values {
            headers.append(parsed.clone(), HeaderValue::from_str(&value).map_err(|_| problem())?);
        }
    }
    Ok(headers)
}

fn text(value: Value) -> Option<String> {
    if let Value::String(text) = value { Some(text) } else { None }
}

#[cfg(test)]
mod tests {
    use oncebox_schema::MessageId;

    use super::*;

    fn check(stored: &str, key: Option<&str>, expected: &[(&str, &str)]) {
        let letter = Letter {
            outbox: "0123456789ab".to_owned(),
            key: key.map(str::to_owned),
            subject: "s".to_owned(),
            headers: stored.to_owned(),
            payload: Vec::new(),
            number: 9,
        };
        let headers = headers(&letter).unwrap();
        let mut lines: Vec<(String, String)> = headers
            .iter()
            .flat_map(|(name, values)| values.iter().map(move |v| (name.to_string(), v.as_str().to_owned())))
            .map(|(name, value)| match MessageId::parse(&value) {
                Some(id) => (name, format!("{} of {}", id.sending, id.key)),
                None => (name, value),
            })
            .collect();
        lines.sort();
        let lines: Vec<(&str, &str)> =
            lines.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_letter_has_its_own_headers_and_a_fresh_id() {
        check(
            r#"{"Nats-Msg-Id": "0123456789ab/AAAAAAAAAAAAAAAA/r2/k", "Idempotency-Key": "k", "nats-expected-last-sequence": "4", "a": ["1", "2"]}"#,
            Some("k"),
            &[("Idempotency-Key", "k"), ("Nats-Msg-Id", "d9 of k"), ("a", "1"), ("a", "2")],
        );
        check(
            r#"{"x-idempotency-key": "k"}"#,
            Some("k"),
            &[("Nats-Msg-Id", "d9 of k"), ("x-idempotency-key", "k")],
        );
        // A foreign id stays as it is, even if it looks like one of ours.
        check(r#"{"Nats-Msg-Id": "a;r=1"}"#, None, &[("Nats-Msg-Id", "d9 of a;r=1")]);
        check("{}", None, &[("Nats-Msg-Id", "d9 of dead-letter")]);
    }
}
