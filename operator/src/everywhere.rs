//! A key's way over several databases: the trace of each, joined with the inboxes of the others.

use std::{borrow::BorrowMut, time::Duration};

use futures_util::{StreamExt as _, stream};
use oncebox_connect::error::{NoConnection, RelayError};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::timeout;

use super::{Operator, Result, Trace, TracedKey};

/// Databases that are looked at together, at most.
const TOGETHER_MAX: usize = 16;
/// If a client's key is not found, up to this number of its colons are tried as part of its root.
const COLONS_MAX: usize = 4;

/// The trace of one of several databases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[expect(clippy::exhaustive_structs, reason = "a caller that has asked a database by itself makes one")]
pub struct PlacedTrace {
    /// The name of the database.
    pub database: String,
    /// Its answer.
    #[serde(flatten)]
    pub trace: Trace,
}

impl Trace {
    /// Whether the database knows anything about the key.
    #[must_use]
    pub fn is_known(&self) -> bool {
        let was_acted_on = self.audit.as_ref().is_some_and(|rows| !rows.is_empty());
        !self.messages.is_empty() || !self.sagas.is_empty() || !self.inboxes.is_empty() || was_acted_on
    }
}

impl Operator {
    /// The key of a message that was meant where a `:` stands in the client's own key, which is
    /// escaped when it is enqueued.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn meant(&mut self, key: &str) -> Result<Option<String>> {
        for colons in 1..=key.matches(':').count().min(COLONS_MAX) {
            let escaped = key.replacen(':', "%3A", colons);
            if !self.trace(&escaped, 1).await?.messages.is_empty() {
                return Ok(Some(escaped));
            }
        }
        Ok(None)
    }
}

/// Adds to each message how its key stands in the inboxes of the other databases. Returns the
/// databases that did not answer within `limit`.
pub async fn look_elsewhere<O: BorrowMut<Operator>>(
    opened: &mut [(O, PlacedTrace)],
    limit: Duration,
) -> Vec<(String, RelayError)> {
    let keys = |(_, placed): &(O, PlacedTrace)| {
        placed.trace.messages.iter().map(|message| message.key.clone()).collect()
    };
    let keys: Vec<Vec<String>> = opened.iter().map(keys).collect();
    let mut looks = Vec::new();
    for (number, (operator, placed)) in opened.iter_mut().enumerate() {
        let others = keys.iter().enumerate().filter(|(other, _)| *other != number);
        let others: Vec<String> = others.flat_map(|(_, keys)| keys.clone()).collect();
        let database = placed.database.clone();
        looks.push(async move {
            if others.is_empty() {
                return (database, Ok(Vec::new()));
            }
            let looking = operator.borrow_mut().trace_inboxes(&others);
            let inboxes = within(limit, database.clone(), looking).await;
            (database, inboxes)
        });
    }
    let mut unasked = Vec::new();
    for (number, (database, inboxes)) in together(looks).await.into_iter().enumerate() {
        match inboxes {
            Ok(inboxes) => inboxes.into_iter().for_each(|key| join(opened, number, &database, key)),
            Err(error) => unasked.push((database, error)),
        }
    }
    unasked
}

/// Adds a key of this inbox to the messages of the other databases.
fn join<O>(
    opened: &mut [(O, PlacedTrace)],
    number: usize,
    database: &str,
    TracedKey { key, mut inbox }: TracedKey,
) {
    inbox.database = Some(database.to_owned());
    let others = opened.iter_mut().enumerate().filter(|(other, _)| *other != number);
    let messages = others.flat_map(|(_, (_, placed))| &mut placed.trace.messages);
    messages.filter(|message| message.key == key).for_each(|message| message.inboxes.push(inbox.clone()));
}

/// Looks at a database for a limited time; the error of one that does not answer in time is that of
/// one which cannot be reached.
///
/// # Errors
/// Those of the look.
pub async fn within<T, E: From<RelayError>>(
    limit: Duration,
    target: String,
    look: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let silent = |_| Err(RelayError::no_postgres(target, NoConnection::Silent).into());
    timeout(limit, look).await.unwrap_or_else(silent)
}

/// Runs futures, some at a time; the results are in the order of the futures.
pub async fn together<T>(all: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    stream::iter(all).buffered(TOGETHER_MAX).collect().await
}
