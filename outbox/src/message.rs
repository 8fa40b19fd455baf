//! A message on its way into the outbox, and the rules for its parts.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, SystemTime},
};

use serde::Serialize;

use crate::{Error, Key, Subject, due::Due};

// The limits of schema/migrations/0001_grammar.sql, checked here as well, because a refusal by
// PostgreSQL costs the caller the whole transaction.
const PAYLOAD_BYTES_MAX: usize = 64 * 1024 * 1024;
const HEADERS_BYTES_MAX: usize = 16 * 1024;
const HEADER_NAME_BYTES_MAX: usize = 128;
const ORDERING_KEY_BYTES_MAX: usize = 255;
const REPLY_TO: &str = "Oncebox-Reply-To";

/// A message: key, subject, payload, and optionally headers and an ordering key.
///
/// ```
/// use oncebox_outbox::{Key, Message};
///
/// let key = Key::root("4711")?.step("ship")?;
/// let message = Message::bytes(key, "parcels.ready".parse()?, "any bytes")
///     .ordering_key("customer:7")
///     .header("tenant", "acme")?;
/// assert_eq!(message.key().as_str(), "4711:ship");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a message does nothing until it is enqueued"]
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    key: Key,
    subject: Subject,
    payload: Vec<u8>,
    headers: BTreeMap<String, String>,
    ordering_key: Option<String>,
    due: Option<Due>,
}

impl Message {
    /// A message whose payload is `payload` as JSON.
    ///
    /// Serialise something whose JSON is always the same (structs, ordered maps): a retry that
    /// sends the same key with other bytes is a conflict.
    ///
    /// # Errors
    /// [`Error::Serialize`] when `payload` has no JSON form, such as a map whose keys are not
    /// strings, or a number that is infinite or NaN.
    pub fn json(key: Key, subject: Subject, payload: &impl Serialize) -> Result<Self, Error> {
        match oncebox_schema::to_json(payload) {
            Ok(payload) => Ok(Self::bytes(key, subject, payload)),
            Err(source) => Err(Error::Serialize { key, source }),
        }
    }

    /// A message whose payload is `payload` as it stands: at most 64 MiB, checked when it is
    /// enqueued. With more than 8 MiB, or more than the `max_payload` of nats-server (1 MiB unless
    /// it says otherwise), the relay needs its option `--object-store`.
    pub fn bytes(key: Key, subject: Subject, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            key,
            subject,
            payload: payload.into(),
            headers: BTreeMap::new(),
            ordering_key: None,
            due: None,
        }
    }

    /// Keeps this message in order with others of the same ordering key: 1 to 255 bytes of visible
    /// ASCII, checked when the message is enqueued. Name the entity whose messages must stay in
    /// order, such as `customer:7`, and nothing wider: one message that cannot be published holds
    /// up all of its ordering key.
    pub fn ordering_key(mut self, ordering_key: impl Into<String>) -> Self {
        self.ordering_key = Some(ordering_key.into());
        self
    }

    /// Holds the message back until this time, by the database's clock; at most ten years. A time
    /// that has passed is now. It leaves within a second of its time while a relay runs, and takes
    /// its place in its ordering key then: after messages enqueued before that moment, and, among
    /// delayed messages, in the order of their times.
    ///
    /// Enqueued again with another time, it is the same message, and keeps its first time.
    pub fn not_before(mut self, time: SystemTime) -> Self {
        self.due = Some(Due::At(time));
        self
    }

    /// Delays the message as [`Message::not_before`] does, by a time that counts from the moment
    /// when PostgreSQL enqueues it.
    pub fn delayed_by(mut self, delay: Duration) -> Self {
        self.due = Some(Due::After(delay));
        self
    }

    /// Names the subject on which the message is to be answered, in the header `Oncebox-Reply-To`.
    pub fn reply_to(mut self, subject: &Subject) -> Self {
        self.headers.insert(REPLY_TO.to_owned(), subject.as_str().to_owned());
        self
    }

    /// Sets a header; a header of this name that was set before is replaced.
    ///
    /// The name is an HTTP token of at most 128 bytes. The value has no control characters except
    /// tabs, and neither begins nor ends with a blank, which NATS would drop. All headers together
    /// take at most 16 KiB.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a rule is broken, or for a name that the relay sets itself or that
    /// commands the broker: `Nats-*`, `Oncebox-*`, `Idempotency-Key` and `X-Idempotency-Key`, in
    /// any case. For `Oncebox-Reply-To` there is [`Message::reply_to`].
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Result<Self, Error> {
        let (name, value) = (name.into(), value.into());
        check_header(&name, &value).map_err(|problem| self.invalid(&problem))?;
        self.headers.insert(name, value);
        self.check_headers_size()?;
        Ok(self)
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The subject that the message will be published to.
    #[must_use]
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// The payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The headers set so far, by name.
    #[must_use]
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.headers
    }

    pub(crate) fn due(&self) -> Option<Due> {
        self.due
    }

    pub(crate) fn ordering_key_text(&self) -> Option<&str> {
        self.ordering_key.as_deref()
    }

    /// The values that the builder left unchecked.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.payload.len() > PAYLOAD_BYTES_MAX {
            let size = self.payload.len();
            return Err(self.invalid(&format!(
                "payload is {size} bytes long; the limit is {PAYLOAD_BYTES_MAX} bytes (64 MiB)"
            )));
        }
        self.due.map_or(Ok(()), Due::check).map_err(|problem| self.invalid(&problem))?;
        match &self.ordering_key {
            Some(text) if !is_ordering_key(text) => {
                let shown: String = text.chars().take(ORDERING_KEY_BYTES_MAX).collect();
                Err(self.invalid(&format!("ordering key {shown:?} is not 1 to 255 bytes of visible ASCII")))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn check_headers_size(&self) -> Result<(), Error> {
        let size = headers_size(&self.headers);
        if size <= HEADERS_BYTES_MAX {
            return Ok(());
        }
        Err(self.invalid(&format!("headers are {size} bytes long; the limit is {HEADERS_BYTES_MAX} bytes")))
    }

    fn invalid(&self, problem: &str) -> Error {
        Error::Invalid { problem: format!("message \"{}\": {problem}", self.key), source: None }
    }
}

/// Names and sizes only: payloads and the values of headers must never reach a log.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("key", &self.key)
            .field("subject", &self.subject)
            .field("payload_bytes", &self.payload.len())
            .field("header_names", &self.headers.keys())
            .field("ordering_key", &self.ordering_key)
            .field("due", &self.due)
            .finish()
    }
}

