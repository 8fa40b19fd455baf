//! Running an effect: begin, reconcile where that is needed, call, remember.

use std::{future::IntoFuture, time::Duration};

use futures_util::future::BoxFuture;
use oncebox_schema::Key;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, timeout};

use super::{Effect, ReadyEffect, Reconcile};
use crate::{
    failure::{bounded, text},
    leased::{
        effect_error::{CallError, EffectError, Known, Reconciled, Settling},
        ledger::StepGuard,
        store::{Begun, Settled},
    },
    metrics::add,
    reply::encode,
};

/// The outcome of an earlier call.
enum Earlier<T> {
    Known(T),
    /// It had no effect, and will have none.
    Absent,
    /// It may have had, and calling again is as good as asking.
    Unknown,
}

impl<'a, T, F, Called, G> IntoFuture for ReadyEffect<'a, F, G>
where
    T: Serialize + DeserializeOwned + Send + 'a,
    F: FnOnce(Key) -> Called + Send + 'a,
    Called: Future<Output = Result<T, CallError>> + Send + 'a,
    G: Reconcile<T> + 'a,
{
    type Output = Result<T, EffectError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { effect, call, reconcile } = self;
            let lease = effect.lease;
            let key = lease.key().step(effect.step).map_err(|problem| effect.refused(problem.to_string()))?;
            let guard = lease.ledger().take(effect.step).map_err(|reason| effect.refused(reason))?;
            // Whether an earlier call may have had its effect, and its outcome is unknown.
            let mut is_open = false;
            match effect.begin(&guard).await? {
                Begun::New => {}
                Begun::Done(result) => {
                    guard.settled();
                    return effect.decode(&result);
                }
                Begun::Rejected(reason) => {
                    guard.settled();
                    return Err(effect.rejected(reason));
                }
                Begun::Before { age, .. } => {
                    match effect.reconciled(reconcile, key.clone(), age, &guard).await? {
                        Earlier::Known(result) => return Ok(result),
                        Earlier::Absent => {}
                        Earlier::Unknown => is_open = true,
                    }
                }
            }
            if Instant::now() >= lease.until() {
                // If beginning took too long, or the process was suspended, another process may
                // have taken over.
                return Err(EffectError::LeaseLost);
            }
            effect.record("calling");
            let called = timeout(effect.timeout, call(key)).await;
            let called = called.unwrap_or_else(|_| Err(effect.no_answer()));
            effect.settle(called, &guard, is_open).await
        })
    }
}

