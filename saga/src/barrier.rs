//! The barrier: an action and its compensation may come in any order and number, and at most one
//! effect remains: the action's, or none.
//!
//! Each action has a row, named by its key, that says how far the action has come. Both handlers
//! insert this row, or lock it, in the transaction of their own effect. So effect and row are
//! committed together, and of two handlers at the same time one waits for the other.
//!
//! | the row says | the action may | its compensation finds |
//! |---|---|---|
//! | nothing, there is none | act | nothing to undo, and leaves the mark `refused` |
//! | `acting`: a leased run is under way | go on | that it must wait |
//! | `acted` | not act again | its turn: `undone`, or `undoing` in leased mode |
//! | `rejected`: it had no effect | act, unless it is an earlier attempt | nothing to undo, and leaves `refused` |
//! | `undoing` | not act any more | its turn, once more; of another attempt: that it must wait |
//! | `undone`, `refused` | not act any more | nothing to undo |

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use oncebox_inbox::{Context, HandlerError, LeasedContext, Received};
use oncebox_schema::{Key, Parameter, SchemaName, Transaction, statements, typed};

use crate::command::{ATTEMPT, action};

const NAME_BYTES_MAX: usize = 255;
/// A hundred years: no row is older, and PostgreSQL has no interval for a `Duration::MAX`.
const KEEP_SECONDS_MAX: f64 = 100.0 * 366.0 * 86_400.0;

statements!(bare_sql "barrier/sql/": enter_action, end_action, enter_compensation, end_compensation, sweep);

/// The decision for an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an action that is refused must not act"]
pub enum Action {
    /// Have its effect.
    Act,
    /// Do nothing: the action had its effect before. Answer as you did then.
    Acted,
    /// Do nothing, now and later: the compensation came before the action, or another attempt at
    /// the action is newer or under way. Answer that it is refused.
    Refused,
}

/// The decision for a compensation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a compensation that has nothing to undo must not undo"]
pub enum Compensation {
    /// Undo the action's effect.
    Undo,
    /// Do nothing, and report success: the action had no effect and cannot have one any more, or it
    /// is undone already.
    Nothing,
    /// Do nothing yet: a leased run of the action, or of another attempt to undo it, may have an
    /// effect. Return [`Outcome::snooze`](oncebox_inbox::Outcome::snooze).
    Wait,
}

/// The barrier's name is invalid, the message's key does not fit, or an answer is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidBarrier {
    /// The name is empty, too long, or not visible ASCII.
    #[error("barrier {0:?} is not named by 1 to 255 bytes of visible ASCII")]
    Name(String),
    /// A compensation has the key of its action, followed by `:undo`.
    #[error("key \"{0}\" is not that of a compensation: it does not end with \":undo\"")]
    NoUndo(Key),
    /// The key of a compensation was given where the key of an action is needed.
    #[error("key \"{0}\" is that of a compensation, not of an action")]
    Undo(Key),
    /// The database answers with a word that this version does not know, perhaps one of a later
    /// version.
    #[error(
        "the barrier \"{barrier}\" got the answer {answer:?}, which this version does not know: update the program"
    )]
    UnknownAnswer {
        /// The name of the barrier.
        barrier: String,
        /// The answer.
        answer: Option<String>,
    },
}

/// Stands before the actions and compensations of one kind in a service, such as
/// `stock-service:reserve`. Both handlers use a barrier of the same name, in the same database.
/// Cheap to make and to clone.
#[derive(Clone)]
pub struct Barrier {
    name: String,
    /// The key of the one action that this barrier protects; `None` when the keys of the messages
    /// say which action it is.
    action: Option<Key>,
    sql: Statements,
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Barrier").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Barrier {
    /// The barrier of this name, in the PostgreSQL schema `oncebox`. Never rename one while sagas
    /// are under way.
    ///
    /// # Errors
    /// The name is empty, longer than 255 bytes, or not visible ASCII.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidBarrier> {
        let name = name.into();
        let is_valid =
            (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_valid {
            return Err(InvalidBarrier::Name(name));
        }
        Ok(Self { name, action: None, sql: Statements::new(&SchemaName::default()) })
    }

