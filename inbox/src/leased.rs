//! One message with effects outside the database.
//!
//! ```text
//!            ┌─ ended ────────────▶ replay, or mismatch
//! claim ─────┼─ leased to another ▶ in flight
//! (commits)  └─ won, or taken over after the other's lease
//!     │
//!     ▼                   ┌──────────── renew, every third of the lease ◀─┐
//! handler ─ effect ─ effect ─ ...       lost, or perhaps lost ─▶ dropped, nothing is written
//!     │
//!     ├─ done, rejected ──▶ BEGIN, finish, [the claim's row becomes the inbox's], COMMIT
//!     ├─ dead, limit ─────▶ BEGIN, dead letter, [the same], COMMIT
//!     └─ failed, unknown ─▶ released: another run after a pause
//! ```
//!
//! How a claim is stored, and its promises: see [`oncebox_claims::leased`].

use std::{sync::Arc, time::Duration};

use oncebox_claims::{
    Claim,
    database::Kind,
    handler_call::{self, CallEnd},
    identity::Identity,
    leased::{HeldClaim, InFlight, LeasedClaims, Name},
    life::{Begin, Past},
};
use tokio::time::Instant;
use tracing::Instrument;

use crate::{
    Answer, Error, Inbox, Outcome, Received, Source, Verdict,
    decode::decode,
    runner::{Failure, NO_TRACE},
    trace,
};

mod builder;
mod fail;
mod finish;
mod handler;

pub use builder::LeasedBuilder;
pub use handler::{LeasedContext, LeasedHandler};

/// Runs handlers with effects outside the database, each effect once per key. Cheap to clone;
/// clones share the connections and the counts.
///
/// Effects of another system cannot be committed together with the key. So the key is claimed
/// first, for a time that is renewed while the handler runs; each effect is recorded before it is
/// called and remembered after; and the process that takes over from a dead one goes on after the
/// last effect that is known, asking the provider about the one that is not.
///
/// ```
/// use oncebox_inbox::{
///     Answer, CallError, Consumer, Context, HandlerError, Leased, LeasedContext, LeasedHandler, Outcome, Reconciled,
/// };
/// use serde::{Deserialize, Serialize};
/// use tokio_util::sync::CancellationToken;
///
/// # struct Gateway;
/// # impl Gateway {
/// #     async fn charge(&self, _: &str, _: i64) -> Result<String, CallError> { unimplemented!() }
/// #     async fn find(&self, _: &str) -> Result<Option<String>, CallError> { unimplemented!() }
/// # }
/// #[derive(Deserialize)]
/// struct Order { id: i64, cents: i64 }
/// #[derive(Serialize, Deserialize)]
/// struct Paid { order: i64, receipt: String }
///
/// struct Charge { gateway: Gateway }
/// impl LeasedHandler for Charge {
///     type Message = Order;
///     type Reply = Paid;
///
///     async fn handle(&self, cx: &LeasedContext<'_>, order: Order) -> Result<Outcome<Paid>, HandlerError> {
///         let receipt = cx
///             .effect("charge")
///             .call(|key| async move { self.gateway.charge(key.as_str(), order.cents).await })
///             .reconcile(|key| async move {
///                 Ok(self.gateway.find(key.as_str()).await?.map_or(Reconciled::Absent, Reconciled::Happened))
///             })
///             .await?;
///         Ok(Outcome::done(Paid { order: order.id, receipt }))
///     }
///
///     async fn finish(&self, cx: Context<'_>, answer: &Answer<Paid>) -> Result<(), HandlerError> {
///         let Answer::Done(paid) = answer else { return Ok(()) };
///         let sql = "INSERT INTO payment (order_id, receipt) VALUES ($1, $2)";
///         cx.transaction().execute(sql, &[&paid.order, &paid.receipt]).await?;
///         Ok(())
///     }
/// }
///
/// async fn consume(
///     charges: Leased,
///     jetstream: async_nats::jetstream::Context,
///     gateway: Gateway,
///     shutdown: CancellationToken,
/// ) -> Result<(), oncebox_inbox::Error> {
///     Consumer::new(jetstream, "ORDERS", "payment").run(charges, Charge { gateway }, shutdown).await
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Leased {
    inbox: Inbox,
    claims: Arc<LeasedClaims>,
}

impl Leased {
    fn new(inbox: Inbox, claims: Arc<LeasedClaims>) -> Self {
        Self { inbox, claims }
    }

    /// The inbox that the keys end in: for its counts, and for
    /// [`metrics_text`](crate::metrics_text).
    #[must_use]
    pub fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// The claims of this scope that are in progress, in all processes, and the age of the oldest:
    /// for a gauge, an alert, or a person. Reads one row per claim in progress.
    ///
    /// # Errors
    /// PostgreSQL is away or refuses.
    pub async fn in_flight(&self) -> Result<InFlight, Error> {
        self.claims.in_flight(self.inbox.scope()).await
    }

