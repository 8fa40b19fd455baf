//! The transactions that a message can be enqueued in.

use std::future::Future;

use tokio_postgres::{
    Error, Row,
    types::{ToSql, Type},
};

/// A transaction that is open: tokio-postgres's or deadpool-postgres's, savepoints included.
///
/// Sealed, and not implemented for clients: outside a transaction the message would be committed on
/// its own, before or without the business rows, which is the mistake that an outbox exists to
/// prevent. A transaction begun by sending `BEGIN` as text is not recognised; call the SQL function
/// `enqueue` there.
///
/// ```compile_fail,E0277
/// # async fn outside(client: tokio_postgres::Client, message: oncebox_outbox::Message) {
/// let outbox = oncebox_outbox::Outbox::default();
/// outbox.enqueue(&client, &message).await;   // the trait `InTransaction` is not implemented for `Client`
/// # }
/// ```
pub trait InTransaction: Run {}

impl InTransaction for tokio_postgres::Transaction<'_> {}
impl InTransaction for deadpool_postgres::Transaction<'_> {}

pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The seal of [`InTransaction`]: nobody outside can name it.
pub trait Run: Sync {
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
        let types: Vec<Type> = parameters.iter().map(|(_, kind)| kind.clone()).collect();
        let statement = self.prepare_typed_cached(sql, &types).await?;
        let values: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|(value, _)| *value).collect();
        self.query(&statement, &values).await
    }
}
