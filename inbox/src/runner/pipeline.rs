//! Message after message over one connection, each in a transaction of its own.
//!
//! ```text
//! [BEGIN, claim 1] ─▶ handler 1 ─▶ [deferred writes 1, outcome 1, COMMIT AND CHAIN, claim 2] ─▶ handler 2 ─▶ [...
//! ```
//!
//! The pipeline sends the statements in brackets at once: besides the handler's statements, a
//! message costs one round trip, and no BEGIN of its own. Where duplicates follow each other, keys
//! are only looked up.
//!
//! The gain of each part was measured in paired rounds at 1, 16 and 64 messages in flight, on 2
//! cores with PostgreSQL 18.4 and a handler with one INSERT. The claim after the commit: 1.15, 1.15
//! and 1.3 times as many messages. The look-up before a claim: 2.6, 2.0 and 1.4 times as many
//! duplicates. The last commit by the driver, without a chain after it: 1.07 to 1.3 times as many
//! messages of [`Inbox::run`] at 16 and 64. The claim that expects a new key (see
//! `duplicate_hint.rs`): 1.04 and 1.08 times as many messages at 16 and 64, little beside the
//! noise.
//!
//! A claim that is sent after a commit must not take effect when the commit fails: there is no
//! transaction then, the claim would be committed by itself, and its message would count as handled
//! without its handler. Therefore the transactions of a pipeline carry a mark, and `claim.sql`
//! inserts nothing without it.

use std::{ops::Deref, time::Duration};

use oncebox_claims::{
    Claim,
    database::Mode,
    identity::Identity,
    stored::{COMPLETED, Settlement},
    transactional::{Committed, Ending, Expect, Next, TransactionId},
};
use oncebox_schema::Driver;
use tokio::time::Instant;

use super::{
    attempt::{Uncommitted, Write},
    delivery::{Attempt, Delivery},
    failure::Failure,
};
use crate::{Error, Handler, Inbox, Received, Source, Verdict, recording::Ended};

/// How long a pipeline takes new messages when another task waits for a connection of the pool.
const SHORT: Duration = Duration::from_millis(50);
/// How long it takes new messages at most, so that the pool sees its connections from time to time.
const LONG: Duration = Duration::from_secs(1);
/// After this number of duplicates in a row the next message's key is looked up before it is
/// claimed. A wrong guess costs a round trip; a right one saves the claim and the commit, which are
/// most of the cost of a duplicate. Meanwhile the key that was claimed last is in flight to others,
/// at most for as long as the pipeline lasts.
const DUPLICATES_IN_A_ROW: u32 = 4;

/// The end of a pipeline: how its last message ended. No transaction is open any more.
pub(super) struct PipelineEnd<T, R, D: Driver> {
    pub(super) delivery: Delivery<T, D>,
    pub(super) result: Result<Verdict<R>, Failure>,
    /// A message that was taken from the source, but not begun.
    pub(super) waiting: Option<T>,
}

/// The source's answer for the time after a message.
enum Upcoming<T, M, D: Driver> {
    /// A message whose key is worth a claim.
    Ready(Attempt<T, M, D>),
    /// A message that has to wait until the pipeline has ended.
    Waiting(T),
    Nothing,
}

/// The step after an attempt.
enum Step<T, M, R, D: Driver> {
    /// It is committed, or was a duplicate; the next key is claimed, or found.
    Next { verdict: Verdict<R>, next: Attempt<T, M, D>, claim: Result<Option<Claim>, Error> },
    /// The pipeline ends.
    End { result: Result<Verdict<R>, Failure>, waiting: Option<T> },
}

impl<T, R, D: Driver> PipelineEnd<T, R, D> {
    fn new(delivery: Delivery<T, D>, result: Result<Verdict<R>, Failure>, waiting: Option<T>) -> Self {
        Self { delivery, result, waiting }
    }
}

