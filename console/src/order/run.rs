//! Counting the things that an order would change, and doing it.

use std::time::Duration;

use oncebox_connect::{config::Config, error::error_chain};
use oncebox_operator::{Ends, Operator, ParkedAction, ParkedKind, PauseOf, ReplaySelection, SagaAction};

use super::{Order, Part, Verb, delayed, failing, messages, sagas};
use crate::{html::words::number, problem::Problem};

impl Part {
    fn parked(verb: Verb) -> Option<ParkedAction> {
        match verb {
            Verb::RetryDead => Some(ParkedAction::Retry),
            Verb::DiscardDead => Some(ParkedAction::GiveUp(ParkedKind::Dead)),
            Verb::DiscardParked => Some(ParkedAction::GiveUp(ParkedKind::Parked)),
            Verb::CancelReplays => Some(ParkedAction::GiveUp(ParkedKind::Replay)),
            _ => None,
        }
    }

    fn saga(&self, verb: Verb) -> Result<Option<SagaAction>, Problem> {
        let step = self.0.text("step");
        Ok(match verb {
            Verb::RetrySagas => Some(SagaAction::Retry { step }),
            Verb::SkipStep => {
                let step = step.ok_or_else(|| Problem::Bad("step: which one?".to_owned()))?;
                Some(SagaAction::Skip { step })
            }
            Verb::AbandonSagas => Some(SagaAction::Abandon),
            _ => None,
        })
    }

    fn pause(&self) -> Result<PauseOf, Problem> {
        let stream = || self.0.text("stream").map(PauseOf::Stream);
        let ordering_key = || self.0.text("ordering-key").map(PauseOf::OrderingKey);
        let of = self.subject()?.map(PauseOf::Subject).or_else(stream).or_else(ordering_key);
        Ok(of.unwrap_or(PauseOf::All))
    }

    fn ends(&self) -> Result<Ends, Problem> {
        let Some(text) = self.0.get("for") else { return Ok(Ends::Never) };
        let time = humantime::parse_duration(text).ok().filter(|time| *time >= Duration::from_secs(1));
        time.map(Ends::After)
            .ok_or_else(|| Problem::Bad(format!("for: {text:?} is not a time such as 15m or 2h")))
    }

    fn replay(&self) -> Result<ReplaySelection, Problem> {
        Ok(ReplaySelection {
            key: self.0.text("key"),
            subject: self.subject()?,
            ..ReplaySelection::default()
        })
    }
}

impl Order {
    /// How many things it would change; `None` where that is one.
    pub(crate) async fn count(&self, operator: &mut Operator) -> Result<Option<u64>, Problem> {
        let mut sum = 0;
        for part in self.parts() {
            match self.act(&part, operator, None, true).await? {
                Some(count) => sum += count,
                None => return Ok(None),
            }
        }
        Ok(Some(sum))
    }

    /// Does it; says how it ended.
    pub(crate) async fn run(
        &self,
        operator: &mut Operator,
        config: Option<&Config>,
    ) -> Result<String, Problem> {
        let mut sum = 0;
        for part in self.parts() {
            match self.act(&part, operator, config, false).await? {
                Some(count) => sum += count,
                None => return Ok(format!("{} {}", self.verb.past(), self.verb.things())),
            }
        }
        let sum = i64::try_from(sum).unwrap_or(i64::MAX);
        Ok(format!("{} {} {}", self.verb.past(), number(sum), self.verb.things()))
    }

    async fn act(
        &self,
        part: &Part,
        operator: &mut Operator,
        config: Option<&Config>,
        dry_run: bool,
    ) -> Result<Option<u64>, Problem> {
        if let Some(action) = Part::parked(self.verb) {
            return done(operator.act(action, &messages(&part.0)?, None, dry_run).await);
        }
        if let Some(action) = part.saga(self.verb)? {
            let acted = operator.act_on_sagas(&action, &sagas(&part.0), None, dry_run).await;
            return done(acted.map(|acted| acted.sagas));
        }
        let needs_nats =
            || Problem::Bad("NATS is not configured, which has the messages: give nats_url".to_owned());
        match self.verb {
            Verb::RetryLetters if dry_run => done(operator.count_dead_letters(&part.letters()?, None).await),
            Verb::RetryLetters => {
                let config = config.ok_or_else(needs_nats)?;
                done(operator.retry_dead_letters(config, &part.letters()?, None).await)
            }
            Verb::DiscardLetters => {
                done(operator.discard_dead_letters(&part.letters()?, None, dry_run).await)
            }
            Verb::RetryFailing | Verb::BuryFailing if dry_run => {
                let is_retry = self.verb == Verb::RetryFailing;
                let found = operator.count_failing(&failing(&part.0)?, None, is_retry).await;
                done(found.map(|found| found.done))
            }
            Verb::RetryFailing => {
                let config = config.ok_or_else(needs_nats)?;
                let found = operator.retry_failing(config, &failing(&part.0)?, None).await;
                done(found.map(|found| found.done))
            }
            Verb::BuryFailing => {
                let config = config.ok_or_else(needs_nats)?;
                let found = operator.bury_failing(config, &failing(&part.0)?, None).await;
                done(found.map(|found| found.done + found.gone))
            }
            Verb::CancelDelayed => done(operator.cancel_delayed(&delayed(&part.0)?, None, dry_run).await),
            Verb::Replay => {
                let request =
                    part.0.text("request").unwrap_or_else(|| format!("console-{}", uuid::Uuid::now_v7()));
                let replayed = operator.replay(&part.replay()?, &request, None, dry_run).await;
                done(replayed.map(|replayed| replayed.messages))
            }
            Verb::Resend => {
                let stream = part.0.text("stream").unwrap_or_default();
                done(operator.resend(&stream, None, dry_run).await.map(Option::unwrap_or_default))
            }
            _ => self.pause(part, operator, config, dry_run).await,
        }
    }

    async fn pause(
        &self,
        part: &Part,
        operator: &mut Operator,
        config: Option<&Config>,
        dry_run: bool,
    ) -> Result<Option<u64>, Problem> {
        let (of, ends) = (part.pause()?, part.ends()?);
        let rate = self.rate.filter(|_| self.verb == Verb::Throttle);
        if self.verb == Verb::Throttle && rate.is_none() {
            return Err(Problem::Bad("rate: how many messages a second?".to_owned()));
        }
        if dry_run {
            return Ok(None);
        }
        match self.verb {
            Verb::Resume => match done(operator.resume(&of).await)? {
                Some(true) => Ok(None),
                _ => Err(Problem::Conflict(format!("{of} is not paused; nothing was done"))),
            },
            _ => done(operator.pause(&of, rate, ends, false, config).await).map(|_| None),
        }
    }
}

/// An error that an action ends with: whole batches are done before it.
fn done<T>(result: Result<T, oncebox_connect::error::RelayError>) -> Result<Option<T>, Problem> {
    result.map(Some).map_err(|error| Problem::Away(error_chain(&error)))
}
