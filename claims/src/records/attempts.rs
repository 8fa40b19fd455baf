//! How often a message was tried.
//!
//! JetStream counts deliveries: also of messages that only waited, were given back, or were lost on
//! the way. So the inbox keeps a count of its own, for messages that failed or were delivered
//! again, and how the last attempt failed, for operators. A message that is handled at its first
//! delivery pays nothing.

use std::time::Duration;

use oncebox_schema::{Columns, Driver, SchemaName, Statement, Value};

use super::{Message, Records, bigint, copy_values, name_values};
use crate::{
    Error,
    backoff::Backoff,
    database::{failed_through, statement},
    failure::bounded,
    identity::Identity,
    life::Past,
};

/// The reason of an attempt that did not live to tell it.
const LEFT_NO_TRACE: &str = "the attempt left no trace: did it end the process?";
const BEGIN: &str = "record that a run begins";
const FORGET: &str = "forget failed attempts";

/// The statements, as this schema has them.
#[derive(Debug)]
pub(super) struct Statements {
    begin: String,
    failed: String,
    forget: String,
    forget_ended: String,
    sweep: String,
}

impl Statements {
    pub(super) fn new(schema: &SchemaName) -> Self {
        Self {
            begin: statement(schema, include_str!("attempts/begin.sql")),
            failed: statement(schema, include_str!("attempts/failed.sql")),
            forget: statement(schema, include_str!("attempts/forget.sql")),
            forget_ended: statement(schema, include_str!("attempts/forget_ended.sql")),
            sweep: statement(schema, include_str!("attempts/sweep_attempts.sql")),
        }
    }
}

/// A failed attempt, for the record.
#[derive(Debug)]
pub struct FailedAttempt<'a> {
    /// Why, for operators.
    pub reason: &'a str,
    /// When the message is run again: the pauses after a first and after further failures.
    pub pauses: Backoff,
    /// How many have failed, this one included, where something else counts them.
    pub count: Option<u64>,
}

impl<D: Driver> Records<D> {
    /// Records that a run begins, unless an earlier one left no trace and this one is not
    /// `permitted`; `None` when nothing is recorded, because the key has ended or another
    /// transaction works on it.
    pub async fn begin_run(
        &self,
        scope: &str,
        identity: &Identity,
        message: Message<'_>,
        permitted: bool,
    ) -> Result<Option<Past>, Error> {
        let texts = (message.copy_name(), message.subject());
        let values = self.begin_values(scope, (identity, message), &texts, permitted);
        let row = self.database.alone(BEGIN, &self.attempts.begin, &values).await?;
        Ok(row.as_ref().map(past))
    }

    /// As [`Records::begin_run`] for each of these messages, none of which is permitted, in one
    /// transaction.
    pub async fn begin_runs(
        &self,
        scope: &str,
        messages: &[(&Identity, Message<'_>)],
    ) -> Result<Vec<Option<Past>>, Error> {
        let texts = messages.iter().map(|(_, message)| (message.copy_name(), message.subject()));
        let texts: Vec<_> = texts.collect();
        let with_texts = messages.iter().zip(&texts);
        let values: Vec<_> =
            with_texts.map(|(message, texts)| self.begin_values(scope, *message, texts, false)).collect();
        let rows = self.together(BEGIN, &self.attempts.begin, &values).await?;
        Ok(rows.iter().map(|row| row.as_ref().map(past)).collect())
    }

    fn begin_values<'a>(
        &self,
        scope: &'a str,
        (identity, message): (&'a Identity, Message<'a>),
        (copy, subject): &'a (String, String),
        permitted: bool,
    ) -> [Value<'a>; 12] {
        let [scope, tenant, key] = name_values(scope, identity);
        let [stream, sequence, _] = message.place_values();
        [
            Value::Integer(Some(identity.lock)),
            scope,
            tenant,
            key,
            Value::Text(Some(copy)),
            Value::Integer(Some(i64::from(permitted))),
            Value::Integer(Some(i64::from(message.has_begun))),
            Value::Float(self.database.retention_seconds()),
            stream,
            sequence,
            Value::Text(Some(subject)),
            Value::Text(Some(LEFT_NO_TRACE)),
        ]
    }

    /// Records that an attempt has failed; how many have, this one included.
    pub async fn attempt_failed(
        &self,
        scope: &str,
        identity: &Identity,
        message: Message<'_>,
        failed: FailedAttempt<'_>,
    ) -> Result<u64, Error> {
        let seconds = |pause: Duration| Value::Float(Some(pause.as_secs_f64()));
        let [scope, tenant, key, stream, sequence, stored_at] = copy_values(scope, identity, message);
        let (reason, subject) = (bounded(failed.reason), message.subject());
        let values = [
            scope,
            tenant,
            key,
            stream,
            sequence,
            stored_at,
            Value::Text(Some(&reason)),
            Value::Text(Some(&subject)),
            seconds(failed.pauses.first),
            seconds(failed.pauses.max),
            Value::Integer(failed.count.map(bigint)),
        ];
        let row = self.database.alone("record a failed attempt", &self.attempts.failed, &values).await?;
        Ok(row.and_then(|row| row.number(0)).unwrap_or(0))
    }

    /// Forgets how often a key was tried or snoozed, among the writes of a transaction that gives
    /// it up.
    pub async fn forget_tries(
        &self,
        transaction: &mut D::Transaction,
        scope: &str,
        identity: &Identity,
    ) -> Result<(), Error> {
        let forgotten =
            self.database.query(transaction, &self.attempts.forget, &name_values(scope, identity)).await;
        forgotten.map(drop).map_err(failed_through::<D>(FORGET))
    }

    /// Forgets how often a key was tried if it has ended; else nothing changes.
    pub async fn forget_if_ended(&self, scope: &str, identity: &Identity) -> Result<(), Error> {
        let values = name_values(scope, identity);
        self.database.alone(FORGET, &self.attempts.forget_ended, &values).await.map(drop)
    }

    /// As [`Records::forget_if_ended`] for each of these keys, in one transaction.
    pub async fn forget_all_ended(&self, scope: &str, keys: &[&Identity]) -> Result<(), Error> {
        let values: Vec<_> = keys.iter().map(|identity| name_values(scope, identity)).collect();
        self.together(FORGET, &self.attempts.forget_ended, &values).await.map(drop)
    }

    /// Sends a statement once with each of these values, in a transaction of its own.
    async fn together<const N: usize>(
        &self,
        what: &'static str,
        sql: &str,
        values: &[[Value<'_>; N]],
    ) -> Result<Vec<Option<Columns>>, Error> {
        let statements: Vec<_> = values.iter().map(|values| Statement::Query(sql, values)).collect();
        let mut transaction = self.database.begin().await?;
        let writing = async {
            let answers = self.database.send(&mut transaction, &statements).await;
            let rows =
                answers.into_iter().collect::<Result<Vec<_>, _>>().map_err(failed_through::<D>(what))?;
            self.database.commit(&mut transaction).await.map_err(failed_through::<D>(what))?;
            Ok(rows)
        };
        let rows = self.database.answered(what, writing).await.flatten()?;
        D::release(transaction).await;
        Ok(rows)
    }

    /// Deletes a bounded number of rows of messages that have ended.
    pub async fn sweep_attempts(&self, scope: &str) -> Result<(), Error> {
        self.database.alone(FORGET, &self.attempts.sweep, &[Value::Text(Some(scope))]).await.map(drop)
    }
}

fn past(row: &Columns) -> Past {
    let number = |column| row.number(column).unwrap_or(0);
    Past { failures: number(0), untraced: number(1), rest: Duration::from_millis(number(2)) }
}