    /// Uses the tables of another PostgreSQL schema.
    #[must_use]
    pub fn schema(mut self, schema: &SchemaName) -> Self {
        self.sql = Statements::new(schema);
        self
    }

    /// This barrier for one action, with messages of any key. Use it if services react to each
    /// other's events: the key of an event does not say which action it undoes. The handlers of the
    /// action and of its compensation give the same key, without `:undo`.
    #[must_use]
    pub fn for_action(&self, key: Key) -> Self {
        Self { action: Some(key), ..self.clone() }
    }

    /// For the handler of an action, before its effect: decides whether it may act. Its row is
    /// written in the handler's transaction; where the handler returns an error,
    /// [`Outcome::Retry`](oncebox_inbox::Outcome::Retry) or the like, the row goes with its effect.
    /// Waits while another run of this action, or its compensation, is open.
    ///
    /// # Errors
    /// The key is a compensation's, or PostgreSQL refused; return it from the handler.
    pub async fn action(&self, cx: &Context<'_>) -> Result<Action, HandlerError> {
        let action = self.done_by(cx.key(), cx.message())?;
        self.enter(cx.transaction(), cx.tenant(), &action, false).await
    }

    /// For the handler of an action that may act but rejects the command: records that the action
    /// had no effect, so that there is nothing to undo. Without this call the compensation would
    /// undo an effect that never happened.
    ///
    /// # Errors
    /// [`Barrier::action`] has not let it through, or PostgreSQL refused; return it from the
    /// handler.
    pub async fn had_no_effect(&self, cx: &Context<'_>) -> Result<(), HandlerError> {
        self.end(cx, false).await
    }

    /// For the handler of a compensation, before it undoes anything. The key is its action's key
    /// with `:undo` at its end. Waits while a run of the action is open in a transaction.
    ///
    /// # Errors
    /// The key is not a compensation's, or PostgreSQL refused; return it from the handler.
    pub async fn compensation(&self, cx: &Context<'_>) -> Result<Compensation, HandlerError> {
        let action = self.undone_by(cx.key(), cx.message())?;
        self.enter_undo(cx.transaction(), cx.tenant(), &action, None).await
    }

    /// For the handler of a compensation that was told to [undo](Compensation::Undo) but rejects
    /// the command: records that nothing is undone, so that the next attempt is told to undo.
    /// Without this call the next attempt would find nothing to undo, and report success. A handler
    /// that ends with an error, or as [`Outcome::Dead`](oncebox_inbox::Outcome::Dead), needs no
    /// call, nor does a leased compensation that rejects the command.
    ///
    /// # Errors
    /// No compensation was let through, or PostgreSQL refused; return it from the handler.
    pub async fn has_undone_nothing(&self, cx: &Context<'_>) -> Result<(), HandlerError> {
        self.end_undo(cx, false).await
    }

    /// [`Barrier::action`] for a leased handler, before its first effect: committed at once, so
    /// that a compensation that comes meanwhile waits. End it with [`Barrier::end_leased_action`]
    /// in [`finish`](oncebox_inbox::LeasedHandler::finish). A later run of the same message goes
    /// on.
    ///
    /// # Errors
    /// As [`Barrier::action`], or the lease is lost.
    pub async fn leased_action(&self, cx: &LeasedContext<'_>) -> Result<Action, HandlerError> {
        let (barrier, tenant) = (self.clone(), cx.tenant().to_owned());
        let action = self.done_by(cx.key(), cx.message())?;
        let number: u8 = cx
            .write("barrier", move |transaction| {
                Box::pin(async move {
                    let action = barrier.enter(transaction, &tenant, &action, true).await?;
                    Ok(match action {
                        Action::Act => 0,
                        Action::Acted => 1,
                        Action::Refused => 2,
                    })
                })
            })
            .await?;
        let (barrier, answer) = (self.name.clone(), Some(number.to_string()));
        match number {
            0 => Ok(Action::Act),
            1 => Ok(Action::Acted),
            2 => Ok(Action::Refused),
            _ => Err(InvalidBarrier::UnknownAnswer { barrier, answer }.into()),
        }
    }

