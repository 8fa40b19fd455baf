//! The messages of one transaction, and its savepoints.
//!
//! The statement that sets a message's savepoint also releases the one before it. It fails when the
//! handler of the message before went on after an error of PostgreSQL's, or ended the transaction.

use std::time::Duration;

use oncebox_claims::{
    Claim,
    database::failed,
    failure::{CommitError, text},
    identity::Identity,
    stored::Settlement,
    transactional::{Session, TransactionId},
};
use oncebox_schema::Transaction;
use tokio::time::{Instant, timeout};
use tokio_postgres::error::SqlState;

use crate::{
    Error, Handler, Inbox, Received, Verdict,
    decode::decode,
    recording::Ended,
    runner::{
        attempt::{Uncommitted, Write},
        delivery::Delivery,
        failure::Failure,
    },
};

/// How long to wait for a statement that outlives its handler.
const BACK_WITHIN: Duration = Duration::from_secs(2);

const SAVE: &str = "SAVEPOINT oncebox_message";
const SAVE_NEXT: &str = "RELEASE SAVEPOINT oncebox_message; SAVEPOINT oncebox_message";
pub(super) const RELEASE: &str = "RELEASE SAVEPOINT oncebox_message";
const BACK: &str = "ROLLBACK TO SAVEPOINT oncebox_message";

/// The result of a message, once its round is committed.
pub(super) enum Part<R> {
    /// The message was not run.
    NotRun,
    /// Its verdict, from its own run or from an earlier copy.
    Verdict(Verdict<R>, Write),
    /// To be run by itself: its key is stored but older than its retention, or an earlier run of it
    /// left no trace, or it has no attempt left.
    ByItself,
    /// The message failed and was rolled back.
    Failed(Failure),
    /// The message was rolled back, which was not its fault.
    Error(Error),
}

/// The round has no effect.
pub(crate) struct Lost {
    pub(super) reason: String,
    /// The message that is known to have failed, by its place.
    pub(super) culprit: Option<(usize, Failure)>,
    /// The session in which a statement still runs.
    pub(super) session: Option<Session>,
}

impl Lost {
    pub(super) fn new(error: &Error) -> Self {
        Self::because(text(error))
    }

    pub(super) fn because(reason: String) -> Self {
        Self { reason, culprit: None, session: None }
    }

    fn commit(error: CommitError) -> Self {
        match error {
            CommitError::Lost(error) => Self::new(&Error::Unavailable("run a batch", error)),
            CommitError::Conflict(reason) | CommitError::Refused(reason) => Self::because(reason),
        }
    }

    pub(super) fn statement(error: tokio_postgres::Error) -> Self {
        Self::new(&failed("run a batch")(error))
    }
}

/// Bounds the time of PostgreSQL's answer.
pub(super) async fn answered<T>(inbox: &Inbox, answer: impl Future<Output = T>) -> Result<T, Lost> {
    inbox.database.answered("run a batch", answer).await.map_err(|error| Lost::new(&error))
}

/// How far the transaction has come.
#[derive(Clone, Copy)]
pub(super) enum Savepoint {
    /// No savepoint was set yet.
    None,
    /// Nothing was written after it.
    Fresh,
    /// This message was run after it.
    Behind(usize),
}

pub(crate) struct Round<'a, H: Handler> {
    pub(super) inbox: &'a Inbox,
    pub(super) transaction: &'a mut Transaction,
    pub(super) handler: &'a H,
    pub(super) deliveries: &'a [Delivery<&'a Received>],
    pub(super) parts: Vec<Part<H::Reply>>,
    pub(super) savepoint: Savepoint,
    pub(super) session: Option<Session>,
    /// The transaction that has claimed the keys.
    pub(super) claimed: TransactionId,
    /// When it takes no more messages.
    pub(super) end: Instant,
}

