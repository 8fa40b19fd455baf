//! A request that waits for its claim, or for another request with the same key.

use std::sync::Arc;

use axum::http::request;
use oncebox_claims::identity::Identity;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use crate::{bodies::ReadBody, single_flight::Name};

/// A request that was read and checked, and is to be claimed.
pub(crate) struct PendingRequest {
    pub(crate) parts: request::Parts,
    pub(crate) body: ReadBody,
    pub(crate) name: Arc<Name>,
    pub(crate) identity: Identity,
    /// The time until which it waits for another request with its key.
    pub(crate) deadline: Instant,
    /// Its permit among the requests of the layer.
    pub(crate) _permit: OwnedSemaphorePermit,
}
