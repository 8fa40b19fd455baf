//! One of the tasks that run the inbox, and the messages that it shares with the others and with the pump.

use std::{
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_nats::jetstream::{self, AckKind};
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    letters::Letters,
    mode::Mode,
    queue::{Id, Queue},
    work::{Job, Next, refused},
};
use crate::{Error, Inbox, Received, Source, Verdict};

/// What is to be told to JetStream, by the pump: a worker must not wait for a connection that may be gone.
pub(super) type Answer = (Arc<jetstream::Message>, AckKind);

/// The messages that this process holds.
#[derive(Debug)]
pub(super) struct Held {
    queue: Mutex<Queue<Job>>,
    /// A message has left, or rests: there may be room, and another may be ready.
    pub(super) changed: Notify,
    /// No more of them than messages are held.
    answers: mpsc::UnboundedSender<Answer>,
}

impl Held {
    pub(super) fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<Answer>) {
        let (answers, told) = mpsc::unbounded_channel();
        (Arc::new(Self { queue: Mutex::new(Queue::new(Job::weight)), changed: Notify::new(), answers }), told)
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue<Job>> {
        // No method of the queue leaves it half changed.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn messages(&self) -> Vec<Arc<jetstream::Message>> {
        self.queue().messages().map(|job| Arc::clone(&job.message)).collect()
    }

    fn ended(&self, id: Id, next: Next) {
        let mut queue = self.queue();
        let Some(job) = queue.get_mut(id) else { return };
        let kind = match next {
            Next::Ack => Ok(AckKind::Ack),
            Next::Term => Ok(AckKind::Term),
            Next::Wait(after) => {
                job.waits += 1;
                Err(after)
            }
            Next::Back(after) => Ok(AckKind::Nak(Some(after))),
            Next::Behind => Err(Duration::ZERO),
            Next::Retry(after) => {
                job.waits = 0;
                if job.received.ordering_key().is_some() {
                    job.again();
                    Err(after)
                } else {
                    Ok(AckKind::Nak(Some(after)))
                }
            }
        };
        match kind {
            Ok(kind) => {
                // The pump outlives its workers.
                let _ = self.answers.send((Arc::clone(&job.message), kind));
                queue.remove(id);
            }
            Err(after) => queue.rest(id, Instant::now() + after),
        }
        drop(queue);
        self.changed.notify_one();
    }
}

/// Takes messages that are ready until there are none.
pub(super) struct Worker {
    held: Arc<Held>,
    inbox: Inbox,
    shutdown: CancellationToken,
    /// Taken, and not ended yet: two at most, or a batch.
    taken: Vec<Id>,
    /// What our own tables refused.
    refused: Vec<(Ticket, Error)>,
    /// Ended as dead, which is to be published.
    dead: Vec<Ticket>,
    letters: Option<Arc<Letters>>,
}

/// A message that a worker took.
pub(super) struct Ticket {
    id: Id,
    received: Arc<Received>,
    waits: u64,
}

impl Ticket {
    pub(super) fn id(&self) -> Id {
        self.id
    }
}

impl Deref for Ticket {
    type Target = Received;

    fn deref(&self) -> &Received {
        &self.received
    }
}

impl Worker {
    pub(super) fn new(
        held: Arc<Held>,
        inbox: Inbox,
        shutdown: CancellationToken,
        letters: Option<Arc<Letters>>,
    ) -> Self {
        Self { held, inbox, shutdown, taken: Vec::new(), refused: Vec::new(), dead: Vec::new(), letters }
    }

    pub(super) async fn run<H: Mode>(mut self, inbox: Inbox, handler: Arc<H>) {
        loop {
            handler.work(&inbox, &mut self).await;
            if !self.settle_rest().await {
                return;
            }
        }
    }

    /// Deals with what our own tables refused, and with what is to be published; whether there was any.
    pub(super) async fn settle_rest(&mut self) -> bool {
        let was_any = !self.refused.is_empty() || !self.dead.is_empty();
        while let Some((ticket, error)) = self.refused.pop() {
            let next = refused(&self.inbox, &ticket, &error).await;
            self.settle_or_publish(ticket, next);
        }
        while let Some(ticket) = self.dead.pop() {
            let Some(letters) = &self.letters else { continue };
            let next = letters.settle(&ticket, ticket.waits).await;
            self.settle(ticket.id, next);
        }
        was_any
    }

    /// A message that nothing is before.
    pub(super) fn next_ready(&mut self) -> Option<Ticket> {
        self.ticket(Queue::next)
    }

    /// The message behind this one in its line.
    pub(super) fn next_in_line(&mut self, last: Option<Id>) -> Option<Ticket> {
        self.ticket(|queue| queue.next_behind(last?))
    }

    fn ticket(&mut self, next: impl FnOnce(&mut Queue<Job>) -> Option<(Id, &Job)>) -> Option<Ticket> {
        if self.shutdown.is_cancelled() || !self.refused.is_empty() || !self.dead.is_empty() {
            return None;
        }
        let mut queue = self.held.queue();
        let (id, job) = next(&mut queue)?;
        let ticket = Ticket { id, received: Arc::clone(&job.received), waits: job.waits };
        drop(queue);
        self.taken.push(id);
        Some(ticket)
    }

    fn settle_or_publish(&mut self, ticket: Ticket, next: Next) {
        match next {
            Next::Term if self.letters.is_some() => self.dead.push(ticket),
            next => self.settle(ticket.id, next),
        }
    }

    fn settle(&mut self, id: Id, next: Next) {
        self.taken.retain(|taken| *taken != id);
        self.held.ended(id, next);
    }
}

impl<R> Source<R> for Worker {
    type Message = Ticket;

    fn next(&mut self) -> Option<Ticket> {
        self.next_ready()
    }

    fn ended(&mut self, ticket: Ticket, result: Result<Verdict<R>, Error>) {
        if !matches!(result, Ok(Verdict::Behind)) {
            self.inbox.note_availability(result.as_ref().err());
        }
        match Next::after(result, ticket.waits) {
            Ok(next) => self.settle_or_publish(ticket, next),
            Err(error) => self.refused.push((ticket, error)),
        }
    }
}

/// A worker that was cut off, or ended by a mistake of ours: its messages are to be run again.
impl Drop for Worker {
    fn drop(&mut self) {
        let mut queue = self.held.queue();
        for id in &self.taken {
            if let Some(job) = queue.get_mut(*id) {
                job.again();
                queue.rest(*id, Instant::now() + self.inbox.pause(1));
            }
        }
        drop(queue);
        self.held.changed.notify_one();
    }
}
