//! One message between its claim and its commit.

use std::{ops::Deref, time::Duration};

use oncebox_claims::{
    Claim,
    failure::Class,
    handler_call::{self, CallEnd},
    identity::Identity,
    metrics::add,
    reply::encode,
    stored::{Status, Stored},
    transactional::TransactionId,
};
use oncebox_schema::Driver;
use tokio::time::{Instant, timeout};
use tracing::{Instrument, info};

use super::{delivery::Delivery, failure::Failure};
use crate::{
    Answer, Context, Error, Handler, HandlerError, Inbox, MessageContext, Outcome, Received, StoredAnswer,
    Verdict, duplicate::Cause, handler::TransactionOf, inbox::MISMATCH, recording::Ending, trace,
};

/// The operation at which a run broke its connection.
pub(crate) const RUN_HANDLER: &str = "run the handler";

/// The verdict on a message, which holds only once the transaction is committed, and the rest of
/// that transaction.
pub(super) struct Uncommitted<R> {
    pub(super) verdict: Verdict<R>,
    pub(super) write: Write,
}

/// The rest of a transaction that is to be committed.
pub(super) enum Write {
    /// Nothing: the message is a duplicate.
    Nothing,
    /// Everything is written already.
    Complete,
    /// Everything is written already but the outcome, which comes with the commit.
    Settled(Status, Option<Vec<u8>>),
}

impl Write {
    /// How the key is about to end, for recordings. A transaction that has claimed no key sets its
    /// message aside.
    pub(super) fn ending(&self, claimed: Option<TransactionId>) -> Option<Ending<'_>> {
        let (status, reply) = match self {
            Self::Nothing => return None,
            Self::Complete if claimed.is_none() => return Some(Ending::ASIDE),
            Self::Complete => (Status::Completed.as_str(), None),
            Self::Settled(status, reply) => (status.as_str(), reply.as_deref()),
        };
        Some(Ending { status, reply, xact: claimed, epoch: None })
    }
}

impl<D: Driver> Inbox<D> {
    /// Runs the handler when the key is won, and answers from the stored outcome when not.
    pub(super) async fn answer<H: Handler<D>>(
        &self,
        transaction: &mut D::Transaction,
        handler: &H,
        message: H::Message,
        delivery: &Delivery<impl Deref<Target = Received>, D>,
        claim: Claim,
    ) -> Result<Uncommitted<H::Reply>, Failure> {
        let is_shadowed = self.shared.settings.is_shadow && !matches!(claim, Claim::Won(_));
        match claim {
            Claim::Won(_) => {}
            suppressed if is_shadowed => self.count_shadowed(delivery, &suppressed),
            known => {
                let replay =
                    Box::pin(self.replay(transaction, &delivery.identity, &delivery.received, known));
                return Ok(self.database.answered("replay", replay).await.flatten()?);
            }
        }
        let limit = self.database.limits().handler_timeout;
        let message_context = self.message_context(delivery, limit);
        let cx = Context { transaction: TransactionOf(&mut *transaction), message: message_context };
        let span =
            trace::span(&self.shared.settings.scope, delivery.identity.key.as_str(), &delivery.received);
        let _run = self.shared.counters.claims.running.begin();
        let begun = Instant::now();
        let code = async { handler.handle(cx, message).await }.instrument(span.clone());
        let ended = handler_call::call(begun + limit, code).await;
        if let Some(cause) = trace::cause(&ended) {
            trace::failed(&span, cause);
        }
        let locked_since = (!is_shadowed).then_some(begun);
        let outcome = match ended {
            CallEnd::Returned(Ok(outcome)) => outcome,
            CallEnd::Returned(Err(error)) => return Err(handler_error::<D>(error, transaction)),
            CallEnd::Panicked(panic) => return Err(Failure::panicked(&panic, locked_since)),
            CallEnd::TimedOut => return Err(Failure::timed_out(limit, locked_since)),
        };
        let mut uncommitted = match outcome {
            Outcome::Done(reply) => settled(Status::Completed, Answer::Done(reply))?,
            Outcome::Reject(reply) => settled(Status::Rejected, Answer::Rejected(reply))?,
            Outcome::Retry(after) => return Err(Failure::RetryAfter(after)),
            Outcome::Snooze { after, reason } => return Err(Failure::Snoozed(after, reason)),
            Outcome::Dead(reason) => return Err(Failure::Dead(reason)),
        };
        if is_shadowed {
            // The outcome of the first copy is stored, or will be; this copy stores none.
            uncommitted.write = Write::Complete;
        }
        Ok(uncommitted)
    }

