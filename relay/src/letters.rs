//! Sending dead letters of inboxes back to JetStream: one at a time, each acknowledged before the next.

use std::{error::Error, str::FromStr, time::Duration};

use async_nats::{
    HeaderMap,
    header::{HeaderName, HeaderValue, NATS_MESSAGE_ID},
    jetstream,
};
use serde_json::Value;
use tokio::time::timeout;

use crate::{
    config::Config,
    link::{Link, Server},
    metrics::Metrics,
    relay::RelayError,
    store::Returned,
};

/// For the acknowledgement of one message.
const ACK_TIMEOUT: Duration = Duration::from_secs(10);
/// For a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// A connection to NATS for one command.
#[derive(Debug)]
pub(crate) struct Postman {
    link: Link,
    context: jetstream::Context,
}

impl Postman {
    pub(crate) async fn connect(config: &Config) -> Result<Self, RelayError> {
        let server = Server::new(config, "oncebox dead-letters".to_owned());
        let metrics = Metrics::new();
        let connecting = timeout(CONNECT_TIMEOUT, server.connect(&metrics)).await;
        let link = connecting
            .map_err(|elapsed| RelayError::NatsUnreachable {
                target: config.nats_target(),
                source: elapsed.into(),
            })?
            .map_err(|error| RelayError::no_nats(config, error))?;
        let context = jetstream::ContextBuilder::new().timeout(ACK_TIMEOUT).build(link.client.clone());
        Ok(Self { link, context })
    }

    /// Publishes it; the stream has stored it when this returns.
    pub(crate) async fn send(&self, id: i64, letter: Returned) -> Result<(), RelayError> {
        let refused = |source: Box<dyn Error + Send + Sync>| RelayError::Letter { id, source };
        if self.link.over.is_cancelled() {
            return Err(refused("the connection to NATS is gone".into()));
        }
        let headers = headers(&letter).map_err(|problem| refused(problem.into()))?;
        let size = self.link.client.server_info().max_payload;
        if letter.payload.len() > size {
            return Err(refused(format!("{} bytes; the server takes {size}", letter.payload.len()).into()));
        }
        let publishing = async {
            let sent =
                self.context.publish_with_headers(letter.subject, headers, letter.payload.into()).await?;
            sent.await
        };
        let stored = timeout(ACK_TIMEOUT, publishing).await;
        let stored = stored.map_err(|elapsed| refused(elapsed.into()))?;
        stored.map(drop).map_err(|error| refused(error.into()))
    }
}

/// Those that it came with. Those of NATS itself would make the stream refuse it, or take it for a copy.
fn headers(letter: &Returned) -> Result<HeaderMap, String> {
    let stored: serde_json::Map<String, Value> =
        serde_json::from_str(&letter.headers).map_err(|_| "its headers are not a JSON object".to_owned())?;
    let mut headers = HeaderMap::new();
    let mut id = None;
    for (name, values) in &stored {
        let values: Vec<&str> = match values {
            Value::Array(values) => values.iter().filter_map(Value::as_str).collect(),
            single => single.as_str().into_iter().collect(),
        };
        if name.eq_ignore_ascii_case("Nats-Msg-Id") {
            id = values.first().copied();
        }
        if name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("Nats-")) {
            continue;
        }
        let problem = || format!("header {name:?} cannot be sent");
        let parsed = HeaderName::from_str(name).map_err(|_| problem())?;
        for value in values {
            headers.append(parsed.clone(), HeaderValue::from_str(value).map_err(|_| problem())?);
        }
    }
    let base = id.map(without_replay).or(letter.key.as_deref()).unwrap_or("dead-letter");
    headers.insert(NATS_MESSAGE_ID, format!("{base};r={}", letter.number));
    Ok(headers)
}

/// `key;r=3` is a replay of `key`, as the inbox reads it too.
fn without_replay(id: &str) -> &str {
    match id.rsplit_once(";r=") {
        Some((key, number)) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => key,
        _ => id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(stored: &str, key: Option<&str>, expected: &[(&str, &str)]) {
        let letter = Returned {
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
            .collect();
        lines.sort();
        let lines: Vec<(&str, &str)> =
            lines.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_letter_has_its_own_headers_and_a_fresh_id() {
        check(
            r#"{"Nats-Msg-Id": "k;r=2", "Idempotency-Key": "k", "nats-expected-last-sequence": "4", "a": ["1", "2"]}"#,
            Some("k"),
            &[("Idempotency-Key", "k"), ("Nats-Msg-Id", "k;r=9"), ("a", "1"), ("a", "2")],
        );
        check(
            r#"{"x-idempotency-key": "k"}"#,
            Some("k"),
            &[("Nats-Msg-Id", "k;r=9"), ("x-idempotency-key", "k")],
        );
        check("{}", None, &[("Nats-Msg-Id", "dead-letter;r=9")]);
    }
}
