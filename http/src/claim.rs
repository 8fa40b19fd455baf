//! The claim that a handler extracts, and how its transaction comes back.
//!
//! The layer begins the transaction and commits it, the handler writes through it, and an axum
//! handler's arguments live as long as they like. So the transaction lies in a slot: the extractor
//! takes it out, the claim's drop puts it back, and a transaction that is not back when the
//! response is complete is not committed.

use std::{
    fmt, mem,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    body::Body,
    extract::{FromRequestParts, OptionalFromRequestParts},
    http::{HeaderValue, Response, request::Parts},
    response::IntoResponse,
};
use oncebox_claims::{database::TokioPostgres, identity::Identity, leased::Lease};
use oncebox_schema::{Driver, Key, Transaction};
use tracing::error;

use crate::problem::Problem;

const TAKEN_BY_DROP: &str = "taken out by drop alone";

/// Where the transaction is kept.
enum Slot<D: Driver> {
    /// The layer has the transaction: no claim was extracted yet, or it has been dropped.
    Here(Box<D::Transaction>),
    /// A [`Claim`] has it.
    Taken,
    /// The layer has it back, or has given up on it: it is of no use to a handler any more.
    Closed,
}

/// The layer puts this into the extensions of a request that it lets through.
pub(crate) enum RequestClaim<D: Driver> {
    /// The key is claimed.
    Claimed(Arc<Claimed<D>>),
    /// The key is leased.
    Leased(LeasedClaim),
    /// The request has no key, and the layer lets such requests pass; or its method needs no key.
    WithoutKey,
}

pub(crate) struct Claimed<D: Driver> {
    slot: Mutex<Slot<D>>,
    /// The root of the keys that the handler derives.
    key: Key,
    tenant: String,
    /// The link to the documentation, which the layer's other answers have too.
    documentation: Option<HeaderValue>,
}

impl<D: Driver> Clone for RequestClaim<D> {
    fn clone(&self) -> Self {
        match self {
            Self::Claimed(claimed) => Self::Claimed(Arc::clone(claimed)),
            Self::Leased(claim) => Self::Leased(claim.clone()),
            Self::WithoutKey => Self::WithoutKey,
        }
    }
}

impl<D: Driver> Claimed<D> {
    pub(crate) fn new(
        transaction: D::Transaction,
        identity: &Identity,
        documentation: Option<HeaderValue>,
    ) -> Arc<Self> {
        let (key, tenant) = (identity.key.clone(), identity.tenant.clone());
        Arc::new(Self { slot: Mutex::new(Slot::Here(Box::new(transaction))), key, tenant, documentation })
    }

    /// Takes the transaction back for good; `None` while a claim still has it, which then rolls
    /// back.
    pub(crate) fn close(&self) -> Option<D::Transaction> {
        match mem::replace(&mut *self.slot(), Slot::Closed) {
            Slot::Here(transaction) => Some(*transaction),
            Slot::Taken | Slot::Closed => None,
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot<D>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The claim of the request's key: an axum extractor for the transaction that the handler writes
/// through.
///
/// The layer commits all writes through [`Claim::transaction`] together with the key and the
/// response, or none of them. It commits after the handler has returned, and before it answers the
/// client. A claim that is still held then, by a task or by a streamed body, is rolled back, and
/// the client is told that the request failed.
///
/// Extracting it a second time fails, as it does where the layer is missing, both with status 500.
/// A request that passed without a key, see
/// [`Builder::pass_without_key`](crate::Builder::pass_without_key), has no claim: `Claim` refuses
/// it with status 400, so that no key is ever derived from nothing, and `Option<Claim>` is `None`.
pub struct Claim<D: Driver = TokioPostgres> {
    /// Always there until the drop.
    transaction: Option<Box<D::Transaction>>,
    claimed: Arc<Claimed<D>>,
}

impl Claim {
    /// The transaction that the key is claimed in. To survive the failure of a statement, put a
    /// `SAVEPOINT` before it and roll back to it.
    #[must_use]
    pub fn transaction(&self) -> &Transaction {
        self.transaction.as_deref().expect(TAKEN_BY_DROP)
    }
}

impl<D: Driver> Claim<D> {
    /// The transaction that the key is claimed in, for a driver that needs it mutable.
    #[must_use]
    pub fn transaction_mut(&mut self) -> &mut D::Transaction {
        self.transaction.as_deref_mut().expect(TAKEN_BY_DROP)
    }

    /// The root of the keys of this request's messages: `claim.key().step("ship")`.
    ///
    /// With [`Builder::single_tenant`](crate::Builder::single_tenant) it is the client's key. Else
    /// it is `tenant/key`, since a message's key is unique in the whole outbox, and a client's only
    /// among those of its tenant; should that be longer than a root key may be, it is a SHA-256 of
    /// both. A client may use one key on several routes: let the steps of different routes have
    /// different names.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.claimed.key
    }

    /// The tenant; empty with [`Builder::single_tenant`](crate::Builder::single_tenant).
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.claimed.tenant
    }

    fn of(parts: &Parts) -> Result<Option<Self>, NoClaim> {
        let refuse = |documentation: Option<&HeaderValue>| {
            Err(NoClaim { problem: Problem::SetUpWrongly, documentation: documentation.cloned() })
        };
        match parts.extensions.get::<RequestClaim<D>>() {
            Some(RequestClaim::WithoutKey) => Ok(None),
            Some(RequestClaim::Claimed(claimed)) => {
                let mut slot = claimed.slot();
                match mem::replace(&mut *slot, Slot::Taken) {
                    Slot::Here(transaction) => {
                        drop(slot);
                        Ok(Some(Self { transaction: Some(transaction), claimed: Arc::clone(claimed) }))
                    }
                    other => {
                        *slot = other;
                        tracing::error!("a handler extracts its claim twice, or after its response");
                        refuse(claimed.documentation.as_ref())
                    }
                }
            }
            Some(RequestClaim::Leased(_)) | None => {
                tracing::error!(
                    "a handler extracts a claim, but its route has no layer, or one with `leased`"
                );
                refuse(None)
            }
        }
    }
}

/// Why a [`Claim`] cannot be extracted; a response of `application/problem+json`.
#[derive(Debug)]
pub struct NoClaim {
    problem: Problem,
    documentation: Option<HeaderValue>,
}

impl NoClaim {
    /// Of a request that passed.
    pub(crate) fn without_key(parts: &Parts) -> Self {
        if !parts.method.is_safe() {
            return Self::new(Problem::KeyMissing, None);
        }
        let (method, path) = (&parts.method, parts.uri.path());
        tracing::error!(
            "a handler extracts a claim for {method} {path}, which passes without one, with a key or not: extract \
             `Option` of it there, or use another method"
        );
        Self::new(Problem::SetUpWrongly, None)
    }

