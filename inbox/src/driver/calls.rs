//! The calls of the SQL functions, each with what it says of errors.

use std::{
    error::Error as StdError,
    time::{Duration, SystemTime},
};

use oncebox_claims::{
    database::{COMMIT_AND_CHAIN, END_CHANGED, begin_sql, statement},
    failure::{Class, bounded, of_cause, text},
    identity::Identity,
    limits::{IsolationLevel, Limits},
    stored::Status,
    transactional::{COMMITTED, END_HOLDER, TransactionId, claim_sql},
};
use oncebox_schema::{Driver, SchemaName, Value};
use tokio::time::{Instant, timeout};
use tracing::warn;

use super::Inbox;
use crate::{
    Error, Received,
    records::{SNOOZE, SnoozeRecord, bigint, copy_name, headers_json},
    runner::Failure,
};

/// How long a ROLLBACK may take to be answered; behind a statement that goes on it never is.
pub(super) const ROLLBACK_MAX: Duration = Duration::from_secs(2);
/// How much longer than a handler PostgreSQL leaves a transaction alone in which nothing happens,
/// and a statement of it: the handler's limit comes first.
const MARGIN: Duration = Duration::from_secs(5);

/// What `claim` has answered.
pub(super) struct Claimed {
    pub(super) answer: String,
    pub(super) outcome: Option<String>,
    pub(super) reason: Option<String>,
    /// The transaction, when it has claimed the key.
    pub(super) id: Option<TransactionId>,
}

/// The statements, as this schema has them.
pub(super) struct Calls {
    pub(super) schema: SchemaName,
    register: String,
    claim: String,
    look_up: String,
    pub(super) commit: String,
    committed: String,
    end_holder: String,
    settle: String,
    attempt_failed: String,
    bury: String,
    snooze: String,
    is_pooled: bool,
}

impl Calls {
    pub(super) fn new(schema: &SchemaName, limits: &Limits, is_pooled: bool) -> Self {
        Self {
            register: statement(schema, include_str!("sql/register_scope.sql")),
            claim: claim_sql(schema, limits),
            look_up: statement(schema, include_str!("sql/claim_key.sql")),
            commit: statement(schema, COMMIT_AND_CHAIN),
            committed: statement(schema, COMMITTED),
            end_holder: statement(schema, END_HOLDER),
            settle: statement(schema, include_str!("sql/settle_key.sql")),
            attempt_failed: statement(schema, include_str!("sql/attempt_failed.sql")),
            bury: statement(schema, include_str!("sql/bury.sql")),
            snooze: statement(schema, SNOOZE),
            schema: schema.clone(),
            is_pooled,
        }
    }
}

impl<D: Driver> Inbox<D> {
    /// A transaction of the driver's pool.
    pub(super) async fn begin(&self, level: IsolationLevel) -> Result<D::Transaction, Error> {
        let begin = begin_sql(level);
        let modes = begin.trim_start_matches("BEGIN ");
        match timeout(self.limits.acquire_timeout, self.driver.begin(modes)).await {
            Ok(Ok(transaction)) => Ok(transaction),
            Ok(Err(error)) => Err(failed::<D>("begin", error)),
            Err(elapsed) => Err(Error::Unavailable("begin", elapsed.into())),
        }
    }

    /// Claims a key that is probably new, with the statement of the inbox over tokio-postgres; the
    /// transaction, if it is won.
    pub(super) async fn claim(
        &self,
        connection: &mut D::Connection,
        identity: &Identity,
        received: &Received,
    ) -> Result<Option<TransactionId>, D::Error> {
        let values = [
            Value::Integer(Some(identity.lock)),
            Value::Text(Some(self.shared.scope())),
            Value::Text(Some(&identity.tenant)),
            Value::Text(Some(identity.key.as_str())),
            Value::Bytes(Some(&identity.fingerprint)),
            Value::Integer(received.id()),
            Value::Text(Some(Status::Completed.as_str())),
            Value::Bytes(None),
        ];
        let row = D::query(connection, &self.calls.claim, &values, self.calls.is_pooled).await?;
        Ok(transaction_id(row.and_then(|row| row.into_iter().next())))
    }

    /// Claims a key that may be known, and says what is known of it. The limits of PostgreSQL are
    /// set along with it, as in `claim`: what a handler that is cut short has left running ends by
    /// itself.
    pub(super) async fn look_up(
        &self,
        connection: &mut D::Connection,
        identity: &Identity,
        received: &Received,
    ) -> Result<Claimed, D::Error> {
        let limit = format!("{}ms", (self.limits.handler_timeout + MARGIN).as_millis());
        let values = [
            Value::Text(Some(self.shared.scope())),
            Value::Text(Some(identity.key.as_str())),
            Value::Bytes(Some(received.payload())),
            Value::Text(Some(&identity.tenant)),
            Value::Integer(received.id()),
            Value::Text(Some(&limit)),
            Value::Text(Some(&limit)),
        ];
        let row = D::query(connection, &self.calls.look_up, &values, self.calls.is_pooled).await?;
        let mut columns = row.into_iter().flatten();
        let mut next = || columns.next().flatten();
        let (answer, outcome, reason) = (next().unwrap_or_default(), next(), next());
        Ok(Claimed { answer, outcome, reason, id: transaction_id(Some(next())) })
    }

