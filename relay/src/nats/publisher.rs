//! Publishes a batch to JetStream and collects the acknowledgements.
//!
//! Acknowledgements arrive on one inbox of our own, numbered, rather than through a future with a
//! timer for each: that is cheaper, leaves nothing in memory for answers that never come, and lets
//! one deadline watch over progress.

mod answer;
mod atomic;
mod batch;
pub(crate) mod ordering;
mod placing;
mod questions;
mod window;

use std::{collections::HashMap, sync::Arc};

use async_nats::{HeaderMap, Subscriber};
use futures_util::StreamExt as _;
use tokio::{
    sync::broadcast::{Receiver, error::TryRecvError},
    time::{Instant, sleep_until, timeout},
};

use self::{atomic::AtomicStream, batch::Batch, window::Window};
use super::{
    connection::Connection,
    objects::{Bucket, Compared},
};
use crate::{
    config::Limits,
    delivery::{Birth, Failure, INLINE_MAX, Message, Outcome, breaker::Sending},
    postgres::Session,
};

/// A message whose payload is smaller than the limit by more than this fits with its headers,
/// unless they are unusually long; of others the exact size counts.
const NEAR: usize = 64 * 1024;
/// Bytes of a subject that `enqueue` takes.
const SUBJECT_MAX: usize = 255;

/// Publishes over one connection; made anew with each connection.
#[derive(Debug)]
pub(crate) struct Publisher {
    connection: Arc<Connection>,
    inbox: String,
    acks: Subscriber,
    /// Subjects that NATS has just denied; the connection's event callback sends them.
    denied: Receiver<Arc<str>>,
    /// Whether NATS lets us ask which streams take a subject.
    may_ask: bool,
    window: Window,
    /// Streams that messages go to in atomic batches.
    atomic: Vec<AtomicStream>,
    /// Objects that were compared with their rows.
    compared: Compared,
    /// Number of the next publish. Never used twice, so that a late answer is never taken for
    /// another's.
    next_number: u64,
}

impl Publisher {
    pub(crate) async fn new(
        connection: Arc<Connection>,
        limits: &Limits,
    ) -> Result<Self, async_nats::SubscribeError> {
        let denied = connection.denied.subscribe();
        let inbox = connection.client.new_inbox();
        let acks = connection.client.subscribe(format!("{inbox}.*")).await?;
        let window = Window::new(limits.window, limits.ack_timeout);
        let atomic = limits.atomic_streams.iter().map(|name| AtomicStream::new(name)).collect();
        Ok(Self {
            connection,
            inbox,
            acks,
            denied,
            may_ask: true,
            window,
            atomic,
            compared: Compared::default(),
            next_number: 0,
        })
    }

    /// Whether a subject lies where answers arrive: a message there could pass for one.
    fn is_inbox(&self, subject: &str) -> bool {
        let prefix = self.inbox.rsplit_once('.').map_or("", |(prefix, _)| prefix);
        subject.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'))
    }

    /// Whether it publishes over this connection.
    pub(crate) fn is_on(&self, connection: Option<&Arc<Connection>>) -> bool {
        connection.is_some_and(|connection| Arc::ptr_eq(connection, &self.connection))
    }

    pub(crate) fn is_awake(&self) -> bool {
        self.connection.is_awake()
    }

    /// Gives the connection up: its answers cannot be true.
    pub(crate) fn give_up(&self, reason: &str) {
        self.connection.end(&reason);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.connection.over.is_cancelled()
    }

    /// No message with a larger payload is sent.
    pub(crate) fn payload_max(&self) -> usize {
        self.connection.payload_max().min(INLINE_MAX)
    }

    /// Whether a payload is to be put into the bucket now: it is larger than the threshold, or than
    /// NATS takes beside its headers, and nothing holds it back.
    fn wants_object(&self, message: &Message, limits: &Limits) -> bool {
        let Some(large) = &limits.large_payloads else { return false };
        let is_large = || {
            let limit = self.payload_max();
            let is_near = message.payload_bytes.saturating_add(NEAR) > limit;
            let fits =
                || wire_headers(message, limits).is_ok_and(|map| message.check_size(&map, limit).is_ok());
            message.payload_bytes > large.above || is_near && !fits()
        };
        message.may_get_object() && is_large()
    }

