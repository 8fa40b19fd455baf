//! "Why is this message not there yet?": the way of a message from its transaction to its handlers,
//! up to the first thing that holds it, with one remedy.
//!
//! `look` asks both servers; the functions in `outbox`, `stream` and `inbox` are pure, and judge a
//! part of the way each. They have no rules of their own: a trace says where the message is, and
//! the findings of `oncebox status`, and the obstacles that it shares with `oncebox doctor`, name
//! the obstacle.

mod copy;
mod facts;
mod inbox;
mod look;
mod outbox;
mod remedy;
mod stream;

use schemars::JsonSchema;
use serde::Serialize;

pub use self::look::{Looked, WhySource, explain};
use crate::{
    Diagnosis, PlacedTrace, TracedMessage, obstacles::Expected, pause_row::PauseRow, shell::quoted,
    status::Status, time::Time,
};

/// Why the messages with a key, and those of the steps below it, are not there yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Why {
    /// The key that was asked for.
    pub key: String,
    /// An answer for each message, in the order of their keys, and for each saga that goes on; one
    /// for the key itself when no message has it.
    pub answers: Vec<Explained>,
    /// There are more messages below the key.
    pub is_cut: bool,
}

/// Where one message is, and its obstacle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Explained {
    /// Its key.
    pub key: String,
    /// The database of its outbox, or of its inbox if no outbox has it.
    pub database: Option<String>,
    /// The end of the walk.
    pub outcome: Outcome,
    /// The stations that it has passed, the first one first.
    pub passed: Vec<Passed>,
    /// The station where it is, in a word that does not change: `transaction`, `postgres`, `relay`,
    /// `schema`, `delay`, `pause`, `lane`, `ordering-key`, `nats`, `outbox`, `stream`, `consumer`,
    /// `inbox`, `effect`, `saga` or `end`.
    pub station: &'static str,
    /// The obstacle that holds it there, or how it ended.
    pub what: String,
    /// The key of the message that is ahead of it, and has to go first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<String>,
    /// The one thing to do; `None` where nothing has to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Remedy>,
}

/// How a walk ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Outcome {
    /// Handled, or acknowledged by each consumer that is known.
    Done,
    /// Nothing holds it.
    OnItsWay,
    /// Something holds it.
    Held,
    /// An operator, or its producer, gave it up.
    GivenUp,
    /// No database that answered knows it, or a server did not answer.
    Unknown,
}

/// A station that a message has passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Passed {
    /// In a word that does not change, as in [`Explained::station`].
    pub station: &'static str,
    /// How.
    pub what: String,
    /// When, if that is known.
    pub at: Option<Time>,
}

/// The one thing to do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Remedy {
    /// In words.
    pub what: String,
    /// A command, to be pasted as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Whether the command is a statement for PostgreSQL, and not one for a shell.
    pub is_sql: bool,
    /// The console's action that does the same in `database`: names and values of its fields.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub action: Vec<(String, String)>,
    /// The database where it is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
}

/// The end of a walk: station, outcome and words.
struct End {
    station: &'static str,
    outcome: Outcome,
    what: String,
    behind: Option<String>,
    remedy: Option<Remedy>,
}

impl End {
    fn held(station: &'static str, what: impl Into<String>, remedy: Remedy) -> Self {
        let (outcome, what) = (Outcome::Held, what.into());
        Self { station, outcome, what, behind: None, remedy: Some(remedy) }
    }

    fn new(station: &'static str, outcome: Outcome, what: impl Into<String>) -> Self {
        Self { station, outcome, what: what.into(), behind: None, remedy: None }
    }

    fn obstacle(station: &'static str, found: Diagnosis) -> Self {
        let Diagnosis { what, consequence, remedy, .. } = found;
        Self::held(station, format!("{what}: {consequence}"), Remedy::of_text(remedy))
    }
}

/// All that is known about one message.
struct Case<'a> {
    placed: &'a PlacedTrace,
    message: &'a TracedMessage,
    look: &'a facts::Look,
    /// Sessions that run handlers, and dead letters, of all databases.
    inboxes: &'a facts::Inboxes,
    expected: &'a Expected,
}

impl Case<'_> {
    fn status(&self) -> &Status {
        &self.look.status
    }

    fn pause(&self, is_throttle: bool) -> Option<&PauseRow> {
        let order = self.message.ordering_key.as_deref();
        let takes = |pause: &&PauseRow| pause.takes(&self.message.subject, order);
        self.look.pauses.iter().filter(takes).find(|pause| pause.rate.is_some() == is_throttle)
    }
}

/// Walks along the way of a message.
fn walk(case: &Case<'_>) -> Explained {
    let mut passed = outbox::enqueued(case);
    let end = outbox::judge(case, &mut passed).unwrap_or_else(|| {
        inbox::judge(case, &mut passed).unwrap_or_else(|| stream::judge(case, &mut passed))
    });
    finish(&case.message.key, Some(&case.placed.database), passed, end)
}

fn finish(key: &str, database: Option<&String>, passed: Vec<Passed>, end: End) -> Explained {
    let End { station, outcome, what, behind, remedy } = end;
    let (key, database) = (key.to_owned(), database.cloned());
    let remedy =
        remedy.map(|remedy| Remedy { database: remedy.database.or_else(|| database.clone()), ..remedy });
    Explained { key, database, outcome, passed, station, what, behind, remedy }
}

impl Explained {
    /// Says that another key was meant, which is known.
    pub fn mean(&mut self, meant: &str) {
        let command = format!("oncebox why {}", quoted(meant));
        let what = format!("there is a message with the key {meant}: ask for that");
        self.remedy = Some(Remedy { what, command: Some(command), ..Remedy::default() });
    }
}

impl Why {
    /// Whether nothing holds any of the messages.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.answers.iter().all(|one| matches!(one.outcome, Outcome::Done | Outcome::OnItsWay))
    }
}
