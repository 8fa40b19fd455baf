//! A message that the consumer holds, and the answer to the broker that follows from its verdict.

use std::{sync::Arc, time::Duration};

use async_nats::jetstream::{self, AckKind};
use oncebox_claims::failure::text;
use oncebox_schema::Driver;
use tokio::time::{Instant, timeout};
use tracing::warn;

use super::queue::Id;
use crate::{Disposition, Error, Inbox, Received, Verdict, inbox::Shared};

/// How long the client may take to take an answer: while it is not connected, its queue fills.
const SENT_WITHIN: Duration = Duration::from_secs(1);

/// A message that this process holds.
#[derive(Debug)]
pub(super) struct HeldMessage {
    pub(super) received: Arc<Received>,
    /// The delivery; `None` for a message of a stopped line, which the database has.
    pub(super) message: Option<Arc<jetstream::Message>>,
    pub(super) held_since: Instant,
    /// Runs in a row that ended without an attempt.
    pub(super) waits: u64,
}

impl HeldMessage {
    /// Bytes, as they came.
    pub(super) fn weight(&self) -> usize {
        self.message.as_ref().map_or(self.received.payload.len(), |message| message.length)
    }

    /// A message of a stopped line, and the id that tells it apart.
    pub(super) fn in_line(received: Received) -> Option<(Id, Self)> {
        let origin = received.origin()?;
        let id = (origin.sequence, origin.stored_at);
        Some((id, Self { received: Arc::new(received), message: None, held_since: Instant::now(), waits: 0 }))
    }

    /// Runs that ended without success while it is held count like deliveries.
    pub(super) fn again(&mut self) {
        let received = Arc::make_mut(&mut self.received);
        received.deliveries += 1;
        received.begun.set(false);
    }
}

/// The next step for a message that the consumer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The action that its verdict asks for.
    Do(Disposition),
    /// The message is delivered again; other messages of its ordering key go on.
    Back(Duration),
}

/// The action that follows from a run; an error is one of our own tables.
pub(super) fn after<R>(result: Result<Verdict<R>, Error>, waits: u64) -> Result<Disposition, Error> {
    match result {
        Err(error) if !matches!(error, Error::Unavailable(..)) => Err(error),
        result => Ok(Disposition::of(&result, waits)),
    }
}

/// Our own tables refuse, or hold a row that we cannot read: up to the delivery limit that may
/// pass, then an operator has to look.
pub(super) async fn refused(inbox: &Inbox<impl Driver>, received: &Received, error: &Error) -> Disposition {
    failed(inbox, received, &text(error)).await
}

/// A run that did not begin, and counts: up to the delivery limit it is tried again.
pub(super) async fn failed(inbox: &Inbox<impl Driver>, received: &Received, reason: &str) -> Disposition {
    let after = match inbox.dead_letter_refused(received, reason).await {
        Ok(None) => return Disposition::Term,
        Ok(Some(after)) => after,
        Err(second) => {
            warn!(error = text(&second), "a failed attempt, or a dead letter, cannot be recorded");
            inbox.shared.pause(received.delivery_count())
        }
    };
    warn!(subject = received.subject(), "attempt failed, will retry: {reason}");
    Disposition::Retry(after)
}

/// Tells JetStream; a lost answer only means another delivery. False when the client takes nothing
/// more for now.
pub(super) async fn answer(inbox: &Shared, message: &jetstream::Message, kind: AckKind) -> bool {
    inbox.record_answer(message, kind);
    match timeout(SENT_WITHIN, message.ack_with(kind)).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::debug!(error = %error, "acknowledgement not sent; the message will be delivered again");
            true
        }
        Err(_) => false,
    }
}

/// Reads a message and the id that tells it apart.
pub(super) fn receive(message: jetstream::Message, extra_deliveries: u64) -> Option<(Id, HeldMessage)> {
    let mut received = Received::from_jetstream(&message).ok()?;
    received.deliveries += extra_deliveries;
    let origin = received.origin()?;
    let id = (origin.sequence, origin.stored_at);
    let held = HeldMessage {
        received: Arc::new(received),
        message: Some(Arc::new(message)),
        held_since: Instant::now(),
        waits: 0,
    };
    Some((id, held))
}
