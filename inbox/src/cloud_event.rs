//! `CloudEvents` 1.0, by the protocol binding of NATS: in binary mode the attributes are headers
//! with the prefix `ce-` and the payload is the data, in structured mode the payload is all of the
//! event as JSON.

use base64::{Engine, prelude::BASE64_STANDARD};
use oncebox_schema::Key;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{Decode, DecodeError, Received};

/// The beginning of a structured event's content type.
const STRUCTURED: &str = "application/cloudevents";
/// How many hexadecimal digits stand for the source in a key.
const SOURCE_DIGITS: usize = 24;

/// A message that is a `CloudEvent`, in either mode, as a handler takes it. Its data is decoded as
/// any message: from JSON, or as the type says itself.
///
/// With [`KeySource::CloudEvent`](crate::KeySource::CloudEvent) it is told from its copies by its
/// source and id, as the specification has it.
///
/// ```
/// use oncebox_inbox::{CloudEvent, Decode, Received};
///
/// #[derive(serde::Deserialize)]
/// struct Order { cents: i64 }
///
/// let binary = Received::new("orders", r#"{"cents": 1999}"#)
///     .header("ce-specversion", "1.0").header("ce-id", "4711")
///     .header("ce-source", "/shop").header("ce-type", "order.placed");
/// assert_eq!(CloudEvent::<Order>::decode(&binary).unwrap().data.cents, 1999);
///
/// let structured = r#"{"specversion": "1.0", "id": "4711", "source": "/shop", "type": "order.placed",
///                      "data": {"cents": 1999}}"#;
/// let structured = Received::new("orders", structured).header("content-type", "application/cloudevents+json");
/// assert_eq!(CloudEvent::<Order>::decode(&structured).unwrap().kind, "order.placed");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloudEvent<M> {
    /// Unique among the events of its source.
    pub id: String,
    /// Where it happened, a URI or part of one.
    pub source: String,
    /// The kind of event: the attribute `type`.
    pub kind: String,
    /// The thing that it happened to, if the source says so.
    pub subject: Option<String>,
    /// When it happened, RFC 3339, if the source says so.
    pub time: Option<String>,
    /// The data.
    pub data: M,
}

/// An event in structured mode.
#[derive(Deserialize)]
struct Envelope {
    specversion: String,
    id: String,
    source: String,
    r#type: String,
    subject: Option<String>,
    time: Option<String>,
    data: Option<Value>,
    data_base64: Option<String>,
}

impl<M: Decode> Decode for CloudEvent<M> {
    fn decode(received: &Received) -> Result<Self, DecodeError> {
        if is_structured(received) {
            return from_envelope(received);
        }
        let attribute = |name: &str| attribute(received, name);
        let required = |name: &str| {
            attribute(name)
                .ok_or_else(|| DecodeError::new(format!("no CloudEvent: it has no header \"ce-{name}\"")))
        };
        check_version(&required("specversion")?)?;
        Ok(Self {
            id: required("id")?,
            source: required("source")?,
            kind: required("type")?,
            subject: attribute("subject"),
            time: attribute("time"),
            data: M::decode(received)?,
        })
    }
}

fn from_envelope<M: Decode>(received: &Received) -> Result<CloudEvent<M>, DecodeError> {
    let envelope = envelope(received).map_err(DecodeError::new)?;
    check_version(&envelope.specversion)?;
    let data = match (envelope.data, envelope.data_base64) {
        (Some(_), Some(_)) => return Err(DecodeError::new("a CloudEvent with data and data_base64")),
        (Some(json), None) => json.to_string().into_bytes(),
        (None, Some(text)) => BASE64_STANDARD
            .decode(text)
            .map_err(|_| DecodeError::new("data_base64 of the CloudEvent is not base64"))?,
        (None, None) => Vec::new(),
    };
    let data = M::decode(&received.clone().with_payload(data))?;
    let Envelope { id, source, r#type: kind, subject, time, .. } = envelope;
    Ok(CloudEvent { id, source, kind, subject, time, data })
}

/// The identity of an event: its source and its id; `None` when the message is not a CloudEvent.
pub(crate) fn name(received: &Received) -> Result<Option<String>, String> {
    let (source, id) = if is_structured(received) {
        let envelope = envelope(received)?;
        (envelope.source, envelope.id)
    } else {
        match (attribute(received, "source"), attribute(received, "id")) {
            (Some(source), Some(id)) => (source, id),
            _ => return Ok(None),
        }
    };
    if id.is_empty() {
        return Err("a CloudEvent whose id is empty".to_owned());
    }
    let source = &sha256(&source)[..SOURCE_DIGITS];
    let name = format!("ce/{source}/{id}");
    // The specification does not limit the length of an id or its characters, but a key has limits.
    Ok(Some(if Key::root(&name).is_ok() { name } else { format!("ce-hash/{source}/{}", sha256(&id)) }))
}

/// The hash of a text, as 64 hexadecimal digits.
fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().flat_map(|byte| [byte >> 4, byte & 15]).map(digit).collect()
}

fn digit(half: u8) -> char {
    char::from(b"0123456789abcdef"[usize::from(half)])
}

fn is_structured(received: &Received) -> bool {
    let kind = received.header_value("content-type").unwrap_or_default();
    kind.trim_start().get(..STRUCTURED.len()).is_some_and(|start| start.eq_ignore_ascii_case(STRUCTURED))
}

