//! A pause as the database has it.

use oncebox_relay::facts::covers;
use schemars::JsonSchema;
use serde::Serialize;

use super::{rows::from_row, time::Time};

/// A pause, or with a rate a throttle.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct PauseRow {
    /// `all`, `subject`, `stream` or `ordering key`.
    pub kind: String,
    /// The pattern, name or key.
    pub value: String,
    /// Messages a second; `None` = none.
    pub rate: Option<f64>,
    /// The patterns of subjects; `None` for an ordering key.
    pub subjects: Option<Vec<String>>,
    /// Why, by the operator's own word.
    pub reason: Option<String>,
    /// Who, by their own word.
    pub paused_by: Option<String>,
    /// Who, as the database knows it.
    pub database_user: String,
    /// Since when.
    pub paused_at: Time,
    /// Until when; `None` until an operator resumes it.
    pub ends_at: Option<Time>,
}

impl PauseRow {
    /// Whether it is about a message.
    pub(crate) fn takes(&self, subject: &str, ordering_key: Option<&str>) -> bool {
        match &self.subjects {
            Some(patterns) => patterns.iter().any(|pattern| covers(pattern, subject)),
            None => ordering_key == Some(&self.value),
        }
    }
}

from_row!(PauseRow: kind, value, rate, subjects, reason, paused_by, database_user, paused_at, ends_at);
