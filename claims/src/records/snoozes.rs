//! Messages that their handlers snooze: they are run again later, without counting an attempt. Each
//! statement stands alone, without a transaction around it.

use std::time::Duration;

use oncebox_schema::{Driver, SchemaName, Value};

use super::{Message, Records, bigint, copy_values};
use crate::{Error, database::statement, failure::bounded, identity::Identity};

const FORGET: &str = "forget the snoozes of messages that have ended";

/// The statements, as this schema has them.
#[derive(Debug)]
pub(super) struct Statements {
    snooze: String,
    sweep: String,
}

impl Statements {
    pub(super) fn new(schema: &SchemaName) -> Self {
        Self {
            snooze: statement(schema, include_str!("snoozes/snooze.sql")),
            sweep: statement(schema, include_str!("snoozes/sweep_snoozes.sql")),
        }
    }
}

/// The record of a message that was snoozed.
#[derive(Debug)]
pub struct SnoozeRecord {
    /// How often it was snoozed.
    pub count: u64,
    /// How long ago it was snoozed first.
    pub since: Duration,
}

impl<D: Driver> Records<D> {
    /// Records that this delivery is snoozed.
    pub async fn snooze(
        &self,
        scope: &str,
        identity: &Identity,
        message: Message<'_>,
        after: Duration,
        snooze_max: Duration,
        reason: &str,
    ) -> Result<SnoozeRecord, Error> {
        let milliseconds =
            |time: Duration| Value::Integer(Some(i64::try_from(time.as_millis()).unwrap_or(i64::MAX)));
        let [scope, tenant, key, stream, sequence, stored_at] = copy_values(scope, identity, message);
        let reason = bounded(reason);
        let values = [
            scope,
            tenant,
            key,
            stream,
            sequence,
            stored_at,
            Value::Integer(Some(bigint(message.deliveries))),
            milliseconds(after),
            milliseconds(snooze_max),
            Value::Text(Some(&reason)),
        ];
        let row = self.database.alone("snooze a message", &self.snoozes.snooze, &values).await?;
        let column = |number| row.as_ref().and_then(|row| row.number(number)).unwrap_or(0);
        Ok(SnoozeRecord { count: column(0), since: Duration::from_millis(column(1)) })
    }

    /// Deletes a bounded number of rows of messages that are snoozed no more.
    pub async fn sweep_snoozes(&self, scope: &str) -> Result<(), Error> {
        self.database.alone(FORGET, &self.snoozes.sweep, &[Value::Text(Some(scope))]).await.map(drop)
    }
}