    /// For `finish` of a leased handler that was told to [act](Action::Act): records whether the
    /// action had its effect, in the transaction that ends the claim.
    ///
    /// # Errors
    /// No such run is under way, or PostgreSQL refused; return it from `finish`.
    pub async fn end_leased_action(&self, cx: &Context<'_>, had_effect: bool) -> Result<(), HandlerError> {
        self.end(cx, had_effect).await
    }

    /// [`Barrier::compensation`] for a leased handler, before it undoes anything; end it with
    /// [`Barrier::end_leased_compensation`] in `finish`.
    ///
    /// # Errors
    /// As [`Barrier::compensation`], or the lease is lost.
    pub async fn leased_compensation(&self, cx: &LeasedContext<'_>) -> Result<Compensation, HandlerError> {
        let (barrier, tenant, scope) = (self.clone(), cx.tenant().to_owned(), cx.scope().to_owned());
        let action = self.undone_by(cx.key(), cx.message())?;
        let waits = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&waits);
        let undoes: Result<bool, HandlerError> = cx
            .write("barrier", move |transaction| {
                Box::pin(async move {
                    match barrier.enter_undo(transaction, &tenant, &action, Some(&scope)).await? {
                        Compensation::Undo => Ok(true),
                        Compensation::Nothing => Ok(false),
                        // An error is not remembered, so the next run asks again.
                        Compensation::Wait => {
                            told.store(true, Ordering::Relaxed);
                            Err(HandlerError::message("the action is under way"))
                        }
                    }
                })
            })
            .await;
        match undoes {
            Err(_) if waits.load(Ordering::Relaxed) => Ok(Compensation::Wait),
            undoes => Ok(if undoes? { Compensation::Undo } else { Compensation::Nothing }),
        }
    }

    /// For `finish` of a leased handler that was told to [undo](Compensation::Undo): records that
    /// the action is undone.
    ///
    /// # Errors
    /// No such run is under way, or PostgreSQL refused; return it from `finish`.
    pub async fn end_leased_compensation(&self, cx: &Context<'_>) -> Result<(), HandlerError> {
        self.end_undo(cx, true).await
    }

    /// Deletes rows that ended longer ago than `keep`, at most `most` of them, and returns how
    /// many: call it again while it returns `most`. Rows of open actions stay. `keep` must be
    /// longer than a saga can last, and than a message can come late: an action whose mark is gone
    /// would act.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn sweep(
        &self,
        client: &impl tokio_postgres::GenericClient,
        keep: std::time::Duration,
        most: i32,
    ) -> Result<u64, tokio_postgres::Error> {
        let seconds = keep.as_secs_f64().min(KEEP_SECONDS_MAX);
        let row = client.query_typed_one(&self.sql.sweep, &typed(&[&self.name, &seconds, &most])).await?;
        Ok(row.try_get::<_, i64>(0)?.unsigned_abs())
    }

    async fn enter(
        &self,
        transaction: &Transaction,
        tenant: &str,
        (key, attempt): &(Key, i32),
        is_leased: bool,
    ) -> Result<Action, HandlerError> {
        let more: [&dyn Parameter; 2] = [&is_leased, attempt];
        let answer = self.call(transaction, &self.sql.enter_action, tenant, key, &more).await?;
        let known = [("act", Action::Act), ("acted", Action::Acted), ("refused", Action::Refused)];
        let action = self.meaning(answer, known)?;
        tracing::debug!(barrier = self.name, key = key.as_str(), ?action, "an action at the barrier");
        Ok(action)
    }

    async fn enter_undo(
        &self,
        transaction: &Transaction,
        tenant: &str,
        (key, attempt): &(Key, i32),
        leased_in: Option<&str>,
    ) -> Result<Compensation, HandlerError> {
        let (sql, is_leased) = (&self.sql.enter_compensation, leased_in.is_some());
        let more: [&dyn Parameter; 3] = [&is_leased, attempt, &leased_in];
        let answer = self.call(transaction, sql, tenant, key, &more).await?;
        let known =
            [("undo", Compensation::Undo), ("wait", Compensation::Wait), ("nothing", Compensation::Nothing)];
        let compensation = self.meaning(answer, known)?;
        let key = key.as_str();
        tracing::debug!(barrier = self.name, key, ?compensation, "a compensation at the barrier");
        Ok(compensation)
    }

    /// The decision in PostgreSQL's answer. A guess could leave out a compensation without a trace.
    fn meaning<T>(&self, answer: Option<String>, known: [(&str, T); 3]) -> Result<T, InvalidBarrier> {
        let found = known.into_iter().find(|(word, _)| answer.as_deref() == Some(*word));
        let barrier = &self.name;
        found
            .map(|(_, meaning)| meaning)
            .ok_or_else(|| InvalidBarrier::UnknownAnswer { barrier: barrier.clone(), answer })
    }

    async fn end(&self, cx: &Context<'_>, had_effect: bool) -> Result<(), HandlerError> {
        let (key, attempt) = self.done_by(cx.key(), cx.message())?;
        let more: [&dyn Parameter; 2] = [&had_effect, &attempt];
        self.call(cx.transaction(), &self.sql.end_action, cx.tenant(), &key, &more).await.map(drop)
    }

    async fn end_undo(&self, cx: &Context<'_>, has_undone: bool) -> Result<(), HandlerError> {
        let (key, attempt) = self.undone_by(cx.key(), cx.message())?;
        let more: [&dyn Parameter; 2] = [&has_undone, &attempt];
        self.call(cx.transaction(), &self.sql.end_compensation, cx.tenant(), &key, &more).await.map(drop)
    }

    /// The key of the action that a message asks for, and which attempt at it this is.
    fn done_by(&self, key: &Key, message: &Received) -> Result<(Key, i32), InvalidBarrier> {
        match &self.action {
            Some(action) => Ok((action.clone(), 1)),
            None if key.is_undo() => Err(InvalidBarrier::Undo(key.clone())),
            None => Ok(action(key, message.header_value(ATTEMPT))),
        }
    }

    /// The key of the action that a message undoes, and which attempt at that this is.
    fn undone_by(&self, key: &Key, message: &Received) -> Result<(Key, i32), InvalidBarrier> {
        match &self.action {
            Some(action) => Ok((action.clone(), 1)),
            None => Ok(action(&undone(key)?, message.header_value(ATTEMPT))),
        }
    }

    /// Calls a function of the schema in one round trip. Nothing is prepared, so that this works
    /// with a pooler.
    async fn call(
        &self,
        transaction: &Transaction,
        sql: &str,
        tenant: &str,
        key: &Key,
        more: &[&(dyn Parameter + '_)],
    ) -> Result<Option<String>, HandlerError> {
        let key = key.as_str();
        let parameters = [&[&self.name as &dyn Parameter, &tenant, &key], more].concat();
        Ok(transaction.query_typed_one(sql, &typed(&parameters)).await?.try_get(0)?)
    }
}

/// The key of the action that a compensation undoes.
fn undone(key: &Key) -> Result<Key, InvalidBarrier> {
    let action = key.as_str().strip_suffix(":undo").and_then(|action| action.parse().ok());
    action.ok_or_else(|| InvalidBarrier::NoUndo(key.clone()))
}

#[cfg(test)]
mod tests;
