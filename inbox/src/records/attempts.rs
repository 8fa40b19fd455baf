//! How often a message was tried.
//!
//! JetStream counts deliveries: also of what only waited, was given back, or was lost on the way.
//! So the inbox keeps a count of its own, for messages that failed or were delivered again. What is
//! handled at its first delivery pays nothing.

use std::time::SystemTime;

use oncebox_claims::{
    database::{Parameter, discard, failed, statement},
    identity::Identity,
};
use oncebox_schema::SchemaName;
use oncebox_schema::Transaction;
use tokio_postgres::types::Type;

use super::Records;
use crate::{Error, Received};

/// The statements, as this schema has them.
#[derive(Debug)]
pub(super) struct Statements {
    begin: String,
    failed: String,
    forget: String,
    sweep: String,
}

impl Statements {
    pub(super) fn new(schema: &SchemaName) -> Self {
        Self {
            begin: statement(schema, include_str!("attempts/begin.sql")),
            failed: statement(schema, include_str!("attempts/failed.sql")),
            forget: statement(schema, include_str!("attempts/forget.sql")),
            sweep: statement(schema, include_str!("attempts/sweep_attempts.sql")),
        }
    }
}

/// The record of a message whose run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PastAttempts {
    pub(crate) failures: u64,
    /// Runs that began and left no trace: did one end its process?
    pub(crate) untraced: u64,
}

impl PastAttempts {
    /// How many attempts there were. The first run without a trace had others beside it, so it
    /// proves nothing.
    pub(crate) fn attempts(self) -> u64 {
        self.failures + self.untraced.saturating_sub(1)
    }
}

impl Records {
    /// Records that a run begins, unless an earlier one left no trace and this one is not
    /// `permitted`; `None` when nothing is recorded, because the key has ended or somebody works on
    /// it.
    pub(crate) async fn begin_run(
        &self,
        scope: &str,
        identity: &Identity,
        received: &Received,
        permitted: bool,
    ) -> Result<Option<PastAttempts>, Error> {
        const WHAT: &str = "record that a run begins";
        let (key, message) = (identity.key.as_str(), name(received));
        let parameters: [Parameter<'_>; 8] = [
            (&identity.lock, Type::INT8),
            (&scope, Type::TEXT),
            (&identity.tenant, Type::TEXT),
            (&key, Type::TEXT),
            (&message, Type::TEXT),
            (&permitted, Type::BOOL),
            (&i64::from(received.begun.is_set()), Type::INT8),
            (&self.database.retention_seconds(), Type::FLOAT8),
        ];
        let object = self.database.connect().await?;
        let row =
            self.database.answered(WHAT, object.query_typed_opt(&self.attempts.begin, &parameters)).await;
        let row = row.inspect_err(|_| discard(object))?.map_err(failed(WHAT))?;
        Ok(row.map(|row| PastAttempts { failures: number(row.get(0)), untraced: number(row.get(1)) }))
    }

    /// Records that an attempt has failed; how many have, this one included.
    pub(crate) async fn attempt_failed(
        &self,
        scope: &str,
        identity: &Identity,
        received: &Received,
    ) -> Result<u64, Error> {
        const WHAT: &str = "record a failed attempt";
        let (key, message) = (identity.key.as_str(), name(received));
        let parameters: [Parameter<'_>; 4] = [
            (&scope, Type::TEXT),
            (&identity.tenant, Type::TEXT),
            (&key, Type::TEXT),
            (&message, Type::TEXT),
        ];
        let object = self.database.connect().await?;
        let row =
            self.database.answered(WHAT, object.query_typed_one(&self.attempts.failed, &parameters)).await;
        let row = row.inspect_err(|_| discard(object))?.map_err(failed(WHAT))?;
        Ok(number(row.get(0)))
    }

    /// Forgets how often a key was tried, among the writes of a transaction that gives it up.
    pub(crate) async fn forget_attempts(
        &self,
        transaction: &Transaction,
        scope: &str,
        identity: &Identity,
    ) -> Result<(), Error> {
        let parameters: [Parameter<'_>; 3] =
            [(&scope, Type::TEXT), (&identity.tenant, Type::TEXT), (&identity.key.as_str(), Type::TEXT)];
        let forgotten = transaction.execute_typed(&self.attempts.forget, &parameters).await;
        forgotten.map(drop).map_err(failed("forget failed attempts"))
    }

    /// Deletes a bounded number of rows of messages that have ended.
    pub(crate) async fn sweep_attempts(&self, scope: &str) -> Result<(), Error> {
        const WHAT: &str = "forget failed attempts";
        let object = self.database.connect().await?;
        let parameters: [Parameter<'_>; 1] = [(&scope, Type::TEXT)];
        let swept =
            self.database.answered(WHAT, object.execute_typed(&self.attempts.sweep, &parameters)).await;
        swept.inspect_err(|_| discard(object))?.map(drop).map_err(failed(WHAT))
    }
}

fn number(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Which copy of a message: a stream that is recreated counts from 1 again.
pub(crate) fn name(received: &Received) -> String {
    let Some(origin) = received.origin() else { return String::new() };
    let stored = origin.stored_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{} {} {}", origin.stream, origin.sequence, stored.as_micros())
}