    pub(crate) fn new(problem: Problem, documentation: Option<HeaderValue>) -> Self {
        Self { problem, documentation }
    }
}

impl IntoResponse for NoClaim {
    fn into_response(self) -> Response<Body> {
        self.problem.response(Duration::ZERO, self.documentation.as_ref())
    }
}

impl<D: Driver> Drop for Claim<D> {
    fn drop(&mut self) {
        let mut slot = self.claimed.slot();
        if matches!(*slot, Slot::Taken)
            && let Some(transaction) = self.transaction.take()
        {
            *slot = Slot::Here(transaction);
        }
    }
}

impl<S: Sync, D: Driver> FromRequestParts<S> for Claim<D> {
    type Rejection = NoClaim;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Self::of(parts)?.ok_or_else(|| NoClaim::without_key(parts))
    }
}

impl<S: Sync, D: Driver> OptionalFromRequestParts<S> for Claim<D> {
    type Rejection = NoClaim;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Self::Rejection> {
        Self::of(parts)
    }
}

impl<D: Driver> fmt::Debug for Claim<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Claimed { key, tenant, .. } = &*self.claimed;
        f.debug_struct("Claim").field("key", key).field("tenant", tenant).finish_non_exhaustive()
    }
}

/// The claim of the request's key, for handlers with effects outside the database: an axum
/// extractor, which is a [`Lease`].
///
/// Use it in routes with a layer that has [`Builder::leased`](crate::Builder::leased). No
/// transaction is open while the handler runs; each effect goes through [`Lease::effect`], each
/// write to the database through [`Lease::write`], both once per key. A request that is repeated
/// after a crash, or after a response that is not stored, continues after the last of them that is
/// known. It is refused as [`Claim`](crate::Claim) is.
///
/// ```
/// use axum::http::StatusCode;
/// use oncebox_http::{CallError, LeasedClaim};
///
/// # struct Gateway;
/// # impl Gateway { async fn charge(&self, _: &str, _: i64) -> Result<String, CallError> { unimplemented!() } }
/// async fn pay(gateway: &Gateway, claim: LeasedClaim, cents: i64) -> Result<(StatusCode, String), StatusCode> {
///     let receipt = claim
///         .effect("charge")
///         .call(|key| async move { gateway.charge(key.as_str(), cents).await })
///         .provider_idempotent()   // or .reconcile(..), which asks whether it happened
///         .await
///         .map_err(|_| StatusCode::BAD_GATEWAY)?;   // the key is free; its effects are recorded
///     Ok((StatusCode::CREATED, receipt))
/// }
/// ```
pub struct LeasedClaim {
    lease: Lease,
    tenant: Arc<str>,
}

impl LeasedClaim {
    pub(crate) fn new(lease: Lease, tenant: &str) -> Self {
        Self { lease, tenant: tenant.into() }
    }

    /// The tenant; empty with [`Builder::single_tenant`](crate::Builder::single_tenant).
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    fn of(parts: &Parts) -> Result<Option<Self>, NoClaim> {
        match parts.extensions.get::<RequestClaim<TokioPostgres>>() {
            Some(RequestClaim::WithoutKey) => Ok(None),
            Some(RequestClaim::Leased(claim)) => Ok(Some(claim.clone())),
            Some(RequestClaim::Claimed(_)) | None => {
                error!("a handler extracts a leased claim, but its route has no layer with `leased`");
                Err(NoClaim::new(Problem::SetUpWrongly, None))
            }
        }
    }
}

impl Clone for LeasedClaim {
    fn clone(&self) -> Self {
        Self { lease: self.lease.clone(), tenant: Arc::clone(&self.tenant) }
    }
}

impl Deref for LeasedClaim {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl fmt::Debug for LeasedClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedClaim").field("key", self.lease.key()).finish_non_exhaustive()
    }
}

impl<S: Sync> FromRequestParts<S> for LeasedClaim {
    type Rejection = NoClaim;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NoClaim> {
        Self::of(parts)?.ok_or_else(|| NoClaim::without_key(parts))
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for LeasedClaim {
    type Rejection = NoClaim;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, NoClaim> {
        Self::of(parts)
    }
}