impl<H: Handler> Round<'_, H> {
    pub(super) fn is_ended(&self, index: usize) -> bool {
        !matches!(self.parts[index], Part::NotRun)
    }

    /// Whether a message lost a race: two transactions may want each other's rows, so this one
    /// ends.
    pub(super) fn has_conflict(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Failed(Failure::Conflict(_))))
    }

    /// Whether an earlier message of its ordering key has no effect yet, or is a dead letter that
    /// the next round has it wait for.
    pub(super) fn is_held_up(&self, index: usize) -> bool {
        let Some(key) = self.deliveries[index].received.ordering_key() else { return false };
        let earlier = self.deliveries.iter().zip(&self.parts).take(index);
        let mut line = earlier.filter(|(delivery, _)| delivery.received.ordering_key() == Some(key));
        let waits = self.inbox.shared.lines.keeps();
        line.any(|(_, part)| match part {
            Part::Verdict(Verdict::InFlight, _) => true,
            Part::Verdict(Verdict::Dead { .. } | Verdict::Mismatch, _) => waits,
            Part::Verdict(..) => false,
            Part::Failed(failure) => waits || !matches!(failure, Failure::Dead(_)),
            Part::NotRun | Part::ByItself | Part::Error(_) => true,
        })
    }

    /// Runs a message whose key was won.
    pub(super) async fn run(&mut self, index: usize) -> Result<(), Lost> {
        self.save().await?;
        // The message before it may have failed only now.
        if self.is_held_up(index) {
            return Ok(());
        }
        let delivery = &self.deliveries[index];
        let message = match decode(delivery.received) {
            Ok(message) => message,
            Err(reason) => {
                self.parts[index] = Part::Failed(Failure::Dead(reason));
                return Ok(());
            }
        };
        let answered = self
            .inbox
            .answer(self.transaction, self.handler, message, delivery, Claim::Won(self.claimed))
            .await;
        let answered = match answered {
            Ok(uncommitted) => self.inbox.write_deferred(self.transaction, delivery, uncommitted).await,
            error => error,
        };
        self.savepoint = Savepoint::Behind(index);
        let part = match answered {
            Ok(Uncommitted { verdict, write }) => {
                self.parts[index] = Part::Verdict(verdict, write);
                return Ok(());
            }
            Err(Failure::Ours(error)) => Part::Error(error),
            Err(failure) => Part::Failed(failure),
        };
        match self.back().await {
            Ok(()) => {
                self.parts[index] = part;
                Ok(())
            }
            Err(lost) => Err(match part {
                Part::Failed(failure @ Failure::Abandoned { .. }) => {
                    Lost { culprit: Some((index, failure)), ..lost }
                }
                _ => lost,
            }),
        }
    }

    /// Sets the savepoint of the next message. Its handler must not begin before that is known to
    /// have worked: a handler before it may have ended the transaction, and then the writes of the
    /// next one would be committed by themselves, without its key.
    pub(super) async fn save(&mut self) -> Result<(), Lost> {
        let sql = match self.savepoint {
            Savepoint::None => SAVE,
            Savepoint::Fresh => return Ok(()),
            Savepoint::Behind(_) => SAVE_NEXT,
        };
        match answered(self.inbox, self.transaction.batch_execute(sql)).await? {
            Ok(()) => {
                self.savepoint = Savepoint::Fresh;
                Ok(())
            }
            Err(error) => self.undo(error).await,
        }
    }

    /// The savepoint of the message that was run last could not be released: back to it.
    async fn undo(&mut self, error: tokio_postgres::Error) -> Result<(), Lost> {
        match self.savepoint {
            Savepoint::Behind(last) if error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) => {
                self.back().await?;
                self.parts[last] = Part::Failed(Failure::of_commit(CommitError::of(error)));
                Ok(())
            }
            _ => Err(Lost::statement(error)),
        }
    }

    pub(super) async fn back(&mut self) -> Result<(), Lost> {
        match timeout(BACK_WITHIN, self.transaction.batch_execute(BACK)).await {
            Ok(Ok(())) => {
                self.savepoint = Savepoint::Fresh;
                Ok(())
            }
            Ok(Err(error)) => Err(Lost::statement(error)),
            Err(_) => {
                let reason = "a statement of a handler still runs".to_owned();
                Err(Lost { reason, culprit: None, session: self.session.take() })
            }
        }
    }

    /// Stores the outcomes and commits. `won` says whose keys this transaction has claimed.
    pub(super) async fn commit(mut self, won: &[bool]) -> Result<Vec<Part<H::Reply>>, Lost> {
        if let Savepoint::Behind(_) = self.savepoint
            && let Err(error) = answered(self.inbox, self.transaction.batch_execute(RELEASE)).await?
        {
            self.undo(error).await?;
        }
        let mut settled: Vec<(&Identity, Settlement<'_>)> = Vec::new();
        let mut released = Vec::new();
        let mut is_worth_it = false;
        for ((delivery, part), won) in self.deliveries.iter().zip(&self.parts).zip(won) {
            match part {
                Part::Verdict(_, Write::Nothing) | Part::ByItself => {}
                Part::Verdict(_, Write::Complete) => is_worth_it = true,
                Part::Verdict(_, Write::Settled(status, outcome)) => {
                    let settlement = Settlement { status: *status, outcome: outcome.as_deref() };
                    settled.push((&delivery.identity, settlement));
                }
                Part::NotRun | Part::Failed(_) | Part::Error(_) if *won => released.push(&delivery.identity),
                Part::NotRun | Part::Failed(_) | Part::Error(_) => {}
            }
        }
        // Else the transaction is rolled back, and the claims with it.
        if is_worth_it || !settled.is_empty() {
            let scope = &self.inbox.shared.settings.scope;
            self.record_ending(won);
            let commit = self.inbox.claims.commit_all(self.transaction, scope, &settled, &released);
            let committed = answered(self.inbox, Box::pin(commit)).await;
            self.record_ended(won, committed.as_ref().map_or(Ended::Lost, Ended::of));
            committed?.map_err(Lost::commit)?;
        }
        Ok(self.parts)
    }

    /// The messages whose ends this commit brings, and those that it leaves as they were.
    fn record_ending(&self, won: &[bool]) {
        for ((delivery, part), won) in self.deliveries.iter().zip(&self.parts).zip(won) {
            let claimed = won.then_some(self.claimed);
            match part {
                Part::Verdict(_, write) => {
                    let Some(ending) = write.ending(claimed) else { continue };
                    self.inbox.shared.record_ending(delivery.received, Some(&delivery.identity), ending);
                }
                Part::Failed(failure) => {
                    self.inbox.shared.record_failure(delivery.received, &delivery.identity, failure);
                }
                Part::NotRun | Part::ByItself | Part::Error(_) => {}
            }
        }
    }

    fn record_ended(&self, won: &[bool], ended: Ended) {
        for ((delivery, part), won) in self.deliveries.iter().zip(&self.parts).zip(won) {
            if let Part::Verdict(_, write) = part
                && write.ending(won.then_some(self.claimed)).is_some()
            {
                self.inbox.shared.record_ended(delivery.received, Some(&delivery.identity), ended);
            }
        }
    }
}
