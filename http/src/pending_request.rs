//! A request that waits for its claim, or for another request with the same key.

use std::sync::Arc;

use axum::{body::Bytes, http::request};
use oncebox_claims::identity::Identity;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use crate::single_flight::Name;

/// A request that was read and checked, and is to be claimed.
pub(crate) struct PendingRequest {
    pub(crate) parts: request::Parts,
    pub(crate) body: Bytes,
    pub(crate) name: Arc<Name>,
    pub(crate) identity: Identity,
    /// The time until which it waits for another request with its key.
    pub(crate) deadline: Instant,
    /// Its permit among the requests of the layer, and the permits for its body's bytes.
    pub(crate) _permits: (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>),
}
