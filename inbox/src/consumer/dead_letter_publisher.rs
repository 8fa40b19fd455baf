//! Publishes dead letters to a subject, for programs that subscribe to them.
//!
//! ```text
//! dead letter committed ─▶ published, acknowledged ─▶ message terminated
//!           │                        │
//!           │ crash                  │ crash, or not taken: given back, after a pause
//!           ▼                        ▼
//!    delivered again: the inbox says dead, and it is published (again) under the same Nats-Msg-Id
//! ```
//!
//! The row in `dead_letter` is the truth: the consumer publishes this row, and nothing for a
//! message without a row, such as another copy of a key that is dead, or a letter that an operator
//! has dealt with meanwhile.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};

use async_nats::{
    HeaderMap, HeaderName, HeaderValue,
    jetstream::{self, ErrorCode, context::PublishErrorKind},
};
use bytes::Bytes;
use oncebox_claims::{failure::text, metrics::add, records::DeadLetter};
use oncebox_schema::Driver;
use sha2::{Digest, Sha256};
use tokio::time::timeout;
use tracing::{error, info, warn};

use super::{Settings, held_message::Next};
use crate::{Disposition, Error, Inbox, InvalidSettings, Origin, Received};

/// How long JetStream may take to acknowledge one.
const PUBLISH_WITHIN: Duration = Duration::from_secs(5);
/// How long the consumer tries to publish a letter, counted from its row. Then the letter stays in
/// the database only.
const PUBLISH_FOR: Duration = Duration::from_secs(24 * 3600);
/// The pauses between tries: as long as it has been tried already, between these.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(300)];

/// Publishes the dead letters of one consumer.
#[derive(Debug)]
pub(super) struct DeadLetterPublisher<D: Driver> {
    jetstream: jetstream::Context,
    subject: String,
    inbox: Inbox<D>,
    /// Whether no stream took the last letter, so that this is logged once.
    is_failing: AtomicBool,
}

/// Checks that a stream takes the subject, and that this consumer would not get its own dead
/// letters.
pub(super) async fn check(jetstream: &jetstream::Context, settings: &Settings) -> Result<(), Error> {
    let Some(subject) = &settings.dead_letter_subject else { return Ok(()) };
    let what = |why: &str| format!("{why} dead_letter_subject \"{subject}\"");
    let found = timeout(PUBLISH_WITHIN, jetstream.stream_by_subject(subject.as_str())).await;
    let stream = match found {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(Error::Broker(what("find a stream that takes"), error.into())),
        Err(elapsed) => return Err(Error::Broker(what("find a stream that takes"), elapsed.into())),
    };
    if stream == settings.stream && settings.may_take(subject) {
        let mistake = format!(
            "dead_letter_subject \"{subject}\" is one that this consumer consumes: its dead letters would die again, \
             without end; use another stream, or a filter_subject that leaves it out"
        );
        return Err(InvalidSettings(vec![mistake]).into());
    }
    Ok(())
}

impl<D: Driver> DeadLetterPublisher<D> {
    pub(super) fn new(jetstream: &jetstream::Context, settings: &Settings, inbox: &Inbox<D>) -> Option<Self> {
        let subject = settings.dead_letter_subject.clone()?;
        let (jetstream, inbox) = (jetstream.clone(), inbox.clone());
        Some(Self { jetstream, subject, inbox, is_failing: AtomicBool::new(false) })
    }

    /// Publishes the dead letter of a message, once the row is committed, and returns the message's
    /// next step.
    pub(super) async fn settle(&self, received: &Received, waits: u64) -> Next {
        let letter = match self.inbox.records.read_dead_letter(self.inbox.scope(), received.record()).await {
            Ok(Some(letter)) => letter,
            Ok(None) => return Next::Do(Disposition::Term),
            Err(error) => {
                self.inbox.shared.note_availability(Some(&error));
                return Next::Do(Disposition::Wait(Disposition::pause(waits)));
            }
        };
        match self.publish(received, &letter).await {
            Ok(()) => {
                add(&self.inbox.shared.counters.dead_letters_published);
                if self.is_failing.swap(false, Ordering::Relaxed) {
                    info!(subject = self.subject, "dead letters are published again");
                }
                Next::Do(Disposition::Term)
            }
            Err(reason) => self.failed(&letter, &reason),
        }
    }

    fn failed(&self, letter: &DeadLetter, reason: &str) -> Next {
        let (scope, subject) = (self.inbox.scope(), self.subject.as_str());
        if letter.age >= PUBLISH_FOR {
            error!(scope, subject, id = letter.id, "a dead letter stays in the database only: {reason}");
            return Next::Do(Disposition::Term);
        }
        add(&self.inbox.shared.counters.dead_letters_failed);
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            warn!(scope, subject, "a dead letter could not be published, will retry: {reason}");
        }
        let [shortest, longest] = PAUSES;
        Next::Back(letter.age.clamp(shortest, longest))
    }

    async fn publish(&self, received: &Received, letter: &DeadLetter) -> Result<(), String> {
        let payload = Bytes::copy_from_slice(received.record().kept_payload());
        match self.send(headers(self.inbox.scope(), received, letter, true), payload).await {
            Err(NotPublished { is_too_large: true, .. }) => {
                // The message had nearly the largest size allowed, and the letter's headers are
                // longer.
                let sent =
                    self.send(headers(self.inbox.scope(), received, letter, false), Bytes::new()).await;
                sent.map_err(|refused| refused.reason)
            }
            sent => sent.map_err(|refused| refused.reason),
        }
    }

    /// Publishes a letter, and waits until it is stored.
    async fn send(&self, headers: HeaderMap, payload: Bytes) -> Result<(), NotPublished> {
        let sending = async {
            self.jetstream.publish_with_headers(self.subject.clone(), headers, payload).await?.await
        };
        match timeout(PUBLISH_WITHIN, sending).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                let source = std::error::Error::source(&error);
                let code = source.and_then(|source| source.downcast_ref::<jetstream::Error>());
                let code = code.map(jetstream::Error::error_code);
                let is_too_large = error.kind() == PublishErrorKind::MaxPayloadExceeded
                    || code == Some(ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM)
                    || code == Some(ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM);
                Err(NotPublished { reason: text(&error), is_too_large })
            }
            Err(_) => {
                let reason = format!("not acknowledged within {PUBLISH_WITHIN:?}");
                Err(NotPublished { reason, is_too_large: false })
            }
        }
    }
}

