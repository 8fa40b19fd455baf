//! Messages that were delivered before: which runs are attempts, and which message runs alone.
//!
//! ```text
//! first delivery ──────────────────────▶ run ─▶ failed? recorded
//! delivered again ─▶ recorded as begun ─▶ run ─▶ failed? recorded
//!        │
//!        └─ a run before it left no trace ─▶ alone among its like, recorded as begun ─▶ run
//! ```
//!
//! A run is an attempt when it failed, or when it began alone and left no trace: then it ended its
//! process. A message that waits, is given back, or is delivered again and again meanwhile makes no
//! attempt, although JetStream counts deliveries. The first run without a trace is no attempt
//! either: many run at once, and all of them die with the one that kills. So those that were at
//! work then run one at a time the next time, and only the one that kills is counted.

use std::{ops::Deref, time::Duration};

use oncebox_claims::{
    backoff::Backoff, failure::text, identity::Identity, life::Begin, records::FailedAttempt,
};
use oncebox_schema::Driver;
use tracing::{debug, warn};

use super::{
    Refused,
    delivery::{Attempt, Delivery},
};
use crate::{Error, Handler, Inbox, Received, Verdict, decode::decode, inbox::IsolationPermit};

/// Why a message becomes a dead letter whose runs end their process.
pub(crate) const NO_TRACE: &str =
    "delivery limit reached, and the last attempt left no trace: did it end the process?";

/// Whether a message that was delivered before may be run.
enum Begun {
    Run(Option<IsolationPermit>),
    /// It has to run alone, and another such message is at work.
    Busy,
    /// The pause that an earlier run has asked for is not over: its consumer was made again, which
    /// forgets pauses.
    Rests(Duration),
    Exhausted,
}

impl<D: Driver> Inbox<D> {
    async fn begin(&self, identity: &Identity, received: &Received) -> Result<Begun, Error> {
        let (scope, limit) = (&self.shared.settings.scope, self.shared.settings.retries.attempts_max);
        let mut permit = None;
        loop {
            let begun = self.records.begin_run(scope, identity, received.record(), permit.is_some()).await?;
            // The key has ended, or is in flight: the claim will tell which.
            let Some(past) = begun else { return Ok(Begun::Run(permit)) };
            match past.begin(limit) {
                Begin::Rest(rest) => return Ok(Begun::Rests(rest)),
                Begin::Bury => return Ok(Begun::Exhausted),
                Begin::Alone if permit.is_none() => {}
                Begin::Alone | Begin::Run => {
                    received.begun.set(true);
                    if past.untraced > 0 {
                        let (key, untraced) = (identity.key.as_str(), past.untraced);
                        warn!(
                            scope,
                            key,
                            untraced,
                            "the message runs alone: a run of it left no trace and may have ended its process"
                        );
                    }
                    return Ok(Begun::Run(permit));
                }
            }
            permit = self.isolate().await;
            if permit.is_none() {
                return Ok(Begun::Busy);
            }
        }
    }

    /// A message that is delivered for the first time is not recorded.
    async fn begin_if_known(&self, identity: &Identity, received: &Received) -> Result<Begun, Error> {
        match received.delivery_count() {
            0 | 1 => Ok(Begun::Run(None)),
            _ => self.begin(identity, received).await,
        }
    }

    /// Records that runs of these messages begin, as far as they were delivered before. Returns for
    /// each message whether it has to run by itself: a run of it left no trace, its pause is not
    /// over, or it has no attempt left.
    pub(super) async fn begin_together(
        &self,
        deliveries: &[Delivery<&Received, D>],
    ) -> Result<Vec<bool>, Error> {
        let places = 0..deliveries.len();
        let mut again: Vec<usize> =
            places.filter(|place| deliveries[*place].received.delivery_count() > 1).collect();
        let mut by_itself = vec![false; deliveries.len()];
        if again.is_empty() {
            return Ok(by_itself);
        }
        // Transactions that lock rows of the same keys do it in the same order.
        again.sort_unstable_by_key(|place| deliveries[*place].identity.lock);
        let message = |place: &usize| (&deliveries[*place].identity, deliveries[*place].received.record());
        let messages: Vec<_> = again.iter().map(message).collect();
        let begun = self.records.begin_runs(self.scope(), &messages).await?;
        for (place, past) in again.into_iter().zip(begun) {
            // The key has ended, or is in flight: the claim will tell which.
            let Some(past) = past else { continue };
            if past.untraced == 0 && past.rest.is_zero() {
                deliveries[place].received.begun.set(true);
            }
            by_itself[place] = past.begin(self.shared.settings.retries.attempts_max) != Begin::Run;
        }
        Ok(by_itself)
    }

