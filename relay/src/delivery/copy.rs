//! Compares a stream's copy of a message with the message in the log.

use std::{collections::BTreeMap, time::SystemTime};

use async_nats::{HeaderMap, header::NATS_MESSAGE_ID};
use base64::{Engine as _, prelude::BASE64_URL_SAFE};
use bytes::Bytes;
use oncebox_schema::{MessageId, Sending};
use sha2::{Digest as _, Sha256};

use super::message::{CONTENT_TYPE, EVENT_ATTRIBUTES, JSON, Message};
use crate::clock::with_text;

/// The headers that the relay adds to a message, beside those of NATS and of `CloudEvents`.
const ADDED: [&str; 7] = [
    "Idempotency-Key",
    "Oncebox-Id",
    "Oncebox-Time",
    "Oncebox-Ordering-Key",
    "Oncebox-Object",
    "Oncebox-Object-Bytes",
    "Oncebox-Object-Digest",
];

/// A message of the outbox as a stream holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Where it stands in the stream.
    pub sequence: u64,
    /// The id of its row.
    pub id: i64,
    /// Its key.
    pub key: String,
    /// An operator had it sent again.
    pub is_replay: bool,
    /// Its `Nats-Msg-Id`; `None` if the message was sent again on purpose, since such an id does
    /// not follow from the content alone.
    derived_id: Option<String>,
    /// Bucket, name and digest of the object that is its payload: see [`has_object`](crate::facts).
    pub object: Option<[String; 3]>,
    payload: Bytes,
    content: Content,
}

/// The parts of a message that the log and a stream both have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The subject that it is published to.
    pub subject: String,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// When it was enqueued.
    pub created_at: SystemTime,
    /// Its own headers, without those that the relay adds.
    pub headers: BTreeMap<String, String>,
    /// SHA-256.
    pub payload: Vec<u8>,
}

impl Copy {
    /// `None` if it is no message of this outbox.
    #[must_use]
    pub fn parse(
        outbox: &str,
        sequence: u64,
        subject: &str,
        map: &HeaderMap,
        payload: Bytes,
    ) -> Option<Self> {
        let text = |name: &str| map.get(name).map(|value| value.as_str());
        let message_id = text(NATS_MESSAGE_ID.as_ref())?;
        let key = text("Idempotency-Key")?.to_owned();
        let id = text("Oncebox-Id")?.parse().ok()?;
        let created_at = humantime::parse_rfc3339(text("Oncebox-Time")?).ok()?;
        let parsed = MessageId::parse(message_id)?;
        if parsed.outbox != outbox || parsed.key != key {
            return None;
        }
        let is_replay = parsed.sending != Sending::Message;
        let own = map.iter().filter(|(name, _)| {
            let name: &str = (*name).as_ref();
            !name.starts_with("Nats-") && !ADDED.contains(&name)
        });
        let digest = text("Oncebox-Object-Digest").and_then(|digest| digest.strip_prefix("SHA-256="));
        let place =
            text("Oncebox-Object").filter(|_| payload.is_empty()).and_then(|place| place.split_once('/'));
        let object =
            place.zip(digest).map(|((bucket, name), digest)| [bucket, name, digest].map(str::to_owned));
        let elsewhere = digest.and_then(|digest| BASE64_URL_SAFE.decode(digest).ok());
        let content = Content {
            subject: subject.to_owned(),
            ordering_key: text("Oncebox-Ordering-Key").map(str::to_owned),
            created_at,
            // No value of a message holds a line break.
            headers: own
                .map(|(name, values)| {
                    let values: Vec<&str> = values.iter().map(|value| value.as_str()).collect();
                    (name.to_string(), values.join("\n"))
                })
                .collect(),
            // Of a payload in a bucket, the message has the digest.
            payload: elsewhere.clone().unwrap_or_else(|| Sha256::digest(&payload).to_vec()),
        };
        let derived_id = (!is_replay && elsewhere.is_none()).then(|| message_id.to_owned());
        Some(Self { sequence, id, key, is_replay, derived_id, object, payload, content })
    }

    /// The names of the parts that differ from the log. A stream that `maps_subjects` stores
    /// messages under other subjects, and an account may map them too: then the id still fits the
    /// logged message, which proves that it was published to the logged subject.
    #[must_use]
    pub fn differs(&self, logged: &Content, maps_subjects: bool) -> Vec<String> {
        let found = &self.content;
        let proven = self.derived_id.as_deref().and_then(|id| self.is_derived(id, logged));
        let parts = [
            ("subject", found.subject != logged.subject && !maps_subjects && proven != Some(true)),
            ("ordering key", found.ordering_key != logged.ordering_key),
            ("time", found.created_at != with_text(logged.created_at)),
            ("payload", found.payload != logged.payload),
        ];
        let mut names: Vec<String> =
            parts.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name.to_owned()).collect();
        let mut headers: Vec<&String> = found.headers.keys().chain(logged.headers.keys()).collect();
        headers.sort();
        headers.dedup();
        headers.retain(|name| {
            let is_json = *name == CONTENT_TYPE && found.headers.get(*name).is_some_and(|is| is == JSON);
            let is_event = EVENT_ATTRIBUTES.contains(&name.as_str()) || *name == "ce-dataref" || is_json;
            let is_added = is_event && !logged.headers.contains_key(*name);
            !is_added && found.headers.get(*name) != logged.headers.get(*name)
        });
        names.extend(headers.into_iter().map(|name| format!("header {name}")));
        // From the log's headers: the stream's may have attributes of events beside them.
        if names.is_empty() && proven == Some(false) {
            names.push("Nats-Msg-Id".to_owned());
        }
        names
    }

    /// Whether the message, as it was logged, has this id; `None` if the id cannot be parsed.
    fn is_derived(&self, id: &str, logged: &Content) -> Option<bool> {
        let MessageId { outbox, .. } = MessageId::parse(id)?;
        Some(logged.message_id(outbox, self.id, &self.key, self.payload.clone()) == id)
    }
}

