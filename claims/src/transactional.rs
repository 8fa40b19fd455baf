//! Claims in a transaction: the key, the handler's writes and the outcome are committed together,
//! or not at all.

mod batch;
mod claim;
mod deferred;
mod holder;
mod look;
mod timeouts;

use std::sync::{Arc, OnceLock};

use deadpool_postgres::Transaction;
use futures_util::future::OptionFuture;
use tokio_postgres::types::Type;

use crate::{
    database::{Database, Parameter, statement},
    identity::Identity,
    stored::{COMPLETED, Settlement},
};

pub use batch::Session;
pub use claim::{Claim, Claimed, Expect, claim_sql};
pub use deferred::{Deferrable, Deferred};

/// A key to claim, and the id of its message.
pub type Wanted<'a> = (&'a Identity, Option<i64>);

/// The statements of claims in a transaction, in one database.
#[derive(Debug)]
pub struct TransactionalClaims {
    database: Arc<Database>,
    /// Known once the server's version is.
    claim: OnceLock<claim::Statements>,
    stored: String,
    settle: String,
    dead: String,
    expire: String,
    end_holder: String,
    batch: batch::Statements,
}

impl TransactionalClaims {
    /// Claims in this database.
    #[must_use]
    pub fn new(database: Arc<Database>) -> Self {
        let schema = database.schema();
        Self {
            claim: OnceLock::new(),
            stored: statement(schema, include_str!("transactional/stored.sql")),
            settle: statement(schema, include_str!("transactional/settle.sql")),
            dead: statement(schema, include_str!("transactional/dead.sql")),
            expire: statement(schema, include_str!("transactional/expire.sql")),
            end_holder: statement(schema, include_str!("transactional/end_holder.sql")),
            batch: batch::Statements::new(schema),
            database,
        }
    }

    /// Writes what the handler left to the commit, stores how it ended, commits, and claims the
    /// next message's key in the transaction that follows: all in one round trip. When writing or
    /// storing fails, the transaction is aborted and the commit fails with it; when the commit
    /// fails, the claim has no effect. A key that may be known is also looked up at once, so that a
    /// duplicate costs no round trip of its own.
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
            let claim = OptionFuture::from(next.map(|next| self.ready_claim(transaction, next.expect)));
            let looks = next.is_some_and(|next| next.expect == Expect::Either);
            let look = OptionFuture::from(looks.then(|| self.database.ready(transaction, &self.stored)));
            Ok((settle.await.transpose()?, claim.await.transpose()?, look.await.transpose()?))
        };
        let (settle, claim, look) = match statements.await {
            Ok(statements) => statements,
            Err(error) => return Committed { committed: Err(error), claimed: None },
        };
        let settled =
            OptionFuture::from(settle.as_ref().zip(ending.settlement).map(async |(settle, settlement)| {
                let (identity, Settlement { status, outcome }) = settlement;
                let parameters: [Parameter<'_>; 5] = [
                    (&scope, Type::TEXT),
                    (&identity.tenant, Type::TEXT),
                    (&identity.key.as_str(), Type::TEXT),
                    (&status.as_str(), Type::TEXT),
                    (&outcome, Type::BYTEA),
                ];
                settle.execute(transaction, &parameters).await
            }));
        let claimed = OptionFuture::from(claim.as_ref().zip(next).map(|(claim, next)| {
            self.insert(transaction, claim, scope, next.identity, next.message_id, COMPLETED)
        }));
        let found = OptionFuture::from(
            look.as_ref().zip(next).map(|(look, next)| self.look(transaction, look, scope, next.identity)),
        );
        let (deferred, settled, committed, inserted, found) = futures_util::join!(
            ending.deferred.send(transaction),
            settled,
            self.database.commit(transaction),
            claimed,
            found
        );
        Committed {
            committed: deferred.and(settled.transpose().map(drop)).and(committed),
            claimed: inserted.map(|inserted| Claimed { inserted, found }),
        }
    }
}

/// What is committed besides the writes of the handler.
#[derive(Clone, Copy, Debug)]
pub struct Ending<'a> {
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
    pub committed: Result<(), tokio_postgres::Error>,
    /// The claim, if one was made; it has an effect only if the transaction is committed.
    pub claimed: Option<Claimed>,
}
