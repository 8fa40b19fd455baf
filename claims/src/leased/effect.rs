//! An effect outside the database: called at most once per key, or as often as its provider can bear.
//!
//! ```text
//!            ┌─ done, rejected ─▶ the remembered result
//! begin ─────┼─ new ───────────────────────────────────▶ call ─┬─ result ─▶ remember it
//!  (commits) │                       absent, for long ──▶  ▲   ├─ rejected ─▶ remember that
//!            └─ begun before ─▶ reconcile ──┬──────────────┘   ├─ failed ─▶ forget it: the next run calls
//!                 (or call again, where the ├─ happened ─▶ remember it
//!                  provider is idempotent)  └─ unknown ─▶ nothing: the next run reconciles ◀─ anything else
//! ```
//!
//! A call that failed for sure says nothing about an earlier one of unknown outcome: unless that
//! was reconciled, the record stays, and the effect is unknown.
//!
//! Each arrow that writes is checked against owner and epoch, and begins the lease anew.

use std::{future::IntoFuture, time::Duration};

use futures_util::future::BoxFuture;
use oncebox_schema::Key;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, timeout};

use super::{
    Lease,
    failure::{CallError, EffectError, Known, Reconciled},
    ledger::Turn,
    store::{Begun, Settled},
};
use crate::{
    failure::{bounded, text},
    metrics::add,
    reply::encode,
};

const TIMEOUT: Duration = Duration::from_secs(30);
const SETTLES_WITHIN: Duration = Duration::from_secs(60);

/// An effect outside the database; see [`Lease::effect`].
///
/// ```
/// # use oncebox_claims::{HandlerError, leased::{CallError, Lease, Reconciled}};
/// # struct Gateway;
/// # impl Gateway {
/// #     async fn charge(&self, _: &str, _: i64) -> Result<String, CallError> { unimplemented!() }
/// #     async fn find(&self, _: &str) -> Result<Option<String>, CallError> { unimplemented!() }
/// # }
/// # async fn example(lease: &Lease, gateway: &Gateway) -> Result<(), HandlerError> {
/// let receipt: String = lease
///     .effect("gateway-charge")
///     .call(|key| async move { gateway.charge(key.as_str(), 995).await })
///     .reconcile(|key| async move {
///         Ok(gateway.find(key.as_str()).await?.map_or(Reconciled::Absent, Reconciled::Happened))
///     })
///     .await?;
/// # Ok(())
/// # }
/// ```
///
/// An effect that says neither how to reconcile it nor that its provider is idempotent does not compile:
///
/// ```compile_fail,E0277
/// # use oncebox_claims::{HandlerError, leased::{CallError, Lease, Reconciled}};
/// # struct Gateway;
/// # impl Gateway {
/// #     async fn charge(&self, _: &str, _: i64) -> Result<String, CallError> { unimplemented!() }
/// # }
/// # async fn example(lease: &Lease, gateway: &Gateway) -> Result<(), HandlerError> {
/// let receipt: String = lease
///     .effect("gateway-charge")
///     .call(|key| async move { gateway.charge(key.as_str(), 995).await })
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "an effect does not happen until it is called, reconcilable and awaited"]
pub struct Effect<'a> {
    lease: &'a Lease,
    step: &'a str,
    timeout: Duration,
    settles_within: Duration,
}

/// An effect with its call; says next what to do when its outcome is unknown.
#[derive(Debug)]
#[must_use = "an effect does not happen until it is reconcilable and awaited"]
pub struct Call<'a, F> {
    effect: Effect<'a>,
    call: F,
}

/// An effect that can be awaited.
#[derive(Debug)]
#[must_use = "an effect does not happen until it is awaited"]
pub struct ReadyEffect<'a, F, G> {
    effect: Effect<'a>,
    call: F,
    reconcile: G,
}

