//! The actions of operators, as the audit log has them.

use std::time::SystemTime;

use serde::Serialize;
use tokio_postgres::Row;

use super::parked::rfc3339;

/// The action of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AuditRow {
    /// When.
    #[serde(serialize_with = "rfc3339")]
    pub happened_at: SystemTime,
    /// Who, as the database knows it.
    pub database_user: String,
    /// Who, by their own word.
    pub operator: Option<String>,
    /// Why, by their own word.
    pub note: Option<String>,
    /// `retry`, `discard`, `replay`, or `cancel` of a replay or of a delayed message; `bury` of one
    /// that fails in an inbox; of a saga also `skip` and `abandon`;
    /// `pause`, `throttle`, `resume`, `enable-events` and `disable-events`.
    pub action: String,
    /// The message's key.
    pub key: Option<String>,
    /// Why the message was dead, or failed; for a replay the name of the request, for a saga the
    /// step.
    pub reason: Option<String>,
}

pub(super) fn audit_row(row: &Row) -> AuditRow {
    AuditRow {
        happened_at: row.get("happened_at"),
        database_user: row.get("database_user"),
        operator: row.get("operator"),
        note: row.get("note"),
        action: row.get("action"),
        key: row.get("key"),
        reason: row.get("reason"),
    }
}