fn check_header(name: &str, value: &str) -> Result<(), String> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+.^_`|~-".contains(&byte);
    if !(1..=HEADER_NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(token) {
        let shown: String = name.chars().take(HEADER_NAME_BYTES_MAX).collect();
        return Err(format!("header name {shown:?} is not 1 to 128 characters of an HTTP token"));
    }
    let lower = name.to_ascii_lowercase();
    let reserved = lower.starts_with("nats-")
        || lower.starts_with("oncebox-")
        || matches!(lower.as_str(), "idempotency-key" | "x-idempotency-key");
    if reserved {
        return Err(format!("header \"{name}\" is set by the relay or commands the broker"));
    }
    if value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
        return Err(format!("value of header \"{name}\" has a control character"));
    }
    // NATS would drop them.
    if value.starts_with([' ', '\t']) || value.ends_with([' ', '\t']) {
        return Err(format!("value of header \"{name}\" begins or ends with a blank"));
    }
    Ok(())
}

fn is_ordering_key(text: &str) -> bool {
    (1..=ORDERING_KEY_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The length of the text that PostgreSQL makes of these headers as jsonb: `{"a": "1", "b": "2"}`.
fn headers_size(headers: &BTreeMap<String, String>) -> usize {
    let quoted = |text: &str| {
        2 + text.len() + text.bytes().filter(|byte| matches!(byte, b'"' | b'\\' | b'\t')).count()
    };
    let separators = 2 * headers.len().saturating_sub(1);
    2 + separators + headers.iter().map(|(name, value)| quoted(name) + 2 + quoted(value)).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message::bytes(Key::root("k").unwrap(), "a.b".parse().unwrap(), "secret")
    }

    #[test]
    fn header_names() {
        let long = "n".repeat(128);
        for name in
            ["tenant", "traceparent", "x-nats-like", "Idempotency-Key-Expires", "ce-id", long.as_str()]
        {
            assert!(message().header(name, "v").is_ok(), "{name}");
        }
        let longer = "n".repeat(129);
        let bad = ["", "a b", "a:b", "ä", "a\n", longer.as_str()];
        let reserved = ["nats-ttl", "Nats-Msg-Id", "ONCEBOX-x", "idempotency-KEY", "X-Idempotency-Key"];
        for name in bad.into_iter().chain(reserved) {
            let error = message().header(name, "v").unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{name}: {error}");
        }
    }

    #[test]
    fn header_values() {
        for value in ["", "tab\there", "ümläut", "a\"quote\\"] {
            assert!(message().header("h", value).is_ok(), "{value:?}");
        }
        for value in
            ["a\r\nNats-Rollup: all", "nul\0", "del\x7f", " before", "behind ", "\ttab", "tab\t", " "]
        {
            assert!(message().header("h", value).is_err(), "{value:?}");
        }
    }

    #[test]
    fn headers_together() {
        // {"h": "..."} has nine bytes of its own; a tab counts twice.
        assert!(message().header("h", "v".repeat(16_384 - 9)).is_ok());
        assert!(message().header("h", "v".repeat(16_384 - 8)).is_err());
        assert!(message().header("h", format!("v{}v", "\t".repeat(8_188))).is_err());
        let half = message().header("a", "v".repeat(8_000)).unwrap();
        let error = half.header("b", "v".repeat(8_400)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "message \"k\": headers are 16418 bytes long; the limit is 16384 bytes"
        );
    }

    #[test]
    fn a_header_set_twice_has_the_last_value() {
        let message = message().header("h", "1").unwrap().header("h", "2").unwrap();
        assert_eq!(message.headers()["h"], "2");
    }

    #[test]
    fn ordering_keys_and_payloads_are_checked_before_sending() {
        for text in ["", "a b", "ä", &"o".repeat(256)] {
            let error = message().ordering_key(text).check().unwrap_err();
            assert!(error.to_string().contains("ordering key"), "{error}");
        }
        assert!(message().ordering_key("o".repeat(255)).check().is_ok());
        let large =
            Message::bytes(Key::root("k").unwrap(), "a".parse().unwrap(), vec![0; PAYLOAD_BYTES_MAX + 1]);
        assert!(large.check().unwrap_err().to_string().contains("67108865 bytes"));
    }

    #[test]
    fn what_has_no_json_form_is_an_error() {
        let no_json = std::collections::HashMap::from([((1, 2), 3)]);
        let error = Message::json(Key::root("k").unwrap(), "a".parse().unwrap(), &no_json).unwrap_err();
        assert!(matches!(error, Error::Serialize { .. }), "{error}");
    }

    #[test]
    fn debug_shows_no_payload_and_no_header_value() {
        let shown = format!("{:?}", message().header("authorization", "hunter2").unwrap());
        assert!(!shown.contains("secret") && !shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("payload_bytes: 6") && shown.contains("authorization"), "{shown}");
    }
}
