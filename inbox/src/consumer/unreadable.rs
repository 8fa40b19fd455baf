//! Messages that no client can read, because of their headers.
//!
//! nats-server takes any bytes for headers. async-nats ends the connection at a line that it cannot
//! parse, and panics at a carriage return inside a value (0.51): the message is delivered again and
//! ends the next connection, and no later message is ever handled. As stored, in base64, it can be
//! read, so the consumer looks for it among the messages that are delivered and not acknowledged,
//! records it as a dead letter, and settles it by its number.

use std::{str, time::Duration};

use async_nats::{
    StatusCode,
    header::HeaderName,
    jetstream::{
        self, ErrorCode,
        response::Response,
        stream::{RawMessage, Stream},
    },
};
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use oncebox_schema::Driver;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};

use super::{Settings, dead_letter_publisher::DeadLetterPublisher, held_message::Next, setup, strict_order};
use crate::{Disposition, Error, Inbox, Received, received::Origin};

/// How many messages are looked at in one go, and for how long; the next look begins at the new
/// acknowledgement floor.
const LOOK_MAX: usize = 10_000;
const LOOK_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct Get<'a> {
    seq: u64,
    next_by_subj: &'a str,
}

#[derive(Deserialize)]
struct Got {
    message: RawMessage,
}

/// Gives up messages that are delivered, not acknowledged, and unreadable for the client.
pub(super) async fn give_up<D: Driver>(
    jetstream: &jetstream::Context,
    stream: &Stream,
    settings: &Settings,
    inbox: &Inbox<D>,
    dead_letters: Option<&DeadLetterPublisher<D>>,
) -> Result<(), Error> {
    let Some(info) = setup::info(stream, settings).await? else { return Ok(()) };
    let mut next = strict_order::next_sequence(&info, stream.cached_info().state.last_sequence);
    let deadline = Instant::now() + LOOK_WITHIN;
    for _ in 0..LOOK_MAX {
        if next > info.delivered.stream_sequence || Instant::now() >= deadline {
            break;
        }
        let Some(message) = get(jetstream, settings, next).await? else { break };
        next = message.sequence + 1;
        if !settings.may_take(&message.subject) {
            continue;
        }
        let Some(reason) = unreadable(&message) else { continue };
        if message.sequence > info.delivered.stream_sequence {
            break;
        }
        let received = received(&message, &settings.stream);
        inbox.dead_letter::<()>(None, &received, reason, None).await?;
        let is_told = match dead_letters {
            Some(dead_letters) => {
                matches!(dead_letters.settle(&received, 0).await, Next::Do(Disposition::Term))
            }
            None => true,
        };
        if is_told {
            settle(jetstream, settings, message.sequence).await?;
        }
    }
    Ok(())
}

/// The stored message with this number, or the next one of the consumer's.
async fn get(
    jetstream: &jetstream::Context,
    settings: &Settings,
    seq: u64,
) -> Result<Option<RawMessage>, Error> {
    let failed = |error: async_nats::Error| {
        Error::Broker(format!("read message {seq} of stream \"{}\"", settings.stream), error)
    };
    let request = Get { seq, next_by_subj: settings.filter() };
    let api = format!("STREAM.MSG.GET.{}", settings.stream);
    // Who may not ask is not answered.
    match timeout(ANSWER_WITHIN, jetstream.request(api, &request)).await {
        Ok(Ok(Response::<Got>::Ok(got))) => Ok(Some(got.message)),
        Ok(Ok(Response::Err { error })) if error.error_code() == ErrorCode::NO_MESSAGE_FOUND => Ok(None),
        Ok(Ok(Response::Err { error })) => Err(failed(error.into())),
        Ok(Err(error)) => Err(failed(error.into())),
        Err(elapsed) => Err(failed(elapsed.into())),
    }
}

/// Terminates a delivery that we have never seen: nats-server finds it by the message's number
/// alone.
async fn settle(jetstream: &jetstream::Context, settings: &Settings, sequence: u64) -> Result<(), Error> {
    let Settings { stream, durable, .. } = settings;
    let subject = format!("$JS.ACK.{stream}.{durable}.1.{sequence}.{sequence}.0.0");
    let failed = |error: async_nats::Error| {
        Error::Broker(format!("settle message {sequence} of stream \"{stream}\""), error)
    };
    match timeout(ANSWER_WITHIN, jetstream.client().request(subject, Bytes::from_static(b"+TERM"))).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(failed(error.into())),
        Err(elapsed) => Err(failed(elapsed.into())),
    }
}

