//! The transactions, of any client library, that a message can be enqueued in.

use oncebox_schema::{Driver, InTransaction};

use crate::{Error, Message, Outbox};

/// An open transaction of a client library of PostgreSQL, borrowed: `&transaction` of
/// tokio-postgres, deadpool-postgres, and of handlers over them, see [`InTransaction`]; `&mut
/// transaction` of sqlx, `SeaORM` and diesel-async, for which the crates `oncebox-sqlx`,
/// `oncebox-sea-orm` and `oncebox-diesel` implement it.
///
/// `D` tells the client libraries apart, and follows from the transaction.
pub trait OpenTransaction<D>: Send {
    #[doc(hidden)]
    fn enqueue(
        self,
        outbox: &Outbox,
        message: &Message,
    ) -> impl Future<Output = Result<Option<i64>, Error>> + Send;
}

impl<T: InTransaction> OpenTransaction<()> for &T {
    async fn enqueue(self, outbox: &Outbox, message: &Message) -> Result<Option<i64>, Error> {
        outbox.enqueue_in(self, message).await
    }
}

/// The connection of a transaction, with its driver: what the crates for drivers implement
/// [`OpenTransaction`] by.
#[doc(hidden)]
#[derive(Debug)]
pub struct Through<'a, D: Driver>(pub &'a mut D::Connection);

impl<D: Driver> OpenTransaction<D> for Through<'_, D> {
    async fn enqueue(self, outbox: &Outbox, message: &Message) -> Result<Option<i64>, Error> {
        outbox.enqueue_through::<D>(self.0, message).await
    }
}