fn envelope(received: &Received) -> Result<Envelope, String> {
    serde_json::from_slice(received.payload()).map_err(|problem| {
        format!("no CloudEvent in structured mode, line {} column {}", problem.line(), problem.column())
    })
}

/// Whether this is a version that is known.
fn check_version(version: &str) -> Result<(), DecodeError> {
    match version {
        "1.0" => Ok(()),
        _ => Err(DecodeError::new("a CloudEvent of another version than 1.0")),
    }
}

/// The value of an attribute in binary mode; headers have it percent-encoded.
fn attribute(received: &Received, name: &str) -> Option<String> {
    let value = received.header_value(&format!("ce-{name}"))?;
    Some(percent_decode_str(value).decode_utf8().ok()?.into_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn binary() -> Received {
        Received::new("s", "7")
            .header("ce-specversion", "1.0")
            .header("Ce-Id", "a:1")
            .header("ce-source", "/shop/%C3%A4")
            .header("ce-type", "t")
    }

    fn structured(payload: &'static str) -> Received {
        Received::new("s", payload).header("Content-Type", "Application/CloudEvents+json; charset=utf-8")
    }

    #[test]
    fn both_modes_are_one_event() {
        let event = CloudEvent::<i64>::decode(&binary()).unwrap();
        assert_eq!((event.id.as_str(), event.source.as_str(), event.data), ("a:1", "/shop/\u{e4}", 7));
        let same = r#"{"specversion":"1.0","id":"a:1","source":"/shop/ä","type":"t","data":7}"#;
        assert_eq!(CloudEvent::<i64>::decode(&structured(same)).unwrap(), event);
        let encoded =
            r#"{"specversion":"1.0","id":"a:1","source":"/shop/ä","type":"t","data_base64":"Nw=="}"#;
        assert_eq!(CloudEvent::<i64>::decode(&structured(encoded)).unwrap(), event);
        assert_eq!(name(&binary()).unwrap(), name(&structured(same)).unwrap());
        assert_eq!(name(&binary()).unwrap().unwrap().rsplit('/').next(), Some("a:1"));
        assert_eq!(name(&Received::new("s", "7")), Ok(None));
        let other = Received::new("s", "7").header("ce-id", "a:1").header("ce-source", "/bank");
        assert_ne!(name(&other).unwrap(), name(&binary()).unwrap());
    }

    #[test]
    fn an_id_that_no_key_can_hold_is_hashed() {
        let key = |id: &str| {
            let event = Received::new("s", "7").header("ce-id", id).header("ce-source", "/");
            Key::root(&name(&event).unwrap().unwrap()).unwrap()
        };
        let source = "8a5edab282632443219e051e";
        let same_ids = ["a".repeat(100), "urn:uuid:6e8bc430".to_owned(), "ce-hash/1/2".to_owned()];
        for id in same_ids {
            assert_eq!(key(&id), Key::root(&format!("ce/{source}/{id}")).unwrap());
        }
        let ids = ["a".repeat(101), "a".repeat(4000), ":".repeat(90), "a b".to_owned(), "\u{e4}".to_owned()];
        for id in &ids {
            assert_eq!(key(id).as_str(), format!("ce-hash/{source}/{}", sha256(id)));
        }
        let empty = Received::new("s", "7").header("ce-id", "").header("ce-source", "/");
        assert_eq!(name(&empty).unwrap_err(), "a CloudEvent whose id is empty");
    }

    #[test]
    fn what_is_no_event_is_refused_without_its_payload() {
        let refused = |message: &Received| CloudEvent::<i64>::decode(message).unwrap_err().to_string();
        assert_eq!(refused(&Received::new("s", "7")), "no CloudEvent: it has no header \"ce-specversion\"");
        assert_eq!(refused(&structured("secret")), "no CloudEvent in structured mode, line 1 column 1");
        let next = r#"{"specversion":"2.0","id":"1","source":"/","type":"t","data":7}"#;
        assert_eq!(refused(&structured(next)), "a CloudEvent of another version than 1.0");
        let bad = r#"{"specversion":"1.0","id":"1","source":"/","type":"t","data_base64":"?"}"#;
        assert_eq!(refused(&structured(bad)), "data_base64 of the CloudEvent is not base64");
        assert!(name(&structured("secret")).is_err());
    }

    proptest! {
        #[test]
        fn an_event_of_any_bytes_is_read(
            text in r#"(\{|\}|"|:|,|"specversion":"1\.0"|"id":"1"|"source":"/"|"type":"t"|"data":7|"data_base64":"!"|é){0,14}"#,
            bytes in prop::collection::vec(any::<u8>(), 0..48),
            attribute in any::<String>(),
        ) {
            for payload in [text.into_bytes(), bytes] {
                let structured = Received::new("s", payload.clone())
                    .header("content-type", "application/cloudevents+json");
                let binary = Received::new("s", payload)
                    .header("ce-specversion", "1.0").header("ce-id", &attribute)
                    .header("ce-source", &attribute).header("ce-type", &attribute);
                for received in [structured, binary] {
                    let decoded = CloudEvent::<Value>::decode(&received).is_ok();
                    prop_assert!(!decoded || matches!(name(&received), Ok(Some(_)) | Err(_)));
                }
            }
        }
    }
}
