//! One of the tasks that run the inbox, and the messages that it shares with the others and with
//! the pump.

use std::{
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_nats::jetstream::{self, AckKind};
use oncebox_claims::failure::text;
use oncebox_schema::Driver;
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{
    dead_letter_publisher::DeadLetterPublisher,
    held_message::{HeldMessage, Next, after, failed, refused},
    large::{Fetcher, Trouble, is_elsewhere},
    queue::{Id, Queue},
};
use crate::{Disposition, Error, Inbox, Received, Source, Verdict, inbox::Shared};

/// An answer that the pump sends to JetStream: a worker must not wait for a connection that may be
/// gone.
pub(super) type Answer = (Arc<jetstream::Message>, AckKind);

/// The messages that this process holds.
#[derive(Debug)]
pub(super) struct HeldMessages {
    queue: Mutex<Queue<HeldMessage>>,
    /// A message has left, or rests: there may be room, and another may be ready.
    pub(super) changed: Notify,
    /// A message of a stopped line has left it: the next one may run.
    pub(super) line_moved: Notify,
    /// No more of them than messages are held.
    answers: mpsc::UnboundedSender<Answer>,
}

impl HeldMessages {
    pub(super) fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<Answer>) {
        let (answers, told) = mpsc::unbounded_channel();
        (
            Arc::new(Self {
                queue: Mutex::new(Queue::new(HeldMessage::weight)),
                changed: Notify::new(),
                line_moved: Notify::new(),
                answers,
            }),
            told,
        )
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue<HeldMessage>> {
        // No method of the queue leaves it half changed.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn messages(&self) -> Vec<Arc<jetstream::Message>> {
        self.queue().messages().filter_map(|held| held.message.clone()).collect()
    }

    fn ended(&self, id: Id, next: Next) {
        let mut queue = self.queue();
        let Some(held) = queue.get_mut(id) else { return };
        let kind = match next {
            Next::Back(after) => Ok(AckKind::Nak(Some(after))),
            Next::Do(Disposition::Ack) => Ok(AckKind::Ack),
            Next::Do(Disposition::Term) => Ok(AckKind::Term),
            Next::Do(Disposition::Wait(after)) => {
                held.waits += 1;
                Err(after)
            }
            Next::Do(Disposition::Behind) => Err(Duration::ZERO),
            Next::Do(Disposition::Retry(after)) => {
                held.waits = 0;
                if held.received.ordering_key().is_some() {
                    held.again();
                    Err(after)
                } else {
                    Ok(AckKind::Nak(Some(after)))
                }
            }
        };
        match (kind, held.message.clone()) {
            (Ok(kind), Some(message)) => {
                // The pump outlives its workers.
                let _ = self.answers.send((message, kind));
                queue.remove(id);
            }
            // Only this process runs it again.
            (Ok(AckKind::Nak(after)), None) => queue.rest(id, Instant::now() + after.unwrap_or_default()),
            (Ok(_), None) => {
                queue.remove(id);
                self.line_moved.notify_one();
            }
            (Err(after), _) => queue.rest(id, Instant::now() + after),
        }
        drop(queue);
        self.changed.notify_one();
    }
}

/// Takes messages that are ready until none is left.
pub(super) struct Worker<D: Driver> {
    held: Arc<HeldMessages>,
    inbox: Shared,
    shutdown: CancellationToken,
    /// Taken, and not ended yet: two at most, or a batch.
    taken: Vec<Id>,
    /// Messages that our own tables refused.
    refused: Vec<(TakenMessage, Error)>,
    /// Ended as dead, which is to be published.
    dead: Vec<TakenMessage>,
    /// Ended messages of stopped lines, which they leave now.
    passed: Vec<(TakenMessage, Next)>,
    dead_letters: Option<Arc<DeadLetterPublisher<D>>>,
    fetcher: Fetcher,
    /// Its payload is to be fetched, between two transactions.
    unfetched: Option<TakenMessage>,
    /// Its payload was fetched: it is the next one.
    fetched: Option<TakenMessage>,
}

/// A message that a worker took.
pub(super) struct TakenMessage {
    id: Id,
    received: Arc<Received>,
    waits: u64,
}

impl TakenMessage {
    pub(super) fn id(&self) -> Id {
        self.id
    }
}

impl Deref for TakenMessage {
    type Target = Received;

    fn deref(&self) -> &Received {
        &self.received
    }
}

impl<D: Driver> Worker<D> {
    pub(super) fn new(
        held: Arc<HeldMessages>,
        inbox: Shared,
        shutdown: CancellationToken,
        dead_letters: Option<Arc<DeadLetterPublisher<D>>>,
        fetcher: Fetcher,
    ) -> Self {
        let (taken, refused, dead, passed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (unfetched, fetched) = (None, None);
        Self {
            held,
            inbox,
            shutdown,
            taken,
            refused,
            dead,
            passed,
            dead_letters,
            fetcher,
            unfetched,
            fetched,
        }
    }

    /// Settles the messages that our own tables refused, publishes dead letters, moves stopped
    /// lines on, and fetches a payload; whether there was any.
    pub(super) async fn settle_rest(&mut self, inbox: &Inbox<D>) -> bool {
        let was_any = self.has_rest();
        if let Some(message) = self.unfetched.take() {
            self.fetch(inbox, message).await;
        }
        while let Some((message, error)) = self.refused.pop() {
            let next = refused(inbox, &message, &error).await;
            self.settle_or_publish(message, next);
        }
        while let Some(message) = self.dead.pop() {
            let Some(dead_letters) = &self.dead_letters else { continue };
            let next = dead_letters.settle(&message, message.waits).await;
            self.settle(message, next);
        }
        while let Some((message, next)) = self.passed.pop() {
            let Some(place) = message.in_line else { continue };
            let next = match inbox.records.end_in_line(inbox.scope(), place).await {
                Ok(()) => next,
                Err(error) => {
                    debug!(subject = message.subject(), error = text(&error), "a line is not moved on yet");
                    Next::Do(Disposition::Wait(Disposition::pause(message.waits)))
                }
            };
            self.end(message.id, next);
        }
        was_any
    }

    fn has_rest(&self) -> bool {
        !self.refused.is_empty()
            || !self.dead.is_empty()
            || !self.passed.is_empty()
            || self.unfetched.is_some()
    }

    /// Fetches a payload. The message keeps it for this run alone: a message that rests holds none.
    async fn fetch(&mut self, inbox: &Inbox<D>, mut message: TakenMessage) {
        match self.fetcher.fetch(&message).await {
            Ok(received) => {
                message.received = Arc::new(received);
                self.fetched = Some(message);
            }
            Err(Trouble::Away(reason)) => {
                debug!(subject = message.subject(), reason, "a payload cannot be fetched now");
                let pause = Disposition::pause(message.waits);
                self.end(message.id, Next::Do(Disposition::Wait(pause)));
            }
            Err(Trouble::Wrong(reason)) => {
                let next = failed(inbox, &message, &reason).await;
                self.settle_or_publish(message, next);
            }
        }
    }

    /// A message that nothing is before.
    pub(super) fn next_ready(&mut self) -> Option<TakenMessage> {
        if !self.shutdown.is_cancelled()
            && let Some(message) = self.fetched.take()
        {
            return Some(message);
        }
        self.message(Queue::next)
    }

    /// The message after this one in the queue of its ordering key.
    pub(super) fn next_of_key(&mut self, last: Option<Id>) -> Option<TakenMessage> {
        let last = last?;
        let message = self.message(|queue| queue.next_behind(last));
        // One whose payload is to be fetched is taken when it is the first of its ordering key.
        if let Some(unfetched) = self.unfetched.take() {
            self.taken.retain(|taken| *taken != unfetched.id);
            self.held.queue().rest(unfetched.id, Instant::now());
            self.held.changed.notify_one();
        }
        message
    }

    fn message(
        &mut self,
        next: impl FnOnce(&mut Queue<HeldMessage>) -> Option<(Id, &HeldMessage)>,
    ) -> Option<TakenMessage> {
        if self.shutdown.is_cancelled() || self.has_rest() {
            return None;
        }
        let mut queue = self.held.queue();
        let (id, held) = next(&mut queue)?;
        let message = TakenMessage { id, received: Arc::clone(&held.received), waits: held.waits };
        drop(queue);
        self.taken.push(id);
        if is_elsewhere(&message) {
            self.unfetched = Some(message);
            return None;
        }
        Some(message)
    }

    fn settle_or_publish(&mut self, message: TakenMessage, next: Disposition) {
        match next {
            Disposition::Term if self.dead_letters.is_some() => self.dead.push(message),
            next => self.settle(message, Next::Do(next)),
        }
    }

    fn settle(&mut self, message: TakenMessage, next: Next) {
        match next {
            Next::Do(Disposition::Ack | Disposition::Term) if message.in_line.is_some() => {
                self.passed.push((message, next));
            }
            next => self.end(message.id, next),
        }
    }

    fn end(&mut self, id: Id, next: Next) {
        self.taken.retain(|taken| *taken != id);
        self.held.ended(id, next);
    }
}

impl<R, D: Driver> Source<R> for Worker<D> {
    type Message = TakenMessage;

    fn next(&mut self) -> Option<TakenMessage> {
        self.next_ready()
    }

    fn ended(&mut self, message: TakenMessage, result: Result<Verdict<R>, Error>) {
        if !matches!(result, Ok(Verdict::Behind)) {
            self.inbox.note_availability(result.as_ref().err());
        }
        match after(result, message.waits) {
            Ok(next) => self.settle_or_publish(message, next),
            Err(error) => self.refused.push((message, error)),
        }
    }
}

/// A worker that was cut off, or ended by a mistake of ours: its messages are to be run again.
impl<D: Driver> Drop for Worker<D> {
    fn drop(&mut self) {
        let mut queue = self.held.queue();
        for id in &self.taken {
            if let Some(held) = queue.get_mut(*id) {
                held.again();
                queue.rest(*id, Instant::now() + self.inbox.pause(1));
            }
        }
        drop(queue);
        self.held.changed.notify_one();
    }
}