    pub(super) async fn settle(
        &self,
        connection: &mut D::Connection,
        identity: &Identity,
        status: Status,
        outcome: Option<Vec<u8>>,
    ) -> Result<(), D::Error> {
        let outcome = outcome.map(|outcome| String::from_utf8(outcome).expect("JSON is UTF-8"));
        let values = [
            Value::Text(Some(self.shared.scope())),
            Value::Text(Some(identity.key.as_str())),
            Value::Text(outcome.as_deref()),
            Value::Text(Some(&identity.tenant)),
            Value::Text(Some(status.as_str())),
        ];
        D::query(connection, &self.calls.settle, &values, self.calls.is_pooled).await.map(drop)
    }

    /// Ends the transaction and its session, so that the pool opens another connection. A session
    /// whose role was changed may not end itself before that is taken back.
    pub(super) async fn end_session(&self, mut transaction: D::Transaction) {
        const END: &str =
            "ROLLBACK; RESET SESSION AUTHORIZATION; SELECT pg_terminate_backend(pg_backend_pid())";
        let ended = D::batch(D::connection(&mut transaction), END);
        let _ = timeout(ROLLBACK_MAX, ended).await;
        roll_back::<D>(transaction).await;
    }

    /// Rolls back a handler that failed, perhaps because of the search path that one before it has
    /// left behind; whether it is done.
    pub(super) async fn roll_back_failed(&self, mut transaction: D::Transaction, failure: &Failure) -> bool {
        // Outside of a transaction block nothing is chained, and the second statement is not sent.
        if matches!(failure, Failure::Failed(_)) {
            let end_changed = format!("ROLLBACK AND CHAIN;{END_CHANGED}");
            let _ = timeout(ROLLBACK_MAX, D::batch(D::connection(&mut transaction), &end_changed)).await;
        }
        roll_back::<D>(transaction).await
    }

    /// Whether this transaction has committed its claim although its handler failed.
    pub(super) async fn is_committed(
        &self,
        identity: &Identity,
        claimed: TransactionId,
    ) -> Result<bool, Error> {
        let values = [
            Value::Text(Some(self.shared.scope())),
            Value::Text(Some(&identity.tenant)),
            Value::Text(Some(identity.key.as_str())),
            Value::Integer(Some(*claimed.as_i64())),
        ];
        let row = self.alone("look for a claim", &self.calls.committed, &values).await?;
        Ok(row.into_iter().next().flatten().as_deref() == Some("true"))
    }