    /// The streams that have acknowledged something for the first time since the last call.
    pub(crate) fn take_births(&self) -> HashMap<Arc<str>, Birth> {
        self.connection.places.take_births()
    }

    /// It could not be written down which streams these are.
    pub(crate) fn return_births(&self, births: HashMap<Arc<str>, Birth>) {
        let places = &self.connection.places;
        births.into_iter().for_each(|(name, birth)| places.note_birth(&name, birth));
    }

    /// Puts the payloads that are to travel beside their messages into their bucket.
    pub(crate) async fn put_large(&mut self, messages: &mut [Message], session: &Session, limits: &Limits) {
        let Some(large) = &limits.large_payloads else { return };
        let wanting = messages.iter_mut().filter(|message| self.wants_object(message, limits));
        let wanting: Vec<&mut Message> = wanting.collect();
        if wanting.is_empty() {
            return;
        }
        let until = Instant::now() + limits.batch_timeout;
        let bucket = Bucket::new(&self.connection, &large.bucket, limits.ack_timeout);
        bucket.put_all(wanting, session, until, &mut self.compared).await;
    }

    /// Publishes the messages that may be published, and returns the outcome of each one. When
    /// the broker goes away, the connection is declared over and the rest is [`Outcome::Unknown`].
    pub(crate) async fn publish(&mut self, messages: &[Message], limits: &Limits) -> Vec<Outcome> {
        let mut batch = Batch::new(messages, self.next_number);
        self.next_number += messages.len() as u64;
        // A subject that was denied before may be allowed by now: this batch finds out.
        while !matches!(self.denied.try_recv(), Err(TryRecvError::Empty | TryRecvError::Closed)) {}
        let started = Instant::now();
        if self.is_awake() {
            self.publish_atomically(&mut batch, limits, started).await;
        }
        batch.line_up();
        self.drive(&mut batch, limits, started).await;
        self.place(&mut batch, started + limits.batch_max()).await;
        if let Some(failure) = &batch.away {
            tracing::debug!(%failure, unacknowledged = batch.in_flight, "publish");
            self.connection.end(failure);
        }
        batch.outcomes
    }

    async fn drive(&mut self, batch: &mut Batch<'_>, limits: &Limits, started: Instant) {
        let (batch_deadline, end) = (started + limits.batch_timeout, started + limits.batch_max());
        while batch.away.is_none() && !batch.is_done() && Instant::now() < end {
            if batch.in_flight == 0 && batch.free.is_empty() {
                // Last, and each subject once: while NATS is asked, nothing is published. Rare, and
                // large.
                Box::pin(self.explain(batch, limits, end)).await;
                batch.progress = Instant::now();
                continue;
            }
            // Perhaps it was suspended, also while payloads went into the bucket.
            if Instant::now() >= batch_deadline || !self.is_awake() {
                batch.free.clear();
            }
            while self.window.has_room(batch.weight)
                && batch.away.is_none()
                && self.is_awake()
                && let Some(index) = batch.free.pop_front()
            {
                batch.progress = Instant::now();
                self.send(batch, index, limits).await;
            }
            if batch.in_flight == 0 {
                continue;
            }
            self.window.limits(!batch.free.is_empty());
            tokio::select! {
                biased;
                ack = self.acks.next() => match ack {
                    Some(ack) => {
                        batch.progress = Instant::now();
                        self.connection.breaker.heard(batch.progress);
                        batch.acknowledge(&ack, &mut self.window, limits);
                    }
                    None => batch.away = Some(Failure::Disconnected),
                },
                // The denials of other workers are no progress of this one.
                denied = self.denied.recv() => if denied.is_ok_and(|subject| batch.deny(&subject, limits)) {
                    batch.progress = Instant::now();
                },
                () = self.connection.over.cancelled() => batch.away = Some(Failure::Disconnected),
                () = sleep_until(batch.progress + limits.ack_timeout) => {
                    Box::pin(self.face_silence(batch, limits, end)).await;
                }
            }
            self.collect(batch, limits);
        }
    }

