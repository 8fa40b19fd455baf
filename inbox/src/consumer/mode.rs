//! The modes in which a worker deals with its messages.

use std::sync::Arc;

use oncebox_claims::database::TokioPostgres;
use oncebox_schema::Driver;

use super::worker::Worker;
use crate::{Handler, Inbox, Leased, LeasedHandler};

/// Deals with the messages of a worker until none waits.
pub(super) trait Mode: Send + Sync + 'static {
    /// Its name in the log.
    const NAME: &'static str;

    type Driver: Driver;

    fn inbox(&self) -> &Inbox<Self::Driver>;

    fn work(&self, worker: &mut Worker<Self::Driver>) -> impl Future<Output = ()> + Send;
}

/// The claim, the handler's writes and the outcome in one transaction.
pub(super) struct InTransaction<D: Driver, H>(pub(super) Inbox<D>, pub(super) H);

impl<D: Driver, H: Handler<D> + 'static> Mode for InTransaction<D, H> {
    const NAME: &'static str = "in transactions";

    type Driver = D;

    fn inbox(&self) -> &Inbox<D> {
        &self.0
    }

    async fn work(&self, worker: &mut Worker<Self::Driver>) {
        self.0.run_each(&self.1, worker).await;
    }
}

/// The claim first, under a lease.
pub(super) struct UnderLease<H>(pub(super) Leased, pub(super) H);

impl<H: LeasedHandler + 'static> Mode for UnderLease<H> {
    const NAME: &'static str = "under leases";

    type Driver = TokioPostgres;

    fn inbox(&self) -> &Inbox {
        self.0.inbox()
    }

    async fn work(&self, worker: &mut Worker<Self::Driver>) {
        self.0.run_each(&self.1, worker).await;
    }
}

/// One task of a consumer: it takes messages that are ready until none is left.
pub(super) async fn run_worker<M: Mode>(mut worker: Worker<M::Driver>, mode: Arc<M>) {
    loop {
        mode.work(&mut worker).await;
        if !worker.settle_rest(mode.inbox()).await {
            return;
        }
    }
}
