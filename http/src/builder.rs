//! Setting up the layer: all values are checked together.

use std::{sync::Arc, time::Duration};

use axum::http::request::Parts;
use oncebox_claims::{
    database::{Database, TokioPostgres},
    leased::LeasedClaims,
    limits::Limits,
};
use oncebox_schema::{Driver, SchemaName};

mod build;

use crate::{
    handler_response::NOT_STORED,
    settings::{FingerprintOf, Sizes, Tenant, Times},
};

const RETENTION: Duration = Duration::from_secs(24 * 3600);

/// Sets up an [`IdempotencyLayer`](crate::IdempotencyLayer), see its `builder`.
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct Builder<D: Driver = TokioPostgres> {
    driver: D,
    schema: SchemaName,
    scope: String,
    tenant: Option<Tenant>,
    credentials: Option<Vec<String>>,
    fingerprint: Option<FingerprintOf>,
    route: Option<String>,
    header: String,
    passes_without_key: bool,
    not_stored: Vec<u16>,
    kept_headers: Vec<String>,
    sizes: Sizes,
    times: Times,
    documentation: Option<String>,
    limits: Limits,
    is_pooled: bool,
    leases: Option<Leases<D>>,
}

/// How claims under a lease are made: over tokio-postgres only.
type Leases<D> = fn(Arc<Database<D>>, Duration) -> Arc<LeasedClaims>;

impl<D: Driver> Builder<D> {
    pub(crate) fn new(driver: D) -> Self {
        Self {
            driver,
            schema: SchemaName::default(),
            scope: String::new(),
            tenant: None,
            credentials: None,
            fingerprint: None,
            route: None,
            header: "idempotency-key".to_owned(),
            passes_without_key: false,
            not_stored: NOT_STORED.into(),
            kept_headers: ["content-type", "location", "etag", "link"].map(str::to_owned).into(),
            sizes: Sizes {
                request_body_max: 256 << 10,
                response_body_max: 256 << 10,
                requests_max: 16_384,
                buffered_max: 64 << 20,
            },
            times: Times {
                in_flight_wait: Duration::from_millis(1_500),
                retry_after: Duration::from_secs(1),
                request_body_timeout: Duration::from_secs(30),
                lease: None,
            },
            documentation: None,
            limits: Limits { retention: Some(RETENTION), ..Limits::DEFAULT },
            is_pooled: false,
            leases: None,
        }
    }

    /// The PostgreSQL schema that Oncebox is installed in. Default: `oncebox`.
    pub fn schema(mut self, name: SchemaName) -> Self {
        self.schema = name;
        self
    }

