//! The relay's metrics, health and spans.

pub(crate) mod health;
pub(crate) mod metrics;
pub(crate) mod openmetrics;
pub(crate) mod traces;

pub(crate) use self::{metrics::Metrics, traces::Traces};
