//! The settings of scopes, which an operator may change.

use std::time::Duration;

use oncebox_connect::postgres::Parameter;
use serde::Serialize;

use super::{
    Operator, Result, commit,
    rows::{all, from_row, query},
    time::Time,
};

/// The settings of a scope, as its processes registered them or an operator changed them.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ScopeSettings {
    /// The consumer or the HTTP route: `service:handler`.
    pub scope: String,
    /// `consumer` or `http`.
    pub kind: String,
    /// `transaction` or `lease`: how its processes claim keys; `None` when none has said.
    pub mode: Option<String>,
    /// How long it keeps a key; `None` is for ever.
    pub retention_seconds: Option<f64>,
    /// How long it keeps a dead letter; `None` is for ever.
    pub dead_letter_seconds: Option<f64>,
    /// When they were last set.
    pub registered_at: Time,
}

from_row!(ScopeSettings: scope, kind, mode, retention_seconds, dead_letter_seconds, registered_at);

/// A time for which something is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there is nothing between them")]
pub enum Keeps {
    /// For this time.
    For(Duration),
    /// For ever.
    Forever,
}

impl Keeps {
    fn seconds(self) -> Option<f64> {
        match self {
            Self::For(time) => Some(time.as_secs_f64()),
            Self::Forever => None,
        }
    }
}

/// Settings to change; `None` leaves one as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScopeChange {
    /// How long keys are kept.
    pub retention: Option<Keeps>,
    /// How long dead letters are kept; never shorter than keys, and as long as keys that are kept
    /// for ever.
    pub dead_letter_retention: Option<Duration>,
    /// `consumer` or `http`.
    pub kind: Option<String>,
    /// `transaction` or `lease`. All processes of the scope must be stopped.
    pub mode: Option<String>,
}

impl Operator {
    /// The settings of scopes by their names, those after `after`, `limit` at most.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn scopes(&self, after: &str, limit: u32) -> Result<Vec<ScopeSettings>> {
        self.all("list the scopes", &self.sql.scopes, &[&after, &i64::from(limit)]).await
    }

    /// Changes settings of a scope; returns them as they were and as they are. A dry run makes the
    /// same change and takes it back. `None` when there is no such scope.
    ///
    /// # Errors
    /// PostgreSQL refused or went away; nothing was changed.
    pub async fn change_scope(
        &mut self,
        scope: &str,
        change: &ScopeChange,
        dry_run: bool,
    ) -> Result<Option<(ScopeSettings, ScopeSettings)>> {
        let (stamp, sql) = (self.stamp.clone(), self.sql.clone());
        let transaction = self.begin().await?;
        let read = async || all::<ScopeSettings>(&transaction, "read the scope", &sql.scope, &[&scope]).await;
        let Some(before) = read().await?.pop() else { return Ok(None) };
        if change.retention.is_some() || change.dead_letter_retention.is_some() || change.kind.is_some() {
            let retention = change.retention.map_or(before.retention_seconds, Keeps::seconds);
            let letters = change.dead_letter_retention.map(|time| time.as_secs_f64());
            let letters = letters.or(before.dead_letter_seconds);
            let kind = change.kind.as_ref().unwrap_or(&before.kind);
            let parameters: [&dyn Parameter; 6] =
                [&scope, &retention, &letters, kind, &stamp.operator, &stamp.note];
            query(&transaction, "change the scope", &sql.change_scope, &parameters).await?;
        }
        if let Some(mode) = &change.mode {
            let parameters: [&dyn Parameter; 4] = [&scope, mode, &stamp.operator, &stamp.note];
            query(&transaction, "change the mode of the scope", &sql.change_mode, &parameters).await?;
        }
        let after = read().await?.pop();
        if !dry_run {
            commit(transaction).await?;
        }
        Ok(after.map(|after| (before, after)))
    }
}
