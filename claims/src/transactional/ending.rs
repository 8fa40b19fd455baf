//! The end of a transaction that has claimed a key.

use std::time::Duration;

use futures_util::future::OptionFuture;
use oncebox_schema::Transaction;
use tokio::time::timeout;
use tokio_postgres::{Client, types::Type};

use super::{Claimed, Deferred, Expect, Next, TransactionId, TransactionalClaims};
use crate::{
    Error,
    database::{Parameter, Ready, failed},
    failure::CommitError,
    identity::Identity,
    stored::{COMPLETED, Settlement},
};

/// Whether a claim was committed although its handler failed; for a caller that uses another client
/// library: `true` or `false`. `committed.sql` has its parameters.
pub const COMMITTED: &str = include_str!("committed.sql");
/// Takes back a claim that its handler has committed; `disown.sql` has its parameters.
pub(super) const DISOWN: &str = include_str!("disown.sql");
/// How long PostgreSQL may take to answer behind a rollback.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// What is committed besides the writes of the handler.
#[derive(Clone, Copy, Debug)]
pub struct Ending<'a> {
    /// The writes that the handler left to the commit.
    pub deferred: &'a Deferred,
    /// How the key ended, when that is more than [`COMPLETED`].
    pub settlement: Option<(&'a Identity, Settlement<'a>)>,
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
    /// Writes what the handler left to the commit, stores how it ended, commits, and claims the
    /// next message's key in the transaction that follows: all in one round trip. When one of these
    /// statements fails, the transaction is aborted and the commit has no effect; then the claim
    /// behind it has none either. A key that may be known is also looked up at once, so that a
    /// duplicate costs no round trip of its own.
    pub async fn commit_and_claim(
        &self,
        transaction: &Transaction,
        scope: &str,
        ending: Ending<'_>,
        next: Option<Next<'_>>,
    ) -> Committed {
        // Prepared before, so that the first poll of each future below sends its statement, in this
        // order.
        let statements = async {
            let settle =
                OptionFuture::from(ending.settlement.map(|_| self.database.ready(transaction, &self.settle)));
            let guards = !ending.deferred.is_empty() && !self.database.is_pooled();
            let guard = OptionFuture::from(guards.then(|| self.database.guard(transaction)));
            let claim = OptionFuture::from(next.map(|next| self.ready_claim(transaction, next.expect)));
            let looks = next.is_some_and(|next| next.expect == Expect::Either);
            let look = OptionFuture::from(looks.then(|| self.database.ready(transaction, &self.stored)));
            Ok((
                settle.await.transpose()?,
                guard.await.transpose()?,
                claim.await.transpose()?,
                look.await.transpose()?,
            ))
        };
        let (settle, guard, claim, look) = match statements.await {
            Ok(statements) => statements,
            Err(error) => return Committed { committed: Err(CommitError::of(error)), claimed: None },
        };
        // There the guard of these writes is awaited, and the commit must not overtake them.
        if self.database.is_pooled()
            && let Err(error) = ending.deferred.write(&self.database, transaction).await
        {
            return Committed { committed: Err(error), claimed: None };
        }
        let settled = OptionFuture::from(
            settle
                .as_ref()
                .zip(ending.settlement)
                .map(|(settle, settlement)| self.settle(transaction, settle, scope, settlement)),
        );
        let commit = async {
            match next {
                Some(_) => self.database.commit_and_chain(transaction).await,
                None => self.database.commit(transaction).await,
            }
        };
        let claimed = OptionFuture::from(
            claim
                .as_ref()
                .zip(next)
                .map(|(claim, next)| self.insert(transaction, claim, scope, next, COMPLETED)),
        );
        let found = OptionFuture::from(
            look.as_ref().zip(next).map(|(look, next)| self.look(transaction, look, scope, next.identity)),
        );
        let (deferred, settled, committed, inserted, found) = futures_util::join!(
            ending.deferred.send(transaction, guard.as_ref()),
            settled,
            commit,
            claimed,
            found
        );
        let written = settled.transpose().and(committed).map_err(CommitError::of);
        Committed {
            committed: deferred.and(written),
            claimed: inserted.map(|inserted| Claimed { inserted, found }),
        }
    }

    /// Whether this transaction, which is over, has committed its claim although its handler
    /// failed. `None` when PostgreSQL has not ended the transaction, or does not answer.
    pub async fn is_committed(
        &self,
        client: &Client,
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
        let asked = timeout(ANSWER_MAX, client.query_typed_one(&self.committed, &parameters)).await;
        Some(asked.ok()?.ok()?.get::<_, &str>(0) == "true")
    }

    /// Takes back a claim that its handler has committed, in the transaction that gives the message
    /// up.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn disown(
        &self,
        transaction: &Transaction,
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
        transaction: &Transaction,
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
}
