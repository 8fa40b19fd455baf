//! One message between its claim and its commit.

use std::{ops::Deref, panic::AssertUnwindSafe};

use deadpool_postgres::Transaction;
use futures_util::FutureExt;
use oncebox_claims::{
    failure::Class,
    identity::Identity,
    metrics::add,
    reply::encode,
    stored::{Status, Stored},
    transactional::Claim,
};
use tokio::time::Instant;
use tracing::{Instrument, info};

use super::{Inbox, chain::Seat, ending::Failure};
use crate::{
    Answer, Context, Error, Handler, HandlerError, Outcome, Received, Verdict, duplicate::Cause, trace,
};

/// What was done when a run broke its connection.
pub(crate) const RUN: &str = "run the handler";
pub(super) const MISMATCH: &str = "the key was used before with another payload";

/// What is true once the transaction is committed.
pub(super) struct Answered<R> {
    pub(super) verdict: Verdict<R>,
    pub(super) write: Write,
}

/// What a transaction has to commit.
pub(super) enum Write {
    /// Nothing: a duplicate.
    Nothing,
    /// What is written already.
    Complete,
    /// The outcome is to be stored as well.
    Settled(Status, Option<Vec<u8>>),
}

impl Inbox {
    /// Runs the handler when the key is won, answers from what is stored when not.
    pub(super) async fn answer<H: Handler>(
        &self,
        transaction: &Transaction<'_>,
        handler: &H,
        message: H::Message,
        seat: &Seat<impl Deref<Target = Received>>,
        claim: Claim,
    ) -> Result<Result<Answered<H::Reply>, Failure>, Error> {
        let is_shadowed = self.settings.is_shadow && !matches!(claim, Claim::Won);
        match claim {
            Claim::Won => {}
            suppressed if is_shadowed => self.shadow(seat, &suppressed),
            Claim::InFlight => return Ok(Ok(Answered { verdict: Verdict::InFlight, write: Write::Nothing })),
            Claim::Stored(stored) => {
                self.caution.raise();
                let replay = Box::pin(self.replay(transaction, &seat.identity, &seat.received, stored));
                return self.database.answered("replay", replay).await.flatten().map(Ok);
            }
        }
        let limit = self.database.limits().handler_timeout;
        let cx = Context {
            transaction,
            key: &seat.identity.key,
            tenant: &seat.identity.tenant,
            received: &seat.received,
            locks: self.entity_locks(limit),
            deferred: &seat.deferred,
        };
        let span = trace::span(&self.settings.scope, seat.identity.key.as_str(), &seat.received);
        let call = async { handler.handle(&cx, message).await }.instrument(span.clone());
        let call = AssertUnwindSafe(call).catch_unwind();
        let _run = self.counters.claims.running.begin();
        let locked_since = (!is_shadowed).then(Instant::now);
        let called = tokio::time::timeout(limit, call).await;
        if !matches!(called, Ok(Ok(Ok(_)))) {
            trace::failed(&span);
        }
        let returned = match called {
            Ok(Ok(returned)) => returned,
            Ok(Err(panic)) => return Ok(Err(Failure::panicked(&*panic, locked_since))),
            Err(_) => return Ok(Err(Failure::timed_out(limit, locked_since))),
        };
        let settled = |status, answer| {
            let mut answered = settled(status, answer)?;
            if is_shadowed {
                // What is stored is the first copy's, or will be.
                answered.write = Write::Complete;
            }
            Ok(answered)
        };
        match returned {
            Ok(Outcome::Done(reply)) => Ok(settled(Status::Completed, Answer::Done(reply))),
            Ok(Outcome::Reject(reply)) => Ok(settled(Status::Rejected, Answer::Rejected(reply))),
            Ok(Outcome::Retry(after)) => Ok(Err(Failure::Asked(after))),
            Ok(Outcome::Park { after, reason }) => Ok(Err(Failure::Parked(after, reason))),
            Ok(Outcome::Dead(reason)) => Ok(Err(Failure::Dead(reason))),
            Err(error) => Ok(Err(handler_error(error, transaction))),
        }
    }

