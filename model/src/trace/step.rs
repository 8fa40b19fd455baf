//! The lines of consumers and orchestrators, as `inbox/src/recording.rs` and
//! `saga/src/recording.rs` write them, and `claims/src/leased` those of effects.

use oncebox_saga::rules::{Change, Drawing};
use serde::Deserialize;

use super::numbered::{self, Numbered};

/// The recordings of some consumers and orchestrators.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    pub(super) all: Vec<Numbered<Step>>,
    pub(super) mistakes: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub(super) enum Step {
    Started {
        /// Of an orchestrator.
        #[serde(default)]
        definitions: Vec<Drawing>,
    },
    Claimed(Claimed),
    Failed {},
    Released {},
    Committing(Ending),
    Committed(Of),
    Lost(Of),
    Refused(Of),
    Fenced(Of),
    Effect(Effect),
    Changing(Change),
    Quarantining {
        saga: i64,
    },
    Answering {
        message: Option<u64>,
        answer: String,
    },
}

/// Which message a step is of, and which key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
pub(super) struct Of {
    pub(super) message: Option<u64>,
    pub(super) key: Option<i64>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Claimed {
    #[serde(flatten)]
    pub(super) of: Of,
    pub(super) how: How,
    /// Of one that was won in a transaction.
    pub(super) xact: Option<i64>,
    /// Of one that was won under a lease.
    pub(super) epoch: Option<i64>,
    #[serde(default)]
    pub(super) taken_over: bool,
    /// Of a key that has ended.
    pub(super) status: Option<Status>,
    pub(super) reply: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum How {
    Won,
    InFlight,
    Stored,
    Mismatch,
    Again,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    Completed,
    Rejected,
    Dead,
    /// A dead letter that ends no key: it has none, or its key has another payload.
    Aside,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Ending {
    #[serde(flatten)]
    pub(super) of: Of,
    pub(super) status: Status,
    pub(super) reply: Option<String>,
    pub(super) xact: Option<i64>,
    pub(super) epoch: Option<i64>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Effect {
    pub(super) key: i64,
    pub(super) epoch: i64,
    pub(super) effect: String,
    pub(super) did: Did,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Did {
    Beginning,
    /// It is recorded as begun, for the first time.
    Begun,
    /// An earlier owner has begun it, and it is not known whether it happened.
    Open,
    BegunAgain,
    /// Its result is remembered.
    Known,
    Calling,
    Remembering,
    Remembered,
    Forgetting,
    /// The lease is lost.
    Fenced,
}

impl Steps {
    /// Takes in a file; it may have several lives, each of which may end in half a line.
    pub fn add(&mut self, text: &str) {
        self.all.extend(numbered::read(text, &mut self.mistakes));
    }
}
