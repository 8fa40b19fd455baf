//! What a layer was set up with.

use std::{fmt, sync::Arc, time::Duration};

use axum::http::{HeaderName, HeaderValue, request::Parts};
use oncebox_schema::SchemaName;

use crate::inbox::Limits;

/// Finds out for whom a request is made.
type TenantOf = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

#[derive(Clone)]
pub(super) enum Tenant {
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

/// Checked settings.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) schema: SchemaName,
    pub(super) scope: String,
    pub(super) tenant: Tenant,
    pub(super) route: Option<String>,
    pub(super) header: HeaderName,
    pub(super) passes_without_key: bool,
    /// Of the 4xx.
    pub(super) not_stored: Vec<u16>,
    pub(super) kept_headers: Vec<HeaderName>,
    pub(super) sizes: Sizes,
    pub(super) times: Times,
    pub(super) documentation: Option<HeaderValue>,
    pub(super) limits: Limits,
}

#[derive(Clone, Debug)]
pub(super) struct Sizes {
    pub(super) request_body_max: usize,
    pub(super) response_body_max: usize,
    pub(super) requests_max: usize,
    pub(super) buffered_max: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Times {
    pub(super) in_flight_wait: Duration,
    pub(super) retry_after: Duration,
    pub(super) request_body_timeout: Duration,
    /// In the leased form.
    pub(super) lease: Option<Duration>,
}
