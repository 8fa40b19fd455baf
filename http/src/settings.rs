//! The settings of a layer.

use std::{fmt, sync::Arc, time::Duration};

use axum::http::{HeaderName, HeaderValue, request::Parts};
use oncebox_claims::limits::Limits;
use oncebox_schema::SchemaName;

/// Finds the tenant of a request.
type TenantOf = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

#[derive(Clone)]
pub(crate) enum Tenant {
    Single,
    By(TenantOf),
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "Single",
            Self::By(_) => "By(..)",
        })
    }
}

type Fingerprint = dyn Fn(&Parts, &[u8]) -> Vec<u8> + Send + Sync;

/// The user's own function that reads the content of a request.
#[derive(Clone)]
pub(crate) struct FingerprintOf(pub(crate) Arc<Fingerprint>);

impl FingerprintOf {
    pub(crate) fn of(&self, parts: &Parts, body: &[u8]) -> Vec<u8> {
        (self.0)(parts, body)
    }
}

impl fmt::Debug for FingerprintOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FingerprintOf(..)")
    }
}

/// Checked settings.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) schema: SchemaName,
    pub(crate) scope: String,
    pub(crate) tenant: Tenant,
    /// The headers that a repeated request must have as the first one had them.
    pub(crate) credentials: Vec<HeaderName>,
    pub(crate) fingerprint: Option<FingerprintOf>,
    pub(crate) route: Option<String>,
    pub(crate) header: HeaderName,
    pub(crate) passes_without_key: bool,
    /// The statuses from 400 to 499 that are not stored.
    pub(crate) not_stored: Vec<u16>,
    pub(crate) kept_headers: Vec<HeaderName>,
    pub(crate) sizes: Sizes,
    pub(crate) times: Times,
    pub(crate) documentation: Option<HeaderValue>,
    pub(crate) limits: Limits,
}

#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    pub(crate) request_body_max: usize,
    pub(crate) response_body_max: usize,
    pub(crate) requests_max: usize,
    pub(crate) buffered_max: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Times {
    pub(crate) in_flight_wait: Duration,
    pub(crate) retry_after: Duration,
    pub(crate) request_body_timeout: Duration,
    /// How long a lease lasts without a renewal, in the leased form.
    pub(crate) lease: Option<Duration>,
}
