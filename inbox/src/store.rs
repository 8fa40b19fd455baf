//! The statements of the inbox. Only this module speaks SQL.

mod position;

use std::{error::Error as StdError, time::Duration};

use deadpool_postgres::{Object, Pool, PoolError, Transaction};
use oncebox_schema::{SchemaName, check_version};
use tokio::sync::OnceCell;
use tokio_postgres::{IsolationLevel, types::ToSql};

use crate::{
    Error, Received,
    failure::{Class, bounded, classify},
    identity::Identity,
    inbox::Limits,
};

pub(crate) use position::{Lead, Position};

/// What a row of the inbox says about how a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Completed,
    Rejected,
    Dead,
}

impl Status {
    const ALL: [Self; 3] = [Self::Completed, Self::Rejected, Self::Dead];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Rejected => "rejected",
            Self::Dead => "dead",
        }
    }
}

/// A committed row of the inbox.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) status: Status,
    pub(crate) fingerprint: Vec<u8>,
    pub(crate) outcome: Option<Vec<u8>>,
}

/// What a claim found.
#[derive(Debug)]
pub(crate) enum Claim {
    /// The key is ours until the transaction ends.
    Won,
    /// Another transaction works on the key.
    InFlight,
    /// The key was handled before.
    Stored(Stored),
}

#[derive(Debug)]
pub(crate) struct Store {
    pool: Pool,
    schema: SchemaName,
    timeouts: [String; 3],
    acquire_timeout: Duration,
    claim: String,
    stored: String,
    settle: String,
    commit: String,
    dead_letter: String,
    checked: OnceCell<()>,
}

impl Store {
    pub(crate) fn new(pool: Pool, schema: &SchemaName, limits: &Limits) -> Self {
        let milliseconds = |limit: Duration| format!("{}ms", limit.as_millis());
        Self {
            pool,
            schema: schema.clone(),
            // A handler that computes for long is idle in its transaction meanwhile; the margin lets its own limit
            // come first.
            timeouts: [limits.statement_timeout, limits.lock_timeout, limits.handler_timeout + IDLE_MARGIN]
                .map(milliseconds),
            acquire_timeout: limits.acquire_timeout,
            claim: statement(schema, include_str!("store/claim.sql")),
            stored: statement(schema, include_str!("store/stored.sql")),
            settle: statement(schema, include_str!("store/settle.sql")),
            commit: statement(schema, include_str!("store/commit.sql")),
            dead_letter: statement(schema, include_str!("store/dead_letter.sql")),
            checked: OnceCell::new(),
        }
    }

    /// A connection of the pool, once the schema's version is known to be right.
    pub(crate) async fn connect(&self) -> Result<Object, Error> {
        let object = match tokio::time::timeout(self.acquire_timeout, self.pool.get()).await {
            Ok(Ok(object)) => object,
            Ok(Err(PoolError::Backend(error))) => return Err(failed("connect")(error)),
            Ok(Err(error)) => {
                return Err(Error::Unavailable("take a connection from the pool", error.into()));
            }
            Err(elapsed) => {
                return Err(Error::Unavailable("take a connection from the pool", elapsed.into()));
            }
        };
        self.checked
            .get_or_try_init(|| async {
                check_version(&**object.as_ref(), &self.schema).await.map_err(|error| match error {
                    oncebox_schema::VersionError::Postgres { source, .. } => {
                        failed("read the schema version")(source)
                    }
                    other => Error::Version(other),
                })
            })
            .await?;
        Ok(object)
    }

