//! One message between its BEGIN and its COMMIT.

use oncebox_claims::{
    failure::{ABORTED, Class, ENDED_BY_HANDLER},
    handler_call::{self, CallEnd},
    identity::Identity,
    reply::encode,
    stored::{Status, Stored},
};
use oncebox_schema::Driver;
use tokio::time::{Instant, timeout};
use tracing::Instrument;

use super::{
    Inbox,
    calls::{Claimed, class, roll_back},
    handler::{Context, Handler},
};
use crate::{
    Answer, Error, HandlerError, Outcome, Received, StoredAnswer, Verdict,
    decode::decode,
    duplicate::Cause,
    runner::{Failure, RUN_HANDLER},
    trace,
};

impl<D: Driver> Inbox<D> {
    /// Claims the key, runs the handler when it is new, and commits. Behind a commit an empty
    /// transaction is `open`, for the next message; before the first, and behind everything else,
    /// none.
    pub(super) async fn attempt<H: Handler<Transaction = D::Transaction>>(
        &self,
        open: &mut Option<D::Transaction>,
        handler: &H,
        received: &Received,
        identity: &Identity,
    ) -> Result<Verdict<H::Reply>, Failure> {
        let asked = Instant::now();
        let mut transaction = match open.take() {
            Some(transaction) => transaction,
            None => self.begin(self.limits.isolation_level).await?,
        };
        let claim = self.claim_or_answer(D::connection(&mut transaction), identity, received);
        let claimed = timeout(self.answer_max(), claim).await;
        self.shared.counters.claims.claim_time.observe(asked, 1);
        let claimed = match claimed {
            Ok(Ok(Claimed { id: Some(id), .. })) => Ok(id),
            Ok(Ok(claimed)) => Err(Ok(self.verdict(identity, received, claimed))),
            Err(elapsed) => Err(Err(Error::Unavailable("claim the key", elapsed.into()))),
            Ok(Err(error)) => Err(match class::<D>(&error) {
                // A copy was committed after the snapshot: the next run sees it.
                Class::Conflict => Ok(Verdict::InFlight),
                Class::Unavailable => Err(Error::Unavailable("claim the key", error.into())),
                Class::Failed => Err(Error::Refused("claim the key", error.into())),
            }),
        };
        let claimed = match claimed {
            Ok(id) => id,
            // Perhaps an earlier handler has changed the session: its role, or that it only reads.
            Err(Err(error)) => {
                self.end_session(transaction).await;
                return Err(error.into());
            }
            Err(Ok(known)) => {
                roll_back::<D>(transaction).await;
                return Ok(known);
            }
        };
        let failure = match self.handle(handler, &mut transaction, received, identity).await {
            Ok(answer) => match self.commit(D::connection(&mut transaction)).await {
                Ok(()) => {
                    *open = Some(transaction);
                    return Ok(Verdict::Handled(answer));
                }
                // It may be committed: the next run finds out.
                Err(unknown @ Failure::Ours(_)) => return Err(unknown),
                Err(failure) => failure,
            },
            Err(failure) => failure,
        };
        let is_idle = self.roll_back_failed(transaction, &failure).await;
        if let Failure::Abandoned { locked_since: Some(since), .. } = &failure
            && !is_idle
        {
            self.end_holder(identity, *since).await;
        }
        let is_committed = self.is_committed(identity, claimed).await?;
        Err(if is_committed { failure.committed(claimed) } else { failure })
    }

    /// Claims a key as new, and asks what is known of it when it is not.
    async fn claim_or_answer(
        &self,
        connection: &mut D::Connection,
        identity: &Identity,
        received: &Received,
    ) -> Result<Claimed, D::Error> {
        if !self.duplicate_hint.expects_duplicate()
            && let Some(id) = self.claim(connection, identity, received).await?
        {
            return Ok(Claimed { answer: "new".to_owned(), outcome: None, reason: None, id: Some(id) });
        }
        let claimed = self.look_up(connection, identity, received).await?;
        let id = claimed.id.filter(|_| claimed.answer == "new");
        Ok(Claimed { id, ..claimed })
    }

