//! The inboxes that a consumer feeds, and their handlers.

use std::sync::Arc;

use oncebox_claims::database::TokioPostgres;
use oncebox_schema::Driver;
use tokio_util::sync::CancellationToken;

use super::{
    Consumer,
    batch_mode::InBatches,
    mode::{InTransaction, Mode, UnderLease},
    pump,
};
use crate::{Error, Exclusive, Handler, Inbox, InvalidSettings, Leased, LeasedHandler};

/// An inbox that runs handlers of this type for a [`Consumer`]: [`Inbox`] with [`Handler`], over
/// any driver, and [`Leased`] with [`LeasedHandler`].
///
/// Sealed.
pub trait Runs<H>: Run<H> {}

impl<D: RunsBatches<H>, H: Handler<D> + 'static> Runs<H> for Inbox<D> {}
impl<H: LeasedHandler + 'static> Runs<H> for Leased {}

/// The seal of [`Runs`]: code outside of this crate cannot name it.
pub trait Run<H> {
    #[doc(hidden)]
    fn run(
        self,
        consumer: Consumer,
        handler: H,
        shutdown: CancellationToken,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}

/// How a driver runs handlers of this type in batches; most cannot.
pub trait RunsBatches<H>: Driver {
    #[doc(hidden)]
    fn run_batches(
        _inbox: Inbox<Self>,
        _consumer: Consumer,
        _handler: H,
        _shutdown: CancellationToken,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        let mistake =
            format!("batch is for inboxes over tokio-postgres, and this one is over {}", Self::NAME);
        std::future::ready(Err(InvalidSettings(vec![mistake]).into()))
    }
}

impl<D: Exclusive, H> RunsBatches<H> for D {}

impl<H: Handler + 'static> RunsBatches<H> for TokioPostgres {
    async fn run_batches(
        inbox: Inbox,
        consumer: Consumer,
        handler: H,
        shutdown: CancellationToken,
    ) -> Result<(), Error> {
        let batch_size = consumer.settings.batch_size;
        swept(inbox.clone(), consumer, InBatches { inbox, handler, batch_size }, shutdown).await
    }
}

impl<D: RunsBatches<H>, H: Handler<D> + 'static> Run<H> for Inbox<D> {
    async fn run(self, consumer: Consumer, handler: H, shutdown: CancellationToken) -> Result<(), Error> {
        checked(consumer.settings.mistakes())?;
        self.check().await?;
        if consumer.settings.batch_size > 1 {
            return D::run_batches(self, consumer, handler, shutdown).await;
        }
        swept(self.clone(), consumer, InTransaction(self, handler), shutdown).await
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

fn checked(mistakes: Vec<String>) -> Result<(), InvalidSettings> {
    if mistakes.is_empty() { Ok(()) } else { Err(InvalidSettings(mistakes)) }
}

/// Consumes, and deletes old keys meanwhile.
async fn swept<M: Mode>(
    inbox: Inbox<M::Driver>,
    consumer: Consumer,
    mode: M,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let Consumer { jetstream, settings, .. } = consumer;
    tokio::select! {
        ended = pump::run(jetstream, settings, Arc::new(mode), shutdown) => ended,
        never = inbox.sweep() => never,
    }
}
