//! The end of a transaction that has claimed a key.

use std::time::Duration;

use deadpool_postgres::{Object, Transaction};
use futures_util::{TryStreamExt, future::OptionFuture};
use tokio::time::timeout;
use tokio_postgres::{error::SqlState, types::Type};

use super::{Claimed, Deferred, Expect, TransactionId, TransactionalClaims};
use crate::{
    Error,
    database::{Parameter, Ready, failed, without_comments},
    failure::CommitError,
    identity::Identity,
    stored::{COMPLETED, Settlement},
};

/// Whether a claim was committed although its handler failed; for a caller that uses another client
/// library: `true` or `false`. `committed.sql` has its parameters.
pub const COMMITTED: &str = include_str!("committed.sql");
/// Takes back a claim that its handler has committed; `disown.sql` has its parameters.
pub(super) const DISOWN: &str = include_str!("disown.sql");
/// The check before a commit, by its parameter.
pub(super) const SAME_TRANSACTION: &str = include_str!("same_transaction.sql");
/// How long PostgreSQL may take to answer behind a rollback.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// What is committed besides the writes of the handler.
#[derive(Clone, Copy, Debug)]
pub struct Ending<'a> {
    /// The transaction that has claimed the key; `None` when this message has claimed none.
    pub claimed: Option<TransactionId>,
    /// The writes that the handler left to the commit.
    pub deferred: &'a Deferred,
    /// How the key ended, when that is more than [`COMPLETED`].
    pub settlement: Option<(&'a Identity, Settlement<'a>)>,
}

/// The message whose key is claimed behind the commit.
#[derive(Clone, Copy, Debug)]
pub struct Next<'a> {
    /// Its identity.
    pub identity: &'a Identity,
    /// Its id in the outbox.
    pub message_id: Option<i64>,
    /// The case that the claim is prepared for.
    pub expect: Expect,
}

/// The results of a commit, and of the claim behind it.
#[derive(Debug)]
pub struct Committed {
    /// Whether the transaction is committed.
    pub committed: Result<(), CommitError>,
    /// The claim, if one was made; it has an effect only if the transaction is committed.
    pub claimed: Option<Claimed>,
}

impl TransactionalClaims {
    /// Writes what the handler left to the commit, stores how it ended, checks that the transaction
    /// is still the one that has claimed the key, commits, and claims the next message's key in the
    /// transaction that follows: all in one round trip. When one of these statements fails, the
    /// transaction is aborted and the commit has no effect; then the claim behind it has none
    /// either. A key that may be known is also looked up at once, so that a duplicate costs no
    /// round trip of its own.
    pub async fn commit_and_claim(
        &self,
        transaction: &Transaction<'_>,
        scope: &str,
        ending: Ending<'_>,
        next: Option<Next<'_>>,
    ) -> Committed {
        // Prepared before, so that the first poll of each future below sends its statement, in this
        // order.
        let statements = async {
            let settle =
                OptionFuture::from(ending.settlement.map(|_| self.database.ready(transaction, &self.settle)));
            let check = OptionFuture::from(ending.claimed.map(|_| self.ready_check(transaction)));
            let claim = OptionFuture::from(next.map(|next| self.ready_claim(transaction, next.expect)));
            let looks = next.is_some_and(|next| next.expect == Expect::Either);
            let look = OptionFuture::from(looks.then(|| self.database.ready(transaction, &self.stored)));
            Ok((
                settle.await.transpose()?,
                check.await.transpose()?,
                claim.await.transpose()?,
                look.await.transpose()?,
            ))
        };
        let (settle, check, claim, look) = match statements.await {
            Ok(statements) => statements,
            Err(error) => return Committed { committed: Err(CommitError::of(error)), claimed: None },
        };
        let settled = OptionFuture::from(
            settle
                .as_ref()
                .zip(ending.settlement)
                .map(|(settle, settlement)| self.settle(transaction, settle, scope, settlement)),
        );
        let checked = OptionFuture::from(
            check.as_ref().zip(ending.claimed).map(|(check, id)| same_transaction(transaction, check, id)),
        );
        let claimed = OptionFuture::from(claim.as_ref().zip(next).map(|(claim, next)| {
            self.insert(transaction, claim, scope, next.identity, next.message_id, COMPLETED)
        }));
        let found = OptionFuture::from(
            look.as_ref().zip(next).map(|(look, next)| self.look(transaction, look, scope, next.identity)),
        );
        let (deferred, settled, checked, committed, inserted, found) = futures_util::join!(
            ending.deferred.send(transaction),
            settled,
            checked,
            self.database.commit(transaction),
            claimed,
            found
        );
        let written = deferred.and(settled.transpose().map(drop)).map_err(CommitError::of);
        let checked = checked.transpose().map(drop);
        Committed {
            committed: written.and(checked).and(committed.map_err(CommitError::of)),
            claimed: inserted.map(|inserted| Claimed { inserted, found }),
        }
    }

