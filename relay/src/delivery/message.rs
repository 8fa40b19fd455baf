//! A message as read from the log, and as it goes over the wire; its payload may lie in a bucket of
//! the NATS Object Store.

use std::{collections::BTreeMap, str::FromStr, sync::Arc, time::SystemTime};

use async_nats::{
    HeaderMap,
    header::{HeaderName, HeaderValue, NATS_MESSAGE_ID},
};
use bytes::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::de::IgnoredAny;

use super::decision::{Failure, Paused};
use crate::clock::with_text;

/// The attributes that a message gets when it is published as a `CloudEvent`, in binary mode.
pub(crate) const EVENT_ATTRIBUTES: [&str; 5] = ["ce-specversion", "ce-id", "ce-source", "ce-type", "ce-time"];
/// A `CloudEvent` with a payload in JSON gets this header, unless its message names a type.
pub(crate) const CONTENT_TYPE: &str = "content-type";
pub(crate) const JSON: &str = "application/json";
/// Headers that have no form in UTF-8, as the schema's function `headers_text` shows them.
const UNREADABLE: &str = "\"unreadable\"";
/// The ASCII characters that the binding percent-encodes in attributes; of non-ASCII ones, all.
const NOT_IN_ATTRIBUTES: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// One row of the log that is due.
#[derive(Debug)]
pub(crate) struct Message {
    /// The identity of the outbox.
    pub(crate) outbox: Arc<str>,
    pub(crate) lane: i16,
    pub(crate) id: i64,
    pub(crate) key: String,
    pub(crate) subject: String,
    pub(crate) ordering_key: Option<String>,
    /// A JSON object of strings; `None` when empty.
    pub(crate) headers: Option<String>,
    /// Empty when the read left it out: see [`Message::is_left_out`].
    pub(crate) payload: Bytes,
    /// Its size in the database.
    pub(crate) payload_bytes: usize,
    /// Its payload lies in a bucket, or could not be put there; `None` for the usual message.
    pub(crate) object: Option<Result<Object, Failure>>,
    /// Its payload breaks the contract of its subject.
    pub(crate) breach: Option<Failure>,
    /// There was no time to check it against its contract: the next pass does.
    pub(crate) is_unchecked: bool,
    pub(crate) created_at: SystemTime,
    /// A message of the same ordering key is parked, or gives way to others: see `pass/hot_key.rs`.
    pub(crate) blocked: bool,
    /// It was settled, and its lane is sent again for the sake of others: it is passed over.
    pub(crate) is_passed: bool,
    /// An operator has paused it.
    pub(crate) paused: Option<Paused>,
    /// Set when the message itself comes from the parked ones.
    pub(crate) parked: Option<Parked>,
    /// Set when this is not the message itself, but a deliberate replay of it.
    pub(crate) replay: Option<Replay>,
}

/// A request to send a settled message again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replay {
    /// How many there were of the message, with this one.
    pub(crate) number: i32,
    pub(crate) requested_at: SystemTime,
}

/// The database's record of a parked message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parked {
    pub(crate) attempts: i32,
    pub(crate) seconds: f64,
    /// It has a due time, which is only a hint to look: the first of its ordering key may be
    /// another.
    pub(crate) is_due: bool,
    /// The stream, subject or pause that refuses it, with others that wait for the same circuit.
    pub(crate) waits_for: Option<String>,
}

impl Message {
    /// The headers on the wire; `expected_stream` makes JetStream refuse when another stream has
    /// the subject, and with `event_source` the message is a `CloudEvent` of that source.
    pub(crate) fn wire_headers(
        &self,
        expected_stream: Option<&str>,
        event_source: Option<&str>,
    ) -> Result<HeaderMap, Failure> {
        let mut map = HeaderMap::new();
        let own = self.own_headers()?;
        map.insert(NATS_MESSAGE_ID, value("Nats-Msg-Id", &self.message_id(&own))?);
        let object = self.stored_object().into_iter();
        for (name, text) in object.flat_map(|object| object.headers(self.payload_bytes)) {
            map.insert(HeaderName::from_static(name), value(name, &text)?);
        }
        map.insert(HeaderName::from_static("Idempotency-Key"), value("Idempotency-Key", &self.key)?);
        map.insert(HeaderName::from_static("Oncebox-Id"), value("Oncebox-Id", &self.id.to_string())?);
        let time = humantime::format_rfc3339_micros(with_text(self.created_at)).to_string();
        map.insert(HeaderName::from_static("Oncebox-Time"), value("Oncebox-Time", &time)?);
        if let Some(ordering_key) = &self.ordering_key {
            let name = HeaderName::from_static("Oncebox-Ordering-Key");
            map.insert(name, value("Oncebox-Ordering-Key", ordering_key)?);
        }
        if let Some(stream) = expected_stream {
            map.insert(
                HeaderName::from_static("Nats-Expected-Stream"),
                value("Nats-Expected-Stream", stream)?,
            );
        }
        if let Some(source) = event_source {
            let has_type = own.keys().any(|name| name.eq_ignore_ascii_case(CONTENT_TYPE));
            self.add_event(&mut map, source, &time, has_type)?;
        }
        for (name, text) in own {
            let parsed = HeaderName::from_str(&name).ok().filter(|_| !name.is_empty());
            let parsed = parsed.ok_or_else(|| Failure::BadHeader(name.clone()))?;
            map.insert(parsed, value(&name, &text)?);
        }
        Ok(map)
    }