    /// Deals with one message: runs the handler, or answers from the stored outcome. The verdict is
    /// committed.
    ///
    /// Dropping the future leaves the key claimed until its lease ends, and its effects as they are
    /// recorded; running the message again is always right.
    ///
    /// # Errors
    /// PostgreSQL is away or refuses our own statements, or a stored row cannot be read. Run the
    /// message again later.
    pub async fn run<H: LeasedHandler>(
        &self,
        handler: &H,
        received: &Received,
    ) -> Result<Verdict<H::Reply>, Error> {
        let identity = match self.inbox.identify(received) {
            Ok(identity) => identity,
            Err(reason) => return self.inbox.dead_letter(None, received, reason, None).await,
        };
        if let Some(verdict) = self.inbox.wait_in_line(&identity, received).await? {
            return Ok(verdict);
        }
        let Identity { tenant, key, fingerprint, .. } = &identity;
        let name = Name::new(self.inbox.scope(), tenant, key.clone());
        let counters = &self.inbox.shared.counters;
        let id = received.id();
        let claim = async |is_isolation| {
            self.claims
                .acquire(&name, fingerprint, id, (Kind::Consumer, &counters.claims), is_isolation)
                .await
        };
        let (claimed, _isolation) = match claim(false).await? {
            Claim::Alone => match self.inbox.isolate().await {
                Some(alone) => (claim(true).await?, Some(alone)),
                None => (Claim::Alone, None),
            },
            claimed => (claimed, None),
        };
        self.inbox.shared.record_leased(received, &identity, &claimed);
        let claim = match claimed {
            Claim::Won(claim) => claim,
            Claim::InFlight | Claim::Alone => {
                self.inbox.count(&Verdict::<()>::InFlight, received, &identity);
                return Ok(Verdict::InFlight);
            }
            known => return self.inbox.answer_known(&identity, received, known).await,
        };
        let _run = counters.claims.running.begin();
        let run = Run { leased: self, claim, identity, received };
        let failures = run.claim.lease().attempts().saturating_sub(1);
        let past = Past { failures, untraced: 0, rest: Duration::ZERO };
        if past.begin(self.inbox.shared.settings.retries.attempts_max) == Begin::Bury {
            return run.dead_letter(NO_TRACE.to_owned()).await;
        }
        match decode(received) {
            Ok(message) => run.handle(handler, message).await,
            Err(reason) => run.dead_letter(reason).await,
        }
    }

    /// Deals with messages one after another until none waits, like [`Leased::run`] for each.
    pub async fn run_each<H: LeasedHandler, S: Source<H::Reply>>(&self, handler: &H, source: &mut S) {
        while let Some(received) = source.next() {
            let result = self.run(handler, &received).await;
            source.ended(received, result);
        }
    }
}

/// One run of a handler, under a lease.
struct Run<'a> {
    leased: &'a Leased,
    claim: HeldClaim,
    identity: Identity,
    received: &'a Received,
}

impl Run<'_> {
    async fn handle<H: LeasedHandler>(
        &self,
        handler: &H,
        message: H::Message,
    ) -> Result<Verdict<H::Reply>, Error> {
        let limit = self.leased.inbox.database.limits().handler_timeout;
        let end = Instant::now() + limit;
        let cx = LeasedContext {
            lease: self.claim.lease(),
            tenant: &self.identity.tenant,
            received: self.received,
        };
        let span = trace::span(self.leased.inbox.scope(), self.identity.key.as_str(), self.received);
        let code = async { handler.handle(&cx, message).await }.instrument(span.clone());
        let ended = self.claim.keep(handler_call::call(end, code)).await;
        if let Some(cause) = ended.as_ref().map_or(Some("lease-lost"), trace::cause) {
            trace::failed(&span, cause);
        }
        let outcome = match ended {
            Ok(CallEnd::Returned(Ok(outcome))) => outcome,
            Ok(CallEnd::Returned(Err(error))) => return self.handler_failed(error).await,
            Ok(CallEnd::Panicked(panic)) => return self.fail(Failure::panicked(&panic, None)).await,
            Ok(CallEnd::TimedOut) => return self.fail(Failure::timed_out(limit, None)).await,
            Err(lost) => return fail::lost(lost),
        };
        match outcome {
            Outcome::Done(reply) => self.finish(handler, Answer::Done(reply), end).await,
            Outcome::Reject(reply) => self.finish(handler, Answer::Rejected(reply), end).await,
            Outcome::Retry(after) => self.fail(Failure::RetryAfter(after)).await,
            Outcome::Snooze { after, reason } => self.fail(Failure::Snoozed(after, reason)).await,
            Outcome::Dead(reason) => self.fail(Failure::Dead(reason)).await,
        }
    }
}