    /// Which service answers; with method and route it is the scope of a key. Required, 1 to 100
    /// bytes. Never rename it while clients may repeat requests: they would be done again.
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.scope = scope.into();
        self
    }

    /// All requests belong to one tenant. This or [`Builder::tenant`] is required.
    ///
    /// A replay skips everything inside of the layer, also an extractor that checks users. So a
    /// repeated request must have the [credentials](Builder::credentials) of the first one, else it
    /// is refused with 422. Where there are users, say [`Builder::tenant`] rather: then a client
    /// gets its answer also with a new token.
    pub fn single_tenant(mut self) -> Self {
        self.tenant = Some(Tenant::Single);
        self
    }

    /// The headers that say who makes a request: a repeated request gets the stored response only
    /// if it has the same values. Default: with [`Builder::single_tenant`] `authorization` and
    /// `cookie`, with [`Builder::tenant`] none. Name yours if users are known by another header,
    /// such as `x-api-key`; leave out those that change with each attempt, such as a signature of
    /// the time.
    pub fn credentials<N: Into<String>>(mut self, headers: impl IntoIterator<Item = N>) -> Self {
        self.credentials = Some(headers.into_iter().map(Into::into).collect());
        self
    }

    /// Every client that sends the key and the content of a request gets its stored response, with
    /// any credentials or none. Use it only if responses are no secret, or if every client of the
    /// layer may see them, for example if a gateway before it admits one client only.
    pub fn public_responses(mut self) -> Self {
        self.credentials = Some(Vec::new());
        self
    }

    /// The content of a request, where that is not its content type and its body: a repeated
    /// request with the key of another content is refused with 422. Method, path, query and
    /// [credentials](Builder::credentials) count in any case. For clients that do not repeat the
    /// same bytes, such as those that write a new time into each attempt.
    ///
    /// By default the body counts byte by byte, but not the boundary of a multipart body, nor
    /// whether a content type names the charset UTF-8.
    ///
    /// ```
    /// # fn builder(builder: oncebox_http::Builder) -> oncebox_http::Builder {
    /// // The body ends with a line that has the time.
    /// builder.content(|_, body| body.split(|byte| *byte == b'\n').next().unwrap_or_default().to_vec())
    /// # }
    /// ```
    pub fn content(mut self, content: impl Fn(&Parts, &[u8]) -> Vec<u8> + Send + Sync + 'static) -> Self {
        self.fingerprint = Some(FingerprintOf(Arc::new(content)));
        self
    }

    /// Who makes the request. Take the tenant from the result of an authentication before this
    /// layer, never from a value that every client can send. Each tenant has keys of its own, and
    /// all clients with one tenant get its stored responses: so prefer a user's id to a company's.
    /// The layer answers 403 to `None`, and to a tenant that is not 1 to 255 bytes without control
    /// characters.
    ///
    /// ```
    /// # #[derive(Clone)] struct Account { id: u32 }
    /// # fn builder(builder: oncebox_http::Builder) -> oncebox_http::Builder {
    /// builder.tenant(|parts| Some(parts.extensions.get::<Account>()?.id.to_string()))
    /// # }
    /// ```
    pub fn tenant(mut self, tenant: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.tenant = Some(Tenant::By(Arc::new(tenant)));
        self
    }

    /// The route, 1 to 130 bytes, for services other than axum's router, whose own template
    /// (`/orders/{id}`) is taken by default. Keys of different routes have nothing to do with each
    /// other.
    pub fn route(mut self, route: impl Into<String>) -> Self {
        self.route = Some(route.into());
        self
    }

    /// The header that holds the client's key. Default: `Idempotency-Key`.
    pub fn key_header(mut self, name: impl Into<String>) -> Self {
        self.header = name.into();
        self
    }

    /// Requests without a key are passed on as they are: no transaction, no claim, nothing stored.
    /// By default they are refused with 400. GET, HEAD, OPTIONS and TRACE always pass, with a key
    /// too: a handler of theirs has no claim to extract.
    pub fn pass_without_key(mut self) -> Self {
        self.passes_without_key = true;
        self
    }

    /// The statuses from 400 to 499 that are not stored: the layer rolls back the handler's writes,
    /// and the next attempt runs the handler again. Default: 401, 403, 408, 409, 425, 429: a client
    /// that was refused by an extractor inside of the layer may come back with a better token.
    pub fn not_stored(mut self, statuses: impl IntoIterator<Item = u16>) -> Self {
        self.not_stored = statuses.into_iter().collect();
        self
    }

    /// The headers of a response that are stored and replayed, besides its status, its body and the
    /// `content-encoding` that the body is in. Default: `content-type`, `location`, `etag`, `link`;
    /// 60 KiB in all, above which only the status is stored.
    pub fn kept_headers<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.kept_headers = names.into_iter().map(Into::into).collect();
        self
    }

    /// The largest body of a request, in bytes; a larger one is refused with 413. Default: 256 KiB,
    /// at most 64 MiB.
    pub fn request_body_max(mut self, bytes: usize) -> Self {
        self.sizes.request_body_max = bytes;
        self
    }

    /// The largest body of a response that is stored, in bytes; of a larger one only status and
    /// headers are. Default: 256 KiB, at most 960 KiB.
    pub fn response_body_max(mut self, bytes: usize) -> Self {
        self.sizes.response_body_max = bytes;
        self
    }

    /// How many requests there may be in the layer at once, those that wait for another one
    /// included; more are refused with 503. Default: 16,384, at most 1,048,576. How many handlers
    /// run at once is the size of the pool.
    pub fn requests_max(mut self, count: usize) -> Self {
        self.sizes.requests_max = count;
        self
    }

    /// How many bytes the bodies of all these requests may have in all. When they are used up,
    /// bodies that have been arriving for more than a second give way with 408, the oldest first;
    /// where there is none, requests are refused with 503. Default: 64 MiB, at most 2 GiB.
    pub fn buffered_max(mut self, bytes: usize) -> Self {
        self.sizes.buffered_max = bytes;
        self
    }

    /// How long a repeated request waits for the first one, before it is answered with 409.
    /// Default: 1.5 seconds, at most one hour.
    pub fn in_flight_wait(mut self, limit: Duration) -> Self {
        self.times.in_flight_wait = limit;
        self
    }

    /// The value of `Retry-After` with 409 and 503, in whole seconds. Default: 1 second, at most
    /// one hour.
    pub fn retry_after(mut self, pause: Duration) -> Self {
        self.times.retry_after = pause;
        self
    }

    /// How long a request's body may take to arrive; a slower one is refused with 408. Default: 30
    /// seconds, at most one hour.
    pub fn request_body_timeout(mut self, limit: Duration) -> Self {
        self.times.request_body_timeout = limit;
        self
    }

    /// Where your API's documentation says how it uses the key: a URI for a `Link` with
    /// `rel="describedby"` in the layer's own answers. Default: none.
    pub fn documentation(mut self, uri: impl Into<String>) -> Self {
        self.documentation = Some(uri.into());
        self
    }

    /// How long the handler may take, its statements and a stored body included. Default: 60
    /// seconds, at most 24 hours.
    pub fn handler_timeout(mut self, limit: Duration) -> Self {
        self.limits.handler_timeout = limit;
        self
    }

    /// How long one statement may take. Default: no limit but the handler's.
    pub fn statement_timeout(mut self, limit: Duration) -> Self {
        self.limits.statement_timeout = Some(limit);
        self
    }

    /// How long a statement may wait for a lock. Default: no limit but the handler's.
    pub fn lock_timeout(mut self, limit: Duration) -> Self {
        self.limits.lock_timeout = Some(limit);
        self
    }

    /// How long a response is kept at least, 1 second to 100 years, by the database's clock, or
    /// `None` for ever. Default: 24 hours. A request that is repeated after this time counts as
    /// new, and is done again: tell your clients, and keep responses for longer than they repeat
    /// requests.
    ///
    /// Old responses are deleted in small steps by one process at a time, as those of an inbox are,
    /// from the first request with a key on. So are, in the leased form, claims for which no client
    /// came back in that time, with the records of their effects.
    pub fn retention(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.limits.retention = limit.into();
        self
    }

    /// How long to wait for a connection of the pool. Default: 5 seconds.
    pub fn acquire_timeout(mut self, limit: Duration) -> Self {
        self.limits.acquire_timeout = limit;
        self
    }

    /// Connections go through a pooler in transaction mode, so nothing is prepared.
    pub fn behind_pooler(mut self) -> Self {
        self.is_pooled = true;
        self
    }
}

impl Builder {
    /// For handlers with effects outside the database: the claim is committed before the handler
    /// runs, and holds for this time without being renewed, which happens every third of it; 100
    /// milliseconds to one hour, 30 seconds are a good value. For that time a key rests after its
    /// process died. Handlers extract a [`LeasedClaim`](crate::LeasedClaim). A route's keys belong
    /// to one form: do not change it while requests are in flight.
    pub fn leased(mut self, lease: Duration) -> Self {
        self.times.lease = Some(lease);
        self.leases = Some(|database, lease| Arc::new(LeasedClaims::new(database, lease)));
        self
    }
}
