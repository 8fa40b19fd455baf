//! The messages of a round, first all together.
//!
//! The handler's set form runs behind a savepoint of its own, which is released at once: whatever
//! went wrong in it shows before the next statement. Then the round goes on as if there were no
//! such form, with the messages that are left.

use oncebox_claims::{
    handler_call::{self, CallEnd},
    stored::Status,
    transactional::Deferred,
};
use tokio::time::Instant;
use tokio_postgres::error::SqlState;
use tracing::{Instrument, debug, warn};

use super::round::{Lost, Part, Round, Savepoint, answered};
use crate::{
    Answer, Context, Handler, HandlerError, Outcome, Received, Set, SetHandler,
    runner::{
        attempt::{Uncommitted, settled},
        failure::{Failure, decode},
    },
    trace,
};

/// How a round begins.
pub(crate) trait Form<H: Handler> {
    /// What it is called in the log.
    const NAME: &'static str;

    /// Runs these messages, by their places, all of them or none.
    fn run_first(round: &mut Round<'_, H>, places: &[usize])
    -> impl Future<Output = Result<(), Lost>> + Send;
}

/// With each message by itself.
pub(crate) struct Each;

impl<H: Handler> Form<H> for Each {
    const NAME: &'static str = "in batches";

    async fn run_first(_: &mut Round<'_, H>, _: &[usize]) -> Result<(), Lost> {
        Ok(())
    }
}

/// With the set form.
pub(crate) struct AsSet;

impl<H: SetHandler> Form<H> for AsSet {
    const NAME: &'static str = "as sets";

    async fn run_first(round: &mut Round<'_, H>, places: &[usize]) -> Result<(), Lost> {
        let limit = round.inbox.database.limits().handler_timeout;
        let mut taken = Vec::with_capacity(places.len());
        let mut items = Vec::with_capacity(places.len());
        let deferred = Deferred::default();
        for &place in places {
            let delivery = &round.deliveries[place];
            // What does not decode is given up when its turn comes.
            let Ok(message) = decode(delivery.received.payload()) else { continue };
            items.push((Context { deferred: &deferred, ..round.context(place, limit) }, message));
            taken.push(place);
        }
        if items.len() < 2 {
            return Ok(());
        }
        round.save().await?;
        let received: Vec<&Received> = taken.iter().map(|&place| round.deliveries[place].received).collect();
        let span = trace::set_span(&round.inbox.settings.scope, &received);
        let set = Set { transaction: round.transaction, items };
        let call = async {
            let outcomes = round.handler.handle_set(set).await?;
            deferred.send(round.transaction).await?;
            Ok(outcomes)
        }
        .instrument(span.clone());
        let run = round.inbox.counters.claims.running.begin();
        let called = handler_call::call(Instant::now() + limit, call).await;
        drop(run);
        let answers = match called {
            CallEnd::Returned(returned) => all_settled(returned, taken.len()),
            CallEnd::Panicked(panic) => Err(format!("it panicked: {panic}")),
            CallEnd::TimedOut => Err(format!("it took longer than {limit:?}")),
        };
        round.savepoint = Savepoint::Behind(taken[0]);
        let reason = match answers {
            Ok(answers) => match round.release().await? {
                None => {
                    for (&place, Uncommitted { verdict, write }) in taken.iter().zip(answers) {
                        round.parts[place] = Part::Verdict(verdict, write);
                    }
                    return Ok(());
                }
                Some(reason) => reason,
            },
            Err(reason) => {
                round.back().await?;
                reason
            }
        };
        trace::failed(&span);
        let (scope, messages) = (&round.inbox.settings.scope, taken.len());
        debug!(scope, messages, "a set was rolled back; its messages are run one by one: {reason}");
        if Instant::now() < round.end { Ok(()) } else { Err(Lost::because(reason)) }
    }
}

impl<H: Handler> Round<'_, H> {
    /// Keeps what is behind the savepoint; the reason if it cannot be kept and is rolled back.
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

/// What is to be stored for each message, if it is something that all can share.
fn all_settled<R: serde::Serialize>(
    returned: Result<Vec<Outcome<R>>, HandlerError>,
    count: usize,
) -> Result<Vec<Uncommitted<R>>, String> {
    let outcomes = returned.map_err(|error| error.to_string())?;
    if outcomes.len() != count {
        let reason = format!("it returned {} outcomes for {count} messages", outcomes.len());
        warn!("handle_set is wrong, its work is undone and each message handled by itself: {reason}");
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
