//! Undo: all that one discard took out comes back, or none of it.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Operator, Result, rows::from_row};

/// A row that a discard took out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct UndoRow {
    /// The row of the audit that records it.
    pub audit_id: i64,
    /// The id of the message, or of the dead letter.
    pub id: i64,
    /// The inbox of a dead letter; `None` for a message of the outbox.
    pub scope: Option<String>,
    /// Its key.
    pub key: Option<String>,
    /// Its subject.
    pub subject: Option<String>,
    /// Why it had been given up.
    pub reason: Option<String>,
    /// Why it cannot come back; `None` when it can.
    pub obstacle: Option<String>,
}

impl Operator {
    /// The rows of a discard, which any of its rows in the audit names; none when it is no discard.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn undo_rows(&self, audit_id: i64) -> Result<Vec<UndoRow>> {
        self.all("look at a discard", &self.sql.undo_rows, &[&audit_id]).await
    }

    /// Brings all rows of a discard back to where they were, in one transaction; returns how many.
    ///
    /// # Errors
    /// One of them cannot come back, so none did; or PostgreSQL refused or went away.
    pub async fn undo(&mut self, audit_id: i64) -> Result<u64> {
        Ok(self.change("undo", |sql| &sql.undo, &[&audit_id], true).await?.len() as u64)
    }

    /// The row of the audit that undoes this operator's last discard; `None` when there is none.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn last_discard(&self) -> Result<Option<i64>> {
        let rows = self.query("read the audit table", &self.sql.last_discard, &[&self.command]).await?;
        Ok(rows.first().and_then(|row| row.get(0)))
    }
}

from_row!(UndoRow: audit_id, id = "message_id", scope, key, subject, reason, obstacle);
