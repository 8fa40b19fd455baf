//! Messages that their handlers snooze: they are run again later, without counting an attempt. Each
//! statement stands alone, without a transaction around it.

use std::time::Duration;

use crate::{
    database::{failed_through, statement},
    failure::bounded,
    identity::Identity,
};
use oncebox_schema::{Driver, SchemaName, Value};

use super::{Message, Records, bigint, name_values};
use crate::Error;

const FORGET: &str = "forget the snoozes of messages that have ended";

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
            snooze: statement(schema, include_str!("snoozes/snooze.sql")),
            forget: statement(schema, include_str!("snoozes/forget.sql")),
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
        let [scope, tenant, key] = name_values(scope, identity);
        let (copy, reason) = (message.copy_name(), bounded(reason));
        let values = [
            scope,
            tenant,
            key,
            Value::Text(Some(&copy)),
            Value::Integer(Some(bigint(message.deliveries.max(1)))),
            milliseconds(after),
            milliseconds(snooze_max),
            Value::Text(Some(&reason)),
        ];
        let row = self.database.alone("snooze a message", &self.snoozes.snooze, &values).await?;
        let column = |number| row.as_ref().and_then(|row| row.number(number)).unwrap_or(0);
        Ok(SnoozeRecord { count: column(0), since: Duration::from_millis(column(1)) })
    }

    /// Forgets that a key was snoozed, among the writes of a transaction that gives it up.
    pub async fn forget_snoozes(
        &self,
        transaction: &mut D::Transaction,
        scope: &str,
        identity: &Identity,
    ) -> Result<(), Error> {
        let forgotten =
            self.database.query(transaction, &self.snoozes.forget, &name_values(scope, identity)).await;
        forgotten.map(drop).map_err(failed_through::<D>(FORGET))
    }

    /// Deletes a bounded number of rows of messages that are snoozed no more.
    pub async fn sweep_snoozes(&self, scope: &str) -> Result<(), Error> {
        self.database.alone(FORGET, &self.snoozes.sweep, &[Value::Text(Some(scope))]).await.map(drop)
    }
}