impl<D: Driver> Inbox<D> {
    /// Deals with this message and with those that the source has after it, until none waits or one
    /// did not end with a commit. All but the last have been reported to the source.
    pub(super) async fn run_pipeline<H: Handler<D>, S: Source<H::Reply>>(
        &self,
        handler: &H,
        source: &mut S,
        first: Attempt<S::Message, H::Message, D>,
    ) -> PipelineEnd<S::Message, H::Reply, D> {
        let asked = Instant::now();
        let (transaction, claim) = match Box::pin(self.begin_and_claim(&first.delivery)).await {
            Ok(begun) => begun,
            Err(error) => return PipelineEnd::new(first.delivery, Err(error.into()), None),
        };
        self.shared.counters.claims.claim_time.observe(asked, 1);
        let (inbox, begun) = (self, Instant::now());
        let mut pipeline =
            Pipeline { inbox, transaction, handler, source, begun, duplicates: 0, claimed: None };
        let PipelineEnd { delivery, result, waiting } = pipeline.run(first, claim).await;
        let Pipeline { transaction, claimed, .. } = pipeline;
        if let Err(failure) = &result {
            self.shared.record_failure(&delivery.received, &delivery.identity, failure);
        }
        let result = Box::pin(self.leave(transaction, claimed, &delivery, result)).await;
        PipelineEnd { delivery, result, waiting }
    }

    async fn begin_and_claim<T: Deref<Target = Received>>(
        &self,
        delivery: &Delivery<T, D>,
    ) -> Result<(D::Transaction, Option<Claim>), Error> {
        self.register(Mode::Transaction).await?;
        let claim = self.claims.begin_and_claim(self.scope(), self.wanted(delivery));
        self.database.answered("claim", claim).await.flatten()
    }

    /// The claim of this message.
    fn wanted<'a, T: Deref<Target = Received>>(&self, delivery: &'a Delivery<T, D>) -> Next<'a> {
        let received = &delivery.received;
        // A message that was delivered before, or claimed a moment ago, may be known, and so may
        // any other while duplicates come in.
        let may_be_known =
            delivery.round > 1 || received.delivery_count() > 1 || self.duplicate_hint.expects_duplicate();
        let expect = if may_be_known { Expect::Either } else { Expect::New };
        Next { identity: &delivery.identity, message_id: received.id(), expect }
    }
}

/// A connection with an open transaction, and the messages that go through it.
struct Pipeline<'a, H, S, D: Driver> {
    inbox: &'a Inbox<D>,
    transaction: D::Transaction,
    handler: &'a H,
    source: &'a mut S,
    begun: Instant,
    /// How many duplicates came in a row.
    duplicates: u32,
    /// The transaction, if it has claimed the key of the message that it is in.
    claimed: Option<TransactionId>,
}

