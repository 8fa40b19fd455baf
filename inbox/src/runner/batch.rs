//! Many messages in one transaction.
//!
//! ```text
//!             ┌──────────────────────── a round: one transaction ───────────────────────┐
//! messages ─▶ claim all keys ─▶ savepoint, handler ─▶ savepoint, handler ─▶ ... ─▶ COMMIT ─▶ verdicts
//!     ▲                             │ failed: back to the savepoint, key given back     │
//!     │                             ▼                                                   │
//!     │       once more by itself, in a transaction of its own: that run counts         │
//!     └── messages not run yet ◀────────────────────────────────────────────────────────┘
//! ```
//!
//! A commit, with its flush to the disk, is most of the cost of a small message; here many share
//! one. They can also lose it together: when a handler leaves the transaction beyond repair, or the
//! commit fails, nothing of the round has happened, and its messages are run one by one. So a bad
//! message costs its neighbours time, and nothing else.
//!
//! A handler that takes sets gets the messages of a round together first, after one savepoint: see
//! `together.rs`. Where that fails, the round goes on as for any other handler.
//!
//! Messages that were delivered before are recorded first, all in one transaction. One of which an
//! earlier run left no trace has no part in the round: see `redelivery.rs`.
//!
//! All keys are claimed before the first handler runs, and try-locks are never waited for, so
//! batches with the same keys cannot block each other. Rows that handlers lock are another matter:
//! they stay locked until the round ends, and two rounds that want each other's are a deadlock.
//! PostgreSQL ends one of the statements; its round commits the messages that it has handled so
//! far, which frees the other, and the message is run by itself.

use std::collections::{HashSet, VecDeque};

use oncebox_claims::limits::IsolationLevel;
use tracing::debug;

use super::{delivery::Delivery, failure::Failure};
use crate::{Error, Handler, Inbox, Received, Verdict};

mod round;
mod together;
mod transaction;

use round::{Lost, Part};

/// How many messages share a transaction. Each handler that writes is a subtransaction of its own;
/// PostgreSQL keeps 64 of them at hand for each session, more slow down every other session that
/// meets one of their rows.
const ROUND_MAX: usize = 64;