    /// Commits and ends the transaction that has claimed a key, in one round trip: what
    /// [`TransactionalClaims::commit_and_claim`] does, where nothing is left to write and nothing
    /// follows. The driver commits, without an empty transaction behind it, whose ROLLBACK would be
    /// a statement more for each message.
    ///
    /// # Errors
    /// The transaction is aborted, or is not the one that has claimed; PostgreSQL is away.
    pub async fn commit_last(
        &self,
        transaction: Transaction<'_>,
        claimed: TransactionId,
    ) -> Result<(), CommitError> {
        let check = same_transaction_sql(claimed);
        // Sent at once; the answers are awaited below.
        let checking = transaction.client().simple_query_raw(&check).await.map_err(CommitError::of)?;
        let (checked, committed) =
            futures_util::join!(checking.try_for_each(async |_| Ok(())), transaction.commit());
        checked.map_err(of_check).and(committed.map_err(CommitError::of))
    }

    /// Whether this transaction, which is over, has committed its claim although its handler
    /// failed. `None` when PostgreSQL has not ended the transaction, or does not answer.
    pub async fn is_committed(
        &self,
        object: &Object,
        scope: &str,
        identity: &Identity,
        claimed: TransactionId,
    ) -> Option<bool> {
        let parameters: [Parameter<'_>; 4] = [
            (&scope, Type::TEXT),
            (&identity.tenant, Type::TEXT),
            (&identity.key.as_str(), Type::TEXT),
            (claimed.as_i64(), Type::INT8),
        ];
        let asked = timeout(ANSWER_MAX, object.query_typed_one(&self.committed, &parameters)).await;
        Some(asked.ok()?.ok()?.get::<_, &str>(0) == "true")
    }

    /// Takes back a claim that its handler has committed, in the transaction that gives the message
    /// up.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn disown(
        &self,
        transaction: &Transaction<'_>,
        scope: &str,
        identity: &Identity,
        claimed: TransactionId,
    ) -> Result<(), Error> {
        let parameters: [Parameter<'_>; 4] = [
            (&scope, Type::TEXT),
            (&identity.tenant, Type::TEXT),
            (&identity.key.as_str(), Type::TEXT),
            (claimed.as_i64(), Type::INT8),
        ];
        let disowned = transaction.execute_typed(&self.disown, &parameters).await;
        disowned.map(drop).map_err(failed("take back a claim"))
    }

    async fn settle(
        &self,
        transaction: &Transaction<'_>,
        statement: &Ready<'_>,
        scope: &str,
        (identity, Settlement { status, outcome }): (&Identity, Settlement<'_>),
    ) -> Result<u64, tokio_postgres::Error> {
        let parameters: [Parameter<'_>; 5] = [
            (&scope, Type::TEXT),
            (&identity.tenant, Type::TEXT),
            (&identity.key.as_str(), Type::TEXT),
            (&status.as_str(), Type::TEXT),
            (&outcome, Type::BYTEA),
        ];
        statement.execute(transaction, &parameters).await
    }

    pub(super) async fn ready_check(
        &self,
        transaction: &Transaction<'_>,
    ) -> Result<Ready<'_>, tokio_postgres::Error> {
        self.database.ready(transaction, &self.same_transaction).await
    }
}

/// The check before a commit as a text without parameters, for the simple protocol: it fails, and
/// aborts the transaction, unless that is the one that has claimed.
#[must_use]
pub fn same_transaction_sql(claimed: TransactionId) -> String {
    without_comments(SAME_TRANSACTION).replace("$1::bigint", &claimed.as_i64().to_string())
}

/// Fails, and aborts the transaction, unless it is this one.
pub(super) async fn same_transaction(
    transaction: &Transaction<'_>,
    statement: &Ready<'_>,
    id: TransactionId,
) -> Result<(), CommitError> {
    statement.query(transaction, &[(id.as_i64(), Type::INT8)]).await.map(drop).map_err(of_check)
}

/// Why the check has failed. It divides by zero in a transaction that has not claimed the key.
fn of_check(error: tokio_postgres::Error) -> CommitError {
    match error.code() {
        Some(&SqlState::DIVISION_BY_ZERO) => CommitError::ended_by_handler(),
        _ => CommitError::of(error),
    }
}
