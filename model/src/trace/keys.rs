//! The ledger of consumers: the keys that have ended, the sagas, and the effects that the user has
//! counted.

use std::collections::{BTreeMap, HashMap};

use oncebox_saga::rules::{Direction, StepProgress};
use serde::Deserialize;

use super::step::Status;

/// The ledger of consumers.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    pub(super) keys: BTreeMap<i64, Key>,
    /// By scope and name.
    pub(super) numbers: HashMap<(String, String), i64>,
    pub(super) effects: Vec<Effect>,
    pub(super) calls: Vec<Call>,
    pub(super) sagas: BTreeMap<i64, Saga>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Key {
    pub(super) key: i64,
    pub(super) scope: String,
    pub(super) name: String,
    pub(super) status: Status,
    pub(super) reply: Option<String>,
    /// The last 32 bits of the transaction that wrote the row.
    pub(super) xmin: i64,
}

/// A row of a handler's own table.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Effect {
    pub(super) scope: String,
    pub(super) name: String,
    pub(super) what: String,
    /// `None` where a savepoint wrote it.
    pub(super) xmin: Option<i64>,
}

/// How often another system had the effect of a call.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Call {
    pub(super) scope: String,
    pub(super) name: String,
    pub(super) effect: String,
    pub(super) times: u64,
}

/// A saga, as its rows have it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Saga {
    pub(super) saga: i64,
    pub(super) name: String,
    pub(super) revision: i64,
    pub(super) direction: Direction,
    /// Those that were sent.
    pub(super) steps: BTreeMap<String, StepProgress>,
}

#[derive(Deserialize)]
#[serde(tag = "of", rename_all = "snake_case")]
enum Entry {
    Key(Key),
    Effect(Effect),
    Call(Call),
    Saga(Saga),
}

impl Keys {
    /// From the rows of [`super::KEYS`], and from lines of a program that counts effects.
    ///
    /// # Errors
    /// A line is none of these rows.
    pub fn parse<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Self, serde_json::Error> {
        let mut ledger = Self::default();
        for line in lines {
            match serde_json::from_str(line)? {
                Entry::Key(key) => {
                    ledger.numbers.insert((key.scope.clone(), key.name.clone()), key.key);
                    ledger.keys.insert(key.key, key);
                }
                Entry::Effect(effect) => ledger.effects.push(effect),
                Entry::Call(call) => ledger.calls.push(call),
                Entry::Saga(saga) => {
                    ledger.sagas.insert(saga.saga, saga);
                }
            }
        }
        Ok(ledger)
    }

    pub(super) fn of(&self, scope: &str, name: &str) -> Option<&Key> {
        self.keys.get(self.numbers.get(&(scope.to_owned(), name.to_owned()))?)
    }
}

impl Key {
    /// Whether this transaction wrote the row.
    pub(super) fn is_of(&self, xact: i64) -> bool {
        xact & 0xffff_ffff == self.xmin
    }
}