impl Inbox {
    /// Deals with messages in their order, up to 64 in one transaction, each after a savepoint; the
    /// verdicts come in the same order. It is several times as fast as [`Inbox::run_each`] where
    /// handlers are quick, since many share a commit.
    ///
    /// Each message ends as it would alone: a handler that fails, panics or takes too long is
    /// rolled back to its savepoint and has no effect on the others. One that fails is run once
    /// more by itself, which is the run that counts: so a failure that only the company caused,
    /// such as a deadlock, costs no attempt. Effects of the handler outside the transaction happen
    /// twice then.
    ///
    /// Of messages with the same ordering key, one that had no effect holds up those after it: they
    /// are [`Verdict::Behind`]. A key that occurs twice is handled once, the second is a duplicate.
    ///
    /// A handler with [`Handler::TAKES_SETS`] gets the messages of a transaction together first,
    /// which is several times as fast again. When it fails, each message is handled as above: one
    /// bad message among the others costs them a second run.
    ///
    /// Handlers share a transaction: `now()` is the same for all, and a setting by `SET LOCAL`
    /// holds for the handlers after it. A transaction takes no new message after half a second, so
    /// it lasts at most that and one handler.
    ///
    /// ```
    /// use oncebox_inbox::{Handler, Inbox, Received, Verdict};
    ///
    /// async fn example<H: Handler>(inbox: &Inbox, handler: &H, backlog: Vec<Received>) {
    ///     let results = inbox.run_batch(handler, &backlog).await;
    ///     for (message, result) in backlog.iter().zip(results) {
    ///         match result {
    ///             Ok(Verdict::Retry { after, .. }) => println!("{} again in {after:?}", message.subject()),
    ///             Ok(verdict) => drop(verdict),
    ///             Err(error) => println!("{} again, later: {error}", message.subject()),
    ///         }
    ///     }
    /// }
    /// ```
    pub async fn run_batch<'a, H: Handler>(
        &self,
        handler: &H,
        messages: impl IntoIterator<Item = &'a Received>,
    ) -> Vec<Result<Verdict<H::Reply>, Error>> {
        self.batch(handler, messages.into_iter().collect()).await
    }

    pub(crate) async fn batch<H: Handler>(
        &self,
        handler: &H,
        messages: Vec<&Received>,
    ) -> Vec<Result<Verdict<H::Reply>, Error>> {
        let mut batch = Batch::new(messages);
        loop {
            let (numbers, deliveries) = self.take_deliveries(&mut batch).await;
            if deliveries.is_empty() && batch.waiting.is_empty() {
                break;
            }
            if deliveries.len() == 1 {
                batch.end(numbers[0], self.run(handler, deliveries[0].received).await);
                continue;
            }
            match self.round(handler, &deliveries).await {
                Ok(parts) => self.end_round(handler, &mut batch, &numbers, &deliveries, parts).await,
                Err(lost) => {
                    let (scope, messages) = (&self.shared.settings.scope, deliveries.len());
                    debug!(
                        scope,
                        messages, "a batch was rolled back; its messages are run one by one: {}", lost.reason
                    );
                    self.one_by_one(handler, &mut batch, &numbers, &deliveries, lost).await;
                }
            }
        }
        batch.results()
    }

    /// The next messages that are worth a claim. Those that are not get their verdicts.
    async fn take_deliveries<'a, R>(
        &self,
        batch: &mut Batch<'a, R>,
    ) -> (Vec<usize>, Vec<Delivery<&'a Received>>) {
        let (mut numbers, mut deliveries) = (Vec::new(), Vec::new());
        // A shadow handles every copy, so no key can be claimed for several of them. Above READ
        // COMMITTED a conflict of one message would fail all.
        let is_alone = self.shared.settings.is_shadow
            || self.database.limits().isolation_level != IsolationLevel::ReadCommitted;
        let messages_max = if is_alone { 1 } else { ROUND_MAX };
        while deliveries.len() < messages_max
            && let Some(number) = batch.waiting.pop_front()
        {
            let received = batch.messages[number];
            if batch.is_stopped(received) {
                batch.end(number, Ok(Verdict::Behind));
                continue;
            }
            match self.identify(received) {
                Ok(identity) => match Box::pin(self.wait_in_line(&identity, received)).await {
                    Ok(None) => {
                        numbers.push(number);
                        deliveries.push(Delivery::new(received, identity, 1));
                    }
                    Ok(Some(verdict)) => batch.end(number, Ok(verdict)),
                    Err(error) => batch.end(number, Err(error)),
                },
                Err(reason) => {
                    let result = Box::pin(self.dead_letter(None, received, reason, None)).await;
                    batch.end(number, result);
                }
            }
        }
        (numbers, deliveries)
    }

    /// After the commit: records the result of each message of the round.
    async fn end_round<'a, H: Handler>(
        &self,
        handler: &H,
        batch: &mut Batch<'a, H::Reply>,
        numbers: &[usize],
        deliveries: &[Delivery<&'a Received>],
        parts: Vec<Part<H::Reply>>,
    ) {
        let (mut again, mut ended) = (Vec::new(), Vec::new());
        for ((&number, delivery), part) in numbers.iter().zip(deliveries).zip(parts) {
            let result = match part {
                Part::Verdict(verdict, _) => {
                    self.count(&verdict, delivery.received, &delivery.identity);
                    ended.extend(delivery.received.begun.is_set().then_some(&delivery.identity));
                    Ok(verdict)
                }
                _ if batch.is_stopped(delivery.received) => Ok(Verdict::Behind),
                // Also one that is to run by itself, after one of its line that was not run.
                part if matches!(part, Part::NotRun) || batch.is_of_line(&again, delivery.received) => {
                    again.push(number);
                    continue;
                }
                Part::ByItself
                | Part::Failed(Failure::Failed(_) | Failure::Conflict(_) | Failure::Broken(..)) => {
                    self.run(handler, delivery.received).await
                }
                Part::Failed(failure) => {
                    Box::pin(self.fail(&delivery.identity, delivery.received, failure)).await
                }
                Part::Error(error) => Err(error),
                Part::NotRun => continue,
            };
            batch.end(number, result);
        }
        Box::pin(self.forget_attempts_of_all_ended(ended)).await;
        for number in again.into_iter().rev() {
            batch.waiting.push_front(number);
        }
    }

    /// A round had no effect: each message in a transaction of its own.
    async fn one_by_one<'a, H: Handler>(
        &self,
        handler: &H,
        batch: &mut Batch<'a, H::Reply>,
        numbers: &[usize],
        deliveries: &[Delivery<&'a Received>],
        mut lost: Lost,
    ) {
        let mut away = !self.database.answers().await;
        for (index, (&number, delivery)) in numbers.iter().zip(deliveries).enumerate() {
            let culprit = lost.culprit.take_if(|(culprit, _)| *culprit == index);
            let result = match culprit {
                _ if batch.is_stopped(delivery.received) => Ok(Verdict::Behind),
                _ if away => Err(Error::Unavailable("run a batch", lost.reason.clone().into())),
                Some((_, failure)) => {
                    Box::pin(self.fail(&delivery.identity, delivery.received, failure)).await
                }
                None => self.run(handler, delivery.received).await,
            };
            if !away && matches!(result, Err(Error::Unavailable(..))) {
                // The message's own doing, or everybody's trouble?
                away = !self.database.answers().await;
            }
            batch.end(number, result);
        }
    }
}

