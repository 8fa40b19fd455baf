//! One request between its claim and its commit: a task that its client cannot cut short.
//!
//! ```text
//!           ┌─ response stored ─▶ same request? replay, else 422
//! look ─────┤
//!   │       └─ PostgreSQL away ─▶ 503
//!   ▼ nothing stored
//! begin, claim ──locked──▶ let the connection go, wait, look again; at the deadline 409
//!   ▼ won
//! handler ──panic, timeout, drain──▶ close the connection ─▶ 500 or 503
//!   ▼ response
//! 5xx, 401, 403, 408, 409, 425, 429 ─▶ ROLLBACK ─▶ pass the response on: the key is free again
//! other 4xx ─▶ ROLLBACK ─▶ claim, store the response, COMMIT ─▶ respond
//! 2xx, 3xx ─▶ store the response, CLOSE ALL, COMMIT ─▶ respond ──answer lost──▶ 503: the next attempt finds out
//! ```

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use axum::{
    BoxError,
    body::{Body, Bytes, HttpBody},
    http::{HeaderValue, Request, Response, request},
    response::IntoResponse,
};
use futures_util::{FutureExt, future::poll_fn};
use http_body_util::BodyExt;
use oncebox_claims::{
    Error,
    backoff::Backoff,
    database::{Kind, Mode, discard},
    identity::Identity,
    leased::{self, HeldClaim},
    stored::{COMPLETED, Stored},
    transactional::{Claim, Expect},
};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, sleep_until, timeout},
};
use tower_service::Service;
use tracing::{debug, error, warn};

use crate::{
    KeepWrites,
    answer::REPLAYED,
    claim::{Claimed, Open, Ticket},
    ending::{Called, CalledBody, Ending, Turn},
    gate::{Found, Name, Pass},
    kept::Kept,
    layer::Shared,
    problem::Problem,
};
/// The pauses between looks at a key that another process works on.
const LOOK: Backoff = Backoff { first: Duration::from_millis(10), max: Duration::from_millis(100) };
/// How long our own statements may take, each; beyond it the connection counts as broken.
pub(crate) const DATABASE_LIMIT: Duration = Duration::from_secs(30);

/// A request that is worth a claim.
pub(crate) struct Asked {
    pub(crate) parts: request::Parts,
    pub(crate) body: Bytes,
    pub(crate) name: Arc<Name>,
    pub(crate) identity: Identity,
    /// Until when it waits for another one with its key.
    pub(crate) deadline: Instant,
    /// Its place in the layer, and its body's memory.
    pub(crate) _permits: (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>),
}

/// What a look at the key showed.
enum Seen {
    Won(Open),
    Leased(HeldClaim),
    InFlight,
    Stored(Stored),
    Mismatch,
}

/// Why there is no response of the handler's.
pub(crate) enum Broken {
    Panicked,
    TooSlow,
    Stopped,
    Failed(BoxError),
}

/// Calls a service when it is ready.
pub(crate) async fn call<S>(mut inner: S, request: Request<Body>) -> Result<Response<Body>, BoxError>
where
    S: Service<Request<Body>>,
    S::Response: IntoResponse,
    S::Error: Into<BoxError>,
{
    poll_fn(|context| inner.poll_ready(context)).await.map_err(Into::into)?;
    Ok(inner.call(request).await.map_err(Into::into)?.into_response())
}

