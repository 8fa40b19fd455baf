//! Messages as a stream has them, asked for one by one, with every value of their headers.
//!
//! The answer to such a question, as async-nats reads it (0.51), keeps of a name that occurs more
//! than once the last value alone. A letter, a copy or a comparison needs them all.

use std::str;

use async_nats::{
    HeaderMap,
    header::{HeaderName, HeaderValue},
    jetstream::{Context, ErrorCode, message::StreamMessage, response::Response, stream::RawMessage},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use oncebox_connect::error::error_chain;
use serde::{Deserialize, Serialize};

/// A question for a message.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Question<'a> {
    /// The one with this sequence.
    At { seq: u64 },
    /// The first to a subject, from this sequence on.
    Next { seq: u64, next_by_subj: &'a str },
    /// The last to a subject.
    Last { last_by_subj: &'a str },
}

#[derive(Deserialize)]
struct Answer {
    message: RawMessage,
}

/// The message; `None` when the stream has it not, or not any more. The context bounds the wait.
pub(crate) async fn stored(
    context: &Context,
    stream: &str,
    question: Question<'_>,
) -> Result<Option<StreamMessage>, String> {
    let asked = context.request(format!("STREAM.MSG.GET.{stream}"), &question).await;
    match asked.map_err(|error| error_chain(&error))? {
        Response::Ok(Answer { message }) => whole(message).map(Some),
        Response::Err { error } if error.error_code() == ErrorCode::NO_MESSAGE_FOUND => Ok(None),
        Response::Err { error } => Err(error_chain(&error)),
    }
}

fn whole(message: RawMessage) -> Result<StreamMessage, String> {
    let lines = message.headers.clone();
    // It judges the lines, too.
    let read = StreamMessage::try_from(message).map_err(|error| error.to_string())?;
    let Some(lines) = lines else { return Ok(read) };
    let lines = BASE64_STANDARD.decode(lines).map_err(|error| error_chain(&error))?;
    let headers = headers(str::from_utf8(&lines).map_err(|error| error_chain(&error))?);
    Ok(StreamMessage { headers, ..read })
}

/// Of lines that are headers. A line that begins with a space goes on with the value before it.
fn headers(lines: &str) -> HeaderMap {
    let mut found: Vec<(&str, String)> = Vec::new();
    for line in lines.lines().skip(1).filter(|line| !line.is_empty()) {
        match (found.last_mut(), line.split_once(':')) {
            (Some((_, value)), _) if line.starts_with([' ', '\t']) => {
                value.push(' ');
                value.push_str(line.trim());
            }
            (_, Some((name, value))) => found.push((name, value.trim().to_owned())),
            (_, None) => {}
        }
    }
    let mut headers = HeaderMap::new();
    for (name, value) in found {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
            headers.append(name, value);
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_of_a_header_is_read_and_names_keep_their_case() {
        let lines = "NATS/1.0\r\nA: 1\r\na: 2\r\nA: 3\r\nB: x:y\r\n  z\r\nC:\r\n\r\n";
        let message = serde_json::json!({
            "subject": "s", "seq": 1, "hdrs": BASE64_STANDARD.encode(lines), "data": "cA==",
            "time": "2026-01-02T03:04:05Z",
        });
        let StreamMessage { headers, payload, .. } = whole(serde_json::from_value(message).unwrap()).unwrap();
        let values = |name: &str| {
            headers.get_all(name).map(|value| value.as_str().to_owned()).collect::<Vec<_>>().join("|")
        };
        assert_eq!(["A", "a", "B", "C"].map(values), ["1|3", "2", "x:y z", ""]);
        assert_eq!(&payload[..], b"p");
    }
}