/// Messages, and their results.
struct Batch<'a, R> {
    messages: Vec<&'a Received>,
    results: Vec<Option<Result<Verdict<R>, Error>>>,
    /// The numbers of the messages without a result yet, in order.
    waiting: VecDeque<usize>,
    /// Ordering keys of which a message had no effect.
    stopped: HashSet<&'a str>,
}

impl<'a, R> Batch<'a, R> {
    fn new(messages: Vec<&'a Received>) -> Self {
        let waiting = (0..messages.len()).collect();
        let results = messages.iter().map(|_| None).collect();
        Self { messages, results, waiting, stopped: HashSet::new() }
    }

    fn end(&mut self, number: usize, result: Result<Verdict<R>, Error>) {
        if !is_settled(&result)
            && let Some(key) = self.messages[number].ordering_key()
        {
            self.stopped.insert(key);
        }
        self.results[number] = Some(result);
    }

    fn is_stopped(&self, received: &Received) -> bool {
        received.ordering_key().is_some_and(|key| self.stopped.contains(key))
    }

    /// Whether one of these messages has its ordering key.
    fn is_of_line(&self, numbers: &[usize], received: &Received) -> bool {
        let line = received.ordering_key();
        line.is_some() && numbers.iter().any(|number| self.messages[*number].ordering_key() == line)
    }

    fn results(self) -> Vec<Result<Verdict<R>, Error>> {
        let results = self.results.into_iter();
        results.map(|result| result.expect("the loop ends when no message is without a result")).collect()
    }
}

/// Whether those after it may go on.
fn is_settled<R>(result: &Result<Verdict<R>, Error>) -> bool {
    match result {
        Ok(
            Verdict::Handled(_)
            | Verdict::Replayed(_)
            | Verdict::Mismatch
            | Verdict::Dead { .. }
            | Verdict::InLine,
        ) => true,
        Ok(Verdict::InFlight | Verdict::Retry { .. } | Verdict::Behind) | Err(_) => false,
    }
}
