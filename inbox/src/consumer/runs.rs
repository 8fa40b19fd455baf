//! Which inboxes a consumer feeds, and with what handlers.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{
    Consumer, Order,
    batch_mode::InBatches,
    mode::{InTransaction, Mode, UnderLease},
    pump,
    through::Through,
};
use crate::{
    Error, Handler, Inbox, InvalidSettings, Leased, LeasedHandler,
    driver::{self, Driver},
};

/// An inbox that runs handlers of this type for a [`Consumer`]: [`Inbox`] with [`Handler`],
/// [`Leased`] with [`LeasedHandler`], and the inbox of another [driver] with its
/// [handler](driver::Handler).
///
/// Sealed.
pub trait Runs<H>: Run<H> {}

impl<H: Handler + 'static> Runs<H> for Inbox {}
impl<H: LeasedHandler + 'static> Runs<H> for Leased {}
impl<D: Driver, H: driver::Handler<Transaction = D::Transaction> + 'static> Runs<H> for driver::Inbox<D> {}

/// The seal of [`Runs`]: nobody outside can name it.
pub trait Run<H> {
    #[doc(hidden)]
    fn run(
        self,
        consumer: Consumer,
        handler: H,
        shutdown: CancellationToken,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}

impl<H: Handler + 'static> Run<H> for Inbox {
    async fn run(self, consumer: Consumer, handler: H, shutdown: CancellationToken) -> Result<(), Error> {
        checked(consumer.settings.mistakes())?;
        self.check().await?;
        match consumer.settings.batch_size {
            1 => swept(self.clone(), consumer, InTransaction(self, handler), shutdown).await,
            batch_size => {
                let mode = InBatches { inbox: self.clone(), handler, batch_size };
                swept(self, consumer, mode, shutdown).await
            }
        }
    }
}

impl<H: LeasedHandler + 'static> Run<H> for Leased {
    async fn run(self, consumer: Consumer, handler: H, shutdown: CancellationToken) -> Result<(), Error> {
        let mut mistakes = consumer.settings.mistakes();
        if consumer.settings.batch_size > 1 {
            mistakes.push(
                "batch is for handlers in a transaction; handlers under leases share no transaction"
                    .to_owned(),
            );
        }
        checked(mistakes)?;
        let inbox = self.inbox().clone();
        inbox.check().await?;
        swept(inbox, consumer, UnderLease(self, handler), shutdown).await
    }
}

impl<D, H> Run<H> for driver::Inbox<D>
where
    D: Driver,
    H: driver::Handler<Transaction = D::Transaction> + 'static,
{
    async fn run(self, consumer: Consumer, handler: H, shutdown: CancellationToken) -> Result<(), Error> {
        let mut mistakes = consumer.settings.mistakes();
        let only = [
            ("batch", consumer.settings.batch_size > 1),
            ("order", consumer.settings.order == Order::Strict),
            ("dead_letter_subject", consumer.settings.dead_letter_subject.is_some()),
        ];
        mistakes.extend(only.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| {
            format!("{name} is for inboxes over tokio-postgres, and this one is over {}", D::NAME)
        }));
        checked(mistakes)?;
        self.check().await?;
        let mode = Arc::new(Through(self, handler));
        pump::run(consumer.jetstream, consumer.settings, None, mode, shutdown).await
    }
}

fn checked(mistakes: Vec<String>) -> Result<(), InvalidSettings> {
    if mistakes.is_empty() { Ok(()) } else { Err(InvalidSettings(mistakes)) }
}

/// Consumes, and deletes old keys meanwhile.
async fn swept(
    inbox: Inbox,
    consumer: Consumer,
    mode: impl Mode,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let Consumer { jetstream, settings, .. } = consumer;
    tokio::select! {
        ended = pump::run(jetstream, settings, Some(inbox.clone()), Arc::new(mode), shutdown) => ended,
        never = inbox.sweep() => never,
    }
}
