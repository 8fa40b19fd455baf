//! Claims in a transaction: the key, the handler's writes and the outcome are committed together,
//! or not at all.

mod batch;
mod claim;
mod deferred;
mod ending;
mod holder;
mod look;
mod timeouts;

use std::sync::{Arc, OnceLock};

use oncebox_schema::Driver;

use crate::{
    database::{Database, TokioPostgres, statement},
    identity::Identity,
};

pub use crate::claim::TransactionId;
pub use crate::driver::{Deferrable, Write};
pub use batch::Session;
pub use claim::{Claimed, Expect, Next};
pub use deferred::Deferred;
pub use ending::{Committed, Ending};

/// A key to claim, and the id of its message.
pub type Wanted<'a> = (&'a Identity, Option<i64>);

/// The statements of claims in a transaction, in one database.
#[derive(Debug)]
pub struct TransactionalClaims<D: Driver = TokioPostgres> {
    database: Arc<Database<D>>,
    /// Known once the server's version is.
    claim: OnceLock<claim::Statements>,
    stored: String,
    settle: String,
    dead: String,
    committed: String,
    disown: String,
    expire: String,
    end_holder: String,
    batch: batch::Statements,
}

impl<D: Driver> TransactionalClaims<D> {
    /// Claims in this database.
    #[must_use]
    pub fn new(database: Arc<Database<D>>) -> Self {
        let schema = database.schema();
        Self {
            claim: OnceLock::new(),
            stored: statement(schema, include_str!("transactional/stored.sql")),
            settle: statement(schema, include_str!("transactional/settle.sql")),
            dead: statement(schema, include_str!("transactional/dead.sql")),
            committed: statement(schema, include_str!("transactional/committed.sql")),
            disown: statement(schema, include_str!("transactional/disown.sql")),
            expire: statement(schema, include_str!("transactional/expire.sql")),
            end_holder: statement(schema, include_str!("transactional/end_holder.sql")),
            batch: batch::Statements::new(schema),
            database,
        }
    }
}
