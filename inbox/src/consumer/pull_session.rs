//! Pulling from one JetStream consumer, until something is lost.
//!
//! async-nats has pulls of its own. Its `Batch` cannot have heartbeats (it is not woken after one,
//! 0.51), its `Stream` decides by itself how much it asks for, and both take a status that a
//! publisher put into a message's headers for the server's. Therefore the answers are read here:
//! pulls are answered below one inbox, messages keep their subjects.

use std::{sync::atomic::Ordering, time::Duration};

use async_nats::{
    Message, StatusCode, Subscriber,
    jetstream::{
        self,
        consumer::{PullConsumer, pull::BatchConfig},
    },
};
use futures_util::StreamExt;
use tokio::time::{Instant, timeout, timeout_at};

use super::settings::Room;
use crate::Error;

const EXPIRES: Duration = Duration::from_secs(5);
/// How often the server says that it still has our pull. When it dies, or loses its interest in us,
/// nothing else tells.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// Three heartbeats: a client that is short of processor time must not take itself for forgotten.
const LOST_AFTER: Duration = Duration::from_millis(1500);
/// How a pull ends whose bytes do not suffice for the next message.
const TOO_LARGE: &str = "Message Size Exceeds MaxBytes";
/// Of 409: all that a pull asked for was delivered.
const COMPLETED: &str = "Batch Completed";
const SENT_WITHIN: Duration = Duration::from_secs(1);
/// How long the session waits at its end for messages on their way.
const CLOSED_WITHIN: Duration = Duration::from_secs(1);

/// A session lasts from setting up a JetStream consumer to losing it.
#[derive(Debug)]
pub(super) struct PullSession {
    jetstream: jetstream::Context,
    consumer: PullConsumer,
    answers: Subscriber,
    /// The subject of all answers that are not messages; the number of the pull follows.
    inbox: String,
    pulls: u64,
    /// How often the client had connected when this began.
    connects: u64,
    /// How many messages the current pull may still deliver; 0 without a pull.
    asked: usize,
    lost_at: Instant,
    /// Set when the order is strict.
    place: Option<Place>,
    /// The next message is larger than there was room for.
    is_large: bool,
}

/// The place in the stream where a strictly ordered consumer goes on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// The consumer sequence of the last delivery.
    pub(super) delivered: u64,
    /// Deliveries that the next message had under earlier consumers.
    pub(super) first_deliveries: u64,
    /// Up to here in the stream, messages were delivered by earlier consumers.
    pub(super) delivered_before: u64,
}

/// Why a session ended.
#[derive(Debug)]
pub(super) enum SessionEnd {
    Shutdown,
    Lost(String),
    /// The client will not connect again: it was closed, gave up, or died.
    Closed,
}

/// A delivery, and how often the message was delivered by earlier consumers of this name.
pub(super) type Delivery = (jetstream::Message, u64);

impl PullSession {
    pub(super) async fn new(
        jetstream: &jetstream::Context,
        consumer: PullConsumer,
        place: Option<Place>,
    ) -> Result<Self, Error> {
        let client = jetstream.client();
        let inbox = client.new_inbox();
        let answers = client
            .subscribe(format!("{inbox}.*"))
            .await
            .map_err(|error| Error::Broker("subscribe to what is pulled".to_owned(), error.into()))?;
        Ok(Self {
            connects: connects(jetstream),
            jetstream: jetstream.clone(),
            consumer,
            answers,
            inbox,
            pulls: 0,
            asked: 0,
            lost_at: Instant::now(),
            place,
            is_large: false,
        })
    }

