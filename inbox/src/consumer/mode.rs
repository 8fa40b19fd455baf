//! The two modes in which a worker deals with its messages.

use std::sync::Arc;

use super::worker::Worker;
use crate::{Handler, Inbox, Leased, LeasedHandler};

/// Deals with the messages of a worker until none waits.
pub(super) trait Mode: Send + Sync + 'static {
    /// Its name in the log.
    const NAME: &'static str;

    fn work(&self, inbox: &Inbox, worker: &mut Worker) -> impl Future<Output = ()> + Send;
}

/// The claim, the handler's writes and the outcome in one transaction.
pub(super) struct InTransaction<H>(pub(super) H);

impl<H: Handler + 'static> Mode for InTransaction<H> {
    const NAME: &'static str = "in transactions";

    async fn work(&self, inbox: &Inbox, worker: &mut Worker) {
        inbox.run_each(&self.0, worker).await;
    }
}

/// The claim first, under a lease.
pub(super) struct UnderLease<H>(pub(super) Leased, pub(super) H);

impl<H: LeasedHandler + 'static> Mode for UnderLease<H> {
    const NAME: &'static str = "under leases";

    async fn work(&self, _: &Inbox, worker: &mut Worker) {
        self.0.run_each(&self.1, worker).await;
    }
}

/// One task of a consumer: it takes messages that are ready until none is left.
pub(super) async fn run_worker<M: Mode>(mut worker: Worker, inbox: Inbox, mode: Arc<M>) {
    loop {
        mode.work(&inbox, &mut worker).await;
        if !worker.settle_rest().await {
            return;
        }
    }
}
