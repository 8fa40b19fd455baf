//! The relay's metrics, health, spans, and recording of its passes.

pub(crate) mod health;
mod inboxes;
pub(crate) mod metrics;
pub(crate) mod openmetrics;
pub(crate) mod trace_file;
pub(crate) mod traces;
