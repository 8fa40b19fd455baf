//! Fetching messages of inboxes from JetStream, and sending dead letters and copies of failing
//! messages to it: one at a time, each acknowledged before the next.

mod payload;

use std::{collections::BTreeMap, error::Error, str::FromStr, time::Duration};

use async_nats::{
    HeaderMap,
    header::{HeaderName, HeaderValue, NATS_MESSAGE_ID},
    jetstream::{self, message::StreamMessage},
};
use oncebox_connect::{
    config::Config,
    error::RelayError,
    nats::{Connection, Server},
};
use oncebox_relay::facts::letter_id;
use serde_json::Value;
use tokio::time::timeout;

pub(crate) use self::payload::Payload;
use crate::stored::{Question, stored};

/// How long JetStream may take to acknowledge one message.
const ACK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Why NATS does not do something, or the problem with the message.
type Refused = Box<dyn Error + Send + Sync>;

/// A dead letter on its way back to the stream.
#[derive(Debug)]
pub(crate) struct ToResend {
    /// The identity of the outbox beside the inbox.
    pub(crate) outbox: String,
    pub(crate) key: Option<String>,
    pub(crate) subject: String,
    /// A JSON object of strings or arrays of strings.
    pub(crate) headers: String,
    pub(crate) payload: Vec<u8>,
    /// Never used before.
    pub(crate) number: i64,
}

/// A connection to NATS for one command.
#[derive(Debug)]
pub(crate) struct Resender {
    connection: Connection,
    context: jetstream::Context,
}

impl Resender {
    pub(crate) async fn connect(config: &Config) -> Result<Self, RelayError> {
        let connection = Server::connect_once(config, "oncebox inbox", CONNECT_TIMEOUT).await?;
        let context = connection.jetstream(ACK_TIMEOUT);
        Ok(Self { connection, context })
    }

    /// Publishes it; the stream has stored it when this returns.
    pub(crate) async fn send(&self, id: i64, letter: ToResend) -> Result<(), RelayError> {
        self.publish(letter).await.map_err(|source| RelayError::DeadLetter { id, source })
    }

    /// The same; the error is of NATS, or the message's own.
    pub(crate) async fn publish(&self, letter: ToResend) -> Result<(), Refused> {
        if self.connection.over.is_cancelled() {
            return Err("the connection to NATS is gone".into());
        }
        let headers = headers(&letter)?;
        let size = self.connection.client.server_info().max_payload;
        if letter.payload.len() > size {
            return Err(format!("{} bytes; the server takes {size}", letter.payload.len()).into());
        }
        let publishing = async {
            let sent =
                self.context.publish_with_headers(letter.subject, headers, letter.payload.into()).await?;
            sent.await
        };
        timeout(ACK_TIMEOUT, publishing).await??;
        Ok(())
    }

    /// The message with this sequence; `None` when its stream has it no more.
    pub(crate) async fn stored(&self, stream: &str, sequence: u64) -> Result<Option<StreamMessage>, Refused> {
        let (context, name) = self.connection.jetstream_of(stream, ACK_TIMEOUT);
        // It judges the name, which an inbox has noted.
        context.get_stream_no_info(name).await?;
        let asking = stored(&context, name, Question::At { seq: sequence });
        let answer = timeout(ACK_TIMEOUT, asking).await?;
        answer.map_err(|problem| format!("read sequence {sequence} of stream {name}: {problem}").into())
    }
}

/// Headers as inboxes store them: a JSON object; a name that occurs more than once has an array.
pub(crate) fn headers_json(headers: &HeaderMap) -> String {
    let text = |value: &HeaderValue| Value::from(value.as_str().replace('\0', "\u{fffd}"));
    let pair = |(name, values): (&HeaderName, &Vec<HeaderValue>)| {
        let value = match &values[..] {
            [single] => text(single),
            several => Value::from(several.iter().map(text).collect::<Vec<_>>()),
        };
        (name.to_string(), value)
    };
    Value::Object(headers.iter().map(pair).collect()).to_string()
}

/// The headers that the dead letter came with, without those of NATS: these would make the stream
/// refuse the message, or take it for a copy.
fn headers(letter: &ToResend) -> Result<HeaderMap, String> {
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
    let ToResend { outbox, number, subject, payload, .. } = letter;
    let id = letter_id(outbox, *number, id.as_deref().unwrap_or("dead-letter"), &own, subject, payload);
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
        let letter = ToResend {
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