    /// A handler's view of its message.
    pub(super) fn message_context<'a>(
        &'a self,
        delivery: &'a Delivery<impl Deref<Target = Received>, D>,
        limit: Duration,
    ) -> MessageContext<'a, D> {
        MessageContext {
            scope: self.scope(),
            key: &delivery.identity.key,
            tenant: &delivery.identity.tenant,
            received: &delivery.received,
            locks: self.entity_locks(limit),
            deferred: &delivery.deferred,
        }
    }

    /// Sends the writes that the handler left to the commit, when it shares the commit with other
    /// messages.
    pub(super) async fn write_deferred<R>(
        &self,
        transaction: &mut D::Transaction,
        delivery: &Delivery<impl Deref<Target = Received>, D>,
        uncommitted: Uncommitted<R>,
    ) -> Result<Uncommitted<R>, Failure> {
        let limit = self.database.limits().handler_timeout;
        let send = delivery.deferred.write(&self.database, transaction);
        match timeout(limit, send).await {
            Ok(Ok(())) => Ok(uncommitted),
            Ok(Err(error)) => Err(handler_error::<D>(error.into_handler_error(), transaction)),
            Err(_) => Err(Failure::timed_out(limit, None)),
        }
    }

    /// Counts a message that an inbox which is not a shadow would suppress.
    fn count_shadowed(&self, delivery: &Delivery<impl Deref<Target = Received>, D>, claim: &Claim) {
        let (scope, key) = (&self.shared.settings.scope, delivery.identity.key.as_str());
        let would_be = match claim {
            Claim::Won(_) => return,
            Claim::InFlight | Claim::Alone => "in flight",
            Claim::Copy(_) => "answered from the stored outcome",
            Claim::Mismatch(_) => "a dead letter, as the same key with another payload",
        };
        self.note_duplicate(&delivery.received, claim);
        add(&self.shared.counters.shadowed);
        let subject = delivery.received.subject();
        info!(scope, key, subject, "handled in shadow mode; it would be {would_be}");
    }

    /// Answers a message whose key was not won: a copy from the stored row; one of another payload
    /// is recorded as a dead letter.
    pub(super) async fn replay<R, W>(
        &self,
        transaction: &mut D::Transaction,
        identity: &Identity,
        received: &Received,
        claim: Claim<W>,
    ) -> Result<Uncommitted<R>, Error> {
        self.note_duplicate(received, &claim);
        let verdict = match claim {
            Claim::Won(_) | Claim::InFlight | Claim::Alone => Verdict::InFlight,
            Claim::Copy(Stored { status: Status::Dead, outcome, .. }) => {
                let reason = String::from_utf8_lossy(outcome.as_deref().unwrap_or_default());
                Verdict::Dead { reason: reason.into_owned() }
            }
            Claim::Copy(stored) => Verdict::Replayed(StoredAnswer::new(identity.key.as_str(), stored)),
            Claim::Mismatch(_) => {
                let owner = (identity.tenant.as_str(), Some(identity.key.as_str()));
                let scope = &self.shared.settings.scope;
                self.records
                    .record_dead_letter(transaction, scope, owner, received.record(), MISMATCH)
                    .await?;
                return Ok(Uncommitted { verdict: Verdict::Mismatch, write: Write::Complete });
            }
        };
        Ok(Uncommitted { verdict, write: Write::Nothing })
    }

    /// Counts a message whose key has ended.
    fn note_duplicate<W>(&self, received: &Received, claim: &Claim<W>) {
        let stored = match claim {
            Claim::Copy(stored) => Some(stored),
            Claim::Mismatch(stored) => stored.as_ref(),
            Claim::Won(_) | Claim::InFlight | Claim::Alone => return,
        };
        self.duplicate_hint.note_duplicate();
        let message_id = stored.and_then(|stored| stored.message_id);
        self.shared.counters.causes.add(Cause::of(received, message_id));
    }

    /// Counts a message that is committed, or was found committed or in flight.
    pub(crate) fn count<R>(&self, verdict: &Verdict<R>, received: &Received, identity: &Identity) {
        self.shared.count(verdict, received, &identity.key, self.database.limits().retention);
    }
}

/// The rest of the transaction when the handler is done.
pub(super) fn settled<R: serde::Serialize>(
    status: Status,
    answer: Answer<R>,
) -> Result<Uncommitted<R>, Failure> {
    let (Answer::Done(reply) | Answer::Rejected(reply)) = &answer;
    let outcome = encode(reply).map_err(Failure::Dead)?;
    // The claim has stored "completed" without a reply already.
    let write = match (status, outcome) {
        (Status::Completed, None) => Write::Complete,
        (status, outcome) => Write::Settled(status, outcome),
    };
    Ok(Uncommitted { verdict: Verdict::Handled(answer), write })
}

fn handler_error<D: Driver>(error: HandlerError, transaction: &D::Transaction) -> Failure {
    // When the connection is closed, the class that the handler gave the error does not matter.
    if D::is_lost(transaction) {
        return Failure::Broken(RUN_HANDLER, error.into_source());
    }
    match error.class_through(|error| D::cause(error)) {
        Class::Unavailable => Failure::Broken(RUN_HANDLER, error.into_source()),
        Class::Conflict => Failure::Conflict(error.to_string()),
        Class::Failed => Failure::Failed(error.to_string()),
    }
}
