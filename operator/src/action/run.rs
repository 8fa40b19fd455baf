//! Counting the things that an order would change, and changing them.

use std::time::SystemTime;

use oncebox_connect::{config::Config, error::RelayError};

use super::{catalogue::Verb, done::Done, engine::Acting, kind::Kind, order::Order};
use crate::{
    DeadLetter, DelayedMessage, FailingMessage, Operator, ParkedMessage, Result, Saga,
    pauses::{Ends, PauseOf},
    replay::Settled,
    resend::Resender,
    selection::Selection,
    shown::{Changed, RowSet},
};

/// The things that an order would change.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Counted {
    /// The rows; `None` where it acts on one thing.
    pub rows: Option<RowSet>,
    /// How many, by their fates.
    pub done: Done,
}

impl Counted {
    /// The number of things, unless it acts on one.
    #[must_use]
    pub fn expected(&self) -> Option<u64> {
        self.rows.as_ref().map(|rows| if self.done.losses > 0 { self.done.done } else { rows.count() })
    }

    /// Whether it would change nothing. A loss of messages that are gone meanwhile is closed.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.rows.as_ref().is_some_and(|rows| rows.count() == 0)
    }
}

impl Order {
    /// Counts the things that it would change; those that were shown, if rows were.
    ///
    /// # Errors
    /// It cannot be done; or PostgreSQL refused or went away.
    pub async fn count(&self, operator: &mut Operator) -> Result<Counted> {
        let verb = self.verb;
        if !verb.has_rows() {
            let mut counted = Counted::default();
            for of in &self.selections(SystemTime::UNIX_EPOCH) {
                if matches!(verb, Verb::Pause | Verb::Throttle) {
                    let of_pause = PauseOf::of(of);
                    counted.done.warnings.extend(operator.pause_warnings(&of_pause).await?);
                    if !of.is_unseen {
                        operator.check_pause(&of_pause).await?;
                    }
                }
            }
            return Ok(counted);
        }
        let (limit, mut done) = (self.limit.unwrap_or(u64::MAX), Done::default());
        let shown = self.shown.as_ref();
        let mut set = match verb.kind {
            Kind::Settled => RowSet::of_settled(operator, verb.command, shown).await?,
            _ => RowSet::new(operator, verb.command, shown).await?,
        };
        if let Some((of, edit)) = self.edit().map_err(RelayError::Refused)? {
            operator.find_edit(&of, &edit, &mut set).await?;
            done.done = 1;
            return Ok(Counted { rows: Some(set), done });
        }
        // A time ago is before the end of the set: of a dry run and of its confirmation the same.
        for of in &self.selections(set.until()) {
            let acting = &Acting { verb, of, resender: None, is_canary: self.canary.is_some() };
            let (set, done) = (&mut set, &mut done);
            match verb.kind {
                Kind::Parked | Kind::Dead | Kind::Replays => {
                    operator.add_rows::<ParkedMessage>(acting, limit, set, done).await?;
                }
                Kind::Letters => operator.add_rows::<DeadLetter>(acting, limit, set, done).await?,
                Kind::Failing => operator.add_rows::<FailingMessage>(acting, limit, set, done).await?,
                Kind::Delayed => operator.add_rows::<DelayedMessage>(acting, limit, set, done).await?,
                Kind::Sagas => operator.add_rows::<Saga>(acting, limit, set, done).await?,
                Kind::Settled => {
                    operator.add_rows::<Settled>(acting, limit, set, done).await?;
                    if set.count() == limit {
                        set.forget_late();
                    }
                }
                Kind::Losses => operator.find_losses(of, set, done).await?,
                Kind::Audit => {
                    let rows = operator.undo_rows(of.id.unwrap_or_default()).await?;
                    rows.iter().for_each(|row| set.add_old(&row.audit_id));
                    done.done = set.count();
                }
                Kind::Pauses | Kind::Canaries => {}
            }
        }
        Ok(Counted { rows: Some(set), done })
    }