    /// Sends what the handler left to a commit that is not its message's alone.
    pub(super) async fn write_deferred<R>(
        &self,
        transaction: &Transaction<'_>,
        seat: &Seat<impl Deref<Target = Received>>,
        answered: Answered<R>,
    ) -> Result<Result<Answered<R>, Failure>, Error> {
        let limit = self.database.limits().handler_timeout;
        match tokio::time::timeout(limit, seat.deferred.send(transaction)).await {
            Ok(Ok(())) => Ok(Ok(answered)),
            Ok(Err(error)) => Ok(Err(handler_error(error.into(), transaction))),
            Err(_) => Ok(Err(Failure::timed_out(limit, None))),
        }
    }

    /// Reports what would be suppressed if the inbox were no shadow.
    fn shadow(&self, seat: &Seat<impl Deref<Target = Received>>, claim: &Claim) {
        let (scope, key) = (&self.settings.scope, seat.identity.key.as_str());
        let would_be = match claim {
            Claim::Won => return,
            Claim::InFlight => "in flight",
            Claim::Stored(stored) => {
                self.caution.raise();
                self.counters.causes.add(Cause::of(&seat.received, stored.message_id));
                match stored.fingerprint == seat.identity.fingerprint {
                    true => "answered from the stored outcome",
                    false => "a dead letter, as the same key with another payload",
                }
            }
        };
        add(&self.counters.shadowed);
        info!(
            scope,
            key,
            subject = seat.received.subject(),
            "handled in shadow mode; it would be {would_be}"
        );
    }

    /// Answers a duplicate from the stored row, after its fingerprint.
    pub(super) async fn replay<R: serde::de::DeserializeOwned>(
        &self,
        transaction: &Transaction<'_>,
        identity: &Identity,
        received: &Received,
        stored: Stored,
    ) -> Result<Answered<R>, Error> {
        let key = identity.key.as_str();
        self.counters.causes.add(Cause::of(received, stored.message_id));
        if stored.fingerprint != identity.fingerprint {
            let owner = (identity.tenant.as_str(), Some(key));
            self.records.dead_letter(transaction, &self.settings.scope, owner, received, MISMATCH).await?;
            return Ok(Answered { verdict: Verdict::Mismatch, write: Write::Complete });
        }
        let outcome = stored.outcome.as_deref();
        let reply = |outcome: Option<&[u8]>| {
            serde_json::from_slice(outcome.unwrap_or(b"null")).map_err(|source| {
                // It is a duplicate all the same, see `Next::after`.
                add(&self.counters.replayed);
                Error::StoredReply { key: key.to_owned(), source }
            })
        };
        let verdict = match stored.status {
            Status::Completed => Verdict::Replayed(Answer::Done(reply(outcome)?)),
            Status::Rejected => Verdict::Replayed(Answer::Rejected(reply(outcome)?)),
            Status::Dead => {
                Verdict::Dead { reason: String::from_utf8_lossy(outcome.unwrap_or_default()).into_owned() }
            }
        };
        Ok(Answered { verdict, write: Write::Nothing })
    }
}

pub(super) fn settled<R: serde::Serialize>(
    status: Status,
    answer: Answer<R>,
) -> Result<Answered<R>, Failure> {
    let (Answer::Done(reply) | Answer::Rejected(reply)) = &answer;
    let outcome = encode(reply).map_err(Failure::Failed)?;
    // The claim has stored "completed" without a reply already.
    let write = match (status, outcome) {
        (Status::Completed, None) => Write::Complete,
        (status, outcome) => Write::Settled(status, outcome),
    };
    Ok(Answered { verdict: Verdict::Handled(answer), write })
}

fn handler_error(error: HandlerError, transaction: &Transaction<'_>) -> Failure {
    // Whatever the handler has made of the error.
    if transaction.client().is_closed() {
        return Failure::Broken(RUN, error.into_source());
    }
    match error.class() {
        Class::Unavailable => Failure::Broken(RUN, error.into_source()),
        Class::Conflict => Failure::Conflict(error.to_string()),
        Class::Failed => Failure::Failed(error.to_string()),
    }
}