    /// What a claim that did not win says of the message.
    fn verdict<R>(&self, identity: &Identity, received: &Received, claimed: Claimed) -> Verdict<R> {
        let status = match claimed.answer.as_str() {
            "replayed" => Status::Completed,
            "rejected" => Status::Rejected,
            "dead" => Status::Dead,
            "mismatch" => return Verdict::Mismatch,
            _ => return Verdict::InFlight,
        };
        // The function does not tell which row of the outbox it was: a copy of the payload is taken
        // for a copy of the row.
        self.duplicate_hint.note_duplicate();
        self.shared.counters.causes.add(Cause::of(received, received.id()));
        if status == Status::Dead {
            return Verdict::Dead { reason: claimed.reason.unwrap_or_default() };
        }
        let outcome = claimed.outcome.map(String::into_bytes);
        let stored = Stored { status, fingerprint: Vec::new(), outcome, message_id: None, is_expired: false };
        Verdict::Replayed(StoredAnswer::new(identity.key.as_str(), stored))
    }

    /// Runs the handler, and stores its outcome.
    async fn handle<H: Handler<Transaction = D::Transaction>>(
        &self,
        handler: &H,
        transaction: &mut D::Transaction,
        received: &Received,
        identity: &Identity,
    ) -> Result<Answer<H::Reply>, Failure> {
        let message = decode(received).map_err(Failure::Dead)?;
        let limit = self.limits.handler_timeout;
        let key = &identity.key;
        let span = trace::span(self.shared.scope(), key.as_str(), received);
        let _run = self.shared.counters.claims.running.begin();
        let begun = Instant::now();
        let mut cx = Context { transaction: &mut *transaction, key, tenant: &identity.tenant, received };
        let code = async { handler.handle(&mut cx, message).await }.instrument(span.clone());
        let ended = handler_call::call(begun + limit, code).await;
        if !matches!(ended, CallEnd::Returned(Ok(_))) {
            trace::failed(&span);
        }
        let (answer, status) = match ended {
            CallEnd::Returned(Ok(Outcome::Done(reply))) => (Answer::Done(reply), Status::Completed),
            CallEnd::Returned(Ok(Outcome::Reject(reply))) => (Answer::Rejected(reply), Status::Rejected),
            CallEnd::Returned(Ok(Outcome::Retry(after))) => return Err(Failure::RetryAfter(after)),
            CallEnd::Returned(Ok(Outcome::Snooze { after, reason })) => {
                return Err(Failure::Snoozed(after, reason));
            }
            CallEnd::Returned(Ok(Outcome::Dead(reason))) => return Err(Failure::Dead(reason)),
            CallEnd::Returned(Err(error)) => return Err(of_handler::<D>(error)),
            CallEnd::Panicked(panic) => return Err(Failure::panicked(&panic, Some(begun))),
            CallEnd::TimedOut => return Err(Failure::timed_out(limit, Some(begun))),
        };
        let (Answer::Done(reply) | Answer::Rejected(reply)) = &answer;
        let outcome = encode(reply).map_err(Failure::Dead)?;
        // The claim has stored that it is completed, without a reply.
        if (status, &outcome) != (Status::Completed, &None) {
            let settle = self.settle(D::connection(transaction), identity, status, outcome);
            match timeout(self.answer_max(), settle).await {
                Ok(settled) => settled.map_err(of_ours::<D>)?,
                Err(elapsed) => return Err(Failure::Broken("store the outcome", elapsed.into())),
            }
        }
        Ok(answer)
    }

    /// Commits, and begins the next transaction.
    async fn commit(&self, connection: &mut D::Connection) -> Result<(), Failure> {
        let error = match timeout(self.answer_max(), D::batch(connection, &self.calls.commit)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(elapsed) => return Err(Error::Unavailable("commit", elapsed.into()).into()),
        };
        Err(match class::<D>(&error) {
            Class::Unavailable => Error::Unavailable("commit", error.into()).into(),
            Class::Conflict => Failure::Conflict(error.to_string()),
            Class::Failed => of_ours::<D>(error),
        })
    }
}

/// What the handler's error asks for.
fn of_handler<D: Driver>(error: HandlerError) -> Failure {
    match error.class_through(|error| D::cause(error)) {
        Class::Unavailable => Failure::Broken(RUN_HANDLER, error.into_source()),
        Class::Conflict => Failure::Conflict(error.to_string()),
        Class::Failed => Failure::Failed(error.to_string()),
    }
}

/// What it means that the outcome cannot be stored, or committed.
fn of_ours<D: Driver>(error: D::Error) -> Failure {
    let state = match D::cause(&error) {
        Some(oncebox_schema::Cause::Refused { state, .. }) => state,
        _ => String::new(),
    };
    let reason = match state.as_str() {
        "25P02" => ABORTED,
        // The first is that of a cursor which has ended with the claim's transaction.
        "34000" | "OB010" => ENDED_BY_HANDLER,
        _ => return of_handler::<D>(error.into()),
    };
    Failure::Failed(reason.to_owned())
}
