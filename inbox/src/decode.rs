//! How a handler's message is read from a received one.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

use oncebox_claims::handler_call::panic_text;
use serde::de::DeserializeOwned;

use crate::Received;

/// A message as a handler takes it, read from the received payload, and if need be from the subject
/// and the headers.
///
/// Types that serde can deserialise are read from JSON. For another format, or a choice among
/// several types, implement this trait. A message that it refuses becomes a dead letter, with the
/// reason.
///
/// ```
/// use oncebox_inbox::{Decode, DecodeError, Received};
///
/// #[derive(serde::Deserialize)]
/// struct Placed { order: String }
///
/// enum Event { Placed(Placed), Note(Vec<u8>) }
///
/// impl Decode for Event {
///     fn decode(received: &Received) -> Result<Self, DecodeError> {
///         match received.subject() {
///             "orders.placed" => Placed::decode(received).map(Self::Placed),
///             "orders.note" => Ok(Self::Note(received.payload().to_vec())),
///             other => Err(DecodeError::new(format!("no message is expected on {other}"))),
///         }
///     }
/// }
/// ```
///
/// A type of prost's:
///
/// ```ignore
/// impl Decode for Order {
///     fn decode(received: &Received) -> Result<Self, DecodeError> {
///         prost::Message::decode(received.payload()).map_err(|wrong| DecodeError::new(wrong.to_string()))
///     }
/// }
/// ```
pub trait Decode: Sized {
    /// Reads a message. It must not wait for anything: a transaction can be open meanwhile.
    ///
    /// # Errors
    /// The handler cannot take it, now or later.
    fn decode(received: &Received) -> Result<Self, DecodeError>;
}

impl<M: DeserializeOwned> Decode for M {
    fn decode(received: &Received) -> Result<Self, DecodeError> {
        serde_json::from_slice(received.payload()).map_err(|problem| DecodeError(undecodable(&problem)))
    }
}

/// Why a message cannot be read. It is stored with the dead letter and logged: no payloads, please.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError(String);

impl DecodeError {
    /// An error with this text.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DecodeError {}

/// Decodes a message. This runs code of the user's while the transaction of an earlier message may
/// be open: a panic of it must not end that one too.
pub(crate) fn decode<M: Decode>(received: &Received) -> Result<M, String> {
    match catch_unwind(AssertUnwindSafe(|| M::decode(received))) {
        Ok(decoded) => decoded.map_err(|problem| problem.0),
        Err(panic) => Err(format!("decoding the payload panicked: {}", panic_text(&*panic))),
    }
}

/// Where and why serde refuses a payload, which must not reach a log.
fn undecodable(problem: &serde_json::Error) -> String {
    let (line, column) = (problem.line(), problem.column());
    match problem.classify() {
        serde_json::error::Category::Data => {
            let why = without_values(&problem.to_string()).map(|why| format!(": {why}")).unwrap_or_default();
            format!("the payload is not what the handler decodes, line {line} column {column}{why}")
        }
        _ => format!("the payload is no JSON, line {line} column {column}"),
    }
}

/// An error of serde's without the values that it quotes; `None` for one of the user's own. The
/// text after the last "expected" describes the handler's type.
fn without_values(error: &str) -> Option<String> {
    let text = error.rsplit_once(" at line ").map_or(error, |(text, _)| text);
    if ["missing field ", "duplicate field ", "invalid length "].iter().any(|own| text.starts_with(own)) {
        return Some(text.to_owned());
    }
    let kinds = ["invalid type", "invalid value", "unknown variant", "unknown field"];
    let kind = kinds.iter().find(|kind| text.starts_with(**kind))?;
    let (quoted, expected) = text.rsplit_once(", expected ")?;
    let value = quoted[kind.len()..].split(['`', '"']).next().unwrap_or_default().trim_end();
    Some(format!("{kind}{value}, expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_stays_out_of_the_reason() {
        let problem = u8::decode(&Received::new("s", "\"my card number\"")).unwrap_err();
        let told = problem.to_string();
        assert!(told.ends_with("decodes, line 1 column 16: invalid type: string, expected u8"), "{told}");
    }

    #[test]
    fn an_error_of_serde_tells_what_it_expected_and_no_value() {
        for (error, told) in [
            ("invalid type: map, expected i64 at line 1 column 2", Some("invalid type: map, expected i64")),
            (
                "invalid type: string \"a, expected b\", expected i64",
                Some("invalid type: string, expected i64"),
            ),
            ("invalid value: integer `-4111`, expected u8", Some("invalid value: integer, expected u8")),
            ("unknown variant `4111`, expected `A` or `B`", Some("unknown variant, expected `A` or `B`")),
            ("missing field `cents` at line 1 column 2", Some("missing field `cents`")),
            ("card 4111 is blocked at line 1 column 2", None),
        ] {
            assert_eq!(without_values(error).as_deref(), told, "{error}");
        }
    }

    /// A type that serde cannot read may have a decoder of its own.
    struct Upper(String);

    impl Decode for Upper {
        fn decode(received: &Received) -> Result<Self, DecodeError> {
            assert_ne!(received.payload(), b"panic", "a decoder that panics");
            let text =
                str::from_utf8(received.payload()).map_err(|wrong| DecodeError::new(wrong.to_string()))?;
            let name = received.header_value("name").ok_or_else(|| DecodeError::new("no name"))?;
            Ok(Self(format!("{} {name} {}", received.subject(), text.to_uppercase())))
        }
    }

    #[test]
    fn a_decoder_sees_subject_and_headers_and_may_refuse_or_panic() {
        let message = |payload: &'static str| Received::new("s.t", payload).header("Name", "x");
        assert_eq!(decode::<Upper>(&message("a")).unwrap().0, "s.t x A");
        assert_eq!(decode::<Upper>(&Received::new("s.t", "a")).err().as_deref(), Some("no name"));
        let panicked = decode::<Upper>(&message("panic")).err().unwrap_or_default();
        assert!(panicked.starts_with("decoding the payload panicked: "), "{panicked}");
    }
}
