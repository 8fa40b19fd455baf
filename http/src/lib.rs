//! Answers a repeated HTTP request from the stored response: a tower layer for the
//! `Idempotency-Key` header.
//!
//! A client that got no answer does not know whether its request was done, so it sends it again,
//! with the same key. The layer claims the key in the transaction that the handler writes through,
//! and stores the response in it: the handler's rows, its outbox messages, the key and the response
//! are committed together, and the response is sent only after that. A repeated request gets the
//! same status, listed headers and body, without the handler. It follows the IETF draft on the
//! `Idempotency-Key` header, and belongs to axum, or to any tower service of axum's request and
//! response.
//!
//! ```
//! use axum::{Json, Router, extract::State, http::StatusCode, routing::post};
//! use oncebox_http::{Claim, IdempotencyLayer};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Deserialize)]
//! struct NewOrder { customer: i64, cents: i64 }
//! #[derive(Serialize)]
//! struct Order { id: i64 }
//!
//! async fn place(claim: Claim, Json(order): Json<NewOrder>) -> Result<(StatusCode, Json<Order>), StatusCode> {
//!     let sql = "INSERT INTO orders (customer, cents) VALUES ($1, $2) RETURNING id";
//!     let row = claim.transaction().query_one(sql, &[&order.customer, &order.cents]).await;
//!     let id = row.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?.get(0);
//!     // A message to the payment service goes out with this order or not at all; its key is claim.key().step("pay").
//!     Ok((StatusCode::CREATED, Json(Order { id })))
//! }
//!
//! fn orders(pool: deadpool_postgres::Pool) -> Result<(Router, IdempotencyLayer), oncebox_http::InvalidSettings> {
//!     let once = IdempotencyLayer::builder(pool).scope("shop").single_tenant().build()?;
//!     let router = Router::new().route("/orders", post(place)).route_layer(once.clone());
//!     Ok((router, once))   // keep the layer: drain it at the end
//! }
//! ```
//!
//! # Promises and limits
//!
//! - Writes through [`Claim::transaction`] happen once per (scope, tenant, method, route, key),
//!   after any crash, and however often, concurrently or where the client repeats the request.
//! - A response that was sent is a response that is committed. When the answer to COMMIT is lost,
//!   the response is 503, and the next attempt finds out whether the commit happened.
//! - A handler that has begun is not cut short when its client goes away: it runs in a task of the
//!   layer's own, which [`IdempotencyLayer::drain`] waits for. Values of the request's own task
//!   (task-locals) are not available in it.
//! - A key belongs to one request: with another path, query, content type or body, or, in a
//!   [single-tenant](Builder::single_tenant) layer, with other credentials, it is refused, never
//!   answered.
//! - Not promised: effects outside this database. Send a message through the outbox instead, with a
//!   key derived from [`Claim::key`], or hand that key to the other system.
//!
//! # Where the layer stands
//!
//! A replay skips everything inside of the layer. Put layers that must see each request before it:
//! authentication, which finds out the [tenant](Builder::tenant), rate limits, compression. In
//! axum, add them later: `.route_layer(once).layer(authentication)`. The handler is told that the
//! client accepts no encoding, since a stored response may be for another client.
//!
//! # Effects outside the database
//!
//! A handler that calls another system, such as a payment gateway, must not hold a transaction
//! meanwhile, and cannot have its call rolled back. [`Builder::leased`] makes a layer that commits
//! the claim first, for a time that is renewed while the handler runs; the handler extracts a
//! [`LeasedClaim`], whose effects and writes are remembered one by one. Everything else is the
//! same, with one exception: when the response is not stored, nothing that the handler did is
//! undone, and the next attempt goes on where this one ended.
//!
//! # Which responses are stored
//!
//! | status | handler's writes | response |
//! |---|---|---|
//! | 2xx, 3xx | committed | stored, replayed |
//! | 4xx | rolled back, or committed with [`KeepWrites`] | stored, replayed |
//! | 401, 403, 408, 409, 425, 429, 5xx | rolled back | passed on; the key is free for the next attempt |
//!
//! Which 4xx are not stored is a setting, [`Builder::not_stored`].
//!
//! Stored are the status, the headers of [`Builder::kept_headers`] and the body, with its
//! `content-encoding`. Trailers reach the first client, and are not stored. A body that is longer
//! than [`Builder::response_body_max`], or that does not know its own length (a stream), is sent to
//! the first client after the commit, but not stored; a repeated request then gets 410, see below,
//! and nothing is done twice. A stored response carries `Idempotent-Replayed: true`, the first one
//! `false`.
//!
//! # Answers of the layer itself
//!
//! `application/problem+json` with these types, `urn:oncebox:problem:...`; nothing internal goes
//! into them.
//!
//! | status | type | when |
//! |---|---|---|
//! | 400 | `key-missing` | no key, and the layer does not let such requests pass |
//! | 400 | `key-malformed` | not one string of 1 to 128 visible ASCII characters, quoted (RFC 9651) or bare; or several that differ |
//! | 400, 408 | `body-unreadable`, `body-too-slow` | the body ended too early, or took too long |
//! | 403 | `tenant-missing` | [`Builder::tenant`] found none |
//! | 409 | `in-flight` | the first request with the key still runs; `Retry-After` |
//! | 410 | `response-not-kept` | the first request was done with status `first_status`, but its body was not stored; kept headers such as `location` are |
//! | 413 | `body-too-large` | above [`Builder::request_body_max`] |
//! | 422 | `key-reused` | the key was used for another request, or with other credentials |
//! | 500 | `failed` | the handler panicked, kept its claim, swallowed an error of SQL, or committed by itself |
//! | 500 | `set-up-wrongly` | there is no route, or no layer, or the claim is extracted twice, or for a GET |
//! | 501 | `method-unknown` | a method with a name of more than 20 characters |
//! | 503 | `unavailable` | PostgreSQL is away, a conflict with another transaction, or a lost commit; `Retry-After` |
//! | 503 | `overloaded`, `draining`, `too-slow` | more than [`Builder::requests_max`] or [`Builder::buffered_max`]; shutting down; above [`Builder::handler_timeout`]; `Retry-After` |
//!
//! A client that repeats its request after one of these answers uses the same key. After 422 it
//! sends its first request again, unchanged; with a new key the handler would run again.
//!
//! # Repeated while the first one runs
//!
//! A repeated request waits up to [`Builder::in_flight_wait`] without a connection, and then gets
//! the response of the first one, or 409. Within a process the later requests wait for the response
//! of the first, which answers them all; requests in other processes look every 10 to 100
//! milliseconds. Ten thousand requests with one key take one connection.

