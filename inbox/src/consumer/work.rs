//! A message that is held, and what its verdict means to the broker.

use std::{sync::Arc, time::Duration};

use async_nats::jetstream::{self, AckKind};
use tokio::time::Instant;
use tracing::warn;

use super::queue::Id;
use crate::{
    Error, Inbox, Received, Verdict,
    failure::{Backoff, text},
};

/// Between looks at a message that another process works on, or at a PostgreSQL that is away: nobody is notified.
pub(super) const WAITING: Backoff =
    Backoff { first: Duration::from_millis(200), max: Duration::from_secs(10) };

/// A message that this process holds.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) received: Arc<Received>,
    pub(super) message: Arc<jetstream::Message>,
    pub(super) held_since: Instant,
    /// Failed runs while it was held; each counts like a delivery.
    pub(super) retries: u64,
    /// Runs in a row that ended without an attempt.
    pub(super) waits: u64,
}

impl Job {
    /// The message as the next run sees it.
    pub(super) fn attempt(&self) -> Arc<Received> {
        if self.retries == 0 {
            return Arc::clone(&self.received);
        }
        let mut received = Received::clone(&self.received);
        received.deliveries += self.retries;
        Arc::new(received)
    }
}

/// What becomes of a message after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Settled.
    Ack,
    /// Given up, and recorded as that.
    Term,
    /// To be tried again after a failure.
    Retry(Duration),
    /// To be looked at again; nothing was tried.
    Wait(Duration),
    /// To be delivered again; other messages of its line go on.
    Back(Duration),
    /// Not tried, because an earlier message of its line was tried in vain.
    Behind,
}

impl Next {
    /// What follows from a run; an error is one of our own tables.
    pub(super) fn after<R>(result: Result<Verdict<R>, Error>, waits: u64) -> Result<Self, Error> {
        match result {
            // Nobody asks for the reply here, so it does not matter that the handler's reply type
            // has changed.
            Ok(Verdict::Handled(_) | Verdict::Replayed(_)) | Err(Error::StoredReply { .. }) => Ok(Self::Ack),
            Ok(Verdict::Dead { .. } | Verdict::Mismatch) => Ok(Self::Term),
            Ok(Verdict::Retry { after, .. }) => Ok(Self::Retry(after)),
            Ok(Verdict::Behind) => Ok(Self::Behind),
            Ok(Verdict::InFlight) | Err(Error::Unavailable(..)) => Ok(Self::Wait(WAITING.after(waits + 1))),
            Err(error) => Err(error),
        }
    }
}

/// Our own tables refuse, or hold what we cannot read: up to the delivery limit that may pass, then an operator has to
/// look.
pub(super) async fn refused(inbox: &Inbox, received: &Received, error: &Error) -> Next {
    let reason = text(error);
    match inbox.give_up(received, &reason).await {
        Ok(true) => return Next::Term,
        Ok(false) => {}
        Err(second) => warn!(error = text(&second), "a dead letter cannot be recorded"),
    }
    warn!(subject = received.subject(), "no effect, to be repeated: {reason}");
    Next::Retry(inbox.pause(received.delivery_count()))
}

/// Tells JetStream; what gets lost on the way only means another delivery.
pub(super) async fn answer(message: &jetstream::Message, kind: AckKind) {
    if let Err(error) = message.ack_with(kind).await {
        tracing::debug!(error = %error, "acknowledgement not sent; the message will be delivered again");
    }
}

/// What identifies the message, and what it is.
pub(super) fn receive(message: jetstream::Message, extra_deliveries: u64) -> Option<(Id, Job)> {
    let mut received = Received::from_jetstream(&message).ok()?;
    received.deliveries += extra_deliveries;
    let origin = received.origin()?;
    let id = (origin.sequence, origin.stored_at);
    let job = Job {
        received: Arc::new(received),
        message: Arc::new(message),
        held_since: Instant::now(),
        retries: 0,
        waits: 0,
    };
    Some((id, job))
}
