//! What a consumer asks of an inbox, and the modes in which a worker deals with its messages.

use std::sync::Arc;

use super::worker::Worker;
use crate::{Error, Handler, Inbox, Leased, LeasedHandler, Received, inbox::Shared};

/// What a consumer asks of an inbox besides running messages.
pub(super) trait ConsumerInbox: Clone + Send + Sync + 'static {
    fn shared(&self) -> &Shared;

    /// Records a message that cannot be told apart from others as a dead letter.
    fn record_dead(
        &self,
        received: &Received,
        reason: String,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Deals with a message that our own tables refuse: at the delivery limit it becomes a dead
    /// letter without a key, and this returns `None`; before that, how many attempts have failed.
    fn refused(
        &self,
        received: &Received,
        reason: &str,
    ) -> impl Future<Output = Result<Option<u64>, Error>> + Send;
}

impl ConsumerInbox for Inbox {
    fn shared(&self) -> &Shared {
        &self.shared
    }

    async fn record_dead(&self, received: &Received, reason: String) -> Result<(), Error> {
        self.dead_letter::<()>(None, received, reason, None).await.map(drop)
    }

    async fn refused(&self, received: &Received, reason: &str) -> Result<Option<u64>, Error> {
        self.dead_letter_refused(received, reason).await
    }
}

/// Deals with the messages of a worker until none waits.
pub(super) trait Mode: Send + Sync + 'static {
    /// Its name in the log.
    const NAME: &'static str;

    type Inbox: ConsumerInbox;

    fn inbox(&self) -> &Self::Inbox;

    fn work(&self, worker: &mut Worker) -> impl Future<Output = ()> + Send;
}

/// The claim, the handler's writes and the outcome in one transaction.
pub(super) struct InTransaction<H>(pub(super) Inbox, pub(super) H);

impl<H: Handler + 'static> Mode for InTransaction<H> {
    const NAME: &'static str = "in transactions";

    type Inbox = Inbox;

    fn inbox(&self) -> &Inbox {
        &self.0
    }

    async fn work(&self, worker: &mut Worker) {
        self.0.run_each(&self.1, worker).await;
    }
}

/// The claim first, under a lease.
pub(super) struct UnderLease<H>(pub(super) Leased, pub(super) H);

impl<H: LeasedHandler + 'static> Mode for UnderLease<H> {
    const NAME: &'static str = "under leases";

    type Inbox = Inbox;

    fn inbox(&self) -> &Inbox {
        self.0.inbox()
    }

    async fn work(&self, worker: &mut Worker) {
        self.0.run_each(&self.1, worker).await;
    }
}

/// One task of a consumer: it takes messages that are ready until none is left.
pub(super) async fn run_worker<M: Mode>(mut worker: Worker, mode: Arc<M>) {
    loop {
        mode.work(&mut worker).await;
        if !worker.settle_rest(mode.inbox()).await {
            return;
        }
    }
}
