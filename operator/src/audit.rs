//! The actions of operators, as the audit log has them.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Operator, Result, rows::from_row, time::Time};

/// The action of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct AuditRow {
    /// Its id.
    pub id: i64,
    /// When.
    pub happened_at: Time,
    /// Who, as the database knows it.
    pub database_user: String,
    /// Who, by their own word.
    pub operator: Option<String>,
    /// Why, by their own word.
    pub note: Option<String>,
    /// `retry`, `discard`, `replay`, or `cancel` of a replay or of a delayed message; `bury` of one
    /// that fails in an inbox; of a saga also `skip` and `abandon`;
    /// `pause`, `throttle`, `resume`, `undo`, `enable-events` and `disable-events`.
    pub action: String,
    /// The message's key.
    pub key: Option<String>,
    /// Why the message was dead, or failed; for a replay the name of the request, for a saga the
    /// step.
    pub reason: Option<String>,
    /// Whether it is a discard that is still kept: [`Operator::undo`] takes it back, with the rest
    /// of the same command.
    pub can_undo: bool,
}

impl Operator {
    /// The actions of operators before the one with this id, the newest first.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn audit(&self, before: i64, limit: u32) -> Result<Vec<AuditRow>> {
        let limit = i64::from(limit);
        self.all("read the audit table", &self.sql.audits, &[&before, &limit]).await
    }
}

from_row!(AuditRow: id, can_undo, happened_at, database_user, operator, note, action, key, reason);