    /// Begins the transaction of one message.
    pub(crate) async fn begin<'a>(&self, object: &'a mut Object) -> Result<Transaction<'a>, Error> {
        let transaction = object.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start();
        transaction.await.map_err(failed("begin"))
    }

    /// Claims a key, or finds out why not. `status` and `outcome` are what is committed unless `settle` changes it.
    pub(crate) async fn claim(
        &self,
        transaction: &Transaction<'_>,
        scope: &str,
        identity: &Identity,
        message_id: Option<i64>,
        (status, outcome): (Status, Option<&[u8]>),
    ) -> Result<Claim, Error> {
        let statement = transaction.prepare_cached(&self.claim).await.map_err(failed("claim"))?;
        let key = identity.key.as_str();
        let fingerprint = &identity.fingerprint[..];
        let [statement_timeout, lock_timeout, idle_timeout] = &self.timeouts;
        let parameters: [&(dyn ToSql + Sync); 11] = [
            &identity.lock,
            &scope,
            &identity.tenant,
            &key,
            &fingerprint,
            &message_id,
            &status.as_str(),
            &outcome,
            statement_timeout,
            lock_timeout,
            idle_timeout,
        ];
        if transaction.execute(&statement, &parameters).await.map_err(failed("claim"))? == 1 {
            return Ok(Claim::Won);
        }
        let statement =
            transaction.prepare_cached(&self.stored).await.map_err(failed("read the stored outcome"))?;
        let found = transaction.query_opt(&statement, &[&scope, &identity.tenant, &key]).await;
        let Some(row) = found.map_err(failed("read the stored outcome"))? else { return Ok(Claim::InFlight) };
        let status: &str = row.get(0);
        let Some(status) = Status::ALL.into_iter().find(|known| known.as_str() == status) else {
            return Err(Error::UnknownStatus { key: key.to_owned(), status: status.to_owned() });
        };
        Ok(Claim::Stored(Stored { status, fingerprint: row.get(1), outcome: row.get(2) }))
    }

    /// Stores how the handler ended and commits, in one round trip. When storing fails, the transaction is aborted
    /// and the commit fails with it.
    pub(crate) async fn settle_and_commit(
        &self,
        transaction: &Transaction<'_>,
        scope: &str,
        identity: &Identity,
        status: Status,
        outcome: Option<&[u8]>,
    ) -> Result<(), tokio_postgres::Error> {
        // Prepared before, so that the first poll of each future below sends its statement, in this order.
        let statement = transaction.prepare_cached(&self.settle).await?;
        let parameters: [&(dyn ToSql + Sync); 5] =
            [&scope, &identity.tenant, &identity.key.as_str(), &status.as_str(), &outcome];
        let (settled, committed) =
            futures_util::join!(transaction.execute(&statement, &parameters), self.commit(transaction));
        settled.and(committed)
    }

    /// Commits; an empty transaction stays open. Fails when the transaction was aborted or has ended already.
    pub(crate) async fn commit(&self, transaction: &Transaction<'_>) -> Result<(), tokio_postgres::Error> {
        transaction.batch_execute(&self.commit).await
    }

    /// Records a dead letter.
    pub(crate) async fn dead_letter(
        &self,
        transaction: &Transaction<'_>,
        scope: &str,
        (tenant, key): (&str, Option<&str>),
        received: &Received,
        reason: &str,
    ) -> Result<(), Error> {
        let statement =
            transaction.prepare_cached(&self.dead_letter).await.map_err(failed("record a dead letter"))?;
        let origin = received.origin();
        let subject = received.subject().replace('\0', "\u{fffd}");
        let parameters: [&(dyn ToSql + Sync); 11] = [
            &scope,
            &tenant,
            &key,
            &subject,
            &headers_json(received),
            &received.payload(),
            &origin.map(|origin| origin.stream.as_str()),
            &origin.map(|origin| bigint(origin.sequence)),
            &origin.map(|origin| origin.stored_at),
            &bigint(received.delivery_count()),
            &bounded(reason),
        ];
        transaction.execute(&statement, &parameters).await.map_err(failed("record a dead letter"))?;
        Ok(())
    }
}

const IDLE_MARGIN: Duration = Duration::from_secs(5);

/// A template of ours without its comments, which would travel with every commit.
fn statement(schema: &SchemaName, template: &str) -> String {
    let lines: Vec<&str> = template.lines().filter(|line| !line.starts_with("--")).collect();
    schema.sql(&lines.join("\n"))
}

/// Takes a connection out of the pool for good and closes it; the server rolls back.
pub(crate) fn discard(object: Object) {
    drop(Object::take(object));
}

/// Our own statement failed: is PostgreSQL away, or did it refuse?
pub(crate) fn failed(what: &'static str) -> impl Fn(tokio_postgres::Error) -> Error {
    move |error| {
        let class = classify(&error);
        let source: Box<dyn StdError + Send + Sync> = error.into();
        match class {
            Class::Unavailable => Error::Unavailable(what, source),
            Class::Conflict | Class::Failed => Error::Refused(what, source),
        }
    }
}

/// Headers as a JSON object; a name that occurs more than once has an array of values.
fn headers_json(received: &Received) -> String {
    let mut headers = serde_json::Map::new();
    for (name, value) in received.headers() {
        // jsonb takes no NUL.
        let value = serde_json::Value::from(value.replace('\0', "\u{fffd}"));
        match headers.entry(name.replace('\0', "\u{fffd}")) {
            serde_json::map::Entry::Vacant(entry) => {
                entry.insert(value);
            }
            serde_json::map::Entry::Occupied(mut entry) => match entry.get_mut() {
                serde_json::Value::Array(values) => values.push(value),
                single => *single = serde_json::Value::Array(vec![single.take(), value]),
            },
        }
    }
    serde_json::Value::Object(headers).to_string()
}

/// Counts and sequences of NATS are far below 2^63.
fn bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_any_kind_become_json() {
        let message =
            Received::new("s", "").header("a", "1").header("b", "x\0y").header("a", "2").header("a", "3");
        assert_eq!(headers_json(&message), "{\"a\":[\"1\",\"2\",\"3\"],\"b\":\"x\u{fffd}y\"}");
        assert_eq!(headers_json(&Received::new("s", "")), "{}");
    }
}