    /// The attributes of a `CloudEvent` in binary mode, as its binding to NATS has them, and the
    /// type of JSON. A message's own headers of the same names take their place.
    fn add_event(
        &self,
        map: &mut HeaderMap,
        source: &str,
        time: &str,
        has_type: bool,
    ) -> Result<(), Failure> {
        let attributes = ["1.0", &self.key, source, &self.subject, time];
        for (name, text) in EVENT_ATTRIBUTES.into_iter().zip(attributes) {
            let encoded = utf8_percent_encode(text, NOT_IN_ATTRIBUTES).to_string();
            map.insert(HeaderName::from_static(name), value(name, &encoded)?);
        }
        match self.stored_object() {
            Some(object) => {
                let place = format!("nats-object:{}/{}", object.bucket, object.name);
                map.insert(HeaderName::from_static("ce-dataref"), value("ce-dataref", &place)?);
            }
            // Libraries take data without a type for bytes or text.
            None if !has_type && serde_json::from_slice::<IgnoredAny>(&self.payload).is_ok() => {
                map.insert(HeaderName::from_static(CONTENT_TYPE), value(CONTENT_TYPE, JSON)?);
            }
            None => {}
        }
        Ok(())
    }

    pub(crate) fn own_headers(&self) -> Result<BTreeMap<String, String>, Failure> {
        match &self.headers {
            None => Ok(BTreeMap::new()),
            Some(json) if json == UNREADABLE => Err(Failure::UnreadableHeaders),
            Some(json) => serde_json::from_str(json)
                .map_err(|_| Failure::BadHeader("headers are not a JSON object of strings".to_owned())),
        }
    }

    /// It may be sent now, as far as the database knows.
    pub(crate) fn is_free(&self) -> bool {
        !self.blocked && !self.is_passed && self.paused.is_none()
    }

    /// Nothing keeps its payload from being put into a bucket now.
    pub(crate) fn may_get_object(&self) -> bool {
        self.is_free() && !self.is_unchecked && self.breach.is_none() && self.object.is_none()
    }

    /// Why its payload could not be put into the bucket.
    pub(crate) fn object_failure(&self) -> Option<&Failure> {
        self.object.as_ref()?.as_ref().err()
    }

    /// The payload's place in the bucket.
    pub(crate) fn stored_object(&self) -> Option<&Object> {
        self.object.as_ref()?.as_ref().ok()
    }

    /// The payload was not read, since the server would not take it, or the message waits for
    /// another: it must not be sent.
    pub(crate) fn is_left_out(&self) -> bool {
        self.stored_object().is_none() && self.payload.len() < self.payload_bytes
    }

    /// Refuses a message so large that the server would cut the connection, or the relay would have
    /// to hold too much.
    pub(crate) fn check_size(&self, headers: &HeaderMap, limit: usize) -> Result<(), Failure> {
        if self.stored_object().is_none() && self.payload_bytes > INLINE_MAX {
            return Err(Failure::TooLarge { bytes: self.payload_bytes, limit: INLINE_MAX });
        }
        // "NATS/1.0\r\n", "Name: value\r\n" each, "\r\n".
        let pairs = headers.iter().flat_map(|(name, values)| values.iter().map(move |v| (name, v)));
        let head: usize =
            pairs.map(|(name, v)| AsRef::<str>::as_ref(name).len() + v.as_str().len() + 4).sum();
        let body = if self.stored_object().is_some() { 0 } else { self.payload_bytes };
        let bytes = 12 + head + body;
        if bytes > limit { Err(Failure::TooLarge { bytes, limit }) } else { Ok(()) }
    }
}

fn value(name: &str, text: &str) -> Result<HeaderValue, Failure> {
    HeaderValue::from_str(text).map_err(|_| Failure::BadHeader(name.to_owned()))
}

#[cfg(test)]
impl Message {
    pub(crate) fn example() -> Self {
        use std::time::{Duration, UNIX_EPOCH};
        Self {
            outbox: "0123456789ab".into(),
            lane: 0,
            id: 7,
            key: "a:pay".into(),
            subject: "orders.placed".into(),
            ordering_key: None,
            headers: None,
            payload: Bytes::from_static(b"{}"),
            payload_bytes: 2,
            object: None,
            breach: None,
            is_unchecked: false,
            created_at: UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456),
            blocked: false,
            is_passed: false,
            paused: None,
            parked: None,
            replay: None,
        }
    }
}

/// A larger payload travels in a bucket only: the relay would have to hold it whole.
pub(crate) const INLINE_MAX: usize = 8 * 1024 * 1024;

