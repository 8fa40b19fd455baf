//! A part of a message that holds a key, or names a tenant.

use std::{
    borrow::Cow,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use serde_json::Value;

use super::single;
use crate::Received;

/// A part of a message: where a client's own key, or the name of a tenant, is looked for.
///
/// ```
/// use oncebox_inbox::{Inbox, InvalidSettings, KeySource, Part};
///
/// # fn example(pool: deadpool_postgres::Pool) -> Result<Inbox, InvalidSettings> {
/// // events.acme.orders, {"id": "evt_4711", ..}
/// Inbox::builder(pool)
///     .scope("billing:orders")
///     .tenant_from(Part::subject_token(1))
///     .key_from(KeySource::Part(Part::json("/id")))
///     .build()
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// The value of this header.
    Header(String),
    /// A token of the subject, counted from 0.
    SubjectToken(usize),
    /// The value at this JSON Pointer (RFC 6901) in the payload: a string or a whole number.
    Json(String),
    /// The result of a function of yours.
    With(Extractor),
}

type Extract = dyn Fn(&Received) -> Option<String> + Send + Sync;

/// A function that finds a part of a message.
#[derive(Clone)]
pub struct Extractor(Arc<Extract>);

impl fmt::Debug for Extractor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Extractor")
    }
}

impl PartialEq for Extractor {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Extractor {}

impl Part {
    /// The value of this header.
    pub fn header(name: impl Into<String>) -> Self {
        Self::Header(name.into())
    }

    /// A token of the subject, counted from 0: of `orders.acme.placed`, 1 is `acme`.
    #[must_use]
    pub fn subject_token(number: usize) -> Self {
        Self::SubjectToken(number)
    }

    /// The value at this JSON Pointer in the payload: `/id`.
    pub fn json(pointer: impl Into<String>) -> Self {
        Self::Json(pointer.into())
    }

    /// The result of this function; it must be the same for every copy of a message. If the
    /// function panics, the message becomes a dead letter.
    pub fn with(find: impl Fn(&Received) -> Option<String> + Send + Sync + 'static) -> Self {
        Self::With(Extractor(Arc::new(find)))
    }

    /// Whether it names nothing.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Header(name) => name.is_empty(),
            Self::Json(pointer) => !pointer.starts_with('/'),
            Self::SubjectToken(_) | Self::With(_) => false,
        }
    }

    /// The message's value for this part, if it has one.
    pub(crate) fn value<'a>(&'a self, received: &'a Received) -> Result<Option<Cow<'a, str>>, String> {
        Ok(match self {
            Self::Header(name) => single(received, name)?.map(Cow::Borrowed),
            Self::SubjectToken(number) => received.subject().split('.').nth(*number).map(Cow::Borrowed),
            Self::Json(pointer) => {
                let payload: Option<Value> = serde_json::from_slice(received.payload()).ok();
                match payload.as_ref().and_then(|payload| payload.pointer(pointer)) {
                    Some(Value::String(text)) => Some(Cow::Owned(text.clone())),
                    Some(Value::Number(number)) if !number.is_f64() => Some(Cow::Owned(number.to_string())),
                    _ => None,
                }
            }
            // A message that makes it panic would otherwise end each consumer that takes it.
            Self::With(Extractor(find)) => catch_unwind(AssertUnwindSafe(|| find(received)))
                .map_err(|_| "the extractor panicked".to_owned())?
                .map(Cow::Owned),
        })
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header \"{name}\""),
            Self::SubjectToken(number) => write!(f, "token {number} of the subject"),
            Self::Json(pointer) => write!(f, "\"{pointer}\" of the payload"),
            Self::With(_) => f.write_str("what the extractor looks for"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_message() {
        let message =
            Received::new("orders.acme.placed", r#"{"id": 7, "a": {"b": "x"}, "f": 1.5, "n": null}"#)
                .header("Delivery", "d");
        for (part, expected) in [
            (Part::header("delivery"), Some("d")),
            (Part::header("other"), None),
            (Part::subject_token(1), Some("acme")),
            (Part::subject_token(3), None),
            (Part::json("/id"), Some("7")),
            (Part::json("/a/b"), Some("x")),
            (Part::json("/a"), None),
            (Part::json("/f"), None),
            (Part::json("/n"), None),
            (Part::with(|message| Some(message.payload().len().to_string())), Some("47")),
        ] {
            let found = part.value(&message).unwrap();
            assert_eq!(found.as_deref(), expected, "{part}");
        }
        let panics =
            Part::with(|message| Some(message.header_value("absent")?.to_owned()).filter(|_| panic!()));
        assert_eq!(panics.value(&message), Ok(None));
        let present = message.clone().header("Absent", "no");
        assert_eq!(panics.value(&present), Err("the extractor panicked".to_owned()));
        assert_eq!(Part::json("/id").value(&Received::new("s", "no json")), Ok(None));
        assert!(Part::json("id").is_empty() && Part::header("").is_empty() && !Part::json("/id").is_empty());
    }
}
