//! An effect outside the database: called at most once per key, or as often as its provider can
//! bear.
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
//! Each arrow that writes is checked against owner and epoch, and starts the lease's time again.

mod run;

use std::time::Duration;

use oncebox_schema::Key;

use super::{
    Lease,
    effect_error::{CallError, Reconciled},
};

const TIMEOUT: Duration = Duration::from_secs(30);
/// How long a request may be on its way after its sender has given it up.
const ON_ITS_WAY: Duration = Duration::from_secs(30);

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
/// An effect that says neither how to reconcile it nor that its provider is idempotent does not
/// compile:
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
    settles_within: Option<Duration>,
}

/// An effect with its call. Choose next how an unknown outcome is dealt with.
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

/// How an unknown outcome is dealt with: by asking, or by calling again.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot tell whether the effect happened",
    label = "not a function that asks the provider",
    note = "`reconcile` takes `|key| async move {{ .. }}` that returns `Result<Reconciled<_>, CallError>`, of the type that \
            `call` returns"
)]
pub trait Reconcile<T>: Send {
    /// The provider's answer; `None` means that calling again is as good.
    fn ask(self, key: Key) -> impl Future<Output = Option<Result<Reconciled<T>, CallError>>> + Send;
}

impl Lease {
    /// An effect outside the database, which happens once per key. `step` becomes part of the
    /// derived key, so each effect of a handler has a step of its own, the same in every run.
    pub fn effect<'a>(&'a self, step: &'a str) -> Effect<'a> {
        Effect { lease: self, step, timeout: TIMEOUT, settles_within: None }
    }
}

impl<'a> Effect<'a> {
    /// How long the call, and the reconciliation, may take; then the outcome is unknown. Default:
    /// 30 seconds.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// How long after its beginning a call may still take effect at the provider: requests wait in
    /// queues and on slow lines after their sender is gone. [`Reconciled::Absent`] counts as
    /// unknown until then. Default: 30 seconds more than the [timeout](Self::timeout), so 60
    /// seconds without one.
    pub fn settles_within(mut self, limit: Duration) -> Self {
        self.settles_within = Some(limit);
        self
    }

    fn settled_after(&self) -> Duration {
        self.settles_within.unwrap_or_else(|| self.timeout.saturating_add(ON_ITS_WAY))
    }

    /// The call itself. It gets the derived key, `key:step`: hand it to the provider.
    pub fn call<F, Called, T>(self, call: F) -> Call<'a, F>
    where
        F: FnOnce(Key) -> Called + Send,
        Called: Future<Output = Result<T, CallError>> + Send,
    {
        Call { effect: self, call }
    }
}

impl<'a, F> Call<'a, F> {
    /// How to find out, by the derived key, whether the effect happened. It must not change
    /// anything.
    pub fn reconcile<G, Asked, T>(self, reconcile: G) -> ReadyEffect<'a, F, G>
    where
        G: FnOnce(Key) -> Asked + Send,
        Asked: Future<Output = Result<Reconciled<T>, CallError>> + Send,
    {
        ReadyEffect { effect: self.effect, call: self.call, reconcile }
    }

    /// The provider promises that calls with the same key have one effect and one answer, for
    /// longer than this message may be delivered: an unknown outcome is called again.
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
