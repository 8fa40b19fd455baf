//! The checked settings of an inbox.

use std::time::Duration;

use oncebox_claims::{backoff::Backoff, database::Mode};
use oncebox_schema::Recording;

use crate::{KeySource, identity::TenantSource};

/// The settings, checked.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) scope: String,
    pub(crate) tenant: TenantSource,
    pub(crate) keys: Vec<KeySource>,
    pub(crate) retries: RetryPolicy,
    /// Nothing is suppressed, only reported.
    pub(crate) is_shadow: bool,
    pub(crate) mode: Mode,
    /// Where the steps of messages are written, if anywhere.
    pub(crate) recording: Option<Recording>,
    #[cfg(feature = "redis")]
    pub(crate) gate: Option<crate::Gate>,
}

/// When a message is tried again, and when it is given up.
#[derive(Clone, Debug)]
pub(crate) struct RetryPolicy {
    pub(crate) attempts_max: u64,
    pub(crate) backoff: Backoff,
    /// How long a message may be snoozed in all.
    pub(crate) snooze_max: Duration,
}
