//! Counting the things that an order would change, and doing it.

use std::time::{Duration, SystemTime};

use oncebox_connect::{config::Config, error::error_chain};
use oncebox_operator::{
    CANARY_WITHIN, CanaryOf, Ends, FailingDone, Moment, Operator, ParkedAction, ParkedKind, PauseOf,
    ReplaySelection, RowSet, SagaAction, UndoRow,
};

use super::{Order, Part, Shown, Verb, delayed, failing, messages, sagas};
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
                Some(SagaAction::Skip { step, reply: None })
            }
            Verb::AbandonSagas => Some(SagaAction::Abandon),
            _ => None,
        })
    }

    /// The row of the audit, or the canary.
    pub(crate) fn row_id(&self) -> Result<i64, Problem> {
        self.0.parsed("id")?.ok_or_else(|| Problem::Bad("id: which one?".to_owned()))
    }

    fn canary(&self, verb: Verb) -> Result<CanaryOf, Problem> {
        Ok(match verb {
            Verb::RetryDead => CanaryOf::Messages(messages(&self.0)?),
            _ => CanaryOf::Letters(self.letters()?),
        })
    }

    fn stream(&self) -> String {
        self.0.text("stream").unwrap_or_default()
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

    /// No recent message has the subject, and it is right all the same.
    fn is_unseen(&self) -> bool {
        self.0.get("unseen").is_some_and(|unseen| matches!(unseen, "1" | "true"))
    }

    /// A time ago is before the end of the rows: of those that are shown and confirmed the same.
    fn replay(&self, now: SystemTime) -> Result<ReplaySelection, Problem> {
        Ok(ReplaySelection {
            key: self.0.text("key"),
            subject: self.subject()?,
            since: self.moment("since")?.map(|since| since.at(now)),
            until: self.moment("until")?.map(|until| until.at(now)),
            ..ReplaySelection::default()
        })
    }

    pub(super) fn moment(&self, name: &str) -> Result<Option<Moment>, Problem> {
        let parsed = self.0.get(name).map(str::parse).transpose();
        parsed.map_err(|problem: String| Problem::Bad(format!("{name}: {problem}")))
    }

    /// The name of a replay's request. Shown rows are replayed once: a row that was asked for
    /// under the name of their token is left out a second time.
    fn request(&self, shown: Option<&Shown>) -> String {
        let confirmed = || shown.map(|token| format!("confirm {token}"));
        let new = || format!("console-{}", uuid::Uuid::now_v7());
        self.0.text("request").or_else(confirmed).unwrap_or_else(new)
    }
}

/// The things that an order would change.
pub(crate) enum Counted {
    Rows(RowSet),
    /// Losses of a stream, and the number of messages that come into question.
    Losses(RowSet, u64),
    /// It is one.
    One,
}

impl Counted {
    pub(crate) fn count(&self) -> Option<u64> {
        match self {
            Self::Rows(rows) => Some(rows.count()),
            Self::Losses(_, messages) => Some(*messages),
            Self::One => None,
        }
    }

    pub(crate) fn into_rows(self) -> Option<RowSet> {
        if let Self::Rows(rows) | Self::Losses(rows, _) = self { Some(rows) } else { None }
    }

    pub(crate) fn rows(&self) -> Option<&RowSet> {
        if let Self::Rows(rows) | Self::Losses(rows, _) = self { Some(rows) } else { None }
    }
}

impl Order {
    /// Counts the things that it would change; those that were shown, if rows were.
    pub(crate) async fn count(&self, operator: &mut Operator) -> Result<Counted, Problem> {
        if self.verb.has_rows() {
            let (action, shown) = (self.verb.words(), self.shown.as_ref());
            let rows = match self.verb {
                Verb::Replay => RowSet::of_settled(operator, action, shown).await,
                _ => RowSet::new(operator, action, shown).await,
            };
            let mut rows = rows.map_err(refused)?;
            if self.verb == Verb::Resend {
                let mut messages = 0;
                for part in self.parts() {
                    let found = operator.find_losses(&part.stream(), None, &mut rows).await;
                    messages += found.map_err(refused)?.unwrap_or_default();
                }
                return Ok(Counted::Losses(rows, messages));
            }
            for part in self.parts() {
                self.find(&part, operator, &mut rows).await?;
            }
            return Ok(Counted::Rows(rows));
        }
        for part in self.parts() {
            match self.verb.is_of_canary() {
                true => part.row_id().map(drop)?,
                false => self.check_pause(&part, operator).await?,
            }
        }
        Ok(Counted::One)
    }

