//! The identity of a message: where its tenant and its key are looked for, and its fingerprint.

mod part;

use std::fmt;

use oncebox_claims::identity::is_tenant;
use oncebox_schema::{Key, KeyError, MessageId};

use crate::{Received, cloud_event};

pub use part::{Extractor, Part};

/// Where the key of a message is looked for. The first source that finds something decides.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySource {
    /// This header holds a whole key, as Oncebox writes it: `root:step`.
    Header(String),
    /// This header holds a client's own key, which becomes a root key: `:` and `%` are escaped.
    ClientHeader(String),
    /// `Nats-Msg-Id` holds a whole key, or an id of Oncebox's with a key in it.
    MsgId,
    /// This part of the message holds a client's own key, which becomes a root key.
    Part(Part),
    /// `source` and `id` of a CloudEvent, in binary or structured mode, which are its identity: of
    /// `ce-source: /shop` and `ce-id: 4711` the key is `ce/HASH/4711`, with a hash of the source.
    /// An id that a key cannot hold, since it is longer than 100 bytes or not visible ASCII, is
    /// hashed too: `ce-hash/HASH/HASH`.
    CloudEvent,
}

impl KeySource {
    /// The id of an event of Debezium's outbox event router: in the header `id`, or in the payload
    /// of an envelope, `/payload/id`.
    #[must_use]
    pub fn debezium() -> Vec<Self> {
        vec![Self::client_header("id"), Self::Part(Part::json("/payload/id"))]
    }

    /// A header that holds a whole key.
    pub fn header(name: impl Into<String>) -> Self {
        Self::Header(name.into())
    }

    /// A header that holds a client's own key.
    pub fn client_header(name: impl Into<String>) -> Self {
        Self::ClientHeader(name.into())
    }

    /// The key in this place of the message, if there is one.
    fn key(&self, received: &Received) -> Result<Option<Result<Key, KeyError>>, String> {
        let whole = |value: &str| value.parse::<Key>();
        Ok(match self {
            Self::Header(name) => single(received, name)?.map(whole),
            Self::ClientHeader(name) => single(received, name)?.map(Key::root),
            Self::MsgId => single(received, MSG_ID)?
                .map(|value| MessageId::parse(value).map_or(value, |id| id.key).parse::<Key>()),
            Self::Part(part) => part.value(received)?.map(|value| Key::root(&value)),
            Self::CloudEvent => cloud_event::name(received)?.map(|name| Key::root(&name)),
        })
    }

    /// Whether the name in it is empty.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Header(name) | Self::ClientHeader(name) => name.is_empty(),
            Self::Part(part) => part.is_empty(),
            Self::MsgId | Self::CloudEvent => false,
        }
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) | Self::ClientHeader(name) => write!(f, "header \"{name}\""),
            Self::MsgId => write!(f, "header \"{MSG_ID}\""),
            Self::Part(part) => part.fmt(f),
            Self::CloudEvent => f.write_str("the CloudEvent"),
        }
    }
}

const MSG_ID: &str = "Nats-Msg-Id";

