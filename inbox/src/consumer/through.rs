//! Messages of a consumer, through a driver.

use super::{
    mode::{ConsumerInbox, Mode},
    worker::Worker,
};
use crate::{
    Error, Received,
    driver::{Driver, Handler, Inbox},
    inbox::Shared,
};

impl<D: Driver> ConsumerInbox for Inbox<D> {
    fn shared(&self) -> &Shared {
        Inbox::shared(self)
    }

    async fn record_dead(&self, received: &Received, reason: String) -> Result<(), Error> {
        Inbox::record_dead(self, received, reason).await
    }

    async fn refused(&self, received: &Received, reason: &str) -> Result<Option<u64>, Error> {
        self.give_up_refused(received, reason).await
    }
}

/// The claim, the handler's writes and the outcome in one transaction of a driver.
pub(super) struct Through<D, H>(pub(super) Inbox<D>, pub(super) H);

impl<D: Driver, H: Handler<Transaction = D::Transaction> + 'static> Mode for Through<D, H> {
    const NAME: &'static str = D::NAME;

    type Inbox = Inbox<D>;

    fn inbox(&self) -> &Inbox<D> {
        &self.0
    }

    async fn work(&self, worker: &mut Worker) {
        self.0.run_each(&self.1, worker).await;
    }
}