    /// Ends the session that has held the key's lock since then: a statement of its handler goes
    /// on, and would keep the key from the one who gives the message up.
    pub(super) async fn end_holder(&self, identity: &Identity, since: Instant) {
        let age = i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX);
        let values = [Value::Integer(Some(identity.lock)), Value::Integer(Some(age))];
        if let Err(error) = self.alone("end a session", &self.calls.end_holder, &values).await {
            let (scope, key) = (self.shared.scope(), identity.key.as_str());
            warn!(scope, key, "a statement of the handler still runs: {}", text(&error));
        }
    }

    pub(super) async fn register(&self) -> Result<(), Error> {
        self.limits.warn_of_short_retention(self.shared.scope());
        let seconds = |limit: Option<Duration>| Value::Float(limit.map(|limit| limit.as_secs_f64()));
        let values = [
            Value::Text(Some(self.shared.scope())),
            seconds(self.limits.retention),
            seconds(self.limits.dead_letters),
        ];
        let registered = self.alone("register the scope", &self.calls.register, &values).await;
        registered.map(drop).map_err(|error| match error {
            Error::Refused(what, source) => match refusal::<D>(&*source).as_deref() {
                Some("OB010") => Error::OtherMode {
                    scope: self.shared.scope().to_owned(),
                    mode: "transaction",
                    schema: self.calls.schema.as_str().to_owned(),
                },
                Some("3F000" | "42883") => {
                    Error::Version(oncebox_schema::VersionError::Missing(self.calls.schema.clone()))
                }
                _ => Error::Refused(what, source),
            },
            other => other,
        })
    }

    /// Counts a failed attempt; how many there were.
    pub(super) async fn attempt_failed(
        &self,
        identity: &Identity,
        received: &Received,
    ) -> Result<u64, Error> {
        let [stream, sequence, stored_at] = origin(received);
        let values = [
            Value::Text(Some(self.shared.scope())),
            Value::Text(Some(identity.key.as_str())),
            Value::Text(Some(&identity.tenant)),
            stream,
            sequence,
            stored_at,
        ];
        let row = self.alone("record a failed attempt", &self.calls.attempt_failed, &values).await?;
        Ok(number(row.into_iter().next()))
    }

    /// Gives a message up; what the function answers.
    pub(super) async fn bury(
        &self,
        identity: Option<&Identity>,
        received: &Received,
        reason: &str,
        committed: Option<TransactionId>,
    ) -> Result<String, Error> {
        let [stream, sequence, stored_at] = origin(received);
        let (subject, headers) = (received.subject().replace('\0', "\u{fffd}"), headers_json(received));
        let values = [
            Value::Text(Some(self.shared.scope())),
            Value::Text(identity.map(|identity| identity.key.as_str())),
            Value::Bytes(Some(received.payload())),
            Value::Text(Some(&bounded(reason))),
            Value::Text(Some(&subject)),
            Value::Text(Some(&headers)),
            Value::Text(Some(identity.map_or("", |identity| identity.tenant.as_str()))),
            Value::Integer(received.id()),
            stream,
            sequence,
            stored_at,
            Value::Integer(Some(bigint(received.delivery_count()))),
            Value::Integer(committed.map(|id| *id.as_i64())),
        ];
        let row = self.alone("record a dead letter", &self.calls.bury, &values).await?;
        Ok(row.into_iter().next().flatten().unwrap_or_default())
    }

    pub(super) async fn record_snooze(
        &self,
        identity: &Identity,
        received: &Received,
        after: Duration,
        reason: &str,
    ) -> Result<SnoozeRecord, Error> {
        let milliseconds = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let values = [
            Value::Text(Some(self.shared.scope())),
            Value::Text(Some(&identity.tenant)),
            Value::Text(Some(identity.key.as_str())),
            Value::Text(Some(&copy_name(received))),
            Value::Integer(Some(bigint(received.delivery_count().max(1)))),
            Value::Integer(Some(milliseconds(after))),
            Value::Integer(Some(milliseconds(self.shared.settings.retries.snooze_max))),
            Value::Text(Some(&bounded(reason))),
        ];
        let mut row = self.alone("snooze a message", &self.calls.snooze, &values).await?.into_iter();
        let count = number(row.next());
        Ok(SnoozeRecord { count, since: Duration::from_millis(number(row.next())) })
    }

    /// How long PostgreSQL may take to answer; it ends what a handler does by itself before.
    pub(super) fn answer_max(&self) -> Duration {
        self.limits.handler_timeout + 2 * MARGIN
    }

    /// A statement in a transaction of its own.
    async fn alone(
        &self,
        what: &'static str,
        sql: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<Option<String>>, Error> {
        let mut transaction = self.begin(IsolationLevel::ReadCommitted).await?;
        let connection = D::connection(&mut transaction);
        let asked = timeout(self.answer_max(), D::query(connection, sql, values, self.calls.is_pooled));
        let row = match asked.await {
            Ok(Ok(row)) => row,
            Ok(Err(error)) => {
                roll_back::<D>(transaction).await;
                return Err(failed::<D>(what, error));
            }
            Err(elapsed) => return Err(Error::Unavailable(what, elapsed.into())),
        };
        match timeout(self.answer_max(), D::commit(transaction)).await {
            Ok(Ok(())) => Ok(row.unwrap_or_default()),
            Ok(Err(error)) => Err(failed::<D>(what, error)),
            Err(elapsed) => Err(Error::Unavailable(what, elapsed.into())),
        }
    }
}

/// Where the message is stored.
fn origin(received: &Received) -> [Value<'_>; 3] {
    let origin = received.origin();
    let micros = origin.map(|origin| {
        let stored = origin.stored_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        i64::try_from(stored.as_micros()).unwrap_or(i64::MAX)
    });
    [
        Value::Text(origin.map(|origin| origin.stream.as_str())),
        Value::Integer(origin.map(|origin| bigint(origin.sequence))),
        Value::Integer(micros),
    ]
}

fn transaction_id(column: Option<Option<String>>) -> Option<TransactionId> {
    column.flatten().map(|id| TransactionId::parse(&id))
}

fn number(column: Option<Option<String>>) -> u64 {
    column.flatten().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn failed<D: Driver>(what: &'static str, error: D::Error) -> Error {
    match class::<D>(&error) {
        Class::Unavailable | Class::Conflict => Error::Unavailable(what, error.into()),
        Class::Failed => Error::Refused(what, error.into()),
    }
}

/// The SQLSTATE that PostgreSQL refused with.
fn refusal<D: Driver>(error: &(dyn StdError + 'static)) -> Option<String> {
    match D::cause(error)? {
        oncebox_schema::Cause::Refused { state, .. } => Some(state),
        _ => None,
    }
}

/// What an error of the driver asks for.
pub(super) fn class<D: Driver>(error: &(dyn StdError + 'static)) -> Class {
    D::cause(error).map_or(Class::Failed, |cause| of_cause(&cause))
}

/// Rolls back, unless that takes long: then the driver closes the connection, or does it later.
/// Whether it is done.
pub(super) async fn roll_back<D: Driver>(transaction: D::Transaction) -> bool {
    matches!(timeout(ROLLBACK_MAX, D::rollback(transaction)).await, Ok(Ok(())))
}