/// Lets one source be given where several are accepted.
impl From<KeySource> for Vec<KeySource> {
    fn from(source: KeySource) -> Self {
        vec![source]
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TenantSource {
    Single,
    Part(Part),
}

pub(crate) fn tenant(source: &TenantSource, received: &Received) -> Result<String, String> {
    let TenantSource::Part(part) = source else { return Ok(String::new()) };
    let value = part.value(received)?.ok_or_else(|| format!("tenant {part} is missing"))?;
    if is_tenant(&value) {
        Ok(value.into_owned())
    } else {
        Err(format!("tenant {part} is not 1 to 255 bytes without control characters"))
    }
}

pub(crate) fn key(sources: &[KeySource], received: &Received) -> Result<Key, String> {
    for source in sources {
        if let Some(key) = source.key(received)? {
            return key.map_err(|problem| format!("{source} does not hold a key: {problem}"));
        }
    }
    let names: Vec<_> = sources.iter().map(ToString::to_string).collect();
    let headers: Option<Vec<_>> = names.iter().map(|name| name.strip_prefix("header ")).collect();
    Err(match headers {
        Some(headers) => format!("no key: none of the headers {} is present", headers.join(", ")),
        None => format!("no key: none of these is present: {}", names.join(", ")),
    })
}

/// The value of a header, without blanks around it; an error if it occurs with different values.
fn single<'a>(received: &'a Received, name: &'a str) -> Result<Option<&'a str>, String> {
    let mut values = received.values(name).map(|value| value.trim_matches([' ', '\t']));
    let first = values.next();
    if values.all(|other| Some(other) == first) {
        Ok(first)
    } else {
        Err(format!("header \"{name}\" has several different values"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(headers: &[(&str, &str)]) -> Received {
        headers.iter().fold(Received::new("s", ""), |message, (name, value)| message.header(*name, *value))
    }

    fn check(sources: &[KeySource], headers: &[(&str, &str)], expected: Result<&str, &str>) {
        let found = key(sources, &message(headers));
        match (&found, expected) {
            (Ok(key), Ok(text)) => assert_eq!(key.as_str(), text),
            (Err(problem), Err(part)) => assert!(problem.contains(part), "{problem}"),
            _ => panic!("{found:?} is not {expected:?}"),
        }
    }

    #[test]
    fn the_first_present_source_decides() {
        let sources = [
            KeySource::header("Idempotency-Key"),
            KeySource::client_header("Activity-Event-Id"),
            KeySource::MsgId,
        ];
        check(&sources, &[("Nats-Msg-Id", "c"), ("idempotency-key", "a:b")], Ok("a:b"));
        check(&sources, &[("Nats-Msg-Id", "c"), ("Activity-Event-Id", "a:b")], Ok("a%3Ab"));
        check(&sources, &[("Nats-Msg-Id", "0123456789ab/AAAAAAAAAAAAAAAA/0/c/d;r=1")], Ok("c/d;r=1"));
        check(&sources, &[("Nats-Msg-Id", "0123456789ab/AAAAAAAAAAAAAAAA/d17/c")], Ok("c"));
        check(&sources, &[("Nats-Msg-Id", "c;r=1")], Ok("c;r=1"));
        check(&sources[..1], &[("Idempotency-Key", "c;r=2")], Ok("c;r=2"));
    }

    /// A missing key is an error, never an empty key and never a panic.
    #[test]
    fn a_missing_or_malformed_key_is_refused() {
        let sources = [KeySource::header("Idempotency-Key"), KeySource::MsgId];
        check(&sources, &[], Err("none of the headers \"Idempotency-Key\", \"Nats-Msg-Id\""));
        check(&sources, &[("Idempotency-Key", ""), ("Nats-Msg-Id", "c")], Err("0 bytes"));
        check(&sources, &[("Idempotency-Key", "a b")], Err("does not hold a key"));
        check(
            &sources,
            &[("Idempotency-Key", "a"), ("Idempotency-Key", "b")],
            Err("several different values"),
        );
        check(&sources, &[("Idempotency-Key", "a"), ("idempotency-key", "a")], Ok("a"));
    }

    /// An absent tenant is an error, not the empty tenant.
    #[test]
    fn a_missing_tenant_is_refused() {
        let source = TenantSource::Part(Part::header("Tenant"));
        assert_eq!(tenant(&source, &message(&[("tenant", "acme")])), Ok("acme".to_owned()));
        for headers in
            [&[][..], &[("tenant", "")], &[("tenant", "a\nb")], &[("tenant", "a"), ("tenant", "b")]]
        {
            assert!(tenant(&source, &message(headers)).is_err(), "{headers:?}");
        }
        assert_eq!(tenant(&TenantSource::Single, &message(&[("tenant", "acme")])), Ok(String::new()));
    }

    proptest! {
        /// Headers come from every client that may publish.
        #[test]
        fn headers_of_any_text_are_read(
            headers in prop::collection::vec((
                "(Idempotency-Key|idempotency-key|Nats-Msg-Id|ce-id|ce-source|ce-type|ce-specversion|Tenant)",
                any::<String>(),
            ), 0..6),
            payload in prop::collection::vec(any::<u8>(), 0..32),
        ) {
            let received = headers.iter().fold(Received::new("s.t", payload), |message, (name, value)| {
                message.header(name, value)
            });
            let part = Part::header("Tenant");
            let sources = [
                KeySource::header("Idempotency-Key"), KeySource::client_header("Idempotency-Key"),
                KeySource::MsgId, KeySource::CloudEvent, KeySource::Part(Part::json("/a/b")),
            ];
            for source in &sources {
                if let Ok(key) = key(std::slice::from_ref(source), &received) {
                    prop_assert!((1..=255).contains(&key.as_str().len()));
                }
            }
            if let Ok(tenant) = tenant(&TenantSource::Part(part), &received) {
                prop_assert!(tenant.len() <= 255 && !tenant.contains(char::is_control));
            }
        }
    }
}
