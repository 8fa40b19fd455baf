//! Messages that wait are run in batches, as many as there are: a worker never waits for more.

use std::marker::PhantomData;

use super::{
    mode::Mode,
    worker::{Ticket, Worker},
};
use crate::{Handler, Inbox, Source, inbox::Form};

/// As [`InTransaction`](super::mode::InTransaction), with up to `batch_size` messages in one transaction.
pub(super) struct InBatches<H, F> {
    handler: H,
    batch_size: usize,
    form: PhantomData<fn() -> F>,
}

impl<H, F> InBatches<H, F> {
    pub(super) fn new(handler: H, batch_size: usize) -> Self {
        Self { handler, batch_size, form: PhantomData }
    }
}

impl<H: Handler + 'static, F: Form<H> + 'static> Mode for InBatches<H, F> {
    const NAME: &'static str = F::NAME;

    async fn work(&self, inbox: &Inbox, worker: &mut Worker) {
        loop {
            let tickets = worker.take(self.batch_size);
            if tickets.is_empty() {
                return;
            }
            let messages = tickets.iter().map(|ticket| &**ticket).collect();
            let results = inbox.batch::<H, F>(&self.handler, messages).await;
            for (ticket, result) in tickets.into_iter().zip(results) {
                worker.ended(ticket, result);
            }
            worker.settle_rest().await;
        }
    }
}

impl Worker {
    /// Messages in the order to run them: whole lines, as far as they fit.
    fn take(&mut self, batch_size: usize) -> Vec<Ticket> {
        let mut tickets = Vec::new();
        let mut last = None;
        while tickets.len() < batch_size
            && let Some(ticket) = self.next_in_line(last).or_else(|| self.next_ready())
        {
            last = Some(ticket.id());
            tickets.push(ticket);
        }
        tickets
    }
}
