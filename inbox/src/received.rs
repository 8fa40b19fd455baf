//! A message as it arrived, from the broker or from anywhere else.

use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(feature = "nats")]
use async_nats::{HeaderMap, jetstream};
use bytes::Bytes;
use oncebox_claims::records::{InLine, Message, Waiting};

pub use oncebox_claims::records::Origin;

/// A message as it arrived. Headers are looked up without regard to case.
///
/// ```
/// use oncebox_inbox::Received;
///
/// let message = Received::new("orders.placed", r#"{"cents":100}"#).header("Idempotency-Key", "4711");
/// assert_eq!(message.header_value("idempotency-key"), Some("4711"));
/// ```
#[derive(Clone, Debug)]
pub struct Received {
    pub(crate) subject: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) payload: Bytes,
    pub(crate) origin: Option<Origin>,
    pub(crate) deliveries: u64,
    pub(crate) begun: Begun,
    /// The payload came from the Object Store, where the headers say.
    pub(crate) is_fetched: bool,
    /// It comes from a line of the database, not from the stream.
    pub(crate) in_line: Option<InLine>,
}

/// Whether the last run of a message was recorded as begun and is known to be no attempt: it had to
/// wait, and this process has survived it.
#[derive(Debug, Default)]
pub(crate) struct Begun(AtomicBool);

impl Begun {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, begun: bool) {
        self.0.store(begun, Ordering::Relaxed);
    }
}

impl Clone for Begun {
    fn clone(&self) -> Self {
        Self(AtomicBool::new(self.is_set()))
    }
}

/// It counts as delivered before: a run that ends its process is known then.
impl From<Waiting> for Received {
    fn from(Waiting { place, subject, headers, payload, origin }: Waiting) -> Self {
        let in_line = Some(place);
        Self { headers, in_line, ..Self::new(subject, payload).with_origin(origin).deliveries(2) }
    }
}

impl Received {
    /// A message without headers that did not come from a stream, delivered for the first time.
    pub fn new(subject: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            subject: subject.into(),
            headers: Vec::new(),
            payload: payload.into(),
            origin: None,
            deliveries: 1,
            begun: Begun::default(),
            is_fetched: false,
            in_line: None,
        }
    }

    /// A message of a JetStream consumer.
    ///
    /// # Errors
    /// The message did not come from a JetStream consumer: its reply subject says nothing about a
    /// stream.
    #[cfg(feature = "nats")]
    pub fn from_jetstream(message: &jetstream::Message) -> Result<Self, async_nats::Error> {
        let info = message.info()?;
        Ok(Self {
            subject: message.subject.to_string(),
            headers: message.headers.as_ref().map(flatten).unwrap_or_default(),
            payload: message.payload.clone(),
            origin: Some(Origin {
                stream: info.stream.to_owned(),
                sequence: info.stream_sequence,
                stored_at: info.published.into(),
            }),
            deliveries: u64::try_from(info.delivered).unwrap_or(1),
            begun: Begun::default(),
            is_fetched: false,
            in_line: None,
        })
    }

    /// Adds a header; a name may occur more than once.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Says where the message is stored: copies of one stored message have one dead letter and one
    /// count of attempts. A partition of a log is a stream.
    #[must_use]
    pub fn with_origin(mut self, origin: Origin) -> Self {
        self.origin = Some(origin);
        self
    }

    /// This message with another payload.
    #[must_use]
    pub(crate) fn with_payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = payload.into();
        self
    }

    /// The message, as the records beside its key have it.
    pub(crate) fn record(&self) -> Message<'_> {
        Message {
            subject: &self.subject,
            headers: &self.headers,
            payload: &self.payload,
            is_fetched: self.is_fetched,
            origin: self.origin.as_ref(),
            deliveries: self.deliveries,
            has_begun: self.begun.is_set(),
        }
    }

    /// Sets how many times the message has been delivered, this time included. With more than one
    /// the inbox records each run before it begins, so that one that ends its process is known to
    /// have begun.
    #[must_use]
    pub fn deliveries(mut self, count: u64) -> Self {
        self.deliveries = count;
        self
    }

    /// The subject.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// The payload as it came.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// All headers.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The first value of a header.
    #[must_use]
    pub fn header_value(&self, name: &str) -> Option<&str> {
        self.values(name).next()
    }

    /// The ordering key that the producer set.
    #[must_use]
    pub fn ordering_key(&self) -> Option<&str> {
        self.header_value("Oncebox-Ordering-Key")
    }

    /// When the producer enqueued the message, RFC 3339; the same on every delivery.
    #[must_use]
    pub fn time(&self) -> Option<&str> {
        self.header_value("Oncebox-Time")
    }

    /// How many times the message has been delivered, this time included.
    #[must_use]
    pub fn delivery_count(&self) -> u64 {
        self.deliveries
    }

    /// Where the message is stored; `None` when it did not come from a stream.
    #[must_use]
    pub fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }

    pub(crate) fn values<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.headers().filter(move |(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The producer's id of the message in its outbox.
    pub(crate) fn id(&self) -> Option<i64> {
        self.header_value("Oncebox-Id")?.parse().ok()
    }
}

#[cfg(feature = "nats")]
fn flatten(headers: &HeaderMap) -> Vec<(String, String)> {
    headers
        .iter()
        .flat_map(|(name, values)| {
            values.iter().map(move |value| (name.to_string(), value.as_str().to_owned()))
        })
        .collect()
}