    /// Refuses rows that are not those that were shown.
    ///
    /// # Errors
    /// They are others.
    pub fn check(&self, rows: &RowSet) -> Result<(), Changed> {
        self.shown.as_ref().map_or(Ok(()), |shown| rows.check(shown))
    }

    /// Does it, to no other rows than these if there are some.
    ///
    /// # Errors
    /// It cannot be done; or PostgreSQL or NATS refused or went away: rows that were changed stay
    /// so, and the same order goes on with the rest.
    pub async fn run(
        &self,
        operator: &mut Operator,
        config: Option<&Config>,
        only: Option<&RowSet>,
    ) -> Result<Done> {
        let (verb, limit, mut done) = (self.verb, self.limit.unwrap_or(u64::MAX), Done::default());
        if let Some((of, edit)) = self.edit().map_err(RelayError::Refused)? {
            done.key = Some(operator.edit(config, &of, &edit, only).await?);
            done.done = 1;
            return Ok(done);
        }
        let now = match only {
            Some(rows) => rows.until(),
            None => operator.now().await?,
        };
        let selections = self.selections(now);
        if let Some(within) = self.canary {
            done.canary = operator.begin_canary(verb, &selections, limit, only, within).await?;
            return Ok(done);
        }
        let resender = if verb.needs_nats() { Some(resender(config).await?) } else { None };
        for of in &selections {
            let acting = &Acting { verb, of, resender: resender.as_ref(), is_canary: false };
            let done = &mut done;
            match verb.kind {
                Kind::Parked | Kind::Dead | Kind::Replays => {
                    operator.change_rows::<ParkedMessage>(acting, limit, only, done).await?;
                }
                Kind::Letters => operator.change_rows::<DeadLetter>(acting, limit, only, done).await?,
                Kind::Failing => operator.change_rows::<FailingMessage>(acting, limit, only, done).await?,
                Kind::Delayed => operator.change_rows::<DelayedMessage>(acting, limit, only, done).await?,
                Kind::Sagas => operator.change_rows::<Saga>(acting, limit, only, done).await?,
                Kind::Settled => operator.change_rows::<Settled>(acting, limit, only, done).await?,
                Kind::Losses => operator.resend(of, only, done).await?,
                Kind::Audit => done.done += operator.undo(of.id.unwrap_or_default()).await?,
                Kind::Canaries => self.change_canary(of, operator).await?,
                Kind::Pauses => self.pause(of, operator, config, done).await?,
            }
        }
        Ok(done)
    }

    async fn change_canary(&self, of: &Selection, operator: &mut Operator) -> Result<()> {
        let id = of.id.unwrap_or_default();
        let is_changed = match self.verb {
            Verb::StopCanary => operator.stop_canary(id).await?,
            Verb::ContinueCanary => operator.continue_canary(id).await?,
            _ => false,
        };
        let problem = "the canary has ended meanwhile, or has no rest; nothing was done";
        if is_changed { Ok(()) } else { Err(RelayError::Refused(problem.to_owned())) }
    }

    async fn pause(
        &self,
        of: &Selection,
        operator: &mut Operator,
        config: Option<&Config>,
        done: &mut Done,
    ) -> Result<()> {
        let (messages, ends) = (PauseOf::of(of), of.pause.map_or(Ends::Never, Ends::After));
        let rate = self.rate.filter(|_| self.verb == Verb::Throttle);
        match self.verb {
            Verb::Resume if operator.resume(&messages).await? => Ok(()),
            Verb::Resume => Err(RelayError::Refused(format!("{messages} is not paused; nothing was done"))),
            Verb::Pause | Verb::Throttle => {
                done.warnings.extend(operator.pause_warnings(&messages).await?);
                operator.pause(&messages, rate, ends, of.is_unseen, config).await.map(drop)
            }
            verb => Err(RelayError::Refused(format!("{}: nothing was done", verb.command))),
        }
    }
}

async fn resender(config: Option<&Config>) -> Result<Resender> {
    let missing = || "NATS is not configured, which has the messages: give nats_url".to_owned();
    Resender::connect(config.ok_or_else(|| RelayError::Refused(missing()))?).await
}