    /// Why nothing can be sent to a subject.
    fn problem_of(&self, subject: &str) -> Option<String> {
        // The row was written into the log by hand: the server would cut the connection.
        if subject.len() > SUBJECT_MAX {
            return Some(format!("subject: {} bytes", subject.len()));
        }
        self.is_inbox(subject).then(|| format!("subject {subject}: it lies below the relay's inbox"))
    }

    async fn send(&self, batch: &mut Batch<'_>, index: usize, limits: &Limits) {
        // Nothing is enqueued into a client that is not connected: it could be sent minutes later.
        if self.is_over() {
            batch.away = Some(Failure::Disconnected);
            return;
        }
        let message = &batch.messages[index];
        if let Some(problem) = self.problem_of(&message.subject) {
            return batch.finish(index, Err(Failure::BadHeader(problem)), limits);
        }
        if let Some(failure) = held_back(message) {
            return batch.finish(index, Err(failure), limits);
        }
        if let Some(failure) = batch.refused_unsent(message) {
            return batch.finish(index, Err(failure), limits);
        }
        if let Some(stream) = self.connection.places.in_doubt(&message.subject) {
            return batch.finish(index, Err(Failure::Unreachable { stream }), limits);
        }
        if batch.orphaned.contains(message.subject.as_str()) {
            return batch.orphans.push(index);
        }
        match self.connection.breaker.sending(&message.subject) {
            Sending::Publish => {}
            Sending::Refuse(failure) => return batch.finish(index, Err(failure), limits),
            Sending::Ask => return batch.suspected.push(index),
        }
        if message.is_unchecked || self.wants_object(message, limits) {
            // There was no time to check its payload, or to fill the bucket: the next pass has.
            return;
        }
        let headers = wire_headers(message, limits).and_then(|headers| {
            let limit = self.connection.payload_max();
            message.check_size(&headers, limit).map(|()| headers)
        });
        let headers = match headers {
            Ok(headers) => headers,
            Err(failure @ Failure::TooLarge { limit, .. })
                if message.payload_bytes <= INLINE_MAX && self.connection.takes_more_by_now(limit).await =>
            {
                return batch.away = Some(Failure::Raised { before: failure.to_string() });
            }
            Err(failure) => return batch.finish(index, Err(failure), limits),
        };
        if message.is_left_out() {
            // The server takes more than when this was read: the next pass reads all of it.
            return;
        }
        let reply = format!("{}.{}", self.inbox, batch.first_number + index as u64);
        let publish = self.connection.client.publish_with_reply_and_headers(
            message.subject.clone(),
            reply,
            headers,
            message.payload.clone(),
        );
        match timeout(limits.ack_timeout, publish).await {
            Ok(Ok(())) => {
                batch.sent(index);
            }
            Ok(Err(error)) => match error.kind() {
                async_nats::PublishErrorKind::Send => batch.away = Some(Failure::Disconnected),
                async_nats::PublishErrorKind::MaxPayloadExceeded
                | async_nats::PublishErrorKind::InvalidSubject => {
                    let failure = Failure::BadHeader(format!("subject {}: {error}", message.subject));
                    batch.finish(index, Err(failure), limits);
                }
            },
            Err(_) => batch.away = Some(Failure::TimedOut),
        }
    }
}

/// Why a message is not sent, however its subject fares.
fn held_back(message: &Message) -> Option<Failure> {
    let paused = message.paused.clone().map(Failure::Paused);
    paused.or_else(|| message.breach.clone()).or_else(|| message.object_failure().cloned())
}

/// The headers of a message on the wire, as the options have them.
fn wire_headers(message: &Message, limits: &Limits) -> Result<HeaderMap, Failure> {
    message.wire_headers(limits.expected_stream.as_deref(), limits.event_source.as_deref())
}