impl Content {
    /// The id of a message with this content, unless it is a replay.
    fn message_id(&self, outbox: &str, id: i64, key: &str, payload: Bytes) -> String {
        let message = Message {
            outbox: outbox.into(),
            lane: 0,
            id,
            key: key.to_owned(),
            subject: self.subject.clone(),
            ordering_key: self.ordering_key.clone(),
            headers: None,
            payload_bytes: payload.len(),
            object: None,
            breach: None,
            is_unchecked: false,
            payload,
            created_at: self.created_at,
            blocked: false,
            is_passed: false,
            paused: None,
            parked: None,
            replay: None,
        };
        message.message_id(&self.headers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Message {
        Message {
            ordering_key: Some("customer:1".to_owned()),
            headers: Some(r#"{"tenant": "acme"}"#.to_owned()),
            ..Message::example()
        }
    }

    fn logged(message: &Message) -> Content {
        Content {
            subject: message.subject.clone(),
            ordering_key: message.ordering_key.clone(),
            created_at: message.created_at,
            headers: message.own_headers().unwrap(),
            payload: Sha256::digest(&message.payload).to_vec(),
        }
    }

    fn stored(message: &Message, change: impl FnOnce(&mut HeaderMap)) -> Option<Copy> {
        let mut headers = message.wire_headers(Some("ORDERS"), None).unwrap();
        change(&mut headers);
        Copy::parse("0123456789ab", 1, &message.subject, &headers, message.payload.clone())
    }

    fn check(change: impl FnOnce(&mut Message, &mut HeaderMap), expected: &[&str]) {
        let mut message = example();
        let mut headers = message.wire_headers(Some("ORDERS"), None).unwrap();
        let logged = logged(&message);
        change(&mut message, &mut headers);
        let copy = Copy::parse("0123456789ab", 1, &message.subject, &headers, message.payload).unwrap();
        assert_eq!(copy.differs(&logged, false), expected);
    }

    #[test]
    fn whatever_differs_has_its_name() {
        check(|_, _| {}, &[]);
        check(|message, _| message.payload = Bytes::from_static(b"[]"), &["payload"]);
        check(|message, _| message.subject.push('x'), &[]);
        let replayed = |message: &mut Message, headers: &mut HeaderMap| {
            message.subject.push('x');
            headers.insert("Nats-Msg-Id", "0123456789ab/AAAAAAAAAAAAAAAA/r1/a:pay");
        };
        check(replayed, &["subject"]);
        check(|_, headers| headers.insert("tenant", " acme"), &["header tenant"]);
        check(|_, headers| headers.insert("tenant", "other"), &["header tenant"]);
        check(|_, headers| headers.append("tenant", "acme"), &["header tenant"]);
        check(|_, headers| headers.insert("more", "1"), &["header more"]);
        check(|_, headers| headers.insert("Oncebox-Ordering-Key", "customer:2"), &["ordering key"]);
        check(|_, headers| headers.insert("Oncebox-Time", "2023-11-14T22:13:20Z"), &["time"]);
        check(|_, headers| headers.insert("Nats-Stream-Source", "ORDERS 1"), &[]);
        check(|_, headers| headers.insert("ce-source", "/shop"), &[]);
        check(|_, headers| headers.insert("content-type", "application/json"), &[]);
        check(|_, headers| headers.insert("content-type", "text/plain"), &["header content-type"]);
        let another = "0123456789ab/AAAAAAAAAAAAAAAA/0/a:pay";
        check(|_, headers| headers.insert("Nats-Msg-Id", another), &["Nats-Msg-Id"]);
    }

    #[test]
    fn what_is_of_others_is_left_alone() {
        let message = example();
        assert!(stored(&message, |_| {}).is_some_and(|copy| copy.id == 7 && !copy.is_replay));
        assert_eq!(stored(&Message { outbox: "fedcba987654".into(), ..example() }, |_| {}), None);
        assert_eq!(stored(&message, |headers| headers.insert("Oncebox-Id", "x")), None);
        assert_eq!(stored(&message, |headers| headers.insert("Nats-Msg-Id", "a:pay")), None);
    }
}
