//! Running messages: from claim to commit.
//!
//! ```text
//! identify ──no key, no tenant────────────────────────────────────▶ dead letter
//!     │
//!     ▼            ┌─ row exists ─▶ same payload? ─▶ replay, else mismatch ─▶ dead letter
//! begin, claim ────┼─ locked ─────▶ in flight
//!     │            └─ PostgreSQL away ─▶ error "unavailable"
//!     ▼ won
//! handler ──error, panic, timeout──▶ ROLLBACK ─▶ conflict? again, else retry, else (at the limit) dead letter
//!     ▼ outcome
//! store outcome, COMMIT ──answer lost──▶ error "unavailable": the next run finds out
//! ```
//!
//! A message that is given up is recorded after the rollback, in a transaction of its own that
//! claims the key as well: so the record neither vanishes with the rollback, nor overwrites the
//! outcome that a concurrent copy committed.

mod attempt;
mod batch;
mod dead_lettering;
mod delivery;
mod ending;
mod failure;
#[cfg(feature = "redis")]
mod gated;
mod pipeline;
mod redelivery;
mod retry;
mod snooze;

use std::{collections::VecDeque, ops::Deref, time::Duration};

use oncebox_claims::{backoff::Backoff, identity::Identity};
use oncebox_schema::Driver;
use tracing::debug;

use crate::{Error, Handler, Inbox, Received, Source, Verdict, decode::decode, source::OneMessage};

pub(crate) use attempt::RUN_HANDLER;
pub(crate) use failure::Failure;
pub(crate) use redelivery::NO_TRACE;
pub(crate) use retry::Decision;
pub(crate) use snooze::Snoozed;

use delivery::{Attempt, Delivery};
use pipeline::PipelineEnd;

/// The pauses before a message that lost a race against another transaction is run again at once.
pub(crate) const CONFLICT_PAUSE: Backoff =
    Backoff { first: Duration::from_millis(5), max: Duration::from_millis(100) };

impl<D: Driver> Inbox<D> {
    /// Deals with one message: runs the handler, or answers from the stored outcome. The verdict is
    /// committed.
    ///
    /// Dropping the future rolls back, unless the commit is under way already; running the message
    /// again is always right. Where messages queue, [`Inbox::run_each`] is faster.
    ///
    /// # Errors
    /// PostgreSQL is away or refuses our own statements, or a stored row cannot be read. Run the
    /// message again later.
    pub async fn run<H: Handler<D>>(
        &self,
        handler: &H,
        received: &Received,
    ) -> Result<Verdict<H::Reply>, Error> {
        let mut one = OneMessage { received: Some(received), result: None };
        self.run_each(handler, &mut one).await;
        one.result.expect("run_each reports every message that it took")
    }

    /// Deals with messages one after another until none waits: like [`Inbox::run`] for each, in a
    /// transaction of its own, but over one connection, which commits a message and claims the next
    /// in one round trip.
    ///
    /// ```
    /// use std::{collections::VecDeque, sync::Arc};
    ///
    /// use oncebox_inbox::{Error, Received, Source, Verdict};
    ///
    /// /// Failed messages come again, later.
    /// struct Backlog { waiting: VecDeque<Arc<Received>>, again: Vec<Arc<Received>> }
    ///
    /// impl<R> Source<R> for Backlog {
    ///     type Message = Arc<Received>;
    ///
    ///     fn next(&mut self) -> Option<Arc<Received>> {
    ///         self.waiting.pop_front()
    ///     }
    ///
    ///     fn ended(&mut self, message: Arc<Received>, result: Result<Verdict<R>, Error>) {
    ///         if matches!(result, Err(_) | Ok(Verdict::InFlight | Verdict::Retry { .. })) {
    ///             self.again.push(message);
    ///         }
    ///     }
    /// }
    /// # async fn example<H: oncebox_inbox::Handler>(inbox: oncebox_inbox::Inbox, handler: H, mut backlog: Backlog) {
    /// inbox.run_each(&handler, &mut backlog).await;
    /// # }
    /// ```
    pub async fn run_each<H, S>(&self, handler: &H, source: &mut S)
    where
        H: Handler<D>,
        S: Source<H::Reply>,
    {
        #[cfg(feature = "redis")]
        if let Some(gate) = &self.shared.settings.gate {
            return self.run_gated(gate, handler, source).await;
        }
        self.run_ungated(handler, source).await;
    }

    async fn run_ungated<H: Handler<D>, S: Source<H::Reply>>(&self, handler: &H, source: &mut S) {
        // At most one that lost a race, and one that the pipeline took after it.
        let mut waiting = VecDeque::new();
        while let Some((received, round)) = waiting.pop_front().or_else(|| Some((source.next()?, 1))) {
            let attempt = match self.screen::<H, _>(received, round) {
                Ok(attempt) => attempt,
                Err(refused) => match Box::pin(self.prepare_refused::<H, _>(refused)).await {
                    Ok(attempt) => attempt,
                    Err((received, result)) => {
                        source.ended(received, result);
                        continue;
                    }
                },
            };
            let recorded = attempt.delivery.recorded();
            let PipelineEnd { delivery, result, waiting: behind } =
                self.run_pipeline(handler, source, attempt).await;
            if let Some(first) = recorded
                && (result.is_ok() || first != delivery.identity)
            {
                Box::pin(self.forget_attempts_of_ended(&first)).await;
            }
            let Delivery { received, identity, round, .. } = delivery;
            match result {
                Err(failure) if failure.run().is_repeated(round) => {
                    if matches!(failure, Failure::Conflict(_)) {
                        let (scope, key) = (&self.shared.settings.scope, identity.key.as_str());
                        debug!(
                            scope,
                            key, "conflict with another transaction; the message is run again at once"
                        );
                        tokio::time::sleep(CONFLICT_PAUSE.after(round)).await;
                    }
                    waiting.push_back((received, round + 1));
                }
                Err(Failure::ClaimAgain) => {
                    let verdict = Verdict::InFlight;
                    self.count(&verdict, &received, &identity);
                    source.ended(received, Ok(verdict));
                }
                Err(failure) => {
                    let result = Box::pin(self.fail(&identity, &received, failure)).await;
                    source.ended(received, result);
                }
                Ok(verdict) => source.ended(received, Ok(verdict)),
            }
            waiting.extend(behind.map(|received| (received, 1)));
        }
    }

    /// Finds out who a message is, and whether it can be run at once.
    fn screen<H: Handler<D>, T: Deref<Target = Received>>(
        &self,
        received: T,
        round: u64,
    ) -> Result<Attempt<T, H::Message, D>, Refused<T>> {
        let identity = match self.identify(&received) {
            Ok(identity) => identity,
            Err(reason) => return Err(Refused::Never { received, identity: None, reason }),
        };
        if received.delivery_count() > 1 || self.may_have_to_wait(&received) {
            return Err(Refused::Redelivered { received, identity, round });
        }
        match decode(&received) {
            Ok(message) => Ok(Attempt { delivery: Delivery::new(received, identity, round), message }),
            Err(reason) => Err(Refused::Never { received, identity: Some(identity), reason }),
        }
    }
}

/// A message that cannot be run at once.
enum Refused<T> {
    /// It was delivered before, and that its run begins is recorded first; or it may have to wait
    /// for a dead letter.
    Redelivered { received: T, identity: Identity, round: u64 },
    /// No handler will see it.
    Never { received: T, identity: Option<Identity>, reason: String },
}

impl<T> Refused<T> {
    fn received(self) -> T {
        match self {
            Self::Redelivered { received, .. } | Self::Never { received, .. } => received,
        }
    }
}