impl Shared {
    /// Looks at the key until it is ours, or done, or the deadline has come.
    pub(crate) async fn work<S>(self: Arc<Self>, inner: S, asked: Asked, pass: Pass) -> Response<Body>
    where
        S: Service<Request<Body>> + Send,
        S::Response: IntoResponse,
        S::Error: Into<BoxError>,
        S::Future: Send,
    {
        let mut looks = 0;
        loop {
            match self.look(&asked).await {
                Ok(Seen::Won(open)) => {
                    self.available();
                    let _run = self.counters.claims.running.begin();
                    return self.run(inner, asked, &pass, open).await;
                }
                Ok(Seen::Stored(stored)) => {
                    self.available();
                    return self.found(&asked, &pass, stored);
                }
                Ok(Seen::Leased(claim)) => {
                    self.available();
                    let _run = self.counters.claims.running.begin();
                    return self.run_leased(inner, asked, &pass, claim).await;
                }
                Ok(Seen::Mismatch) => return self.refuse(Problem::KeyReused),
                Ok(Seen::InFlight) => {}
                Err(error @ Error::OtherMode { .. }) => {
                    error!("{error}");
                    return self.refuse(Problem::SetUpWrongly);
                }
                Err(error) => return self.unavailable(&error),
            }
            if Instant::now() >= asked.deadline {
                return self.refuse(Problem::InFlight);
            }
            looks += 1;
            sleep_until(asked.deadline.min(Instant::now() + LOOK.after(looks))).await;
        }
    }

    /// First without a transaction: a duplicate costs one round trip.
    async fn look(&self, asked: &Asked) -> Result<Seen, Error> {
        let scope = &asked.name.scope;
        if let Some(leased) = &self.leased {
            let Identity { tenant, key, fingerprint, .. } = &asked.identity;
            let name = leased::Name::new(scope, tenant, key.clone());
            let (owner, may_take_over) = ((Kind::Http, &self.counters.claims), true);
            return Ok(match leased.acquire(&name, fingerprint, None, owner, may_take_over).await? {
                leased::Claimed::Won(claim) => Seen::Leased(claim),
                leased::Claimed::InFlight | leased::Claimed::Suspect => Seen::InFlight,
                leased::Claimed::Stored(stored) => Seen::Stored(stored),
                leased::Claimed::Mismatch => Seen::Mismatch,
            });
        }
        let started = Instant::now();
        self.database.register(scope, Kind::Http, Mode::Transaction).await?;
        let object = self.database.connect().await?;
        match within(self.transactional.peek(&object, scope, &asked.identity)).await {
            Ok(None) => {}
            Ok(Some(stored)) => {
                self.counters.claims.claim_time.observe(started, 1);
                return Ok(Seen::Stored(stored));
            }
            Err(error) => {
                discard(object);
                return Err(error);
            }
        }
        let open = Open::begin(&self.database, object).await?;
        let (transaction, expect) = (open.transaction(), Expect::Either);
        let claim = self.transactional.claim(transaction, scope, &asked.identity, None, expect, COMPLETED);
        let claim = match within(claim).await {
            Ok(claim) => claim,
            Err(error) => {
                open.abandon();
                return Err(error);
            }
        };
        self.counters.claims.claim_time.observe(started, 1);
        Ok(match claim {
            Some(Claim::Won) => Seen::Won(open),
            Some(Claim::Stored(stored)) => Seen::Stored(stored),
            // Another process has committed it since we looked: the next look finds it.
            Some(Claim::InFlight) | None => Seen::InFlight,
        })
    }

    /// Answers from a row, and lets those behind do the same.
    fn found(&self, asked: &Asked, pass: &Pass, stored: Stored) -> Response<Body> {
        let (scope, key) = (&asked.name.scope, asked.name.key.as_str());
        let kept = stored.outcome.as_deref().and_then(Kept::decode);
        if kept.is_none() {
            warn!(scope, key, "the row of this key holds no response: did a handler commit by itself?");
        }
        debug!(scope, key, "repeated request, answered from the stored response");
        let found = Arc::new(Found { fingerprint: stored.fingerprint, kept });
        let response = self.replay(&found, &asked.identity);
        pass.tell(found);
        response
    }

