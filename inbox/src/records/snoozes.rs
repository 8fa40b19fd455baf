//! Messages that their handlers snooze: they are run again later, without counting an attempt. Each
//! statement stands alone, without a transaction around it.

use std::time::Duration;

use oncebox_claims::{
    database::{Parameter, discard, failed, statement},
    failure::bounded,
    identity::Identity,
};
use oncebox_schema::SchemaName;
use oncebox_schema::Transaction;
use tokio_postgres::types::Type;

use super::{Records, attempts::name, bigint};
use crate::{Error, Received};

/// Through every driver.
pub(crate) const SNOOZE: &str = include_str!("snoozes/snooze.sql");

/// The statements, as this schema has them.
#[derive(Debug)]
pub(super) struct Statements {
    snooze: String,
    forget: String,
    sweep: String,
}

impl Statements {
    pub(super) fn new(schema: &SchemaName) -> Self {
        Self {
            snooze: statement(schema, SNOOZE),
            forget: statement(schema, include_str!("snoozes/forget.sql")),
            sweep: statement(schema, include_str!("snoozes/sweep_snoozes.sql")),
        }
    }
}

/// The record of a message that was snoozed.
#[derive(Debug)]
pub(crate) struct SnoozeRecord {
    /// How often it was snoozed.
    pub(crate) count: u64,
    /// How long ago it was snoozed first.
    pub(crate) since: Duration,
}

impl Records {
    /// Records that this delivery is snoozed.
    pub(crate) async fn snooze(
        &self,
        scope: &str,
        identity: &Identity,
        received: &Received,
        after: Duration,
        snooze_max: Duration,
        reason: &str,
    ) -> Result<SnoozeRecord, Error> {
        const WHAT: &str = "snooze a message";
        let (key, message) = (identity.key.as_str(), name(received));
        let delivery = bigint(received.delivery_count().max(1));
        let milliseconds = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let parameters: [Parameter<'_>; 8] = [
            (&scope, Type::TEXT),
            (&identity.tenant, Type::TEXT),
            (&key, Type::TEXT),
            (&message, Type::TEXT),
            (&delivery, Type::INT8),
            (&milliseconds(after), Type::INT8),
            (&milliseconds(snooze_max), Type::INT8),
            (&bounded(reason), Type::TEXT),
        ];
        let object = self.database.connect().await?;
        let row =
            self.database.answered(WHAT, object.query_typed_one(&self.snoozes.snooze, &parameters)).await;
        let row = row.inspect_err(|_| discard(object))?.map_err(failed(WHAT))?;
        let column = |n| row.get::<_, &str>(n).parse().unwrap_or(0);
        Ok(SnoozeRecord { count: column(0), since: Duration::from_millis(column(1)) })
    }

    /// Forgets that a key was snoozed, among the writes of a transaction that gives it up.
    pub(crate) async fn forget_snoozes(
        &self,
        transaction: &Transaction,
        scope: &str,
        identity: &Identity,
    ) -> Result<(), Error> {
        let parameters: [Parameter<'_>; 3] =
            [(&scope, Type::TEXT), (&identity.tenant, Type::TEXT), (&identity.key.as_str(), Type::TEXT)];
        let forgotten = transaction.execute_typed(&self.snoozes.forget, &parameters).await;
        forgotten.map(drop).map_err(failed("forget what was snoozed"))
    }

    /// Deletes a bounded number of rows of messages that are snoozed no more.
    pub(crate) async fn sweep_snoozes(&self, scope: &str) -> Result<(), Error> {
        const WHAT: &str = "forget what was snoozed";
        let object = self.database.connect().await?;
        let parameters: [Parameter<'_>; 1] = [(&scope, Type::TEXT)];
        let swept =
            self.database.answered(WHAT, object.execute_typed(&self.snoozes.sweep, &parameters)).await;
        swept.inspect_err(|_| discard(object))?.map(drop).map_err(failed(WHAT))
    }
}
