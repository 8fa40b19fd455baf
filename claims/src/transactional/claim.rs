//! Claiming a key: the statement that decides who handles a message.

use std::time::Duration;

use oncebox_schema::SchemaName;
use oncebox_schema::Transaction;
use tokio_postgres::{Row, error::SqlState, types::Type};

use super::{TransactionalClaims, Wanted, timeouts};
use crate::{
    Error,
    database::{Database, Parameter, Ready, failed, statement},
    identity::Identity,
    limits::Limits,
    stored::{COMPLETED, Settlement, Stored},
};

/// The id of the transaction that has claimed a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionId(i64);

impl TransactionId {
    /// The id as [`claim_sql`] returns it.
    #[must_use]
    pub fn parse(id: &str) -> Self {
        Self(id.parse().expect("the server never reaches 2^63 transactions"))
    }

    /// The id as our statements take it.
    #[must_use]
    pub fn as_i64(&self) -> &i64 {
        &self.0
    }
}

/// The result of a claim.
#[derive(Debug)]
pub enum Claim {
    /// The key is ours until the transaction ends, which has this id.
    Won(TransactionId),
    /// Another transaction works on the key.
    InFlight,
    /// The key was handled before.
    Stored(Stored),
}

/// The case that a claim is prepared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// A new key; another one costs the transaction and a line in PostgreSQL's log.
    New,
    /// A new key or a known one.
    Either,
}

/// A key that is to be claimed.
#[derive(Clone, Copy, Debug)]
pub struct Next<'a> {
    /// The identity of its message.
    pub identity: &'a Identity,
    /// Its message's id in the outbox.
    pub message_id: Option<i64>,
    /// The case that the claim is prepared for.
    pub expect: Expect,
}

/// The answers to a claim that was sent right behind a commit: the transaction's id if it inserted
/// a row, and the row that a look behind the claim has found, if there was one.
#[derive(Debug)]
pub struct Claimed {
    pub(super) inserted: Result<Option<TransactionId>, tokio_postgres::Error>,
    pub(super) found: Option<Result<Option<Row>, tokio_postgres::Error>>,
}

/// The SQL of the claims, with the limits that the version of the server takes.
#[derive(Debug)]
pub(super) struct Statements {
    expecting_new: String,
    expecting_either: String,
}

impl Statements {
    fn new(database: &Database) -> Self {
        let claim = |template: &str| {
            let statement = statement(database.schema(), template);
            timeouts::fill_in(&statement, database.limits(), database.version())
        };
        Self {
            expecting_new: claim(include_str!("claim_new.sql")),
            expecting_either: claim(include_str!("claim.sql")),
        }
    }
}

/// The claim that expects either, with its limits as every supported server takes them. A caller
/// that uses another client library sends it by itself. `claim.sql` has its parameters; it returns
/// one row when the key is won, in a transaction that was begun DEFERRABLE.
#[must_use]
pub fn claim_sql(schema: &SchemaName, limits: &Limits) -> String {
    timeouts::fill_in(&statement(schema, include_str!("claim.sql")), limits, 0)
}