impl Effect<'_> {
    /// Records that the effect may happen from now on.
    async fn begin(&self, guard: &StepGuard) -> Result<Begun, EffectError> {
        let lease = self.lease;
        self.record("beginning");
        let begun = lease
            .patiently(|| async {
                // Also when the answer gets lost.
                guard.opened();
                let sent = Instant::now();
                let begun = lease.store().begin_effect(lease.holder(), self.step).await?;
                if begun.is_some() {
                    lease.renewed(sent);
                }
                Ok(begun)
            })
            .await?;
        let begun = match begun {
            // Recorded by a statement of this very run whose answer was lost; nothing has been
            // called yet.
            Some(Begun::Before { is_own: true, .. }) if !guard.was_open => Some(Begun::New),
            begun => begun,
        };
        self.record(match &begun {
            Some(Begun::New) => "begun",
            Some(Begun::Before { .. }) => "open",
            Some(Begun::Done(_) | Begun::Rejected(_)) => "known",
            None => "fenced",
        });
        begun.ok_or(EffectError::LeaseLost)
    }

    /// Asks the provider about an earlier call, and returns its result, or records that the effect
    /// is called again. Fails while the outcome stays unknown.
    async fn reconciled<T: Serialize + Send>(
        &self,
        reconcile: impl Reconcile<T>,
        key: Key,
        age: Duration,
        guard: &StepGuard,
    ) -> Result<Earlier<T>, EffectError> {
        let unknown = |source| EffectError::Unknown { effect: self.step.to_owned(), source };
        let asked = timeout(self.timeout, reconcile.ask(key)).await;
        let now = match asked.unwrap_or_else(|_| Some(Err(self.no_answer()))) {
            None => Earlier::Unknown,
            Some(Ok(Reconciled::Happened(result))) => {
                add(&self.lease.counters().reconciled);
                return self.settle(Ok(result), guard, true).await.map(Earlier::Known);
            }
            Some(Ok(Reconciled::Absent)) if age >= self.settled_after() => {
                add(&self.lease.counters().reconciled);
                Earlier::Absent
            }
            Some(Ok(Reconciled::Absent)) => {
                let within = self.settled_after();
                return Err(unknown(Settling { within, left: within.saturating_sub(age) }.into()));
            }
            Some(Ok(Reconciled::Unknown)) => return Err(unknown("the provider cannot tell yet".into())),
            Some(Err(error @ CallError { known: Known::Rejected, .. })) => {
                add(&self.lease.counters().reconciled);
                return self.settle(Err(error), guard, true).await.map(Earlier::Known);
            }
            Some(Err(error)) => return Err(unknown(error.source)),
        };
        let lease = self.lease;
        let again = lease.patiently(|| async {
            let sent = Instant::now();
            let is_held = lease.store().begin_again(lease.holder(), self.step).await?;
            if is_held {
                lease.renewed(sent);
            }
            Ok(is_held)
        });
        let is_held = again.await?;
        self.record(if is_held { "begun_again" } else { "fenced" });
        if is_held { Ok(now) } else { Err(EffectError::LeaseLost) }
    }

    /// Records the result of a call. `is_open`: an earlier one may have had the effect, and that
    /// this one failed says nothing about it.
    async fn settle<T: Serialize>(
        &self,
        called: Result<T, CallError>,
        guard: &StepGuard,
        is_open: bool,
    ) -> Result<T, EffectError> {
        let step = self.step.to_owned();
        match called {
            Ok(result) => {
                // Too large: it happened, so it stays open, and the reason names the remedy.
                let encoded = encode(&result).map_err(|problem| self.refused(problem))?;
                let encoded = encoded.unwrap_or_else(|| b"null".to_vec());
                self.remember(&Settled::Done(&encoded)).await?;
                guard.settled();
                Ok(result)
            }
            Err(CallError { known: Known::Rejected, source }) => {
                let reason = bounded(&text(&*source));
                self.remember(&Settled::Rejected(&reason)).await?;
                guard.settled();
                Err(self.rejected(reason))
            }
            Err(CallError { known: Known::Failed, source }) if !is_open => {
                let lease = self.lease;
                self.record("forgetting");
                let forget = || lease.store().forget_effect(lease.holder(), self.step);
                // False: forgotten already, before an answer was lost, or the lease is, which its
                // next use tells.
                lease.patiently(forget).await?;
                guard.forgotten();
                Err(EffectError::Failed { effect: step, source })
            }
            Err(CallError { known: Known::Failed | Known::Unknown, source }) => {
                Err(EffectError::Unknown { effect: step, source })
            }
        }
    }

    async fn remember(&self, settled: &Settled<'_>) -> Result<(), EffectError> {
        let lease = self.lease;
        let remember = || lease.store().settle_effect(lease.holder(), self.step, settled);
        self.record("remembering");
        let is_held = lease.patiently(remember).await?;
        self.record(if is_held { "remembered" } else { "fenced" });
        if is_held { Ok(()) } else { Err(EffectError::LeaseLost) }
    }

    fn record(&self, did: &str) {
        self.lease.store().record(self.lease.holder(), self.step, did);
    }

    fn decode<T: DeserializeOwned>(&self, result: &[u8]) -> Result<T, EffectError> {
        serde_json::from_slice(result).map_err(|problem| {
            let place = format!("line {} column {}", problem.line(), problem.column());
            self.refused(format!("the remembered result does not decode, {place}: has its type changed?"))
        })
    }

    fn no_answer(&self) -> CallError {
        CallError::unknown(format!("no answer within {:?}", self.timeout))
    }

    fn refused(&self, reason: impl Into<String>) -> EffectError {
        EffectError::Refused { effect: self.step.to_owned(), reason: reason.into() }
    }

    fn rejected(&self, reason: String) -> EffectError {
        EffectError::Rejected { effect: self.step.to_owned(), reason }
    }
}
