//! How a run ends its claim: as completed or rejected, together with the handler's last writes.

use std::error::Error as StdError;

use oncebox_claims::{
    failure::{Class, CommitError},
    handler_call::{self, CallEnd},
    leased::{END_MAX, Lost, TRANSACTION_MAX},
    reply::encode,
    stored::Status,
    transactional::{Deferred, TransactionId},
};
use oncebox_schema::Transaction;
use tokio::time::{Instant, sleep, timeout};

use super::{LeasedHandler, Run, fail::lost};
use crate::{
    Answer, Context, Error, HandlerError, MessageContext, Verdict,
    handler::TransactionOf,
    recording::{Ended, Ending},
    runner::{CONFLICT_PAUSE, Failure},
};

/// How an attempt to end a claim went.
enum Finished {
    Committed,
    Lost(Lost),
    Conflict(String),
    Failed(String),
    /// The connection broke: at which operation, and the error. The claim may have ended; the next
    /// run finds out.
    Broken(&'static str, Box<dyn StdError + Send + Sync>),
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
            Err(reason) => return self.fail(Failure::Dead(reason)).await,
        };
        let mut round = 1;
        loop {
            let mut opened = None;
            let finished = self.finish_once(handler, &answer, outcome.as_deref(), end, &mut opened).await?;
            let failure = match finished {
                Finished::Committed => break,
                Finished::Lost(why) => return lost(why),
                Finished::Conflict(reason) => Failure::Conflict(reason),
                Finished::Failed(reason) => Failure::Failed(reason),
                // The commit may have been ours.
                Finished::Broken(what, source) => return self.fail(Failure::Broken(what, source)).await,
            };
            let failure = match opened {
                Some(opened) if self.claim.has_committed(opened).await? => failure.committed(opened),
                _ => failure,
            };
            match failure {
                failure if failure.run().is_repeated(round) => {
                    sleep(CONFLICT_PAUSE.after(round)).await;
                    round += 1;
                }
                Failure::Conflict(reason) => return self.fail(Failure::Failed(reason)).await,
                failure => return self.fail(failure).await,
            }
        }
        if self.claim.lease().attempts() > 1 {
            self.leased.inbox.forget_attempts_of_ended(&self.identity).await;
        }
        let verdict = Verdict::Handled(answer);
        self.leased.inbox.count(&verdict, self.received, &self.identity);
        Ok(verdict)
    }

    async fn finish_once<H: LeasedHandler>(
        &self,
        handler: &H,
        answer: &Answer<H::Reply>,
        outcome: Option<&[u8]>,
        end: Instant,
        opened: &mut Option<TransactionId>,
    ) -> Result<Finished, Error> {
        let database = &self.leased.inbox.database;
        let mut transaction = database.begin().await?;
        *opened = self.claim.open(&transaction, TRANSACTION_MAX).await?;
        if opened.is_none() {
            return Ok(Finished::Lost(self.claim.lost()));
        }
        if let Some(failed) = self.last_writes(&mut transaction, handler, answer, end).await {
            return Ok(failed);
        }
        let status = match answer {
            Answer::Done(_) => Status::Completed,
            Answer::Rejected(_) => Status::Rejected,
        };
        self.record_ending(Ending { status: status.as_str(), reply: outcome, xact: *opened, epoch: None });
        let ending = async {
            database.check_open(&mut transaction).await.map_err(CommitError::of)?;
            if self.claim.end_in(&transaction, status, outcome).await.map_err(CommitError::of)? {
                database.commit(&mut transaction).await.map(|()| true).map_err(CommitError::of)
            } else {
                Ok(false)
            }
        };
        // The renewal has stopped before, since it would take a claim that has just ended for lost.
        let ended = timeout(END_MAX, ending).await;
        self.record_ended(match &ended {
            Ok(Ok(true)) => Ended::Committed,
            Ok(Ok(false)) => Ended::Fenced,
            Ok(Err(CommitError::Conflict(_) | CommitError::Refused(_))) => Ended::Refused,
            Ok(Err(CommitError::Lost(_))) | Err(_) => Ended::Lost,
        });
        match ended {
            Ok(Ok(true)) => Ok(Finished::Committed),
            Ok(Ok(false)) => Ok(Finished::Lost(self.claim.lost())),
            Ok(Err(error)) => Ok(Finished::of_commit(error)),
            Err(elapsed) => Err(Error::Unavailable("end a claim", elapsed.into())),
        }
    }

    /// Lets the handler write. Returns how the attempt ends if that fails.
    async fn last_writes<H: LeasedHandler>(
        &self,
        transaction: &mut Transaction,
        handler: &H,
        answer: &Answer<H::Reply>,
        end: Instant,
    ) -> Option<Finished> {
        let deferred = Deferred::default();
        let message = MessageContext {
            scope: self.leased.inbox.scope(),
            key: &self.identity.key,
            tenant: &self.identity.tenant,
            received: self.received,
            locks: self.leased.inbox.entity_locks(end.saturating_duration_since(Instant::now())),
            deferred: &deferred,
        };
        let writes = async {
            let cx = Context { transaction: TransactionOf(&mut *transaction), message };
            handler.finish(cx, answer).await?;
            let written = deferred.write(&self.leased.inbox.database, transaction).await;
            written.map_err(CommitError::into_handler_error)
        };
        match self.claim.keep(handler_call::call(end, writes)).await {
            Ok(CallEnd::Returned(Ok(()))) => None,
            Ok(CallEnd::Returned(Err(error))) => Some(Finished::of_writes(error)),
            Ok(CallEnd::Panicked(panic)) => Some(Finished::Failed(format!("the handler panicked: {panic}"))),
            Ok(CallEnd::TimedOut) => Some(Finished::Failed("the handler took too long to finish".to_owned())),
            Err(why) => Some(Finished::Lost(why)),
        }
    }
}

impl Finished {
    /// The classification of an error of the handler's last writes.
    fn of_writes(error: HandlerError) -> Self {
        match error.class() {
            Class::Conflict => Self::Conflict(error.to_string()),
            Class::Failed => Self::Failed(error.to_string()),
            Class::Unavailable => Self::Broken("finish the handler", error.into_source()),
        }
    }

    /// The classification of a failed commit.
    fn of_commit(error: CommitError) -> Self {
        match error {
            CommitError::Lost(error) => Self::Broken("end a claim", error),
            CommitError::Conflict(reason) => Self::Conflict(reason),
            CommitError::Refused(reason) => Self::Failed(reason),
        }
    }
}
