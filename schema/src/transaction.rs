//! Transactions of tokio-postgres: those that a message can be enqueued in, and the one that
//! handlers get.

use std::{
    fmt,
    future::Future,
    ops::Deref,
    sync::atomic::{AtomicBool, Ordering},
};

use deadpool_postgres::Object;
use futures_util::FutureExt;
use tokio_postgres::{
    Client, Error, Row,
    types::{ToSql, Type},
};

/// A transaction that is open: tokio-postgres's, deadpool-postgres's, savepoints included, or the
/// [`Transaction`] of a handler.
///
/// Sealed, and not implemented for clients: outside a transaction the message would be committed on
/// its own, before or without the business rows, which is the mistake that an outbox exists to
/// prevent. A transaction begun by sending `BEGIN` as text is not recognised; call the SQL function
/// `enqueue` there.
///
/// ```compile_fail,E0277
/// fn check(_: &impl oncebox_schema::InTransaction) {}
/// fn outside(client: tokio_postgres::Client) {
///     check(&client);   // the trait `InTransaction` is not implemented for `Client`
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no open transaction of tokio-postgres",
    label = "not an open transaction",
    note = "begin one, write your rows in it, and pass `&transaction`: a client or a pooled connection commits each \
            statement by itself"
)]
pub trait InTransaction: Run {
    /// The client of tokio-postgres that the transaction is open on: for a function of yours that
    /// is called with transactions of several kinds.
    fn client(&self) -> &Client;
}

impl InTransaction for tokio_postgres::Transaction<'_> {
    fn client(&self) -> &Client {
        self.client()
    }
}

impl InTransaction for deadpool_postgres::Transaction<'_> {
    fn client(&self) -> &Client {
        (**self).client()
    }
}

impl InTransaction for Transaction {
    fn client(&self) -> &Client {
        self
    }
}

/// A value with its type.
type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The seal of [`InTransaction`]: code outside of this crate cannot name it.
pub trait Run: Sync {
    /// Runs a statement of ours, prepared if it can be.
    #[doc(hidden)]
    fn run(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
        is_pooled: bool,
    ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;
}

/// No statement cache here: parsed each time, in the same round trip.
impl Run for tokio_postgres::Transaction<'_> {
    async fn run(&self, sql: &str, parameters: &[Parameter<'_>], _: bool) -> Result<Vec<Row>, Error> {
        self.query_typed(sql, parameters).await
    }
}

/// Prepared once per connection, unless the connection's sessions may be those of others.
impl Run for deadpool_postgres::Transaction<'_> {
    async fn run(&self, sql: &str, parameters: &[Parameter<'_>], is_pooled: bool) -> Result<Vec<Row>, Error> {
        if is_pooled {
            return self.query_typed(sql, parameters).await;
        }
        run_prepared(self, sql, parameters).await
    }
}

impl Run for Transaction {
    async fn run(&self, sql: &str, parameters: &[Parameter<'_>], is_pooled: bool) -> Result<Vec<Row>, Error> {
        if is_pooled {
            return self.query_typed(sql, parameters).await;
        }
        run_prepared(&**self, sql, parameters).await
    }
}

async fn run_prepared(
    client: &impl deadpool_postgres::GenericClient,
    sql: &str,
    parameters: &[Parameter<'_>],
) -> Result<Vec<Row>, Error> {
    let (values, types): (Vec<_>, Vec<_>) = parameters.iter().cloned().unzip();
    client.query(&client.prepare_typed_cached(sql, &types).await?, &values).await
}

/// The transaction of a handler, with the connection that it is open on.
///
/// It is used like the client of deadpool-postgres, to which it dereferences: `execute`, `query`,
/// `prepare_cached` and the others are there. It is Oncebox that commits it, or rolls it back. To
/// survive the failure of a statement, put a `SAVEPOINT` before it and roll back to it.
///
/// A function over tokio-postgres's `GenericClient` takes [`InTransaction::client`], one over
/// deadpool-postgres's takes `&**transaction`.
///
/// Dropped while it is open, it closes its connection: a statement may still run there.
pub struct Transaction {
    object: Option<Object>,
    is_over: AtomicBool,
}

impl Transaction {
    /// The transaction that is open on this connection, or that the next statement begins.
    #[doc(hidden)]
    #[must_use]
    pub fn on(object: Object) -> Self {
        Self { object: Some(object), is_over: AtomicBool::new(false) }
    }

    /// Says that the transaction was committed or rolled back: the connection is idle.
    #[doc(hidden)]
    pub fn set_over(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Gives the connection back, where nothing was written since the transaction began. The next
    /// user of the connection waits for the answer to the ROLLBACK.
    #[doc(hidden)]
    pub fn release(self) {
        if !self.is_over.load(Ordering::Relaxed) {
            // Sent at the first poll.
            drop(self.batch_execute("ROLLBACK").now_or_never());
            self.set_over();
        }
    }

    /// The connection, whose state the caller knows.
    #[doc(hidden)]
    pub fn into_object(mut self) -> Object {
        self.object.take().expect("it is taken out here and by drop only")
    }

    /// Closes the connection; PostgreSQL rolls back.
    #[doc(hidden)]
    pub fn close(self) {
        drop(Object::take(self.into_object()));
    }
}

impl Deref for Transaction {
    type Target = Object;

    fn deref(&self) -> &Object {
        self.object.as_ref().expect("it is taken out by into_object and drop only")
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if !self.is_over.load(Ordering::Relaxed) {
            drop(self.object.take().map(Object::take));
        }
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").finish_non_exhaustive()
    }
}
