//! One transaction of the relay: begin, statements, commit or rollback.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Object;
use oncebox_connect::postgres::{Parameter, token_of, typed, untyped};
use tokio::time::sleep;
use tokio_postgres::{Row, RowStream, SimpleQueryMessage, Statement};

use super::store::{Store, is_anothers_session};
use crate::error::StoreError;

/// PostgreSQL ends a session that is idle in its transaction for 20 s (`begin.sql`): a relay that
/// works on something else says so often that it is there.
const ALIVE_EVERY: Duration = Duration::from_secs(5);

/// An open transaction on a connection of its own. Dropped before [`Session::commit`], it closes
/// the connection: the server rolls back and the lanes are free, as if the process had died.
#[derive(Debug)]
pub(crate) struct Session {
    pub(super) store: Arc<Store>,
    connection: Option<Object>,
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            drop(Object::take(connection));
        }
    }
}

impl Store {
    /// A connection for one transaction, which [`Session::begin`] opens.
    pub(super) async fn session(self: &Arc<Self>) -> Result<Session, StoreError> {
        Ok(Session { store: Arc::clone(self), connection: Some(self.connection().await?) })
    }

    /// One statement in a transaction of its own.
    pub(super) async fn ask(
        self: &Arc<Self>,
        what: &'static str,
        sql: &str,
        parameters: &[&(dyn Parameter + '_)],
    ) -> Result<Vec<Row>, StoreError> {
        self.begin().await?.query_and_commit(what, sql, parameters).await
    }

    /// A session in a transaction.
    pub(super) async fn begin(self: &Arc<Self>) -> Result<Session, StoreError> {
        let session = self.session().await?;
        session.begin().await?;
        Ok(session)
    }
}

impl Session {
    pub(super) fn open(&self) -> &Object {
        self.connection.as_ref().expect("taken only by commit and drop, which end the session")
    }

    /// Begins the transaction. Fails when the session is not the one in which the statements of
    /// this connection were prepared; the statements sent along are rolled back with the
    /// connection.
    pub(super) async fn begin(&self) -> Result<(), StoreError> {
        let answers = self.open().simple_query(&self.store.sql.begin).await;
        let answers = answers.map_err(|source| StoreError::Statement("begin", source))?;
        let token = answers.iter().find_map(|answer| match answer {
            SimpleQueryMessage::Row(row) => row.get("token"),
            _ => None,
        });
        let own = token_of(Object::metrics(self.open()));
        if token == Some(own.as_str()) || self.store.is_pooled() {
            return Ok(());
        }
        self.store.note_pooler();
        Err(StoreError::Pooled)
    }

    /// Does something else while the transaction is open, within the idle timeout however long it
    /// takes; a process that is suspended is cut off.
    pub(crate) async fn keep_alive<T>(&self, work: impl Future<Output = T>) -> T {
        let staying_alive = async {
            loop {
                sleep(ALIVE_EVERY).await;
                if self.open().batch_execute("").await.is_err() {
                    // The next statement of the pass tells why.
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            done = work => done,
            () = staying_alive => unreachable!("it never ends"),
        }
    }

    pub(super) async fn query(
        &self,
        what: &'static str,
        sql: &str,
        parameters: &[&(dyn Parameter + '_)],
    ) -> Result<Vec<Row>, StoreError> {
        let rows = match self.prepared(sql).await {
            Ok(Some(statement)) => self.open().query(&statement, &untyped(parameters)).await,
            Ok(None) => self.open().query_typed(sql, &typed(parameters)).await,
            Err(error) => Err(error),
        };
        rows.map_err(|source| self.failed(what, source))
    }

    /// As [`Session::query`], row by row: it holds only the rows that the caller keeps.
    pub(super) async fn rows(
        &self,
        what: &'static str,
        sql: &str,
        parameters: &[&(dyn Parameter + '_)],
    ) -> Result<RowStream, StoreError> {
        let rows = match self.prepared(sql).await {
            Ok(Some(statement)) => self.open().query_raw(&statement, untyped(parameters)).await,
            Ok(None) => self.open().query_typed_raw(sql, typed(parameters)).await,
            Err(error) => Err(error),
        };
        rows.map_err(|source| self.failed(what, source))
    }

    pub(super) async fn execute(
        &self,
        what: &'static str,
        sql: &str,
        parameters: &[&(dyn Parameter + '_)],
    ) -> Result<u64, StoreError> {
        let done = match self.prepared(sql).await {
            Ok(Some(statement)) => self.open().execute(&statement, &untyped(parameters)).await,
            Ok(None) => self.open().execute_typed(sql, &typed(parameters)).await,
            Err(error) => Err(error),
        };
        done.map_err(|source| self.failed(what, source))
    }

    /// Prepares statements that are to be sent along with others: preparing takes a round trip of
    /// its own, once for each connection.
    pub(super) async fn prepare(&self, statements: &[&str]) -> Result<(), StoreError> {
        for sql in statements {
            self.prepared(sql).await.map_err(|source| self.failed("prepare", source))?;
        }
        Ok(())
    }

    /// Prepared once for each connection; `None` where nothing may be prepared.
    async fn prepared(&self, sql: &str) -> Result<Option<Statement>, tokio_postgres::Error> {
        if self.store.is_pooled() { Ok(None) } else { self.open().prepare_cached(sql).await.map(Some) }
    }

    pub(super) fn failed(&self, what: &'static str, source: tokio_postgres::Error) -> StoreError {
        if is_anothers_session(&source) {
            self.store.note_pooler();
            return StoreError::Pooled;
        }
        StoreError::Statement(what, source)
    }

    /// Gives the connection back; no transaction is open.
    pub(super) fn give_back(mut self) {
        drop(self.connection.take());
    }

    /// The last statement of the transaction with the commit right after it: a process that is
    /// suspended, or cut off, between the two would hold locks that producers wait for.
    pub(super) async fn query_and_commit(
        self,
        what: &'static str,
        sql: &str,
        parameters: &[&(dyn Parameter + '_)],
    ) -> Result<Vec<Row>, StoreError> {
        // First, so that the commit does not overtake a statement that is still to be prepared.
        self.prepare(&[sql]).await?;
        let (rows, committed) = tokio::join!(self.query(what, sql, parameters), self.send_commit());
        // The first error says why, the other only that the transaction is aborted.
        let rows = rows?;
        committed?;
        self.give_back();
        Ok(rows)
    }

    /// Commits and gives the connection back. An error leaves the outcome unknown; the next claim
    /// reads the truth.
    pub(crate) async fn commit(self) -> Result<(), StoreError> {
        self.send_commit().await?;
        self.give_back();
        Ok(())
    }

    pub(super) async fn send_commit(&self) -> Result<(), StoreError> {
        let committed = self.open().batch_execute("COMMIT").await;
        committed.map_err(|source| StoreError::Statement("commit", source))
    }

    /// Rolls back and gives the connection back: nothing was due.
    pub(crate) async fn rollback(mut self) -> Result<(), StoreError> {
        self.open()
            .batch_execute("ROLLBACK")
            .await
            .map_err(|source| StoreError::Statement("roll back", source))?;
        drop(self.connection.take());
        Ok(())
    }
}
