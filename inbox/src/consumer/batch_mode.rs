//! Messages that wait are run in batches, as many as there are: a worker never waits for more.

use oncebox_claims::database::TokioPostgres;

use super::{
    mode::Mode,
    worker::{TakenMessage, Worker},
};
use crate::{Handler, Inbox, Source};

/// As [`InTransaction`](super::mode::InTransaction), with up to `batch_size` messages in one
/// transaction.
pub(super) struct InBatches<H> {
    pub(super) inbox: Inbox,
    pub(super) handler: H,
    pub(super) batch_size: usize,
}

impl<H: Handler + 'static> Mode for InBatches<H> {
    const NAME: &'static str = if H::TAKES_SETS { "as sets" } else { "in batches" };

    type Driver = TokioPostgres;

    fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    async fn work(&self, worker: &mut Worker<TokioPostgres>) {
        loop {
            let messages = worker.take(self.batch_size);
            if messages.is_empty() {
                return;
            }
            let received = messages.iter().map(|message| &**message).collect();
            let results = self.inbox.batch(&self.handler, received).await;
            for (message, result) in messages.into_iter().zip(results) {
                worker.ended(message, result);
            }
            worker.settle_rest(&self.inbox).await;
        }
    }
}

impl Worker<TokioPostgres> {
    /// Messages in the order in which they are run: as many of one ordering key as fit, then the
    /// next.
    fn take(&mut self, batch_size: usize) -> Vec<TakenMessage> {
        let mut messages = Vec::new();
        let mut last = None;
        while messages.len() < batch_size
            && let Some(message) = self.next_of_key(last).or_else(|| self.next_ready())
        {
            last = Some(message.id());
            messages.push(message);
        }
        messages
    }
}