impl<D: Driver, H: Handler<D>, S: Source<H::Reply>> Pipeline<'_, H, S, D> {
    async fn run(
        &mut self,
        first: Attempt<S::Message, H::Message, D>,
        claim: Option<Claim>,
    ) -> PipelineEnd<S::Message, H::Reply, D> {
        let (mut attempt, mut claim) = (first, Ok(claim));
        loop {
            let Attempt { delivery, message } = attempt;
            match self.step(&delivery, message, claim).await {
                Step::Next { verdict, next, claim: next_claim } => {
                    self.inbox.count(&verdict, &delivery.received, &delivery.identity);
                    self.source.ended(delivery.received, Ok(verdict));
                    (attempt, claim) = (next, next_claim);
                }
                Step::End { result, waiting } => return PipelineEnd::new(delivery, result, waiting),
            }
        }
    }

    /// Runs one message, commits it, and claims the next.
    async fn step(
        &mut self,
        delivery: &Delivery<S::Message, D>,
        message: H::Message,
        claim: Result<Option<Claim>, Error>,
    ) -> Step<S::Message, H::Message, H::Reply, D> {
        let end = |result| Step::End { result, waiting: None };
        self.claimed = None;
        if let Ok(claim) = &claim {
            self.inbox.shared.record_claim(&delivery.received, &delivery.identity, claim.as_ref());
        }
        let claim = match claim {
            Ok(Some(claim)) => claim,
            Ok(None) => {
                self.inbox.duplicate_hint.note_duplicate();
                return end(Err(Failure::ClaimAgain));
            }
            Err(error) => return end(Err(error.into())),
        };
        if let Claim::Won(id) = claim {
            self.claimed = Some(id);
        }
        let answer = self.inbox.answer(&mut self.transaction, self.handler, message, delivery, claim);
        let Uncommitted { verdict, write } = match answer.await {
            Ok(uncommitted) => uncommitted,
            Err(failure) => return end(Err(failure)),
        };
        self.duplicates = if matches!(write, Write::Nothing) { self.duplicates + 1 } else { 0 };
        let (next, waiting) = match self.take_next() {
            Upcoming::Ready(next) => (Some(next), None),
            Upcoming::Waiting(received) => (None, Some(received)),
            Upcoming::Nothing => (None, None),
        };
        let asked = Instant::now();
        let next = match next {
            Some(next) => match self.look_up(&next.delivery.identity).await {
                Some(claim) => {
                    // Nothing was written, so there is nothing to commit.
                    self.inbox.shared.counters.claims.claim_time.observe(asked, 1);
                    return Step::Next { verdict, next, claim: Ok(Some(claim)) };
                }
                None => Some(next),
            },
            None if matches!(write, Write::Nothing) => return self.finished(delivery, verdict, waiting),
            None => None,
        };
        let committed = match self.commit(delivery, &write, next.as_ref().map(|next| &next.delivery)).await {
            Ok(committed) => committed,
            Err(failure) => {
                let waiting = next.map(|next| next.delivery.received).or(waiting);
                return Step::End { result: Err(failure), waiting };
            }
        };
        match next.zip(committed.claimed) {
            Some((next, claimed)) => {
                let scope = &self.inbox.shared.settings.scope;
                let wanted = (&next.delivery.identity, next.delivery.received.id());
                let found =
                    self.inbox.claims.claimed(&mut self.transaction, scope, wanted, COMPLETED, Some(claimed));
                let claim = self.inbox.database.answered("claim", Box::pin(found)).await.flatten();
                self.inbox.shared.counters.claims.claim_time.observe(asked, 1);
                Step::Next { verdict, next, claim }
            }
            None => self.finished(delivery, verdict, waiting),
        }
    }

    /// The pipeline ends well.
    fn finished(
        &self,
        delivery: &Delivery<S::Message, D>,
        verdict: Verdict<H::Reply>,
        waiting: Option<S::Message>,
    ) -> Step<S::Message, H::Message, H::Reply, D> {
        self.inbox.count(&verdict, &delivery.received, &delivery.identity);
        Step::End { result: Ok(verdict), waiting }
    }

    /// Takes the next message of the source, unless the pipeline is to end.
    fn take_next(&mut self) -> Upcoming<S::Message, H::Message, D> {
        let age = self.begun.elapsed();
        let takes_more = age < SHORT || (age < LONG && !self.inbox.database.is_awaited());
        let taken = if takes_more { self.source.next() } else { None };
        match taken.map(|next| self.inbox.screen::<H, _>(next, 1)) {
            Some(Ok(next)) => Upcoming::Ready(next),
            Some(Err(refused)) => Upcoming::Waiting(refused.received()),
            None => Upcoming::Nothing,
        }
    }

    /// How the next key ended, if enough duplicates came before it that it is looked up first.
    async fn look_up(&mut self, next: &Identity) -> Option<Claim> {
        // A shadow runs its handler also for a known key, and needs the limits of time that a claim
        // sets.
        if self.duplicates < DUPLICATES_IN_A_ROW || self.inbox.shared.settings.is_shadow {
            return None;
        }
        self.inbox.claims.known(&mut self.transaction, &self.inbox.shared.settings.scope, next).await
    }

    /// Stores the outcome, commits, and claims the next message.
    async fn commit(
        &mut self,
        delivery: &Delivery<S::Message, D>,
        write: &Write,
        next: Option<&Delivery<S::Message, D>>,
    ) -> Result<Committed<D>, Failure> {
        let settlement = match write {
            Write::Settled(status, outcome) => {
                Some((&delivery.identity, Settlement { status: *status, outcome: outcome.as_deref() }))
            }
            Write::Nothing | Write::Complete => None,
        };
        let shared = &self.inbox.shared;
        let (received, identity) = (&*delivery.received, Some(&delivery.identity));
        let recorded = write.ending(self.claimed);
        let is_recorded = recorded.is_some();
        if let Some(ending) = recorded {
            shared.record_ending(received, identity, ending);
        }
        let ending = Ending { deferred: &delivery.deferred, settlement };
        let next = next.map(|delivery| self.inbox.wanted(delivery));
        let scope = &self.inbox.shared.settings.scope;
        let commit = self.inbox.claims.commit_and_claim(&mut self.transaction, scope, ending, next);
        let committed = self.inbox.database.answered("commit", Box::pin(commit)).await;
        if is_recorded {
            let ended = committed.as_ref().map_or(Ended::Lost, |committed| Ended::of(&committed.committed));
            shared.record_ended(received, identity, ended);
        }
        let mut committed = committed?;
        match std::mem::replace(&mut committed.committed, Ok(())) {
            Ok(()) => Ok(committed),
            Err(error) => Err(Failure::of_commit(error)),
        }
    }
}
