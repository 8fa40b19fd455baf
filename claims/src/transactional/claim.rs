//! Claiming a key: the statement that decides who handles a message.

use std::{fmt, time::Duration};

use oncebox_schema::{Answer, Cause, Driver, Statement, Value};
use tokio_postgres::error::SqlState;

use super::{TransactionId, TransactionalClaims, Wanted, timeouts};
use crate::{
    Claim, Error,
    database::{Database, failed_through, statement},
    identity::Identity,
    life::Arrival,
    stored::{COMPLETED, Settlement, arrival},
};

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

/// The answers to a claim: the transaction's id if it inserted a row, and the row that a look after
/// the claim has found, if there was one.
pub struct Claimed<D: Driver> {
    pub(super) inserted: Result<Option<TransactionId>, D::Error>,
    pub(super) found: Option<Answer<D>>,
}

impl<D: Driver> fmt::Debug for Claimed<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claimed").field("inserted", &self.inserted).finish_non_exhaustive()
    }
}

impl<D: Driver> Claimed<D> {
    /// The answers to a claim, and to a look if one was sent after it; `None` when none of them was
    /// sent.
    pub(super) fn of(mut answers: impl Iterator<Item = Answer<D>>) -> Option<Self> {
        let inserted = answers.next()?.map(|row| row.as_ref().and_then(TransactionId::of));
        Some(Self { inserted, found: answers.next() })
    }
}

/// The SQL of the claims, with the limits that the version of the server takes.
#[derive(Debug)]
pub(super) struct Statements {
    expecting_new: String,
    expecting_either: String,
}

impl Statements {
    fn new<D: Driver>(database: &Database<D>) -> Self {
        let claim = |on_conflict| {
            let template = include_str!("claim.sql").replace("{on_conflict}", on_conflict);
            let statement = statement(database.schema(), &template);
            timeouts::fill_in(&statement, database.limits(), database.version())
        };
        Self {
            expecting_new: claim(""),
            expecting_either: claim("ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING"),
        }
    }
}

/// The parameters of `claim.sql`.
pub(super) fn claim_values<'a>(
    scope: &'a str,
    Next { identity, message_id, .. }: Next<'a>,
    Settlement { status, outcome }: Settlement<'a>,
) -> [Value<'a>; 8] {
    let [scope, tenant, key] = name_values(scope, identity);
    let fingerprint = Value::Bytes(Some(&identity.fingerprint));
    let (lock, message_id) = (Value::Integer(Some(identity.lock)), Value::Integer(message_id));
    [
        lock,
        scope,
        tenant,
        key,
        fingerprint,
        message_id,
        Value::Text(Some(status.as_str())),
        Value::Bytes(outcome),
    ]
}

/// A key's name, as most statements take it.
pub(super) fn name_values<'a>(scope: &'a str, identity: &'a Identity) -> [Value<'a>; 3] {
    [Value::Text(Some(scope)), Value::Text(Some(&identity.tenant)), Value::Text(Some(identity.key.as_str()))]
}

impl<D: Driver> TransactionalClaims<D> {
    pub(super) fn claim_sql(&self, expect: Expect) -> &str {
        let statements = self.claim.get_or_init(|| Statements::new(&self.database));
        match expect {
            Expect::New => &statements.expecting_new,
            Expect::Either => &statements.expecting_either,
        }
    }

    /// Begins a transaction and claims a key in it, in one round trip; otherwise like
    /// [`TransactionalClaims::claim`].
    ///
    /// # Errors
    /// PostgreSQL is away, or refuses.
    pub async fn begin_and_claim(
        &self,
        scope: &str,
        next: Next<'_>,
    ) -> Result<(D::Transaction, Option<Claim>), Error> {
        self.database.check().await?;
        let values = claim_values(scope, next, COMPLETED);
        let statements = [Statement::Query(self.claim_sql(next.expect), &values)];
        let (mut transaction, answers) = self.database.begin_for_handler(&statements).await?;
        let wanted = (next.identity, next.message_id);
        match self.claimed(&mut transaction, scope, wanted, COMPLETED, Claimed::of(answers.into_iter())).await
        {
            Ok(claim) => Ok((transaction, claim)),
            Err(error) => {
                // Perhaps an earlier handler has changed the session: its role, or that it only
                // reads.
                self.database.close(transaction).await;
                Err(error)
            }
        }
    }

