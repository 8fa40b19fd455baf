//! How a run ends: with the claim's end, or with another run.

use std::{any::Any, error::Error as StdError, panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use oncebox_claims::{
    backoff::Backoff,
    database::{Borrowed, failed},
    failure::{Class, bounded, classify, text},
    leased::{END_MAX, Lost, Meaning, TRANSACTION_MAX},
    metrics::add,
    reply::{encode, panic_text},
    stored::Status,
    transactional::Deferred,
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::warn;

use super::{LeasedHandler, Run};
use crate::{
    Answer, Context, Error, HandlerError, Verdict,
    inbox::{breaks::Blame, dead_lettering::broken, turn::RUN},
};

const CONFLICT_ROUNDS: u64 = 5;
const CONFLICT_PAUSE: Backoff = Backoff { first: Duration::from_millis(5), max: Duration::from_millis(100) };
/// How long giving up a claim may take when PostgreSQL was away a moment ago.
const PARTING_MAX: Duration = Duration::from_secs(1);

/// Why a run does not end its claim.
#[derive(Debug)]
pub(super) enum Failure {
    /// The handler asked to run again after this time.
    Asked(Duration),
    /// The handler cannot go on for now, for a reason that is not the message's.
    Parked(Duration, String),
    /// The handler, or the provider, gave up.
    Dead(String),
    /// Anything else.
    Failed(String),
}

/// How an attempt to end a claim went.
enum Ended {
    Committed,
    Lost(Lost),
    Conflict(String),
    Failed(String),
    /// The connection broke; what was done, and the error. The claim may have ended: the next run
    /// finds out.
    Broken(&'static str, Source),
}

type Source = Box<dyn StdError + Send + Sync>;

impl Failure {
    pub(super) fn panicked(panic: &(dyn Any + Send)) -> Self {
        Self::Failed(format!("the handler panicked: {}", panic_text(panic)))
    }

    pub(super) fn timed_out(limit: Duration) -> Self {
        Self::Failed(format!("the handler took longer than {limit:?}"))
    }
}

/// Nothing was written, and nothing is called any more.
pub(super) fn lost<R>(lost: Lost) -> Result<Verdict<R>, Error> {
    match lost {
        Lost::TakenOver => Ok(Verdict::InFlight),
        Lost::Unconfirmed(error) => Err(error),
    }
}

impl Run<'_> {
    /// Ends the claim as completed or rejected, together with the handler's last writes.
    pub(super) async fn finish<H: LeasedHandler>(
        &self,
        handler: &H,
        answer: Answer<H::Reply>,
        end: Instant,
    ) -> Result<Verdict<H::Reply>, Error> {
        if self.claim.open_effects().is_some() {
            return self.fail(Failure::Failed("the handler went on after an effect".to_owned())).await;
        }
        let (Answer::Done(reply) | Answer::Rejected(reply)) = &answer;
        let outcome = match encode(reply) {
            Ok(outcome) => outcome,
            Err(reason) => return self.fail(Failure::Failed(reason)).await,
        };
        let mut round = 1;
        loop {
            match self.finish_once(handler, &answer, outcome.as_deref(), end).await? {
                Ended::Committed => break,
                Ended::Lost(why) => return lost(why),
                Ended::Conflict(_) if round < CONFLICT_ROUNDS => {
                    sleep(CONFLICT_PAUSE.after(round)).await;
                    round += 1;
                }
                Ended::Conflict(reason) | Ended::Failed(reason) => {
                    return self.fail(Failure::Failed(reason)).await;
                }
                Ended::Broken(what, source) => return self.broken(what, source).await,
            }
        }
        let verdict = Verdict::Handled(answer);
        self.leased.inbox.count_verdict(&verdict, self.received, &self.identity);
        Ok(verdict)
    }

    async fn finish_once<H: LeasedHandler>(
        &self,
        handler: &H,
        answer: &Answer<H::Reply>,
        outcome: Option<&[u8]>,
        end: Instant,
    ) -> Result<Ended, Error> {
        let database = self.leased.inbox.database();
        let mut borrowed = Borrowed::new(database.connect().await?);
        let transaction = database.begin(borrowed.object()).await?;
        if !self.claim.open(&transaction, TRANSACTION_MAX).await? {
            return Ok(Ended::Lost(self.claim.lost()));
        }
        let deferred = Deferred::default();
        let cx = Context {
            transaction: &transaction,
            key: &self.identity.key,
            tenant: &self.identity.tenant,
            received: self.received,
            locks: self.leased.inbox.entity_locks(end.saturating_duration_since(Instant::now())),
            deferred: &deferred,
        };
        let writing = AssertUnwindSafe(async {
            handler.finish(&cx, answer).await?;
            Ok(deferred.send(&transaction).await?)
        })
        .catch_unwind();
        match self.claim.keep(timeout_at(end, writing)).await {
            Ok(Ok(Ok(Ok(())))) => {}
            Ok(Ok(Ok(Err(error)))) => return Ok(write_failed(error)),
            Ok(Ok(Err(panic))) => {
                return Ok(Ended::Failed(format!("the handler panicked: {}", panic_text(&*panic))));
            }
            Ok(Err(_)) => return Ok(Ended::Failed("the handler took too long to finish".to_owned())),
            Err(why) => return Ok(Ended::Lost(why)),
        }
        let status = match answer {
            Answer::Done(_) => Status::Completed,
            Answer::Rejected(_) => Status::Rejected,
        };
        let ending = async {
            if self.claim.end_in(&transaction, status, outcome).await? {
                database.commit(&transaction).await.map(|()| true)
            } else {
                Ok(false)
            }
        };
        // Not beside the renewal, to which a claim that has just ended would look lost.
        let ended = match timeout(END_MAX, ending).await {
            Ok(Ok(true)) => Ended::Committed,
            Ok(Ok(false)) => return Ok(Ended::Lost(self.claim.lost())),
            Ok(Err(error)) => return Ok(of_end(error)),
            Err(elapsed) => return Err(Error::Unavailable("end a claim", elapsed.into())),
        };
        drop(transaction);
        borrowed.give_back();
        Ok(ended)
    }

    /// A run broke: an outage, or the message itself?
    async fn broken<R: DeserializeOwned>(
        &self,
        what: &'static str,
        source: Source,
    ) -> Result<Verdict<R>, Error> {
        let inbox = &self.leased.inbox;
        match inbox.blame(&self.identity).await {
            Blame::Nobody => {
                self.part(&text(&*source)).await;
                Err(Error::Unavailable(what, source))
            }
            Blame::Unclear => self.fail(Failure::Parked(inbox.pause(1), broken(&*source))).await,
            Blame::Message => self.fail(Failure::Failed(broken(&*source))).await,
        }
    }

    /// What an error of the handler means.
    pub(super) async fn handler_failed<R: DeserializeOwned>(
        &self,
        error: HandlerError,
    ) -> Result<Verdict<R>, Error> {
        match Meaning::of(error.source()) {
            Some(Meaning::LeaseLost) => lost(self.claim.lost()),
            Some(Meaning::Rejected) => self.fail(Failure::Dead(error.to_string())).await,
            // One of our own statements.
            Some(Meaning::Unavailable) => {
                self.part(&error.to_string()).await;
                Err(Error::Unavailable(RUN, error.into_source()))
            }
            None if error.class() == Class::Unavailable => self.broken(RUN, error.into_source()).await,
            Some(Meaning::Other) | None => self.fail(Failure::Failed(error.to_string())).await,
        }
    }

    /// Gives the claim up if PostgreSQL is back already, so that the next run need not wait for the
    /// lease's end. It was no attempt.
    async fn part(&self, reason: &str) {
        let pause = self.leased.inbox.pause(1);
        let _ = timeout(PARTING_MAX, self.claim.park(pause, reason)).await;
    }

    /// Again later, or never again.
    pub(super) async fn fail<R: DeserializeOwned>(&self, failure: Failure) -> Result<Verdict<R>, Error> {
        let inbox = &self.leased.inbox;
        let retries = inbox.retries();
        let attempt = match &failure {
            Failure::Dead(_) | Failure::Parked(..) => 0,
            Failure::Asked(_) | Failure::Failed(_) => self.claim.lease().attempts(),
        };
        let (after, reason) = match failure {
            Failure::Dead(reason) => return self.bury(reason).await,
            Failure::Parked(after, reason) => return self.park(after, reason).await,
            Failure::Asked(after) => (after.min(retries.backoff.max), "the handler asked for it".to_owned()),
            Failure::Failed(reason) => (inbox.pause(attempt), reason),
        };
        let reason = self.claim.explained(&reason);
        if attempt >= retries.deliveries_max {
            return self
                .bury(format!("delivery limit of {} reached: {reason}", retries.deliveries_max))
                .await;
        }
        if !self.claim.release(after, &reason).await? {
            return lost(self.claim.lost());
        }
        let (scope, key, after_seconds) = (inbox.scope(), self.identity.key.as_str(), after.as_secs_f64());
        warn!(scope, key, attempt, after_seconds, "not ended, to be repeated: {reason}");
        let verdict = Verdict::Retry { after, reason };
        inbox.count_verdict(&verdict, self.received, &self.identity);
        Ok(verdict)
    }

    /// Lets the claim rest, and takes back that it was an attempt.
    async fn park<R: DeserializeOwned>(&self, after: Duration, reason: String) -> Result<Verdict<R>, Error> {
        let after = match self.leased.inbox.park(&self.identity, self.received, after, &reason).await? {
            Ok(after) => after,
            Err(reason) => return self.bury(reason).await,
        };
        let reason = format!("parked: {reason}");
        if !self.claim.park(after, &reason).await? {
            return lost(self.claim.lost());
        }
        Ok(Verdict::Retry { after, reason })
    }

    /// Gives the key up: its end as dead and its dead letter in one transaction. What it did outside the database is
    /// told, and stays remembered.
    pub(super) async fn bury<R: DeserializeOwned>(&self, reason: String) -> Result<Verdict<R>, Error> {
        let reason = bounded(&self.claim.explained(&reason));
        let inbox = &self.leased.inbox;
        let database = self.leased.inbox.database();
        let mut borrowed = Borrowed::new(database.connect().await?);
        let transaction = database.begin(borrowed.object()).await?;
        let owner = (self.identity.tenant.as_str(), Some(self.identity.key.as_str()));
        let burying = async {
            inbox.records().dead_letter(&transaction, inbox.scope(), owner, self.received, &reason).await?;
            inbox.records().forget_snoozes(&transaction, inbox.scope(), &self.identity).await?;
            let ended = self.claim.end_in(&transaction, Status::Dead, Some(reason.as_bytes())).await;
            if !ended.map_err(failed("end a claim"))? {
                return Ok(false);
            }
            database.commit(&transaction).await.map_err(failed("commit a dead letter"))?;
            Ok(true)
        };
        let buried = timeout(END_MAX, burying).await;
        if !buried.unwrap_or_else(|elapsed| Err(Error::Unavailable("end a claim", elapsed.into())))? {
            return lost(self.claim.lost());
        }
        drop(transaction);
        borrowed.give_back();
        add(&inbox.counters().dead);
        let (scope, key) = (inbox.scope(), self.identity.key.as_str());
        warn!(scope, key, subject = self.received.subject(), "dead letter: {reason}");
        Ok(Verdict::Dead { reason })
    }
}

/// What an error of the handler's last writes means.
fn write_failed(error: HandlerError) -> Ended {
    match error.class() {
        Class::Conflict => Ended::Conflict(error.to_string()),
        Class::Failed => Ended::Failed(error.to_string()),
        Class::Unavailable => Ended::Broken("finish the handler", error.into_source()),
    }
}

/// What a failed end means.
fn of_end(error: tokio_postgres::Error) -> Ended {
    match classify(&error) {
        Class::Unavailable => Ended::Broken("end a claim", error.into()),
        Class::Conflict => Ended::Conflict(text(&error)),
        Class::Failed if error.code().is_some_and(|state| state.code() == "25P02") => Ended::Failed(
            "the handler went on after a statement had failed; the transaction was aborted".to_owned(),
        ),
        Class::Failed => Ended::Failed(text(&error)),
    }
}