/// Why a letter is not in its stream.
struct NotPublished {
    reason: String,
    is_too_large: bool,
}

/// The `Nats-Msg-Id` of the dead letter that an inbox of this scope publishes for the message at
/// this place: the same each time it publishes that letter. It is a valid key with any names of
/// scope and stream: 1 to 128 bytes of visible ASCII.
#[must_use]
pub fn dead_letter_id(scope: &str, origin: &Origin) -> String {
    let names = Sha256::new().chain_update(scope).chain_update([0]).chain_update(&origin.stream).finalize();
    let names = names[..16].iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    let stored = origin.stored_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("dead:{names}:{}:{}", origin.sequence, stored.as_micros())
}

/// The message's own headers, and the headers about its end. A letter that is cut down has the
/// latter only.
fn headers(scope: &str, received: &Received, letter: &DeadLetter, is_whole: bool) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut add = |name: &str, value: &str| {
        let value: String = value.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
            headers.append(name, value);
        }
    };
    let is_ours = |name: &str| {
        let name = name.to_ascii_lowercase();
        // The server acts on the former; the latter are of an earlier death.
        name.starts_with("nats-") || name.starts_with("oncebox-dead-")
    };
    for (name, value) in received.headers().filter(|(name, _)| is_whole && !is_ours(name)) {
        add(name, value);
    }
    if let Some(origin) = received.origin() {
        add("Nats-Msg-Id", &dead_letter_id(scope, origin));
        add("Oncebox-Dead-Stream", &origin.stream);
        add("Oncebox-Dead-Sequence", &origin.sequence.to_string());
    }
    add("Oncebox-Dead-Id", &letter.id.to_string());
    add("Oncebox-Dead-Scope", scope);
    add("Oncebox-Dead-Tenant", &letter.tenant);
    add("Oncebox-Dead-Key", letter.key.as_deref().unwrap_or_default());
    add("Oncebox-Dead-Subject", received.subject());
    add("Oncebox-Dead-Deliveries", &letter.deliveries.to_string());
    add("Oncebox-Dead-Reason", &letter.reason);
    if !is_whole {
        add("Oncebox-Dead-Payload", "left out");
    }
    headers
}

#[cfg(test)]
mod tests {
    use oncebox_schema::Key;

    use super::*;

    #[test]
    fn ids_are_keys_whatever_the_names_and_differ_between_places() {
        let place = |stream: &str, sequence, micros| Origin {
            stream: stream.to_owned(),
            sequence,
            stored_at: SystemTime::UNIX_EPOCH + Duration::from_micros(micros),
        };
        let long = "s".repeat(255);
        let mut ids: Vec<String> = ["pay", "the cash desk", "Bücher: zahlen", &long]
            .iter()
            .flat_map(|scope| ["S", "T", &long].map(|stream| dead_letter_id(scope, &place(stream, 1, 2))))
            .chain(
                [(2, 2), (1, 3), (u64::MAX, u64::MAX)].map(|(n, t)| dead_letter_id("pay", &place("S", n, t))),
            )
            .collect();
        let count = ids.len();
        for id in &ids {
            assert_eq!(Key::root(id).unwrap().as_str(), id.replace(':', "%3A"), "no longer than a key");
        }
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), count, "each is another");
        assert_eq!(dead_letter_id("a", &place("b", 1, 2)), dead_letter_id("a", &place("b", 1, 2)));
    }

    #[test]
    fn headers_tell_what_is_known_and_none_that_the_server_acts_on() {
        let received = Received::new("s.t", "p")
            .header("Idempotency-Key", "k")
            .header("nats-rollup", "all")
            .header("Nats-Msg-Id", "k")
            .header("Oncebox-Dead-Reason", "of an earlier death")
            .header("a", "1\r\n2");
        let letter = DeadLetter {
            id: 7,
            tenant: String::new(),
            key: Some("k".to_owned()),
            reason: "two\r\nlines".to_owned(),
            deliveries: 3,
            age: Duration::ZERO,
        };
        let told = headers("a:b", &received, &letter, true);
        let value = |name: &str| told.get(name).map(HeaderValue::as_str);
        assert_eq!(
            (value("Idempotency-Key"), value("nats-rollup"), value("Nats-Msg-Id")),
            (Some("k"), None, None)
        );
        assert_eq!((value("a"), value("Oncebox-Dead-Reason")), (Some("1  2"), Some("two  lines")));
        assert_eq!(told.get_all("Oncebox-Dead-Reason").count(), 1);
        assert_eq!((value("Oncebox-Dead-Scope"), value("Oncebox-Dead-Deliveries")), (Some("a:b"), Some("3")));
        let cut = headers("a:b", &received, &letter, false);
        assert!(cut.get("Idempotency-Key").is_none() && cut.get("Oncebox-Dead-Payload").is_some());
    }
}
