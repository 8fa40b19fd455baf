//! Claims in a transaction: the key, the handler's writes and the outcome are committed together, or not at all.

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
pub use claim::{Claim, Claimed, Expect};
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

    /// Writes what the handler left to the commit, stores how it ended, when that is more than [`COMPLETED`], commits, and
    /// claims the next message's key in the transaction that follows: all in one round trip. When writing or storing
    /// fails, the transaction is aborted and the commit fails with it; when the commit fails, the claim has no effect. A
    /// key that may be known is also looked up at once, so that a duplicate costs no round trip of its own.
    pub async fn commit_and_claim(
        &self,
        transaction: &Transaction<'_>,
        scope: &str,
        (deferred, settled): (&Deferred, Option<(&Identity, Settlement<'_>)>),
        next: Option<(&Identity, Option<i64>, Expect)>,
    ) -> (Result<(), tokio_postgres::Error>, Option<Claimed>) {
        let looks = matches!(next, Some((_, _, Expect::Either)));
        // Prepared before, so that the first poll of each future below sends its statement, in this order.
        let statements = async {
            let settle = OptionFuture::from(settled.map(|_| self.database.ready(transaction, &self.settle)));
            let claim = OptionFuture::from(next.map(|(_, _, expect)| self.ready_claim(transaction, expect)));
            let look = OptionFuture::from(looks.then(|| self.database.ready(transaction, &self.stored)));
            Ok((settle.await.transpose()?, claim.await.transpose()?, look.await.transpose()?))
        };
        let (settle, claim, look) = match statements.await {
            Ok(statements) => statements,
            Err(error) => return (Err(error), None),
        };
        let settled = OptionFuture::from(settle.as_ref().zip(settled).map(
            async |(settle, (identity, (status, outcome)))| {
                let parameters: [Parameter<'_>; 5] = [
                    (&scope, Type::TEXT),
                    (&identity.tenant, Type::TEXT),
                    (&identity.key.as_str(), Type::TEXT),
                    (&status.as_str(), Type::TEXT),
                    (&outcome, Type::BYTEA),
                ];
                settle.execute(transaction, &parameters).await
            },
        ));
        let claimed =
            OptionFuture::from(claim.as_ref().zip(next).map(|(claim, (identity, message_id, _))| {
                self.insert(transaction, claim, scope, identity, message_id, COMPLETED)
            }));
        let found = OptionFuture::from(
            look.as_ref()
                .zip(next)
                .map(|(look, (identity, ..))| self.look(transaction, look, scope, identity)),
        );
        let (deferred, settled, committed, inserted, found) = futures_util::join!(
            deferred.send(transaction),
            settled,
            self.database.commit(transaction),
            claimed,
            found
        );
        (
            deferred.and(settled.transpose()).and(committed),
            inserted.map(|inserted| Claimed { inserted, found }),
        )
    }
}