mod answer;
mod bodies;
mod builder;
mod claim;
mod commit;
mod counts;
mod handler_response;
mod intake;
mod layer;
mod leased;
mod metrics;
mod pending_request;
mod problem;
mod request;
mod run;
mod settings;
mod shared;
mod single_flight;
mod stored_response;

pub use builder::Builder;
pub use claim::{Claim, LeasedClaim, NoClaim};
pub use counts::Counts;
pub use layer::{IdempotencyLayer, Idempotent};
/// The items of `oncebox-claims` that handlers and programs need.
pub use oncebox_claims::{
    Error, HandlerError, InvalidSettings, LockError,
    leased::{
        Call, CallError, Effect, EffectError, Lease, ProviderIdempotent, ReadyEffect, Reconcile, Reconciled,
    },
    lock,
    metrics::{LeaseCounts, Measure, Measured, metrics_text},
    natural,
};
/// The transaction that a handler writes through.
pub use oncebox_schema::Transaction;

/// In the extensions of a 4xx response: the layer commits the handler's writes with it. Without
/// this extension the layer rolls them back.
///
/// ```
/// use axum::{Extension, http::StatusCode, response::IntoResponse};
/// use oncebox_http::{Claim, KeepWrites};
///
/// async fn withdraw(claim: Claim) -> Result<impl IntoResponse, StatusCode> {
///     let failed = |_| StatusCode::INTERNAL_SERVER_ERROR;
///     claim.transaction().execute("INSERT INTO refused (reason) VALUES ('no money')", &[]).await.map_err(failed)?;
///     Ok((StatusCode::PAYMENT_REQUIRED, Extension(KeepWrites), "no money"))
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepWrites;