/// A payload in a bucket, put there whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) bucket: String,
    pub(crate) name: String,
    /// `SHA-256=...`, as the bucket has it.
    pub(crate) digest: String,
    /// The `Nats-Msg-Id` that the row's message has with the payload inline.
    pub(crate) id: String,
}

impl Object {
    /// The headers by which a consumer finds and checks the payload. The body is empty: a reader
    /// that does not know these headers must fail, and not take a reference for the payload.
    pub(crate) fn headers(&self, bytes: usize) -> [(&'static str, String); 3] {
        [
            ("Oncebox-Object", format!("{}/{}", self.bucket, self.name)),
            ("Oncebox-Object-Bytes", bytes.to_string()),
            ("Oncebox-Object-Digest", self.digest.clone()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message::example()
    }

    fn wire(message: &Message, expected_stream: Option<&str>) -> Vec<String> {
        let headers = message.wire_headers(expected_stream, None).unwrap();
        let mut lines: Vec<String> =
            headers.iter().map(|(name, values)| format!("{name}: {}", values[0].as_str())).collect();
        lines.retain(|line| !line.starts_with("Nats-Msg-Id: 0123456789ab/"));
        lines.sort();
        lines
    }

    #[test]
    fn the_wire_format_at_its_smallest() {
        let expected =
            ["Idempotency-Key: a:pay", "Oncebox-Id: 7", "Oncebox-Time: 2023-11-14T22:13:20.123456Z"];
        assert_eq!(wire(&message(), None), expected);
    }

    #[test]
    fn the_wire_format_with_everything() {
        let full = Message {
            ordering_key: Some("customer:1".into()),
            headers: Some(r#"{"traceparent": "00-1-2-01", "tenant": "acme"}"#.into()),
            ..message()
        };
        let expected = [
            "Idempotency-Key: a:pay",
            "Nats-Expected-Stream: ORDERS",
            "Oncebox-Id: 7",
            "Oncebox-Ordering-Key: customer:1",
            "Oncebox-Time: 2023-11-14T22:13:20.123456Z",
            "tenant: acme",
            "traceparent: 00-1-2-01",
        ];
        assert_eq!(wire(&full, Some("ORDERS")), expected);
    }

    #[test]
    fn a_cloud_event_has_its_attributes_and_the_messages_own_before_them() {
        let event = Message {
            key: "a%3A1:pay".into(),
            headers: Some(r#"{"ce-type": "com.example.paid"}"#.into()),
            ..message()
        };
        let headers = event.wire_headers(None, Some("/shop/\u{e4}")).unwrap();
        let attribute = |name: &str| headers.get(name).map(HeaderValue::as_str);
        assert_eq!(attribute("ce-specversion"), Some("1.0"));
        assert_eq!(attribute("ce-id"), Some("a%253A1:pay"));
        assert_eq!(attribute("ce-source"), Some("/shop/%C3%A4"));
        assert_eq!(attribute("ce-type"), Some("com.example.paid"));
        assert_eq!(attribute("ce-time"), Some("2023-11-14T22:13:20.123456Z"));
        assert_eq!(attribute("Idempotency-Key"), Some("a%3A1:pay"));
        assert_eq!(event.wire_headers(None, None).unwrap().get("ce-id"), None);
    }

    #[test]
    fn a_cloud_event_in_json_says_so_unless_its_message_names_a_type() {
        let check = |payload: &'static str, headers: Option<&str>, expected: &[&str]| {
            let payload = Bytes::from_static(payload.as_bytes());
            let headers = headers.map(str::to_owned);
            let event = Message { payload_bytes: payload.len(), payload, headers, ..message() };
            let wire = event.wire_headers(None, Some("/shop")).unwrap();
            let types = wire.iter().filter(|(name, _)| name.to_string().eq_ignore_ascii_case(CONTENT_TYPE));
            let types: Vec<String> = types.map(|(name, of)| format!("{name}: {}", of[0].as_str())).collect();
            assert_eq!(types, expected);
        };
        check(r#"{"a": 1}"#, None, &["content-type: application/json"]);
        check("1", None, &["content-type: application/json"]);
        check("<a/>", None, &[]);
        check("", None, &[]);
        check("{}", Some(r#"{"Content-Type": "application/x"}"#), &["Content-Type: application/x"]);
    }

    #[test]
    fn bad_headers_are_named_and_do_not_panic() {
        for headers in [r#"{"a b": "x"}"#, r#"{"a": "x\ny"}"#, r#"{"a": 1}"#, "[]", "{", r#"{"": "x"}"#] {
            let bad = Message { headers: Some(headers.into()), ..message() };
            assert!(matches!(bad.wire_headers(None, None), Err(Failure::BadHeader(_))), "{headers}");
        }
    }

    #[test]
    fn the_size_counts_headers() {
        let message = message();
        let headers = message.wire_headers(None, None).unwrap();
        assert_eq!(message.check_size(&headers, 50), Err(Failure::TooLarge { bytes: 148, limit: 50 }));
        assert_eq!(message.check_size(&headers, 148), Ok(()));
    }
}