/// The provider takes the key as its idempotency key; see [`Call::provider_idempotent`].
#[derive(Clone, Copy, Debug)]
pub struct ProviderIdempotent(());

/// What became of an earlier call.
enum Now<T> {
    Known(T),
    /// It had no effect, and will have none.
    Absent,
    /// It may have had, and calling again is as good as asking.
    Unknown,
}

/// How an unknown outcome is dealt with: by asking, or by calling again.
pub trait Reconcile<T>: Send {
    /// What the provider says; `None` means that calling again is as good.
    fn ask(self, key: Key) -> impl Future<Output = Option<Result<Reconciled<T>, CallError>>> + Send;
}

impl<'a> Effect<'a> {
    pub(super) fn new(lease: &'a Lease, step: &'a str) -> Self {
        Self { lease, step, timeout: TIMEOUT, settles_within: SETTLES_WITHIN }
    }

    /// How long the call, and the reconciliation, may take; then the outcome is unknown. Default: 30 seconds.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// How long after its beginning a call may still take effect at the provider: requests wait in queues and on slow
    /// lines after their sender is gone. [`Reconciled::Absent`] counts as unknown until then. Default: 60 seconds.
    pub fn settles_within(mut self, limit: Duration) -> Self {
        self.settles_within = limit;
        self
    }

    /// What is done. It gets the derived key, `key:step`: hand it to the provider.
    pub fn call<F, Called, T>(self, call: F) -> Call<'a, F>
    where
        F: FnOnce(Key) -> Called + Send,
        Called: Future<Output = Result<T, CallError>> + Send,
    {
        Call { effect: self, call }
    }
}

impl<'a, F> Call<'a, F> {
    /// How to find out, by the derived key, whether the effect happened. It must not change anything.
    pub fn reconcile<G, Asked, T>(self, reconcile: G) -> ReadyEffect<'a, F, G>
    where
        G: FnOnce(Key) -> Asked + Send,
        Asked: Future<Output = Result<Reconciled<T>, CallError>> + Send,
    {
        ReadyEffect { effect: self.effect, call: self.call, reconcile }
    }

    /// The provider promises that calls with the same key have one effect and one answer, for longer than this message
    /// may be delivered: an unknown outcome is called again.
    pub fn provider_idempotent(self) -> ReadyEffect<'a, F, ProviderIdempotent> {
        ReadyEffect { effect: self.effect, call: self.call, reconcile: ProviderIdempotent(()) }
    }
}

impl<T: Send> Reconcile<T> for ProviderIdempotent {
    async fn ask(self, _: Key) -> Option<Result<Reconciled<T>, CallError>> {
        None
    }
}

impl<T, G, Asked> Reconcile<T> for G
where
    T: Send,
    G: FnOnce(Key) -> Asked + Send,
    Asked: Future<Output = Result<Reconciled<T>, CallError>> + Send,
{
    async fn ask(self, key: Key) -> Option<Result<Reconciled<T>, CallError>> {
        Some(self(key).await)
    }
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
            let turn = lease.ledger().take(effect.step).map_err(|reason| effect.refused(reason))?;
            // Whether an earlier call may have had an effect that nobody has found out about.
            let mut is_open = false;
            match effect.begin(&turn).await? {
                Begun::New => {}
                Begun::Done(result) => {
                    turn.settled();
                    return effect.decode(&result);
                }
                Begun::Rejected(reason) => {
                    turn.settled();
                    return Err(effect.rejected(reason));
                }
                Begun::Before { age, .. } => {
                    match effect.reconciled(reconcile, key.clone(), age, &turn).await? {
                        Now::Known(result) => return Ok(result),
                        Now::Absent => {}
                        Now::Unknown => is_open = true,
                    }
                }
            }
            if Instant::now() >= lease.until() {
                // Beginning took so long, or the process was suspended, that somebody may have taken over.
                return Err(EffectError::LeaseLost);
            }
            let called = timeout(effect.timeout, call(key)).await;
            let called = called.unwrap_or_else(|_| Err(effect.no_answer()));
            effect.settle(called, &turn, is_open).await
        })
    }
}

