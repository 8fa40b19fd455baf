//! The messages of a round, first all together.
//!
//! The handler's `handle_set` runs after a savepoint of its own, which is released at once, so
//! every error in it shows before the next statement. Then the round goes on with the messages that
//! are left, each by itself.

use std::collections::HashSet;

use oncebox_claims::{
    failure::CommitError,
    handler_call::{self, CallEnd},
    stored::Status,
    transactional::Deferred,
};
use tokio::time::Instant;
use tokio_postgres::error::SqlState;
use tracing::{Instrument, debug, warn};

use super::round::{Lost, Part, Round, Savepoint, answered};
use crate::{
    Answer, Handler, HandlerError, MessageContext, Outcome, Received, Set,
    decode::decode,
    runner::{
        attempt::{Uncommitted, settled},
        failure::Failure,
    },
    trace,
};

impl<H: Handler> Round<'_, H> {
    /// Runs these messages, by their places, all of them or none.
    pub(super) async fn run_set(&mut self, places: &[usize]) -> Result<(), Lost> {
        let limit = self.inbox.database.limits().handler_timeout;
        let mut taken = Vec::with_capacity(places.len());
        let mut items = Vec::with_capacity(places.len());
        let deferred = Deferred::default();
        let mut stopped = HashSet::new();
        for &place in places {
            let delivery = &self.deliveries[place];
            let line = delivery.received.ordering_key();
            if line.is_some_and(|line| stopped.contains(line)) {
                continue;
            }
            // A message that does not decode is given up when its turn comes.
            let Ok(message) = decode(delivery.received) else {
                stopped.extend(line.filter(|_| self.inbox.shared.lines.keeps()));
                continue;
            };
            let context = self.inbox.message_context(delivery, limit);
            items.push((MessageContext { deferred: &deferred, ..context }, message));
            taken.push(place);
        }
        if items.len() < 2 {
            return Ok(());
        }
        self.save().await?;
        let received: Vec<&Received> = taken.iter().map(|&place| self.deliveries[place].received).collect();
        let span = trace::set_span(&self.inbox.shared.settings.scope, &received);
        let transaction = &mut *self.transaction;
        let call = async {
            let set = Set { transaction: &*transaction, items };
            let outcomes = self.handler.handle_set(set).await?;
            let written = deferred.write(&self.inbox.database, transaction).await;
            written.map_err(CommitError::into_handler_error)?;
            Ok(outcomes)
        }
        .instrument(span.clone());
        let run = self.inbox.shared.counters.claims.running.begin();
        let called = handler_call::call(Instant::now() + limit, call).await;
        drop(run);
        let answers = match called {
            CallEnd::Returned(returned) => {
                all_settled(returned, taken.len(), &self.inbox.shared.settings.scope)
            }
            CallEnd::Panicked(panic) => Err(format!("it panicked: {panic}")),
            CallEnd::TimedOut => Err(format!("it took longer than {limit:?}")),
        };
        self.savepoint = Savepoint::Behind(taken[0]);
        let reason = match answers {
            Ok(answers) => match self.release().await? {
                None => {
                    for (&place, Uncommitted { verdict, write }) in taken.iter().zip(answers) {
                        self.parts[place] = Part::Verdict(verdict, write);
                    }
                    return Ok(());
                }
                Some(reason) => reason,
            },
            Err(reason) => {
                self.back().await?;
                reason
            }
        };
        trace::failed(&span, "error");
        let (scope, messages) = (&self.inbox.shared.settings.scope, taken.len());
        debug!(scope, messages, "a set was rolled back; its messages are run one by one: {reason}");
        if Instant::now() < self.end { Ok(()) } else { Err(Lost::because(reason)) }
    }

    /// Keeps the writes after the savepoint; the reason if they cannot be kept and are rolled back.
    async fn release(&mut self) -> Result<Option<String>, Lost> {
        let released = self.transaction.batch_execute(super::round::RELEASE);
        let Err(error) = answered(self.inbox, released).await? else {
            self.savepoint = Savepoint::None;
            return Ok(None);
        };
        if error.code() != Some(&SqlState::IN_FAILED_SQL_TRANSACTION) {
            return Err(Lost::statement(error));
        }
        self.back().await?;
        Ok(Some("it went on after a statement had failed".to_owned()))
    }
}

/// The outcome to store for each message, if each message is done or rejected.
fn all_settled<R: serde::Serialize>(
    returned: Result<Vec<Outcome<R>>, HandlerError>,
    count: usize,
    scope: &str,
) -> Result<Vec<Uncommitted<R>>, String> {
    let outcomes = returned.map_err(|error| error.to_string())?;
    if outcomes.len() != count {
        let reason = format!("it returned {} outcomes for {count} messages", outcomes.len());
        warn!(scope, "handle_set is wrong, its work is undone and each message handled by itself: {reason}");
        return Err(reason);
    }
    let answer = |outcome| match outcome {
        Outcome::Done(reply) => settled(Status::Completed, Answer::Done(reply)).map_err(reason),
        Outcome::Reject(reply) => settled(Status::Rejected, Answer::Rejected(reply)).map_err(reason),
        _ => Err("a message is neither done nor rejected".to_owned()),
    };
    outcomes.into_iter().map(answer).collect()
}

fn reason(failure: Failure) -> String {
    match failure {
        Failure::Failed(reason) => reason,
        other => format!("{other:?}"),
    }
}