    /// The rows of a discard, each with the reason why it cannot come back.
    pub(crate) async fn undo_rows(&self, operator: &Operator) -> Result<Vec<UndoRow>, Problem> {
        let mut found = Vec::new();
        for part in self.parts().iter().filter(|_| self.verb == Verb::Undo) {
            found.extend(operator.undo_rows(part.row_id()?).await.map_err(refused)?);
        }
        Ok(found)
    }

    async fn find(&self, part: &Part, operator: &Operator, rows: &mut RowSet) -> Result<(), Problem> {
        if let Some((of, edit)) = self.edit()? {
            return operator.find_edit(&of, &edit, rows).await.map_err(refused);
        }
        if let Some(action) = Part::parked(self.verb) {
            let selection = messages(&part.0)?;
            return operator.find_parked(action.kind(), &selection, None, rows).await.map_err(refused);
        }
        if let Some(action) = part.saga(self.verb)? {
            return operator.find_sagas(&action, &sagas(&part.0), None, rows).await.map_err(refused);
        }
        match self.verb {
            Verb::Replay => {
                let selection = part.replay(rows.until())?;
                operator
                    .find_settled(&selection, &part.request(self.shown.as_ref()), None, rows)
                    .await
                    .map(drop)
            }
            Verb::Undo => operator.find_undo(part.row_id()?, rows).await,
            Verb::CancelDelayed => operator.find_delayed(&delayed(&part.0)?, None, rows).await,
            Verb::RetryFailing | Verb::BuryFailing => {
                let is_retry = self.verb == Verb::RetryFailing;
                operator.count_failing(&failing(&part.0)?, None, is_retry, rows).await.map(drop)
            }
            _ => operator.find_dead_letters(&part.letters()?, None, rows).await,
        }
        .map_err(refused)
    }

    /// Does it, to no other rows than these if there are some; says how it ended, and the number
    /// of things that were changed.
    pub(crate) async fn run(
        &self,
        operator: &mut Operator,
        config: Option<&Config>,
        rows: Option<&RowSet>,
    ) -> Result<(String, Option<u64>), Problem> {
        if self.is_canary() {
            let parts: Vec<CanaryOf> =
                self.parts().iter().map(|part| part.canary(self.verb)).collect::<Result<_, _>>()?;
            let begun = operator.begin_canary(&parts, None, rows, CANARY_WITHIN).await;
            let text = match begun.map_err(refused)? {
                Some(id) => format!("began canary {id}: see the page of jobs"),
                None => "nothing was left to retry, and no canary was begun".to_owned(),
            };
            return Ok((text, None));
        }
        if let Some((of, edit)) = self.edit()? {
            let key = operator.edit(config, &of, &edit, rows).await.map_err(refused)?;
            return Ok((format!("edited; its key is {key}"), Some(1)));
        }
        let mut sum = 0;
        for part in self.parts() {
            match self.act(&part, operator, config, rows).await? {
                Some(count) => sum += count,
                None => return Ok((format!("{} {}", self.verb.past(), self.verb.things()), None)),
            }
        }
        let late = rows.map_or(0, RowSet::late);
        let late = match late {
            0 => String::new(),
            1 => "; 1 that came since they were shown stays".to_owned(),
            late => format!(
                "; {} that came since they were shown stay",
                number(i64::try_from(late).unwrap_or(i64::MAX))
            ),
        };
        Ok((format!("{} {}{late}", self.verb.past(), self.verb.counted(sum)), Some(sum)))
    }