fn received(message: &RawMessage, stream: &str) -> Received {
    let text = String::from_utf8_lossy(&headers(message)).into_owned();
    let payload = BASE64_STANDARD.decode(&message.payload).unwrap_or_default();
    let (sequence, stored_at) = (message.sequence, message.time.into());
    let mut received = Received::new(message.subject.as_str(), payload);
    received.origin = Some(Origin { stream: stream.to_owned(), sequence, stored_at });
    for (name, value) in text.lines().skip(1).filter_map(|line| line.split_once(':')) {
        received = received.header(name, value.trim());
    }
    received
}

fn headers(message: &RawMessage) -> Vec<u8> {
    BASE64_STANDARD.decode(message.headers.as_deref().unwrap_or_default()).unwrap_or_default()
}

/// Why the client cannot read this message, by the rules of async-nats, which are the
/// specification's but for the carriage return.
fn unreadable(message: &RawMessage) -> Option<String> {
    // How nats-server writes a subject that is not UTF-8.
    if message.subject.contains('\u{fffd}') {
        return Some("the subject is not UTF-8".to_owned());
    }
    message.headers.as_ref()?;
    let headers = headers(message);
    let Ok(text) = str::from_utf8(&headers) else { return Some("a header is not UTF-8".to_owned()) };
    let mut lines = text.lines();
    let Some(version) = lines.next().and_then(|line| line.strip_prefix("NATS/1.0")) else {
        return Some("the headers do not begin with \"NATS/1.0\"".to_owned());
    };
    let status = version.trim().split(' ').next().unwrap_or_default();
    if !status.is_empty() && status.parse::<StatusCode>().is_err() {
        return Some(format!("the status in the headers, \"{}\", is not a number", status.escape_debug()));
    }
    let mut continues = false;
    for line in lines.filter(|line| !line.is_empty()) {
        if continues && line.starts_with(char::is_whitespace) {
            if line.contains('\r') {
                return Some("a header has a carriage return in its value".to_owned());
            }
            continue;
        }
        let Some((name, value)) = line.split_once(':') else {
            return Some(format!("the header line \"{}\" has no colon", line.escape_debug()));
        };
        if name.parse::<HeaderName>().is_err() {
            return Some(format!("the header name \"{}\" is not visible ASCII", name.escape_debug()));
        }
        if value.trim_end().contains('\r') {
            return Some(format!("the header \"{name}\" has a carriage return in its value"));
        }
        continues = true;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(headers: &[u8]) -> Option<String> {
        let message = serde_json::json!({
            "subject": "s", "seq": 1, "hdrs": BASE64_STANDARD.encode(headers), "time": "2026-01-02T03:04:05Z",
        });
        unreadable(&serde_json::from_value(message).unwrap())
    }

    #[test]
    fn what_a_client_can_read_is_left_alone() {
        for headers in [
            "NATS/1.0\r\n\r\n",
            "NATS/1.0\r\nA: b\r\nC:\r\n\r\n",
            "NATS/1.0 503 gone\r\nA: b\r\n continued\r\n\r\n",
            "NATS/1.0\r\nA: \u{e4}: x\r\n\r\n",
        ] {
            assert_eq!(reason(headers.as_bytes()), None, "{headers:?}");
        }
    }

    #[test]
    fn what_no_client_can_read_is_named() {
        for (headers, expected) in [
            (b"NATS/1.0\r\nno colon\r\n\r\n".as_slice(), "has no colon"),
            (b"NATS/1.0\r\na b: x\r\n\r\n", "name \"a b\""),
            (b"NATS/1.0\r\na: \xe4\r\n\r\n", "not UTF-8"),
            (b"NATS/1.0\r\na: x\ry\r\n\r\n", "carriage return"),
            (b"NATS/1.0\r\na: x\r\n y\rz\r\n\r\n", "carriage return"),
            (b"NATS/1.0 abc\r\na: x\r\n\r\n", "status"),
            (b"HTTP/1.1\r\na: x\r\n\r\n", "do not begin"),
            (b"", "do not begin"),
        ] {
            let reason = reason(headers).unwrap_or_default();
            assert!(reason.contains(expected), "{:?}: {reason}", String::from_utf8_lossy(headers));
        }
    }
}