    /// Asks for as many messages as there is room for, unless a pull is under way. Not cancel-safe:
    /// the messages of a forgotten pull may be taken for another's.
    pub(super) async fn pull(&mut self, room: Room) -> Result<(), SessionEnd> {
        // Our pull may have survived that, but messages under way are lost, and it may be another
        // server.
        if connects(&self.jetstream) != self.connects {
            return Err(SessionEnd::Lost("the client has connected again".to_owned()));
        }
        if self.asked > 0 || room.messages == 0 || (self.is_large && !room.is_empty) {
            return Ok(());
        }
        let is_large = std::mem::take(&mut self.is_large);
        let batch = batch(room, is_large, &self.consumer.cached_info().config);
        let asked = batch.batch;
        self.pulls += 1;
        let answer_to = format!("{}.{}", self.inbox, self.pulls);
        match timeout(SENT_WITHIN, self.consumer.request_batch(batch, answer_to.into())).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(SessionEnd::Lost(format!("pull: {error}"))),
            Err(_) => return Err(SessionEnd::Lost("a pull could not be sent".to_owned())),
        }
        (self.asked, self.lost_at) = (asked, Instant::now() + LOST_AFTER);
        Ok(())
    }

    /// The next message; `None` when the server says that it is there, or that there is nothing
    /// more for now; an error when the consumer is lost. Waits for ever when no pull is under way.
    /// Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Option<Delivery>, SessionEnd> {
        if self.asked == 0 {
            return std::future::pending().await;
        }
        // A message that has arrived counts, however late we look.
        let message = match timeout_at(self.lost_at, self.answers.next()).await {
            Ok(Some(message)) => message,
            Ok(None) => return Err(SessionEnd::Closed),
            Err(_) => {
                return Err(SessionEnd::Lost(format!(
                    "nothing was heard of the consumer for {LOST_AFTER:?}"
                )));
            }
        };
        self.lost_at = Instant::now() + LOST_AFTER;
        if let Some(pull) = message.subject.strip_prefix(self.inbox.as_str()) {
            if pull.trim_start_matches('.') == self.pulls.to_string() {
                self.status(&message).map_err(SessionEnd::Lost)?;
            }
            return Ok(None);
        }
        // A message that comes after the notice that its pull is over still counts as a delivery.
        self.asked = self.asked.saturating_sub(1);
        self.checked(jetstream::Message { message, context: self.jetstream.clone() })
            .map_err(SessionEnd::Lost)
    }

    /// Ends a session without a strict order, and returns the messages that the server has
    /// delivered and no worker has taken yet: forgotten, they would come again only when `ack_wait`
    /// is over. A pull cannot be taken back. So we ask the consumer something first, since its
    /// answer comes after the messages that it has delivered until then, and the server forgets our
    /// subscription after that.
    pub(super) async fn close(mut self) -> Vec<Delivery> {
        let deadline = Instant::now() + CLOSED_WITHIN;
        let _ = timeout_at(deadline, async {
            if self.asked > 0 {
                let _ = self.consumer.get_info().await;
            }
            self.answers.drain().await
        })
        .await;
        let mut left = Vec::new();
        while let Ok(Some(message)) = timeout_at(deadline, self.answers.next()).await {
            if !message.subject.starts_with(self.inbox.as_str()) {
                left.push((jetstream::Message { message, context: self.jetstream.clone() }, 0));
            }
        }
        left
    }

    fn status(&mut self, message: &Message) -> Result<(), String> {
        match message.status {
            None | Some(StatusCode::OK | StatusCode::IDLE_HEARTBEAT) => {}
            Some(StatusCode::TIMEOUT | StatusCode::NOT_FOUND) => self.asked = 0,
            // A pull that is limited in bytes as well has an end of its own.
            Some(_) if is(message, COMPLETED) => self.asked = 0,
            Some(_) if is(message, TOO_LARGE) => (self.asked, self.is_large) = (0, true),
            Some(status) => {
                let why = message.description.as_deref().unwrap_or("no reason given");
                return Err(format!("pull: {status}, {why}"));
            }
        }
        Ok(())
    }

    /// Checks, when the order is strict, that no delivery before this one is missing.
    fn checked(&mut self, message: jetstream::Message) -> Result<Option<Delivery>, String> {
        let Some(place) = &mut self.place else {
            return Ok(Some((message, 0)));
        };
        let Ok((sequence, stream_sequence)) =
            message.info().map(|info| (info.consumer_sequence, info.stream_sequence))
        else {
            return Err("a delivery without its sequence".to_owned());
        };
        if sequence != place.delivered + 1 {
            return Err(format!(
                "deliveries {} to {} went elsewhere",
                place.delivered + 1,
                sequence.saturating_sub(1)
            ));
        }
        place.delivered = sequence;
        let was_delivered = stream_sequence <= place.delivered_before;
        let earlier = std::mem::take(&mut place.first_deliveries).max(u64::from(was_delivered));
        Ok(Some((message, earlier)))
    }
}

/// Whether the server gives this reason.
fn is(message: &Message, reason: &str) -> bool {
    message.description.as_deref().is_some_and(|why| why.eq_ignore_ascii_case(reason))
}

fn connects(jetstream: &jetstream::Context) -> u64 {
    jetstream.client().statistics().connects.load(Ordering::Relaxed)
}

/// A pull within the limits that the consumer, or the server's operator, has set; beyond them it
/// would be refused. A message that is too large for any room comes alone.
fn batch(room: Room, is_large: bool, config: &jetstream::consumer::Config) -> BatchConfig {
    let limit = |room: usize, most: i64| match usize::try_from(most) {
        Ok(most) if most > 0 => room.min(most),
        _ => room,
    };
    let batch = if is_large { 1 } else { limit(room.messages, config.max_batch) };
    let max_bytes = limit(if is_large { 0 } else { room.bytes }, config.max_bytes);
    let expires = if config.max_expires.is_zero() { EXPIRES } else { EXPIRES.min(config.max_expires) };
    let idle_heartbeat = HEARTBEAT.min(expires / 2);
    BatchConfig { batch, max_bytes, expires: Some(expires), idle_heartbeat, ..BatchConfig::default() }
}