    async fn act(
        &self,
        part: &Part,
        operator: &mut Operator,
        config: Option<&Config>,
        rows: Option<&RowSet>,
    ) -> Result<Option<u64>, Problem> {
        if let Some(action) = Part::parked(self.verb) {
            return done(operator.act(action, &messages(&part.0)?, None, rows).await);
        }
        if let Some(action) = part.saga(self.verb)? {
            let acted = operator.act_on_sagas(&action, &sagas(&part.0), None, rows).await;
            return done(acted.map(|acted| acted.sagas));
        }
        let needs_nats =
            || Problem::Bad("NATS is not configured, which has the messages: give nats_url".to_owned());
        match self.verb {
            Verb::RetryLetters => {
                let config = config.ok_or_else(needs_nats)?;
                done(operator.retry_dead_letters(config, &part.letters()?, None, rows).await)
            }
            Verb::DiscardLetters => done(operator.discard_dead_letters(&part.letters()?, None, rows).await),
            Verb::RetryFailing => {
                let config = config.ok_or_else(needs_nats)?;
                let found = operator.retry_failing(config, &failing(&part.0)?, None, rows).await;
                done(found.map(|found| found.done))
            }
            Verb::BuryFailing => {
                let config = config.ok_or_else(needs_nats)?;
                let found = operator.bury_failing(config, &failing(&part.0)?, None, rows).await;
                if let Ok(FailingDone { done, incomplete: 1.., .. }) = found {
                    return Err(Problem::Conflict(format!(
                        "buried {}; the payloads of the others are in no bucket: have them put again with \
                         `oncebox outbox replay --key`, where they were enqueued",
                        self.verb.counted(done)
                    )));
                }
                done(found.map(|found| found.done + found.gone))
            }
            Verb::StopCanary => changed(operator.stop_canary(part.row_id()?).await),
            Verb::ContinueCanary => changed(operator.continue_canary(part.row_id()?).await),
            Verb::Undo => done(operator.undo(part.row_id()?).await),
            Verb::CancelDelayed => done(operator.cancel_delayed(&delayed(&part.0)?, None, rows).await),
            Verb::Replay => {
                let now = match rows {
                    Some(rows) => rows.until(),
                    None => operator.now().await.map_err(refused)?,
                };
                let request = part.request(self.shown.as_ref());
                let replayed = operator.replay(&part.replay(now)?, &request, None, rows).await;
                done(replayed.map(|replayed| replayed.messages))
            }
            Verb::Resend => {
                let resent = operator.resend(&part.stream(), None, rows).await;
                done(resent.map(Option::unwrap_or_default))
            }
            _ => self.pause(part, operator, config).await,
        }
    }

    fn throttle(&self) -> Result<Option<f64>, Problem> {
        match self.rate.filter(|_| self.verb == Verb::Throttle) {
            None if self.verb == Verb::Throttle => {
                Err(Problem::Bad("rate: how many messages a second?".to_owned()))
            }
            rate => Ok(rate),
        }
    }

    /// Whether it means deliveries that there are, before a user is asked to confirm it.
    async fn check_pause(&self, part: &Part, operator: &mut Operator) -> Result<(), Problem> {
        let (of, _, _) = (part.pause()?, part.ends()?, self.throttle()?);
        if self.verb != Verb::Resume && !part.is_unseen() {
            operator.check_pause(&of).await.map_err(refused)?;
        }
        Ok(())
    }

    async fn pause(
        &self,
        part: &Part,
        operator: &mut Operator,
        config: Option<&Config>,
    ) -> Result<Option<u64>, Problem> {
        let (of, ends, rate) = (part.pause()?, part.ends()?, self.throttle()?);
        match self.verb {
            Verb::Resume => match done(operator.resume(&of).await)? {
                Some(true) => Ok(None),
                _ => Err(Problem::Conflict(format!("{of} is not paused; nothing was done"))),
            },
            _ => done(operator.pause(&of, rate, ends, part.is_unseen(), config).await).map(|_| None),
        }
    }
}

/// The answer of an action on one canary.
fn changed(result: Result<bool, oncebox_connect::error::RelayError>) -> Result<Option<u64>, Problem> {
    match result.map_err(refused)? {
        true => Ok(None),
        false => Err(Problem::Conflict(
            "the canary has ended meanwhile, or has no rest; nothing was done".to_owned(),
        )),
    }
}

/// An error that an action ends with: whole batches are done before it.
fn done<T>(result: Result<T, oncebox_connect::error::RelayError>) -> Result<Option<T>, Problem> {
    result.map(Some).map_err(refused)
}

#[expect(clippy::needless_pass_by_value, reason = "it is given to map_err")]
fn refused(error: oncebox_connect::error::RelayError) -> Problem {
    Problem::told(&error, error_chain(&error))
}