impl Effect<'_> {
    /// Records that the effect may happen from now on.
    async fn begin(&self, turn: &Turn) -> Result<Begun, EffectError> {
        let lease = self.lease;
        let begun = lease
            .patiently(|| async {
                // Also when the answer gets lost.
                turn.opened();
                let sent = Instant::now();
                let begun = lease.store().begin_effect(lease.holder(), self.step).await?;
                if begun.is_some() {
                    lease.renewed(sent);
                }
                Ok(begun)
            })
            .await?;
        match begun.ok_or(EffectError::LeaseLost)? {
            // Recorded by a statement of this very run whose answer was lost; nothing has been called yet.
            Begun::Before { is_own: true, .. } if !turn.was_open => Ok(Begun::New),
            begun => Ok(begun),
        }
    }

    /// Asks what became of an earlier call; unless it is known, the effect is to be called (again),
    /// which is recorded.
    async fn reconciled<T: Serialize + Send>(
        &self,
        reconcile: impl Reconcile<T>,
        key: Key,
        age: Duration,
        turn: &Turn,
    ) -> Result<Now<T>, EffectError> {
        let unknown = |source| EffectError::Unknown { effect: self.step.to_owned(), source };
        let asked = timeout(self.timeout, reconcile.ask(key)).await;
        let now = match asked.unwrap_or_else(|_| Some(Err(self.no_answer()))) {
            None => Now::Unknown,
            Some(Ok(Reconciled::Happened(result))) => {
                add(&self.lease.counters().reconciled);
                return self.settle(Ok(result), turn, true).await.map(Now::Known);
            }
            Some(Ok(Reconciled::Absent)) if age >= self.settles_within => {
                add(&self.lease.counters().reconciled);
                Now::Absent
            }
            Some(Ok(Reconciled::Absent)) => {
                let within = self.settles_within;
                let reason =
                    format!("the provider knows nothing of it, but a call settles within {within:?}");
                return Err(unknown(reason.into()));
            }
            Some(Ok(Reconciled::Unknown)) => return Err(unknown("the provider cannot tell yet".into())),
            Some(Err(error @ CallError { known: Known::Rejected, .. })) => {
                add(&self.lease.counters().reconciled);
                return self.settle(Err(error), turn, true).await.map(Now::Known);
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
        if again.await? { Ok(now) } else { Err(EffectError::LeaseLost) }
    }

    /// Remembers what is known after a call. `is_open`: an earlier one may have had the effect, and
    /// that this one failed says nothing about it.
    async fn settle<T: Serialize>(
        &self,
        called: Result<T, CallError>,
        turn: &Turn,
        is_open: bool,
    ) -> Result<T, EffectError> {
        let step = self.step.to_owned();
        match called {
            Ok(result) => {
                // Too large: it happened, so it stays open, and the reason says what to change.
                let encoded = encode(&result).map_err(|problem| self.refused(problem))?;
                let encoded = encoded.unwrap_or_else(|| b"null".to_vec());
                self.remember(&Settled::Done(&encoded)).await?;
                turn.settled();
                Ok(result)
            }
            Err(CallError { known: Known::Rejected, source }) => {
                let reason = bounded(&text(&*source));
                self.remember(&Settled::Rejected(&reason)).await?;
                turn.settled();
                Err(self.rejected(reason))
            }
            Err(CallError { known: Known::Failed, source }) if !is_open => {
                let lease = self.lease;
                let forget = || lease.store().forget_effect(lease.holder(), self.step);
                // False: forgotten already, before an answer was lost, or the lease is, which its next use tells.
                lease.patiently(forget).await?;
                turn.forgotten();
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
        if lease.patiently(remember).await? { Ok(()) } else { Err(EffectError::LeaseLost) }
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