    /// Claims a key, or finds out why not. The transaction commits `settlement` unless it is
    /// changed. `None` when the key is to be claimed again with [`Expect::Either`], in another
    /// transaction, since this one is aborted: the key is known, which [`Expect::New`] did not
    /// expect, or was committed after the snapshot of a level above READ COMMITTED.
    ///
    /// # Errors
    /// PostgreSQL is away, or refuses.
    pub async fn claim(
        &self,
        transaction: &mut D::Transaction,
        scope: &str,
        next: Next<'_>,
        settlement: Settlement<'_>,
    ) -> Result<Option<Claim>, Error> {
        let values = claim_values(scope, next, settlement);
        let answer = self.database.query(transaction, self.claim_sql(next.expect), &values).await;
        let claimed = Claimed::of(std::iter::once(answer));
        self.claimed(transaction, scope, (next.identity, next.message_id), settlement, claimed).await
    }

    /// Finds out who has the key, after a claim was sent. When the claim inserted no row, this
    /// reads the row that is there, and claims again if that row is older than the retention.
    ///
    /// # Errors
    /// PostgreSQL is away, or refuses.
    pub async fn claimed(
        &self,
        transaction: &mut D::Transaction,
        scope: &str,
        (identity, message_id): Wanted<'_>,
        settlement: Settlement<'_>,
        claimed: Option<Claimed<D>>,
    ) -> Result<Option<Claim>, Error> {
        let Some(Claimed { inserted, found }) = claimed else {
            return Err(Error::Unavailable("claim", "no answer".into()));
        };
        match inserted {
            Ok(Some(id)) => return Ok(Some(Claim::Won(id))),
            Ok(None) => {}
            Err(error) if is_to_be_repeated::<D>(&error) => return Ok(None),
            Err(error) => return Err(failed_through::<D>("claim")(error)),
        }
        let found = match found {
            Some(found) => found,
            None => self.look(transaction, scope, identity).await,
        };
        let found = found.map_err(failed_through::<D>("read the stored outcome"))?;
        let stored = self.found(transaction, scope, identity, found).await?;
        match (arrival(stored.as_ref(), identity), self.database.limits().retention) {
            (Arrival::Replace, Some(retention)) => {
                self.expire(transaction, scope, identity, retention).await?;
            }
            (arrival, _) => return Ok(Some(Claim::refused(arrival, stored))),
        }
        let values = claim_values(scope, Next { identity, message_id, expect: Expect::Either }, settlement);
        let again = self.database.query(transaction, self.claim_sql(Expect::Either), &values).await;
        let again = again.map_err(failed_through::<D>("claim"))?;
        // Not ours: another transaction does the same, or has done it just now. The caller looks
        // again.
        Ok(Some(again.as_ref().and_then(TransactionId::of).map_or(Claim::InFlight, Claim::Won)))
    }

    /// Reads the row of a key that was not claimed.
    pub(super) async fn look(
        &self,
        transaction: &mut D::Transaction,
        scope: &str,
        identity: &Identity,
    ) -> Answer<D> {
        self.database.query(transaction, &self.stored, &self.look_values(scope, identity)).await
    }

    /// The parameters of `stored.sql`.
    pub(super) fn look_values<'a>(&self, scope: &'a str, identity: &'a Identity) -> [Value<'a>; 4] {
        let [scope, tenant, key] = name_values(scope, identity);
        [scope, tenant, key, Value::Float(self.database.retention_seconds())]
    }

    /// Deletes the row of a key that is older than its retention, unless another transaction works
    /// on the key.
    async fn expire(
        &self,
        transaction: &mut D::Transaction,
        scope: &str,
        identity: &Identity,
        retention: Duration,
    ) -> Result<(), Error> {
        let [scope, tenant, key] = name_values(scope, identity);
        let lock = Value::Integer(Some(identity.lock));
        let values = [lock, scope, tenant, key, Value::Float(Some(retention.as_secs_f64()))];
        let expired = self.database.query(transaction, &self.expire, &values).await;
        expired.map(drop).map_err(failed_through::<D>("expire a key"))
    }
}

/// Whether a claim that failed like this can be won, or answered, in another transaction.
fn is_to_be_repeated<D: Driver>(error: &D::Error) -> bool {
    let cause = D::cause(error);
    let state = cause.as_ref().map_or("", Cause::state);
    [SqlState::UNIQUE_VIOLATION, SqlState::T_R_SERIALIZATION_FAILURE]
        .iter()
        .any(|repeated| repeated.code() == state)
}