    /// Prepares a message that cannot be run at once: it was delivered before, and is recorded
    /// first, or it will never be run.
    pub(super) async fn prepare_refused<H: Handler<D>, T: Deref<Target = Received>>(
        &self,
        refused: Refused<T>,
    ) -> Result<Attempt<T, H::Message, D>, (T, Result<Verdict<H::Reply>, Error>)> {
        let (received, identity, reason) = match refused {
            Refused::Never { received, identity, reason } => (received, identity, reason),
            Refused::Redelivered { received, identity, round } => {
                match self.wait_in_line(&identity, &received).await {
                    Ok(None) => {}
                    Ok(Some(verdict)) => return Err((received, Ok(verdict))),
                    Err(error) => return Err((received, Err(error))),
                }
                match self.begin_if_known(&identity, &received).await {
                    Ok(Begun::Run(permit)) => match decode(&received) {
                        Ok(message) => {
                            let delivery = Delivery::new(received, identity, round);
                            return Ok(Attempt {
                                delivery: Delivery { _isolation: permit, ..delivery },
                                message,
                            });
                        }
                        Err(undecodable) => (received, Some(identity), undecodable),
                    },
                    Ok(Begun::Exhausted) => (received, Some(identity), NO_TRACE.to_owned()),
                    Ok(Begun::Busy) => {
                        let (scope, key) = (&self.shared.settings.scope, identity.key.as_str());
                        debug!(scope, key, "the message waits until it may run alone");
                        return Err((received, Ok(Verdict::InFlight)));
                    }
                    Ok(Begun::Rests(after)) => {
                        let reason = "the pause after its last run is not over".to_owned();
                        return Err((received, Ok(Verdict::Retry { after, reason })));
                    }
                    Err(error) => return Err((received, Err(error))),
                }
            }
        };
        let result = self.dead_letter(identity.as_ref(), &received, reason, None).await;
        Err((received, result))
    }

    /// Records that an attempt has failed; how many have, this one included.
    pub(super) async fn count_failed(
        &self,
        identity: &Identity,
        received: &Received,
        reason: &str,
        pauses: Backoff,
    ) -> Result<u64, Error> {
        let failed = FailedAttempt { reason, pauses, count: None };
        let failures = self.records.attempt_failed(self.scope(), identity, received.record(), failed).await?;
        received.begun.set(false);
        Ok(failures)
    }

    /// Forgets the attempts at a message that was delivered before, if it has ended. If this fails,
    /// the sweep does it: a message whose key has ended does not count as failing.
    pub(crate) async fn forget_attempts_of_ended(&self, identity: &Identity) {
        self.tell_forgotten(self.records.forget_if_ended(self.scope(), identity).await);
    }

    /// As [`Inbox::forget_attempts_of_ended`] for many keys.
    pub(super) async fn forget_attempts_of_all_ended(&self, mut keys: Vec<&Identity>) {
        if keys.is_empty() {
            return;
        }
        keys.sort_unstable_by_key(|identity| identity.lock);
        self.tell_forgotten(self.records.forget_all_ended(self.scope(), &keys).await);
    }

    fn tell_forgotten(&self, forgotten: Result<(), Error>) {
        if let Err(error) = forgotten {
            debug!(
                scope = self.scope(),
                error = text(&error),
                "the attempts at a message are not forgotten yet"
            );
        }
    }
}