    async fn run<S>(&self, inner: S, asked: Asked, pass: &Pass, open: Open) -> Response<Body>
    where
        S: Service<Request<Body>> + Send,
        S::Response: IntoResponse,
        S::Error: Into<BoxError>,
        S::Future: Send,
    {
        let Asked { mut parts, body, name, identity, _permits, .. } = asked;
        let turn = Turn { scope: &name.scope, identity: &identity, pass };
        let documentation = self.settings.documentation.clone();
        let claimed = Claimed::new(open, &identity, documentation);
        parts.extensions.insert(Ticket::Claimed(Arc::clone(&claimed)));
        let called = self.call(inner, Request::from_parts(parts, Body::from(body))).await;
        let open = claimed.close();
        let mut called = match called {
            Ok(called) => called,
            Err(broken) => {
                if let Some(open) = open {
                    open.abandon();
                }
                return self.broken(&turn, &broken);
            }
        };
        called.parts.headers.insert(REPLAYED, HeaderValue::from_static("false"));
        let keeps_writes = called.parts.extensions.get::<KeepWrites>().is_some();
        match (self.ending(called.parts.status, keeps_writes), open) {
            (Ending::Release, open) => {
                if let Some(open) = open {
                    open.roll_back().await;
                }
                self.release(called)
            }
            (Ending::Reject, Some(open)) => self.reject(&turn, open, called).await,
            (Ending::Commit(status), Some(open)) => self.commit(&turn, open, status, called).await,
            (Ending::Reject | Ending::Commit(_), None) => {
                let (scope, key) = turn.labels();
                error!(scope, key, "no effect: the handler has kept its claim beyond its response");
                self.refuse(Problem::HandlerFailed)
            }
        }
    }

    /// Runs the handler to the end of what is to be stored of its response.
    pub(crate) async fn call<S>(&self, inner: S, request: Request<Body>) -> Result<Called, Broken>
    where
        S: Service<Request<Body>> + Send,
        S::Response: IntoResponse,
        S::Error: Into<BoxError>,
        S::Future: Send,
    {
        let whole = async {
            let (parts, body) = call(inner, request).await.map_err(Broken::Failed)?.into_parts();
            let max = self.settings.sizes.response_body_max as u64;
            let is_kept = self.ending(parts.status, false) != Ending::Release;
            // A body that does not know its own length is a stream, perhaps one without an end.
            if is_kept && body.size_hint().exact().is_some_and(|length| length <= max) {
                let collected = body.collect().await.map_err(|error| Broken::Failed(error.into()))?;
                return Ok(Called { parts, body: CalledBody::Whole(collected.to_bytes()) });
            }
            Ok(Called { parts, body: CalledBody::Streamed(body) })
        };
        let limited = timeout(self.settings.limits.handler_timeout, AssertUnwindSafe(whole).catch_unwind());
        tokio::select! {
            called = limited => match called {
                Ok(Ok(called)) => called,
                Ok(Err(_)) => Err(Broken::Panicked),
                Err(_) => Err(Broken::TooSlow),
            },
            () = self.stop.cancelled() => Err(Broken::Stopped),
        }
    }

    pub(crate) fn broken(&self, turn: &Turn<'_>, broken: &Broken) -> Response<Body> {
        let (scope, key) = turn.labels();
        match broken {
            Broken::Panicked => {
                error!(scope, key, "no effect: the handler panicked");
                self.refuse(Problem::HandlerFailed)
            }
            Broken::Failed(reason) => self.failed(&**reason),
            Broken::TooSlow => {
                let limit = self.settings.limits.handler_timeout;
                warn!(scope, key, "no effect: the handler took longer than {limit:?}");
                self.refuse(Problem::HandlerTooSlow)
            }
            Broken::Stopped => self.refuse(Problem::Draining),
        }
    }
}

/// Bounds what our own statements may take.
pub(crate) async fn within<T>(statements: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match timeout(DATABASE_LIMIT, statements).await {
        Ok(result) => result,
        Err(elapsed) => Err(Error::Unavailable("wait for PostgreSQL", elapsed.into())),
    }
}
