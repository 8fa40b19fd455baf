//! Events: which kinds of trouble are told to programs, as messages through the outbox.

use std::{fmt, str::FromStr};

use crate::rows::Parameters;
use serde::Serialize;

use super::{Operator, Result};

/// Trouble that a program can be told of. Each kind has the subject `oncebox.events.KIND`; its
/// fields are in `docs/commands.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum EventKind {
    /// The relay has set a message aside, and tries again.
    Parked,
    /// The relay has given a message up.
    Dead,
    /// A stream has lost messages that it had acknowledged.
    Loss,
    /// An operator has paused, throttled or resumed messages.
    Pause,
    /// An inbox has given a message up.
    DeadLetter,
    /// A saga waits for an operator.
    Stuck,
    /// Messages are not in the inbox that is expected to have them.
    Unhandled,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [Self; 7] =
        [Self::Parked, Self::Dead, Self::Loss, Self::Pause, Self::DeadLetter, Self::Stuck, Self::Unhandled];

    /// The last token of its subject.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Parked => "parked",
            Self::Dead => "dead",
            Self::Loss => "loss",
            Self::Pause => "pause",
            Self::DeadLetter => "dead-letter",
            Self::Stuck => "stuck",
            Self::Unhandled => "unhandled",
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EventKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("the kinds are {}", Self::ALL.map(Self::name).join(", ")))
    }
}

impl Operator {
    /// The kinds of events that are sent.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn events(&self) -> Result<Vec<EventKind>> {
        self.kinds("list events", &self.sql.events, &[]).await
    }

    /// Has kinds of events sent, or sent no more, from the next transaction on; returns those that
    /// this changes.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn send_events(&self, kinds: &[EventKind], enabled: bool) -> Result<Vec<EventKind>> {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        let (by, note) = (self.stamp.operator.as_deref(), self.stamp.note.as_deref());
        let sql = if enabled { &self.sql.enable_events } else { &self.sql.disable_events };
        self.kinds("choose events", sql, &[&names, &by, &note]).await
    }

    async fn kinds(
        &self,
        action: &'static str,
        sql: &str,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<EventKind>> {
        let rows = self.query(action, sql, parameters).await?;
        Ok(rows.iter().filter_map(|row| row.get::<_, &str>(0).parse().ok()).collect())
    }
}