impl TransactionalClaims {
    pub(super) async fn ready_claim(
        &self,
        transaction: &Transaction,
        expect: Expect,
    ) -> Result<Ready<'_>, tokio_postgres::Error> {
        let statements = self.claim.get_or_init(|| Statements::new(&self.database));
        let claim = match expect {
            Expect::New => &statements.expecting_new,
            Expect::Either => &statements.expecting_either,
        };
        self.database.ready(transaction, claim).await
    }

    /// Begins a transaction on this connection and claims a key in it, in one round trip; the rest
    /// is that of [`TransactionalClaims::claim`].
    ///
    /// # Errors
    /// PostgreSQL is away, or refuses.
    pub async fn begin_and_claim(
        &self,
        transaction: &Transaction,
        scope: &str,
        next: Next<'_>,
    ) -> Result<Option<Claim>, Error> {
        let statement = self.ready_claim(transaction, next.expect).await.map_err(failed("claim"))?;
        let insert = self.insert(transaction, &statement, scope, next, COMPLETED);
        let inserted = self.database.begin_with(transaction, insert).await?;
        let claimed = Claimed { inserted, found: None };
        self.claimed(transaction, scope, (next.identity, next.message_id), COMPLETED, claimed).await
    }

    /// Claims a key, or finds out why not. `settlement` is what is committed unless it is changed.
    /// `None` when the key is to be claimed again with [`Expect::Either`], in another transaction,
    /// since this one is aborted: the key is known, which [`Expect::New`] did not expect, or was
    /// committed behind the snapshot of a level above READ COMMITTED.
    pub async fn claim(
        &self,
        transaction: &Transaction,
        scope: &str,
        next: Next<'_>,
        settlement: Settlement<'_>,
    ) -> Result<Option<Claim>, Error> {
        let statement = self.ready_claim(transaction, next.expect).await.map_err(failed("claim"))?;
        let inserted = self.insert(transaction, &statement, scope, next, settlement).await;
        let claimed = Claimed { inserted, found: None };
        self.claimed(transaction, scope, (next.identity, next.message_id), settlement, claimed).await
    }

    /// Finds out who has the key, after a claim was sent. When the claim inserted no row, this
    /// reads the row that is there, and claims again if that row is older than the retention.
    pub async fn claimed(
        &self,
        transaction: &Transaction,
        scope: &str,
        (identity, message_id): Wanted<'_>,
        settlement: Settlement<'_>,
        claimed: Claimed,
    ) -> Result<Option<Claim>, Error> {
        match claimed.inserted {
            Ok(Some(id)) => return Ok(Some(Claim::Won(id))),
            Ok(None) => {}
            Err(error) if is_to_be_repeated(&error) => return Ok(None),
            Err(error) => return Err(failed("claim")(error)),
        }
        let found = match claimed.found {
            Some(found) => found,
            None => match self.database.ready(transaction, &self.stored).await {
                Ok(look) => self.look(transaction, &look, scope, identity).await,
                Err(error) => Err(error),
            },
        };
        let found = found.map_err(failed("read the stored outcome"))?;
        let found = self.found(transaction, scope, identity, found).await?;
        match (&found, self.database.limits().retention) {
            (Claim::Stored(Stored { is_expired: true, .. }), Some(retention)) => {
                self.expire(transaction, scope, identity, retention).await?;
            }
            _ => return Ok(Some(found)),
        }
        let statement = self.ready_claim(transaction, Expect::Either).await.map_err(failed("claim"))?;
        let next = Next { identity, message_id, expect: Expect::Either };
        let again = self.insert(transaction, &statement, scope, next, settlement).await;
        // Not ours: another transaction does the same, or has done it just now. The caller looks
        // again.
        Ok(Some(again.map_err(failed("claim"))?.map_or(Claim::InFlight, Claim::Won)))
    }

    /// Reads the row of a key that was not claimed.
    pub(super) async fn look(
        &self,
        transaction: &Transaction,
        statement: &Ready<'_>,
        scope: &str,
        identity: &Identity,
    ) -> Result<Option<Row>, tokio_postgres::Error> {
        let parameters: [Parameter<'_>; 4] = [
            (&scope, Type::TEXT),
            (&identity.tenant, Type::TEXT),
            (&identity.key.as_str(), Type::TEXT),
            (&self.database.retention_seconds(), Type::FLOAT8),
        ];
        statement.query_opt(transaction, &parameters).await
    }

    pub(super) async fn insert(
        &self,
        transaction: &Transaction,
        statement: &Ready<'_>,
        scope: &str,
        Next { identity, message_id, .. }: Next<'_>,
        Settlement { status, outcome }: Settlement<'_>,
    ) -> Result<Option<TransactionId>, tokio_postgres::Error> {
        let parameters: [Parameter<'_>; 8] = [
            (&identity.lock, Type::INT8),
            (&scope, Type::TEXT),
            (&identity.tenant, Type::TEXT),
            (&identity.key.as_str(), Type::TEXT),
            (&&identity.fingerprint[..], Type::BYTEA),
            (&message_id, Type::INT8),
            (&status.as_str(), Type::TEXT),
            (&outcome, Type::BYTEA),
        ];
        Ok(statement.query_opt(transaction, &parameters).await?.map(|row| TransactionId::parse(row.get(0))))
    }

    /// Deletes the row of a key that is older than its retention, unless another transaction works
    /// on the key.
    async fn expire(
        &self,
        transaction: &Transaction,
        scope: &str,
        identity: &Identity,
        retention: Duration,
    ) -> Result<(), Error> {
        let statement =
            self.database.ready(transaction, &self.expire).await.map_err(failed("expire a key"))?;
        let parameters: [Parameter<'_>; 5] = [
            (&identity.lock, Type::INT8),
            (&scope, Type::TEXT),
            (&identity.tenant, Type::TEXT),
            (&identity.key.as_str(), Type::TEXT),
            (&retention.as_secs_f64(), Type::FLOAT8),
        ];
        statement.execute(transaction, &parameters).await.map(drop).map_err(failed("expire a key"))
    }
}

/// Whether a claim that failed like this can be won, or answered, in another transaction.
fn is_to_be_repeated(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(&SqlState::UNIQUE_VIOLATION | &SqlState::T_R_SERIALIZATION_FAILURE))
}

#[cfg(test)]
mod tests {
    /// What is claimed is the same, whatever is expected.
    #[test]
    fn the_two_claims_differ_in_one_line_only() {
        let lines =
            |sql: &'static str| sql.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>();
        let (new, mut either) = (lines(include_str!("claim_new.sql")), lines(include_str!("claim.sql")));
        let conflict = either.remove(either.len() - 2);
        assert_eq!((either, conflict), (new, "ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING"));
    }
}
